"""Reasons why a run with the fix is not as fast as predicted: what else differs, and times of its steps and samples."""

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
LAYOUTS = ("data.root", "data.layout", "data.train_split", "data.limit")


@dataclass(frozen=True)
class TimeShare:
    """Milliseconds of a phase of a mean step, or of a stage of a sample."""

    name: str
    before: float
    after: float


def phases(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[TimeShare, ...]:
    """The phases of a step in two runs, the largest change first."""
    was, now = ({name: part * facts["step_ms"] for name, part in facts["phases"].items()} for facts in (before, after))
    terms = [TimeShare(name, was.get(name, 0.0), now.get(name, 0.0)) for name in sorted({**was, **now})]
    terms.sort(key=lambda term: -abs(term.after - term.before))
    return tuple(term for term in terms if max(term.before, term.after) >= 0.01 * max(before["step_ms"], 1e-9))


def stages(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[TimeShare, ...]:
    """The stages of a sample in two runs, in order; empty if a run has no figures about its samples."""
    was, now = (facts.get("workers", {}).get("stages_ms", {}) for facts in (before, after))
    if not was or not now:
        return ()
    names = dict.fromkeys([*was, *now])
    return tuple(TimeShare(name, was.get(name, 0.0), now.get(name, 0.0)) for name in names)


def ms_text(value: float) -> str:
    """Milliseconds with 3 digits, or 4 from 100 ms on; "0" below the precision of the clock."""
    return rounded(value, 4 if value >= 100 else 3) if value >= 0.05 else "0"


def incomparable(before: Evidence, after: Evidence, found: Sequence[Change]) -> tuple[str, ...]:
    """Why the speeds of two runs cannot be compared: another model or another data set."""
    said = [f"another model ({change.text})" for change in found if change.key in MODEL and not change.cure]
    was, now = _images(before), _images(after)
    keys = SCENES if before.setting("data.layout") == after.setting("data.layout") == "scenes" else LAYOUTS
    moved = [change for change in found if change.key in keys and not change.cure]
    if was and now and was != now:
        said.append(f"another data set ({was} before, {now} after)")
    elif moved and (keys is SCENES or not (was and now)):
        said.append(f"another data set ({', '.join(change.text for change in moved)})")
    return tuple(said)


def _images(evidence: Evidence) -> str:
    """The journal's line about the data set. The folder is left out: it may change while the images stay the same."""
    return str(_at_start(evidence, "derived").get("data", "")).partition(": ")[2]


def _at_start(evidence: Evidence, key: str) -> Mapping[str, Any]:
    found = evidence.start.get(key)
    return found if isinstance(found, Mapping) else {}


def environments(before: Evidence, after: Evidence) -> dict[str, tuple[str, str]]:
    """Facts about hosts, ranks, and versions that both runs know and that differ: name -> before, after."""
    was, now = _environment(before), _environment(after)
    return {key: (was[key], now[key]) for key in was if was[key] != now.get(key, was[key])}


def _environment(evidence: Evidence) -> dict[str, str]:
    begins = [records.begins[-1] for records in evidence.ranks if records.begins]
    derived = _at_start(evidence, "derived")
    found: dict[str, Any] = {
        "host": ", ".join(sorted({str(begin.get("host", "")) for begin in begins})),
        "cores of a host": ", ".join(sorted({str(begin["cores"]) for begin in begins if "cores" in begin})),
        "device": ", ".join(sorted({str(begin.get("device", "")).partition(":")[0] for begin in begins})),
        "ranks": str(max((begin.get("world_size", 1) for begin in begins), default="")),
        "segtrain": evidence.start.get("version"),
        **_at_start(evidence, "versions"),
        "decoder": derived.get("decoder"),
        "numbers": derived.get("numbers"),
    }
    return {str(key): str(value) for key, value in found.items() if value not in (None, "")}


def reasons(
    found: Sequence[Change],
    environment: Mapping[str, tuple[str, str]],
    before: Diagnosis,
    after: Diagnosis,
    phases: Sequence[TimeShare],
    stages: Sequence[TimeShare],
) -> tuple[str, ...]:
    """Sentences: first what was changed by hand, then what the hosts did, then what the figures show."""
    others = [change.text for change in found if not change.cure]
    said = [f"other settings differ as well: {', '.join(others)}"] if others else []
    said += [f"{key} differs: {was} before, {now} after" for key, (was, now) in environment.items()]
    said += _crowds(before, after)
    said += short_runs(before, after) + _terms(phases) + _stages(stages)
    if after.verdicts:
        cause = "the cause is still there" if after.bound == before.bound else "what now holds the run up"
        said.append(f"{cause}: {after.verdicts[0].evidence}")
    return tuple(said)


def short_runs(before: Diagnosis, after: Diagnosis) -> list[str]:
    short = [word for word, of in (("before", before), ("after", after)) if not of.facts["steady"]]
    return [f"the run {word} is so short that these figures include its start" for word in short]


def _crowds(before: Diagnosis, after: Diagnosis) -> list[str]:
    was, now = (of.facts.get("cores_of_others") for of in (before, after))
    if was is None or now is None or max(was, now) <= CROWD:  # None: a run without a system profile
        return []
    return [f"other programs kept {was:.1f} cores busy before and {now:.1f} after"]


def _terms(phases: Sequence[TimeShare]) -> list[str]:
    """The phases that changed, the most first."""
    step = sum(term.before for term in phases)
    return [
        f"'{term.name}' took {ms_text(term.before)} ms of a step and now takes {ms_text(term.after)} ms"
        for term in phases
        if abs(term.after - term.before) > MOVED * step
    ]


def _stages(stages: Sequence[TimeShare]) -> list[str]:
    """A sentence if samples became more expensive: the prediction assumes that a fix does not make them so."""
    was, now = sum(term.before for term in stages), sum(term.after for term in stages)
    if not was or now < DEARER * was:
        return []
    worst = max(stages, key=lambda term: term.after - term.before)
    return [
        f"a sample took {ms_text(was)} ms and now takes {ms_text(now)} ms, "
        f"mostly '{worst.name}' ({ms_text(worst.before)} -> {ms_text(worst.after)} ms)"
    ]
