"""A rehearsed container: processes with a base folder, an environment, and signals of their own; process 1 where the
kernel allows.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.rehearse import network
from launch.rehearse.cluster import RehearsalCluster, RehearsalHost
from launch.rehearse.guard import MARK, kill_marked
from segtrain.errors import MissingExtra

TOOLKIT = "sagemaker_pytorch_container.training:main"  # ENV SAGEMAKER_TRAINING_MODULE of AWS's PyTorch images
ROOM = Path(network.__file__).parent  # holds standin/ and planted/
# Of the machine, so that Python, its packages and weights that were fetched before are found.
KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TORCH_HOME", "HF_HOME")


# /opt/ml is mounted even if this machine has no such folder: over an /opt that shows its old contents. If there is no
# /opt either, SAGEMAKER_BASE_DIR names the base folder.
MOUNTS = r"""
if [ ! -d /opt/ml ] && [ -d /opt ]; then
  old=$base.opt
  mkdir -p "$old"
  mount --rbind /opt "$old"
  mount -t tmpfs opt /opt
  for item in "$old"/*; do
    [ -e "$item" ] || continue
    here=/opt/${item##*/}
    if [ -d "$item" ]; then mkdir "$here"; else touch "$here"; fi
    mount --rbind "$item" "$here"
  done
  mkdir /opt/ml
fi
[ ! -d /opt/ml ] || mount --rbind "$base" /opt/ml
"""


def command(request: Mapping[str, Any]) -> list[str]:
    """The entry point that the request asks for; without one AWS's images start their toolkit."""
    algorithm = request["AlgorithmSpecification"]
    return [*algorithm.get("ContainerEntrypoint", ["train"]), *algorithm.get("ContainerArguments", [])]


def toolkit_folder() -> Path:
    """Where ``train`` and ``torchrun`` of this Python lie. Raises MissingExtra."""
    folder = Path(sys.executable).parent
    for program, package in (("train", "sagemaker-training"), ("torchrun", "torch")):
        if shutil.which(program, path=str(folder)) is None:
            raise MissingExtra(package, "rehearse", f"--rehearse: {folder} has no command {program!r} and")
    return folder


def environment(
    request: Mapping[str, Any],
    stage: RehearsalCluster,
    base: Path,
    *,
    store: Mapping[str, str],
    mark: str,
    scratch: str,
    isolated: bool,
    plant: str,
) -> dict[str, str]:
    """What the processes of a container see: nothing of this shell but where things are.

    ``mark`` tells its processes from others', ``scratch`` is for temporary files, ``plant`` for
    planted/sitecustomize.py ("": none).
    """
    name = request["TrainingJobName"]
    ours = os.pathsep.join(str(ROOM / part) for part in (*_standin(stage), *(["planted"] if plant else [])))
    found = {key: os.environ[key] for key in KEPT if key in os.environ}
    found |= {
        "PATH": os.pathsep.join([str(toolkit_folder()), network.search_path()]),
        "PYTHONUNBUFFERED": "TRUE",  # as AWS's images have it
        "SAGEMAKER_TRAINING_MODULE": TOOLKIT,
        "TRAINING_JOB_NAME": name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{store['AWS_REGION']}:000000000000:training-job/{name}",
        "CUDA_VISIBLE_DEVICES": "",
        # What is missing is not fetched: it would land in this Python.
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "SEGTRAIN_CACHE": str(base.with_name(base.name + ".cache")),
        "TMPDIR": scratch,
        MARK: mark,
        **store,
    }
    if not isolated or not os.path.isdir("/opt"):
        found["SAGEMAKER_BASE_DIR"] = str(base)
    if plant:
        found["SEGTRAIN_PLANT"] = plant
    found |= (asked := dict(request.get("Environment", {})))
    found["PYTHONPATH"] = os.pathsep.join(part for part in (ours, asked.get("PYTHONPATH")) if part)
    return found


def _standin(stage: RehearsalCluster) -> list[str]:
    return ["standin"] if stage.hyperparameters.get("parallel.strategy") == '"smddp"' else []


class Container:
    """Started at once; ``argv`` is its process 1."""

    def __init__(
        self, host: RehearsalHost, base: Path, folder: Path, argv: list[str], env: Mapping[str, str], isolated: bool
    ) -> None:
        self.host, self._isolated, self._mark = host, isolated, env[MARK]
        self.ended, self._killed = 0.0, False
        whole = network.inside(host, folder, base, argv, MOUNTS) if isolated else argv
        self._process = subprocess.Popen(
            whole, cwd=base, env=dict(env), stdin=subprocess.PIPE if isolated else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if isolated:
            self._connect()

    def _connect(self) -> None:
        """Wait for the namespace, lay the wire, let the host go on."""
        mine, theirs = Path("/proc/self/ns/net"), Path(f"/proc/{self._process.pid}/ns/net")
        while self._process.poll() is None and os.readlink(theirs) == os.readlink(mine):
            time.sleep(0.005)
        network.wire(self.host, self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    def read(self, heard: Callable[[str], None]) -> None:
        """Each line of its output, until the last process that holds it has ended: for a thread."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if not line.startswith(b"unshare: sigprocmask"):  # some versions, when what they started is killed
                    heard(line.decode("utf-8", "replace").rstrip("\n"))

    @property
    def code(self) -> int | None:
        """None while it runs; 128 + the signal for a process that a signal ended, as docker says it."""
        code = self._process.poll()
        if code is not None and self._killed:
            code = -signal.SIGKILL
        if code is not None and not self.ended:
            self.ended = time.monotonic()
        return None if code is None else code if code >= 0 else 128 - code

    def stop(self) -> None:
        """SIGTERM to process 1, as StopTrainingJob."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Every process of the container, at once."""
        self._killed = self._killed or self._process.poll() is None
        self._signal(signal.SIGKILL)
        if not self._isolated:
            kill_marked(self._mark)

    def _signal(self, number: int) -> None:
        """In namespaces the process that was started is ``unshare``; process 1 of the host is its child."""
        pid = self._process.pid
        if self._isolated:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            try:
                pids = [int(text) for text in children.read_text().split()]
            except OSError:
                return  # it has ended
        else:
            pids = [pid] if self._process.poll() is None else []
        for one in pids:
            try:
                os.kill(one, number)
            except ProcessLookupError:
                continue
