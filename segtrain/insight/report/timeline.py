"""Timeline of a run: laps, pauses, one axis of time without the gaps between its processes, and the
speed.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from segtrain.base import json_text
from segtrain.insight.runs.folder import Event

START = "start"
EVAL = "eval"
CHECKPOINT = "checkpoint"
_SLACK = 2.0  # seconds that a profile may begin before the first event and end after the last


@dataclass(frozen=True)
class Lap:
    """The time from one ``step`` event of the journal to the next: ``steps`` optimizer steps, up to
    step ``step``.

    Times are Unix seconds.
    """

    begin: float
    end: float
    step: int
    steps: int
    spans: dict[str, float]
    # first lap of its process; it is too slow to measure speed: the loader fills, and kernels are
    # chosen
    first: bool
    event: Event

    @property
    def seconds(self) -> float:
        """Seconds of training, without evaluation and checkpoints."""
        return sum(self.spans.values())

    @property
    def mean(self) -> dict[str, float]:
        """Seconds of each phase in a mean step."""
        return {phase: seconds / self.steps for phase, seconds in self.spans.items()}


@dataclass(frozen=True)
class Stretch:
    """A period in which the run did one thing: either training (``lap``), or the pause that
    ``kind`` names.

    ``kind``: start, eval, or checkpoint; "" for training.
    """

    begin: float
    end: float
    lap: Lap | None = None
    kind: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """The share of its time that each phase took, or the pause itself."""
        if self.lap is None or not self.lap.seconds:
            return {self.kind: 1.0}
        return {phase: seconds / self.lap.seconds for phase, seconds in self.lap.spans.items()}


@dataclass(frozen=True)
class TimeAxis:
    """Converts Unix time to seconds since the run began, leaving out the time in which none of its
    processes ran.
    """

    parts: tuple[tuple[float, float], ...]  # begin and end of each process

    def at(self, ts: float) -> float | None:
        """Seconds since the run began at a Unix time; None for a moment in which no process ran."""
        before = 0.0
        for begin, end in self.parts:
            if begin - _SLACK <= ts <= end + _SLACK:
                return before + min(max(ts, begin), end) - begin
            before += end - begin
        return None

    @property
    def length(self) -> float:
        return sum(end - begin for begin, end in self.parts)


def axis(events: Sequence[Event]) -> TimeAxis:
    parts: list[tuple[float, float]] = []
    last = 0.0
    for event in events:
        last = max(last, event["ts"])  # A clock that was set back must not make time run backwards.
        begin = last if event["event"] == "run_start" or not parts else parts.pop()[0]
        parts.append((begin, last))
    return TimeAxis(tuple(parts))


def laps(events: Iterable[Event]) -> list[Lap]:
    """All laps in order of time, including laps whose steps a resumed process repeated later."""
    all_laps: list[Lap] = []
    step = 0
    before = 0.0
    first = True
    for event in events:
        if event["event"] == "run_start":
            step, first = 0, True
        elif event["event"] == "resume" and isinstance(event.get("step"), int):
            step = event["step"]
        elif event["event"] == "step" and isinstance(event.get("step"), int):
            spans = json_text.sound(event.get("spans"), {})
            if event["step"] > step and spans:
                begin = event["ts"] - sum(spans.values()) if first else before
                all_laps.append(
                    Lap(
                        begin, event["ts"], event["step"], event["step"] - step, spans, first, event
                    )
                )
            step = event["step"]
            before = event["ts"]
            first = False
    return all_laps


def steady(all_laps: Sequence[Lap]) -> list[Lap]:
    """The laps that measure speed: without the first of each process, if there are others."""
    return [lap for lap in all_laps if not lap.first] or list(all_laps)


def pauses(events: Sequence[Event], all_laps: Sequence[Lap]) -> list[Stretch]:
    stretches = []
    for index, event in enumerate(events):
        seconds = event.get("seconds")
        if event["event"] in (EVAL, CHECKPOINT) and seconds:
            begin = event["ts"] - seconds
            before = events[index - 1] if index else event
            if (
                event["event"] == EVAL
                and before["event"] == "step"
                and before.get("step") == event.get("step")
            ):
                # Before the scores, weights are averaged: this time counts too.
                begin = min(begin, before["ts"])
            end = _until(event, events[index + 1 :], all_laps)
            stretches.append(Stretch(begin, end, kind=event["event"]))
        elif event["event"] == "run_start":
            begins = [lap.begin for lap in all_laps if lap.first and lap.begin >= event["ts"]]
            if begins:
                stretches.append(Stretch(event["ts"], min(begins), kind=START))
    return sorted(stretches, key=lambda pause: pause.begin)


def _until(event: Event, later: Sequence[Event], all_laps: Sequence[Lap]) -> float:
    """When training went on after a pause. The ``seconds`` of an evaluation leave out the drawing
    of its pictures.
    """
    end = float(event["ts"])
    if event["event"] != EVAL or not later:
        return end
    after = later[0]
    if after["event"] == CHECKPOINT:
        return max(end, after["ts"] - (after.get("seconds") or 0.0))
    lap = next((lap for lap in all_laps if lap.begin < end <= lap.end), None)
    if lap is None:  # after the last step
        return max(end, after["ts"])
    stood = lap.end - lap.begin - lap.seconds  # time outside of all phases of a step
    return max(end, min(lap.begin + stood, lap.end))


def pieces(all_laps: Sequence[Lap], stops: Sequence[Stretch]) -> list[Stretch]:
    """Laps with the pauses cut out of them, in order of time and without overlap."""
    cut = [stop for stop in stops if stop.end > stop.begin]
    for lap in all_laps:
        begin = lap.begin
        for stop in stops:
            if lap.begin <= stop.begin and stop.end <= lap.end + 1e-3:
                if stop.begin > begin:
                    cut.append(Stretch(begin, stop.begin, lap))
                begin = max(begin, stop.end)
        if lap.end > begin:
            cut.append(Stretch(begin, lap.end, lap))
    return sorted(cut, key=lambda piece: piece.begin)


def merged(all_laps: Sequence[Lap], most: int) -> list[Lap]:
    """At most about ``most`` laps: neighbors of one process are added up. ``event`` is that of the
    last one.
    """
    size = -(-len(all_laps) // most)
    if size <= 1:
        return list(all_laps)
    groups: list[list[Lap]] = []
    for lap in all_laps:
        if lap.first or not groups or len(groups[-1]) >= size or groups[-1][-1].first:
            groups.append([])
        groups[-1].append(lap)
    return [
        replace(
            group[-1],
            begin=group[0].begin,
            steps=sum(lap.steps for lap in group),
            spans=_sums(group),
        )
        for group in groups
    ]


def _sums(all_laps: Iterable[Lap]) -> dict[str, float]:
    """Seconds of each phase in these laps."""
    sums = Counter[str]()
    for lap in all_laps:
        sums.update(lap.spans)
    return dict(sums)


def means(all_laps: Sequence[Lap]) -> dict[str, float]:
    """Seconds of each phase in a mean step of the steady laps, in the order of a step."""
    steady_laps = steady(all_laps)
    sums, count = _sums(steady_laps), sum(lap.steps for lap in steady_laps)
    return {phase: sums.get(phase, 0.0) / count for phase in phases(steady_laps)} if count else {}


# Phases in the order of a step, with the words for them. A phase that is not listed here is shown
# by its own name.
PHASES = {
    "wait": "waiting for data",
    "device": "copy to the device",
    "forward": "forward",
    "sync": "waiting for other ranks",
    "backward": "backward",
    "gradient_sync": "gradient sync",
    "update": "optimizer",
    "log": "logging",
    "other": "everything else",
}


@dataclass(frozen=True)
class Speed:
    """Speed over the laps that ``steady`` returns."""

    step_s: float  # median over the laps of their mean time of a step
    shares: dict[str, float]  # shares of the phases in the time of a step; they add up to 1
    images_per_s: float | None  # median over the laps
    cores: float | None  # CPU seconds per second, of all ranks
    # share of waiting in the worst tenth of the run, which ends with step ``worst_step``
    worst_wait: float
    worst_step: int

    @property
    def wait(self) -> float:
        return self.shares.get("wait", 0.0)


def speed(all_laps: Sequence[Lap]) -> Speed | None:
    """The speed in these laps; None if the journal has no step."""
    steady_laps, mean = steady(all_laps), means(all_laps)
    whole = sum(mean.values())
    if whole <= 0:
        return None
    shares = {phase: seconds / whole for phase, seconds in mean.items()}
    rates = [
        lap.event["images_per_s"]
        for lap in steady_laps
        if lap.event.get("images_per_s") is not None
    ]
    step_s = statistics.median(lap.seconds / lap.steps for lap in steady_laps)
    return Speed(
        step_s,
        shares,
        statistics.median(rates) if rates else None,
        _cores(all_laps),
        *_worst_wait(steady_laps),
    )


def _worst_wait(steady_laps: Sequence[Lap]) -> tuple[float, int]:
    size = -(-len(steady_laps) // 10)
    shares = []
    for index in range(0, len(steady_laps), size):
        sums = _sums(steady_laps[index : index + size])
        shares.append(
            (
                sums.get("wait", 0.0) / (sum(sums.values()) or 1.0),
                steady_laps[index : index + size][-1].step,
            )
        )
    return max(shares)


def _cores(all_laps: Sequence[Lap]) -> float | None:
    """CPU seconds per second, from the differences of ``cpu_s`` between laps.

    The value of ``cpu_s`` itself is not used, because its first value includes the imports of all
    ranks.
    """
    cpu = wall = 0.0
    for before, lap in itertools.pairwise(all_laps):
        old, new = before.event.get("cpu_s"), lap.event.get("cpu_s")
        if not lap.first and old is not None and new is not None and new >= old:
            cpu, wall = cpu + new - old, wall + lap.seconds
    return cpu / wall if wall > 0 else None


def phases(all_laps: Sequence[Lap]) -> list[str]:
    """All phases that occur, in the order of a step."""
    present = dict.fromkeys(phase for lap in all_laps for phase in lap.spans)
    usual = [phase for phase in PHASES if phase in present and phase != "other"]
    new = [phase for phase in present if phase not in PHASES]
    return usual + new + (["other"] if "other" in present else [])


def words(phase: str) -> str:
    return PHASES.get(phase, phase)


def quantiles(values: Sequence[float], *wanted: float) -> list[float]:
    """Quantiles by linear interpolation. ``values`` must not be empty."""
    return [float(value) for value in np.quantile(values, wanted)]
