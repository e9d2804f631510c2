"""Comparison of a run with a second run that has the proposed fix: the predicted gain against the measured gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from segtrain.errors import DataError
from segtrain.insight.diagnose.differences import EXACT, MORE, OTHER, WORDS, Change, changes, differing, fit
from segtrain.insight.diagnose.evidence import Evidence, gather
from segtrain.insight.diagnose.judge import judge
from segtrain.insight.diagnose.reasons import TimeShare, environments, incomparable, phases, reasons, stages
from segtrain.insight.diagnose.verdict import Diagnosis, Fix, Verdict
from segtrain.insight.runs.folder import settings_of
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.spans import FOLDER

HELD = 0.25  # relative error that a predicted gain may have
MOST_BESIDE = 36  # newest neighboring folders whose settings are read
MOST_SETTINGS = 4  # settings in which a run and its repetition with a fix may differ
MOST_DIAGNOSED = 3
SMALLER = 0.8  # of its share of the time: less is noise between two runs
_RANK = {EXACT: 2, MORE: 1, WORDS: 0, OTHER: 0}


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    run: Path
    found: Diagnosis
    evidence: Evidence
    shown: str  # what a user calls it: the folder, or where it was fetched from

    @property
    def rate(self) -> float:
        """Images/s of all ranks, in steady windows."""
        return float(self.found.facts["images_per_s"])

    @property
    def first(self) -> Verdict | None:
        return self.found.proposed

    @property
    def began(self) -> float:
        times = [begin["ts"] for records in self.evidence.ranks for begin in records.begins if "ts" in begin]
        return float(min(times, default=0.0))


@dataclass(frozen=True)
class Verification:
    before: Side
    after: Side
    swapped: bool  # the user named ``after`` first
    changes: tuple[Change, ...]
    fix: Fix | None  # the choice that the runs are compared with; None where nothing was proposed

    @cached_property
    def fit(self) -> str:
        return fit(self.changes)

    @cached_property
    def apart(self) -> tuple[str, ...]:
        """Why the speeds cannot be compared."""
        return incomparable(self.before.evidence, self.after.evidence, self.changes)

    @property
    def tested(self) -> bool:
        """Whether these runs test the prediction."""
        if self.fit == WORDS and self.before.first is not None:  # only a smaller cause shows that advice was followed
            cause, share = self.before.first.cause, self.before.first.share
            left = max((one.share for one in self.after.found.verdicts if one.cause == cause), default=0.0)
            return not self.apart and left < SMALLER * share
        return not self.apart and self.fit != OTHER

    @cached_property
    def environment(self) -> Mapping[str, tuple[str, str]]:
        return environments(self.before.evidence, self.after.evidence)

    @cached_property
    def phases(self) -> tuple[TimeShare, ...]:
        return phases(self.before.found.facts, self.after.found.facts)

    @cached_property
    def stages(self) -> tuple[TimeShare, ...]:
        return stages(self.before.found.facts, self.after.found.facts)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the prediction did not hold."""
        return reasons(self.changes, self.environment, self.before.found, self.after.found, self.phases, self.stages)

    @property
    def measured(self) -> float:
        return self.after.rate / self.before.rate

    @property
    def predicted(self) -> float | None:
        first = self.before.first
        return first.gain if first and first.gain > 1.005 else None

    @property
    def off(self) -> float | None:
        """Relative error of the prediction: predicted / measured - 1."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    @property
    def held(self) -> bool | None:
        """Whether the prediction held. None if nothing was predicted, or if these runs do not test the prediction."""
        return abs(self.off) <= HELD if self.off is not None and self.tested else None

    def to_dict(self) -> dict[str, Any]:
        before, after = ({"run": of.shown, **of.found.to_dict()} for of in (self.before, self.after))
        return {
            "before": before, "after": after, "swapped": self.swapped, "fit": self.fit,
            "fix": self.fix.to_dict() if self.fix else None,
            "changes": [{**asdict(change), "as_proposed": change.as_proposed} for change in self.changes],
            "environment": {key: list(pair) for key, pair in self.environment.items()}, "not_comparable": self.apart,
            "predicted": self.predicted, "measured": round(self.measured, 4), "off": self.off, "held": self.held,
            "reasons": self.reasons, "phases_ms": [asdict(term) for term in self.phases],
            "stages_ms": [asdict(term) for term in self.stages],
        }  # fmt: skip


def verify(
    run: str | Path, other: str | Path, say: Callable[[str], None] = say_on_stderr, shown: tuple[str, str] = ("", "")
) -> Verification:
    """Compare two run folders, in any order. Raises DataError where one has no spans, or no window yet.

    ``shown``: what to call them instead of their folders.
    """
    if Path(run).resolve() == Path(other).resolve():
        message = f"{run} is compared with itself: name one run without the fix and one with it"
        raise DataError(message, code="same-run", run=str(run))
    return compare(side(Path(run), say, shown[0]), side(Path(other), say, shown[1]))


def side(run: Path, say: Callable[[str], None], shown: str = "") -> Side:
    evidence = gather(run, say)
    found = judge(evidence)
    if "images_per_s" not in found.facts:
        why = found.verdicts[0].evidence if found.verdicts else "let it train for some seconds"
        message = f"{run} has no window of steps yet, so its speed is not known: {why}"
        raise DataError(message, code="no-steps-yet", run=str(run))
    return Side(run, found, evidence, shown or str(run))


def compare(one: Side, other: Side) -> Verification:
    """Compare two runs. The run whose settings fit the fix better is ``after``; if they fit equally, the later run."""
    there, back = (_closest(*pair) for pair in ((one, other), (other, one)))
    ranks = [_RANK[fit(found)] if fix else 0 for fix, found in (there, back)]
    swapped = ranks[1] > ranks[0] or (ranks[1] == ranks[0] and other.began < one.began)
    before, after = (other, one) if swapped else (one, other)
    fix, found = back if swapped else there
    return Verification(before, after, swapped, found, fix)


def _closest(before: Side, after: Side) -> tuple[Fix | None, tuple[Change, ...]]:
    """Which choice of the fix proposed for ``before`` is closest to ``after``, and the changes compared with it."""
    choices = before.first.fix.choices if before.first else ()
    pairs = [(choice, _changes(before, after, choice.settings)) for choice in choices]
    return max(pairs, key=lambda pair: _RANK[fit(pair[1])], default=(None, _changes(before, after, {})))


def _changes(before: Side, after: Side, proposed: Mapping[str, Any]) -> tuple[Change, ...]:
    """The changes between two runs; empty if one of them has no config.yaml, because then they are not known."""
    configs = before.evidence.config, after.evidence.config
    return changes(*configs, proposed) if all(configs) else ()


def earlier_prediction(run: Path) -> str | None:
    """A line about a finished run in a neighboring folder whose proposed fix is exactly what this run changed.

    Never raises: other folders may have torn or foreign files, or no read access.
    """

    def say(text: str) -> None:
        """Drop warnings about files of other runs: they appear when such a run is diagnosed."""

    try:
        mine, here = settings_of(run), side(run, say)
        alike = (folder for folder in _beside(run) if _alike(settings_of(folder), mine))
        for folder in islice(alike, MOST_DIAGNOSED):
            with suppress(DataError):
                found = compare(side(folder, say), here)
                earlier = found.before.run == folder and found.before.began < here.began
                end = [(e.get("event"), e.get("status")) for e in found.before.evidence.events[-1:]]
                if earlier and end == [("run_end", "done")] and found.fit == EXACT and not found.apart:
                    return _prediction(found)
    except Exception:
        pass
    return None


def _beside(run: Path) -> list[Path]:
    """Other run folders with spans, the newest first."""
    run = run.resolve() if run.name in ("", "..") else run
    configs = [file for file in run.parent.glob("*/config.yaml") if file.parent.name != run.name]
    newest = sorted(configs, key=lambda file: -file.stat().st_mtime)[:MOST_BESIDE]
    return [file.parent for file in newest if (file.parent / FOLDER).is_dir()]


def _alike(settings: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    return bool(settings and mine) and 0 < len(differing(settings, mine)) <= MOST_SETTINGS


def _prediction(found: Verification) -> str:
    words, before = " ".join(found.fix.words) if found.fix else "", found.before.shown
    if found.predicted is None:
        return f"proposed by {before}: {words}, no gain predicted; measured {found.measured:.2f}x"
    why = "" if found.held else f" (why: segtrain diagnose {quote(before)} --against {quote(found.after.shown)})"
    return f"predicted by {before}: {found.predicted:.2f}x faster with {words}; measured {found.measured:.2f}x{why}"
