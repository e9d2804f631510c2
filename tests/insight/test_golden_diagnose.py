"""Recorded diagnoses: runs with each planted cause, and where each rule begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import pytest
from planted import (
    BUSY,
    GIL,
    HALF_FULL,
    LOOPS,
    PLANTED,
    SAMPLES,
    STEPS,
    Case,
    compiling,
    helped,
    on_gpu,
    waiting,
)
from records import diagnosis_of, rank_records, starved, two, uneven

from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.judge import judge
from segtrain.insight.diagnose.model import stages_of
from segtrain.insight.diagnose.stats import run_stats
from segtrain.insight.diagnose.verdict import Diagnosis
from segtrain.insight.diagnose.words import page
from segtrain.observe.spans import Records


def quick(records: Records) -> Records:
    """With a device that needs a tenth of the time, so that something else limits a fixed run."""
    windows = [
        {
            **w,
            "phases": {**w["phases"], "forward": 0.04, "backward": 0.05},
            "cpu_s": w["cpu_s"] / 10,
        }
        for w in records.windows
    ]
    return replace(records, windows=tuple(windows))


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Diagnosis]]:
    """Diagnoses of runs whose windows differ. ``change``: of the records of each rank."""

    def judged(change: Callable[[Records], Records], runs: dict[str, Case]) -> dict[str, Diagnosis]:
        def changed(evidence: Evidence) -> Diagnosis:
            return judge(replace(evidence, ranks=tuple(map(change, evidence.ranks))))

        monkeypatch.setitem(diagnosis_of.__globals__, "judge", changed)
        return {name: case() for name, case in runs.items()}

    return judged


def numbers(name: str, found: Diagnosis) -> str:
    verdicts = [f"{v.cause} {v.share:.5g} {v.gain:.5g} ({v.confidence})" for v in found.verdicts]
    return f"--- {name}: {', '.join(verdicts)}"


def told(name: str, found: Diagnosis) -> str:
    return f"{numbers(name, found)}\n{page(Path('run'), found)}"


def edge(title: str, result: Callable[[float], Any], low: float, high: float) -> str:
    """Where the result changes between two values."""
    first, last = result(low), result(high)
    assert first != last, (title, first)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if result(middle) == first else (low, middle)
    return f"{title:52} {first} | {low:.5g} | {last}"


Judged = Callable[..., dict[str, Diagnosis]]


def test_causes(cases):
    """Each planted cause is the first that is found."""
    found = cases(uneven, PLANTED)
    assert {name: diagnosis.bound for name, diagnosis in found.items()} == {n: n for n in PLANTED}
    golden.check("insight/diagnose-causes.txt", "\n".join(map(told, found, found.values())))
    for name, runs in (("samples", SAMPLES), ("loops", LOOPS)):
        found = cases(uneven, runs)
        text = "\n".join(map(told, found, found.values()))
        golden.check(f"insight/diagnose-{name}.txt", text)
    found = cases(lambda records: uneven(quick(records)), {**PLANTED, **SAMPLES, **LOOPS})
    golden.check("insight/diagnose-quick.txt", "\n".join(map(numbers, found, found.values())))


def test_figures(cases):
    names = ["pauses", "helpers", "gradients", "shards in a bucket", "workers without cores"]
    texts = []
    for name, found in cases(uneven, {name: {**SAMPLES, **LOOPS}[name] for name in names}).items():
        texts.append(f"--- {name}\n{golden.data(found.facts)}")
    three = [
        rank_records(
            {"sync": 0.3 * rank, "gradient_sync": 0.2, "other": 0.1},
            rank=rank,
            world=3,
            images=8 + rank,
            cpu_wait=0.1 + 0.2 * rank,
            other_cpu=0.05,
            other_cpu_wait=0.03,
            shared=0.4,
            crowded={"threads": 2},
        )
        for rank in range(3)
    ]
    for ranks in ([helped(starved(kind="process", process_cpu=0.02))], three):
        figures = run_stats(Evidence(tuple(map(uneven, ranks)), hosts=(BUSY,)))
        assert figures is not None
        texts.append(
            f"--- figures of {len(ranks)} ranks: {figures.wait:.5g} {figures.cpu_wait:.5g}"
        )
        of_both = [stages_of(figures, figures.ranks[-1], others) for others in (True, False)]
        texts.append(golden.data([*figures.ranks[-2:], *of_both]))
    golden.check("insight/diagnose-figures.txt", "\n".join(texts))


def test_thresholds():
    """Where each rule begins."""

    def causes(*ranks: Records, **more: Any) -> str:
        found = diagnosis_of(*ranks, **more)
        return " ".join(verdict.cause for verdict in found.verdicts) or found.bound

    def fixes(*ranks: Records, **more: Any) -> str:
        return diagnosis_of(*ranks, **more).verdicts[0].fix.texts[:40]

    def slower(least: float) -> tuple[Records, ...]:
        """Ranks of which the first is much slower, but for one window."""
        first, once, *others = rank_records({"forward": 1.4}, world=2).windows
        once = {**once, "phases": {**once["phases"], "forward": 0.4 + least}}
        late = replace(rank_records(world=2), windows=(first, once, *others))
        return late, rank_records(rank=1, world=2)

    def few(steps: float) -> Records:
        first, last = rank_records({"log": 1.0}, windows=2).windows
        last = {**last, "last": last["first"] + round(steps) - 1}
        return replace(rank_records(), windows=(first, last))

    gpu: dict[str, Any] = {"device": "cuda:0"}
    crowd = {"threads": 2, "backward": 1.0}
    short = {"events": ({**STEPS, "total_steps": 40},), "config": {"log": {"every": 5}}}
    lines = [
        edge(phase, lambda x, phase=phase: causes(rank_records({phase: x})), 0.0, 0.5)
        for phase in ("other", "log", "checkpoint", "eval")
    ]
    lines += [
        edge("wait", lambda x: causes(rank_records({"wait": x}, stages={"decode": x})), 0, 0.5),
        edge("log, no rarer", lambda x: causes(rank_records({"log": x}), **short), 0, 0.5),
        edge("other: work", lambda x: causes(rank_records({"other": 1.0}, other_cpu=x)), 0, 1),
        edge("device", lambda x: causes(rank_records({"device": x}, **gpu)), 0, 0.5),
        edge("small batch: update", lambda x: causes(rank_records({"update": x}, images=1)), 0, 1),
        edge(
            "small batch: images",
            lambda x: causes(rank_records({"update": 1.0}, images=round(x))),
            1,
            9,
        ),
        edge(
            "small batch: use of the GPU",
            lambda x: on_gpu({}, hosts=(replace(HALF_FULL, gpu=x),))().bound,
            0,
            1,
        ),
        edge("threads", lambda x: causes(rank_records(threads=x, cores=16)), 8, 40),
        edge(
            "threads: cost",
            lambda x: causes(rank_records(threads=16, cores=2, crowded={**crowd, "forward": x})),
            1,
            3,
        ),
        edge(
            "swap",
            lambda x: causes(rank_records(), hosts=(replace(HALF_FULL, swap_bytes_s=x),)),
            0,
            1e7,
        ),
        edge(
            "log: steps of a run",
            lambda x: fixes(
                rank_records({"log": 1.0}), events=({**STEPS, "total_steps": round(x)},)
            ),
            100,
            160,
        ),
        edge("compiling", lambda x: compiling(x, 400).bound, 1, 100),
        edge("compiling: a slow step", lambda x: compiling(x, 11).bound, 0.01, 1),
        edge(
            "compiling pays",
            lambda x: compiling(x, 51).verdicts[0].fix.texts[:20],
            1,
            100,
        ),
        edge(
            "faults of a bucket",
            lambda x: waiting(80, each=1.0, retries={"cut": 9}, retry_s={"cut": x}).bound,
            1,
            200,
        ),
        edge(
            "bandwidth of a bucket",
            lambda x: waiting(160, each=1.0, per_byte=x, first=1.0).bound,
            0,
            1e-4,
        ),
        edge(
            "requests in flight",
            lambda x: waiting(80, each=3.0, sizes=(0.2,), first=x).bound,
            0.01,
            3,
        ),
        edge(
            "requests per sample",
            lambda x: waiting(round(x), each=3.0, first=2.9).verdicts[0].fix.texts[:30],
            80,
            160,
        ),
        edge(
            "reading from a bucket",
            lambda x: (
                waiting(80, each=3.0, first=2.9, ahead={"threads": round(x), "most_threads": 90})
                .verdicts[0]
                .confidence
            ),
            1,
            100,
        ),
        edge("a slow rank in a window", lambda x: causes(*slower(x)), 0, 1),
        edge("steps", lambda x: causes(few(x)), 1, 10),
        edge("a slow rank", lambda x: causes(*two({"forward": 0.4 + x}, {})), 0, 1),
        edge(
            "a slow rank: no core",
            lambda x: fixes(*two({"forward": 1.4}, {"sync": 1.0}, cpu=1.9, cpu_wait=x)),
            0,
            1,
        ),
        edge(
            "a slow rank: busy workers",
            lambda x: causes(*two({"wait": 1.5}, {"sync": 1.5}, cores=2, stages={"decode": x})),
            0.03,
            0.2,
        ),
        edge(
            "gradients",
            lambda x: causes(*two({"gradient_sync": x}, {"gradient_sync": x}, gradient=9)),
            0,
            1,
        ),
        edge(
            "other programs",
            lambda x: causes(rank_records(cpu_wait=x, cores=2), hosts=(BUSY,)),
            0,
            1,
        ),
        edge(
            "other programs: cores",
            lambda x: causes(rank_records(cpu_wait=0.5, cores=2), hosts=(replace(BUSY, busy=x),)),
            0.1,
            3,
        ),
        edge("own threads", lambda x: causes(rank_records(cpu_wait=x, cores=2)), 0, 1),
        edge(
            "samples: reading",
            lambda x: causes(
                starved(stages={"decode": 0.05, "read": x}, workers=1, kind="process")
            ),
            0.01,
            0.2,
        ),
        edge(
            "samples: no core",
            lambda x: (
                causes(starved(**{**GIL, "sample_cpu": x}, cores=2))
                + fixes(starved(**{**GIL, "sample_cpu": x}, cores=2))
            ),
            0.01,
            0.12,
        ),
        edge(
            "samples: busy workers",
            lambda x: causes(starved(stages={"decode": x}, cores=2)),
            0.01,
            0.2,
        ),
        edge(
            "samples: threads",
            lambda x: causes(starved(**GIL, kind="process", cores=2, process_cpu=x)),
            0.02,
            0.09,
        ),
        edge(
            "samples: more workers",
            lambda x: causes(starved(x, stages={"decode": 0.06}, workers=1)),
            0.13,
            4,
        ),
        edge(
            "samples: size of a file",
            lambda x: causes(starved(stages={"read": 0.115}, sample_cpu=0.006, size=round(x))),
            1e4,
            1e7,
        ),
        edge(
            "samples: many workers",
            lambda x: fixes(starved(9.0, stages={"read": x}, sample_cpu=0.006, workers=1)),
            0.74,
            0.8,
        ),
    ]
    golden.check("insight/diagnose-thresholds.txt", "\n".join(lines))
