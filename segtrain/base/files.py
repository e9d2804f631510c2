"""Reading of regular files, atomic writing, a lock for making a file, the cache folder, a file
system's clock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from segtrain.errors import CheckpointError

# Pattern of unfinished files in a folder, including files left by killed processes and by version
# 0.1.
PARTIAL = ".*.part"
# bytes of a file that is read line by line, and of one that is read whole
MOST_LINES, MOST_TEXT = 1 << 30, 64 << 20
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # flag: do not wait for the other end of a pipe


def cache_folder() -> Path:
    """The folder for results that would otherwise be computed again at each start."""
    folder = os.path.expanduser(os.environ.get("SEGTRAIN_CACHE") or "~/.cache/segtrain")
    if folder.startswith("~"):  # no HOME, and no such user in /etc/passwd
        folder = os.environ["SEGTRAIN_CACHE"] = os.path.join(
            tempfile.gettempdir(), f"segtrain-{os.getuid()}"
        )
        warnings.warn(
            f"this user has no home folder: the cache is {folder}, or SEGTRAIN_CACHE", stacklevel=2
        )
    return Path(folder)


def digest_of(text: str, length: int) -> str:
    """The first hex digits of the SHA-256 of a text, for names of files."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def without_waiting(path: str, flags: int) -> int:
    """The ``opener`` of ``open`` for a path that may be a pipe."""
    return os.open(path, flags | NO_WAIT)


def open_file(path: str | Path, most: float = MOST_LINES) -> BinaryIO:
    """A regular file of up to ``most`` bytes, opened for reading.

    For files that others may have made, as in a copied run folder. Raises OSError: also for a pipe
    or a device, which could wait or never end.
    """
    stream = open(path, "rb", opener=without_waiting)  # noqa: SIM115 (the caller closes it)
    status = os.fstat(stream.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return stream
    stream.close()
    problem = f"larger than {most} bytes" if stat.S_ISREG(status.st_mode) else "not a regular file"
    raise OSError(errno.EINVAL, problem, str(path))


def read_text(path: str | Path) -> str:
    """The text of a regular file in UTF-8. Raises OSError like ``open_file``,
    UnicodeDecodeError.
    """
    with open_file(path, MOST_TEXT) as stream:
        return stream.read().decode()


def now_ns(folder: Path) -> int:
    """Unix time in nanoseconds by the clock of the folder's file system, which may be that of a
    file server.

    The time is that of a new temporary file in the folder. If the folder is not writable, this
    machine's clock is used.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()


def is_running(pid: int) -> bool:
    """Whether this machine has a process ``pid``."""
    import psutil

    try:
        return psutil.pid_exists(pid)
    except OverflowError:
        return False


@contextlib.contextmanager
def replacing(path: Path, beside: Path | None = None) -> Iterator[Path]:
    """A hidden temporary path to write to, which is renamed to ``path`` when the block ends.

    It is in the folder of ``path``, or in ``beside``, which must be on the same disk. After any
    error, the temporary file is removed and ``path`` is unchanged. Raises OSError.
    """
    # Unique among threads, processes, and hosts that share the folder, and never too long for a
    # file system.
    partial = (beside or path.parent) / f".{path.name[:48]}.{uuid.uuid4().hex[:8]}.part"
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        # The folder may have been removed or replaced by a file, or its disk may have become
        # read-only.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path, sync: bool = False, beside: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write and read that becomes ``path`` when the block ends; see ``replacing``.

    ``sync``: flush the content to the disk before the rename, so that a crash cannot leave a
    truncated file.
    """
    with replacing(path, beside) as partial, open(partial, "x+b") as stream:
        yield stream
        if sync:
            stream.flush()
            os.fsync(stream.fileno())


@contextlib.contextmanager
def alone(file: Path) -> Iterator[bool]:
    """Hold the lock of ``file`` among the processes of this host; yields whether another process
    held it before.

    ``file``: a result that only one of these processes has to make. If locks are not possible, none
    is held.
    """
    waited, path = False, file.with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        # A platform or a file system may have no locks, and a folder may be read-only.
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            file.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path, "ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
                fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield waited
        finally:
            # Processes that wait for the lock have the file open, so the lock still works for them.
            # Later processes find the result.
            with contextlib.suppress(OSError):
                path.unlink()


def write_atomically(path: Path, content: bytes, place: str = "`out`") -> None:
    """Write a file of a run, and flush it to the disk.

    ``place``: the setting that the error tells the user to change. Raises CheckpointError.
    """
    try:
        with writing(path, sync=True) as stream:
            stream.write(content)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}: free space or choose another {place}",
            code="file-not-written",
            file=str(path),
            reason=error.strerror,
        ) from None
