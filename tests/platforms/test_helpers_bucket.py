"""Tests of helpers whose data set is in a bucket: they read it themselves, and only what the rank
would read.
"""

# ruff: noqa: F811
from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from bucket_sets import data_of, data_sets, opened, own, server  # noqa: F401
from deadly import Sleepy
from helped_loading import _quick, load, pool_of  # noqa: F401
from helper_hosts import Hosts
from waiting import soon

from segtrain.data.bucket.store import BucketStore
from segtrain.data.bucket.travel import rebuild
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.storage import Range
from segtrain.errors import DataError
from segtrain.platforms.ray.helpers import wire
from segtrain.platforms.ray.helpers.helper import Helper
from segtrain.platforms.ray.helpers.pool import HelpedPool


@dataclass
class Slow(Sleepy):
    """A data set in a bucket whose samples take a while."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store, self.ranges = self.source.store, self.source.ranges


def slow(place: str, layout: str) -> Slow:
    return Slow(opened(place, layout), -1)


def helped(source: Any, pool: HelpedPool, same: Callable[[], bool]) -> bool:
    return soon(lambda: same() and sum(pool.helped.values()) > 8)


@pytest.mark.parametrize(
    ("place", "layout"),
    [
        ("s3://bkt", "folders"),
        ("gs://bkt", "shards"),
    ],
)
def test_helpers_read_a_bucket_and_give_the_same_batches(data_sets, server, place, layout):
    data, source = data_of("x", "folders"), slow(place, layout)
    plain = load(data, opened(data_sets / "bkt", layout))
    with pool_of(Hosts({"a": 2})) as pool:
        assert helped(source, pool, lambda: load(data, source, pool) == plain)


def _travelled(source: Any) -> Any:
    """The data set as a helper gets it."""
    _, content = wire.packed(SampleMaker(source, data_of("x", "folders"), 3))
    return pickle.loads(content).source


@pytest.mark.parametrize("layout", ["folders", "shards"])
def test_a_helper_expects_the_objects_that_the_rank_has_listed(own, server, layout):
    source = opened("s3://bkt", layout)
    (wanted, *_) = source.ranges(0)
    there = _travelled(source)
    assert bytes(there.store.part(wanted)) == bytes(source.store.part(wanted))
    file = own / wanted.path.removeprefix("s3://bkt/")
    file.write_bytes(file.read_bytes() + b"changed")
    with pytest.raises(DataError, match="changed"):
        _travelled(source).store.part(wanted)


def test_the_index_of_foreign_tars_travels(data_sets, server, tmp_path, monkeypatch):
    source = opened("s3://bkt", "foreign")
    _, content = wire.packed(SampleMaker(source, data_of("x", "folders"), 3))
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "of another host"))
    there = pickle.loads(content).source
    assert list(there.entries) == list(source.entries)
    assert there.ranges(1) == source.ranges(1)


def test_secrets_stay_and_the_address_travels(server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-rank")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-rank")
    _, content = wire.packed(SampleMaker(opened("s3://bkt", "folders"), data_of("x", "folders"), 3))
    assert b"secret-of-the-rank" not in content
    for name, value in (("AWS_ENDPOINT_URL", None), ("AWS_REGION", "of-the-helper")):
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    pickle.loads(content)
    assert os.environ["AWS_ENDPOINT_URL"] == server.url
    assert os.environ["AWS_REGION"] == "of-the-helper"
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)


def _without_access(base: str, outage_s: float, *rest: Any) -> BucketStore:
    store = rebuild(base, outage_s, *rest)

    def forbidden(wanted: Range, stop: Any) -> Any:
        raise DataError(f"{wanted.path}: may not be read", code="bucket-forbidden")

    store.fetch = forbidden  # type: ignore[method-assign]
    return store


def test_a_helper_that_cannot_read_the_bucket_is_said_and_left_out(data_sets, server, monkeypatch):
    from segtrain.data.bucket import travel

    monkeypatch.setattr(travel, "rebuild", _without_access)
    data, source, notes = (
        data_of("x", "folders"),
        slow("s3://bkt", "folders"),
        list[dict[str, Any]](),
    )
    with pool_of(Hosts({"a": 1}), notes=notes) as pool:
        assert load(data, source, pool) == load(data, opened(data_sets / "bkt", "folders"))
        assert soon(lambda: any(one["what"] == "refused" for one in notes))
        assert not pool.helped
        assert len(pool.engine.hired) == 1  # type: ignore[attr-defined]
    (refused,) = (one for one in notes if one["what"] == "refused")
    assert "may not be read" in refused["reason"]


def test_the_bytes_of_an_order_are_fetched_side_by_side(server):
    source = opened("s3://bkt", "shards")
    name, content = wire.packed(SampleMaker(source, data_of("x", "folders"), 3))
    helper = Helper()
    helper.meet(name, content, os.getcwd(), [])
    store = helper.makers[name].source.store
    fetch, waiting, several = store.fetch, list[Range](), threading.Event()

    def together(wanted: Range, stop: Any) -> Any:
        """Goes on when four threads are here."""
        waiting.append(wanted)
        if len(waiting) >= 4:
            several.set()
        assert several.wait(60)
        return fetch(wanted, stop)

    store.fetch = together
    order = helper.begin(
        wire.order(name, [Task(index, 0, (24, 32), (1.0, 1.0)) for index in range(11)], False)
    )
    assert sum(1 for buffers in helper.answers(order) if len(buffers) == 3) == 11
    assert len(waiting) == 22
    helper.close()
