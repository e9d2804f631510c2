"""Which of all causes hold a run up, and which one most?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segtrain.diagnose import loop_rules
from segtrain.diagnose.data_rules import STARVED, data_verdicts
from segtrain.diagnose.evidence import Evidence, gather
from segtrain.diagnose.figures import Figures, figures
from segtrain.diagnose.rank_rules import rank_verdicts
from segtrain.diagnose.verdict import HEALTHY, Diagnosis, Verdict

UNKNOWN = "unknown"


def diagnose(run: str | Path) -> Diagnosis:
    """Of a run folder, or of a copy of a SageMaker job's output. Raises DataError where there are no spans."""
    return judge(gather(Path(run)))


def judge(evidence: Evidence) -> Diagnosis:
    found = figures(evidence)
    if found is None:
        failure = loop_rules.failure(evidence)
        if failure is not None:
            return Diagnosis(failure.cause, (failure,))
        return Diagnosis(UNKNOWN, (), {"why": "no window of steps has been written yet"})
    verdicts = _verdicts(found)
    first = verdicts[0].cause if verdicts else _unexplained(found)
    return Diagnosis(first, tuple(verdicts), _facts(found))


def _verdicts(found: Figures) -> list[Verdict]:
    single = (
        lambda figures: loop_rules.failure(figures.evidence),
        loop_rules.memory,
        loop_rules.own_thread,
        loop_rules.copies,
        loop_rules.threads,
    )
    verdicts = [verdict for rule in single if (verdict := rule(found)) is not None]
    verdicts += [*loop_rules.pauses(found), *rank_verdicts(found), *data_verdicts(found)]
    if not verdicts and found.mean("wait") <= STARVED:
        small = loop_rules.small_batch(found)
        verdicts = [small] if small is not None else []
    return sorted(verdicts, key=lambda verdict: -verdict.share)  # stable: of equals the one that explains the others


def _unexplained(found: Figures) -> str:
    return HEALTHY if found.mean("wait") <= STARVED else UNKNOWN


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
        "steady": found.steady,
    }
    samples = found.hungriest.samples
    if samples is not None:
        facts["workers"] = {
            "count": round(samples.workers, 2),
            "kind": samples.kind,
            "sample_ms": round(1000 * samples.wall, 3),
            "cpu_ms": round(1000 * samples.cpu, 3),
            "stages_ms": {stage: round(1000 * s, 3) for stage, s in samples.stages.items()},
            "bytes": round(samples.bytes),
        }
    others = _others(found)
    if others is not None:
        facts["cores_of_others"] = round(others, 2)
    return facts


def _others(found: Figures) -> float | None:
    """Cores that other programs kept busy on the hosts of the run; None without a system profile."""
    if not found.hosts:
        return None
    own = sum(rank.cpu / rank.step for rank in found.ranks)
    own += sum(
        r.samples.cpu * r.samples.made / r.step for r in found.ranks if r.samples and r.samples.kind == "process"
    )
    return max(0.0, sum(host.busy for host in found.hosts) - own)
