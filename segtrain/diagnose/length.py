"""Length of a run, and how rare an event may become in it: no fix may ask for a time that the run does not reach."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segtrain.diagnose.evidence import Evidence

WORTH = 1.5  # factor from which on a change is worth proposing
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ep|st)")


@dataclass(frozen=True)
class Length:
    """``steps``: of the whole run; ``epoch``: steps of an epoch; ``epochs``: of the whole run. None: not known."""

    steps: float | None = None
    epoch: float | None = None
    epochs: float | None = None

    def of(self, unit: str) -> float | None:
        return self.steps if unit == "st" else self.epochs


def length_of(evidence: Evidence) -> Length:
    """From the journal, else from ``train.duration``."""
    events = evidence.events
    start: Mapping[str, Any] = next((e for e in reversed(events) if e.get("event") == "run_start"), {})
    lines = (e for e in reversed(events) if e.get("event") == "step" and e.get("epoch") and e.get("step"))
    epoch = next((line["step"] / line["epoch"] for line in lines), None)
    found = _DURATION.fullmatch(str(evidence.setting("train.duration", "")))
    told = {found[2]: float(found[1])} if found else {}
    steps = start.get("total_steps") or told.get("st") or (told["ep"] * epoch if "ep" in told and epoch else None)
    epochs = told.get("ep") or (steps / epoch if steps and epoch else None)
    return Length(steps, epoch, epochs)


def every_of(evidence: Evidence, key: str, field: str, kind: str) -> str:
    """The interval of events of that kind: the setting ``key``, or for ``auto`` what the run chose or did."""
    events = evidence.events
    every = str(evidence.setting(key, "1ep"))
    if every != "auto":
        return every
    chosen = [e[field] for e in events if e.get("event") == "run_start" and e.get(field)]
    steps = [e["step"] for e in events if e.get("event") == kind and e.get("reason") != "end" and e.get("step")]
    gaps = [later - before for before, later in zip([0, *steps], steps) if later > before]
    return f"{chosen[-1] if chosen else min(gaps)}st" if chosen or gaps else "1ep"


def rarer(every: str, factor: float, length: Length, least: int) -> tuple[str, float] | None:
    """``every`` made ``factor`` times as long, and the factor that was possible; None where it is too small to matter.

    The event still happens at least ``least`` times in the run.
    """
    found = _DURATION.fullmatch(every)
    if found is None:
        return None
    now, unit = float(found[1]), found[2]
    wanted, whole = now * factor, length.of(unit)
    if whole is not None and wanted > whole / least:
        wanted = _round_down(whole / least) if unit == "ep" else float(math.floor(whole / least))
    if wanted < WORTH * now:
        return None
    return f"{wanted:.12g}{unit}", wanted / now


def _round_down(value: float) -> float:
    """Two figures below 10, whole epochs above."""
    if value >= 10:
        return float(math.floor(value))
    power = 10 ** (1 - math.floor(math.log10(value)))
    return math.floor(value * power) / power
