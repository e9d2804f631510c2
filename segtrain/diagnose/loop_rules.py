"""Rules for what holds the loop up besides its data: pauses, work in its own thread, copies, threads, memory, and small
steps.
"""

from __future__ import annotations

from typing import Any

from segtrain.diagnose.cores_rules import other_programs
from segtrain.diagnose.evidence import Evidence
from segtrain.diagnose.length import every_of, length_of, rarer
from segtrain.diagnose.stats import Figures, Rank
from segtrain.diagnose.verdict import Fix, Verdict

PAUSES = {"logging": 0.05, "checkpoint": 0.05, "evaluation": 0.20}  # shares of the time that may go there
NO_CURE = 0.20  # share from which a pause is named although the run is too short to have it less often
TO = 0.02  # share that is left of a pause by its cure
LOOP = 0.10  # share of a step that the loop's own thread may take
WAITS = 0.4  # of a time in which a thread lacks no core, and yet does not compute
WORKS = 0.25  # of a time in which a thread computes, although others want the core
COPIES = 0.10
FIXED = 0.30  # share of a step that does not grow with its batch
FEW = 4  # images of a rank's step: above it a batch is not small
LAUNCHES = 0.6  # share of the time below which a GPU that waits for no data gets too little at once
THREADS = 1.5  # threads for each core
CROWD = 0.10  # share of a step that they may cost
SWAP = 1e6  # bytes/s
LEFT = {"logging": (10, "log lines"), "checkpoint": (3, "checkpoints"), "evaluation": (3, "evaluations")}  # of a run


def pauses(figures: Figures) -> list[Verdict]:
    """Causes that interrupt the steps. The time that other programs take stretches pauses as well."""
    others = other_programs(figures)
    lost = others.share if others else 0.0
    found = (_logging(figures), _checkpoint(figures), _evaluation(figures))
    return [pause for pause in found if pause.share * (1 - lost) > _limit(pause)]


def _limit(pause: Verdict) -> float:
    limit = PAUSES[pause.cause]
    return limit if pause.fix.settings else max(limit, NO_CURE)


def _pause(
    figures: Figures, cause: str, share: float, evidence: str, key: str, every: str, gone: float, also: dict[str, Any]
) -> Verdict:
    """A pause whose setting ``key`` is ``every`` now. ``gone``: share of the time that is shorter with a rarer one.

    ``also``: more settings of the fix.
    """
    # How many times rarer it must be to take only ``TO`` of the time: 1, 2, 5, 10, 20, 50, ...
    wanted = share / (1 - share) / TO * (1 - TO)
    factor = next(step * 10**power for power in range(9) for step in (1, 2, 5) if step * 10**power >= wanted)
    least, what = LEFT[cause]
    longer = rarer(every, factor, length_of(figures.evidence), least)
    settings = ({key: int(longer[0][:-2]) if key == "log.every" else longer[0]} if longer else {}) | also
    short = Fix(advice=f"none needed: its few {what} matter only because the run is so short")
    gain = 1 / (1 - gone + gone / longer[1]) if longer else 1.0
    return Verdict(
        cause, share, f"{share:.0%} of the time{evidence}", Fix(settings) if settings else short, gain, "high"
    )


def _logging(figures: Figures) -> Verdict:
    share = figures.most("log")
    every = int(figures.evidence.setting("log.every", 10))
    each, step = 1000 * share * figures.step * every, 1000 * figures.step
    why = f": a log line takes {each:.3g} ms, every {every} steps of {step:.3g} ms"
    return _pause(figures, "logging", share, why, "log.every", f"{every}st", share, {})


def _checkpoint(figures: Figures) -> Verdict:
    share, evidence = figures.most("checkpoint"), figures.evidence
    every = every_of(evidence, "checkpoint.every", "save_every", "checkpoint")
    count = len([e for e in evidence.events if e.get("event") == "checkpoint"])
    background = {"checkpoint.background": True} if evidence.setting("checkpoint.background", True) is False else {}
    why = f": the loop stops for {count} checkpoints (checkpoint.every={every})"
    return _pause(figures, "checkpoint", share, why, "checkpoint.every", every, share, background)


def _evaluation(figures: Figures) -> Verdict:
    share, evidence = figures.mean("eval"), figures.evidence
    every = every_of(evidence, "eval.every", "eval_every", "eval")
    seconds = [e["seconds"] for e in evidence.events if e.get("event") == "eval" and "seconds" in e]
    each = f", {sum(seconds) / len(seconds):.2g} s each" if seconds else ""
    why = f" goes to {len(seconds)} evaluations{each} (eval.every={every})"
    # Checkpoints of a better score are rarer where scores are rarer.
    saved = [e for e in evidence.events if e.get("event") == "checkpoint" and e.get("reason") != "end"]
    best = [e for e in saved if e.get("reason") == "best"]
    gone = min(1.0, share + (figures.mean("checkpoint") * len(best) / len(saved) if saved else 0.0))
    return _pause(figures, "evaluation", share, why, "eval.every", every, gone, {})


def own_thread(figures: Figures) -> Verdict | None:
    """Work or a wait between the phases, in each window of every rank. On one rank alone it is a slow rank."""
    if min(rank.least.get("other", 0.0) for rank in figures.ranks) <= LOOP:
        return None
    rank = min(figures.ranks, key=lambda rank: rank.share("other"))
    spent = rank.phases["other"]
    cpu_wait = 0.0 if rank.other_cpu_wait is None or rank.cpu_wait is None else min(spent, rank.other_cpu_wait)
    share = (spent - cpu_wait) / rank.step
    if cpu_wait and spent - cpu_wait <= LOOP * (rank.step - (rank.cpu_wait or 0.0)):
        return None  # it is as long as that only because it has no core
    works = (rank.cpu if rank.other_cpu is None else rank.other_cpu) / spent
    passes = f"{1000 * spent:.3g} ms of each step ({share:.0%})"
    if figures.on_gpu or _waits(figures, rank, spent, works):
        why = (
            f"{passes} pass between the phases, and the loop's thread works for only {works:.0%} of that time: it "
            "waits for something"
        )
        advice = (
            "move what waits (an .item(), a printed tensor, a file synced to disk, a sleep, a lock) out of the step, "
            "or do it only in logged steps"
        )
        return Verdict("sync-point", share, why, Fix(advice=advice), 1 / (1 - share), "medium")
    why = f"the loop's own thread computes between the phases for {passes}"
    if figures.evidence.setting("log.digest", False):
        return Verdict("main-thread", share, why, Fix({"log.digest": False}), 1 / (1 - share), "high")
    fix = Fix(advice="move the work to the workers (data.transforms), or to logged steps")
    return Verdict("main-thread", share, why, fix, 1 / (1 - share), "medium")


def _waits(figures: Figures, rank: Rank, spent: float, works: float) -> bool:
    """Whether a thread that did not compute all the time was held up by something other than a lack of cores."""
    if rank.other_cpu is not None and rank.other_cpu_wait is not None:
        awake = spent - rank.other_cpu_wait  # or blocked; with a core, if it wants one
        return awake - rank.other_cpu > WAITS * awake
    return works < (WORKS / 2 if figures.crowded else WORKS)


def copies(figures: Figures) -> Verdict | None:
    share = figures.least("device")
    if not figures.on_gpu or share <= COPIES:
        return None
    why = f"{share:.0%} of a step goes to copies to the device and to conversion to float there"
    colors = Fix({"data.color_jitter_on": "cpu"})
    fix = Fix({"data.prefetch": 8}, "the next batch is copied while this step computes", (colors,))
    return Verdict("host-to-device", share, why, fix, 1 / (1 - share), "medium")


def threads(figures: Figures) -> Verdict | None:
    """More compute threads than cores. Their cost was measured before the first step; steps alone do not show it."""
    rank = max(figures.ranks, key=lambda rank: rank.threads)
    if figures.on_gpu or rank.threads * rank.ranks_here < THREADS * rank.host_cores:
        return None
    measured, enough = rank.crowded, max(1, rank.host_cores // rank.ranks_here)
    passes = {phase: rank.phases.get(phase, 0.0) for phase in ("forward", "backward")}
    times = {phase: max(1.0, float(measured[phase])) if measured else rank.threads / enough for phase in passes}
    lost = sum(took * (1 - 1 / times[phase]) for phase, took in passes.items())
    if lost <= CROWD * rank.step:
        return None
    best = int(measured["threads"]) if measured else enough
    told = " and ".join(f"a {phase} pass took {factor:.2g}x" for phase, factor in times.items())
    return Verdict(
        "too-many-threads",
        lost / rank.step,
        f"{rank.ranks_here} rank{'s' * (rank.ranks_here > 1)} with {rank.threads} compute threads each share "
        f"{rank.host_cores} cores: at the end of each operator all threads wait for the one that got no core"
        + (f"; measured before the first step, {told} as long as with {best}" if measured else ""),
        Fix({"parallel.threads": best}),
        rank.step / (rank.step - lost) if measured else 1.0,
        "high" if measured else "low",
    )


def memory(figures: Figures) -> Verdict | None:
    worst = max(figures.hosts, key=lambda host: host.swap_bytes_s, default=None)
    if worst is None or worst.swap_bytes_s < SWAP:
        return None
    return Verdict(
        "memory",
        1.0,  # of all: what swapping slows down shows as any other cause
        f"{worst.node} moves {worst.swap_bytes_s / 1e6:.3g} MB/s to and from swap, its memory is "
        f"{worst.memory:.0%} full, and its cores wait for disks {worst.iowait:.0%} of the time",
        _less_memory(figures.evidence),
        max(1.0, figures.step / max(rank.fastest for rank in figures.ranks)),
        "medium",
    )


def _less_memory(evidence: Evidence) -> Fix:
    if evidence.setting("data.cache") == "ram":
        return Fix({"data.cache": "off"})
    kind = evidence.setting("data.worker_kind", "auto")
    more = Fix(advice=f"fewer data.workers, or a host with more memory (data.worker_kind={kind})")
    return more if evidence.setting("data.prefetch") == 1 else Fix({"data.prefetch": 1}, alternatives=(more,))


def small_batch(figures: Figures) -> Verdict | None:
    """Steps that are too small. Asked where nothing else holds the run up."""
    rank = figures.ranks[0]
    if figures.on_gpu:
        used = max((host.gpu for host in figures.hosts if host.gpu is not None), default=1.0)
        if used >= LAUNCHES:
            return None
        share, why = 1 - used, f"the GPU has work for only {used:.0%} of the time although its data is ready"
    else:
        had_core = 1 - min(1.0, (rank.cpu_wait or 0.0) / rank.step)  # share of the time, in all phases alike
        share = had_core * sum(rank.phases.get(phase, 0.0) for phase in ("update", "other")) / rank.step
        if share <= FIXED or rank.images > FEW:
            return None
        why = (
            f"{share:.0%} of a step of {1000 * rank.step:.3g} ms does not grow with its batch of {rank.images:g} "
            "images per rank"
        )
    fix = Fix({"train.batch_size": 4 * int(figures.evidence.setting("train.batch_size", 16))})
    return Verdict("small-batch", share, why, fix, 1 / (1 - share + share / 4), "medium")


def failure(figures: Figures) -> Verdict | None:
    return shm_failure(figures.evidence)


def shm_failure(evidence: Evidence) -> Verdict | None:
    """A run that ended because shared memory was full."""
    ends = [e for e in evidence.events if e.get("event") in ("run_end", "run_start")]
    error = str(ends[-1].get("error") or "") if ends else ""
    if "/dev/shm" not in error:
        return None
    others = Fix({"data.prefetch": 1}, "fewer batches are there at once"), Fix(advice="docker run --shm-size=2g")
    fix = Fix({"data.worker_kind": "thread"}, "threads need no shared memory", others)
    return Verdict("shm", 1.0, error, fix, 1.0, "high")
