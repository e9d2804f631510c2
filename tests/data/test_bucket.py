"""Tests that a bucket gives the batches of the local folder, also under faults, and that what is
wrong is one error.
"""

# The names of fixtures are those of arguments.
# ruff: noqa: F811

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bucket_sets import (
    CLASSES,
    COUNT,
    LAYOUTS,
    data_of,
    data_sets,  # noqa: F401
    digest,
    loader,
    opened,
    own,  # noqa: F401
    reading,
    server,  # noqa: F401
)
from cloud.bucket import FAULTS
from conftest import refused

from segtrain.bucket import client, is_bucket
from segtrain.bucket.client import Stopped, client_of
from segtrain.cli import main
from segtrain.config import Config, Data, Eval
from segtrain.data import stages
from segtrain.data.batches import BatchLoader
from segtrain.data.bucket import store_of
from segtrain.data.bucket.ahead import ReadAhead
from segtrain.data.bucket.shared_listing import listed_once
from segtrain.data.cache import RamCache
from segtrain.data.datasets import open_dataset
from segtrain.data.storage import Range
from segtrain.data.train_loader import EvalLoader
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import EXIT_RESUMABLE
from segtrain.evaluation.evaluation import evaluate

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_a_bucket_are_those_of_the_folder(
    data_sets, server, layout, workers, no_repeats
):
    local, bucket = opened(data_sets / "bkt", layout), opened("s3://bkt", layout)
    assert [entry.meta["name"] for entry in bucket.entries] == [
        entry.meta["name"] for entry in local.entries
    ]
    assert bucket.fingerprint() == local.fingerprint()
    assert (bucket.stamps()[:, :, 0] == local.stamps()[:, :, 0]).all()
    server.requests.clear()
    assert digest(loader(bucket, workers)) == digest(loader(local, workers))
    # An image and its mask are one request in a shard. A sample that is in the window twice is
    # fetched once.
    assert server.requests["GET"] <= 20 * (1 if bucket.root.endswith(("shards", "foreign")) else 2)
    for rank in range(2):  # resumed, in another world
        part = {"first_step": 2, "rank": rank, "world": 2, "accumulate": 2}
        assert digest(loader(bucket, workers, **part)) == digest(loader(local, workers, **part))


def test_batches_of_google_storage_are_those_of_the_folder(data_sets, server):
    server.fault = 0.1
    expected = digest(loader(opened(data_sets / "bkt", "shards")))
    assert digest(loader(opened("gs://bkt", "shards"))) == expected
    # whatever the form of the data set
    assert digest(loader(opened("gs://bkt", "folders"))) == expected


def test_a_ram_cache_reads_each_sample_once(data_sets, server, no_repeats):
    bucket = RamCache(opened("s3://bkt", "shards"))
    server.requests.clear()
    assert digest(loader(bucket, 2, last_step=12)) == digest(
        loader(opened(data_sets / "bkt", "shards"), last_step=12)
    )
    # 48 samples were made; those in the window while the cache filled may have been read twice.
    assert server.requests["GET"] <= COUNT + 12


def test_worker_processes_get_what_the_rank_has_read(data_sets, server, no_repeats):
    dataset = opened("s3://bkt", "shards")
    server.requests.clear()
    assert digest(loader(dataset, 1, kind="process")) == digest(
        loader(opened(data_sets / "bkt", "shards"))
    )
    assert server.requests["GET"] <= 20
    store = pickle.loads(pickle.dumps(dataset.store))
    assert len(pickle.dumps(store)) < 500
    server.requests.clear()
    assert store.stat(f"{dataset.root}/train-000000.tar") == dataset.store.stat(
        f"{dataset.root}/train-000000.tar"
    )
    assert not server.requests


def test_a_worker_process_that_dies_and_one_that_gets_an_error(data_sets, server, monkeypatch):
    bucket, said = opened("s3://bkt", "folders", outage_s=0.2), list[str]()
    with WorkerPool(1, "process", said.append) as pool:
        batches, found = loader(bucket, pool=pool, last_step=12), hashlib.sha256()
        with batches:
            for number, (batch,) in enumerate(batches):
                found.update(batch.images.numpy().tobytes() + batch.masks.numpy().tobytes())
                if number == 1:
                    os.kill(pool.pids()[0], signal.SIGKILL)
        # What the dead process had taken is fetched again, by the next one.
        assert said
        assert found.hexdigest() == digest(
            loader(opened(data_sets / "bkt", "folders"), last_step=12)
        )
        steps = iter(loader(bucket, pool=pool, last_step=100))
        next(steps)
        server.down = True
        with refused("bucket-unreachable"):
            for _ in steps:
                pass
        # A signal in an outage ends the process so that the run can continue.
        monkeypatch.setattr(client, "_SAID_S", 0.0)
        monkeypatch.setattr("segtrain.base.stopping.requested.is_set", lambda: True)
        bucket.store.outage_s = 30.0
        with refused("stopped-in-outage") as error:
            next(iter(loader(bucket, pool=pool)))
        assert error.value.exit_code == EXIT_RESUMABLE
        server.down = False
        assert digest(loader(bucket, pool=pool)) == digest(
            loader(opened(data_sets / "bkt", "folders"))
        )


def test_headers_of_tars_are_read_in_large_blocks(server):
    opened("s3://bkt", "foreign")
    assert server.requests["GET"] <= 2 * len(list((server.folder / "bkt/foreign").iterdir()))


def test_whole_images_and_single_methods_are_those_of_the_folder(data_sets, server):
    for layout in LAYOUTS:
        local, bucket = opened(data_sets / "bkt", layout), opened("s3://bkt", layout)
        groups = [[0, 1, 2], [3, 4], [10]]
        for ours, theirs in zip(EvalLoader(local, groups, 2), EvalLoader(bucket, groups, 2)):
            assert all(bool((a == b).all()) for a, b in zip(ours, theirs))
        # Also where nobody asks for a batch after the last one.
        assert all(ahead.closed for ahead in bucket.store._aheads)
        assert bucket.size(1) == local.size(1)
        assert bucket.header(1) == local.header(1)
        assert bucket.image_bytes(1, 3, 9) == local.image_bytes(1, 3, 9)
    assert store_of("s3://bkt", 60).read("s3://bkt/files/classes.txt", 2) == b"b\nc"
    assert not reading()


def test_an_evaluation_reads_headers_side_by_side_and_each_file_once_more(
    data_sets, server, no_repeats
):
    torch.manual_seed(0)
    model, settings = torch.nn.Conv2d(3, len(CLASSES), 3, padding=1), Eval(batch_size=2)
    local, bucket = opened(data_sets / "bkt", "folders"), opened("s3://bkt", "folders")
    server.requests.clear()
    there = evaluate(model, bucket, settings, workers=1)
    assert server.requests == {"GET": 3 * COUNT}
    here = evaluate(model, local, settings, workers=1)
    assert (there.confusion == here.confusion).all()
    assert there.images.miou.tobytes() == here.images.miou.tobytes()

    server.requests.clear()
    server.gather(2, r"\.(jpg|png)")
    data = {"root": "s3://bkt/files", "layout": "folders", "classes": CLASSES, "workers": 1}
    batches = BatchLoader(Config(data=Data(**data)), "train", train=False)
    assert server.requests["GET"] == COUNT
    assert server.gathered
    assert sum(len(images) for images, _ in batches) == COUNT
    assert server.requests["GET"] == 3 * COUNT


def test_a_pass_that_is_closed_stops_no_other_one(monkeypatch):
    class Pass:
        def __init__(self, closing: bool) -> None:
            self.closed, self.closing, self.stop = False, closing, threading.Event()

        def take(self, wanted: Range) -> None:
            if self.closing:
                self.stop.set()
                raise Stopped(wanted.path)

    store, stops = store_of("s3://bkt", 60), list[Any]()
    monkeypatch.setattr(store, "fetch", lambda wanted, stop: stops.append(stop) or b"direct")
    for passes in ([False, True], [True, False]):
        store._aheads = tuple(map(Pass, passes))
        assert store.read("s3://bkt/x") == b"direct"
    assert stops == [None, None]
    store._aheads = (Pass(False),)
    assert store.read("s3://bkt/x") == b"direct"
    assert stops[-1] is store._aheads[0].stop
    store._aheads = (Pass(True), Pass(True))
    with pytest.raises(Stopped):
        store.read("s3://bkt/x")


def test_faults_cost_no_sample_and_are_counted(data_sets, server):
    bucket = opened("s3://bkt", "folders")
    # So many that each kind occurs even if each object is asked for only once.
    server.fault = 0.5
    tally = bucket.store.tally
    got = digest(loader(bucket, 2, last_step=30))
    server.fault = 0.0
    assert got == digest(loader(opened(data_sets / "bkt", "folders"), 2, last_step=30))
    # The server's name of a fault, and ours.
    names = {"503": "throttled", "500": "server", "reset": "connection", "cut": "cut"}
    assert set(server.failed) == set(FAULTS)
    assert {names[kind]: count for kind, count in server.failed.items()} == {
        kind: count for kind, (count, _) in tally.sums.retries.items()
    }
    assert all(seconds > 0 for _, seconds in tally.sums.retries.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_longer_outage_is_one_error_and_the_run_can_resume(data_sets, server, workers):
    bucket = opened("s3://bkt", "shards", outage_s=0.2)
    # so many that none of the threads reads to the end meanwhile
    batches = loader(bucket, workers, last_step=1000)
    steps = iter(batches)
    next(steps)
    server.down = True
    with refused("bucket-unreachable", kind="connection", limit=0.2) as info:
        for _ in steps:
            pass
    assert str(info.value).startswith("s3://bkt/shards/train-")
    batches.close()
    assert not reading()
    server.down = False
    local = opened(data_sets / "bkt", "shards")
    assert digest(loader(bucket, workers, first_step=1)) == digest(
        loader(local, workers, first_step=1)
    )


def test_a_pass_can_be_closed_in_an_outage(server):
    batches = loader(opened("s3://bkt", "shards"), 2)
    server.down = True
    iter(batches)
    batches.close()  # returns long before the limit of 300 s
    assert not reading()


@pytest.mark.parametrize("match", [True, False], ids=["If-Match obeyed", "If-Match ignored"])
@pytest.mark.parametrize("layout", ["folders", "shards"])
def test_an_object_that_changes_is_an_error(own, server, layout, match):
    bucket = opened("s3://bkt", layout)
    server.match = match
    path = (
        sorted((own / "shards").glob("*.tar"))[0]
        if layout == "shards"
        else own / "files/images/train/s00.jpg"
    )
    before, url = server.etag_of(path), f"s3://bkt/{path.relative_to(own).as_posix()}"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    server.requests.clear()
    with refused("object-changed", file=url, expected=before):
        digest(loader(bucket, 2))
    assert "connection" not in bucket.store.tally.sums.retries
    again = pickle.loads(pickle.dumps(bucket))  # as a worker process gets it
    with refused("object-changed", file=url):
        again.read(0)
    assert opened("s3://bkt", layout).store.stat(url) != bucket.store.stat(url)


def test_a_missing_forbidden_or_short_object_is_an_error_at_once(own, server):
    files, store = opened("s3://bkt", "folders"), store_of("s3://bkt/files", 60)
    (own / "files/images/train/s00.jpg").unlink()
    with refused("object-missing", file="s3://bkt/files/images/train/s00.jpg"):
        digest(loader(files))
    # the server sends what there is, without an error
    with refused("file-ends-early", found=5, expected=9):
        store.read("s3://bkt/files/classes.txt", 0, 9)
    # now the size is known, so nothing is asked
    with refused("file-ends-early", found=5, expected=9):
        store.read("s3://bkt/files/classes.txt", 0, 9)
    with refused("folder-missing", near="files"):
        open_dataset(data_of("s3://bkt", "folders", images="file", masks="masks"), "train")
    with refused("list-file-missing", count=1):
        opened("s3://bkt", "list")
    with refused("object-missing", file="s3://bkt/files/val.csv"):
        open_dataset(data_of("s3://bkt/files", "list"), "val")
    with refused("no-shards", split="val"):
        open_dataset(data_of("s3://bkt/shards", "shards"), "val")
    server.status = 403
    server.requests.clear()
    with refused("bucket-denied"):
        opened("s3://bkt", "folders")
    assert server.requests.total() == 1


def test_the_wait_for_a_bucket_counts_as_reading(server, monkeypatch):
    seen, take = list[int](), ReadAhead.take

    def spy(ahead: ReadAhead, wanted: Any) -> Any:
        seen.append(stages._here.stage)
        return take(ahead, wanted)

    monkeypatch.setattr(ReadAhead, "take", spy)
    for layout in ("folders", "shards"):
        digest(loader(opened("s3://bkt", layout), 2))
    assert set(seen) == {stages._READ}


def test_a_client_is_kept_as_long_as_the_settings_are(server, monkeypatch):
    first = client_of("s3://bkt")
    assert client_of("s3://bkt") is first
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert client_of("s3://bkt") is not first


@pytest.mark.parametrize("base", ["s3://new", "gs://new"])
def test_objects_are_written_whole_and_removed(server, tmp_path, base):
    client, large = client_of(base), tmp_path / "large"
    large.write_bytes(os.urandom(70 << 20))  # three parts
    server.fault = 0.2
    try:
        small = client.put("runs/a b.json", b"{}", 60)
        client.put("runs/large", large, 60)
        assert bytes(client.get("runs/a b.json", None, small, 60).content) == b"{}"
        assert bytes(client.get("runs/large", None, "", 60).content) == large.read_bytes()
        assert not server.uploads
        assert server.failed
        client.delete(["runs/large", "runs/never"], 60)
        assert [item["path"] for item in client.folder("runs", 60)[0]] == ["runs/a b.json"]
    finally:
        shutil.rmtree(server.folder / "new", ignore_errors=True)


def test_a_table_of_known_objects(tmp_path):
    from segtrain.data.bucket.object_table import KnownObjects, rows_of

    known = KnownObjects()
    known.extend(
        [
            rows_of([(f"k{i}", i, f'"{i}"') for i in range(50)]),
            rows_of([("long", 1, '"' + "e" * 60 + '"')]),
        ]
    )
    known.extend([rows_of([("k7", 70, "new")])])
    known.add("single", 5, "s")
    again = KnownObjects(known.save())
    for table in (known, again):
        assert [table.find(key) for key in ("k0", "k7", "single", "other")] == [
            (0, '"0"'),
            (70, "new"),
            (5, "s"),
            None,
        ]
        assert table.find("long") == (1, '"' + "e" * 60 + '"')
    assert again.save() == known.save()
    assert isinstance(np.asarray(known._table), np.ndarray)


@pytest.mark.parametrize("place", ["s3:/b/x", "S3://b/x", "GS:///b/x", "az:/c"])
def test_a_misspelled_url_is_no_local_folder(place):
    with refused("bucket-url-misspelled", found=place):
        is_bucket(place)
    assert not any(map(is_bucket, ["", "s3", "./s3:/x", "/s3/x", "C:/x", "data/gs:x"]))


@pytest.mark.parametrize("place", ["gcs://bkt/run", "abfs+s://c/x", "dbfs:/x", "FILE:///x"])
def test_a_url_that_nothing_reads_is_no_folder(place):
    with refused("bucket-scheme-unknown", found=place.partition(":")[0]):
        is_bucket(place)
    assert not is_bucket(f"runs/{place}")


def test_predictions_are_made_on_the_disk(capsys):
    assert main(["predict", "runs/x", "gs://b/photos", "--out", "masks"]) == 2
    assert "gs://b/photos: predict reads images from the disk" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_told_and_changes_no_bytes(
    data_sets, server, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "file/cache"))
    with pytest.warns(UserWarning, match="of s3://bkt/shards/train.index in memory") as said:
        bucket = opened("s3://bkt", "shards")
    assert len(said) == 1
    assert digest(loader(bucket)) == digest(loader(opened(data_sets / "bkt", "shards")))
    with pytest.warns(UserWarning, match="accept an object that has changed since"):
        pickle.dumps(bucket.store)
    with (
        listed_once("start"),
        pytest.warns(UserWarning, match="each process lists s3://bkt/shards"),
    ):
        opened("s3://bkt", "shards")


def test_a_copy_that_lost_its_end_is_made_again(server):
    store, url = store_of("s3://bkt", 5), "s3://bkt/files/classes.txt"
    copy = Path(store.copied(url))
    whole = copy.read_bytes()
    copy.write_bytes(b"")
    assert Path(store.copied(url)).read_bytes() == whole == bytes(store.mapped(url))
