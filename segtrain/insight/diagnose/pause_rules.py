"""Rules for what interrupts the steps: log lines, checkpoints, evaluations, and torch.compile.

They depend on the length of the run, because a fix must not propose an interval that the run never
reaches.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from segtrain.base.units import ms, rounded
from segtrain.insight.diagnose.cores_rules import other_programs
from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.stats import SYNC_PHASES, Figures
from segtrain.insight.diagnose.verdict import Fix, Verdict
from segtrain.insight.diagnose.windows import Window, steps_of
from segtrain.observe.spans import NO_STEP, Records

# Cause -> share of the time that its pauses may take, least number of pauses per run with the fix,
# and their name.
PAUSES = {
    "logging": (0.05, 10, "log lines"),
    "checkpoint": (0.05, 3, "checkpoints"),
    "evaluation": (0.20, 3, "evaluations"),
}
# share of the time above which a pause is reported even if the run is too short for a longer
# interval
NO_FIX = 0.20
TO = 0.02  # share of the time that a pause takes after its fix
WORTH = 1.5  # least factor by which a proposed interval is longer
WAITS = ("wait", *SYNC_PHASES, *NO_STEP)  # phases in which nothing is compiled
LONGER = 3.0  # a step that takes this many times a usual step compiles
LOST = 0.10  # share of the run that compiling may take
NEVER = 3.0  # torch.compile makes no network this many times as fast
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ep|st)")


def pauses(figures: Figures) -> list[Verdict]:
    """Causes that interrupt the steps. Other programs make pauses longer too: that part is left
    out.
    """
    others = other_programs(figures)
    lost = others.share if others else 0.0
    verdicts = (_logging(figures), _checkpoint(figures), _evaluation(figures))
    return [
        v
        for v in verdicts
        if v.share * (1 - lost) > (PAUSES[v.cause][0] if v.fix.settings else NO_FIX)
    ]


def _pause(
    figures: Figures,
    cause: str,
    share: float,
    evidence: str,
    key: str,
    every: str,
    gone: float,
    also: dict[str, Any],
) -> Verdict:
    """The verdict on a pause whose interval is now ``key=every``. ``also``: more settings of the
    fix.

    ``gone``: the part of the time that gets shorter with a longer interval, as a share of the
    whole.
    """
    # How many times rarer the pause must be to take only ``TO`` of the time: 1, 2, 5, 10, 20, 50,
    # ...
    wanted = share / (1 - share) / TO * (1 - TO)
    factor = next(
        step * 10**power for power in range(9) for step in (1, 2, 5) if step * 10**power >= wanted
    )
    _, least, name = PAUSES[cause]
    longer = rarer(every, factor, length_of(figures.evidence), least)
    settings = (
        {key: int(longer[0][:-2]) if key == "log.every" else longer[0]} if longer else {}
    ) | also
    fix = Fix(
        settings,
        "" if settings else f"none needed: its few {name} matter only because the run is so short",
    )
    gain = 1 / (1 - gone + gone / longer[1]) if longer else 1.0
    return Verdict(cause, share, f"{share:.0%} of the time{evidence}", fix, gain, "high")


def _logging(figures: Figures) -> Verdict:
    share = figures.most("log")
    every = int(figures.evidence.setting("log.every", 10))
    why = (
        f": a log line takes {ms(share * figures.step * every)}, every {every} steps of "
        f"{ms(figures.step)}"
    )
    return _pause(figures, "logging", share, why, "log.every", f"{every}st", share, {})


def _checkpoint(figures: Figures) -> Verdict:
    share, evidence = figures.most("checkpoint"), figures.evidence
    every = interval_of(evidence, "checkpoint")
    count = len(evidence.events_of("checkpoint"))
    background = (
        {"checkpoint.background": True}
        if evidence.setting("checkpoint.background", True) is False
        else {}
    )
    why = f": the loop stops for {count} checkpoints (checkpoint.every={every})"
    return _pause(figures, "checkpoint", share, why, "checkpoint.every", every, share, background)


def _evaluation(figures: Figures) -> Verdict:
    share, evidence = figures.mean("eval"), figures.evidence
    every = interval_of(evidence, "eval")
    seconds = [e["seconds"] for e in evidence.events_of("eval") if "seconds" in e]
    each = f", {rounded(sum(seconds) / len(seconds), 2)} s each" if seconds else ""
    why = f" goes to {len(seconds)} evaluations{each} (eval.every={every})"
    # Fewer evaluations also mean fewer checkpoints of a new best score.
    saved = [e.get("reason") for e in evidence.events_of("checkpoint") if e.get("reason") != "end"]
    best = figures.mean("checkpoint") * saved.count("best") / len(saved) if saved else 0.0
    gone = min(1.0, share + best)
    return _pause(figures, "evaluation", share, why, "eval.every", every, gone, {})


def compiling(figures: Figures) -> Verdict | None:
    """Compiling that takes much of the run.

    All windows count, also those of the start: the first steps compile, and so do steps with a new
    input size.
    """
    evidence = figures.evidence
    compiled = [
        compilation for records in evidence.ranks if (compilation := _compiled(records)) is not None
    ]
    if not evidence.setting("train.compile") or not compiled:
        return None
    seconds, usual, steps, so_far = max(compiled)
    left = (
        0.0
        if evidence.events_of("run_end")
        else max(0.0, length_of(evidence).get("st", 0.0) - steps)
    )
    whole = so_far + left * usual
    if seconds <= LOST * whole:
        return None
    pays = usual + seconds / (steps + left)
    words = f"without it a step may take up to {rounded(pays)} s, and the run still ends no later"
    off = Fix({"train.compile": False}, words)
    longer = Fix(advice="train longer: compiling is paid for only once")
    first, second = (off, longer) if pays > NEVER * usual else (longer, off)
    why = (
        f"torch.compile took {rounded(seconds)} s of the {rounded(whole)} s "
        f"{'planned for' if left else 'of'} this "
        f"run, which has {steps + left:g} steps of {ms(usual)}"
    )
    # The gain is 1 (not predicted), because steps without torch.compile were not measured.
    return Verdict(
        "compiling", seconds / whole, why, replace(first, alternatives=(second,)), 1.0, "high"
    )


def _compiled(records: Records) -> tuple[float, float, int, float] | None:
    """Seconds of compiling, seconds of a usual step, number of steps so far, seconds of all
    windows.

    None if there is no window after the start.
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


def _work(window: Window) -> float:
    return float(sum(s for phase, s in window["phases"].items() if phase not in WAITS))


def length_of(evidence: Evidence) -> dict[str, float]:
    """Steps (``st``) and epochs (``ep``) of the whole run, as far as its journal tells them."""
    length = (
        {"st": float(evidence.start["total_steps"])} if evidence.start.get("total_steps") else {}
    )
    lines = (e for e in reversed(evidence.events_of("step")) if e.get("epoch") and e.get("step"))
    epoch = next((line["step"] / line["epoch"] for line in lines), None)
    return {**length, "ep": length["st"] / epoch} if length and epoch else length


def interval_of(evidence: Evidence, section: str) -> str:
    """``eval.every`` or ``checkpoint.every``; for ``auto``, the interval that the run chose."""
    every = str(evidence.setting(f"{section}.every", "1ep"))
    chosen = evidence.start.get({"eval": "eval_every", "checkpoint": "save_every"}[section])
    if every != "auto":
        return every
    return f"{chosen}st" if chosen else "1ep"


def rarer(
    every: str, factor: float, length: Mapping[str, float], least: int
) -> tuple[str, float] | None:
    """``every`` made ``factor`` times as long, and the factor that was possible; None where it is
    too small to matter.

    The event still happens at least ``least`` times in the run.
    """
    match = _DURATION.fullmatch(every)
    if match is None:
        return None
    now, unit = float(match[1]), match[2]
    wanted, most = now * factor, (length.get(unit) or math.inf) / least
    if wanted > most:
        # Round down: to whole steps, to whole epochs from 10 epochs on, else to two significant
        # digits.
        power = 1 if unit == "st" or most >= 10 else 10 ** (1 - math.floor(math.log10(most)))
        wanted = math.floor(most * power) / power
    return (f"{wanted:.12g}{unit}", wanted / now) if wanted >= WORTH * now else None
