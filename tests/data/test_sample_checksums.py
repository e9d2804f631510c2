"""Tests of the checksums of packed samples: a server that sends other bytes under the same etag is
found.
"""

# The names of fixtures are those of arguments.
# ruff: noqa: F811

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from bucket_sets import data_sets, digest, loader, opened, own, server  # noqa: F401
from conftest import refused

from segtrain.data.checksum import checksum
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import ShardIndex
from segtrain.data.storage import Range

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def table(dataset: object) -> ShardIndex:
    found = dataset.table  # type: ignore[attr-defined]
    assert isinstance(found, ShardIndex)
    return found


@pytest.mark.parametrize("size", [0, 1, 4072, 8144, 50_000])
def test_every_changed_bit_and_every_moved_block_changes_the_checksum(size):
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    expected = checksum(content.tobytes())
    # In every alignment.
    assert checksum(memoryview(b"abc" + content.tobytes())[3:]) == expected
    for at in range(0, size, 977):
        other = content.copy()
        other[at] ^= 1 << at % 8
        assert checksum(other) != expected
    for block in (512, 4096, 16384):
        if 2 * block <= size:
            other = content.copy()
            other[:block], other[block : 2 * block] = content[block : 2 * block], content[:block]
            assert checksum(other) != expected
    if size < 8144:
        assert expected == zlib.crc32(content)


@pytest.mark.parametrize("workers", [0, 2])
def test_other_bytes_under_the_same_etag_are_fetched_once_more_and_then_refused(
    own, server, monkeypatch, workers
):
    monkeypatch.setattr("cloud.bucket.BucketServer.etag_of", lambda self, path: f'"{path.name}"')
    bucket = opened("s3://bkt", "shards")
    span = table(bucket).span(5)
    shard = f"s3://bkt/shards/{table(bucket).description.shards[span.shard].name}"
    assert span.mask is not None
    at, expected = span.mask[1], span.checks
    flip(own / shard.removeprefix("s3://bkt/"), at + 3)
    server.asked.clear()
    with refused(
        "sample-checksum", file=shard, sample=span.name, byte=at, expected=(expected or (0, 0))[1]
    ) as caught:
        digest(loader(bucket, workers))
    assert caught.value.values["found"] != caught.value.values["expected"]
    span_asked = [what for what in server.asked if what[0].endswith(shard.rpartition("/")[2])]
    assert 2 in {span_asked.count(what) for what in span_asked}
    assert bucket.store.tally.sums.retries["checksum"][0] == 1


def test_a_server_that_lies_once_costs_no_sample(data_sets, server, monkeypatch):
    bucket = opened("s3://bkt", "shards")
    answer, lied = type(bucket.store)._answer, list[Range]()
    wrong, right = list[float](), list[float]()

    def once(store: object, wanted: Range, stop: object) -> object:
        found = answer(store, wanted, stop)  # type: ignore[arg-type]
        content = bytearray(found.content)
        if len(lied) < 3 and wanted not in lied:
            lied.append(wanted)
            content[-1] ^= 4
            wrong.append(found.seconds)
        elif wanted.length >= 0:
            right.append(found.seconds)
        return found._replace(content=content)

    monkeypatch.setattr(type(bucket.store), "_answer", once)
    more = bucket.store.tally.counter()
    more()
    server.requests.clear()
    assert digest(loader(bucket, 2)) == digest(loader(opened(data_sets / "bkt", "shards"), 2))
    assert len(lied) == 3
    counted = more()
    assert counted.requests == server.requests["GET"]
    assert counted.retries["checksum"] == (3, pytest.approx(sum(wrong)))
    assert counted.seconds == pytest.approx(sum(right))


def test_an_index_without_checksums_and_one_of_another_kind_still_work(own, server):
    path, expected = own / "shards/train.index", digest(loader(opened(own, "shards")))
    kept = shard_index.load(str(path))
    assert kept.checks is None  # the disk is not a bucket
    old = kept.rows, bytes(kept.names)
    for checks in ("", "another-kind"):
        shard_index.write_arrays(str(path), kept.description, *old)
        if checks:
            with_other_kind(path)
        again = opened("s3://bkt", "shards")
        assert table(again).checks is None
        assert digest(loader(again)) == expected


def with_other_kind(path: Path) -> None:
    """Rewrite the header of an index with checksums that this version does not know."""
    content = path.read_bytes()
    magic, length, _ = shard_index._HEAD.unpack(content[: shard_index._HEAD.size])
    end = shard_index._HEAD.size + length
    found = json.loads(content[shard_index._HEAD.size : end])
    head = json.dumps({**found, "checks": {"kind": "better", "base64": "?"}}).encode()
    path.write_bytes(
        shard_index._HEAD.pack(magic, len(head), zlib.crc32(head)) + head + content[end:]
    )
