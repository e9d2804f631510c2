"""Checks of a training on Ray: the config fits the number of ranks, and the nodes have room,
labels, and versions.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.core import preflight
from launch.core.findings import Finding, error, note
from launch.core.forecast import Unpredicted, on_nodes
from launch.core.preflight import Machines
from launch.platforms.ray.job import AUTO, RayJob

if TYPE_CHECKING:
    from segtrain.config import Config
    from segtrain.insight.plan.offers import Offers

Node = Mapping[str, Any]  # an item of ``ray.nodes()``


def offline(job: RayJob) -> tuple[list[Finding], Any]:
    """Findings about the config, and the config (None if it cannot be read)."""
    read = preflight.read_config(job, "")
    findings = list(read.findings)
    if read.config is not None and job.most != AUTO:
        findings += preflight.batch(read.config, Machines("worker", job.most, job.most))
    return findings, read.config


def sized(
    job: RayJob, config: Config | None, nodes: Sequence[Node], gpus: int
) -> tuple[RayJob, list[Finding]]:
    """The job with a number of ranks, and a note about the choice, where it was ``--workers auto``.

    ``gpus``: GPUs of each rank.
    """
    from segtrain.base.terminal import counted
    from segtrain.parallel.spawn import even_ranks

    if job.workers != AUTO:
        return job, []
    places = sum(_ranks(node["Resources"], job.cpus, gpus) for node in _fitting(job, nodes))
    ranks = even_ranks(config, places, on_gpus=bool(gpus)) if config and places else places
    text = f"--workers auto: {counted(ranks, 'rank')}, {_each(job, gpus)} each"
    if ranks < places:
        text += f"; there is room for {places}, which do not divide a micro-batch evenly"
    return replace(job, workers=max(1, ranks)), [note("ray-workers", text)] if ranks else []


def predicted(job: RayJob, config: Config, nodes: Sequence[Node], gpus: int) -> Offers:
    """The plan of the training on the nodes that its ranks get: Ray fills a node before it takes
    the next one.

    With --elastic, of as many ranks as there is room for. ``gpus``: GPUs of each rank. Raises
    Unpredicted.
    """
    fitting = [node["Resources"] for node in _fitting(job, nodes)]
    fitting.sort(key=lambda resources: -_ranks(resources, job.cpus, gpus))
    left, counts = job.most, list[int]()
    for resources in fitting:
        if count := min(left, _ranks(resources, job.cpus, gpus)):
            counts.append(count)
            left -= count
    if len(set(counts)) != 1:
        text = (
            f"the nodes get {counts} ranks, and plans are for the same number on each"
            if counts
            else "no node fits"
        )
        raise Unpredicted(text)
    kinds = [key.partition(":")[2] for key in fitting[0] if key.startswith("accelerator_type:")]
    cores = min(int(resources.get("CPU", 0)) for resources in fitting[: len(counts)])
    return on_nodes(
        job, config, len(counts), counts[0], cores, "".join(kinds[:1]) if gpus else None
    )


def room(job: RayJob, nodes: Sequence[Node], gpus: int) -> Iterator[Finding]:
    """Findings about the resources and labels of the nodes. ``gpus``: GPUs of each rank."""
    from segtrain.base.terminal import counted

    alive = [node for node in nodes if node["Alive"]]
    fitting = _fitting(job, nodes)
    wanted = ", ".join(f"{key}={text}" for key, text in job.labels.items())
    if alive and not fitting:
        yield error(
            "ray-labels",
            f"of {counted(len(alive), 'node')}, none has the labels {wanted}",
            "ray start --labels, or --label",
        )
        return
    ranks = sum(_ranks(node["Resources"], job.cpus, gpus) for node in fitting)
    if ranks >= job.least:
        return
    text = (
        f"room for {counted(ranks, 'rank')} ({_each(job, gpus)} each) on "
        f"{counted(len(fitting), 'node')}{f' with {wanted}' if wanted else ''}"
    )
    if job.autoscaling:
        yield note(
            "ray-room", f"{text}; Ray waits until the cluster has added nodes for {job.least}"
        )
    else:
        yield error(
            "ray-room",
            f"{text}, but {job.least} are asked for",
            f"--workers {max(1, ranks)}, --cpus or --gpus for less, or --autoscaling where the "
            "cluster adds nodes",
        )


def _fitting(job: RayJob, nodes: Sequence[Node]) -> list[Node]:
    return [
        node
        for node in nodes
        if node["Alive"]
        and all(node["Labels"].get(key) == text for key, text in job.labels.items())
    ]


def _each(job: RayJob, gpus: int) -> str:
    return f"{job.cpus} CPU{'s' * (job.cpus != 1)}" + (
        f" and {gpus} GPU{'s' * (gpus > 1)}" if gpus else ""
    )


def _ranks(resources: Mapping[str, float], cpus: int, gpus: int) -> int:
    found = [
        int(resources.get(name, 0) // each) for name, each in (("CPU", cpus), ("GPU", gpus)) if each
    ]
    return min(found, default=0)


def alike(looks: Sequence[Mapping[str, Any]], run: Path) -> Iterator[Finding]:
    """Findings about the answers of the nodes (``segtrain.platforms.ray.worker.describe_node``)."""
    for seen in looks:
        if not seen["sees"]:
            yield error(
                "run-folder-not-shared",
                f"{seen['host']} does not see the run folder {run}, where a start finds the "
                "checkpoints of the last",
                "--output DIR on a file system that all nodes share, or out=s3://BUCKET/FOLDER",
            )
    for what in ("python", *sorted({name for seen in looks for name in seen["packages"]})):
        found = {
            seen["host"]: seen["python"] if what == "python" else seen["packages"].get(what)
            for seen in looks
        }
        lacking = [host for host, version in found.items() if version is None]
        if lacking:
            yield error(
                "node-lacks-package",
                f"{', '.join(lacking)} has no package {what}",
                "install segtrain's packages there",
            )
        elif len(set(found.values())) > 1:
            listed = ", ".join(f"{host}: {version}" for host, version in found.items())
            yield error(
                "node-versions",
                f"{what} differs between nodes ({listed})",
                "use one environment on all nodes",
            )


def mark(run: Path) -> Path:
    """A new file in the run folder, which every node must see."""
    run.mkdir(parents=True, exist_ok=True)
    file = run / f".shared-{secrets.token_hex(4)}"
    file.touch()
    return file
