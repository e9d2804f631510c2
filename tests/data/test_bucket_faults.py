"""Tests that a lying or slow bucket gives the right bytes or one clear error, and that retries are
counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from bucket_sets import data_sets, digest, loader, opened, reading, server
from cloud.bucket import LIES
from conftest import refused
from waiting import until

from segtrain.base import stopping
from segtrain.bucket import client
from segtrain.bucket.connection import aws_login, settings_of
from segtrain.bucket.tally import OF_PROCESS, RequestTotals
from segtrain.data.bucket import shared_listing, store_of
from segtrain.data.storage import Range
from segtrain.data.workers.pool import WorkerPool
from segtrain.errors import EXIT_RESUMABLE, DataError

__all__ = ["data_sets", "server"]

WRONG = [lie for lie in LIES if lie not in ("etag", "endless")]


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, clients give a request half a second, which on a busy machine is not enough for
    some.
    """
    monkeypatch.setattr(client, "_TIMES", ((1 << 20, "500ms"),))
    monkeypatch.setattr(client, "_clients", {})


@pytest.mark.parametrize("layout", ["folders", "shards"])
def test_lies_that_pass_give_the_right_bytes(data_sets, server, layout):
    bucket = opened("s3://bkt", layout)
    # All of a single file is asked for without a range.
    lies = WRONG if layout == "shards" else ["long", "short"]
    # So many that each kind occurs even if each object is asked for only once.
    server.fault, server.faults = 0.6, (*lies, "429", "cut")
    got = digest(loader(bucket, 2, last_step=30))
    assert set(server.failed) == set(server.faults)
    assert set(bucket.store.tally.sums.retries) == {"wrong", "throttled", "cut"}
    server.fault = 0.0
    assert got == digest(loader(opened(data_sets / "bkt", layout), 2, last_step=30))


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_for_ever_is_one_error(server, monkeypatch, lie):
    bucket = opened("s3://bkt", "shards", outage_s=0.3)
    if lie == "endless":
        impatient(monkeypatch)
    server.lie = lie
    if lie == "etag":
        with refused("object-changed"):
            digest(loader(bucket, 2))
    else:
        with refused(
            "bucket-unreachable", kind="timeout" if lie == "endless" else "wrong", limit=0.3
        ):
            digest(loader(bucket, 2))
    server.lie = ""


def test_a_body_that_drips_is_asked_for_again(data_sets, server, monkeypatch):
    impatient(monkeypatch)
    store = store_of("s3://bkt", 300)
    path = next((data_sets / "bkt/shards").glob("*.tar"))
    server.fault, server.faults = 1.0, ("endless",)

    def well_again() -> None:
        until(lambda: server.failed["endless"])
        server.fault = 0.0

    threading.Thread(target=well_again).start()
    assert store.read(f"s3://bkt/shards/{path.name}", 0, 5000) == path.read_bytes()[:5000]
    assert set(store.tally.sums.retries) == {"timeout"}


@pytest.mark.parametrize("status", ["408", "400"])
def test_a_body_that_stalled_is_sent_again(server, status):
    """Google's storage answers 408, and S3 400 with the code RequestTimeout."""
    bucket = client.client_of("s3://bkt")
    server.fault, server.faults = 0.5, (status,)
    for number in range(10):
        bucket.put(f"stalled/{number}", b"x", 20)
    server.fault = 0.0
    assert server.failed[status]
    assert sorted(path.name for path in (server.folder / "bkt/stalled").iterdir()) == [
        str(k) for k in range(10)
    ]


def test_only_reads_are_counted(server):
    """Failed uploads and listings would look like failed reads of samples."""
    bucket = client.client_of("s3://bkt")
    counted = bucket.tally.counter()
    server.fault, server.faults = 0.5, ("503",)
    for number in range(10):
        bucket.put(f"counted/{number}", b"x", 20)
        bucket.folder("counted/", 20)
        bucket.head(f"counted/{number}", 20)
    failed = server.failed["503"]
    assert failed
    assert counted() == RequestTotals()
    server.fault = 1.0

    def well_again() -> None:
        until(lambda: server.failed["503"] > failed)
        server.fault = 0.0

    threading.Thread(target=well_again).start()
    bucket.get("counted/3", None, "", 120)
    found = counted()
    assert found.requests == 1 + found.retries["throttled"][0] > 1


@pytest.mark.parametrize("part", [client.PART, 1 << 20])
def test_a_large_body_may_take_longer_than_an_answer(server, tmp_path, monkeypatch, part):
    monkeypatch.setattr("segtrain.bucket.connection.SILENT", "300ms")
    monkeypatch.setattr(client, "_clients", {})
    monkeypatch.setattr(client, "PART", part)
    bucket, path = client.client_of("s3://bkt"), tmp_path / "large"
    path.write_bytes(bytes(3 << 20))
    server.requests.clear()
    server.delay = 0.6
    bucket.put("large", path, 1)
    server.delay = 0.0
    assert server.requests["PUT"] == (1 if part > 3 << 20 else 3)
    assert (server.folder / "bkt/large").stat().st_size == 3 << 20


def test_a_role_is_asked_for_its_credentials_before_they_expire(tmp_path, monkeypatch):
    boto3 = pytest.importorskip("boto3")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    found = aws_login("s3://b", {})["credential_provider"]()
    sessions = []

    class Session(boto3.Session):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            sessions.append(self)
            super().__init__()

    monkeypatch.setattr("boto3.Session", Session)
    monkeypatch.setattr(client, "_clients", {})
    client.client_of("s3://b")
    assert len(sessions) == 1
    assert found["expires_at"] - datetime.now(timezone.utc) <= timedelta(minutes=10)


@pytest.mark.parametrize(
    ("base", "environment", "expected"),
    [
        ("s3://b", {"AWS_REGION": "r", "AWS_DEFAULT_REGION": "d"}, {"region": "r"}),
        (
            "s3://b",
            {"AWS_DEFAULT_REGION": "d", "AWS_ENDPOINT_URL": "e"},
            {"region": "d", "endpoint": "e"},
        ),
        (
            "s3://b",
            {"AWS_ENDPOINT_URL": "e", "AWS_ENDPOINT_URL_S3": "s", "AWS_REGION": "r"},
            {"region": "r", "endpoint": "s"},
        ),
        ("s3://b", {"AWS_SKIP_SIGNATURE": "False"}, {}),
        ("gs://b", {"GOOGLE_SKIP_SIGNATURE": "True", "AWS_REGION": "r"}, {"skip_signature": True}),
        ("gs://b", {"STORAGE_EMULATOR_HOST": "h:1"}, {"base_url": "http://h:1"}),
        ("az://b", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, {"account_name": "a"}),
    ],
)
def test_connections_are_set_by_the_environment(base, environment, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", environment)
    assert settings_of(base) == expected


def test_requests_of_worker_processes_count_in_their_rank(server, monkeypatch):
    """A process fetches by itself what does not come with its task."""
    bucket = opened("s3://bkt", "folders")
    monkeypatch.setattr(
        "segtrain.data.bucket.prefetched.PrefetchedTask.__reduce__",
        lambda self: (_bare, (self.task,)),
    )
    server.requests.clear()
    more, mine = OF_PROCESS.counter(), bucket.store.tally.counter()
    with WorkerPool(2, "process") as pool:
        batches = loader(bucket, pool=pool)
        with batches:
            assert len(list(batches)) == 5
    assert not reading()
    assert mine().requests < server.requests["GET"]  # of the read-ahead
    assert more().requests == server.requests["GET"]


def _bare(task: object) -> object:
    from segtrain.data.bucket.prefetched import Received

    return Received(task, {}, None, 0.0)


def test_processes_that_start_together_list_once(tmp_path):
    asked, found = list[int](), list[list[int]]()

    def fetch() -> Iterator[list[int]]:
        asked.append(1)
        time.sleep(0.05)
        yield [1, 2]
        yield [3]

    def rank() -> None:
        found.extend(shared_listing.pages("s3://bkt/files", fetch))

    def ranks(start: str) -> int:
        asked.clear()
        found.clear()
        with shared_listing.listed_once(start):
            threads = [threading.Thread(target=rank) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(found) == [[1, 2]] * 4 + [[3]] * 4
        return len(asked)

    assert [ranks(start) for start in ("a", "b", "")] == [1, 1, 4]


def test_listings_of_earlier_starts_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path))
    with shared_listing.listed_once("a"):
        assert list(shared_listing.pages("x", lambda: iter([7]))) == [7]
    (old,) = tmp_path.glob("listing-pages-*.jsonl")
    killed, other = tmp_path / ".listing-pages-0.jsonl.1.part", tmp_path / "listing-0.json"
    for path in (old, killed, other):
        path.touch()
        os.utime(path, (1, 1))
    with shared_listing.listed_once("b"):
        assert list(shared_listing.pages("x", lambda: iter([8]))) == [8]
        assert [path.exists() for path in (other, old, killed)] == [True, False, False]
    with shared_listing.listed_once("b"):
        assert list(shared_listing.pages("x", lambda: iter([9]))) == [8]


def test_a_failed_listing_is_an_error_and_is_not_kept(tmp_path, monkeypatch):
    def fails() -> Iterator[int]:
        yield 1
        raise DataError("gone", code="object-missing")

    with shared_listing.listed_once("a"):
        with refused("object-missing"):
            list(shared_listing.pages("x", fails))
        assert list(shared_listing.pages("x", lambda: iter([7]))) == [7]
        (tmp_path / "file").touch()
        monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "file"))
        assert list(shared_listing.pages("y", lambda: iter([8]))) == [8]


def test_a_late_answer_costs_one_more_request(data_sets, server):
    store = store_of("s3://bkt", 60)
    path = sorted((data_sets / "bkt/shards").glob("*.tar"))[0]
    wanted = Range(f"s3://bkt/shards/{path.name}", 0, 5000)
    store.stat(wanted.path)
    server.fault, server.faults = 1.0, ("held",)
    before = len(server.asked)
    reader = store.read_ahead(iter([[wanted]]), 1, 1)
    until(lambda: len(server.asked) > before)
    server.fault, reader._window.late_s, reader._window._repeats = 0.0, 0.0, 1.0
    assert bytes(store.part(wanted)) == path.read_bytes()[:5000]
    assert (server.asked[before:], store.tally.sums.late) == ([server.asked[before]] * 2, 1)
    server.released.set()
    reader.close()
    assert not reading()


def test_an_outage_is_told_once_and_a_signal_ends_the_wait(data_sets, server, monkeypatch, capsys):
    monkeypatch.setattr(client, "_SAID_S", 0.1)
    store = store_of("s3://bkt", 60)
    server.down = True

    def stop() -> None:
        """Only once more requests have failed after the warning."""
        until(lambda: store._client._warned)
        said = store.tally.sums.requests
        until(lambda: store.tally.sums.requests > said + 2)
        stopping.requested.set()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with refused("stopped-in-outage", kind="connection") as stopped:
            store.read("s3://bkt/files/classes.txt")
    finally:
        thread.join()
        stopping.requested.clear()
        server.down = False
    assert stopped.value.exit_code == EXIT_RESUMABLE
    said = capsys.readouterr().err
    assert (
        said.count("s3://bkt: no connection, or it was reset: requests are repeated for up to 60 s")
        == 1
    )
    store.read("s3://bkt/files/classes.txt")
