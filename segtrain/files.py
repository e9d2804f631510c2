"""Files that a reader sees whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from segtrain.errors import CheckpointError


def write_atomically(path: Path, content: bytes, place: str = "`out`") -> None:
    """Write beside, flush to the disk, rename: a reader sees the old file or the new one, never a part.

    ``place``: what the error tells the user to choose anew.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a disk that has become read-only refuses this too
            partial.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error.strerror}: free space or choose another {place}") from None
