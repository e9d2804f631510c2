"""Time of a run whose machines may be taken away: closed forms, each with its source.

Preemptions and failures come at a constant rate, whatever the run does, so the time to the next one is exponential.
One lost host stops all ranks. All functions are pure. Seconds throughout, and rates per second.
"""

from __future__ import annotations

from math import exp, expm1, sqrt


def interval(checkpoint: float, rate: float) -> float:
    """Seconds of work between two checkpoints with which a run ends soonest.

    ``checkpoint``: seconds that one takes; ``rate``: of preemptions of the whole job. Daly's higher-order estimate (A
    higher order estimate of the optimum checkpoint interval, FGCS 2006, equation 37). Its first term is that of Young
    (CACM 1974). The work until a preemption if a checkpoint takes as long.
    """
    between = 1 / rate
    if checkpoint >= 2 * between:
        return between
    part = checkpoint / (2 * between)
    return sqrt(2 * checkpoint * between) * (1 + sqrt(part) / 3 + part / 9) - checkpoint


def expected(work: float, every: float, checkpoint: float, resume: float, rate: float) -> float:
    """Expected seconds of a run of ``work`` seconds that saves after each ``every`` seconds of work.

    ``resume``: seconds from a preemption to the next step: new machines, start, and loading. Work since the last
    checkpoint is lost. Preemptions also hit checkpoints and resumes. Exact for whole segments (Daly 2006, equation 20).
    """
    segments = work / every
    if rate <= 0:
        return work + segments * checkpoint
    return segments * exp(rate * resume) * expm1(rate * (every + checkpoint)) / rate
