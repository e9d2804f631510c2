"""The process that holds the lock of a run folder, and whether it still runs, as far as this
process can tell.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import socket
import time
import uuid
from dataclasses import dataclass, fields
from pathlib import Path

from segtrain.base.files import open_file

MOUNTS = Path("/proc/self/mountinfo")
# Programs that mount a bucket as a folder. There, a rename is a copy, and an open file is not in
# the bucket yet.
_BUCKET_MOUNTS = frozenset(("gcsfuse", "rclone", "s3fs", "goofys", "blobfuse2"))
# File systems on local disks or in memory. Another machine can write there only if this one exports
# them.
_LOCAL = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "tmpfs",
        "ramfs",
        "overlay",
        "apfs",
        "hfs",
    )
)


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. ``since`` is only shown to people: clocks are not compared."""

    token: str = ""
    host: str = "unknown"
    pid: int = 0
    since: str = "unknown"
    began: str = ""  # start time of the process, in clock ticks since its machine was booted
    boot: str = ""  # boot id of its machine
    namespace: str = ""  # PID namespace of ``pid``
    # inode number of the lock file, which differs in a copied run folder; for a lease, its URL
    inode: str = ""

    def __str__(self) -> str:
        return (
            f"process {self.pid} on host {self.host} (since {self.since})"
            if self.pid
            else "an unknown process"
        )


def this_process() -> Holder:
    return Holder(
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        began=_began(os.getpid()) or "",
        boot=_boot(),
        namespace=_namespace(),
    )


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _began(pid: int) -> str | None:
    """Start time of a process, in clock ticks since the machine was booted. None: it has ended or
    cannot be seen.
    """
    try:
        state, *others = (
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
    except (OSError, ValueError):
        return None
    return None if state in ("Z", "X") else others[18]


def is_local(folder: Path) -> bool:
    """Whether the folder is on a local file system; False if that is unknown."""
    return file_system(folder) in _LOCAL


def bucket_mount(folder: Path) -> str:
    """The program that mounts a bucket at or above the folder, or ""."""
    kind, _, program = file_system(folder).partition(".")
    return program if kind == "fuse" and program in _BUCKET_MOUNTS else ""


def file_system(folder: Path) -> str:
    """The type of the folder's file system, such as ext4 or fuse.gcsfuse; "" if it is unknown."""
    resolved, deepest = str(folder.resolve()), ("", "")
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in MOUNTS.read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            mounted = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
            if f"{resolved}/".startswith(f"{mounted.rstrip('/')}/") and len(mounted) >= len(
                deepest[0]
            ):
                deepest = mounted, after.split()[0]
    return deepest[1]


def is_copy(holder: Holder, path: Path) -> bool:
    """Whether the lock file ``path`` is a copy of the file that its holder made."""
    try:
        return bool(holder.pid) and str(path.stat().st_ino) != holder.inode
    except OSError:  # it has just been removed
        return False


def lives(holder: Holder, path: Path, local: bool) -> bool | None:
    """Whether the holder named in the file ``path`` runs and writes here; None: only its heartbeat
    can show that.
    """
    if not holder.pid:  # The content is not valid: another process may be writing it now.
        return None
    if is_copy(holder, path):  # some network file systems give new inode numbers to old files
        return False if local else None
    if holder.boot != _boot():
        # A holder with another host name may be a client of this file server, or a virtual machine
        # on this host.
        return False if local and holder.host == socket.gethostname() else None
    return is_running_here(holder)


def is_running_here(holder: Holder) -> bool | None:
    """Whether the holder runs on this machine; None if its process cannot be seen from here."""
    if holder.boot != _boot() or holder.namespace != _namespace():
        return None
    began = _began(holder.pid)
    if began is not None:
        return began == holder.began
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return None  # a process of another user
    # a zombie: its parent has not waited for it yet
    return None if not Path("/proc/self/stat").exists() else False


def content_of(path: Path) -> bytes | None:
    """A file's bytes; None if there is no file, b"" for a dangling symbolic link. Raises
    OSError.
    """
    for _ in range(10):
        try:
            with open_file(path) as file:
                return file.read()
        except FileNotFoundError:
            # With a dangling link there, no lock file can be made.
            return b"" if path.is_symlink() else None
        except OSError as error:
            # NFS: another file replaced this one while it was opened
            if error.errno != errno.ESTALE:
                raise
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


def holder_in(content: bytes) -> Holder:
    """The holder that a lock file names; for a torn or foreign file, an unknown holder with a hash
    as its token.
    """
    try:
        record = json.loads(content.partition(b"\n")[0])
        texts = {part.name: str(record[part.name]) for part in fields(Holder) if part.name != "pid"}
        holder = Holder(**texts, pid=int(record["pid"]))
        if (
            re.fullmatch(r"[0-9a-f]{32}", holder.token)
            and holder.pid > 0
            and "".join(texts.values()).isprintable()
        ):
            return holder
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    return Holder(hashlib.sha256(content).hexdigest()[:32])
