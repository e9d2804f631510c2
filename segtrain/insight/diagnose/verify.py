"""Comparison of a run with a second run that has the proposed fix: the predicted gain against the
measured gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

from segtrain.errors import DataError
from segtrain.insight.diagnose.differences import (
    EXACT,
    MORE,
    OTHER,
    WORDS,
    Change,
    changes,
    differing,
    fit,
)
from segtrain.insight.diagnose.evidence import Evidence, evidence_of
from segtrain.insight.diagnose.judge import judge
from segtrain.insight.diagnose.reasons import (
    TimeShare,
    environments,
    incomparable,
    phases,
    reasons,
    stages,
)
from segtrain.insight.diagnose.verdict import Diagnosis, Fix, Settings, Verdict
from segtrain.insight.runs.folder import RunFolder, read_folder, settings_of, silent
from segtrain.observe.journal import Say, say_on_stderr
from segtrain.observe.spans import FOLDER

HELD = 0.25  # relative error that a predicted gain may have
MOST_BESIDE = 36  # newest neighboring folders whose settings are read
MOST_SETTINGS = 4  # settings in which a run and its repetition with a fix may differ
MOST_DIAGNOSED = 3
SMALLER = 0.8  # of its share of the time: less is noise between two runs
_RANK = {EXACT: 2, MORE: 1, WORDS: 0, OTHER: 0}


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs. ``shown``: what a user calls it: the folder, or where it was fetched
    from.
    """

    run: Path
    diagnosis: Diagnosis
    evidence: Evidence
    shown: str

    @property
    def rate(self) -> float:
        """Images/s of all ranks, in steady windows."""
        return float(self.diagnosis.facts["images_per_s"])

    @property
    def first(self) -> Verdict | None:
        return self.diagnosis.proposed

    @property
    def began(self) -> float:
        times = [
            begin["ts"]
            for records in self.evidence.ranks
            for begin in records.begins
            if "ts" in begin
        ]
        return float(min(times, default=0.0))


@dataclass(frozen=True)
class Verification:
    before: ComparedRun
    after: ComparedRun
    swapped: bool  # the user named ``after`` first
    changes: tuple[Change, ...]
    fix: Fix | None  # the choice that the runs are compared with; None where nothing was proposed

    @cached_property
    def fit(self) -> str:
        return fit(self.changes)

    @cached_property
    def incomparable(self) -> tuple[str, ...]:
        """Why the speeds cannot be compared."""
        return incomparable(self.before.evidence, self.after.evidence, self.changes)

    @property
    def tested(self) -> bool:
        """Whether these runs test the prediction."""
        # only a smaller cause shows that advice was followed
        if self.fit == WORDS and self.before.first is not None:
            cause, share = self.before.first.cause, self.before.first.share
            left = max(
                (v.share for v in self.after.diagnosis.verdicts if v.cause == cause), default=0.0
            )
            return not self.incomparable and left < SMALLER * share
        return not self.incomparable and self.fit != OTHER

    @cached_property
    def environment(self) -> Mapping[str, tuple[str, str]]:
        return environments(self.before.evidence, self.after.evidence)

    @cached_property
    def phases(self) -> tuple[TimeShare, ...]:
        return phases(self.before.diagnosis.facts, self.after.diagnosis.facts)

    @cached_property
    def stages(self) -> tuple[TimeShare, ...]:
        return stages(self.before.diagnosis.facts, self.after.diagnosis.facts)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the prediction did not hold."""
        runs = self.before.diagnosis, self.after.diagnosis
        return reasons(self.changes, self.environment, *runs, self.phases, self.stages)

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
        """Whether the prediction held. None if nothing was predicted, or if these runs do not test
        the prediction.
        """
        return abs(self.off) <= HELD if self.off is not None and self.tested else None

    def to_dict(self) -> dict[str, Any]:
        before, after = (
            {"run": run.shown, **run.diagnosis.to_dict()} for run in (self.before, self.after)
        )
        return {
            "before": before,
            "after": after,
            "swapped": self.swapped,
            "fit": self.fit,
            "fix": self.fix.to_dict() if self.fix else None,
            "changes": [
                {**asdict(change), "as_proposed": change.as_proposed} for change in self.changes
            ],
            "environment": {key: list(pair) for key, pair in self.environment.items()},
            "not_comparable": self.incomparable,
            "predicted": self.predicted,
            "measured": round(self.measured, 4),
            "off": self.off,
            "held": self.held,
            "reasons": self.reasons,
            "phases_ms": [asdict(term) for term in self.phases],
            "stages_ms": [asdict(term) for term in self.stages],
        }


def verify(
    run: str | Path,
    other: str | Path,
    say: Say = say_on_stderr,
    shown: tuple[str, str] = ("", ""),
) -> Verification:
    """Compare two run folders, in any order. Raises DataError where one has no spans, or no window
    yet.

    ``shown``: what to call them instead of their folders.
    """
    if Path(run).resolve() == Path(other).resolve():
        raise DataError(
            f"{run} is compared with itself: name one run without the fix and one with it",
            code="same-run",
            run=str(run),
        )
    first, second = (read_folder(folder, say) for folder in (run, other))
    return compare(compared(first, say, shown[0]), compared(second, say, shown[1]))


def compared(run: RunFolder, say: Say = silent, shown: str = "") -> ComparedRun:
    evidence = evidence_of(run, say)
    diagnosis = judge(evidence)
    if "images_per_s" not in diagnosis.facts:
        why = (
            diagnosis.verdicts[0].evidence
            if diagnosis.verdicts
            else "let it train for some seconds"
        )
        raise DataError(
            f"{run.top} has no window of steps yet, so its speed is not known: {why}",
            code="no-steps-yet",
            run=str(run.top),
        )
    return ComparedRun(run.top, diagnosis, evidence, shown or str(run.top))


def compare(run: ComparedRun, other: ComparedRun) -> Verification:
    """Compare two runs. The run whose settings fit the fix better is ``after``; if they fit
    equally, the later run.
    """
    (fix, changed), (fix_back, changed_back) = _closest(run, other), _closest(other, run)
    rank = _RANK[fit(changed)] if fix else 0
    rank_back = _RANK[fit(changed_back)] if fix_back else 0
    if rank_back > rank or (rank_back == rank and other.began < run.began):
        return Verification(other, run, True, changed_back, fix_back)
    return Verification(run, other, False, changed, fix)


def _closest(before: ComparedRun, after: ComparedRun) -> tuple[Fix | None, tuple[Change, ...]]:
    """Which choice of the fix proposed for ``before`` is closest to ``after``, and the changes
    compared with it.
    """
    choices = before.first.fix.choices if before.first else ()
    pairs = [(choice, _changes(before, after, choice.settings)) for choice in choices]
    return max(
        pairs, key=lambda pair: _RANK[fit(pair[1])], default=(None, _changes(before, after, {}))
    )


def _changes(before: ComparedRun, after: ComparedRun, proposed: Settings) -> tuple[Change, ...]:
    """The changes between two runs; empty if one of them has no config.yaml, because then they are
    not known.
    """
    configs = before.evidence.config, after.evidence.config
    return changes(*configs, proposed) if all(configs) else ()


def earlier_prediction(run: Path) -> str | None:
    """A line about a finished run in a neighboring folder whose proposed fix is exactly what this
    run changed.

    Never raises: other folders may have torn or foreign files, or no read access.
    """

    try:
        mine, this_run = settings_of(run), compared(read_folder(run, silent))
        settings = {folder: settings_of(folder) for folder in _beside(run)}
        alike = [
            folder
            for folder, other in settings.items()
            if other and mine and 0 < len(differing(other, mine)) <= MOST_SETTINGS
        ]
        for folder in alike[:MOST_DIAGNOSED]:
            with suppress(DataError):
                pair = compare(compared(read_folder(folder, silent)), this_run)
                earlier = pair.before.run == folder and pair.before.began < this_run.began
                end = [(e.get("event"), e.get("status")) for e in pair.before.evidence.events[-1:]]
                if (
                    earlier
                    and end == [("run_end", "done")]
                    and pair.fit == EXACT
                    and not pair.incomparable
                ):
                    return _prediction(pair)
    except Exception:
        pass
    return None


def _beside(run: Path) -> list[Path]:
    """Other run folders with spans, the newest first."""
    run = run.resolve() if run.name in ("", "..") else run
    configs = [file for file in run.parent.glob("*/config.yaml") if file.parent.name != run.name]
    newest = sorted(configs, key=lambda file: -file.stat().st_mtime)[:MOST_BESIDE]
    return [file.parent for file in newest if (file.parent / FOLDER).is_dir()]


def _prediction(pair: Verification) -> str:
    words = " ".join(pair.fix.words) if pair.fix else ""
    before = pair.before.shown
    if pair.predicted is None:
        return f"proposed by {before}: {words}, no gain predicted; measured {pair.measured:.2f}x"
    why = (
        ""
        if pair.held
        else f" (why: segtrain diagnose {quote(before)} --against {quote(pair.after.shown)})"
    )
    return (
        f"predicted by {before}: {pair.predicted:.2f}x faster with {words}; measured "
        f"{pair.measured:.2f}x{why}"
    )
