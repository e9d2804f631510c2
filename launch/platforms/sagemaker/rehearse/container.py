"""Entry point and environment of a SageMaker container in a rehearsal."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.core.rehearse import container as shared
from launch.core.rehearse import network
from launch.core.rehearse.cluster import RehearsalCluster
from launch.core.rehearse.process import RehearsalSpec
from segtrain.errors import MissingExtra

# ENV SAGEMAKER_TRAINING_MODULE of AWS's PyTorch images
TOOLKIT = "sagemaker_pytorch_container.training:main"


# Mounts the host's base folder at /opt/ml. If this machine has no /opt/ml, a new /opt is mounted
# first, with the old contents and an empty folder ml. If there is no /opt either,
# SAGEMAKER_BASE_DIR names the base folder.
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
# For SMDDP: the files of ssh, through which mpirun starts the ranks. AWS's toolkit writes their
# variables to /etc/environment, which must not be that of this machine.
SSH = r"""
mkdir -m 700 -p /run/sshd ~/.ssh
mount --bind "$base.ssh" /etc/ssh
mount --bind "$base.ssh" ~/.ssh
touch -a /etc/environment
mount --bind "$base.ssh/environment" /etc/environment
"""


def missing_for_mpirun(isolated: bool) -> str:
    """What the start of SMDDP by mpirun and sshd lacks on this machine; "": nothing."""
    if not isolated or os.geteuid():
        return "namespaces as root"
    programs = [name for name in ("mpirun", "sshd", "ssh-keygen") if _program(name) is None]
    packages = [] if importlib.util.find_spec("mpi4py") else ["mpi4py"]
    return ", ".join(programs + packages)


def _program(name: str) -> str | None:
    return shutil.which(name, path=network.search_path())


def add_ssh(base: Path, scratch: str) -> None:
    """Write the files of ssh for a host, with a key that all hosts share."""
    key, folder = Path(scratch, "id_rsa"), base.with_name(base.name + ".ssh")
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(key)], check=True)
    folder.mkdir(exist_ok=True)
    (folder / "environment").write_text("")
    for name in ("id_rsa", "id_rsa.pub"):
        shutil.copy(key.with_name(name), folder)
    (folder / "ssh_config").write_text(
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    (folder / "sshd_config").write_text(
        "HostKey /etc/ssh/id_rsa\nAuthorizedKeysFile /etc/ssh/id_rsa.pub\nUsePAM yes\n"
    )


def command(request: Mapping[str, Any]) -> list[str]:
    """The entry point and arguments of the request. AWS's images start their toolkit (train) by
    default.
    """
    algorithm = request["AlgorithmSpecification"]
    return [
        *algorithm.get("ContainerEntrypoint", ["train"]),
        *algorithm.get("ContainerArguments", []),
    ]


def unconnected(command: list[str]) -> list[str]:
    """The command, on a host that reaches no other: whatever it sends to them is lost."""
    return [
        "bash",
        "-c",
        'ip route add blackhole 10.77.0.0/25 && exec "$@"',
        "unconnected",
        *command,
    ]


def refuse_missing_toolkit() -> None:
    """Raises MissingExtra if this Python has no commands ``train`` and ``torchrun``."""
    folder = Path(sys.executable).parent
    for program, package in (("train", "sagemaker-training"), ("torchrun", "torch")):
        if shutil.which(program, path=str(folder)) is None:
            raise MissingExtra(
                package, "rehearse", f"--rehearse: {folder} has no command {program!r} and"
            )


def environment(
    spec: RehearsalSpec, stage: RehearsalCluster, base: Path, store: Mapping[str, str], fault: str
) -> dict[str, str]:
    """The environment of a container's processes. ``fault``: the value for planted/sitecustomize.py
    ("": none).
    """
    name = spec.request["TrainingJobName"]
    own = {
        "PYTHONUNBUFFERED": "TRUE",  # as AWS's images have it
        "SAGEMAKER_TRAINING_MODULE": TOOLKIT,
        "TRAINING_JOB_NAME": name,
        "TRAINING_JOB_ARN": (
            f"arn:aws:sagemaker:{store['AWS_REGION']}:000000000000:training-job/{name}"
        ),
        # pip must not download missing packages: it would install them into this Python.
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "SEGTRAIN_CACHE": str(base.with_name(base.name + ".cache")),
        "TMPDIR": spec.scratch,
        # the hosts share /tmp; Ray expects only its own processes
        "RAY_TMPDIR": str(Path(spec.scratch, base.name)),
        **store,
    }
    if not spec.namespaces or not os.path.isdir("/opt"):
        own["SAGEMAKER_BASE_DIR"] = str(base)
    own |= spec.request.get("Environment", {})
    smddp = stage.hyperparameters.get("parallel.strategy") == '"smddp"'
    return shared.environment(spec, fault, own, *(["standin"] if smddp else []))
