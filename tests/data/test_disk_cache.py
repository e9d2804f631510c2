"""Tests of the disk cache: batches equal to the bit, its bound, damaged entries, kills, and full
disks.
"""

# The names of fixtures are those of arguments.
# ruff: noqa: F811

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bucket_sets import CLASSES, COUNT, data_sets, digest, loader, opened, own, server  # noqa: F401
from cloud.bucket import BucketServer
from conftest import refused

from segtrain.cli import main
from segtrain.data.bucket.cache_entry import CachedRange
from segtrain.data.bucket.disk_cache import DiskCache, disk_cache
from segtrain.data.bucket.fetch import fetch_folder
from segtrain.data.bucket.object_table import KnownObjects
from segtrain.data.dataset import Dataset
from segtrain.data.workers.pool import WorkerPool

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of a cache that no other test uses."""
    yield tmp_path / "cache"
    disk_cache.cache_clear()


def cached(folder: Path, layout: str = "shards", gb: Any = 1, **settings: Any) -> Dataset:
    return opened("s3://bkt", layout, cache="disk", cache_dir=str(folder), cache_gb=gb, **settings)


def cache(dataset: Dataset) -> DiskCache:
    found = dataset.store.cache  # type: ignore[attr-defined]
    assert isinstance(found, DiskCache)
    return found


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*/*") if path.name[0] != ".")


def again(folder: Path, **settings: Any) -> Dataset:
    """As another process opens it."""
    disk_cache.cache_clear()
    return cached(folder, **settings)


def fill(dataset: Dataset, workers: int = 0, **settings: Any) -> str:
    found = digest(loader(dataset, workers, **settings))
    assert cache(dataset).flush(300)
    return found


@pytest.mark.parametrize(
    ("layout", "workers", "kind"),
    [
        ("folders", 1, "thread"),
        ("shards", 4, "thread"),
        ("shards", 1, "process"),
        ("foreign", 0, "thread"),
    ],
)
def test_batches_are_those_of_the_folder_cold_warm_and_half_evicted(
    data_sets, server, folder, layout, workers, kind
):
    local = digest(loader(opened(data_sets / "bkt", layout), 1, last_step=6))
    with WorkerPool(workers, kind) as pool:
        check_batches(layout, server, folder, local, {"pool": pool, "last_step": 6})


def check_batches(
    layout: str, server: BucketServer, folder: Path, local: str, how: dict[str, Any]
) -> None:
    assert fill(cached(folder, layout), **how) == local
    per_sample = 2 if layout == "folders" else 1
    assert len(entries(folder)) == COUNT * per_sample
    warm = again(folder, layout=layout)
    server.requests.clear()
    assert fill(warm, **how) == local
    assert not server.requests["GET"]
    for path in entries(folder)[::2]:
        path.unlink()
    server.requests.clear()
    assert fill(again(folder, layout=layout), **how) == local
    assert 0 < server.requests["GET"] <= COUNT * per_sample + 6
    assert len(entries(folder)) == COUNT * per_sample


def test_a_damaged_entry_is_dropped_and_fetched_again(data_sets, server, folder):
    dataset = cached(folder)
    local = digest(loader(opened(data_sets / "bkt", "shards"), 1, last_step=6))
    fill(dataset, last_step=6)
    whole = {path: path.read_bytes() for path in entries(folder)}
    flipped, cut, empty, headless, moved, pipe = list(whole)[:6]
    pipe.unlink()
    os.mkfifo(pipe)
    flipped.write_bytes(whole[flipped][:-9] + bytes([whole[flipped][-9] ^ 1]) + whole[flipped][-8:])
    cut.write_bytes(whole[cut][:-100])
    empty.write_bytes(b"")  # after a power loss
    headless.write_bytes(b"x" + whole[headless][1:])
    moved.write_bytes(whole[headless])  # whole, but of another sample
    server.requests.clear()
    dataset = again(folder)
    with pytest.warns(UserWarning, match="damaged entries, which are fetched again") as said:
        assert fill(dataset, last_step=6) == local
    assert len(said) == 6
    assert server.requests["GET"] >= 6
    assert {path: path.read_bytes() for path in entries(folder)} == whole


def test_an_entry_of_another_user_is_read_and_kept(folder, monkeypatch):
    def forbidden(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    kept, entry = DiskCache(folder, 1 << 20), CachedRange("s3://b", "k", "e", 0, 9)
    assert kept.write(entry, bytes(9))
    os.utime(entry.path(folder), (1, 1))
    monkeypatch.setattr(os, "utime", forbidden)
    assert kept.get(entry) == bytes(9)
    assert kept.holds(entry)


def test_a_changed_object_is_never_taken_from_the_cache(own, server, folder):
    before = fill(cached(folder, "folders"), last_step=6)
    path = own / "files/images/train/s00.jpg"
    path.write_bytes((own / "files/images/train/s02.jpg").read_bytes())
    local = digest(loader(opened(own, "folders"), 1, last_step=6))
    assert fill(again(folder, layout="folders"), last_step=6) == local
    assert local != before
    # Both versions are kept, so that a run that had begun before would go on.
    assert len(entries(folder)) == 2 * COUNT + 1


def test_a_cache_that_is_too_small_for_the_data_set_is_filled_and_left(data_sets, server, folder):
    fill(cached(folder), last_step=6)
    total = sum(path.stat().st_size for path in entries(folder))
    for path in entries(folder):
        path.unlink()
    half = again(folder, gb=total / 2 / 1e9)
    with pytest.warns(UserWarning, match=r"data\.cache_gb=.* is full"):
        found = fill(half, last_step=12)
    assert found == digest(loader(opened(data_sets / "bkt", "shards"), 1, last_step=12))
    kept = entries(folder)
    assert total / 3 < sum(path.stat().st_size for path in kept) <= total / 2
    server.requests.clear()
    with pytest.warns(UserWarning, match="is full"):
        fill(again(folder, gb=total / 2 / 1e9), last_step=12)
    assert entries(folder) == kept  # nothing is removed for something that is needed as often


def test_caches_share_a_folder_and_its_bound(folder):
    def work(name: str) -> bool:
        kept = DiskCache(folder, 100_000)
        for k in range(90):
            entry = CachedRange("s3://b", f"{name}{k % 60}", "e", 0, 1000)
            kept.write(entry, bytes(1000))
            found = kept.get(entry)
            assert found is None or bytes(found) == bytes(1000)
            if k % 9 == 0:
                # otherwise the others write and remove files while they are counted
                with kept._lock_of(".lock"):
                    assert sum(file.size for file in kept._files()) <= 100_000
        return True

    with ThreadPoolExecutor(3) as threads:  # each locks files of its own, as a process does
        assert list(threads.map(work, "aba")) == [True] * 3
    assert 50_000 < sum(path.stat().st_size for path in entries(folder)) <= 100_000
    assert DiskCache(folder, 100_000).room() == 100_000 - sum(
        path.stat().st_size for path in entries(folder)
    )


def test_unfinished_files_of_killed_processes_are_removed(folder):
    kept = DiskCache(folder, 1 << 20)
    assert kept.write(CachedRange("s3://b", "k", "e", 0, 9), bytes(9))
    (whole,) = entries(folder)
    old, new = whole.with_name(".old.part"), whole.with_name(".new.part")
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert DiskCache(folder, 1 << 20).room() == (1 << 20) - whole.stat().st_size
    assert (old.exists(), new.exists(), whole.exists()) == (False, True, True)


def test_a_write_that_fails_leaves_no_part_of_an_entry(folder, monkeypatch):
    kept, write, written = DiskCache(folder, 1 << 20), os.write, list[int]()

    def limited(handle: int, content: Any) -> int:
        if len(content) == 500:
            written.append(write(handle, content[:100]))
            return written[-1]
        if len(content) == 400:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return write(handle, content)

    monkeypatch.setattr(os, "write", limited)
    with pytest.warns(UserWarning, match=os.strerror(errno.EFBIG)):
        assert not kept.write(CachedRange("s3://b", "k", "e", 0, 500), bytes(500))
    assert written == [100]
    assert not [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]


def test_a_full_disk_turns_it_off_with_one_warning(data_sets, server, folder, monkeypatch):
    written, write = list[CachedRange](), CachedRange.write

    def full(entry: CachedRange, folder: Path, content: Any) -> None:
        if len(written) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(entry)
        write(entry, folder, content)

    monkeypatch.setattr(CachedRange, "write", full)
    dataset = cached(folder)
    with pytest.warns(UserWarning, match="No space left on device") as said:
        found = fill(dataset, 2, last_step=12)
    assert len(said) == 1
    assert found == digest(loader(opened(data_sets / "bkt", "shards"), 1, last_step=12))
    assert len(entries(folder)) == 4
    assert cache(dataset).get(written[0]) is not None  # what is there is still read


def test_a_slow_disk_loses_entries_and_not_time(folder, monkeypatch):
    monkeypatch.setattr("segtrain.data.bucket.disk_cache._QUEUE", 2500)
    gate, write = threading.Event(), CachedRange.write

    def slow(entry: CachedRange, folder: Path, content: Any) -> None:
        gate.wait(300)
        write(entry, folder, content)

    monkeypatch.setattr(CachedRange, "write", slow)
    kept = DiskCache(folder, 1 << 20)
    content = [(CachedRange("s3://b", str(k), "e", 0, 1000), bytes(1000)) for k in range(10)]
    with pytest.warns(UserWarning, match="because the disk is too slow") as said:
        any(map(kept.put, *zip(*content)))  # returns at once
    assert len(said) == 8
    gate.set()
    assert kept.flush(300)
    assert len(entries(folder)) == 2


def test_an_unexpected_error_turns_writing_off_and_nobody_waits(folder, monkeypatch):
    def fails(*_: Any) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(CachedRange, "write", fails)
    kept = DiskCache(folder, 1 << 20)

    def written() -> bool:
        kept.put(CachedRange("s3://b", "k", "e", 0, 9), bytes(9))
        return kept.flush(300)

    with pytest.warns(
        UserWarning, match=r"data\.cache_dir=.* cannot be written \(RuntimeError: unexpected\)"
    ):
        assert written()


def test_the_automatic_bound_does_not_grow_with_each_start(folder, monkeypatch):
    usage, disk = shutil.disk_usage("."), 100_000

    def free(path: Path) -> Any:
        return usage._replace(free=disk - sum(entry.stat().st_size for entry in entries(folder)))

    monkeypatch.setattr(shutil, "disk_usage", free)
    for start in range(3):
        kept = DiskCache(folder, 0)
        for k in range(30):
            kept.write(CachedRange("s3://b", f"{start} {k}", "e", 0, 1000), bytes(1000))
        assert kept.limit == 0.8 * disk


def test_what_is_used_is_removed_last(folder):
    kept = DiskCache(folder, 10_000)
    made = [CachedRange("s3://b", str(k), "e", 0, 1000) for k in range(9)]
    for k, entry in enumerate(made):
        assert kept.write(entry, bytes(1000))
        os.utime(entry.path(folder), (1000 + k, 1000 + k))
    assert kept.get(made[0]) is not None  # now the most recently used one
    assert kept.write(CachedRange("s3://b", "new", "e", 0, 1000), bytes(1000))
    assert [os.path.exists(entry.path(folder)) for entry in made[:3]] == [True, False, False]


def test_objects_of_equal_names_in_other_buckets_are_other_entries(folder):
    kept = DiskCache(folder, 1 << 20)
    kinds = [
        ("s3://a", "k", "e", 0, 9),
        ("s3://b", "k", "e", 0, 9),
        ("s3://a", "k", "f", 0, 9),
        ("s3://a", "k", "e", 1, 9),
        ("s3://a", "k", "e", 0, -1),
        ("s3://a", "l", "e", 0, 9),
    ]
    for number, kind in enumerate(kinds):
        assert kept.get(CachedRange(*kind)) is None
        kept.write(CachedRange(*kind), bytes([number] * 9))
    assert [bytes(kept.get(CachedRange(*kind)) or b"")[0] for kind in kinds] == list(range(6))


def test_the_marks_of_known_objects_are_those_of_their_entries(folder):
    known = KnownObjects()
    known.add("single", 5, '"s"')
    kept = DiskCache(folder, 3000)
    kept.protect("s3://b", known)
    assert kept.write(CachedRange("s3://b", "single", '"s"', 0, 1000), bytes(1000))
    os.utime(entries(folder)[0], (1, 1))
    for k in range(5):
        kept.write(CachedRange("s3://b", f"other{k}", "e", 0, 1000), bytes(1000))
    assert kept.get(CachedRange("s3://b", "single", '"s"', 0, 1000)) is not None
    # What no data set reads any more makes room.
    os.utime(CachedRange("s3://b", "single", '"s"', 0, 1000).path(folder), (1, 1))
    del known
    assert kept.write(CachedRange("s3://b", "last", "e", 0, 1000), bytes(1000))
    assert kept.get(CachedRange("s3://b", "single", '"s"', 0, 1000)) is None


def fetched(
    folder: Path, *settings: str, place: str = "s3://bkt/shards", layout: str = "shards"
) -> dict[str, Any]:
    disk_cache.cache_clear()
    given = [
        f"data.layout={layout}",
        f"data.classes={json.dumps(CLASSES)}",
        f"data.cache_dir={folder}",
        *settings,
    ]
    return fetch_folder(place, ["train"], given, say=lambda text: None)["train"]


@pytest.mark.parametrize("layout", ["folders", "shards"])
def test_a_fetched_cache_needs_no_sample_from_the_bucket(data_sets, server, folder, layout, capsys):
    place = "s3://bkt/files" if layout == "folders" else "s3://bkt/shards"
    server.requests.clear()
    assert (
        main(
            [
                "data",
                "fetch",
                place,
                "--split",
                "train",
                "--json",
                f"data.layout={layout}",
                f"data.cache_dir={folder}",
                f"data.classes={json.dumps(CLASSES)}",
            ]
        )
        == 0
    )
    done = json.loads(capsys.readouterr().out)["train"]
    assert (done["samples"], done["fetched"]) == (COUNT, done["bytes"])
    if layout == "shards":  # samples side by side are one request
        shards = len(list((data_sets / "bkt/shards").glob("*.tar")))
        assert server.requests["GET"] <= shards + 1
    dataset = again(folder, layout=layout)
    server.down = True  # the listing was read; nothing else is needed
    expected = digest(loader(opened(data_sets / "bkt", layout), 1, last_step=6))
    for workers in (0, 4):
        assert fill(dataset, workers, last_step=6) == expected
    assert dataset.read(3)[0].shape[2] == 3
    # no thread reads ahead what is here
    assert all(map(dataset.store._is_cached, dataset.ranges(3)))
    server.down = False


def test_a_fetch_continues_verifies_and_repairs(server, folder):
    whole = fetched(folder)
    assert whole["fetched"] == whole["bytes"]
    before = {path: path.read_bytes() for path in entries(folder)}
    gone, damaged = list(before)[2], list(before)[5]
    gone.unlink()
    damaged.write_bytes(before[damaged][:-1] + bytes([before[damaged][-1] ^ 1]))
    some = fetched(folder)
    assert some["fetched"] == sum(len(before[path]) - 40 for path in (gone, damaged))
    assert {path: path.read_bytes() for path in entries(folder)} == before
    server.requests.clear()
    assert fetched(folder)["fetched"] == 0
    assert not server.requests["GET"]


def test_a_fetch_refuses_what_cannot_fit(server, folder, monkeypatch):
    with refused("cache-too-small", key="data.cache_gb", found=2000):
        fetched(folder, "data.cache_gb=0.000002")
    with refused("fetch-without-bucket"):
        fetched(folder, "data.root=here")
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=100))
    with refused("disk-too-small", found=100, folder=str(folder)):
        fetched(folder, "data.cache_gb=1")
    (folder / "file").write_text("")
    with refused("folder-unwritable", folder=str(folder / "file/x")):
        fetched(folder / "file/x")
    assert not entries(folder)


def test_a_folder_that_is_removed_meanwhile_is_made_again(folder):
    kept = DiskCache(folder, 1 << 20)
    for key in "ab":
        assert kept.write(CachedRange("s3://b", key, "e", 0, 9), bytes(9))
        shutil.rmtree(folder)
    assert kept.write(CachedRange("s3://b", "c", "e", 0, 9), bytes(9))
    assert kept.get(CachedRange("s3://b", "c", "e", 0, 9)) == bytes(9)
