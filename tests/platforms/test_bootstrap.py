"""Tests of the scripts that ParallelCluster runs on new nodes, with stand-ins for apt-get, aws, pip
and Python's venv.

They show the order of the steps, what is done once, and what a failure leaves. They install
nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "configs/clusters"
pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not here")
# A stand-in writes what it was asked; python3 -m venv makes an environment of stand-ins.
STAND_INS = {
    "apt-get": 'echo "apt-get $*" >> "$LOG"; [ -z "${NO_APT:-}" ]',
    "aws": 'echo "aws $*" >> "$LOG"; cp "$ARCHIVE" "${@: -1}"',
    "python3": """echo "python3 $*" >> "$LOG"
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "pip $*" >> "$LOG"; [ -z "${NO_PIP:-}" ]\\n' > "$3/bin/pip"
printf '#!/bin/bash\\necho "segtrain 1.2.3"\\n' > "$3/bin/segtrain"
chmod +x "$3"/bin/*""",
}


class Node:
    """A node of a cluster: /workspace, the stand-ins, and what was asked of them."""

    def __init__(self, root: Path) -> None:
        self.root, self.workspace, self.log, self.cron = (
            root,
            root / "workspace",
            root / "log",
            root / "cron",
        )
        self.cron.mkdir()
        for name, text in STAND_INS.items():
            file = root / "bin" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"#!/bin/bash\n{text}\n")
            file.chmod(0o755)
        self.pack("one")

    def pack(self, text: str) -> None:
        (self.root / "requirements.lock").write_text(text)
        with tarfile.open(self.root / "segtrain.tar.gz", "w:gz") as archive:
            archive.add(self.root / "requirements.lock", "requirements.lock")

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        environment = {
            **os.environ,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "ARCHIVE": str(self.root / "segtrain.tar.gz"),
            "CRON_D": str(self.cron),
            **env,
        }
        return subprocess.run(
            ["bash", SCRIPTS / script, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def head(self, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            "head.sh", str(self.workspace), "s3://my-bucket/bootstrap/segtrain.tar.gz", **env
        )

    @property
    def asked(self) -> str:
        return self.log.read_text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_segtrain_is_installed_once_and_each_version_beside_the_other(node):
    done = node.head()
    assert done.returncode == 0, done.stderr
    first = (node.workspace / "segtrain").resolve()
    assert (first / ".installed").exists()
    assert (
        f"pip install --quiet --constraint {first}/requirements.lock --editable {first}"
        in node.asked
    )
    assert node.head().returncode == 0
    assert "pip" not in node.asked
    node.pack("two")
    assert node.head().returncode == 0
    second = (node.workspace / "segtrain").resolve()
    assert "pip" in node.asked
    assert second != first
    # jobs that run keep the version that they started with
    assert (first / ".venv/bin/segtrain").exists()


def test_a_failed_installation_is_not_taken_for_done(node):
    assert node.head(NO_PIP="1").returncode != 0
    assert not (node.workspace / "segtrain").exists()
    assert node.head().returncode == 0
    assert (node.workspace / "segtrain/.installed").exists()


def test_the_nightly_archive_is_a_line_that_cron_can_read(node):
    assert node.head().returncode == 0
    *variables, line = (node.cron / "segtrain-archive").read_text().splitlines()
    assert all("=" in variable for variable in variables)
    minute, hour, *rest, user = line.split()[:6]
    assert (minute.isdigit(), hour.isdigit(), rest, user) == (True, True, ["*"] * 3, "root")
    assert "%" not in line  # cron would end the line there
    command = line.split(maxsplit=6)[6]
    words = command.partition(" >> ")[0].split()
    assert words[:3] == ["flock", "-n", f"{node.workspace}/versions/archive.lock"]
    assert os.access(words[3], os.X_OK)
    tools = node.workspace / "tools"
    tools.mkdir()
    (tools / "lfs").write_text(f'#!/bin/sh\necho "$@" | tee -a {node.workspace}/asked\n')
    (tools / "lfs").chmod(0o755)
    (node.workspace / "runs/a b").mkdir(parents=True)
    for name in ("a b/c.pt", "d.pt"):
        (node.workspace / "runs" / name).write_text(name)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run([words[3]], env=env, check=True)
    asked = (node.workspace / "asked").read_text().splitlines()
    files = [f"{node.workspace}/runs/a b/c.pt", f"{node.workspace}/runs/d.pt"]
    assert sorted(asked[:2]) == [f"hsm_archive {file}" for file in files]
    assert all(file in (node.workspace / "versions/archive.txt").read_text() for file in files)


def test_a_compute_node_that_does_not_see_segtrain_says_so_and_ends(node):
    done = node.run("compute.sh", str(node.workspace))
    assert done.returncode == 1
    assert f"{node.workspace}/segtrain/.venv/bin/segtrain does not run" in done.stderr
    assert node.head().returncode == 0
    done = node.run("compute.sh", str(node.workspace), NO_APT="1")
    assert done.returncode == 0, done.stderr
    assert "segtrain 1.2.3" in done.stdout
    assert "reading images takes more CPU" in done.stdout


@pytest.mark.parametrize("script", ["head.sh", "compute.sh"])
def test_a_missing_argument_is_named(script, node):
    done = node.run(script)
    assert done.returncode != 0
    assert "the shared folder, such as /workspace" in done.stderr
    assert node.asked == ""
