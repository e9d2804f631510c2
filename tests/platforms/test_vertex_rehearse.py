"""Tests that a rehearsal of a Vertex AI job plays the very request, restarts its workers, and
resumes exactly.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused
from records import a_run

from launch import vertex
from launch.core.job import ROOT, load_job
from launch.core.rehearse import network
from launch.core.rehearse.buckets import BucketServer
from launch.core.rehearse.process import SPEC, RehearsalSpec, stage
from launch.core.rehearse.report import Report, load, show
from launch.platforms.vertex import bundle
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.rehearse import plan, run
from launch.platforms.vertex.rehearse.run import rehearse
from launch.platforms.vertex.request import custom_job
from segtrain.bucket.client import client_of
from segtrain.bucket.versions import read_version, write_version
from segtrain.config import load_config
from segtrain.insight.plan.record import record
from segtrain.platforms.vertex.hosts import read_replicas

NAMESPACES = network.namespaces()[0] is not None
NAME = "segtrain-2026-11-23-03-56-05-089"
KEYS: dict[str, Any] = {
    "hosts": 2,
    "machine": "n1-standard-8",
    "project": "p",
    "region": "us-central1",
    "output": "gs://out/seg",
}


def job_of(*settings: str, **keys: Any) -> VertexJob:
    return load_job(VertexJob, {**KEYS, **keys}, {}, settings)


def request_of(job: VertexJob) -> dict[str, Any]:
    return custom_job(job, image="image", name=NAME)


def test_hosts_are_the_replicas_and_know_their_ranks():
    request = request_of(job_of(hosts=5))
    cluster = plan.set_stage(request, hosts=None, isolated=True)
    assert "3 hosts instead of 5" in cluster.said
    for rank, host in enumerate(cluster.hosts):
        found = read_replicas({"CLUSTER_SPEC": plan.cluster_spec(host, cluster, request)})
        assert found is not None
        assert (found.number, found.pool, found.address) == (
            rank,
            min(rank, 1),
            (cluster.leader.name, 2222),
        )
    assert plan.set_stage(request, hosts=5, isolated=True).said == ()
    assert len(plan.set_stage(request_of(job_of(hosts=1)), hosts=2, isolated=False).hosts) == 2
    with refused("rehearsal-hosts", found=0):
        plan.set_stage(request, hosts=0, isolated=True)


@pytest.mark.parametrize("hosts", [None, 2])
def test_the_command_line_gives_the_number_of_hosts(hosts, tmp_path, monkeypatch):
    asked: list[Any] = []

    def keep(job: VertexJob, request: Any, spec: RehearsalSpec, say: Any) -> Any:
        asked.append((job.hosts, spec.hosts, spec.namespaces, spec.settings))
        return SimpleNamespace(exit_code=0)

    monkeypatch.setattr("launch.platforms.vertex.rehearse.run.rehearse", keep)
    monkeypatch.setattr("launch.vertex.build", lambda *_: None)
    keys = {**KEYS, "hosts": 5, "project": "street-scenes"}
    (tmp_path / "job.yaml").write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    words = ["--job", str(tmp_path / "job.yaml"), "--rehearse", "--folder", str(tmp_path / "play")]
    assert (
        vertex.main([*words, *([f"--hosts={hosts}"] if hosts else []), "train.batch_size=20"]) == 0
    )
    assert asked == [(5, hosts, True, {"train.duration": "12st"})]


def test_the_ranks_of_a_rehearsal_are_counted(tmp_path):
    for job, procs, expected in (
        (job_of(), None, 1),
        (job_of(), 2, 2),
        (job_of("parallel.procs=8"), None, 1),
        (job_of(strategy="single"), None, 1),
    ):
        local = plan.local_ranks(job, procs)
        assert local == expected
        changes, _ = run._changes(job, "", 2, local, RehearsalSpec("", str(tmp_path)), [])
        assert changes.get("parallel.procs") == (None if job.strategy == "single" else expected)
    for job, procs in ((job_of(), 0), (job_of(strategy="single"), 2)):
        with refused("rehearsal-procs", found=procs):
            plan.local_ranks(job, procs)
    with refused("plant-without-rank", found="fail:2"):
        play(tmp_path, plant="fail:2")


def test_the_data_are_where_the_containers_read_them():
    files = 'data.layout="folders"'
    assert run._place_of_data(job_of(data="gs://b/d")) == ""  # generated street scenes
    assert run._place_of_data(job_of(files, data="gs://b/d")) == "gs://b/d"
    assert run._place_of_data(job_of(files, "data.root=gs://b/e", data="gs://b/d")) == "gs://b/d"
    assert run._place_of_data(job_of(files, "data.root=gs://b/e")) == "gs://b/e"


def test_weights_that_a_rehearsal_lacks_are_named(tmp_path):
    pytest.importorskip("obstore", reason="the extra 'buckets' is not installed")
    weights = "/gcs/b/d/weights/street.pt"
    keys: dict[str, Any] = {
        "data": "gs://b/d",
        "settings": {"data.layout": "folders", "model.init": weights},
    }
    with refused("rehearsal-weights", key="model.init", found=weights):
        play(tmp_path, **keys)
    keys["settings"]["model.init"] = str(tmp_path)
    run._changes(
        job_of(**keys), "gs://b/d", 2, 1, RehearsalSpec("", str(tmp_path), sample=str(tmp_path)), []
    )


def test_only_the_files_of_a_rehearsal_are_cleared(tmp_path):
    folder, said = tmp_path / "stage", []
    spec = RehearsalSpec("", str(folder))
    with stage(spec, (), "", said.append):
        for name in ("gcs", "logs", "sample", "mine"):
            (folder / name).mkdir()
    with stage(replace(spec, sample=str(folder / "sample")), (), "", said.append):
        assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["mine", "sample"]
    assert len(said) == 2
    (folder / SPEC).unlink()
    with (
        refused("rehearsal-folder", found=str(folder / "sample")),
        stage(spec, (), "", said.append),
    ):
        pass
    assert (folder / "sample").is_dir()


def test_settings_of_the_rehearsal_replace_those_of_the_job():
    described = {
        "command": ["python3", "-c", "x"],
        "args": ["a.yaml", "train.batch_size=8", 'out="gs://b/c"'],
    }
    words = plan.command(described, {"train.batch_size": 4, "log.every": 1})
    assert words == [
        "python3",
        "-c",
        "x",
        "a.yaml",
        "train.batch_size=4",
        'out="gs://b/c"',
        "log.every=1",
    ]
    assert plan.command({"args": []}, {})[-1] == "segtrain.platforms.vertex"


def test_the_storage_keeps_objects_and_their_generations(tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="the extra 'buckets' is not installed")
    (tmp_path / "gcs/data").mkdir(parents=True)
    with BucketServer("127.0.0.1", tmp_path / "gcs") as store:
        for key, value in store.google_environment().items():
            monkeypatch.setenv(key, value)
        client = client_of("gs://data")
        large = tmp_path / "large"
        large.write_bytes(bytes(range(256)) * (33 << 12))
        client.put("a/large", large, 5)
        client.put("a/b/small file", b"small", 5)
        assert bytes(client.get("a/large", None, "", 5).content) == large.read_bytes()
        assert bytes(client.get("a/b/small file", (1, 3), "", 5).content) == b"ma"
        assert [item["path"] for page in client.below("a/", 5) for item in page] == [
            "a/b/small file",
            "a/large",
        ]
        assert client.folder("a", 5)[1] == ["a/b"]
        etag = client.head("a/large", 5).etag
        client.put("a/large", b"other", 5)
        with refused("object-changed"):
            client.get("a/large", None, etag, 5)
        client.delete(["a/large", "a/gone"], 5)
        with refused("object-missing"):
            client.get("a/large", None, "", 5)
        first = write_version(client, "lease", b"1", None, 5)
        assert write_version(client, "lease", b"2", None, 5) is None
        second = write_version(client, "lease", b"3", first, 5)
        assert write_version(client, "lease", b"4", first, 5) is None
        found = read_version(client, "lease", 5)
        assert found is not None
        assert (found.content, found.version["version"]) == (b"3", (second or {})["version"])


@pytest.mark.parametrize(
    ("asked", "content"), [("-3", b"efg"), ("-9", b"abcdefg"), ("2-3", b"cd"), ("5-", b"fg")]
)
def test_the_storage_answers_ranges(asked, content, tmp_path):
    (tmp_path / "gcs/data").mkdir(parents=True)
    (tmp_path / "gcs/data/letters").write_bytes(b"abcdefg")
    with BucketServer("127.0.0.1", tmp_path / "gcs") as store:
        connection = http.client.HTTPConnection(*store.server_address[:2])
        connection.request("GET", "/data/letters", headers={"Range": f"bytes={asked}"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (206, content)
        connection.close()


def test_no_path_leads_out_of_the_folder_of_the_storage(tmp_path):
    (tmp_path / "gcs").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("mine")
    with BucketServer("127.0.0.1", tmp_path / "gcs") as store:
        for method, status in (("GET", 404), ("DELETE", 404), ("PUT", 200)):
            connection = http.client.HTTPConnection(*store.server_address[:2])
            connection.request(
                method, "/data/%2e%2e/..%2f../secret", b"theirs" if method == "PUT" else None
            )
            assert connection.getresponse().status == status
            connection.close()
    assert secret.read_text() == "mine"
    assert (tmp_path / "gcs/data/secret").read_text() == "theirs"


# In the place of the training, a program of a few lines: its state is in the bucket. The containers
# of HELD wait for the planted end at the step where it is due, however late it comes, if they have
# not been started again.
PROGRAM = """
import json, os, signal, sys, time, urllib.request
spec = json.loads(os.environ["CLUSTER_SPEC"])
pool = spec["task"]["type"]
told = []
open(os.environ["TMPDIR"] + "/mark", "x").close()  # each container starts with an empty disk
signal.signal(signal.SIGTERM, lambda *_: told.append(1))

def ask(name, *content):
    place = os.environ["STORAGE_EMULATOR_HOST"] + "/out/" + name
    try:
        return urllib.request.urlopen(urllib.request.Request(place, *content, method="PUT" if content else "GET")).read()
    except urllib.error.HTTPError:
        return b""

first = not ask("up-" + pool)
ask("up-" + pool, b"1")
while not all(ask("up-" + other) for other in spec["cluster"]) and not told:
    time.sleep(0.05)
done = int(ask("state-" + pool) or 0)
while done < 8 and not told:
    done += 1
    print(f"step {done}/8", flush=True)
    ask("state-" + pool, str(done).encode())
    while first and pool in HELD and done == STEP and not told:
        time.sleep(0.05)
while not all(int(ask("state-" + other) or 0) == 8 for other in spec["cluster"]) and not told:
    time.sleep(0.05)  # the job ends with its first container
sys.exit(75 if told else 3 if pool == FAILS else 0)
"""


def play(
    tmp_path: Path,
    plant: str = "",
    fails: str = "",
    held: str = "",
    namespaces: bool = True,
    **keys: Any,
) -> Report:
    pytest.importorskip("obstore", reason="the extra 'buckets' is not installed")
    job = job_of(**keys)
    request = request_of(job)
    for pool in request["jobSpec"]["workerPoolSpecs"]:
        step = int(plant.partition(":")[2] or 0)
        values = f"FAILS, HELD, STEP = {fails!r}, {held.split()!r}, {step}"
        pool["containerSpec"]["command"] = ["python3", "-c", values + PROGRAM]
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "bundle").write_bytes(b"")
    paths = str(tmp_path / "bundle"), str(tmp_path / "stage")
    return rehearse(
        job, request, RehearsalSpec(*paths, plant=plant, namespaces=namespaces, grace_s=300)
    )


def states(report: Report) -> list[str]:
    return [item.status for item in report.transitions]


@pytest.mark.parametrize("namespaces", [True, False])
def test_a_worker_that_dies_is_started_again_under_its_name(namespaces, tmp_path):
    if namespaces and not NAMESPACES:
        pytest.skip("the kernel gives no network namespaces")
    report = play(tmp_path, plant="kill:3", held="workerpool1", namespaces=namespaces)
    assert (report.status, report.exit_code) == ("JOB_STATE_SUCCEEDED", 0)
    assert states(report)[:4] == ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "KILLED", "RESTART"]
    primary, worker = report.hosts
    assert primary.codes == (0,)
    assert worker.codes[0] == 137
    assert len(worker.codes) == 2
    assert load(Path(report.folder, "report.json")) == report
    assert "JOB_STATE_SUCCEEDED" in show(report)


def test_all_workers_start_again_where_the_job_says_so(tmp_path):
    report = play(tmp_path, plant="kill:3", held="workerpool0 workerpool1", restart_all=True)
    assert [host.codes[0] for host in report.hosts] == [137, 137]
    assert report.status == "JOB_STATE_SUCCEEDED"


def test_a_worker_that_always_fails_ends_the_job(tmp_path):
    report = play(tmp_path, fails="workerpool0")
    assert (report.status, report.exit_code, report.hosts[0].codes[:2]) == (
        "JOB_STATE_FAILED",
        1,
        (3, 3),
    )
    assert "non-zero status of 3" in report.failure_reason


def test_a_late_replica_is_reported_once(tmp_path):
    report = play(tmp_path, plant="late:1", fails="workerpool0", hosts=1)
    assert states(report).count("LATE") == 1
    assert len(report.hosts[0].codes) == 2


def test_a_job_is_cancelled_and_one_whose_machines_go_is_started_again(tmp_path):
    both = "workerpool0 workerpool1"
    report = play(tmp_path / "stop", plant="stop:2", held=both)
    assert report.status == "JOB_STATE_CANCELLED"
    assert {host.codes for host in report.hosts} == {(75,)}
    report = play(tmp_path / "spot", plant="spot:2", held=both, scheduling="spot")
    assert states(report).count("JOB_STATE_RUNNING") == 2
    assert report.status == "JOB_STATE_SUCCEEDED"
    assert report.hosts[0].codes == (75, 0)


SETTINGS = {
    "data.scenes": 13,
    "data.scene_size": [40, 48],
    "data.crop": [32, 32],
    "data.workers": 1,
    "train.batch_size": 4,
    "model.options": {"stem": 8, "widths": [8, 8, 16, 16], "decoder": 8, "bins": [1]},
    "train.duration": "10st",
    "train.progressive": [],
    "eval.every": "10st",
    "checkpoint.every": "2st",
    "log.every": 1,
    "log.pictures": 0,
    "log.profile_ms": 0,
    "log.tensorboard": False,
    "parallel.threads": 1,
}


@pytest.mark.slow
def test_a_worker_that_dies_changes_nothing_in_the_weights(tmp_path, zygote, monkeypatch):
    """The bundle is fetched from the bucket, two hosts train, one dies after step 3, and the run
    goes on from there.
    """
    pytest.importorskip("obstore", reason="the extra 'buckets' is not installed")
    torch = pytest.importorskip("torch")
    words = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items()]
    alone = zygote.start_ranks(
        2, "train", str(ROOT / "configs/scenes.yaml"), *words, f"out={tmp_path}/alone"
    )
    like = a_run(tmp_path / "like", "g2-standard-8", ranks=2, augment=0.001, wait=0.1)
    (like / "config.yaml").write_text(load_config(ROOT / "configs/scenes.yaml", words).to_yaml())
    job = job_of(*words, checkpoints="gs://out/run", machine="g2-standard-8", like=str(like))
    request = request_of(job)
    del request["jobSpec"]["baseOutputDirectory"]  # whose model would take as long as all the rest
    bundle.build(job, tmp_path / "bundle")
    assert [process.wait() for process in alone] == [0, 0], alone[0].output
    spec = RehearsalSpec(str(tmp_path / "bundle"), str(tmp_path / "stage"), plant="kill:3")
    report = rehearse(job, request, spec)
    assert report.status == "JOB_STATE_SUCCEEDED", report
    assert report.hosts[1].codes == (137, 0)
    log = Path(report.folder, "logs", f"{report.hosts[0].name}.log").read_text()
    assert "round 2: all 2 hosts are here" in log
    assert "going on from step" in log
    found = record([str(tmp_path / "stage/gcs/out")])
    (row,) = found.rows
    assert (row["machine"], row["hosts"]) == ("g2-standard-8", 2)
    assert row["minutes"]["happened"] > 0
    states_of = [
        torch.load(folder / "checkpoints/step-00000010.pt", weights_only=True)["model"]
        for folder in (tmp_path / "alone", tmp_path / "stage/gcs/out/run")
    ]
    assert states_of[0].keys() == states_of[1].keys()
    assert all(torch.equal(states_of[0][name], states_of[1][name]) for name in states_of[0])
