"""Reasons why a run with the fix is not as fast as predicted: what else differs, and times of its
steps and samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from segtrain.base.units import rounded
from segtrain.insight.diagnose.cores_rules import CROWD
from segtrain.insight.diagnose.differences import Change
from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.verdict import Diagnosis

MOVED = 0.10  # a phase is a reason if it changed by more than this share of a step
DEARER = 1.25  # samples are a reason if they take at least this many times as long as before
MODEL = ("model.arch", "model.encoder", "model.options")
SCENES = ("data.scenes", "data.scene_size", "data.layout", "data.limit")
FILES = ("data.root", "data.layout", "data.train_split", "data.limit")


@dataclass(frozen=True)
class TimeShare:
    """Milliseconds of a phase of a mean step, or of a stage of a sample."""

    name: str
    before: float
    after: float


def _times(before: Mapping[str, float], after: Mapping[str, float]) -> list[TimeShare]:
    return [
        TimeShare(name, before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}
    ]


def phases(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[TimeShare, ...]:
    """The phases of a step in two runs, the largest change first."""
    was, now = (
        {name: part * facts["step_ms"] for name, part in facts["phases"].items()}
        for facts in (before, after)
    )
    terms = sorted(
        _times(was, now), key=lambda term: (-round(abs(term.after - term.before), 2), term.name)
    )
    return tuple(
        term
        for term in terms
        if max(term.before, term.after) >= 0.01 * max(before["step_ms"], 1e-9)
    )


def stages(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[TimeShare, ...]:
    """The stages of a sample in two runs, in order; empty if a run has no figures about its
    samples.
    """
    was, now = (facts.get("workers", {}).get("stages_ms", {}) for facts in (before, after))
    return tuple(_times(was, now)) if was and now else ()


def ms_text(value: float) -> str:
    """Milliseconds with 3 digits, or 4 from 100 ms on; "0" below the precision of the clock."""
    return rounded(value, 4 if value >= 100 else 3) if value >= 0.05 else "0"


def incomparable(before: Evidence, after: Evidence, changes: Sequence[Change]) -> tuple[str, ...]:
    """Why the speeds of two runs cannot be compared: another model or another data set."""
    texts = [
        f"another model ({change.text})"
        for change in changes
        if change.key in MODEL and not change.cure
    ]
    was, now = _images(before), _images(after)
    scenes = before.setting("data.layout") == after.setting("data.layout") == "scenes"
    moved = [
        change.text
        for change in changes
        if change.key in (SCENES if scenes else FILES) and not change.cure
    ]
    if was and now and was != now:
        texts.append(f"another data set ({was} before, {now} after)")
    elif moved and (scenes or not (was and now)):
        texts.append(f"another data set ({', '.join(moved)})")
    return tuple(texts)


def _images(evidence: Evidence) -> str:
    """The journal's line about the data set. The folder is left out: it may change while the images
    stay the same.
    """
    return str(evidence.start.get("derived", {}).get("data", "")).partition(": ")[2]


def environments(before: Evidence, after: Evidence) -> dict[str, tuple[str, str]]:
    """Facts about hosts, ranks, and versions that both runs know and that differ: name -> before,
    after.
    """
    was, now = _environment(before), _environment(after)
    return {key: (was[key], now[key]) for key in was if was[key] != now.get(key, was[key])}


def _environment(evidence: Evidence) -> dict[str, str]:
    begins = [records.begins[-1] for records in evidence.ranks if records.begins]
    derived = evidence.start.get("derived", {})

    def across_ranks(key: str) -> str:
        return ", ".join(
            sorted({str(begin[key]).partition(":")[0] for begin in begins if key in begin})
        )

    facts: dict[str, Any] = {
        "host": across_ranks("host"),
        "cores of a host": across_ranks("cores"),
        "device": across_ranks("device"),
        "ranks": max((begin.get("world_size", 1) for begin in begins), default=""),
        "segtrain": evidence.start.get("version"),
        **evidence.start.get("versions", {}),
        "decoder": derived.get("decoder"),
        "numbers": derived.get("numbers"),
    }
    return {str(key): str(value) for key, value in facts.items() if value not in (None, "")}


def differs(environment: Mapping[str, tuple[str, str]]) -> list[str]:
    return [f"{key}: {was} before, {now} after" for key, (was, now) in environment.items()]


def reasons(
    changes: Sequence[Change],
    environment: Mapping[str, tuple[str, str]],
    before: Diagnosis,
    after: Diagnosis,
    phases: Sequence[TimeShare],
    stages: Sequence[TimeShare],
) -> tuple[str, ...]:
    """Sentences: first what was changed by hand, then what the hosts did, then what the figures
    show.
    """
    others = [change.text for change in changes if not change.cure]
    texts = [f"other settings differ as well: {', '.join(others)}"] if others else []
    texts += differs(environment)
    was, now = (run.facts.get("cores_of_others") for run in (before, after))
    if was is not None and now is not None and max(was, now) > CROWD:
        texts.append(f"other programs kept {was:.1f} cores busy before and {now:.1f} after")
    texts += short_runs(before, after)
    step = sum(term.before for term in phases)
    texts += [
        (
            f"'{term.name}' took {ms_text(term.before)} ms of a step and now takes "
            f"{ms_text(term.after)} ms"
        )
        for term in phases
        if abs(term.after - term.before) > MOVED * step
    ]
    # The prediction assumes that a fix does not make samples more expensive.
    cost, dearer = (sum(getattr(term, side) for term in stages) for side in ("before", "after"))
    if cost and dearer >= DEARER * cost:
        worst = max(stages, key=lambda term: term.after - term.before)
        texts.append(
            f"a sample took {ms_text(cost)} ms and now takes {ms_text(dearer)} ms, "
            f"mostly '{worst.name}' ({ms_text(worst.before)} -> {ms_text(worst.after)} ms)"
        )
    if after.verdicts:
        cause = (
            "the cause is still there"
            if after.bound == before.bound
            else "what now holds the run up"
        )
        texts.append(f"{cause}: {after.verdicts[0].evidence}")
    return tuple(texts)


def short_runs(before: Diagnosis, after: Diagnosis) -> list[str]:
    short = [
        word for word, run in (("before", before), ("after", after)) if not run.facts["steady"]
    ]
    return [f"the run {word} is so short that these figures include its start" for word in short]
