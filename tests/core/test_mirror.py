"""Tests of the copy of a run folder in a bucket, and of its lease, against a server with a delay
and faults.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from cloud.bucket import BucketServer
from conftest import refused

from segtrain.base import stopping
from segtrain.bucket.client import client_of
from segtrain.bucket.download import download
from segtrain.bucket.versions import read_version, write_version
from segtrain.config import Config
from segtrain.observe.tracker import TrackedRun, save_id
from segtrain.parallel.cluster import Cluster, RankStarter
from segtrain.runfolder import checkpoint
from segtrain.runfolder.holder import this_process
from segtrain.runfolder.lease import FILE as LEASE
from segtrain.runfolder.lease import Lease
from segtrain.runfolder.mirror import HOST_FILES, ID, MARKS, Mirror
from segtrain.runfolder.upload import BucketFolder, lock_of
from segtrain.runfolder.writer import CheckpointWriter

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")

NEVER = threading.Event()


def mirror_of(folder: Path, keep: int = 2, own: tuple[str, ...] = ()) -> Mirror:
    mirror = Mirror(client_of("gs://bkt"), "runs/a/", folder, keep, own)
    mirror.list_objects(5)
    return mirror


def save(folder: Path, step: int, best: int) -> None:
    state = {"step": step, "best_step": best, "best_miou": best / 1000}
    CheckpointWriter(folder / "checkpoints", 2, False).save(
        step, {"model": {}, "state": state, "fill": torch.rand(2000)}
    )


def records(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name[0] != "."
    }


def assert_resumable(there: Path) -> int:
    """The newest checkpoint is whole, and the best one that it names is there. Returns its step."""
    while True:
        found = checkpoint.checkpoints(there)
        if not found:
            return 0
        try:
            state = checkpoint.read(found[-1])["state"]
        except checkpoint.CheckpointError as error:
            if error.code == "checkpoint-missing":  # removed just now, because there is a newer one
                continue
            raise
        if checkpoint.checkpoints(there)[-1] == found[-1]:
            best = there / "checkpoints" / f"step-{state['best_step']:08d}.pt"
            # It may have been removed after a newer checkpoint came.
            assert best.is_file() or checkpoint.checkpoints(there)[-1] != found[-1], found
            return int(state["step"])


@pytest.mark.parametrize("base", ["gs://bkt", "s3://bkt"])
def test_of_writes_to_the_same_version_one_succeeds(server, base):
    client, first = client_of(base), threading.Barrier(8)
    won: list[bytes] = []

    def write(content: bytes, known: object) -> None:
        first.wait()
        if write_version(client, "a/b", content, known, 5) is not None:  # type: ignore[arg-type]
            won.append(content)

    for round_ in range(2):
        found = read_version(client, "a/b", 5)
        assert (found is None) == (round_ == 0)
        # All contents differ: in S3, the same content has the same etag.
        contents = [f"{round_} {number}".encode() for number in range(8)]
        threads = [
            threading.Thread(target=write, args=(text, found and found.version))
            for text in contents
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        now = read_version(client, "a/b", 5)
        assert now is not None
        assert now.content == won[-1]
        assert len(won) == round_ + 1
    client.delete(["a/b"], 5)
    assert write_version(client, "a/b", b"late", now.version, 5) is None


def test_a_large_object_is_fetched_in_parts_of_one_version(server, tmp_path, monkeypatch):
    monkeypatch.setattr("segtrain.bucket.download.PART", 1000)
    content, path = random.Random(0).randbytes(10_500), tmp_path / "got"
    client, server.fault = client_of("gs://bkt"), 0.2
    client.put("large", content, 20)
    pwrite = os.pwrite
    # A disk may take only some of the bytes.
    monkeypatch.setattr(os, "pwrite", lambda file, left, at: pwrite(file, left[:300], at))
    download(client, "large", path, len(content), 20)
    assert path.read_bytes() == content


def lease(server: BucketServer, beat_s: float = 60.0, silent_s: float = 0.5) -> Lease:
    return Lease(client_of("gs://bkt"), "runs/a/", 5, beat_s, silent_s)


def holds(server: BucketServer) -> dict[str, object]:
    return dict(json.loads((server.folder / f"bkt/runs/a/{LEASE}").read_text().splitlines()[0]))


def test_a_second_process_is_refused_until_the_first_lets_go(server):
    first, second = lease(server), lease(server)
    assert first.acquire(print) == []
    with refused("run-folder-locked", run="gs://bkt/runs/a", host=this_process().host):
        second.acquire(print)
    second.release()  # does not take the first one's
    first.renew(5)
    assert holds(server)["pid"] == this_process().pid
    first.release()
    assert second.acquire(print) == []
    second.release()
    assert not (server.folder / f"bkt/runs/a/{LEASE}").exists()


def test_a_silent_holder_elsewhere_loses_the_lease_and_learns_so(server):
    first, second, said = lease(server), lease(server), list[str]()
    first.acquire(print)
    elsewhere = replace(
        this_process(), token="f" * 32, boot="of another machine", inode=first.place
    )
    place = server.folder / f"bkt/runs/a/{LEASE}"
    place.write_text(f"{json.dumps(asdict(elsewhere))}\n7\n")
    (remark,) = second.acquire(said.append)  # after the time without a sign of life
    assert said
    assert "took over" in remark or "taken over" in remark
    with refused("lock-lost", run=first.place):
        first.renew(5)
    with refused("lock-lost"):
        first.check()
    first.release()
    assert place.exists()
    second.release()


def test_a_holder_elsewhere_that_beats_keeps_the_lease(server):
    second, ended = lease(server, silent_s=300), threading.Event()
    elsewhere = replace(
        this_process(), token="f" * 32, boot="of another machine", inode=second.place
    )
    place = server.folder / f"bkt/runs/a/{LEASE}"
    place.parent.mkdir(parents=True)

    def beat(count: int) -> None:
        place.with_suffix(".new").write_text(f"{json.dumps(asdict(elsewhere))}\n{count}\n")
        place.with_suffix(".new").replace(place)

    def beats() -> None:
        for count in itertools.count(8):
            if ended.wait(0.1):
                return
            beat(count)

    beat(7)
    other = threading.Thread(target=beats)
    other.start()
    try:
        with refused("run-folder-locked"):
            second.acquire(print)
    finally:
        ended.set()
        other.join()


def test_the_lease_of_an_ended_process_or_of_another_folder_is_taken_at_once(server):
    place = server.folder / f"bkt/runs/a/{LEASE}"
    place.parent.mkdir(parents=True)
    url = lease(server).place
    for change in (
        {"pid": 2**22 + 1, "inode": url},
        {"boot": "of another machine", "inode": "gs://elsewhere/run"},
    ):
        place.write_text(f"{json.dumps(asdict(replace(this_process(), **change)))}\n7\n")  # type: ignore[arg-type]
        taken = lease(server, silent_s=1000)
        assert len(taken.acquire(print)) == 1
        taken.release()


def test_a_lost_answer_and_a_removed_lease_do_not_lose_it(server):
    own = lease(server)
    own.acquire(print)
    place = server.folder / f"bkt/runs/a/{LEASE}"
    place.write_text(place.read_text())  # another version with this process's content
    own.renew(5)
    place.unlink()
    own.renew(5)
    assert holds(server)["token"]
    server.down = True
    with refused("bucket-unreachable"):
        own.renew(0.1)
    server.down = False
    own.renew(5)
    own.release()
    assert not place.exists()


def test_a_bucket_that_is_gone_is_one_error_and_never_a_loop(server):
    raised = list[BaseException]()

    def work() -> None:
        for own in (lease(server), lease(server)):
            try:
                own.acquire(print)
                server.status = 404
                own.renew(5)
            except BaseException as error:
                raised.append(error)
            own.release()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(300)
    asked = server.requests.total()
    server.status = 500  # which ends a loop
    assert not thread.is_alive()
    assert [getattr(error, "code", "") for error in raised] == ["object-missing"] * 2
    assert asked < 20


def test_a_bucket_is_resumable_at_every_moment(server, tmp_path):
    """Checkpoints come faster than they are uploaded; the bucket is looked at all the time, as
    after a kill.
    """
    folder, there = tmp_path / "run", server.folder / "bkt/runs/a"
    folder.mkdir()
    server.fault, server.delay, done = 0.05, 0.005, threading.Event()
    mirror, failed = mirror_of(folder), list[BaseException]()

    def upload() -> None:
        try:
            while not done.is_set():
                mirror.upload_checkpoints(20, lambda: None, NEVER)
            mirror.upload_checkpoints(20, lambda: None, NEVER)
        except BaseException as error:
            failed.append(error)

    thread, draws, best = threading.Thread(target=upload), random.Random(3), 0
    thread.start()
    looks = set()
    try:
        step = 0
        while step < 119 or len(looks) <= 3:  # until it was seen with some of the checkpoints
            step += 1
            best = step if draws.random() < 0.3 else best
            save(folder, step, best)
            time.sleep(0.01 * draws.random())
            looks.add(assert_resumable(there))
    finally:
        done.set()
        thread.join()
    assert not failed
    assert assert_resumable(there) == step
    assert records(folder) == records(there)


def test_the_newest_checkpoint_wins_and_records_keep_their_lines(server, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    first = mirror_of(one)
    run = first.take_id("")
    for step in (2, 4):
        save(one, step, 2)
    (one / "config.yaml").write_text("x")
    (one / "faults.jsonl").write_text("f")
    (one / "journal.jsonl").write_text("a\n")
    save_id(TrackedRun(one).id_file("any"), "7")
    (one / "pictures").mkdir()
    (one / "pictures/val.png").write_bytes(b"png")
    first.upload_records(5, NEVER)
    first.upload_checkpoints(5, lambda: None, NEVER)

    # A kill between two of these leaves no checkpoint that names a best one which is not there.
    written = [path.rpartition("/")[2] for path, _ in server.asked]
    order = [name for name in dict.fromkeys(written) if name.startswith(("step-", "best"))]
    assert order == ["step-00000002.pt", "step-00000004.pt", "best.json"]

    second = mirror_of(two)  # another host
    assert second.remote_id(5) == run
    assert not second.holds_another_run(run)
    second.take_id(run)
    second.fetch(5)
    assert set(records(two)) == set(records(one)) - {"pictures/val.png"}
    (two / "journal.jsonl").write_text("a\nb\n")
    (two / "faults.jsonl").unlink()
    save(two, 6, 2)
    second.upload_checkpoints(5, lambda: None, NEVER)
    second.upload_records(5, NEVER)
    there = server.folder / "bkt/runs/a"
    assert {path.name for path in checkpoint.checkpoints(there)} == {
        f"step-0000000{step}.pt" for step in (2, 4, 6)
    }
    assert not (there / "faults.jsonl").exists()

    (one / "journal.jsonl").write_text("a\nlost\n")
    save(one, 5, 2)
    # on the first host, whose last lines and checkpoint never reached the bucket
    again = mirror_of(one)
    again.fetch(5)
    assert (one / "journal.jsonl").read_text() == "a\nb\n"
    assert checkpoint.step_of(checkpoint.checkpoints(one)[-1]) == 6
    (one / "journal.jsonl").write_text("a\nb\nc\n")
    save(one, 8, 8)
    (one / "best.json").unlink()
    (one / MARKS).unlink()
    again = mirror_of(one)  # killed before the upload: what is here is newer
    again.fetch(5)
    assert (one / "journal.jsonl").read_text() == "a\nb\nc\n"
    assert checkpoint.step_of(checkpoint.checkpoints(one)[-1]) == 8


def test_a_record_that_is_gone_here_and_there_is_forgotten(server, tmp_path):
    (tmp_path / "faults.jsonl").write_text("f")
    mirror_of(tmp_path).upload_records(5, NEVER)
    (tmp_path / "faults.jsonl").unlink()
    (server.folder / "bkt/runs/a/faults.jsonl").unlink()
    mirror_of(tmp_path).upload_records(5, NEVER)


def test_a_damaged_newest_checkpoint_is_passed_over_and_replaced(server, tmp_path):
    one, two, there = tmp_path / "one", tmp_path / "two", server.folder / "bkt/runs/a/checkpoints"
    one.mkdir()
    for step in (2, 4):
        save(one, step, 2)
    mirror_of(one).upload_checkpoints(5, lambda: None, NEVER)
    content = (there / "step-00000004.pt").read_bytes()
    (there / "step-00000004.pt").write_bytes(content[:-200])
    second = mirror_of(two)
    second.fetch(5)
    newest = checkpoint.newest(two)
    assert newest.path is not None
    assert newest.state is not None
    assert (newest.path.name, len(newest.remarks)) == ("step-00000002.pt", 1)
    save(two, 4, 2)
    second.upload_checkpoints(5, lambda: None, NEVER)
    assert checkpoint.read(there / "step-00000004.pt")["state"]["step"] == 4


def test_a_checkpoint_of_another_host_replaces_one_of_the_same_step(server, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        save(folder, 4, 4)
        mirror_of(folder).upload_checkpoints(5, lambda: None, NEVER)
    name = "checkpoints/step-00000004.pt"
    mine, other = (one / name).read_bytes(), (two / name).read_bytes()
    assert len(mine) == len(other)
    assert mine != other
    for folder in (one, two):
        server.asked.clear()
        mirror_of(folder).fetch(5)
        assert (folder / name).read_bytes() == other
        # The host that has written it does not fetch it.
        assert any(path.endswith(name) for path, _ in server.asked) == (folder == one)


def test_another_run_in_the_local_folder_is_put_aside(server, tmp_path):
    config, there = Config.load(None, "out=gs://bkt/runs/a/"), server.folder / "bkt/runs/a"

    def started() -> tuple[str, list[str]]:
        with BucketFolder(config, whole=True) as folder:
            run, remarks = folder.fetch()
            folder.acquire()
        return run, remarks

    run, remarks = started()
    assert remarks == []
    assert json.loads((there / ID).read_text())["id"] == run
    assert started() == (run, [])
    (config.run_dir / "notes.txt").write_text("mine")
    shutil.rmtree(there)  # by the user, to begin again
    other, (remark,) = started()
    assert other != run
    assert str(config.run_dir) in remark
    assert not (config.run_dir / "notes.txt").exists()
    (there / ID).write_text(json.dumps({"id": run}))
    assert started()[0] == run
    aside = [path.name for path in config.run_dir.parent.iterdir()]
    assert len(aside) == 3


def test_other_hosts_write_what_their_ranks_record_alone(server, tmp_path):
    there = server.folder / "bkt/runs/a"
    (there / "spans").mkdir(parents=True)
    (there / "spans/rank-00001.jsonl").write_text("a\n")
    folder = tmp_path / "host"
    host = mirror_of(folder, own=HOST_FILES)
    host.fetch_records(("spans/",), 5)
    assert (folder / "spans/rank-00001.jsonl").read_text() == "a\n"
    with (folder / "spans/rank-00001.jsonl").open("a") as file:
        file.write("b\n")
    (folder / "journal.jsonl").write_text("not mine")
    assert host.waiting() == (1, 4)
    host.upload_records(5, NEVER)
    assert records(there) == {"spans/rank-00001.jsonl": b"a\nb\n"}


def test_a_host_fetches_the_spans_of_its_own_ranks_alone(server):
    there = server.folder / "bkt/runs/a"
    (there / "spans").mkdir(parents=True)
    for rank in range(16):
        (there / f"spans/rank-{rank:05d}.jsonl").write_text(f"{rank}\n")
    config = Config.load(None, "out=gs://bkt/runs/a")
    run = ""
    for first in (0, 8):
        folder = lock_of(config, Cluster(first, 16, 0, 8, source=RankStarter("vertex")))
        assert isinstance(folder, BucketFolder)
        server.asked.clear()
        with folder:
            if first:
                folder.follow(run)
            else:
                run, _ = folder.fetch()
        asked = {path.rpartition("/")[2] for path, _ in server.asked if "/spans/" in path}
        assert asked == {f"rank-{rank:05d}.jsonl" for rank in range(first, first + 8)}
        shutil.rmtree(config.run_dir)


def test_a_host_that_lost_its_lease_while_it_was_paused_writes_nothing(server):
    there, config = server.folder / "bkt/runs/a", Config.load(None, "out=gs://bkt/runs/a")
    folder = BucketFolder(config, whole=True)
    folder.fetch()
    save(config.run_dir, 2, 2)
    (config.run_dir / "best.json").unlink()
    (config.run_dir / "journal.jsonl").write_text("a\n")
    folder._upload(True)
    other = replace(this_process(), token="f" * 32, inode=folder.url)
    (there / LEASE).write_text(f"{json.dumps(asdict(other))}\n7\n")
    before = records(there)
    (config.run_dir / "journal.jsonl").write_text("a\nold\n")
    for _ in range(2):
        with refused("lock-lost"):
            folder._upload(True)
    assert records(there) == before
    folder.release()


def test_best_json_and_deletions_are_confirmed_too(server, tmp_path):
    mirror, confirmed = mirror_of(tmp_path), list[int]()

    def upload() -> int:
        confirmed.clear()
        mirror.upload_checkpoints(5, lambda: confirmed.append(1), NEVER)
        return len(confirmed)

    save(tmp_path, 2, 2)
    assert [upload(), upload()] == [1, 0]
    os.utime(tmp_path / "best.json")
    assert [upload(), upload()] == [1, 0]
    for step in (4, 6, 8):
        save(tmp_path, step, step)
        upload()
    assert len(confirmed) == 2  # for the new one and for the removal of an old one


@pytest.mark.parametrize("stopped", [False, True])
def test_an_outage_at_the_end_of_a_run_is_borne(server, stopped, monkeypatch, capsys):
    """Also one that began long before, and after a signal that ended the run."""
    monkeypatch.setattr("segtrain.bucket.client._SAID_S", 0.1)
    config = Config.load(None, "out=gs://bkt/runs/a", "data.outage_s=300")
    client = client_of("gs://bkt")
    with BucketFolder(config, whole=True) as folder:
        folder.fetch()
        folder.acquire()
        (config.run_dir / "journal.jsonl").write_text("a\n")
        server.down = True
        with refused("bucket-unreachable"):
            client.head("x", 0.1)
        client._down_since = time.monotonic() - 1000
        if stopped:
            stopping.requested.set()
        threading.Timer(0.5, lambda: setattr(server, "down", False)).start()
        began = time.monotonic()
    took = float(capsys.readouterr().out.split(" took ")[1].split()[0])
    assert 0 < took < time.monotonic() - began + 0.1
    assert (server.folder / "bkt/runs/a/journal.jsonl").read_text() == "a\n"


def test_after_a_second_interrupt_nothing_more_is_uploaded(server):
    there, config = server.folder / "bkt/runs/a", Config.load(None, "out=gs://bkt/runs/a")
    folder, go = BucketFolder(config, whole=True), threading.Event()
    confirm = folder._lease.renew

    def renew(outage_s: float) -> None:
        confirm(outage_s)
        go.wait(600)

    def interrupted() -> None:
        with folder:
            folder.fetch()
            folder.acquire()
            folder._lease.renew = renew  # type: ignore[method-assign]  # the upload is under way
            for name in ("journal.jsonl", "labels.json"):
                (config.run_dir / name).write_text("a\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (there / LEASE).exists()
    go.set()
    assert folder._uploading is not None
    folder._uploading.join(600)
    assert getattr(folder._error, "code", "") == "upload-interrupted"
    assert {path.name for path in there.iterdir()} <= {ID, "journal.jsonl"}
    for act in (folder.check, lambda: confirm(5)):
        with refused("lock-released"):
            act()


def test_an_error_of_any_kind_ends_neither_the_upload_nor_the_lease(server, monkeypatch, capsys):
    monkeypatch.setattr("segtrain.runfolder.upload.RETRY_S", 0.01)
    config, errors = (
        Config.load(None, "out=gs://bkt/runs/a"),
        [KeyError("a mistake"), ValueError("another")],
    )
    folder = BucketFolder(config, whole=True)
    folder._lease._beat_s = 0.01
    records, renew = folder._mirror.upload_records, folder._lease._write

    def failing(*arguments: object) -> None:
        if errors:
            raise errors.pop()
        records(*arguments)  # type: ignore[arg-type]

    with folder:
        folder.fetch()
        folder.acquire()
        folder._mirror.upload_records = failing  # type: ignore[method-assign]
        beats = iter([RuntimeError("a mistake")])

        def beat(*arguments: object) -> object:
            for error in beats:
                raise error
            return renew(*arguments)  # type: ignore[arg-type]

        folder._lease._write = beat  # type: ignore[assignment, method-assign]
        count = folder._lease._count
        folder._next_records = 0.0
        while errors or folder._error is not None or folder._lease._count < count + 5:
            assert folder._uploading is not None
            assert folder._uploading.is_alive()
            assert folder._lease._thread is not None
            assert folder._lease._thread.is_alive()
            time.sleep(0.01)
            folder._wake.set()
        folder._wake.clear()
        (config.run_dir / "journal.jsonl").write_text("a\n")
    assert (server.folder / "bkt/runs/a/journal.jsonl").read_text() == "a\n"
    assert "can be written again" in capsys.readouterr().err


def test_a_local_copy_that_cannot_be_written_is_named(server, tmp_path):
    config = Config.load(None, "out=gs://bkt/runs/a")
    config.run_dir.parent.mkdir(parents=True)
    config.run_dir.write_text("a file in its place")
    for whole in (True, False):
        with (
            BucketFolder(config, whole) as folder,
            refused("run-folder-not-writable", run=str(config.run_dir)),
        ):
            folder.fetch() if whole else folder.follow("a" * 32)
