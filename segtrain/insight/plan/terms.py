"""Terms of a plan from a past run: time of the device, cost of a sample, bytes of the gradients,
and length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median

from segtrain.config import Config, duration_in_steps, interval_in_steps
from segtrain.errors import ConfigError, closest
from segtrain.insight.diagnose.differences import decisive, other_settings
from segtrain.insight.diagnose.evidence import Evidence, gather
from segtrain.insight.diagnose.model import stages_of
from segtrain.insight.diagnose.remedies import receiving
from segtrain.insight.diagnose.stats import Figures, Rank, run_stats
from segtrain.insight.plan import model
from segtrain.insight.plan.candidates import host_of
from segtrain.insight.runs.folder import read_folder
from segtrain.machines import Machine, all_types, gpus

_HALVED = ("fp16", "bf16")  # values of parallel.compress


@dataclass(frozen=True)
class Terms:
    """Seconds, images, and bytes of one rank and one step of a run.

    ``machine``: the type of its hosts. ``device``: the device's work without communication.
    ``wall``, ``cpu``: of one sample. ``computed``: CPU time of the step without its samples.
    ``gradients``: what the ranks exchange. ``images``: of a rank's step; ``total``: of the whole
    run, all ranks. ``receive``: CPU time of a sample that a helper makes. ``device_range``,
    ``sample_range``: factors between which the device's time and the costs of samples lie.
    ``buckets``: (bytes, share of the backward pass after which it is ready) of each; () if not
    known. ``unsent``: why ``gradients`` are not known; "" if they are. ``workers``: of a rank's
    loader; None: one for each core but one. ``local``: ranks of a host of a run without GPUs.
    ``scores``, ``saves``: how many evaluations and checkpoints the whole run has, and how many
    seconds one takes: an evaluation on one rank. ``busy``: share of its hosts' vCPUs that the run
    used. ``kept``: samples that stay in memory after they are read once (data.cache=ram), of which
    each costs ``first`` (wall and CPU time) until then. ``cold``: the costs are those of samples
    not yet in memory. ``synced``: all-reduces of synchronized batch norms in a step.
    """

    machine: str
    images: float
    device: float
    wall: float
    cpu: float
    computed: float
    gradients: float
    total: float
    receive: float = 0.0
    device_range: tuple[float, float] = (1.0, 1.0)
    sample_range: tuple[float, float] = (1.0, 1.0)
    buckets: tuple[tuple[float, float], ...] = ()
    unsent: str = ""
    local: int = 1
    workers: float | None = None
    scores: tuple[float, float] = (0.0, 0.0)
    saves: tuple[float, float] = (0.0, 0.0)
    busy: float = 1.0
    others: float = 0.0
    kept: float = 0.0
    first: tuple[float, float] = (0.0, 0.0)
    cold: bool = False
    synced: float = 0.0


def terms_of(run: Path, on: str = "") -> Terms:
    """The terms of a run. ``on``: the type of its machines; "" if the run says it.

    Raises DataError without spans, ConfigError if the type is unknown, or if the run is too short.
    """
    return _of_type(*_figures(run), run, on)


def terms_like(run: Path, on: str = "") -> tuple[Terms, Machine | None]:
    """As ``terms_of``. The host of a run of no type whose GPU is in the tables, else None."""
    figures, evidence = _figures(run)
    rank = figures.most_starved_rank
    host = host_of(rank)
    if on or rank.machine in all_types() or host.gpu not in gpus():
        return _of_type(figures, evidence, run, on), None
    return _terms(figures, evidence, host.name), host


def terms_and_host(run: Path) -> tuple[Terms, Machine]:
    """The terms of a run for hosts like its own, of whatever type, and such a host. Raises as
    ``terms_of``.
    """
    figures, evidence = _figures(run)
    host = host_of(figures.most_starved_rank)
    return _terms(figures, evidence, host.name), host


def _of_type(figures: Figures, evidence: Evidence, run: Path, on: str) -> Terms:
    rank = figures.most_starved_rank
    name, on_gpu = on or rank.machine, rank.device.startswith("cuda")
    kind = all_types().get(name)
    if kind is None:
        raise ConfigError(_unknown(name, run), code="unknown-machine-type", found=name)
    if on and on_gpu != bool(kind.gpus):
        has = "has no GPU" if on_gpu else "has GPUs"
        raise ConfigError(
            f"--on={on}: the run trained on {rank.device}, and this type {has}: name the type "
            "that it ran on",
            code="other-device",
            found=on,
        )
    return _terms(figures, evidence, name)


def _figures(run: Path) -> tuple[Figures, Evidence]:
    """The statistics of a run that tells enough, after its first epoch if possible, and its whole
    evidence.

    Raises DataError, and ConfigError.
    """
    evidence = gather(run)
    figures = run_stats(_after(evidence, _first_epoch(evidence)[0]))
    if figures is None or not figures.steady:
        figures = run_stats(evidence)
    if figures is None or not figures.steady or not evidence.start.get("total_steps"):
        raise ConfigError(
            f"{run}: too short to plan from: name a run that trained for at least two log windows",
            code="run-too-short",
            found=str(run),
        )
    if figures.most_starved_rank.samples is None:
        raise ConfigError(
            f"{run}: it does not say what its samples cost: name a run with data.workers of "
            "at least 1 and log.spans=true",
            code="no-sample-costs",
            found=str(run),
        )
    return figures, evidence


def _first_epoch(evidence: Evidence) -> tuple[int, float]:
    """Steps and samples of the first epoch of a run that keeps samples in memory; (0, 0) for any
    other run.
    """
    seen = [
        (event["step"], event["epoch"])
        for event in evidence.events_of("step")
        if event.get("step") and event.get("epoch")
    ]
    if evidence.setting("data.cache") != "ram" or not seen:
        return 0, 0.0
    steps = seen[-1][0] / seen[-1][1]
    return ceil(steps), round(steps * evidence.setting("train.batch_size", 0))


def _after(evidence: Evidence, step: int, before: bool = False) -> Evidence:
    """The evidence with the windows after a step alone; ``before``: with those until it."""
    ranks = tuple(
        replace(
            rank,
            windows=tuple(
                w for w in rank.windows if (w["last"] <= step if before else w["first"] > step)
            ),
        )
        for rank in evidence.ranks
    )
    return replace(evidence, ranks=ranks) if step else evidence


def _terms(figures: Figures, evidence: Evidence, name: str) -> Terms:
    rank = figures.most_starved_rank
    total_steps = int(evidence.start["total_steps"])
    now = stages_of(figures, rank, others=False)
    gradients = _gradients(evidence)
    sent = sum(size for size, _ in gradients) or float(rank.bytes_gradient)
    (steps, cached), first = _first_epoch(evidence), (now.wall, now.cpu)
    cold = bool(cached) and figures.evidence is evidence
    begun = run_stats(_after(evidence, steps, before=True)) if cached and not cold else None
    if begun is not None and begun.most_starved_rank.samples is not None:
        filling = stages_of(begun, begun.most_starved_rank, others=False)
        first = (filling.wall, filling.cpu)
    cores = sum(peer.cores for peer in figures.ranks)
    return Terms(
        machine=name,
        images=rank.images,
        device=_device(rank, now.device),
        wall=now.wall,
        cpu=now.cpu,
        computed=now.computed,
        gradients=sent,
        total=total_steps * sum(peer.images for peer in figures.ranks),
        receive=receiving(figures),
        buckets=model.buckets_of(gradients),
        unsent="" if sent else "the run has not recorded their size",
        local=rank.ranks_on_host,
        scores=_pauses(evidence, "eval", total_steps, rank.world),
        saves=_pauses(evidence, "checkpoint", total_steps, 1),
        busy=figures.own_cpu / cores,
        others=(figures.others or 0.0) / cores,
        kept=0.0 if cold else cached,
        first=first,
        cold=cold,
    )


def _gradients(evidence: Evidence) -> tuple[tuple[float, float], ...]:
    """(bytes, share of the backward pass after which it is ready) of each gradient; () if the run
    measured none.
    """
    event = next(iter(evidence.events_of("gradients")), {})
    sizes, ready = event.get("bytes"), event.get("ready")
    compress = evidence.setting("parallel.compress", "none")
    if not isinstance(sizes, list) or not isinstance(ready, list) or compress == "powersgd":
        return ()
    if len(sizes) != len(ready) or not all(
        isinstance(value, (int, float)) for value in (*sizes, *ready)
    ):
        return ()
    share = 0.5 if compress in _HALVED else 1.0
    return tuple((share * size, place) for size, place in zip(sizes, ready))


def _device(rank: Rank, usual: float) -> float:
    """Seconds of the device's work in a step, without communication. ``usual``: with communication.

    On a host whose cores are all busy, waits for cores hide in communication. The work takes at
    least its CPU time.
    """
    least = (
        1e-6 if rank.device.startswith("cuda") else max(1e-6, rank.computed / max(1, rank.threads))
    )
    return max(least, usual - rank.spent("gradient_sync", "sync"))


def _pauses(evidence: Evidence, kind: str, steps: int, ranks: int) -> tuple[float, float]:
    """How many evaluations or checkpoints a run of ``steps`` has, and the seconds of one, on one of
    its ``ranks``.
    """
    took = {
        event.get("step"): event["seconds"]
        for event in evidence.events_of(kind)
        if event.get("seconds")
    }
    if not took:
        return 0.0, 0.0
    done = max(event.get("step") or 0 for event in evidence.events_of("step", kind))
    return len(took) * max(1.0, steps / max(1, done)), ranks * median(took.values())


def terms_for(terms: Terms, run: Path, config: Config, ranks: int) -> Terms:
    """The terms of a job of ``ranks`` with ``config``, which has the length and the batch, by those
    of a run like it.

    Raises ConfigError if the run has other settings than the job.
    """
    past_run = read_folder(run)
    changed = other_settings(decisive(past_run.config), decisive(config.model_dump(mode="json")))
    if changed:
        raise ConfigError(
            f"{run}: it has other settings than the job: {'; '.join(changed)}",
            code="run-of-other-settings",
            found=changed,
        )
    seen = [(event["step"], event["epoch"]) for event in past_run.steps if event.get("epoch")]
    if config.train.duration.endswith("ep") and not seen:
        raise ConfigError(
            f"{run}: its images per epoch are not known: name a run that trained for some steps",
            code="run-too-short",
            found=str(run),
        )
    batch = config.train.batch_size
    before = past_run.setting("train.batch_size", 0)
    samples = round(seen[-1][0] * before / seen[-1][1]) if seen else 0
    steps = duration_in_steps(config.train.duration, samples, batch)
    images = batch / ranks

    def due(every: str, pauses: tuple[float, float]) -> tuple[float, float]:
        """As many of the run's evaluations or checkpoints as the job has."""
        if not samples and not every.endswith("st"):
            return pauses[0] * steps * batch / terms.total, pauses[1]
        return float(-(-steps // interval_in_steps(every, samples, batch, steps))), pauses[1]

    return replace(
        terms,
        images=images,
        device=terms.device * images / terms.images,
        total=float(steps * batch),
        scores=due(config.eval.every, terms.scores),
        saves=due(config.checkpoint.every, terms.saves),
    )


def _unknown(name: str, run: Path) -> str:
    if not name:
        return (
            f"{run}: it does not say on which type of machine it ran: give it with --on, such "
            "as --on ml.g5.xlarge"
        )
    near = closest(name, all_types(), 0.6)
    fix = (
        f"did you mean {near}?"
        if near
        else "sagemaker.csv and vertex.csv in segtrain/machines list the types"
    )
    return f"--on={name}: unknown machine type: {fix}"
