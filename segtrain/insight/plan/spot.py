"""Time and cost on spot machines, at a price and a rate of preemptions that the user gives, in
closed forms.

Preemptions and failures come at a constant rate, whatever the run does, so the time to the next one
is exponential. One lost host stops all ranks. Seconds throughout, and rates per second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import exp, expm1, inf, sqrt
from pathlib import Path
from statistics import mean
from typing import Any

from segtrain.errors import ConfigError
from segtrain.insight.diagnose.evidence import gather
from segtrain.insight.plan.offers import ASSUMED, Interval, Offer, Offers

MOST_LOST = 700.0  # beyond it, the exponential is larger than any number


def checkpoint_interval(checkpoint: float, rate: float) -> float:
    """Seconds of work between two checkpoints with which a run ends soonest.

    ``checkpoint``: seconds that one takes; ``rate``: of preemptions of the whole job. The result is
    the estimate of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
    restart dumps", Future Generation Computer Systems 22 (2006), doi:10.1016/j.future.2004.11.016;
    a test compares it with the captions of its figures 3 to 5. Its first term is that of J. W.
    Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974). If a
    checkpoint takes twice the mean time to a preemption or more, it is that mean time.
    """
    between = 1 / rate
    if checkpoint >= 2 * between:
        return between
    part = checkpoint / (2 * between)
    return sqrt(2 * checkpoint * between) * (1 + sqrt(part) / 3 + part / 9) - checkpoint


def expected_seconds(
    work: float, every: float, checkpoint: float, resume: float, rate: float
) -> float:
    """Expected seconds of a run of ``work`` seconds that saves after each ``every`` seconds of
    work.

    ``resume``: seconds from a preemption to the next step: new machines, start, and loading. Work
    since the last checkpoint is lost. Preemptions also hit checkpoints and resumes.

    A segment has s = every + checkpoint seconds. A try ends after (1 - exp(-rate s)) / rate seconds
    on average, and fails with the probability f = 1 - exp(-rate s). Then a resume comes first,
    which may fail too, and takes
    D = (exp(rate resume) - 1) / rate. So the expected time of a segment is E = f / rate + f (D +
    E), or
    E = exp(rate resume) (exp(rate s) - 1) / rate. Exact for a whole number of segments. Infinite
    beyond 700 preemptions in a segment or a resume.
    """
    if rate * (every + checkpoint + resume) > MOST_LOST:
        return inf
    return work / every * exp(rate * resume) * expm1(rate * (every + checkpoint)) / rate


# Assumed seconds per checkpoint, without a run that has written one.
CHECKPOINT_S = 10.0
# A job that takes this many times as long as without preemptions is one that does not end.
HOPELESS = 100.0
NO_SPOT = "no spot prices, which change by the hour: give them with --spot"
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(h|d)")
_HOURS = {"h": 1.0, "d": 24.0}


@dataclass(frozen=True)
class Market:
    """``share``: spot price as a share of that on demand. ``preemptions``: of one host, per second.

    ``checkpoint``: seconds that one takes, and whether the run has ``measured`` it.
    """

    share: float
    preemptions: float
    checkpoint: float
    measured: bool

    @property
    def resume(self) -> float:
        """Seconds from a preemption to the next step: as long as a start."""
        least, most, _ = ASSUMED["start"]
        return (least * most) ** 0.5

    def interval(self, offer: Offer) -> float:
        """Seconds between two checkpoints."""
        return checkpoint_interval(self.checkpoint, self.preemptions * offer.hosts)

    def seconds(self, offer: Offer) -> Interval:
        """With a checkpoint after each interval, in place of the run's own. Infinite if preemptions
        leave no time.
        """
        every, rate = self.interval(offer), self.preemptions * offer.hosts
        low, middle, high = (
            expected_seconds(seconds - offer.saving, every, self.checkpoint, self.resume, rate)
            for seconds in offer.seconds
        )
        if high > HOPELESS * offer.seconds[2]:
            return inf, inf, inf
        return low, middle, high

    def dollars(self, offer: Offer) -> Interval:
        price = self.share * offer.hosts * float(offer.machine.price or 0.0) / 3600
        low, middle, high = (price * seconds for seconds in self.seconds(offer))
        return low, middle, high

    def rows(self, plan: Offers) -> list[dict[str, Any] | None]:
        """For JSON: ``dollars``, ``seconds``, and ``checkpoint_s`` of each offer; None if it does
        not end.
        """
        return [
            {
                "dollars": self.dollars(offer),
                "seconds": self.seconds(offer),
                "checkpoint_s": self.interval(offer),
            }
            if self.seconds(offer)[1] < inf
            else None
            for offer in plan.offers
        ]

    def note(self, best: Offer | None) -> str:
        """What the spot column assumes, and the checkpoints that the best offer should write."""
        text = (
            f"spot: {self.share:.0%} of the price on demand and {3600 * self.preemptions:g} "
            f"preemptions per hour and host, as given; a checkpoint of {self.checkpoint:.3g} s "
            f"({'measured' if self.measured else 'assumed'}), and {self.resume:.0f} s until a lost "
            "run goes on"
        )
        if best is not None and self.seconds(best)[1] == inf:
            text += (
                "; at that rate, the best offer does not end: it loses its hosts sooner than "
                "it saves its work"
            )
        elif best is not None:
            hours = self.seconds(best)[1] / 3600
            minutes = self.interval(best) / 60
            text += (
                f"; the best offer then takes {hours:.2f} h with a checkpoint every "
                f"{minutes:.0f} minutes"
            )
        return text


def market_of(share: float | None, preemptions: str, run: Path | None = None) -> Market | None:
    """The market of ``--spot`` and ``--preemptions``; None without both. Raises ConfigError.

    ``run``: whose checkpoints tell how long one takes.
    """
    if share is None and not preemptions:
        return None
    match = _RATE.fullmatch(preemptions)
    if share is None or not (0 < share <= 1 and match and float(match[1])):
        options = [f"--spot={share:g}"] * (share is not None) + [
            f"--preemptions={preemptions}"
        ] * bool(preemptions)
        raise ConfigError(
            f"{' '.join(options)}: write a share of the price on demand and how often a host "
            "is taken away, as in --spot=0.35 --preemptions=0.05/h",
            code="bad-spot",
            found=[share, preemptions],
        )
    events = gather(run).events_of("checkpoint") if run else []
    took = [float(event["seconds"]) for event in events if event.get("seconds")]
    rate = float(match[1]) / _HOURS[match[2]] / 3600
    return Market(share, rate, mean(took) if took else CHECKPOINT_S, bool(took))
