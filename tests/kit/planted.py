"""Runs with a planted cause, as the diagnosis reads them: at least one for each cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from records import compiled, diagnosis_of, heavy, moments, rank_records, starved, two

from segtrain.insight.diagnose.evidence import HostLoad
from segtrain.insight.diagnose.verdict import Diagnosis
from segtrain.observe.spans import Records

Case = Callable[[], Diagnosis]
# What reading costs a sample follows from its share of 5 s: 80 samples by 2 workers, 0.125 s each.
READING = {"read": 0.115}
HALF_FULL = HostLoad("algo-1", 8, busy=3.0, iowait=0.0, memory=0.5, swap_bytes_s=0.0)


def waiting(
    count: int, each: float, per_byte: float = 0.0, first: float = 0.03, **more: Any
) -> Diagnosis:
    """``count`` requests in each window; every second one is 20 times smaller, or all are of one
    size.
    """
    sizes = more.pop("sizes", (0.2, 0.01))
    mb = [sizes[k % len(sizes)] for k in range(count)]
    times = [each + 1e6 * per_byte * size for size in mb]
    bucket = {
        "requests": count + sum(more.get("retries", {}).values()),
        "bytes": 1e6 * sum(mb),
        "seconds": sum(times),
        "mb2": sum(size * size for size in mb),
        "mb_s": sum(size * s for size, s in zip(mb, times)),
        "retries": {},
        "retry_s": {},
        "ahead": {
            "window": 200,
            "threads": 128,
            "most_threads": 128,
            "held": 5,
            "most_held": 10**9,
        },
        **more,
    }
    bucket["ahead"]["first_s"] = first
    records = starved(stages=READING, sample_cpu=0.006)
    return diagnosis_of(
        replace(records, windows=tuple({**window, "bucket": bucket} for window in records.windows))
    )


PLANTED: dict[str, Case] = {
    "storage-latency": lambda: diagnosis_of(starved(**moments(0, 0.0575))),
    "storage-bandwidth": lambda: diagnosis_of(starved(**moments(5.6e-7, 0.0001))),
    "decode": lambda: diagnosis_of(starved(stages={"decode": 0.12}, cores=2)),
    "augmentation": lambda: diagnosis_of(starved(stages={"augment": 0.12}, cores=2)),
    "too-few-workers": lambda: diagnosis_of(starved(stages={"decode": 0.06}, workers=1)),
    "too-many-threads": lambda: diagnosis_of(rank_records(threads=16, cores=2, cpu=1.9)),
    "main-thread": lambda: diagnosis_of(rank_records({"other": 1.0}, other_cpu=0.9)),
    "host-to-device": lambda: diagnosis_of(
        rank_records({"device": 0.4}, device="cuda:0"), hosts=(replace(HALF_FULL, gpu=0.9),)
    ),
    "shm": lambda: diagnosis_of(starved(stages={"assemble": 0.12}, kind="process", cores=2)),
    "sync-point": lambda: diagnosis_of(rank_records({"other": 1.0}, other_cpu=0.23)),
    "logging": lambda: diagnosis_of(rank_records({"log": 1.0})),
    "evaluation": lambda: diagnosis_of(rank_records({"eval": 2.0})),
    "checkpoint": lambda: diagnosis_of(rank_records({"checkpoint": 1.0})),
    "slow-rank": lambda: diagnosis_of(*two({"forward": 1.4}, {"sync": 1.0}, cpu=1.9)),
    "slow-host": lambda: diagnosis_of(
        *two({"forward": 1.4}, {"sync": 1.0}, ("one", "other"), cpu=1.9)
    ),
    "slow-network": lambda: diagnosis_of(
        *two({"gradient_sync": 1.0}, {"gradient_sync": 1.1}, gradient=2_000_000)
    ),
    "small-batch": lambda: diagnosis_of(rank_records({"update": 0.9}, images=1)),
    "other-programs": lambda: diagnosis_of(
        rank_records(cpu_wait=0.5, cores=2), hosts=(HostLoad("algo-1", 2, 2.0, 0.0, 0.5, 0.0),)
    ),
    "too-few-cores": lambda: diagnosis_of(
        rank_records(cpu_wait=0.5, cores=1, stages={"decode": 0.005}, workers=1)
    ),
    "compiling": lambda: diagnosis_of(compiled(120.0), config={"train": {"compile": True}}),
    "memory": lambda: diagnosis_of(
        starved(), hosts=(replace(HALF_FULL, swap_bytes_s=2e7, memory=0.99),)
    ),
}


RETRIES = {"retries": {"throttled": 7, "cut": 2}, "retry_s": {"throttled": 20.0, "cut": 0.4}}
STEPS = {"event": "run_start", "total_steps": 400, "eval_every": 7, "save_every": 9}
EVENTS = (
    STEPS,
    {"event": "step", "step": 8, "epoch": 2.0},
    *({"event": "eval", "seconds": seconds} for seconds in (1.25, 2.5)),
    *({"event": "checkpoint", "reason": reason} for reason in ("best", "best", "periodic", "end")),
)
BUSY = HostLoad("algo-1", 2, busy=2.0, iowait=0.0, memory=0.5, swap_bytes_s=0.0)
IDLE_GPU = (replace(HALF_FULL, gpu=0.34),)
COMPILE = {"train": {"compile": True}}


def on_gpu(
    *phases: dict[str, float], hosts: tuple[HostLoad, ...] = IDLE_GPU, **config: Any
) -> Case:
    ranks = [
        rank_records(spent, rank=rank, world=len(phases), device="cuda:0", gradient=10**7)
        for rank, spent in enumerate(phases)
    ]
    return lambda: diagnosis_of(*ranks, hosts=hosts, config=config)


def synced(shared: float | None = None, **parallel: str) -> Case:
    config = {"parallel": {"strategy": "auto", **parallel}}
    ranks = [
        rank_records(
            {"gradient_sync": 1.0 + 0.2 * rank},
            rank=rank,
            world=3,
            gradient=10**7,
            shared=shared,
            device="cuda:0",
        )
        for rank in range(3)
    ]
    return lambda: diagnosis_of(*ranks, config=config)


def helped(records: Records) -> Records:
    made = {"helpers": {"a": 30, "b": 10, "c": 0}, "receive_s": 0.05}
    windows = [{**w, "workers": {**w["workers"], **made}} for w in records.windows]
    return replace(records, windows=tuple(windows))


def compiling(seconds: float, steps: int, windows: int = 4) -> Diagnosis:
    events = ({**STEPS, "total_steps": steps},)
    return diagnosis_of(compiled(seconds, windows), config=COMPILE, events=events)


GIL: dict[str, Any] = {"stages": {"decode": 0.12}, "sample_cpu": 0.02, "cpu_wait": 0.0}
# Runs that wait for their samples.
SAMPLES: dict[str, Case] = {
    "files in a bucket": lambda: waiting(160, each=3.0, first=2.5),
    "shards in a bucket": lambda: waiting(80, each=3.0, first=2.5, late=2, **RETRIES),
    "bandwidth of a bucket": lambda: waiting(160, each=0.01, per_byte=5e-6, first=0.5),
    "too many requests in flight": lambda: waiting(80, each=3.0, sizes=(0.2,)),
    "a bucket asks for fewer requests": lambda: waiting(
        80, each=1.0, retries={"throttled": 80, "cut": 1}, retry_s={"throttled": 200.0, "cut": 0.1}
    ),
    "timeouts of a bucket": lambda: waiting(
        80, each=1.0, retries={"timeout": 8}, retry_s={"timeout": 250.0}
    ),
    "samples in the loop": lambda: diagnosis_of(starved(stages={"decode": 0.04}, workers=0)),
    "samples on their way": lambda: diagnosis_of(starved(stages={"decode": 0.01})),
    "samples of processes on their way": lambda: diagnosis_of(starved(kind="process")),
    "a lock of threads": lambda: diagnosis_of(
        starved(**{**GIL, "stages": {"decode": 0.02, "augment": 0.05}, "workers": 5})
    ),
    "something else in workers": lambda: diagnosis_of(starved(**GIL)),
    "threads of a library": lambda: diagnosis_of(
        starved(**GIL, kind="process", cores=2, process_cpu=0.09)
    ),
    "own transforms": lambda: diagnosis_of(
        starved(stages={"augment": 0.12}, cores=2), config={"data": {"transforms": "a.py:b"}}
    ),
    "small files": lambda: diagnosis_of(
        starved(stages={"read": 0.115}, sample_cpu=0.006, size=20_000)
    ),
    "large files": lambda: diagnosis_of(
        starved(stages={"read": 0.115}, sample_cpu=0.006, size=4_000_000)
    ),
    "helpers": lambda: diagnosis_of(helped(starved(stages={"decode": 0.06}, workers=1, cores=2))),
    "ways to more speed": lambda: diagnosis_of(
        heavy(), config={"data": {"crop": [224, 224], "transforms": "blurs.py:train"}}
    ),
    "helpers do not pay": lambda: diagnosis_of(
        heavy(augment=0.02, wait=2.0), config={"data": {"crop": [1024, 2048]}}
    ),
    "a rank that waits for samples": lambda: diagnosis_of(
        *two({"wait": 1.5}, {"sync": 1.5}, cores=2, stages={"decode": 0.03})
    ),
    "workers without cores": lambda: diagnosis_of(
        starved(
            1.5, stages={"decode": 0.06}, sample_cpu=0.022, sample_cpu_wait=0.04, cores=2, cpu=0.3
        ),
        hosts=(BUSY,),
    ),
    "starved for no known reason": lambda: diagnosis_of(
        replace(starved(), windows=tuple({**w, "workers": {}} for w in starved().windows))
    ),
}
# All other runs.
LOOPS: dict[str, Case] = {
    "gradients": synced(shared=0.15),
    "gradients as fp16": synced(compress="fp16"),
    "gradients of shards": synced(strategy="fsdp"),
    "an idle GPU": on_gpu({"device": 0.2}),
    "idle GPUs of two ranks": on_gpu({}, {}, train={"batch_size": 24}),
    "an idle GPU with CUDA graphs": on_gpu({}, train={"cuda_graph": True}),
    "an idle GPU without faster CUDA graphs": on_gpu({}, train={"cuda_graph": "auto"}),
    "an idle GPU of micro-batches": on_gpu({}, train={"accumulate": 4}),
    "a loop that holds a GPU up": on_gpu({"other": 1.0}),
    "pauses": lambda: diagnosis_of(
        rank_records({"log": 0.3, "eval": 1.1, "checkpoint": 0.4}),
        events=EVENTS,
        config={
            "log": {"every": 3},
            "eval": {"every": "auto"},
            "checkpoint": {"every": "auto", "background": False},
        },
    ),
    "pauses of a short run": lambda: diagnosis_of(
        rank_records({"log": 2.0}),
        events=({**STEPS, "total_steps": 40},),
        config={"log": {"every": 5}},
    ),
    "compiling pays": lambda: compiling(1.0, steps=51),
    "a digest in each step": lambda: diagnosis_of(
        rank_records({"other": 1.0}, other_cpu=0.9), config={"log": {"digest": True}}
    ),
    "swap with a cache": lambda: diagnosis_of(
        rank_records(),
        hosts=(replace(HALF_FULL, swap_bytes_s=3e6),),
        config={"data": {"cache": "ram"}},
    ),
    "threads that cost": lambda: diagnosis_of(
        rank_records(threads=16, cores=2, crowded={"threads": 2, "forward": 2.0, "backward": 5.0})
    ),
    "a rank without cores": lambda: diagnosis_of(
        *two({"forward": 1.4}, {"sync": 1.0}, cpu=1.9, cpu_wait=0.8)
    ),
    "other programs": lambda: diagnosis_of(
        rank_records({"log": 0.3}, cpu_wait=0.6, cores=2, cpu=0.2), hosts=(BUSY,)
    ),
    "no shared memory": lambda: diagnosis_of(
        rank_records(windows=0), events=({"event": "run_end", "error": "no space in /dev/shm"},)
    ),
    "no window": lambda: diagnosis_of(rank_records(windows=0), config=COMPILE),
    "only its start": lambda: diagnosis_of(rank_records({"log": 0.5}, windows=1)),
    "healthy": lambda: diagnosis_of(rank_records()),
}
