"""Hosts on this machine with their own network, host names, and processes: Linux namespaces, as
root or as a plain user.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from launch.core.rehearse.cluster import GATEWAY, RehearsalCluster, RehearsalHost
from segtrain.errors import ConfigError

BRIDGE = "rehearsal"
_MAC = "02:00:00:00:{:02x}:{:02x}"
_ENVIRONMENT = {**os.environ, "PATH": os.environ.get("PATH", "") + os.pathsep + "/usr/sbin:/sbin"}
# A plain user may not write /proc/sys/kernel/hostname, even in their own namespace. The system call
# is allowed.
_SET_NAME = (
    f"{shlex.quote(sys.executable)} -ISc 'import socket, sys; socket.sethostname(sys.argv[1])'"
)
_INNER = (
    "unshare",
    "--net",
    "--mount",
    "--uts",
    "--ipc",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
# Tries all that a rehearsal needs from the kernel: a bridge, a veth pair, and mounts and a host
# name in new namespaces.
_PROBE = f"""set -e
ip link add probe type bridge
ip link add near type veth peer name far
mount -t tmpfs none /mnt
exec {" ".join(_INNER)} bash -c {shlex.quote(f"ip link set lo up && mount -t tmpfs none /mnt && {_SET_NAME} probe")}
"""  # noqa: E501


def outer(as_root: bool) -> list[str]:
    """The command prefix that gives a rehearsal its own namespaces. When it ends, all processes in
    them end too.
    """
    mapped = [] if as_root else ["--map-root-user"]
    return [
        "unshare",
        *mapped,
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]


def namespaces() -> tuple[list[str] | None, str]:
    """The command prefix that gives namespaces, and "as root" or "as a user"; or None, and the
    reason why not.
    """
    if sys.platform != "linux":
        return None, "network namespaces need Linux"
    for tool, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("bash", "bash")):
        if shutil.which(tool, path=_ENVIRONMENT["PATH"]) is None:
            return None, f"there is no command {tool!r}: apt-get install {package}"
    reason = ""
    for as_root in (True, False) if os.geteuid() == 0 else (False,):
        command = outer(as_root)
        tried = subprocess.run(
            [*command, "bash", "-c", _PROBE], env=_ENVIRONMENT, capture_output=True, text=True
        )
        if tried.returncode == 0:
            return command, "as root" if as_root else "as a user"
        reason = " ".join(tried.stderr.split()) or f"code {tried.returncode}"
    cure = "sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces, or run as root"
    return None, f"the kernel gives no network namespaces ({reason}): {cure}"


def refuse_addresses(hosts: int) -> None:
    """Raises ConfigError if hosts without namespaces cannot have the addresses 127.0.0.1,
    127.0.0.2, ...
    """
    for n in range(1, hosts + 1):
        with socket.socket() as bound:
            try:
                bound.bind((f"127.0.0.{n}", 0))
            except OSError:
                text = (
                    f"this machine has no address 127.0.0.{n} for host {n}: rehearse on Linux "
                    "or in a container, or "
                )
                text += f"`sudo ifconfig lo0 alias 127.0.0.{n} up`"
                raise ConfigError(text, code="rehearse-address", found=f"127.0.0.{n}") from None


def said(prefix: list[str] | None, how: str, without: str) -> str:
    """What the user is told of the answer of ``namespaces``. ``without``: what else differs if
    there are none.
    """
    if prefix is not None:
        return f"each host has its own network, names, and processes ({how}); gloo instead of NCCL"
    return (
        f"no namespaces ({how}): the hosts are 127.0.0.1, 127.0.0.2, ... on one loopback network, "
        f"{without}; gloo instead of NCCL"
    )


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], env=_ENVIRONMENT, check=True, capture_output=True, text=True)


def build(stage: RehearsalCluster, folder: Path, served: str) -> None:
    """Create the bridge, and the file that becomes /etc/hosts on every host. Called inside the
    namespaces of ``outer``.

    ``served``: the host name of the server (of S3 or Cloud Storage) that listens on the bridge's
    address.
    """
    ip("link", "set", "lo", "up")
    # Without its own MAC address, a bridge takes that of a port, and takes another one when that
    # port's host ends.
    ip("link", "add", BRIDGE, "address", _MAC.format(0, 254), "type", "bridge")
    ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")
    lines = [
        "127.0.0.1 localhost",
        f"{GATEWAY} {served}",
        *(f"{host.address} {host.name}" for host in stage.hosts),
    ]
    (folder / "hosts.txt").write_text("\n".join(lines) + "\n")


def wire(host: RehearsalHost, pid: int) -> None:
    """Connect the bridge to eth0 in the network namespace of ``pid`` by a veth pair, which vanishes
    with the namespace.

    A host that starts again keeps its MAC address, which the other hosts may have cached.
    """
    near, mac = f"host{host.number}", _MAC.format(1, host.number)
    # The interface of the host's previous container may not have vanished yet.
    subprocess.run(
        ["ip", "link", "delete", near], env=_ENVIRONMENT, capture_output=True, check=False
    )
    ip(
        "link",
        "add",
        near,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "address",
        mac,
        "netns",
        str(pid),
    )
    ip("link", "set", near, "master", BRIDGE, "up")


# Runs as the first process of a host and becomes its container. $1 name, $2 address, $3 hosts file,
# $4 base folder, $5 other mounts; the rest is the container's entry point.
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


def inside(
    host: RehearsalHost, folder: Path, base: Path, command: list[str], mounts: str = ""
) -> list[str]:
    """The command that runs ``command`` as PID 1 of a host. It first waits for a line on standard
    input, which means that the host is connected to the bridge.

    ``mounts``: bash code that mounts further folders; ``$base`` is the base folder.
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
