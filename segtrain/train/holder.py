"""The holder of the lock of a run folder, and whether its process still runs, as far as this one can see."""

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

# File systems of one kernel. Another machine can write there through this one alone, which exports them.
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "apfs", "hfs"))


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. ``since`` is for people; no clock is compared."""

    token: str = ""
    host: str = "unknown"
    pid: int = 0
    since: str = "unknown"
    began: str = ""  # when the process began, in ticks of its kernel
    boot: str = ""  # which start of which machine
    namespace: str = ""  # in which the process id counts
    inode: str = ""  # of the lock file itself: a copy of a run folder holds a lock of the original

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} (since {self.since})" if self.pid else "an unknown process"


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
    """When a process began, in ticks since the machine's start. None: it has ended or cannot be seen."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in ("Z", "X") else fields[18]


def is_local(folder: Path) -> bool:
    """Whether the folder lies on a file system of this kernel's own; False where that cannot be told."""
    resolved, found = str(folder.resolve()), ("", "")
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            mounted = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
            if f"{resolved}/".startswith(f"{mounted.rstrip('/')}/") and len(mounted) >= len(found[0]):
                found = mounted, after.split()[0]
    return found[1] in _LOCAL


def is_copy(holder: Holder, path: Path) -> bool:
    """Whether the lock file ``path`` is not the one that its holder made."""
    try:
        return bool(holder.pid) and str(path.stat().st_ino) != holder.inode
    except OSError:  # it has just gone
        return False


def lives(holder: Holder, path: Path, local: bool) -> bool | None:
    """Whether the holder named in the file ``path`` runs and writes here; None: only signs of life can tell."""
    if not holder.pid:  # a lock that nobody can read: it may be in the making
        return None
    if is_copy(holder, path):  # some network file systems give new numbers to old files
        return False if local else None
    if holder.boot != _boot():
        # Of another name: a client of this file server, or a guest of this host, may see the same files.
        return False if local and holder.host == socket.gethostname() else None
    if holder.namespace != _namespace():
        return None
    began = _began(holder.pid)
    if began is not None:
        return began == holder.began
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return None  # somebody else's, which this user must not look at
    return None if not Path("/proc/self/stat").exists() else False  # it has ended, and its parent has not asked yet


def content_of(path: Path) -> bytes | None:
    """A file's bytes; None where there is none, b"" of a link to nowhere. Raises OSError."""
    for _ in range(10):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b"" if path.is_symlink() else None  # a link to nowhere: no file can be made there
        except OSError as error:
            if error.errno != errno.ESTALE:  # NFS: it was replaced by another one while it was opened
                raise
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))


def holder_in(content: bytes) -> Holder:
    """The holder that a lock file names; for a torn or foreign file an unknown holder with a token of its content."""
    try:
        found = json.loads(content.partition(b"\n")[0])
        texts = {part.name: str(found[part.name]) for part in fields(Holder) if part.name != "pid"}
        holder = Holder(**texts, pid=int(found["pid"]))
        if re.fullmatch(r"[0-9a-f]{32}", holder.token) and holder.pid > 0 and "".join(texts.values()).isprintable():
            return holder
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    return Holder(hashlib.sha256(content).hexdigest()[:32])
