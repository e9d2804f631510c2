"""Rule for torch.compile in a run that is too short to get back the time that compiling costs at its start."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from segtrain.diagnose.length import length_of
from segtrain.diagnose.stats import SYNC_PHASES, Figures
from segtrain.diagnose.together import NON_STEP_PHASES, steps_of
from segtrain.diagnose.verdict import Fix, Verdict
from segtrain.observe.spans import Records

WAITS = ("wait", *SYNC_PHASES, *NON_STEP_PHASES)  # phases in which nothing is compiled
LONGER = 3.0  # times a usual step, from which on a step compiles
LOST = 0.10  # share of the run
NEVER = 3.0  # times as quick as without it no network becomes


def compiling(figures: Figures) -> Verdict | None:
    """Asked of all windows: the steps that compile are the first ones, and any whose inputs have another size."""
    evidence = figures.evidence
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
    words = f"without it a step may take up to {pays:.3g} s, and the run still ends no later"
    off, longer = Fix({"train.compile": False}, words), Fix(advice="train longer: compiling is paid for only once")
    first, second = (off, longer) if pays > NEVER * usual else (longer, off)
    why = (
        f"torch.compile took {seconds:.3g} s of the {whole:.3g} s {'planned for' if left else 'of'} this run, which "
        f"has {steps + left:g} steps of {1000 * usual:.3g} ms"
    )
    # No gain: steps without it were not measured.
    return Verdict("compiling", seconds / whole, why, replace(first, alternatives=(second,)), 1.0, "high")


def _compiled(records: Records) -> tuple[float, float, int, float] | None:
    """Seconds of compiling, of a usual step, steps so far, seconds of all windows.

    None without a window after the start.
    """
    begun = {begin.get("ts") for begin in records.begins}
    windows = [w for w in records.windows if w["last"] >= w["first"]]
    later = [_work(w) / steps_of(w) for w in windows if w["ts"] not in begun]
    if not later:
        return None
    usual = statistics.median(later)
    long = [w for w in windows if w.get("slowest_ms", 0.0) > 1000 * LONGER * usual]
    seconds = sum(max(0.0, _work(w) - steps_of(w) * usual) for w in long)
    return seconds, usual, sum(map(steps_of, windows)), sum(w["seconds"] for w in windows)


def _work(window: Mapping[str, Any]) -> float:
    return float(sum(s for phase, s in window["phases"].items() if phase not in WAITS))
