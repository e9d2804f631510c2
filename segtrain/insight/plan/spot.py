"""Time of a run whose machines may be taken away: closed forms, each with its source.

Preemptions and failures come at a constant rate, whatever the run does, so the time to the next one is exponential.
One lost host stops all ranks. All functions are pure. Seconds throughout, and rates per second.
"""

from __future__ import annotations

from math import exp, expm1, inf, sqrt

MOST_LOST = 700.0  # beyond it, the exponential is larger than any number


def interval(checkpoint: float, rate: float) -> float:
    """Seconds of work between two checkpoints with which a run ends soonest.

    ``checkpoint``: seconds that one takes; ``rate``: of preemptions of the whole job. The result is the estimate of
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
    Computer Systems 22 (2006), doi:10.1016/j.future.2004.11.016; a test compares it with the captions of its figures 3
    to 5. Its first term is that of J. W. Young, "A first order approximation to the optimum checkpoint interval",
    CACM 17 (1974). If a checkpoint takes twice the mean time to a preemption or more, it is that mean time.
    """
    between = 1 / rate
    if checkpoint >= 2 * between:
        return between
    part = checkpoint / (2 * between)
    return sqrt(2 * checkpoint * between) * (1 + sqrt(part) / 3 + part / 9) - checkpoint


def expected(work: float, every: float, checkpoint: float, resume: float, rate: float) -> float:
    """Expected seconds of a run of ``work`` seconds that saves after each ``every`` seconds of work.

    ``resume``: seconds from a preemption to the next step: new machines, start, and loading. Work since the last
    checkpoint is lost. Preemptions also hit checkpoints and resumes.

    A segment has s = every + checkpoint seconds. A try ends after (1 - exp(-rate s)) / rate seconds on average, and
    fails with the probability f = 1 - exp(-rate s). Then a resume comes first, which may fail too, and takes
    D = (exp(rate resume) - 1) / rate. So the expected time of a segment is E = f / rate + f (D + E), or
    E = exp(rate resume) (exp(rate s) - 1) / rate. Exact for a whole number of segments. Infinite beyond 700 preemptions
    in a segment or a resume.
    """
    segments = work / every
    if rate <= 0:
        return work + segments * checkpoint
    if rate * (every + checkpoint + resume) > MOST_LOST:
        return inf
    return segments * exp(rate * resume) * expm1(rate * (every + checkpoint)) / rate
