"""Writes packed shards to a folder in a bucket: each is made on the local disk, uploaded whole, and
then verified.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segtrain.base.files import digest_of
from segtrain.bucket import is_bucket, split_url
from segtrain.bucket.client import PART, client_of, etag_of
from segtrain.data.bucket import store_of
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description, ShardSpan
from segtrain.data.shards.pack_target import Write, locked, refuse_full_disk
from segtrain.data.storage import writing
from segtrain.errors import file_error

# Concurrent uploads, in addition to the shards that are being made, and concurrent requests for
# small objects.
_UPLOADS, _SMALL_REQUESTS = 4, 16
# If an etag is not an MD5, an upload is verified by reading back this many ranges of this many
# bytes.
RANGES, RANGE = 8, 1 << 20
_BLOCK = 1 << 20


class BucketTarget:
    """Writes the shards of one split to a folder in a bucket; see DiskTarget for the methods.

    For each uploaded shard, a note in the bucket stores its size and etag. At most ``workers``
    shards are being made and ``uploads`` more are being uploaded, so the local disk holds at most
    ``workers + uploads`` shards.
    """

    uploads = _UPLOADS

    def __init__(self, folder: str, split: str, workers: int, outage_s: float) -> None:
        self.place, self._split, self._outage_s = folder.rstrip("/"), split, outage_s
        base, self._key = split_url(folder)
        self._client = client_of(base)
        self.hidden, self.index = (
            f"{self.place}/{name}" for name in (f".packing-{split}", split + shard_index.ENDING)
        )
        user = os.getuid() if hasattr(os, "getuid") else 0
        digest = digest_of(f"{self.hidden} {user}", 16)
        self._local = os.path.join(tempfile.gettempdir(), f"segtrain-pack-{digest}")
        self._threads, self._making = workers + self.uploads, threading.Semaphore(workers)
        # Objects that were there at the start: name -> (size, etag).
        self._shards: dict[str, tuple[int, str]] = {}
        self._notes: dict[str, tuple[int, str]] = {}

    def _below(self, *names: str) -> str:
        return "/".join(filter(None, (self._key, *names)))

    @property
    def _notes_key(self) -> str:
        return self._below(f".packing-{self._split}")

    def _listed(self, key: str) -> dict[str, tuple[int, str]]:
        objects, _ = self._client.folder(key, self._outage_s)
        return {item["path"].rpartition("/")[2]: (item["size"], etag_of(item)) for item in objects}

    def holds(self, root: str) -> bool:
        return is_bucket(root) and split_url(root) == split_url(self.place)

    def finished(self) -> Description | None:
        self._shards, self._notes = self._listed(self._key), self._listed(self._notes_key)
        if self._split + shard_index.ENDING not in self._shards:
            return None
        description = shard_index.load(self.index, store_of(self.place, self._outage_s)).description
        self._forget()
        return description

    @contextmanager
    def alone(self) -> Iterator[None]:
        with locked(self._local):
            # Remove the shards that are left from a pack that was killed during uploads.
            for path in Path(self._local).glob("*.tar"):
                path.unlink()
            try:
                yield
            # also after an error: the notes in the bucket are all that the next pack needs
            finally:
                with suppress(OSError):
                    shutil.rmtree(self._local)

    def plan(self) -> dict[str, Any] | None:
        return self._read_json("plan.json") if "plan.json" in self._notes else None

    def keep_plan(self, plan: dict[str, Any]) -> None:
        self._write_json("plan.json", plan)

    def refuse_full(self, total: float, shard: float) -> None:
        need = min(total, self._threads * shard)
        refuse_full_disk(
            self._local, self._local, need, "set TMPDIR to another disk, or lower --shard-mb"
        )

    def intact(self, number: int, name: str) -> dict[str, Any] | None:
        note = f"{number:06d}.json"
        if note in self._notes and name in self._shards:
            record: dict[str, Any] = self._read_json(note)
            if self._shards[name] == (record["size"], record["etag"]):
                return record
        return None

    def written(self, number: int, name: str, write: Write) -> dict[str, Any]:
        path = os.path.join(self._local, name)
        try:
            with self._making, writing(path) as stream:
                record = write(stream)
            etag = self._uploaded(name, path)
        finally:
            with suppress(OSError):
                os.unlink(path)
        record = {**record, "etag": etag}
        self._write_json(f"{number:06d}.json", record)
        return record

    def finish(self, description: Description, spans: Iterable[ShardSpan]) -> None:
        name = self._split + shard_index.ENDING
        path = os.path.join(self._local, name)
        shard_index.write(path, description, spans)
        self._uploaded(name, path)
        self._notes = self._listed(self._notes_key)
        self._forget()

    def _uploaded(self, name: str, path: str) -> str:
        """Upload a file and verify it. Returns its etag. Raises DataError."""
        key, size = self._below(name), os.path.getsize(path)
        self._client.put(key, Path(path), self._outage_s)
        answer = self._client.head(key, self._outage_s)
        where = f"{self.place}/{name}"
        if answer.size != size:
            raise file_error(
                where,
                f"has {answer.size:,} bytes in the bucket, but {size:,} on the disk: start "
                "the same command again",
                code="upload-differs",
                found=answer.size,
                expected=size,
            )
        if answer.etag.strip('"') == _md5_etag(path):
            return answer.etag
        with open(path, "rb") as stream:
            for begin in _spread(size):
                end = min(size, begin + RANGE)
                stream.seek(begin)
                stored = self._client.get(key, (begin, end), answer.etag, self._outage_s).content
                if bytes(stored) != stream.read(end - begin):
                    raise file_error(
                        where,
                        f"bytes {begin:,} to {end:,} differ from those on the disk: start "
                        "the same command again",
                        code="upload-differs",
                        begin=begin,
                        end=end,
                    )
        return answer.etag

    def _read_json(self, name: str) -> Any:
        key = f"{self._notes_key}/{name}"
        return json.loads(
            bytes(self._client.get(key, None, self._notes[name][1], self._outage_s).content)
        )

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self._client.put(f"{self._notes_key}/{name}", json.dumps(content).encode(), self._outage_s)

    def _forget(self) -> None:
        """Remove the notes of a finished pack."""
        with ThreadPoolExecutor(_SMALL_REQUESTS) as pool:
            list(
                pool.map(
                    lambda name: self._client.delete([f"{self._notes_key}/{name}"], self._outage_s),
                    self._notes,
                )
            )


def _md5_etag(path: str) -> str:
    """The etag that S3 gives a file: its MD5.

    After a multipart upload, it is the MD5 of the concatenated MD5s of all parts, followed by the
    number of parts.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        parts = []
        for begin in range(0, size, PART):
            digest = hashlib.md5(usedforsecurity=False)
            for at in range(begin, min(size, begin + PART), _BLOCK):
                digest.update(stream.read(min(_BLOCK, begin + PART - at, size - at)))
            parts.append(digest)
    if len(parts) == 1:
        return parts[0].hexdigest()
    whole = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(parts)}"


def _spread(size: int) -> Sequence[int]:
    """Offsets of the ranges that are read back: evenly spaced, from the first bytes to the last
    ones.
    """
    last = max(0, size - RANGE)
    return sorted({last * number // (RANGES - 1) for number in range(RANGES)})
