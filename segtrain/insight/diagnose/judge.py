"""The diagnosis of a run: the causes that hold it up, the worst first, and the facts that they rest
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from segtrain.base.terminal import counted
from segtrain.insight.diagnose import loop_rules
from segtrain.insight.diagnose.bucket_rules import failures
from segtrain.insight.diagnose.causes import CAUSES, When
from segtrain.insight.diagnose.cores_rules import usable
from segtrain.insight.diagnose.data_rules import STARVED
from segtrain.insight.diagnose.differences import possible
from segtrain.insight.diagnose.evidence import Evidence, gather
from segtrain.insight.diagnose.remedies import remedy_facts
from segtrain.insight.diagnose.stats import Figures, run_stats
from segtrain.insight.diagnose.verdict import HEALTHY, OTHER_PROGRAMS, Diagnosis, Verdict
from segtrain.insight.diagnose.windows import bucket_reads, by_helpers

UNKNOWN = "unknown"
STEPS, SECONDS = 6, 20.0  # a run that has less of both after its start is too short to judge


def diagnose(run: str | Path, on: str = "") -> Diagnosis:
    """Diagnose a run folder, or a copy of a SageMaker job's output. Raises DataError where there
    are no spans.

    ``on``: the type of its machines, for prices; "" if the run says it. Raises ConfigError if the
    type is unknown.
    """
    return judge(gather(Path(run)), on)


def judge(evidence: Evidence, on: str = "") -> Diagnosis:
    figures = run_stats(evidence)
    if figures is None:
        failure = loop_rules.shm_failure(evidence)
        if failure is not None:
            return Diagnosis(failure.cause, (possible(failure, evidence.config),))
        compiles = (
            ": its first step compiles the model" if evidence.setting("train.compile") else ""
        )
        return Diagnosis(UNKNOWN, (), {"why": f"no window of steps has been written yet{compiles}"})
    short = _too_short(figures)
    verdicts = [
        possible(verdict, evidence.config) for verdict in _verdicts(figures, steady=not short)
    ]
    bound = UNKNOWN if short or figures.starved > STARVED else HEALTHY
    if verdicts:
        return Diagnosis(
            verdicts[0].cause,
            tuple(verdicts),
            _facts(figures) | remedy_facts(figures, verdicts, on),
        )
    return Diagnosis(bound, (), _facts(figures) | ({"why": short} if short else {}))


def _too_short(figures: Figures) -> str:
    """Why the run is too short to show its usual time of a step; "" if it is long enough."""
    steps = min(rank.steps for rank in figures.ranks)
    seconds = max(rank.steps * rank.step for rank in figures.ranks)
    if not figures.steady:
        return "too short to judge: it has only windows of its start"
    if steps < STEPS and seconds < SECONDS:
        return (
            f"too short to judge: only {counted(steps, 'step')} in {seconds:.2g} s follow its start"
        )
    return ""


def _verdicts(figures: Figures, steady: bool) -> list[Verdict]:
    """The verdicts, the worst first. For a run that is not ``steady``, only those of the rules for
    ``always``.
    """
    verdicts = list(chain.from_iterable(_apply("always", figures)))
    if steady:
        verdicts += chain.from_iterable(_apply("steady", figures))
        if figures.starved <= STARVED and all(
            verdict.cause == OTHER_PROGRAMS for verdict in verdicts
        ):
            verdicts += next(filter(None, _apply("last", figures)), [])
    # stable: the first of equals explains the others
    return sorted(verdicts, key=lambda verdict: -verdict.share)


def _apply(when: When, figures: Figures) -> Iterator[list[Verdict]]:
    """The verdicts of each rule with this ``when``. A rule that finds several causes is called
    once.
    """
    for rule in dict.fromkeys(cause.rule for cause in CAUSES.values() if cause.when == when):
        verdicts = rule(figures)
        yield verdicts if isinstance(verdicts, list) else [] if verdicts is None else [verdicts]


def _facts(figures: Figures) -> dict[str, Any]:
    ranks = figures.ranks
    phases = dict.fromkeys(phase for rank in ranks for phase in rank.phases)
    facts: dict[str, Any] = {
        "steps": ranks[0].steps,
        "ranks": len(ranks),
        "hosts": len({rank.host for rank in ranks}),
        "device": ranks[0].device,
        "step_ms": round(1000 * figures.step, 3),
        "images_per_s": round(sum(rank.images for rank in ranks) / figures.step, 2),
        "phases": {phase: round(figures.mean(phase), 4) for phase in phases},
        "cores": usable(figures),
        "own_cores": round(figures.own_cpu, 2),
        "steady": figures.steady,
    }
    samples = figures.most_starved_rank.samples
    if samples is not None:
        facts["workers"] = {
            "count": round(samples.workers, 2),
            "kind": samples.kind,
            "sample_ms": round(1000 * samples.wall, 3),
            "cpu_ms": round(1000 * samples.cpu, 3),
            "stages_ms": {stage: round(1000 * s, 3) for stage, s in samples.stages.items()},
            "bytes": round(samples.bytes),
        }
        if samples.helper_samples:
            facts["workers"]["by_helpers"] = by_helpers(samples.helper_samples, samples.made)
    reads = bucket_reads(window for records in figures.evidence.ranks for window in records.windows)
    if reads is not None:
        facts["bucket"] = {
            "requests": round(reads.requests),
            "seconds": round(reads.seconds, 3),
            "retries": {kind: round(count) for kind, count in reads.retries.items()},
            "retry_s": round(reads.retry_seconds, 3),
            "failures": failures(reads),
            "late": round(reads.late),
        }
    if figures.others is not None:
        facts["cores_of_others"] = round(figures.others, 2)
    return facts
