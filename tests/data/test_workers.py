"""Tests of worker processes: they make what threads make, also when they are killed, and end with
the rank.
"""
# ruff: noqa: F811

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from batch_bytes import content, kept, threads
from conftest import refused
from deadly import Deadly, Telling, Unpicklable
from picture_folder import N, data, folder  # noqa: F401
from waiting import soon

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.order import samples
from segtrain.data.train_loader import EvalLoader, TrainLoader
from segtrain.data.workers import memory, process
from segtrain.data.workers.batch import BatchTask
from segtrain.data.workers.child import _Worker
from segtrain.data.workers.memory import Ring
from segtrain.data.workers.pool import MAX_CRASHES, WorkerPool
from segtrain.errors import DataError

STEPS = 5
pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="worker processes need Unix sockets"
)


SCENES = Data(scenes=N, scene_size=(48, 64), crop=(24, 32))


def loader_of(data: Data, source: object = None, **settings: object) -> TrainLoader:
    options = {"seed": 3, "batch_size": 6, "last_step": STEPS, **settings}
    return TrainLoader(source or open_dataset(data, "train"), data, **options)  # type: ignore[arg-type]


def load(data: Data, source: object = None, **settings: object) -> list[bytes]:
    with loader_of(data, source, **settings) as loader:
        return content(kept(loader))


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    yield
    assert soon(lambda: not threads())


@pytest.fixture
def deaths(tmp_path: Path) -> Path:
    (tmp_path / "deaths").mkdir()
    return tmp_path / "deaths"


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie, which waits for its parent, has)."""
    try:
        return (
            ") Z" in Path(f"/proc/{pid}/stat").read_text()
            if Path("/proc/self").exists()
            else os.kill(pid, 0) is not None
        )
    except OSError:
        return True


def test_any_workers_give_the_same_batches(data):
    with (
        WorkerPool(1, "process") as one,
        WorkerPool(2, "process") as two,
        WorkerPool(4, "process") as four,
    ):
        plain = load(data)
        for prefetch in (1, 2, 8):
            assert load(data, workers=2, prefetch=prefetch) == plain
            assert load(data, pool=two, prefetch=prefetch) == plain
        assert load(data, pool=one, accumulate=2) == plain
        assert load(data, pool=four, prefetch=4) == plain
        for first in (1, 4):
            assert load(data, pool=two, first_step=first) == plain[6 * first :]
        sizes = [(24, 32), (16, 16), (40, 40), (24, 32), (8, 8)]
        changing = {"crop_and_scale": lambda step: (sizes[step], (0.5, 2.0)), "prefetch": 1}
        assert load(data, pool=two, **changing) == load(data, **changing)
        assert load(SCENES, pool=two) == load(SCENES, workers=1) == load(SCENES)


def test_one_crew_trains_and_evaluates_in_turns(data):
    source = open_dataset(data, "train")
    groups, images = [[0, 3, 6], [1, 2], [4, 5]], {}
    with (
        WorkerPool(2, "process") as pool,
        loader_of(data, source, pool=pool) as loader,
    ):
        steps, pids = [], None
        for parts in loader:
            steps += kept([parts])
            with EvalLoader(source, groups, pool=pool, prefetch=2) as whole:
                for ids, pixels, masks in whole:
                    images.update(
                        {
                            int(i): (p.numpy().copy(), m.numpy().copy())
                            for i, p, m in zip(ids, pixels, masks)
                        }
                    )
            pids = pids or sorted(pool.pids())
        assert sorted(pool.pids()) == pids  # nobody was started again
    assert content(steps) == load(data)
    for index in range(N):
        for got, wanted in zip(images[index], source.read(index)):
            assert (got == wanted).all()
    assert all(gone(pid) for pid in pids)


def test_a_killed_worker_is_named_and_replaced(data, deaths, capfd):
    source = open_dataset(data, "train")
    index = int(samples(3, N, 0, 6)[1][2])
    deadly = Deadly(source, index, deaths, signal.SIGSEGV, times=2)
    assert load(data, deadly, workers=2, kind="process") == load(data)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(lines) == 2
    name = re.escape(source.entries[index].image)
    for line in lines:
        assert re.search(rf"data worker \d \(pid \d+\) was killed by SIGSEGV.* at {name}", line)


def test_a_sample_that_kills_three_workers_is_an_error(data, deaths):
    source = open_dataset(data, "train")
    deadly = Deadly(source, int(samples(3, N, 0, 6)[1][2]), deaths, times=99)
    said: list[str] = []
    with (
        WorkerPool(2, "process", said.append) as pool,
        loader_of(data, deadly, pool=pool) as loader,
        refused("sample-kills-workers") as error,
    ):
        list(loader)
    assert f"images/train/{deadly.index}." in error.value.values["files"]
    assert "SIGKILL" in error.value.values["found"]
    assert len(list(deaths.iterdir())) >= 3
    assert len(said) >= 3


def test_an_error_is_the_same_as_with_threads(folder, data):
    source = open_dataset(data, "train")
    image = Path(source.entries[2].image)
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])
    try:
        found = []
        for kind in ("thread", "process"):
            with pytest.raises(DataError) as caught:
                load(data, workers=2, kind=kind)
            found.append((str(caught.value), caught.value.code, caught.value.values))
    finally:
        image.write_bytes(whole)
    assert str(image) in found[0][0]
    assert found[0] == found[1]


def test_code_values_and_settings_of_an_error_leave_the_process():
    class Special(DataError):
        """It cannot be unpickled: another process knows only its base class."""

    raised = Special("too dark", code="image-dark", file="a.png", found=(1, 2))
    raised.settings = {"data.bits": 12}
    worker = _Worker()
    worker.makers[b"key"] = Leaving(raised)
    worker.blocks[0] = bytearray(16)
    error = pickle.loads(
        pickle.dumps(worker._make(b"key", None, 0, ((0, (2, 2, 3)), (12, (2, 2)))))
    )
    assert (type(error), str(error), error.code, error.values, error.settings) == (
        DataError,
        "too dark",
        "image-dark",
        {"file": "a.png", "found": (1, 2)},
        {"data.bits": 12},
    )


def test_a_worker_is_light(data):
    source = open_dataset(data, "train")
    telling = Telling(source, int(samples(3, N, 0, 6)[1][0]))
    with pytest.raises(DataError, match=r"heavy=\[\] cv2=1 omp=1 pages=\d:"):
        load(data, telling, workers=1, kind="process")


@pytest.mark.parametrize("failures", [MAX_CRASHES - 1, MAX_CRASHES])
def test_failed_starts_in_a_row_are_counted_anew_after_an_answer(
    data, deaths, monkeypatch, failures
):
    """A process starts, makes samples, and is killed. Its replacement starts only after
    ``failures`` tries.
    """
    deadly = Deadly(open_dataset(data, "train"), int(samples(3, N, 0, 12)[1][11]), deaths, times=1)
    program, begin, starts = sys.executable, process.WorkerProcess.__init__, list[int]()

    def fails(self: process.WorkerProcess) -> None:
        starts.append(1)
        monkeypatch.setattr(
            process.sys, "executable", "/bin/false" if 1 < len(starts) <= 1 + failures else program
        )
        begin(self)

    monkeypatch.setattr(process.WorkerProcess, "__init__", fails)
    if failures == MAX_CRASHES:
        with refused("workers-cannot-start"):
            load(data, deadly, workers=1, kind="process")
    else:
        assert load(data, deadly, workers=1, kind="process") == load(data)
    assert len(starts) == 1 + MAX_CRASHES


def test_what_cannot_be_sent_is_refused(data):
    with refused("dataset-not-picklable", found="not today"):
        load(data, Unpicklable(open_dataset(data, "train"), 0), workers=1, kind="process")


PARENT = """
class Slow:  # lives in the file that was started
    def __init__(self, source):
        self.source, self.labels, self.entries, self.store = source, source.labels, source.entries, source.store
        self.reading = source.reading
    def __len__(self): return len(self.source)
    def size(self, index): return self.source.size(index)
    def read(self, index): return self.source.read(index)
    def record(self, index):
        import time
        import os
        open(f"{os.getpid()}.pid", "w").close()
        if index % 2: time.sleep(SECONDS)
        return self.source.record(index)
SECONDS = 600

if __name__ == "__main__":
    from segtrain.config import Data
    from segtrain.data.datasets import open_dataset
    from segtrain.data.train_loader import TrainLoader
    from segtrain.data.workers.pool import MAX_CRASHES, WorkerPool

    data = Data(scenes=8, scene_size=(48, 64), crop=(24, 32))
    pool = WorkerPool(2, "process")
    loader = TrainLoader(Slow(open_dataset(data, "train")), data, seed=0, batch_size=4, last_step=9, pool=pool)
    iter(loader)
    import glob, time
    while len(glob.glob("*.pid")) < 2: time.sleep(0.01)  # both make samples
    print(*pool.pids(), flush=True)
    time.sleep(600)
"""


def test_workers_end_with_their_rank_however_it_ends(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(PARENT)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]  # type: ignore[union-attr]
        assert len(pids) == 2
        for pid in pids:  # what the whole group gets is not for them
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert not any(gone(pid) for pid in pids)
        parent.kill()
        parent.wait()
        assert soon(lambda: all(gone(pid) for pid in pids))


def test_a_crew_grows_and_shrinks(data):
    for kind in ("thread", "process"):
        with (
            WorkerPool(1, kind) as pool,
            loader_of(data, last_step=30, pool=pool) as loader,
        ):
            steps = []
            for number, parts in enumerate(loader):
                steps += kept([parts])
                pool.resize([1, 3, 2, 4, 1][number // 6])
            assert soon(lambda pool=pool: len(pool._threads) == 1)
        assert content(steps) == load(data, last_step=30)


def test_closing_early_ends_everything(data):
    open_files = Path("/proc/self/fd")
    gc.collect()  # blocks of earlier tests
    for _ in range(2):  # the first time imports what it needs
        before = len(list(open_files.iterdir())) if open_files.exists() else 0
        loader = loader_of(data, last_step=99, workers=2, kind="process")
        iterator = iter(loader)
        batch = next(iterator)[0]
        pids = loader._pool.pids()
        loader.close()
        assert all(gone(pid) for pid in pids)
        assert list(iterator) == []
        assert batch.images.sum() > 0  # the last batch outlives its loader
        del batch
        after = len(list(open_files.iterdir())) if open_files.exists() else 0
    assert after <= before  # those of an earlier test may be closed in the meantime


def test_memory_is_used_again(data):
    for kind in ("thread", "process"):
        with loader_of(data, last_step=30, workers=2, kind=kind, prefetch=3) as loader:
            places = {parts[0].images.data_ptr() for parts in loader}
        assert len(places) <= 4  # three ahead and the one in use


def test_blocks_grow_by_need():
    ring = Ring(shared=True)
    small = [ring.take(100), ring.take(100)]
    for block in small:
        ring.give(block)
    large = ring.take(10_000)
    assert large.size >= 10_000
    assert ring.take(50) in small
    assert sum(block.alive for block in small) == 1
    ring.close()
    assert large.fd == -1


def test_without_memfd_memory_is_shared_by_a_temporary_file(data, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert load(data, workers=1, kind="process") == load(data)
    if not os.path.isdir(memory.SHM):
        pytest.skip("this platform has no /dev/shm whose room could be read")
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result([4096, 4096, 0, 0, 1, 0, 0, 0, 0, 255])
    )
    with refused("shm-too-small", folder="/dev/shm", found=4096):
        load(data, workers=1, kind="process")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_blocks_are_page_locked(data, kind):
    with loader_of(data, workers=2, kind=kind, pin_memory=True) as loader:
        steps = []
        for parts in loader:
            assert parts[0].images.is_pinned()
            assert parts[0].masks.is_pinned()
            steps += kept([parts])
    assert content(steps) == load(data)


class Leaving:
    """Samples whose making ends the interpreter, as a script's exit() would."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, task: object, image: np.ndarray, mask: np.ndarray) -> None:
        raise self.error


def test_a_sample_that_would_end_the_thread_ends_the_job_with_its_name():
    batch = BatchTask(Leaving(SystemExit(3)), Ring().take(64))
    batch.add(None, ((0, (2, 2, 3)), (12, (2, 2))), lambda: "cow.jpg with cow.png")
    raised: list[DataError] = []

    def wait() -> None:
        try:
            pool.wait(batch)
        except DataError as told:
            raised.append(told)

    with WorkerPool(1) as pool:
        pool.start()
        pool.begin(batch)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(timeout=60)  # for ever, where the worker is gone
        assert not waiting.is_alive()
        again = BatchTask(lambda task, image, mask: image.fill(7), Ring().take(64))
        again.add(None, ((0, (2, 2, 3)), (12, (2, 2))), lambda: "")
        pool.begin(again)
        pool.wait(again)  # the worker is still there
    assert raised[0].code == "sample-failed"
    assert raised[0].values["files"] == "cow.jpg with cow.png"
    assert raised[0].values["found"].startswith("SystemExit")
