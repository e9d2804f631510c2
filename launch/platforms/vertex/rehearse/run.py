"""Rehearsal: plays the exact request that would be sent to Vertex AI on this machine."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.core.bundle import all_settings
from launch.core.findings import Say
from launch.core.job import ALONE
from launch.core.preflight import files_of_weights
from launch.core.rehearse import drawn, local_config
from launch.core.rehearse.cluster import refuse_rank
from launch.core.rehearse.process import RehearsalSpec, perform, stage
from launch.core.rehearse.report import Report
from launch.platforms.vertex.arguments import FAULTS
from launch.platforms.vertex.job import VertexJob
from launch.platforms.vertex.rehearse import plan
from segtrain.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from segtrain.config import Config


def rehearse(
    job: VertexJob,
    request: Mapping[str, Any],
    spec: RehearsalSpec,
    say: Say = print,
) -> Report:
    """Play ``request``, from ``launch.platforms.vertex.request.custom_job``.

    Raises ConfigError, MissingExtra, or SegtrainError if the rehearsal itself cannot go on; a job
    that fails gives a Report.
    """
    if importlib.util.find_spec("obstore") is None:
        raise MissingExtra("obstore", "buckets", "--rehearse")
    without = "with another port in CLUSTER_SPEC, and their entry point is not process 1"
    with stage(spec, FAULTS, without, say) as (spec, prefix):
        said = [*spec.said, "no image: the containers run in this Python, and pip is not called"]
        hosts = len(plan.set_stage(request, hosts=spec.hosts, isolated=spec.namespaces).hosts)
        local = plan.local_ranks(job, spec.procs)
        refuse_rank(spec.plant, hosts * local)
        place = _place_of_data(job)
        changes, sample = _changes(job, place, hosts, local, spec, said)
        if spec.plant:
            # the log lines of the steps tell when to inject the fault
            changes.setdefault("log.every", 1)
        spec = replace(
            spec,
            request=request,
            sample=sample,
            data_uri=place if place.startswith("gs://") else "",
            settings=changes,
            said=tuple(said),
        )
        return perform("launch.platforms.vertex.rehearse.play", spec, prefix, say)


def _place_of_data(job: VertexJob) -> str:
    """The value of data.root in the containers; "" if the training reads no files."""
    settings = all_settings(job)
    if settings.get("data.layout", "scenes") == "scenes":
        return ""
    return str(job.data or job.settings.get("data.root") or settings.get("data.root") or "")


def _changes(
    job: VertexJob, place: str, hosts: int, local: int, spec: RehearsalSpec, said: list[str]
) -> tuple[dict[str, Any], str]:
    """The training settings that the rehearsal changes, and the folder that it uses as the data.

    ``place``: the job's data; ``local``: the number of ranks per host.
    """
    config, sample = local_config.load(job, place or "/data"), spec.sample
    changes = local_config.fitting(config, hosts * local)
    if job.strategy not in ALONE:
        changes["parallel.procs"] = local
    if config is not None:
        _refuse_weights(config)
    if sample and not place:
        said.append(f"--sample {sample} is not used: the training reads no files")
    if place and not sample:
        if config is None:
            raise MissingExtra("pydantic", "rehearse", "--rehearse without --sample")
        said.append("no --sample: the data are generated street scenes")
        sample = f"{spec.folder}/sample"
        changes = {**drawn.draw(Path(sample), config), **changes}
    if place and not place.startswith("gs://"):
        changes["data.root"] = sample
        said.append(f"{place}: a local folder instead")
    changes |= spec.settings
    said += [f"{key}={value}" for key, value in changes.items()]
    return changes, sample


def _refuse_weights(config: Config) -> None:
    """Raises ConfigError for weights that the hosts of a rehearsal lack."""
    for key, weights in files_of_weights(config):
        if not (os.path.isabs(weights) and os.path.exists(weights)):
            raise ConfigError(
                f"{key}={weights}: the hosts of a rehearsal do not have these weights: leave them "
                f"out here, with {key}={'' if key == 'model.init' else 'null'}",
                code="rehearsal-weights",
                key=key,
                found=weights,
            )
