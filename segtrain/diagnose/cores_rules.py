"""Rules for a lack of cores: other programs use them, or the run itself needs more than there are."""

from __future__ import annotations

from dataclasses import replace

from segtrain.diagnose.fix import Fix
from segtrain.diagnose.model import stages_of
from segtrain.diagnose.stats import Figures, Rank
from segtrain.diagnose.verdict import Verdict

LOST = 0.10  # share of the time
CROWD = 0.3  # cores of other programs
PASSES = ("forward", "backward", "update")  # that compute, and wait for nothing but a core


def other_programs(figures: Figures) -> Verdict | None:
    """Other programs that use cores of the run.

    The gain is that of a step without the waits for cores that they cause.
    """
    others, rank = _others(figures), figures.most_starved_rank
    if others is None or others <= CROWD:
        return None
    alone = _alone(figures, rank, others)
    lost = 1 - alone / rank.step
    if lost <= LOST:
        return None
    cores = _cores(figures)
    counted = figures.as_one.cpu_wait is not None
    return Verdict(
        "other-programs",
        lost,
        f"other programs keep {others:.2g} of {cores:g} cores busy, and this run, which needs more, gets "
        f"{figures.own_cpu:.2g}"
        + _told(figures, rank)
        + (
            "" if counted and figures.hosts else "; this is a guess, because this system does not count waits for cores"
        ),
        Fix(
            advice="stop the other programs, or train where none run; until then, use fewer compute threads and "
            "workers than there "
            "are cores left"
        ),
        rank.step / max(alone, 1e-9),
        "high" if counted and figures.hosts else "low",
    )


def too_few_cores(figures: Figures) -> Verdict | None:
    """Threads that wait for cores which other threads of the run use. Asked where nothing else is found."""
    rank, cpu_wait = figures.most_starved_rank, figures.as_one.cpu_wait
    if figures.on_gpu or cpu_wait is None or other_programs(figures) is not None:
        return None
    own = cpu_wait * figures.own_part
    if own <= LOST * rank.step:
        return None
    samples = rank.samples
    gain, made = 1.0, ""
    if samples is not None and samples.workers:
        now = stages_of(figures, rank)
        gain = max(1.0, rank.step / max(1e-9, replace(now, wall=0.0, cpu=0.0).step))
        made = (
            ", of which making samples takes "
            f"{samples.made * samples.cpu * samples.threads / rank.step * len(figures.ranks):.2g}"
        )
    return Verdict(
        "too-few-cores",
        own / rank.step,
        f"its {len(figures.ranks)} rank{'s' * (len(figures.ranks) > 1)} and their workers keep "
        f"{figures.own_cpu:.2g} of "
        f"{_cores(figures):g} cores busy{made}{_told(figures, rank)}",
        Fix(
            advice="use more cores; or cheaper samples (data.cache=ram, segtrain data pack, cheaper "
            "augmentation), for which the gain "
            "is predicted; or fewer ranks and threads (parallel.procs, parallel.threads)"
        ),
        gain,
        "medium",
    )


def _others(figures: Figures) -> float | None:
    """Cores that other programs use.

    Without a system profile: those that this run left free while its threads waited for cores.
    """
    if figures.hosts or figures.on_gpu:
        return figures.others
    cpu_wait = figures.as_one.cpu_wait
    if cpu_wait is None or cpu_wait <= 2 * LOST * figures.step:
        return None
    return max(0.0, _cores(figures) - figures.own_cpu)


def _alone(figures: Figures, rank: Rank, others: float) -> float:
    """Seconds of a step if no other program ran."""
    theirs = others / max(1e-9, others + figures.own_cpu)
    cpu_wait = figures.as_one.cpu_wait
    # Without a count, the time in which the passes did not compute is taken for waits for cores.
    if cpu_wait is None and not figures.on_gpu and figures.crowded:
        passes = sum(rank.phases.get(phase, 0.0) for phase in PASSES)
        cpu_wait = max(0.0, passes - rank.computed / max(1, rank.threads))
    if rank.samples is None or figures.as_one.cpu_wait is None:
        return rank.step if figures.on_gpu else rank.step - (cpu_wait or 0.0) * theirs
    held = (rank.samples.cpu_wait or 0.0) > LOST * rank.samples.wall
    # Waits for anything else stay.
    least = rank.step - figures.as_one.cpu_wait - figures.as_one.wait * held
    return min(rank.step, max(least, stages_of(figures, rank, others=False).step))


def _told(figures: Figures, rank: Rank) -> str:
    """How long loop and workers waited for a core, where that is counted."""
    cpu_wait, samples = figures.as_one.cpu_wait, rank.samples
    said = ""
    if cpu_wait is not None and not figures.on_gpu:
        said = (
            f": its loop was ready to run but had no core for {1000 * cpu_wait:.3g} of the "
            f"{1000 * rank.step:.3g} ms of a step"
        )
    if samples is not None and samples.cpu_wait and samples.workers:
        said += (
            f"{', and' if said else ':'} a worker for {1000 * min(samples.cpu_wait, samples.wall):.3g} of "
            f"the {1000 * samples.wall:.3g} ms of a sample"
        )
    return said


def _cores(figures: Figures) -> float:
    """Of all hosts of the run."""
    return sum(host.cores for host in figures.hosts) if figures.hosts else usable(figures)


def usable(figures: Figures) -> int:
    """Cores that the run may use, of all hosts."""
    return sum({rank.host: rank.host_cores for rank in figures.ranks}.values())
