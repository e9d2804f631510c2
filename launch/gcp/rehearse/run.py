"""Rehearsal: plays the exact request that would be sent to Vertex AI on this machine."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.bundle import all_settings
from launch.gcp.arguments import PLANTS
from launch.gcp.job import VertexJob
from launch.gcp.preflight.machines import ALONE
from launch.gcp.rehearse import plan
from launch.gcp.rehearse.play import GRACE_S
from launch.gcp.rehearse.replicas import Orders
from launch.gcp.rehearse.report import Report, load, show
from launch.job import ROOT
from launch.preflight import files_of_weights
from launch.rehearse import apart, drawn, fit, network
from launch.rehearse.cluster import read_plant, refuse_rank
from segtrain.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from segtrain.config import Config


def rehearse(
    job: VertexJob,
    request: Mapping[str, Any],
    bundle: Path,
    *,
    hosts: int | None = None,
    procs: int | None = None,
    sample: Path | None = None,
    plant: str = "",
    folder: Path,
    say: Callable[[str], None] = print,
    settings: Mapping[str, Any] | None = None,
    namespaces: bool = True,
    grace_s: float = GRACE_S,
) -> Report:
    """Play ``request``, from ``launch.gcp.request.custom_job``, with the code in ``bundle``.

    ``hosts`` and ``procs``: numbers of hosts and of ranks per host, if they differ from the job's. ``sample``: a local
    folder used as the data. ``settings``: settings of the training for the rehearsal only. ``namespaces=False``: use no
    namespaces, as on a kernel without them. Raises ConfigError, MissingExtra, or SegtrainError if the rehearsal itself
    cannot go on; a job that fails gives a Report.
    """
    read_plant(plant, PLANTS)
    if sample is not None and not sample.is_dir():
        raise ConfigError(f"--sample {sample}: there is no such folder", code="sample-missing", file=str(sample))
    if importlib.util.find_spec("obstore") is None:
        raise MissingExtra("obstore", "buckets", "--rehearse")
    folder = folder.resolve()
    with apart.stage(folder, sample, say) as guard:
        prefix, how = network.namespaces() if namespaces else (None, "it was told to do without")
        without = "with another port in CLUSTER_SPEC, and their entry point is not process 1"
        said = [
            network.said(prefix, how, without),
            "no image: the containers run in this Python, and pip is not called",
        ]
        stage = plan.set_stage(request, hosts=hosts, isolated=prefix is not None)
        local = plan.local_ranks(job, procs)
        refuse_rank(plant, len(stage.hosts) * local)
        place = _place_of_data(job)
        changes, sample = _changes(job, place, len(stage.hosts), local, sample, settings or {}, folder, said)
        if plant:
            changes.setdefault("log.every", 1)  # the log lines of the steps tell when to inject the fault
        orders = Orders(
            request=request,
            bundle=str(bundle.resolve()),
            sample=str(sample.resolve()) if sample else "",
            sample_place=place if place.startswith("gs://") else "",
            folder=str(folder),
            hosts=hosts,
            settings=changes,
            plant=plant,
            isolated=prefix is not None,
            grace_s=grace_s,
            said=tuple(said),
            mark=guard.mark,
            scratch=str(guard.scratch),
        )
        return apart.perform("launch.gcp.rehearse", orders, prefix, say, load, show)


def _place_of_data(job: VertexJob) -> str:
    """The value of data.root in the containers; "" if the training reads no files."""
    found = all_settings(job, ROOT)
    if found.get("data.layout", "scenes") == "scenes":
        return ""
    return str(job.data or job.settings.get("data.root") or found.get("data.root") or "")


def _changes(
    job: VertexJob,
    place: str,
    hosts: int,
    local: int,
    sample: Path | None,
    settings: Mapping[str, Any],
    folder: Path,
    said: list[str],
) -> tuple[dict[str, Any], Path | None]:
    """The training settings that the rehearsal changes, and the folder that it uses as the data.

    ``place``: the job's data; ``local``: the number of ranks per host.
    """
    config = fit.load(job, place or "/data")
    changes = {**fit.fitting(config, hosts * local)}
    if job.strategy not in ALONE:
        changes["parallel.procs"] = local
    if config is not None:
        _refuse_weights(config, place if sample else "")
    if sample and not place:
        said.append(f"--sample {sample} is not used: the training reads no files")
    if place and sample is None:
        if config is None:
            raise MissingExtra("pydantic", "rehearse", "--rehearse without --sample")
        said.append("no --sample: the data are generated street scenes")
        sample = folder / "sample"
        changes = {**drawn.draw(sample, config), **changes}
    if place and not place.startswith("gs://"):
        changes["data.root"] = str(sample.resolve()) if sample else place
        said.append(f"{place}: a local folder instead")
    changes |= settings
    said += [f"{key}={value}" for key, value in changes.items()]
    return changes, sample


def _refuse_weights(config: Config, sample_place: str) -> None:
    """Raises ConfigError for weights that the hosts of a rehearsal lack. ``sample_place``: where the sample will be."""
    for key, weights in files_of_weights(config):
        in_sample = sample_place.startswith("gs://") and f"{weights}/".startswith(f"{sample_place.rstrip('/')}/")
        if not in_sample and not (os.path.isabs(weights) and os.path.exists(weights)):
            raise ConfigError(
                f"{key}={weights}: the hosts of a rehearsal do not have these weights: leave them out here, with "
                f"{key}={'' if key == 'model.init' else 'null'}",
                code="rehearsal-weights", key=key, found=weights,
            )  # fmt: skip
