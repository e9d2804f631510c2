"""Rules for a loop that waits for its samples, and the advice on how to make samples cheaper."""

from __future__ import annotations

from dataclasses import dataclass, replace

from segtrain.base.units import ms, rounded
from segtrain.insight.diagnose.bucket_rules import PACK, PACKED, bucket_verdict
from segtrain.insight.diagnose.model import Stages, idle, stages_of, workers_needed
from segtrain.insight.diagnose.rank_rules import behind
from segtrain.insight.diagnose.stats import Figures, Rank, Samples
from segtrain.insight.diagnose.verdict import Fix, Verdict
from segtrain.insight.diagnose.windows import by_helpers

STARVED = 0.10  # share of the time for which the loop may wait without a verdict
MOSTLY = 0.5
# a worker that uses no core for more than this share of a sample's time waits for more than a free
# core
IDLE = 0.75
SLACK = 0.6  # workers that are busy for less than this share of the time do not hold the loop up
# if a worker uses more than this multiple of its main thread's CPU time, libraries started threads
EXTRA_THREADS = 1.3
WORTH = 1.2  # gain above which more workers are the fix
MOST_WAITING = 64  # most workers to propose for a rank if they mostly wait
STREAM = 20e6  # bytes/s that any storage gives to one reader

# Ways to make samples cheaper, with PACKED. `segtrain bench data` measures how much each saves.
IN_MEMORY = Fix({"data.cache": "ram"}, "if the decoded images fit into memory", (PACKED,))
THREADS = Fix({"data.worker_kind": "thread"})


@dataclass(frozen=True)
class Starved:
    """The rank that waits most for its samples. ``now``: the model of its step. ``wait``: share of
    the time lost.
    """

    figures: Figures
    rank: Rank
    samples: Samples
    now: Stages
    wait: float

    def verdict(
        self,
        cause: str,
        evidence: str,
        fix: Fix,
        then: Stages | None,
        confidence: str,
        part: float = 1.0,
    ) -> Verdict:
        """Make a verdict. ``then``: the model of a step with the fix; None if not known.

        ``part``: the share of the lost time that this cause explains.
        """
        gain = max(1.0, self.rank.step / max(then.step, 1e-9)) if then else 1.0
        return Verdict(cause, self.wait * part, evidence, fix, gain, confidence)

    @property
    def costs(self) -> str:
        samples = self.samples
        parts = [
            f"{stage} {ms(s)}" for stage, s in samples.stages.items() if s > 0.005 * samples.wall
        ]
        return f"a sample takes {ms(samples.wall)} ({', '.join(parts)}; {ms(samples.cpu)} of CPU)"

    @property
    def workers(self) -> str:
        count, kind = self.samples.workers, self.samples.kind
        many = {"thread": "threads", "process": "processes"}.get(kind, kind)
        besides = by_helpers(self.samples.helper_samples, self.samples.made)
        return f"{count:.3g} {kind if round(count) == 1 else many}" + (
            f", with {besides}" if besides else ""
        )

    @property
    def largest(self) -> tuple[str, str]:
        """The stage that takes longest, other than reading, and its cause."""
        stage = max(
            (s for s in self.samples.stages if s != "read"), key=lambda s: self.samples.stages[s]
        )
        other = "shm" if self.samples.kind == "process" else "main-thread"
        return stage, {"decode": "decode", "augment": "augmentation"}.get(stage, other)


def data_verdicts(figures: Figures) -> list[Verdict]:
    """At most two verdicts, the main cause first. Empty if the loop does not wait, or its samples
    are not recorded.
    """
    rank = figures.most_starved_rank
    samples = rank.samples
    if figures.starved <= STARVED or samples is None:
        return []
    starved = Starved(figures, rank, samples, stages_of(figures, rank), _lost(figures))
    reads = rank.bucket
    if reads is not None and samples.stages["read"] > MOSTLY * samples.wall:
        return [bucket_verdict(starved, reads)]
    if not samples.workers:
        return [_in_the_loop(starved)]
    if rank.busy < SLACK:
        return [_late_samples(starved)]
    waiting = idle(samples) / samples.wall
    # Libraries start threads in the workers, so the workers of all ranks of the host have more
    # threads than cores.
    if (
        samples.threads > EXTRA_THREADS
        and samples.workers * samples.threads * rank.ranks_on_host > rank.host_cores
    ):
        return [_own_threads(starved), _stage(starved)]
    if samples.stages["read"] > MOSTLY * samples.wall:
        return [_storage(starved)]
    if waiting > IDLE:
        return [_stage_that_waits(starved, waiting)]
    # Judge as if no other program ran, because even a run that shares its cores may have too few
    # workers.
    alone = replace(starved, now=stages_of(figures, rank, others=False))
    if samples.workers < int(rank.cores) and _too_few(alone).gain > WORTH:
        return [_too_few(starved), _stage(starved)]
    return [_stage(starved)]


def _lost(figures: Figures) -> float:
    """Share of the time lost to waits for samples. If one late rank is the cause, the mean of the
    ranks' own waits.
    """
    slow = behind(figures)
    return figures.mean("wait") if slow is not None and slow.phase == "wait" else figures.starved


def _in_the_loop(starved: Starved) -> Verdict:
    enough = workers_needed(replace(starved.now, workers=1), max(1, int(starved.rank.cores)))
    why = (
        f"samples are made in the loop (data.workers=0), {starved.wait:.0%} of the time: "
        f"{starved.costs}"
    )
    return starved.verdict(
        "main-thread",
        why,
        Fix({"data.workers": enough}),
        replace(starved.now, workers=enough),
        "high",
    )


def _late_samples(starved: Starved) -> Verdict:
    shared = starved.samples.kind == "process"
    path = "through shared memory" if shared else "to the loop"
    why = (
        f"the loop waits {starved.wait:.0%} of the time, but making samples keeps its "
        f"{starved.workers} busy only {starved.rank.busy:.0%} of it: samples are late on their "
        f"way {path}"
    )
    fix = THREADS if shared else Fix({"data.prefetch": 16})
    # the limit is for a loop that only waits, as in `segtrain bench data`
    gain = 1 / max(1 - starved.wait, 1e-3)
    return Verdict("shm" if shared else "main-thread", starved.wait, why, fix, gain, "low")


def _storage(starved: Starved) -> Verdict:
    samples, now = starved.samples, starved.now
    read, size = samples.stages["read"], f"{rounded(samples.bytes / 1e3)} kB"
    grows, sure = samples.by_size, "high"
    # All reads have about the same size, or there are few: assume the rate of slow storage.
    if grows is None:
        grows, sure = min(1.0, samples.bytes / STREAM / read), "low"
    why = f"reading takes {ms(read)} of the {ms(samples.wall)} of a sample"
    if grows > MOSTLY:
        rate = samples.bytes * samples.made / starved.rank.step
        throughput = f"{rounded(rate / 1e6)} MB/s ({size} per sample)"
        why += f", and {grows:.0%} of that grows with its size: storage gives only {throughput}"
        closer = Fix(advice=f"make the files smaller and move them closer: {PACK}")
        fix = replace(IN_MEMORY, alternatives=(closer,))
        return starved.verdict(
            "storage-bandwidth", why, fix, replace(now, wall=now.wall - read), sure
        )
    enough = workers_needed(now, MOST_WAITING)
    throughput = f"{size} at {rounded(samples.bytes / read / 1e6)} MB/s"
    why += (
        f", whatever its size ({throughput}): the workers ({starved.workers}) wait for storage "
        "to answer"
    )
    return starved.verdict(
        "storage-latency", why, Fix({"data.workers": enough}), replace(now, workers=enough), sure
    )


def _stage_that_waits(starved: Starved, waiting: float) -> Verdict:
    samples, now = starved.samples, starved.now
    if (
        samples.kind == "thread"
        and samples.workers >= 2
        and samples.workers * samples.cpu / samples.wall > 0.7
    ):
        # All threads together use only about one core.
        fix = Fix({"data.worker_kind": "process"})
        then = replace(now, wall=samples.cpu)
        what = "threads wait for each other (Python's GIL)"
    else:
        enough = workers_needed(now, MOST_WAITING)
        fix = Fix({"data.workers": enough})
        then = replace(now, workers=enough)
        what = "it waits for something"
    why = f"{starved.costs}; for {waiting:.0%} of that time it uses no core: {what}"
    return starved.verdict(starved.largest[1], why, fix, then, "medium")


def _too_few(starved: Starved) -> Verdict:
    samples, rank = starved.samples, starved.rank
    enough = max(int(samples.workers) + 1, workers_needed(starved.now, max(1, int(rank.cores))))
    used = f"{rounded(samples.workers + rank.computed / rank.step, 2)} of {rank.cores:.3g} cores"
    why = (
        f"the workers ({starved.workers}) are always busy and use, with the loop, {used}: "
        f"{starved.costs}"
    )
    return starved.verdict(
        "too-few-workers",
        why,
        Fix({"data.workers": enough}),
        replace(starved.now, workers=enough),
        "high",
    )


def _own_threads(starved: Starved) -> Verdict:
    why = (
        f"each worker uses {rounded(starved.samples.threads, 2)} times the CPU time of its main "
        f"thread: a library in the transforms starts threads of its own, and {starved.workers} of "
        f"each rank share {starved.rank.cores:.3g} cores with the loop"
    )
    fix = Fix(
        advice="use one thread in each worker: OMP_NUM_THREADS=1, and cv2.setNumThreads(1) in "
        "the transforms"
    )
    return starved.verdict("too-many-threads", why, fix, None, "medium")


def _stage(starved: Starved) -> Verdict:
    """The verdict on the longest stage other than reading, for a run whose workers use the cores.

    The gain is predicted for samples without this stage.
    """
    stage, cause = starved.largest
    part = starved.samples.stages[stage] / starved.samples.wall
    left = max(0.0, 1 - part)
    then = replace(starved.now, wall=starved.now.wall * left, cpu=starved.now.cpu * left)
    why = f"{starved.costs}; the loop shares {starved.rank.cores:.3g} cores with {starved.workers}"
    return starved.verdict(cause, why, _cheaper(starved, cause), then, "medium", part)


def _cheaper(starved: Starved, cause: str) -> Fix:
    """Ways to make a stage cost less."""
    setting = starved.figures.evidence.setting
    if cause == "decode":
        cached = setting("data.cache", "off") == "ram" or setting("data.worker_kind") == "process"
        return PACKED if cached else IN_MEMORY
    if cause == "augmentation":
        if setting("data.transforms"):
            return Fix(advice="cheaper data.transforms")
        return Fix(
            {"data.color_jitter_prob": 0.5, "data.rotate": 0}, "fewer changes of color, no rotation"
        )
    if cause == "shm":
        return THREADS
    return Fix(
        {"data.worker_kind": "process"}, "putting samples into their batch needs a core of its own"
    )
