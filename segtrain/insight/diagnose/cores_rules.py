"""Rules for a lack of cores: other programs use them, or the run itself needs more than there
are.
"""

from __future__ import annotations

from dataclasses import replace

from segtrain.base.terminal import counted
from segtrain.base.units import ms, rounded
from segtrain.insight.diagnose.model import stages_of
from segtrain.insight.diagnose.stats import Figures, Rank
from segtrain.insight.diagnose.verdict import OTHER_PROGRAMS, Fix, Verdict

LOST = 0.10  # waits for cores are a cause above this share of the time
CROWD = 0.3  # other programs are a cause if they use more than this many cores


def other_programs(figures: Figures) -> Verdict | None:
    """Other programs that use cores of the run. The gain is predicted for a step without the waits
    that they cause.
    """
    others, rank = figures.others, figures.most_starved_rank
    if others is None or others <= CROWD:
        return None
    alone = _alone(figures, rank, others)
    lost = 1 - alone / rank.step
    if lost <= LOST:
        return None
    why = (
        f"other programs keep {rounded(others, 2)} of {_cores(figures):g} cores busy, and this "
        f"run, which needs more, gets {rounded(figures.own_cpu, 2)}{_waited(figures, rank)}"
    )
    advice = (
        "stop the other programs, or train where none run; until then, use fewer compute threads "
        "and workers than there are cores left"
    )
    return Verdict(
        OTHER_PROGRAMS, lost, why, Fix(advice=advice), rank.step / max(alone, 1e-9), "high"
    )


def too_few_cores(figures: Figures) -> Verdict | None:
    """Threads that wait for cores which other threads of the run use. Called only if no earlier
    rule found a cause.
    """
    rank, count = figures.most_starved_rank, len(figures.ranks)
    if figures.on_gpu or other_programs(figures) is not None:
        return None
    own = figures.cpu_wait * figures.own_part
    if own <= LOST * rank.step:
        return None
    samples = rank.samples
    gain = 1.0
    made = ""
    if samples is not None and samples.workers:
        gain = max(
            1.0, rank.step / max(1e-9, replace(stages_of(figures, rank), wall=0.0, cpu=0.0).step)
        )
        used = samples.made * samples.cpu * samples.threads / rank.step * count
        made = f", of which making samples takes {rounded(used, 2)}"
    why = (
        f"its {counted(count, 'rank')} and their workers keep {rounded(figures.own_cpu, 2)} of "
        f"{_cores(figures):g} cores busy{made}{_waited(figures, rank)}"
    )
    advice = (
        "use more cores, or cheaper samples (data.cache=ram, segtrain data pack, cheaper "
        "augmentation), or fewer ranks and threads (parallel.procs, parallel.threads); the "
        "predicted gain is that of cheaper samples"
    )
    return Verdict("too-few-cores", own / rank.step, why, Fix(advice=advice), gain, "medium")


def _alone(figures: Figures, rank: Rank, others: float) -> float:
    """Seconds of a step if no other program ran."""
    theirs = others / max(1e-9, others + figures.own_cpu)
    if rank.samples is None:
        return rank.step if figures.on_gpu else rank.step - figures.cpu_wait * theirs
    held = rank.samples.cpu_wait > LOST * rank.samples.wall
    # Without other programs, only waits for cores would disappear: those of the loop itself, and
    # the time in which the loop waits for samples because their workers lack cores.
    least = rank.step - figures.cpu_wait - figures.wait * held
    return min(rank.step, max(least, stages_of(figures, rank, others=False).step))


def _waited(figures: Figures, rank: Rank) -> str:
    """How long loop and workers waited for a core, where that is counted."""
    samples, waits = rank.samples, []
    if figures.cpu_wait and not figures.on_gpu:
        waits.append(f"the rank waited {ms(figures.cpu_wait)} per step (of {ms(rank.step)})")
    if samples is not None and samples.cpu_wait and samples.workers:
        waited = ms(min(samples.cpu_wait, samples.wall))
        waits.append(f"a worker waited {waited} per sample (of {ms(samples.wall)})")
    return f": {', and '.join(waits)} for a free CPU core" if waits else ""


def _cores(figures: Figures) -> float:
    """The number of cores of all hosts of the run."""
    return sum(host.cores for host in figures.hosts) if figures.hosts else usable(figures)


def usable(figures: Figures) -> int:
    """The number of cores that the run may use on all hosts."""
    return sum({rank.host: rank.host_cores for rank in figures.ranks}.values())
