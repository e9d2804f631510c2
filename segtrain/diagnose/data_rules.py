"""Rules for a loop that waits for its samples: the one cause that bounds making them, from the cost of a sample and its
workers.
"""

from __future__ import annotations

from dataclasses import replace

from segtrain.diagnose.evidence import Evidence
from segtrain.diagnose.fix import Fix
from segtrain.diagnose.model import Stages, idle, stages_of, workers_needed
from segtrain.diagnose.rank_rules import behind
from segtrain.diagnose.stats import Figures, Rank, Samples
from segtrain.diagnose.verdict import Verdict

STARVED = 0.10  # share of the time in which the loop may wait
MOSTLY = 0.5
IDLE = 0.75  # of a sample's time: no crowd on the cores explains that much
SLACK = 0.6  # of the workers' time: below it they are not what the loop waits for
HELPED = 1.3  # times as much as its own thread that a worker may compute
WORTH = 1.2  # gain from which on more workers are the fix
MOST_WAITING = 64  # workers of a rank that only wait
FITS = "if the decoded images fit into memory"
STREAM = 20e6  # bytes a second that any storage gives to one reader


def data_verdicts(figures: Figures) -> list[Verdict]:
    """At most two, of which the first one bounds.

    None where the loop does not wait, or nothing is known of its samples.
    """
    rank = figures.most_starved_rank
    if figures.starved <= STARVED or rank.samples is None:
        return []
    now, samples, wait = stages_of(figures, rank), rank.samples, _lost(figures)
    if not samples.workers:
        return [_in_the_loop(now, rank, wait)]
    busy = samples.made * samples.wall / (samples.workers * rank.step)
    if busy < SLACK:
        return [_on_the_way(rank, wait, busy)]
    waiting = idle(rank, figures.crowded) / samples.wall
    if _has_own_threads(rank, samples):
        return [_own_threads(rank, wait), _stage(figures, now, rank, wait)]
    if samples.largest == "read" and samples.stages["read"] > MOSTLY * samples.wall:
        return [_storage(now, rank, wait)]
    if waiting > IDLE:
        return [_stage_that_waits(now, rank, wait, waiting)]
    stage = _stage(figures, now, rank, wait)
    # Without other programs: cores that these use do not mean that there are enough workers.
    own = stages_of(figures, rank, others=False)
    if samples.workers < int(rank.cores) and _too_few(own, rank, wait).gain > WORTH:
        return [_too_few(now, rank, wait), stage]
    return [stage]


def _lost(figures: Figures) -> float:
    """Share of the time that is lost.

    Where the samples of one rank are late, that rank is the main cause, and less is theirs.
    """
    cpu_wait = behind(figures)
    return figures.mean("wait") if cpu_wait is not None and cpu_wait.phase == "wait" else figures.starved


def _gain(rank: Rank, cured: Stages) -> float:
    return max(1.0, rank.step / max(cured.step, 1e-9))


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _costs(samples: Samples) -> str:
    parts = [f"{stage} {_ms(s)}" for stage, s in samples.stages.items() if s > 0.005 * samples.wall]
    return f"a sample takes {_ms(samples.wall)} ({', '.join(parts)}; {_ms(samples.cpu)} of CPU)"


def _workers(samples: Samples) -> str:
    many = {"thread": "threads", "process": "processes"}.get(samples.kind, samples.kind)
    return f"{samples.workers:.3g} {samples.kind if round(samples.workers) == 1 else many}"


def _in_the_loop(now: Stages, rank: Rank, wait: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    enough = workers_needed(replace(now, workers=1), max(1, int(rank.cores)))
    return Verdict(
        "main-thread",
        wait,
        f"samples are made in the loop (data.workers=0), {wait:.0%} of the time: {_costs(samples)}",
        Fix({"data.workers": enough}),
        _gain(rank, replace(now, workers=enough)),
        "high",
    )


def _on_the_way(rank: Rank, wait: float, busy: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    shared = samples.kind == "process"
    return Verdict(
        "shm" if shared else "main-thread",
        wait,
        f"the loop waits {wait:.0%} of the time, but its {_workers(samples)} work only {busy:.0%} of theirs: "
        "samples are late on their " + ("way through shared memory" if shared else "way to the loop"),
        Fix({"data.worker_kind": "thread"} if shared else {"data.prefetch": 16}),
        1 / (1 - wait),
        "low",
    )


def _storage(now: Stages, rank: Rank, wait: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    read, rate = samples.stages["read"], samples.bytes / samples.stages["read"]
    grows, sure = samples.by_size, "high"
    if grows is None:  # All reads are of one size: assume the rate of slow storage.
        grows, sure = min(1.0, samples.bytes / STREAM / read), "low"
    total = samples.bytes * samples.made / rank.step
    if grows > MOSTLY:
        kept = replace(now, wall=now.wall - read)
        return Verdict(
            "storage-bandwidth",
            wait,
            f"reading takes {_ms(read)} of the {_ms(samples.wall)} of a sample, and {grows:.0%} of that grows "
            "with its size: "
            f"storage gives only {total / 1e6:.3g} MB/s ({samples.bytes / 1e3:.3g} kB per sample)",
            Fix(
                {"data.cache": "ram"},
                FITS,
                (Fix(advice="make the files smaller and move them closer: segtrain data pack"),),
            ),
            _gain(rank, kept),
            sure,
        )
    enough = workers_needed(now, MOST_WAITING)
    return Verdict(
        "storage-latency",
        wait,
        f"reading takes {_ms(read)} of the {_ms(samples.wall)} of a sample, whatever its size "
        f"({samples.bytes / 1e3:.3g} kB at "
        f"{rate / 1e6:.3g} MB/s): {_workers(samples)} wait for storage to answer",
        Fix({"data.workers": enough}),
        _gain(rank, replace(now, workers=enough)),
        sure,
    )


def _named(samples: Samples) -> str:
    rest = {stage: s for stage, s in samples.stages.items() if stage != "read"}
    largest = max(rest, key=lambda stage: rest[stage])
    if largest == "assemble":
        return "shm" if samples.kind == "process" else "main-thread"
    return {"decode": "decode", "augment": "augmentation"}[largest]


def _stage_that_waits(now: Stages, rank: Rank, wait: float, waiting: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    enough = workers_needed(now, MOST_WAITING)
    if samples.kind == "thread" and samples.workers >= 2 and samples.workers * samples.cpu / samples.wall > 0.7:
        # The threads together have about one core.
        fix, then = Fix({"data.worker_kind": "process"}), replace(now, wall=samples.cpu)
        why = "threads wait for each other (Python's GIL)"
    else:
        fix, then, why = Fix({"data.workers": enough}), replace(now, workers=enough), "it waits for something"
    return Verdict(
        _named(samples),
        wait,
        f"{_costs(samples)}; for {waiting:.0%} of that time it uses no core: {why}",
        fix,
        _gain(rank, then),
        "medium",
    )


def _too_few(now: Stages, rank: Rank, wait: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    enough = max(int(samples.workers) + 1, workers_needed(now, max(1, int(rank.cores))))
    return Verdict(
        "too-few-workers",
        wait,
        f"{_workers(samples)} work all the time and use, with the loop, "
        f"{samples.workers + rank.computed / rank.step:.2g} of {rank.cores:.3g} "
        f"cores: {_costs(samples)}",
        Fix({"data.workers": enough}),
        _gain(rank, replace(now, workers=enough)),
        "high",
    )


def _has_own_threads(rank: Rank, samples: Samples) -> bool:
    """Whether workers have threads of their own, and these and the workers of all ranks of the host are more than its
    cores.
    """
    all_of_host = samples.workers * samples.threads * rank.ranks_here
    return samples.threads > HELPED and all_of_host > rank.host_cores


def _own_threads(rank: Rank, wait: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    return Verdict(
        "too-many-threads",
        wait,
        f"each worker computes {samples.threads:.2g} times as much as its own thread does: a library in the "
        "transforms starts threads "
        f"of its own, and {_workers(samples)} of each rank share {rank.cores:.3g} cores with the loop",
        Fix(advice="use one thread in each worker: OMP_NUM_THREADS=1, and cv2.setNumThreads(1) in the transforms"),
        1.0,
        "medium",
    )


def _stage(figures: Figures, now: Stages, rank: Rank, wait: float) -> Verdict:
    samples = rank.samples
    assert samples is not None
    cause = _named(samples)
    part = samples.stages["augment" if cause == "augmentation" else cause if cause == "decode" else "assemble"]
    left = max(0.0, 1 - part / samples.wall)
    return Verdict(
        cause,
        wait * part / samples.wall,
        f"{_costs(samples)}; {_workers(samples)} and the loop have {rank.cores:.3g} cores",
        _cheaper(cause, figures.evidence),
        _gain(rank, replace(now, wall=now.wall * left, cpu=now.cpu * left)),
        "medium",
    )


def _cheaper(cause: str, evidence: Evidence) -> Fix:
    """Ways to make a stage cost less."""
    if cause == "decode":
        packed = Fix(advice="smaller files with restart markers: segtrain data pack")
        cached = evidence.setting("data.cache", "off") == "ram" or evidence.setting("data.worker_kind") == "process"
        return packed if cached else Fix({"data.cache": "ram"}, FITS, (packed,))
    if cause == "augmentation":
        if evidence.setting("data.transforms"):
            return Fix(advice="cheaper data.transforms")
        return Fix({"data.color_jitter_prob": 0.5, "data.rotate": 0}, "fewer changes of color, no rotation")
    if cause == "shm":
        return Fix({"data.worker_kind": "thread"})
    return Fix({"data.worker_kind": "process"}, "putting samples into their batch needs a core of its own")
