"""Tests that each setting of a job becomes the right field of customJobs.create, and that
containers start from it.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from conftest import refused

from launch.core.job import ROOT, load_job
from launch.platforms.vertex import bundle
from launch.platforms.vertex import request as made
from launch.platforms.vertex.job import VertexJob

NOW = datetime(2026, 11, 21, 3, 56, 5, 89_000)


def request(job: VertexJob, **other: Any) -> dict[str, Any]:
    return made.custom_job(job, **{"image": "i:1", "name": "job-1", **other})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("segtrain", "segtrain-2026-11-21-03-56-05-089"),
        ("\u00e4\u00f6", "segtrain-2026-11-21-03-56-05-089"),
        ("x" * 80, "x" * 39 + "-2026-11-21-03-56-05-089"),
    ],
)
def test_names_are_legal_labels(name, expected):
    found = made.job_name(VertexJob(name=name), NOW)
    assert found == expected
    assert re.fullmatch(r"[a-z0-9-]{1,63}", found)


def test_a_mount_without_a_path_is_refused():
    with refused("mount-incomplete"):
        load_job(VertexJob, None, {"nfs": [{"server": "10.0.0.2"}]})


STAND_IN = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd(), "path": os.environ["PYTHONPATH"]}))
"""


@pytest.fixture
def storage() -> Iterator[tuple[str, dict[str, bytes], list[tuple[str, dict[str, str]]]]]:
    """Cloud Storage, whose first answer with a bundle is cut, and the metadata server of a machine,
    on loopback.
    """
    objects: dict[str, bytes] = {}
    seen: list[tuple[str, dict[str, str]]] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, dict(self.headers)))
            content = objects.get(self.path, b"")
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            first = (
                self.path.endswith(".tar.gz") and [path for path, _ in seen].count(self.path) == 1
            )
            self.wfile.write(content[: 100 if first else None])

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", objects, seen
        server.shutdown()


def test_the_container_becomes_the_training(tmp_path, storage):
    place, objects, seen = storage
    folder = tmp_path / "source"
    for name, text in {
        "segtrain/__init__.py": "",
        "segtrain/platforms/__init__.py": "",
        "segtrain/platforms/vertex/__init__.py": "",
        "segtrain/platforms/vertex/__main__.py": STAND_IN,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as tar:
        tar.add(folder, arcname=".")
    objects["/computeMetadata/v1/instance/service-accounts/default/token"] = (
        b'{"access_token": "secret"}'
    )
    job = VertexJob(project="p", output="gs://a-bucket-of-nobody/out")
    objects["/a-bucket-of-nobody/out/job-1/source/bundle.tar.gz"] = (
        tmp_path / "bundle.tar.gz"
    ).read_bytes()
    (pool,) = request(job)["jobSpec"]["workerPoolSpecs"]
    container = pool["containerSpec"]
    environment = {pair["name"]: pair["value"] for pair in container["env"]}
    started = subprocess.Popen(
        [sys.executable, *container["command"][1:], *container["args"]],
        env={
            "PATH": os.environ["PATH"],
            **environment,
            "SEGTRAIN_CODE": str(tmp_path / "code"),
            "SEGTRAIN_PIP": "0",
            "STORAGE_EMULATOR_HOST": f"http://{place}",
            "GCE_METADATA_HOST": place,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    said = json.loads(started.communicate(timeout=600)[0].splitlines()[-1])
    assert said == {
        "argv": made.arguments(job),
        "pid": started.pid,  # process 1 stays process 1: signals reach the training
        "cwd": str(tmp_path / "code"),
        "path": str(tmp_path / "code"),
    }
    assert seen[-1][1]["Authorization"] == "Bearer secret"
    assert [path for path, _ in seen if "bundle" in path] == [
        "/a-bucket-of-nobody/out/job-1/source/bundle.tar.gz"
    ] * 2


def test_the_bundle_has_the_package_and_what_reads_buckets():
    files = dict(bundle.contents(VertexJob()))
    assert "segtrain/platforms/outcome.py" in files
    assert "train.py" not in files
    requirements = files["requirements.txt"]
    assert isinstance(requirements, bytes)
    lines = requirements.decode().splitlines()
    assert any(line.startswith("obstore") for line in lines)
    assert not any(line.startswith("torch") for line in lines)


def test_a_bare_python_looks_at_a_job():
    """Without any package: -S leaves site-packages out."""
    command = [sys.executable, "-S", "launch/vertex.py", "--machine", "g2-standard-48", "--dry-run"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0, done.stderr
    assert (
        json.loads(done.stdout)["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["acceleratorCount"]
        == 4
    )
    assert "are not checked" in done.stderr


def test_the_shipped_job_is_sound_but_for_its_placeholders(capsys):
    pytest.importorskip("yaml")
    from launch import vertex
    from launch.platforms.vertex.prepare import prepare, read

    _, asked, findings = prepare(read(ROOT / "configs/jobs/vertex.yaml"))
    assert [finding.code for finding in findings if finding.level != "note"] == ["placeholder"]
    assert vertex.main(["--job", str(ROOT / "configs/jobs/vertex.yaml"), "--dry-run"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["jobSpec"]["scheduling"]
        == asked["jobSpec"]["scheduling"]
    )
