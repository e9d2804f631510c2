"""Which of all causes hold a run up, and which one most?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from segtrain.diagnose import loop_rules
from segtrain.diagnose.compile_rule import compiling
from segtrain.diagnose.cores_rules import other_programs, too_few_cores, usable
from segtrain.diagnose.data_rules import STARVED, data_verdicts
from segtrain.diagnose.differences import equal
from segtrain.diagnose.evidence import Evidence, gather
from segtrain.diagnose.rank_rules import rank_verdicts
from segtrain.diagnose.stats import Figures, run_stats
from segtrain.diagnose.verdict import HEALTHY, Diagnosis, Verdict

UNKNOWN = "unknown"
STEPS, SECONDS = 6, 20.0  # with fewer of both after its start a run is too short to judge


def diagnose(run: str | Path) -> Diagnosis:
    """Of a run folder, or of a copy of a SageMaker job's output. Raises DataError where there are no spans."""
    return judge(gather(Path(run)))


def judge(evidence: Evidence) -> Diagnosis:
    found = run_stats(evidence)
    if found is None:
        failure = loop_rules.failure(evidence)
        if failure is not None:
            return Diagnosis(failure.cause, (failure,))
        compiles = ": its first step compiles the network" if evidence.setting("train.compile") else ""
        return Diagnosis(UNKNOWN, (), {"why": f"no window of steps has been written yet{compiles}"})
    short = _too_short(found)
    verdicts = [_possible(verdict, evidence) for verdict in _verdicts(found, steady=not short)]
    first = verdicts[0].cause if verdicts else UNKNOWN if short else _unexplained(found)
    return Diagnosis(first, tuple(verdicts), _facts(found) | ({"why": short} if short and not verdicts else {}))


def _too_short(found: Figures) -> str:
    """Why nothing can be said of the usual step, or nothing."""
    steps, seconds = min(rank.steps for rank in found.ranks), max(rank.steps * rank.step for rank in found.ranks)
    if not found.steady:
        return "too short to judge: its start is all that there is"
    if steps < STEPS and seconds < SECONDS:
        return f"too short to judge: {steps} step{'s' * (steps > 1)} in {seconds:.2g} s are all that there is after its start"
    return ""


def _verdicts(found: Figures, steady: bool) -> list[Verdict]:
    """Worst first. Where no window is ``steady``: only what does not rest on the usual step."""
    whole = (loop_rules.failure(found.evidence), compiling(found.evidence), loop_rules.memory(found))
    verdicts = [verdict for verdict in whole if verdict is not None]
    if steady:
        others = other_programs(found)
        single = (loop_rules.own_thread(found), loop_rules.copies(found), loop_rules.threads(found), others)
        verdicts += [verdict for verdict in single if verdict is not None]
        verdicts += loop_rules.pauses(found, lost=others.share if others else 0.0)
        verdicts += [*rank_verdicts(found), *data_verdicts(found)]
        if found.starved <= STARVED and all(verdict.cause == "other-programs" for verdict in verdicts):
            left = (too_few_cores(found) if not verdicts else None) or loop_rules.small_batch(found)
            verdicts += [left] if left is not None else []
    return sorted(verdicts, key=lambda verdict: -verdict.share)  # stable: of equals the one that explains the others


def _possible(verdict: Verdict, evidence: Evidence) -> Verdict:
    """Settings that are so already are no fix."""

    def same(key: str, value: Any) -> bool:
        now = evidence.setting(key)
        return now is not None and equal(now, value)

    fix = verdict.fix.without(same)
    return verdict if fix == verdict.fix else replace(verdict, fix=fix, gain=verdict.gain if fix.settings else 1.0)


def _unexplained(found: Figures) -> str:
    return HEALTHY if found.starved <= STARVED else UNKNOWN


def _facts(found: Figures) -> dict[str, Any]:
    ranks = found.ranks
    phases = dict.fromkeys(phase for rank in ranks for phase in rank.phases)
    facts: dict[str, Any] = {
        "steps": ranks[0].steps,
        "ranks": len(ranks),
        "hosts": len({rank.host for rank in ranks}),
        "device": ranks[0].device,
        "step_ms": round(1000 * found.step, 3),
        "images_per_s": round(sum(rank.images for rank in ranks) / found.step, 2),
        "phases": {phase: round(found.mean(phase), 4) for phase in phases},
        "cores": usable(found),
        "own_cores": round(found.own_cpu, 2),
        "steady": found.steady,
    }
    samples = found.most_starved_rank.samples
    if samples is not None:
        facts["workers"] = {
            "count": round(samples.workers, 2),
            "kind": samples.kind,
            "sample_ms": round(1000 * samples.wall, 3),
            "cpu_ms": round(1000 * samples.cpu, 3),
            "stages_ms": {stage: round(1000 * s, 3) for stage, s in samples.stages.items()},
            "bytes": round(samples.bytes),
        }
    if found.others is not None:
        facts["cores_of_others"] = round(found.others, 2)
    return facts
