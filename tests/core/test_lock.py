"""Tests that only one process writes into a run folder, and that the next one can take over however
it ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from small_runs import command
from waiting import until

from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE, ConfigError, SegtrainError
from segtrain.runfolder import checkpoint, holder, lock, ownership
from segtrain.runfolder.holder import Holder, this_process
from segtrain.runfolder.lock import FILE, RunLock

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


def write(folder: Path, name: str = FILE, **changes: Any) -> Holder:
    """A lock as another process leaves it."""
    (folder / name).touch()
    found = dataclasses.replace(this_process(), inode=str((folder / name).stat().st_ino), **changes)
    (folder / name).write_text(f"{json.dumps(dataclasses.asdict(found))}\n{0:020d}\n")
    return found


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Time that passes in sleep alone; what is in the list is called with the time after each."""
    now, called = [1000.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        for each in called:
            each(now[0])

    monkeypatch.setattr(ownership.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ownership.time, "sleep", sleep)
    return called


def test_the_second_is_refused_and_told_who_is_first(tmp_path):
    with RunLock(tmp_path) as first:
        assert first.acquire() == []
        assert first.acquire() == []  # has it already
        since = json.loads((tmp_path / FILE).read_text().splitlines()[0])["since"]
        with pytest.raises(ConfigError) as refused, RunLock(tmp_path) as second:
            second.acquire()
        for word in (f"process {os.getpid()}", os.uname().nodename, since, "out=FOLDER"):
            assert word in str(refused.value)
        first.check()
        assert left(tmp_path) == [FILE]
    assert left(tmp_path) == []
    with RunLock(tmp_path) as third:
        assert third.acquire() == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_is_making_stays(
    tmp_path, dead
):
    write(tmp_path, ".lock-dead.new", pid=dead)
    write(tmp_path, ".lock-alive.new")
    with RunLock(tmp_path) as mine:
        mine.acquire()
        assert left(tmp_path) == [".lock-alive.new", FILE]


def test_a_zombie_is_dead(tmp_path):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    until(lambda: holder._began(pid) is None)
    write(tmp_path, pid=pid, began="1")
    with RunLock(tmp_path) as mine:
        assert "which has ended" in mine.acquire()[0]
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    "case", ["it has ended", "its number is another process's", "the machine was started again"]
)
def test_a_holder_that_is_gone_is_taken_over_at_once(tmp_path, dead, case, clock):
    if not holder.is_local(tmp_path):
        pytest.skip("the temporary folder is on a network")
    if case == "it has ended":
        theirs = write(tmp_path, pid=dead)
    elif case == "its number is another process's":
        theirs = write(tmp_path, began="1")
    else:
        theirs = write(tmp_path, boot=OTHER_BOOT)
    clock.append(lambda now: pytest.fail("it waited"))
    with RunLock(tmp_path) as mine:
        remarks = mine.acquire()
        assert f"process {theirs.pid}" in remarks[0]
        assert "which has ended" in remarks[0]
        assert holder.holder_in((tmp_path / FILE).read_bytes()).token != theirs.token
        with refused("run-folder-locked"):
            RunLock(tmp_path).acquire()
    assert left(tmp_path) == []


def test_a_client_of_this_file_server_is_waited_for(tmp_path, clock, monkeypatch):
    """The disk is this machine's own, and another machine trains into it through NFS."""
    monkeypatch.setattr(lock, "is_local", lambda folder: True)
    begin = json.dumps(dataclasses.asdict(write(tmp_path, boot=OTHER_BOOT, host="client")))
    clock.append(lambda now: (tmp_path / FILE).write_text(f"{begin}\n{int(now > 1050):020d}\n"))
    with refused("run-folder-locked", host="client"), RunLock(tmp_path) as mine:
        mine.acquire(lambda text: None)


def test_a_copy_of_a_running_run_is_not_locked(tmp_path):
    if not holder.is_local(tmp_path):
        pytest.skip("the temporary folder is on a network")
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run") as first:
        first.acquire()
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with RunLock(tmp_path / "copy") as second:
            assert "of which this is a copy" in second.acquire()[0]
            second.check()
        first.check()


# another host; another container of this one
ELSEWHERE = [{"boot": OTHER_BOOT, "host": "b"}, {"namespace": "pid:[1]"}]


@pytest.mark.parametrize("place", ELSEWHERE, ids=["host", "container"])
def test_a_holder_elsewhere_that_moves_is_alive(tmp_path, place, clock, monkeypatch):
    monkeypatch.setattr(lock, "is_local", lambda folder: False)
    theirs = write(tmp_path, **place)
    begin = json.dumps(dataclasses.asdict(theirs))
    # late, but in time
    clock.append(lambda now: (tmp_path / FILE).write_text(f"{begin}\n{int(now > 1050):020d}\n"))
    said: list[str] = []
    with refused("run-folder-locked"), RunLock(tmp_path) as mine:
        mine.acquire(said.append)
    assert "up to 60 s" in said[0]
    assert left(tmp_path) == [FILE]


@pytest.mark.parametrize("place", ELSEWHERE, ids=["host", "container"])
def test_a_holder_elsewhere_that_is_silent_is_taken_over(tmp_path, place, clock, monkeypatch):
    monkeypatch.setattr(lock, "is_local", lambda folder: False)
    write(tmp_path, **place)
    times: list[float] = []
    clock.append(times.append)
    with RunLock(tmp_path) as mine:
        assert "no sign of life for 60 s" in mine.acquire(lambda text: None)[0]
        mine.check()
    assert 1060 <= times[-1] < 1062  # waited as long as it said
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b'{"token": "../../x", "pid": 1}\n', b"\xff\n"]
)
def test_a_lock_that_nobody_can_read_is_waited_for(tmp_path, content, clock):
    """It may be in the making. After a minute it is not."""
    (tmp_path / FILE).write_bytes(content)
    with RunLock(tmp_path) as mine:
        assert "an unknown process" in mine.acquire(lambda text: None)[0]
    assert left(tmp_path) == []


def test_a_link_to_nowhere_in_the_place_of_the_lock_is_replaced(tmp_path, clock):
    (tmp_path / FILE).symlink_to("nowhere")
    with RunLock(tmp_path) as taken:
        assert "gave no sign of life" in taken.acquire(lambda _: None)[0]
        assert not (tmp_path / FILE).is_symlink()
    assert left(tmp_path) == []


def test_a_folder_that_was_moved_away_is_said(tmp_path):
    (tmp_path / "run").mkdir()
    with RunLock(tmp_path / "run", beat_s=3600) as moved:
        moved.acquire()
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        with refused("lock-not-read"):
            moved.check()


def test_the_thread_gives_signs_of_life(tmp_path):
    with RunLock(tmp_path, beat_s=0.001) as mine:
        mine.acquire()
        first = (tmp_path / FILE).read_bytes()
        until(lambda: (tmp_path / FILE).read_bytes() != first)
        assert holder.holder_in((tmp_path / FILE).read_bytes()) == holder.holder_in(first)


def test_of_many_that_race_for_a_dead_lock_one_wins(tmp_path, dead):
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        if number % 3:  # and without any lock one wins as well
            write(folder, pid=dead)
        runs = [RunLock(folder) for _ in range(6)]
        refusals: list[ConfigError] = []
        barrier = threading.Barrier(len(runs))

        def race(
            run: RunLock,
            barrier: threading.Barrier = barrier,
            refusals: list[ConfigError] = refusals,
        ) -> None:
            barrier.wait()
            try:
                run.acquire()
            except ConfigError as error:
                refusals.append(error)

        threads = [threading.Thread(target=race, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refusals) == len(runs) - 1
        winner = next(run for run in runs if run._me is not None)
        winner.check()
        winner.release()
        assert left(folder) == []


@pytest.mark.parametrize("done", [False, True], ids=["still there", "gone already"])
def test_who_decides_slowly_takes_nothing_from_who_was_faster(tmp_path, dead, done, monkeypatch):
    """Both have seen the dead holder; the other takes over (and ends) before this one makes its
    claim.
    """
    write(tmp_path, pid=dead)
    slow, fast, another = RunLock(tmp_path), RunLock(tmp_path), RunLock(tmp_path)
    claim = slow._create

    def late(path: Path, me: Holder) -> bool:
        if fast._me is None and another._me is None:
            fast.acquire()
            if done:
                fast.release()
                another.acquire()
        return claim(path, me)

    monkeypatch.setattr(slow, "_create", late)
    with refused("run-folder-locked"):
        slow.acquire()
    (another if done else fast).check()
    for run in (fast, another):
        run.release()
    assert left(tmp_path) == []


def test_who_was_suspended_and_replaced_stops_and_takes_nothing_away(tmp_path):
    with RunLock(tmp_path) as mine:
        mine.acquire()
        replaced(tmp_path)
        with refused("lock-lost"):
            mine.check()
        assert mine.lost
    assert left(tmp_path) == [FILE]


def replaced(folder: Path) -> None:
    """Another process takes over, as ``RunLock`` does."""
    write(folder, "theirs", host="b", pid=77)
    os.replace(folder / "theirs", folder / FILE)


def test_a_lock_deleted_by_hand_is_made_again(tmp_path):
    with RunLock(tmp_path) as mine:
        mine.acquire()
        (tmp_path / FILE).unlink()
        mine.check()
        with refused("run-folder-locked"):
            RunLock(tmp_path).acquire()
    assert left(tmp_path) == []


def test_two_threads_that_find_the_lock_deleted_make_it_once(tmp_path, monkeypatch):
    """The signs of life, and a checkpoint: the lock is made by one of them, and none of them
    fails.
    """
    mine = RunLock(tmp_path, beat_s=3600)
    mine.acquire()
    plain, inside, most = mine._create, [0], [0]
    met = threading.Event()

    def slowly(path: Path, me: Holder) -> bool:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        met.wait(0.05)  # time for the other one to come in, if it can
        made = plain(path, me)
        inside[0] -= 1
        return made

    monkeypatch.setattr(mine, "_create", slowly)
    (tmp_path / FILE).unlink()
    errors: list[SegtrainError] = []

    def ask() -> None:
        try:
            mine.check()
        except SegtrainError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, most[0]) == ([], 1)
    mine.release()
    assert left(tmp_path) == []


def test_a_checkpoint_that_outlasts_its_run_gets_no_name(tmp_path):
    """Ctrl-C cut the wait for the disk short: the lock is free, and maybe another run's already."""
    with RunLock(tmp_path) as mine:
        mine.check()  # no rank but 0 ever takes it
        mine.acquire()
        mine.check()
    with refused("lock-released"):
        mine.check()
    with mine:
        mine.acquire()
        mine.check()


def test_no_checkpoint_gets_its_name_from_who_has_lost_the_lock(tmp_path):
    from segtrain.runfolder.writer import CheckpointWriter

    def lost() -> None:
        raise SegtrainError("another process has taken over")

    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=True, guard=lost)
    writer.save(1, {"model": {"w": torch.ones(2)}, "state": {"step": 1}})
    with pytest.raises(SegtrainError, match="another process has taken over"):
        writer.wait()
    assert left(tmp_path / "checkpoints") == []


def test_who_has_lost_the_lock_takes_no_part_of_the_next_one_away(tmp_path):
    """It was suspended while it wrote; the next one has come to the same step."""
    from segtrain.runfolder.writer import CheckpointWriter

    state = {"model": {"w": torch.ones(2)}, "state": {"step": 1}}
    written, go = threading.Event(), threading.Event()

    def slow() -> None:
        written.set()
        go.wait()

    following = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=True, guard=slow)

    def lost() -> None:
        following.save(1, state)
        written.wait()
        raise SegtrainError("another process has taken over")

    writer = CheckpointWriter(tmp_path / "checkpoints", keep=1, background=True, guard=lost)
    writer.save(1, state)
    with pytest.raises(SegtrainError, match="another process has taken over"):
        writer.wait()
    go.set()
    following.wait()
    assert left(tmp_path / "checkpoints") == ["step-00000001.pt"]


# ---- runs
# ----------------------------------------------------------------------------------------------------------------

LONG = ["train.duration=100000st", "eval.every=100000st", "checkpoint.every=1st", "log.digest=true"]


def test_a_second_run_in_the_folder_is_refused_before_it_changes_anything(zygote, tmp_path):
    out = tmp_path / "run"
    first = zygote.start(*command(out, *LONG))
    until(lambda: bool(checkpoint.checkpoints(out)))
    torn = out / "checkpoints/.step-99999999.pt.part"  # as of a write of the first one
    torn.write_bytes(b"part")
    for ranks in (1, 2):
        second = zygote.start_ranks(ranks, *command(out, *LONG))
        assert [rank.wait() for rank in second] == [EXIT_ERROR] * ranks
        said = "".join(rank.output for rank in second)
        assert f"process {first.pid} on host {os.uname().nodename} (since " in said
        assert said.count("is training into") == 1
        assert "Traceback" not in said
    assert torn.exists()

    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert (out / FILE).exists()
    third = zygote.start(*command(out, *LONG))
    until(lambda: '"event": "resume"' in (out / "journal.jsonl").read_text())
    third.signal(signal.SIGTERM)
    assert third.wait() == EXIT_RESUMABLE, third.output
    assert "going on from step" in third.output
    assert f"was locked by process {first.pid}" in third.output
    assert not (out / FILE).exists()  # let go
    assert not torn.exists()


def test_a_run_that_was_suspended_and_replaced_writes_no_checkpoint(zygote, tmp_path):
    out = tmp_path / "run"
    process = zygote.start(*command(out, *LONG))
    until(lambda: bool(checkpoint.checkpoints(out)))
    process.signal(signal.SIGSTOP)
    until(
        lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    )
    replaced(out)
    before = [path.name for path in checkpoint.checkpoints(out)]
    process.signal(signal.SIGCONT)
    assert process.wait() == EXIT_ERROR
    assert "process 77 on host b" in process.output
    assert "has taken over" in process.output
    assert "Traceback" not in process.output
    after = [path.name for path in checkpoint.checkpoints(out)]
    # but one whose name it was giving when it was stopped
    assert set(after) <= {*before, *after[-1:]}
    assert holder.holder_in((out / FILE).read_bytes()).pid == 77
