"""Where is kept what each start would else find out again, and how is it written whole or not at all?"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    return Path(os.environ.get("SEGTRAIN_CACHE") or os.path.expanduser("~/.cache/segtrain"))


@contextmanager
def writing(place: Path) -> Iterator[BinaryIO]:
    """A hidden file in the same folder that takes the place when the block ends; after any error nothing of it stays.

    Raises OSError. It need not be on the disk by then: what a crash takes is found out again.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=place.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.replace(scratch, place)
    except BaseException:
        os.unlink(scratch)
        raise
