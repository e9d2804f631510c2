"""Hosts with a network, names, and processes of their own on this machine: Linux namespaces, as root or as a plain
user.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from launch.rehearse.cluster import GATEWAY, RehearsalCluster, RehearsalHost

BRIDGE = "rehearsal"
_ENVIRONMENT = {**os.environ, "PATH": os.environ.get("PATH", "") + os.pathsep + "/usr/sbin:/sbin"}
# A plain user may not write /proc/sys/kernel/hostname, not even of a namespace of their own; the call is allowed.
_SET_NAME = f"{shlex.quote(sys.executable)} -ISc 'import socket, sys; socket.sethostname(sys.argv[1])'"
_INNER = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
# What a rehearsal needs of the kernel, tried at once: a bridge, a wire into a second namespace, a mount there.
_PROBE = f"""set -e
ip link add probe type bridge
ip link add near type veth peer name far
mount -t tmpfs none /mnt
exec {" ".join(_INNER)} bash -c {shlex.quote(f"ip link set lo up && mount -t tmpfs none /mnt && {_SET_NAME} probe")}
"""


def outer(as_root: bool) -> list[str]:
    """The command that gives the rehearsal namespaces of its own; all its processes end with it."""
    mapped = [] if as_root else ["--map-root-user"]
    return ["unshare", *mapped, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def namespaces() -> tuple[list[str] | None, str]:
    """The command to put before another, and how; or None, and what is missing."""
    for tool, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("bash", "bash")):
        if shutil.which(tool, path=_ENVIRONMENT["PATH"]) is None:
            return None, f"there is no command {tool!r}: apt-get install {package}"
    reason = ""
    for as_root in (True, False) if os.geteuid() == 0 else (False,):
        command = outer(as_root)
        tried = subprocess.run([*command, "bash", "-c", _PROBE], env=_ENVIRONMENT, capture_output=True, text=True)
        if tried.returncode == 0:
            return command, "as root" if as_root else "as a user"
        reason = " ".join(tried.stderr.split()) or f"code {tried.returncode}"
    cure = "sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces, or run as root"
    return None, f"the kernel gives no network namespaces ({reason}): {cure}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], env=_ENVIRONMENT, check=True, capture_output=True, text=True)


def build(stage: RehearsalCluster, folder: Path, served: str) -> None:
    """The bridge, and the file that becomes /etc/hosts on every host. To be called inside ``outer``.

    ``served``: the name by which hosts reach what this machine serves on the bridge.
    """
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")
    lines = ["127.0.0.1 localhost", f"{GATEWAY} {served}", *(f"{host.address} {host.name}" for host in stage.hosts)]
    (folder / "hosts.txt").write_text("\n".join(lines) + "\n")


def wire(host: RehearsalHost, pid: int) -> None:
    """Lay a wire from the bridge to eth0 of the namespace of ``pid``. Its end vanishes with the namespace."""
    near = f"host{host.number}"
    ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("link", "set", near, "master", BRIDGE, "up")


# Runs as the first process of a host and becomes its container. $1 name, $2 address, $3 hosts file, $4 base folder, $5
# other mounts; the rest is the container's entry point.
PRELUDE = f"""
read -r go || exit 1
set -e
name=$1 address=$2 hosts=$3 base=$4 mounts=$5
shift 5
ip link set lo up
ip link set eth0 addrgenmode none
ip addr add "$address/24" dev eth0
ip link set eth0 up
{_SET_NAME} "$name"
mount --bind "$hosts" /etc/hosts
mount -t tmpfs shm /dev/shm
eval "$mounts"
cd /
exec "$@" < /dev/null
"""


def inside(host: RehearsalHost, folder: Path, base: Path, command: list[str], mounts: str = "") -> list[str]:
    """The command that runs ``command`` as process 1 of a host, once it has read a line that says that its wire lies.

    ``mounts``: bash that mounts further folders; it has ``$base``.
    """
    return [
        *_INNER,
        "bash",
        "-c",
        PRELUDE,
        "host",
        host.name,
        host.address,
        str(folder / "hosts.txt"),
        str(base),
        mounts,
        *command,
    ]


def search_path() -> str:
    return _ENVIRONMENT["PATH"]
