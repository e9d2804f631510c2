"""Rules for slow steps whose data is ready: the loop's own thread, copies, threads, memory, small
batches.
"""

from __future__ import annotations

from dataclasses import replace

from segtrain.base.terminal import counted
from segtrain.base.units import ms, rounded
from segtrain.insight.diagnose.data_rules import STARVED
from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.stats import Figures
from segtrain.insight.diagnose.verdict import Fix, Verdict
from segtrain.observe.spans import NO_STEP

LOOP = 0.10  # share of a step that the loop's own thread may take
# share of the time without waits for cores: a thread that is idle for more of it waits for
# something
# else
WAITS = 0.4
COPIES = 0.10  # share of a step that copies to the device may take
FIXED = 0.30  # share of a step that does not grow with its batch
FEW = 4  # most images per rank and step of a small batch
# a GPU that is busy for less than this share of the time, although its data is ready, needs more
# work
LAUNCHES = 0.6
THREADS = 1.5  # threads per core that are too many
CROWD = 0.10  # share of a step that too many threads may cost
SWAP = 1e6  # bytes/s


def own_thread(figures: Figures) -> Verdict | None:
    """Work or a wait between the phases, in every window of every rank. If only one rank has it,
    that rank is slow.
    """
    if min(rank.least.get("other", 0.0) for rank in figures.ranks) <= LOOP:
        return None
    rank = min(figures.ranks, key=lambda rank: rank.share("other"))
    spent = rank.phases["other"]
    cpu_wait = min(spent, rank.other_cpu_wait)
    share = (spent - cpu_wait) / rank.step
    if cpu_wait and spent - cpu_wait <= LOOP * (rank.step - rank.cpu_wait):
        return None  # the time between the phases is long only because the thread has no core
    works = rank.other_cpu / spent
    # seconds in which the thread had a core, or needed none because it waited
    awake = spent - cpu_wait
    passes = f"{ms(spent)} of each step ({share:.0%})"
    if figures.on_gpu or awake - rank.other_cpu > WAITS * awake:
        cause, sure = "sync-point", "medium"
        why = (
            f"{passes} pass between the phases, and the loop's thread works for only {works:.0%} "
            "of that time: it waits for something"
        )
        fix = Fix(
            advice="move what waits (an .item(), a printed tensor, a file synced to disk, a sleep, "
            "a lock) out of the step, or do it only in logged steps"
        )
    else:
        cause = "main-thread"
        why = f"the loop's own thread computes between the phases for {passes}"
        fix = Fix(advice="move the work to the workers (data.transforms), or to logged steps")
        sure = "medium"
        if figures.evidence.setting("log.digest", False):
            fix, sure = Fix({"log.digest": False}), "high"
    return Verdict(cause, share, why, fix, 1 / (1 - share), sure)


def on_the_gpu(figures: Figures) -> list[Verdict]:
    """Copies, and a GPU that waits for launches."""
    return [verdict for verdict in (_copies(figures), _launches(figures)) if verdict]


def _copies(figures: Figures) -> Verdict | None:
    share = figures.least("device")
    if not figures.on_gpu or share <= COPIES:
        return None
    why = f"{share:.0%} of a step goes to copies to the device and to conversion to float there"
    colors = Fix({"data.color_jitter_on": "cpu"})
    fix = Fix({"data.prefetch": 8}, "the next batch is copied while this step computes", (colors,))
    return Verdict("host-to-device", share, why, fix, 1 / (1 - share), "medium")


def threads(figures: Figures) -> Verdict | None:
    """More compute threads than cores. Their cost was measured before the first step; steps alone
    do not show it.
    """
    rank = max(figures.ranks, key=lambda rank: rank.threads)
    if figures.on_gpu or rank.threads * rank.ranks_on_host < THREADS * rank.host_cores:
        return None
    measured = rank.crowded
    enough = max(1, rank.host_cores // rank.ranks_on_host)
    passes = {phase: rank.spent(phase) for phase in ("forward", "backward")}
    times = {
        phase: max(1.0, float(measured[phase])) if measured else rank.threads / enough
        for phase in passes
    }
    lost = sum(took * (1 - 1 / times[phase]) for phase, took in passes.items())
    if lost <= CROWD * rank.step:
        return None
    best = int(measured["threads"]) if measured else enough
    why = (
        f"{rank.host_cores} cores for {counted(rank.ranks_on_host, 'rank')} with {rank.threads} "
        "compute threads each: at the end of each operator all threads wait for the one that got "
        "no core"
    )
    if not measured:
        return Verdict(
            "too-many-threads", lost / rank.step, why, Fix({"parallel.threads": best}), 1.0, "low"
        )
    slower = " and ".join(f"a {phase} pass took {factor:.2g}x" for phase, factor in times.items())
    why += f"; measured before the first step, {slower} as long as with {best}"
    gain = rank.step / (rank.step - lost)
    return Verdict(
        "too-many-threads", lost / rank.step, why, Fix({"parallel.threads": best}), gain, "high"
    )


def memory(figures: Figures) -> Verdict | None:
    worst = max(figures.hosts, key=lambda host: host.swap_bytes_s, default=None)
    if worst is None or worst.swap_bytes_s < SWAP:
        return None
    why = (
        f"{worst.node} moves {rounded(worst.swap_bytes_s / 1e6)} MB/s to and from swap, its memory "
        f"is {worst.memory:.0%} full, and its cores wait for disks {worst.iowait:.0%} of the time"
    )
    gain = max(1.0, figures.step / max(rank.fastest for rank in figures.ranks))
    setting = figures.evidence.setting
    fix = Fix(
        advice=f"fewer data.workers (their kind is {setting('data.worker_kind', 'auto')}), or a "
        "host with more memory"
    )
    if setting("data.cache") == "ram":
        fix = Fix({"data.cache": "off"})
    elif setting("data.prefetch") != 1:
        fix = Fix({"data.prefetch": 1}, alternatives=(fix,))
    # The share is 1: swapping slows everything down, and its effects look like other causes.
    return Verdict("memory", 1.0, why, fix, gain, "medium")


def _launches(figures: Figures) -> Verdict | None:
    """A GPU that has little work while the loop launches steps. Time in which it does anything else
    is left out.
    """
    used = max((host.gpu for host in figures.hosts if host.gpu is not None), default=1.0)
    launching = 1 - figures.mean("wait", "other", "sync", "gradient_sync", *NO_STEP)
    if not figures.on_gpu or figures.starved > STARVED or used >= LAUNCHES * launching:
        return None
    share = launching - used
    why = f"the GPU has work for only {used:.0%} of the time although its data is ready"
    larger = _larger_batch(figures)
    compiled = Fix({"train.compile": "reduce-overhead"}, "CUDA graphs of compiled kernels")
    fix = replace(compiled, alternatives=(larger,))
    # auto has tried them, and printed why it leaves them out
    if len(figures.ranks) == 1 and figures.evidence.setting("train.cuda_graph", False) != "auto":
        fix = Fix(
            {"train.cuda_graph": True}, "the same steps in fewer launches", (compiled, larger)
        )
    return Verdict("small-batch", share, why, fix, 1 / (1 - share + share / 4), "medium")


def _larger_batch(figures: Figures) -> Fix:
    size = 4 * int(figures.evidence.setting("train.batch_size", 16))
    return Fix({"train.batch_size": size}, "another recipe: its learning rate must fit")


def small_batch(figures: Figures) -> Verdict | None:
    """Steps on a CPU whose batch is too small. Called only if nothing else slows the run down."""
    rank = figures.ranks[0]
    # share of the time, assumed equal in all phases
    had_core = 1 - min(1.0, rank.cpu_wait / rank.step)
    share = had_core * rank.spent("update", "other") / rank.step
    if figures.on_gpu or share <= FIXED or rank.images > FEW:
        return None
    why = (
        f"{share:.0%} of a step of {ms(rank.step)} does not grow with the batch "
        f"({rank.images:g} per rank)"
    )
    return Verdict(
        "small-batch", share, why, _larger_batch(figures), 1 / (1 - share + share / 4), "medium"
    )


def shm_failure(evidence: Evidence) -> Verdict | None:
    """A run that ended because shared memory was full."""
    ends = evidence.events_of("run_end", "run_start")
    error = str(ends[-1].get("error") or "") if ends else ""
    if "/dev/shm" not in error:
        return None
    others = (
        Fix({"data.prefetch": 1}, "fewer batches are there at once"),
        Fix(advice="docker run --shm-size=2g"),
    )
    fix = Fix({"data.worker_kind": "thread"}, "threads need no shared memory", others)
    return Verdict("shm", 1.0, error, fix, 1.0, "high")
