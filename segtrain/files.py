"""Files that a reader sees whole or not at all, the folder of caches, and the clock of a file system."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from segtrain.errors import CheckpointError

# Unfinished files in a folder, those of version 0.1 and of killed processes included.
PARTIAL = ".*.part"


def cache_folder() -> Path:
    """The folder for what each start would otherwise compute again."""
    return Path(os.environ.get("SEGTRAIN_CACHE") or os.path.expanduser("~/.cache/segtrain"))


def now_ns(folder: Path) -> int:
    """Unix time in nanoseconds by the clock of the folder's file system, which may be that of a file server.

    From a temporary file in the folder. Of this machine if the folder is not writable.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()


def is_running(pid: int) -> bool:
    """Whether this machine has a process ``pid``."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


@contextlib.contextmanager
def replacing(path: Path, beside: Path | None = None) -> Iterator[Path]:
    """A hidden path to write, here or in ``beside`` on the same disk, that becomes ``path`` when the block ends.

    After any error it is removed, and ``path`` is what it was. Raises OSError.
    """
    # Unique among threads, processes, and hosts that share the folder, and never too long for a file system.
    partial = (beside or path.parent) / f".{path.name[:48]}.{uuid.uuid4().hex[:8]}.part"
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        # The folder may be gone, or a file, or on a disk that has become read-only.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path, sync: bool = False, beside: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write and read that becomes ``path`` when the block ends; see ``replacing``.

    ``sync``: its content is on the disk before it gets its name, so that a crash cannot leave a part of it.
    """
    with replacing(path, beside) as partial, open(partial, "x+b") as stream:
        yield stream
        if sync:
            stream.flush()
            os.fsync(stream.fileno())


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
            code="file-not-written", file=str(path), reason=error.strerror,
        ) from None  # fmt: skip
