"""Tests on stand-ins that each rank gets its own GPU, and that a job ends when one rank fails. They
need no GPU.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import refused
from waiting import until

from segtrain.errors import ConfigError
from segtrain.parallel import board, failure
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.gpus import gpus_in_sight, own_gpu
from segtrain.parallel.network import describe_network
from segtrain.parallel.places import RankPlace, exchange, placed

# What a rank runs before its own code: one GPU in sight, and gloo under the name of nccl, as far as
# the start of a job goes.
NCCL = """
import os, sys, torch, torch.distributed as dist
from types import SimpleNamespace
import segtrain.parallel.strategy as strategy
from segtrain.config import Parallel
from segtrain.parallel.cluster import discover
rank = int(os.environ["RANK"])
torch.cuda.is_available, torch.cuda.device_count, torch.cuda.set_device = lambda: True, lambda: 1, lambda index: None
torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=os.environ["GPU"].split()[rank])
init = dist.init_process_group
def standin(backend, device_id=None, pg_options=None, **options):
    assert backend == "nccl" and (device_id is None or str(device_id) == "cuda:0"), (backend, device_id)
    if dist.is_nccl_available():
        assert pg_options.is_high_priority_stream and pg_options._timeout == options["timeout"], pg_options
    init("gloo", **options)
dist.init_process_group = standin
dist.distributed_c10d._abort_process_group = lambda: print("aborted", flush=True)
dist.destroy_process_group = lambda: print("destroyed", flush=True)
def main():
    with strategy.start(Parallel(), discover()) as started:
        body(started)
    return 0
"""


def test_the_gpus_in_sight(monkeypatch):
    count = 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    uuids = ["GPU-a", "GPU-b"]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index])
    )
    assert gpus_in_sight("auto", Cluster()) == ["GPU-a", "GPU-b"]
    assert gpus_in_sight("cpu", Cluster()) == []
    uuids = ["", ""]  # an old torch knows no UUID
    assert gpus_in_sight("auto", Cluster(0, 2)) == gpus_in_sight("auto", Cluster(1, 2))
    count = 1
    assert gpus_in_sight("auto", Cluster(0, 2)) != gpus_in_sight("auto", Cluster(1, 2))
    count = 0
    assert gpus_in_sight("auto", Cluster()) == []
    with refused("no-gpu"):
        gpus_in_sight("cuda", Cluster())
    with refused("no-gpu") as ended:
        gpus_in_sight("cuda", Cluster(gpu_caveat="ask for GPUs"))
    assert "ask for GPUs" in str(ended.value)


@pytest.mark.parametrize(
    ("seen", "chosen"),
    [
        (["abcd"] * 4, "abcd"),
        (["ab", "ab", "cd", "cd"], "abcd"),  # srun --gpu-bind=closest
        (["cd", "ab", "cd", "ab"], "cbda"),
        (["ab", "a"], "ba"),
        (["a", "b"], "ab"),  # srun --gpus-per-task=1
        (["ab", "b", "c"], "abc"),
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_each_rank_gets_a_gpu_of_its_own(seen, chosen, told):
    size = len(seen)
    rows = [RankPlace("h", rank if told else None, list(gpus)) for rank, gpus in enumerate(seen)]
    own = [own_gpu(rows, Cluster(rank, size, rank, size), "nccl") for rank in range(size)]
    assert "".join(gpus[index] for gpus, index in zip(seen, own)) == chosen


def test_ranks_without_a_gpu_of_their_own_are_refused():
    rows = [RankPlace("h x", rank, list(gpus)) for rank, gpus in enumerate(["ab", "ab", "a"])]
    for rank in range(3):
        with refused("too-few-gpus", rank=2, found=2, expected=3):
            own_gpu(rows, Cluster(rank, 3, rank, 3), "nccl")
    assert [own_gpu(rows, Cluster(rank, 3, rank, 3), "gloo") for rank in range(3)] == [0, 1, 0]
    mixed = [RankPlace("h x", 0, ["a"]), RankPlace("i x", 0, [])]
    with refused("too-few-gpus", rank=1):
        own_gpu(mixed, Cluster(0, 2, 0, 1), "nccl")
    assert own_gpu(mixed, Cluster(0, 2, 0, 1), "gloo") == 0


def test_hosts_and_local_ranks_are_counted_when_the_ranks_meet():
    """As in pods that get only RANK and WORLD_SIZE. Ranks of a host need not be consecutive."""

    def meet(local_sizes: list[int], rows: list[RankPlace]) -> list[tuple[int, ...]]:
        store, found = dist.HashStore(), [()] * len(rows)

        def rank(number: int) -> None:
            own = Cluster(number, len(rows), rows[number].local_rank or 0, local_sizes[number])
            place = placed(own, exchange(store, own, rows[number]))
            found[number] = (
                place.local_rank,
                place.local_world_size,
                place.hosts,
                place.local_rank or place.host,
            )

        threads = [threading.Thread(target=rank, args=(n,)) for n in range(len(rows))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found

    assert meet([0, 0, 0], [RankPlace(name, None, []) for name in "aba"]) == [
        (0, 2, 2, 0),
        (0, 1, 2, 1),
        (1, 2, 2, 1),
    ]
    told = [
        RankPlace("one machine", 0, []),
        RankPlace("one machine", 0, []),
        RankPlace("one machine", 1, []),
    ]
    assert meet([1, 2, 2], told) == [(0, 1, 2, 0), (0, 2, 2, 1), (1, 2, 2, 1)]


def test_ranks_with_one_gpu_each_start_and_leave_together(run_ranks):  # type: ignore[no-untyped-def]
    """As under `srun --gpus-per-task 1`: every rank sees one GPU."""
    body = "def body(started):\n    print(started.device, started.backend, int(started.reduce(torch.tensor([rank + 1]))))\nmain()"
    for output in run_ranks(NCCL + body, 2, GPU="GPU-a GPU-b"):
        assert output.split("\n")[:2] == ["cuda:0 nccl 3", "destroyed"], output


def test_ranks_that_share_a_gpu_are_refused_before_nccl_begins(zygote):  # type: ignore[no-untyped-def]
    code = NCCL + "def body(started): print('began')\nimport segtrain.commands, segtrain.cli\n"
    code += "segtrain.commands.train = lambda *_: main()\nsys.exit(segtrain.cli.main(['train']))"
    ranks = zygote.start_ranks(2, code=code, GPU="GPU-a GPU-a")
    assert [rank.wait() for rank in ranks] == [2, 2], ranks[0].output + ranks[1].output
    assert "rank 1 (host " in ranks[0].output
    assert ranks[1].output == ""  # one rank of a host speaks


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("raise SegtrainError('the file is torn')", 2, "error: the file is torn"),
        ("raise KeyError('a mistake of ours')", 1, "KeyError: 'a mistake of ours'"),
    ],
)
def test_a_rank_that_fails_says_so_and_ends_without_the_others(zygote, what, code, words):  # type: ignore[no-untyped-def]
    """NCCL's own way out is a collective: it would wait for ranks that wait in another one."""
    body = f"""
import threading, time
from segtrain.errors import SegtrainError
go = threading.Event()
class Late(threading.Thread):
    def join(self, timeout=None):  # the disk is done only after somebody waits for it
        go.set()
        super().join(timeout)
def body(started):
    if rank == 0:
        time.sleep(3600)  # in a collective that the other one never joins
    Late(target=lambda: (go.wait(), print("written", flush=True)), name="checkpoint").start()
    {what}
sys.exit(main())
"""
    ranks = zygote.start_ranks(2, code=NCCL + body, GPU="GPU-a GPU-b")
    assert ranks[1].wait() == code, ranks[1].output
    ranks[0].signal(9)
    ranks[0].wait()
    assert words in ranks[1].output
    assert ranks[1].output.endswith("written\naborted\n"), ranks[1].output
    assert "destroyed" not in ranks[1].output


def test_an_abort_that_blocks_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(failure, "GUARD_S", 0.01)
    monkeypatch.setattr(failure.os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    blocked = threading.Event()
    with pytest.raises(SystemExit) as ended:
        failure.end_now(ConfigError("x"), Cluster(3, 4, 1, 2), lambda: blocked.wait(60) and None)
    assert ended.value.code == 2
    blocked.set()


def test_a_platform_reports_the_error_of_a_rank_that_ends_at_once(monkeypatch, capsys):
    """On GPUs, the caller of the training never gets the error, and SageMaker shows what ``report``
    writes.
    """
    monkeypatch.setattr(failure.os, "_exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    told = list[Exception]()
    error = ConfigError("x")
    with pytest.raises(SystemExit) as ended:
        failure.end_now(
            error, Cluster(1, 4, 0, 2), lambda: None, lambda found: told.append(found) or 7
        )
    assert (ended.value.code, told, capsys.readouterr().err) == (7, [error], "")


@pytest.mark.parametrize("ends", ["dies", "comes"])
def test_ranks_wait_for_rank_0_as_long_as_it_lives(monkeypatch, ends):
    """``torchrun`` may keep the store on another host than rank 0's: then it is there when rank 0
    is not.
    """
    store, now = dist.HashStore(), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] < 5000:
            store.add("x/alive", 1)
        elif ends == "comes":
            store.add("x", 1)

    monkeypatch.setattr(board, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    if ends == "comes":
        board.await_rank_0(store, "x", 1, 100.0)
        assert 5000 <= now[0] < 5001
    else:
        with pytest.raises(
            RuntimeError, match="rank 0 did not respond for 100 s: connection timed out"
        ):
            board.await_rank_0(store, "x", 1, 100.0)
        assert 5100 <= now[0] < 5102


def test_ranks_end_if_the_host_of_the_store_vanishes(monkeypatch):
    """The store then neither answers nor closes the connection."""
    monkeypatch.setattr(board, "SILENT_S", 0.01)
    back = threading.Event()
    store = SimpleNamespace(add=lambda key, amount: int(back.wait(20)) + 1)
    with pytest.raises(
        RuntimeError, match=r"rank 0 did not respond for 0\.01 s: connection timed out"
    ):
        board.await_rank_0(store, "x", 1, 0.001)
    back.set()


def test_rank_0_gives_signs_of_life_while_it_works(monkeypatch):
    monkeypatch.setattr(board, "BEAT_S", 0.001)
    store, before, faults = dist.HashStore(), set(threading.enumerate()), ["Socket Timeout"]

    def add(key: str, amount: int) -> int:
        if faults:
            raise RuntimeError(faults.pop())
        return int(store.add(key, amount))

    with board.at_work(SimpleNamespace(add=add), "x"):
        until(lambda: store.add("x/alive", 0) > 2)
    assert set(threading.enumerate()) <= before


def test_ranks_wait_for_rank_0_in_no_collective(run_ranks, tmp_path):  # type: ignore[no-untyped-def]
    """Rank 0 reads every mask of a large set meanwhile: a collective would end the job after
    parallel.timeout_s.
    """
    code = f"""
import time
from pathlib import Path
from types import SimpleNamespace
from segtrain.config import Parallel
from segtrain.parallel import board
from segtrain.parallel.cluster import discover
from segtrain.parallel.strategy import Strategy, start
from segtrain.training.state import on_rank_0
from segtrain.errors import SegtrainError
folder, reduce = Path({str(tmp_path)!r}), Strategy.reduce
def sleep(seconds):
    (folder / f"waits-{{place.rank}}").touch()
    time.sleep(seconds)
def watched(strategy, value):
    assert (folder / "done").exists(), "a collective has begun"
    return reduce(strategy, value)
def work():
    end = time.monotonic() + 240
    while not all((folder / f"waits-{{rank}}").exists() for rank in (1, 2)):
        assert time.monotonic() < end, "they do not wait where they should"
        time.sleep(0.01)
    (folder / "done").touch()
    return {{"found": [strategy.rank, None, "é"]}}
def fail():
    raise SegtrainError("torn")
board.time = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
Strategy.reduce, place = watched, discover()
with start(Parallel(), place) as strategy:
    print(on_rank_0(strategy, work))
    print(strategy.broadcast_object(strategy.rank + 5))
    try:
        on_rank_0(strategy, fail)
    except SegtrainError as error:
        print(error)
"""
    for output in run_ranks(code, 3):
        assert output == "{'found': [0, None, 'é']}\n5\ntorn\n"


@pytest.mark.parametrize(
    ("devices", "driver", "plugin", "environ", "expected"),
    [
        (0, "", "", {}, "TCP: no EFA, InfiniBand, or RoCE device is visible"),
        (
            2,
            "mlx5_core",
            "",
            {"NCCL_IB_HCA": "mlx5"},
            "2 InfiniBand or RoCE devices; NCCL_IB_HCA=mlx5",
        ),
        (4, "efa", "mine", {"LD_LIBRARY_PATH": "/nowhere:{root}/mine"}, "4 EFA devices"),
        (
            4,
            "efa",
            "",
            {},
            "4 EFA devices; NCCL's plugin for EFA (aws-ofi-nccl) was not found, and without it NCCL uses TCP",
        ),
    ],
)
def test_the_network_between_hosts_is_said(tmp_path, devices, driver, plugin, environ, expected):
    for number in range(devices):
        device = tmp_path / f"sys/class/infiniband/rdma{number}/device"
        device.mkdir(parents=True)
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    if plugin:
        (tmp_path / plugin).mkdir(parents=True)
        (tmp_path / plugin / "libnccl-net-ofi.so").touch()
    environ = {name: value.format(root=tmp_path) for name, value in environ.items()}
    assert describe_network(environ, tmp_path).startswith(expected)
