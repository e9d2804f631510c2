"""Rule for torch.compile in a run that is too short: compiling costs time at the start, which only a long run gets
back.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from segtrain.diagnose.evidence import Evidence
from segtrain.diagnose.fix import Fix
from segtrain.diagnose.length import length_of
from segtrain.diagnose.stats import NON_STEP_PHASES, SYNC_PHASES
from segtrain.diagnose.verdict import Verdict
from segtrain.observe.spans import Records

WAITS = ("wait", *SYNC_PHASES, *NON_STEP_PHASES)  # phases in which nothing is compiled
LONGER = 3.0  # times a usual step, from which on a step compiles
LOST = 0.10  # share of the run
NEVER = 3.0  # times as quick as without it no network becomes


def compiling(evidence: Evidence) -> Verdict | None:
    """Asked of all windows: the steps that compile are the first ones, and any whose inputs have another size."""
    found = [of for records in evidence.ranks if (of := _compiled(records)) is not None]
    if not evidence.setting("train.compile") or not found:
        return None
    seconds, usual, steps, so_far = max(found)
    ended = any(event.get("event") == "run_end" for event in evidence.events)
    left = 0.0 if ended else max(0.0, (length_of(evidence).steps or 0.0) - steps)
    whole = so_far + left * usual
    if seconds <= LOST * whole:
        return None
    pays = usual + seconds / (steps + left)
    off = Fix(
        {"train.compile": False}, f"without it a step may take up to {pays:.3g} s, and the run still ends no later"
    )
    longer = Fix(advice="train longer: compiling is paid for only once")
    first, second = (off, longer) if pays > NEVER * usual else (longer, off)
    return Verdict(
        "compiling",
        seconds / whole,
        f"torch.compile took {seconds:.3g} s of the {whole:.3g} s {'planned for' if left else 'of'} this run, "
        "which has "
        f"{steps + left:g} steps of {1000 * usual:.3g} ms",
        Fix(first.settings, first.advice, (second,)),
        1.0,  # The steps without it were not measured.
        "high",
    )


def _compiled(records: Records) -> tuple[float, float, int, float] | None:
    """Seconds of compiling, of a usual step, steps so far, seconds of all windows.

    None without a window after the start.
    """
    begun = {begin.get("ts") for begin in records.begins}
    windows = [w for w in records.windows if w["last"] >= w["first"]]
    later = [_work(w) / _steps(w) for w in windows if w["ts"] not in begun]
    if not later:
        return None
    usual = statistics.median(later)
    long = [w for w in windows if w.get("slowest_ms", 0.0) > 1000 * LONGER * usual]
    seconds = sum(max(0.0, _work(w) - _steps(w) * usual) for w in long)
    return seconds, usual, sum(map(_steps, windows)), sum(w["seconds"] for w in windows)


def _work(window: Mapping[str, Any]) -> float:
    return float(sum(s for phase, s in window["phases"].items() if phase not in WAITS))


def _steps(window: Mapping[str, Any]) -> int:
    return int(window["last"]) - int(window["first"]) + 1
