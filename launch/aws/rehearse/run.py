"""A rehearsal: the request that would be sent is run on this machine with AWS's own container toolkit."""

from __future__ import annotations

import importlib.util
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.aws.job import SageMakerJob
from launch.aws.rehearse import channels, container
from launch.aws.rehearse.attempt import GRACE_S
from launch.aws.rehearse.plan import set_stage, starts_ranks
from launch.aws.rehearse.play import Orders
from launch.aws.rehearse.report import Report, load, show
from launch.aws.request import CHANNELS
from launch.preflight import files_of_weights
from launch.rehearse import apart, drawn, fit, network
from launch.rehearse.cluster import read_plant, refuse_rank
from segtrain.errors import ConfigError, MissingExtra


def rehearse(
    job: SageMakerJob,
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
    """Rehearse a job. ``settings``: changed settings of segtrain, for the rehearsal only (``{"train.duration":
    "20st"}``). ``namespaces=False``: use no Linux namespaces, as if the kernel did not allow them. ``grace_s``: time
    between SIGTERM and SIGKILL.

    Raises ConfigError, MissingExtra, or SegtrainError if the rehearsal itself cannot go on. A job that fails is
    reported in the Report.
    """
    folder = folder.resolve()
    _look(request, plant, sample)
    with apart.stage(folder, sample, say) as guard:
        prefix, how = network.namespaces() if namespaces else (None, "namespaces are switched off")
        said = [network.said(prefix, how, "their entry point is not process 1, and their folder is not /opt/ml")]
        if plant == "disk" and prefix is None:
            raise ConfigError(f"--plant disk: a small disk needs its own mount, and {how}")
        changes = _changes(job, request, folder, hosts, procs, sample, settings or {}, plant, said)
        if read_plant(plant).kind in ("stop", "spot", "kill"):
            changes.setdefault("log.every", 1)  # the log line of a step triggers the fault
        if sample is None and (folder / "sample").is_dir():
            sample = folder / "sample"
        orders = Orders(
            request=request,
            bundle=str(_without_requirements(bundle.resolve(), folder, said)),
            sample=str(sample.resolve()) if sample else "",
            folder=str(folder),
            hosts=hosts,
            procs=procs,
            settings=changes,
            plant=plant,
            isolated=prefix is not None,
            grace_s=grace_s,
            said=tuple(said),
            mark=guard.mark,
            scratch=str(guard.scratch),
        )
        return apart.perform("launch.aws.rehearse", orders, prefix, say, load, show)


def _look(request: Mapping[str, Any], plant: str, sample: Path | None) -> None:
    """Raises ConfigError or MissingExtra for what is missing, before anything is started."""
    read_plant(plant)
    container.toolkit_folder()
    for package in ("sagemaker_pytorch_container", "moto", "boto3", "flask"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "rehearse", "--rehearse")
    if "helpers.groups" in request.get("HyperParameters", {}) and importlib.util.find_spec("ray") is None:
        raise MissingExtra("ray", "ray", "--rehearse with a helping group")
    if sample is not None and not sample.is_dir():
        raise ConfigError(f"--sample {sample}: there is no such folder")
    if "sagemaker_submit_directory" not in request.get("HyperParameters", {}):
        raise ConfigError("the request names no code (sagemaker_submit_directory): AWS's toolkit cannot start it")


def _changes(
    job: SageMakerJob,
    request: Mapping[str, Any],
    folder: Path,
    hosts: int | None,
    procs: int | None,
    sample: Path | None,
    settings: Mapping[str, Any],
    plant: str,
    said: list[str],
) -> dict[str, Any]:
    """Settings that differ from the job's: those that were given, and those that CPU ranks and generated data need."""
    config = fit.load(job)
    stage = set_stage(request, hosts=hosts, procs=procs, isolated=True, settings=settings)
    ranks = sum(host.trains for host in stage.hosts) * (procs or 1) if starts_ranks(stage.hyperparameters) else 1
    refuse_rank(plant, ranks)
    changes = {**fit.fitting(config, ranks), **settings}
    filled = channels.of_data(request)
    whole = sample is not None and (len(filled) == 1 or channels.divided(sample, request))
    if config is not None and not whole:
        _refuse_weights(config, [channel["ChannelName"] for channel in filled])
    if filled and sample is None:
        if config is None:
            raise MissingExtra("pydantic", "rehearse", "--rehearse without --sample")
        said.append("no --sample: the channels are filled with generated street scenes")
        changes = {**drawn.draw(folder / "sample", config), **changes}
    if filled and any(channel.get("InputMode") == "FastFile" for channel in filled):
        said.append("FastFile channels are copied to the disk before the start, as File")
    if any("FileSystemDataSource" in channel["DataSource"] for channel in filled):
        said.append("file systems (FSx, EFS): a local folder instead")
    return changes


def _refuse_weights(config: Any, names: list[str]) -> None:
    """Raises ConfigError if the run reads weights from a channel: in this rehearsal the channels hold only images."""
    for key, place in files_of_weights(config):
        if place.startswith(f"{CHANNELS}/"):
            folders = " and ".join(f"DIR/{name}" for name in names)
            raise ConfigError(f"{key}={place}: a rehearsal needs these weights: --sample DIR, with {folders}")


def _without_requirements(bundle: Path, folder: Path, said: list[str]) -> Path:
    """The bundle, without requirements.txt if this Python has no pip.

    AWS's toolkit runs ``pip install -r requirements.txt``. Without an index, pip only checks that all packages are
    installed.
    """
    if importlib.util.find_spec("pip") is not None:
        said.append(
            "requirements.txt: pip is given no index: what is not installed here is an error, nothing is fetched"
        )
        return bundle
    said.append("requirements.txt is left out: this Python has no pip")
    target = folder / "bundle.tar.gz"
    with tarfile.open(bundle) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            if member.name.removeprefix("./") != "requirements.txt":
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return target
