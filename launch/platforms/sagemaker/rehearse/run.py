"""A rehearsal: the request that would be sent is run on this machine with AWS's own container
toolkit.
"""

from __future__ import annotations

import importlib.util
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.core.findings import Say
from launch.core.preflight import files_of_weights
from launch.core.rehearse import drawn, local_config
from launch.core.rehearse.cluster import FAULTS, read_fault, refuse_rank
from launch.core.rehearse.process import RehearsalSpec, perform, stage
from launch.core.rehearse.report import Report
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.rehearse import channels, container
from launch.platforms.sagemaker.rehearse.plan import set_stage, starts_ranks
from launch.platforms.sagemaker.request import CHANNELS
from segtrain.errors import ConfigError, MissingExtra


def rehearse(
    job: SageMakerJob,
    request: Mapping[str, Any],
    spec: RehearsalSpec,
    say: Say = print,
) -> Report:
    """Rehearse a job. Raises ConfigError, MissingExtra, or SegtrainError if the rehearsal itself
    cannot go on. A job that fails is reported in the Report.
    """
    _refuse_missing(request)
    without = "their entry point is not process 1, and their folder is not /opt/ml"
    with stage(spec, FAULTS, without, say) as (spec, prefix):
        if spec.plant == "disk" and not spec.namespaces:
            raise ConfigError(
                "--plant disk: a small disk needs its own mount, in namespaces",
                code="plant-needs-mount",
            )
        said = list(spec.said)
        changes, sample = _changes(job, replace(spec, request=request), said)
        if read_fault(spec.plant).kind in ("stop", "spot", "kill"):
            changes.setdefault("log.every", 1)  # the log line of a step triggers the fault
        bundle = _without_requirements(Path(spec.bundle), Path(spec.folder), said)
        spec = replace(
            spec,
            request=request,
            bundle=str(bundle),
            sample=sample,
            settings=changes,
            said=tuple(said),
        )
        return perform("launch.platforms.sagemaker.rehearse.play", spec, prefix, say)


def _refuse_missing(request: Mapping[str, Any]) -> None:
    """Raises ConfigError or MissingExtra for what is missing, before anything is started."""
    container.refuse_missing_toolkit()
    for package in ("sagemaker_pytorch_container", "boto3"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "rehearse", "--rehearse")
    parameters = request.get("HyperParameters", {})
    if "helpers.groups" in parameters and importlib.util.find_spec("ray") is None:
        raise MissingExtra("ray", "ray", "--rehearse with a helping group")
    if "sagemaker_submit_directory" not in parameters:
        text = (
            "the request names no code (sagemaker_submit_directory): AWS's toolkit cannot start it"
        )
        raise ConfigError(text, code="request-without-code")


def _changes(job: SageMakerJob, spec: RehearsalSpec, said: list[str]) -> tuple[dict[str, Any], str]:
    """Settings that differ from the job's, since they were given, or CPU ranks or generated data
    need them, and the folder that is used as the data.
    """
    config, request, sample = local_config.load(job), spec.request, spec.sample
    cluster = set_stage(
        request, hosts=spec.hosts, procs=spec.procs, isolated=True, settings=spec.settings
    )
    ranks = 1
    if starts_ranks(cluster.hyperparameters):
        ranks = sum(host.trains for host in cluster.hosts) * (spec.procs or 1)
    refuse_rank(spec.plant, ranks)
    changes = {**local_config.fitting(config, ranks), **spec.settings}
    filled = channels.of_data(request)
    whole = sample and (len(filled) == 1 or channels.divided(Path(sample), request))
    if config is not None and not whole:
        _refuse_weights(config, [channel["ChannelName"] for channel in filled])
    if filled and not sample:
        if config is None:
            raise MissingExtra("pydantic", "rehearse", "--rehearse without --sample")
        said.append("no --sample: the channels are filled with generated street scenes")
        sample = f"{spec.folder}/sample"
        changes = {**drawn.draw(Path(sample), config), **changes}
    if filled and any(channel.get("InputMode") == "FastFile" for channel in filled):
        said.append("FastFile channels are copied to the disk before the start, as File")
    if any("FileSystemDataSource" in channel["DataSource"] for channel in filled):
        said.append("file systems (FSx, EFS): a local folder instead")
    return changes, sample


def _refuse_weights(config: Any, names: list[str]) -> None:
    """Raises ConfigError if the run reads weights from a channel: in this rehearsal the channels
    hold only images.
    """
    for key, place in files_of_weights(config):
        if place.startswith(f"{CHANNELS}/"):
            folders = " and ".join(f"DIR/{name}" for name in names)
            raise ConfigError(
                f"{key}={place}: a rehearsal needs these weights: --sample DIR, with {folders}",
                code="rehearsal-weights",
                key=key,
                found=place,
            )


def _without_requirements(bundle: Path, folder: Path, said: list[str]) -> Path:
    """The bundle, without requirements.txt if this Python has no pip.

    AWS's toolkit runs ``pip install -r requirements.txt``. Without an index, pip only checks that
    all packages are installed.
    """
    if importlib.util.find_spec("pip") is not None:
        said.append(
            "requirements.txt: pip is given no index: what is not installed here is an error, "
            "nothing is fetched"
        )
        return bundle
    said.append("requirements.txt is left out: this Python has no pip")
    target = folder / "bundle.tar.gz"
    with tarfile.open(bundle) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            if member.name.removeprefix("./") != "requirements.txt":
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return target
