"""Writes packed shards to a folder on the disk, each with a note (a JSON file), so that a killed
pack can continue.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from segtrain.bucket import is_bucket
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description, ShardSpan
from segtrain.data.shards.reader import sha256_of
from segtrain.data.storage import LOCAL, writing
from segtrain.errors import DataError

Write = Callable[[BinaryIO], "dict[str, Any]"]


class DiskTarget:
    """Writes the shards of one split to a folder. Each is written in a hidden subfolder first, and
    then renamed.

    ``place``: the folder. ``hidden``: the hidden subfolder, with the notes. ``index``: the index
    file. ``uploads``: number of threads for uploads, in addition to the workers: none for a disk.
    """

    uploads = 0

    def __init__(self, folder: str, split: str) -> None:
        self.place = os.path.abspath(folder)
        self.hidden = os.path.join(self.place, f".packing-{split}")
        self.index = os.path.join(self.place, split + shard_index.ENDING)
        self._plan = os.path.join(self.hidden, "plan.json")

    def holds(self, root: str) -> bool:
        """Whether this is the folder ``root``."""
        return not is_bucket(root) and os.path.realpath(root) == os.path.realpath(self.place)

    def finished(self) -> Description | None:
        """The description in the index if this split is already packed, else None."""
        return shard_index.load(self.index).description if os.path.exists(self.index) else None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of the pack. Raises DataError if another process has it."""
        with locked(self.hidden):
            yield

    def plan(self) -> dict[str, Any] | None:
        """The plan (options, source, and samples per shard) of an unfinished pack; None if there is
        no such pack.
        """
        return json.loads(LOCAL.read(self._plan)) if os.path.exists(self._plan) else None

    def keep_plan(self, plan: dict[str, Any]) -> None:
        _write_json(self._plan, plan)

    def refuse_full(self, total: float, shard: float) -> None:
        """Raise DataError if the disk lacks space. ``total``: bytes of all shards. ``shard``: bytes
        of one shard.
        """
        refuse_full_disk(self.hidden, self.place, total, "pack into another folder")

    def intact(self, number: int, name: str) -> dict[str, Any] | None:
        """The note of a shard that exists and is intact, else None."""
        path, note = os.path.join(self.place, name), self._note(number)
        if os.path.exists(note) and os.path.exists(path):
            record: dict[str, Any] = json.loads(LOCAL.read(note))
            if LOCAL.stat(path).size == record["size"] and sha256_of(path) == record["sha256"]:
                return record
        return None

    def written(self, number: int, name: str, write: Write) -> dict[str, Any]:
        """Write a shard with ``write``, then the note that ``write`` returns. Returns the note."""
        with writing(os.path.join(self.place, name), self.hidden) as stream:
            record = write(stream)
        _write_json(self._note(number), record)
        return record

    def finish(self, description: Description, spans: Iterable[ShardSpan]) -> None:
        """Write the index, which makes the split visible, and remove the notes."""
        shard_index.write(self.index, description, spans)
        shutil.rmtree(self.hidden)

    def _note(self, number: int) -> str:
        return os.path.join(self.hidden, f"{number:06d}.json")


def _write_json(path: str, content: dict[str, Any]) -> None:
    with writing(path) as stream:
        stream.write(json.dumps(content).encode())


def refuse_full_disk(hidden: str, folder: str, need: float, otherwise: str) -> None:
    """Raise DataError if the disk of ``hidden`` has less than ``need`` bytes free."""
    free = shutil.disk_usage(hidden).free
    if need > free:
        reason = f"the pack needs about {need / 1e9:,.2f} GB, but {free / 1e9:,.2f} GB are free"
        text = f"{folder}: {reason}: make space, or {otherwise}"
        raise DataError(text, code="disk-too-small", folder=folder, found=free, expected=need)


@contextmanager
def locked(hidden: str) -> Iterator[None]:
    """Create and lock a hidden folder, and remove unfinished files that a killed process left
    there.

    Raises DataError if the folder cannot be created, or if another process holds the lock.
    """
    try:
        os.makedirs(hidden, exist_ok=True)
        handle = os.open(os.path.join(hidden, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(
            f"{hidden}: cannot be created ({error.strerror}): check the folder and its permissions",
            code="folder-unwritable",
            folder=hidden,
            found=error.strerror,
        ) from None
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{hidden}: another process is packing this split: wait for it"
            raise DataError(message, code="pack-in-progress", folder=hidden) from None
        except (ImportError, OSError):  # a system or file system without locks
            pass
        for name in os.listdir(hidden):
            if name.startswith(".") and name.endswith(".part"):  # a file of a pack that was killed
                os.unlink(os.path.join(hidden, name))
        try:
            yield
        # a folder that holds only the lock is removed: no later pack can continue from it
        except BaseException:
            with suppress(OSError):
                if os.listdir(hidden) == ["lock"]:
                    shutil.rmtree(hidden)
            raise
    finally:
        os.close(handle)
