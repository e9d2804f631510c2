"""A rehearsal: the very request that would be sent, played on this machine with AWS's own container toolkit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launch.aws.job import SageMakerJob
from launch.aws.preflight.training import CHANNELS
from launch.aws.rehearse import channels, container
from launch.aws.rehearse.attempt import GRACE_S
from launch.aws.rehearse.plan import set_stage, starts_ranks
from launch.aws.rehearse.play import Orders
from launch.aws.rehearse.report import Report, load, show
from launch.job import PACKAGE, ROOT
from launch.preflight import files_of_weights
from launch.rehearse import drawn, fit, network
from launch.rehearse.cluster import read_plant, refuse_rank
from launch.rehearse.guard import MARK, Guard, left
from segtrain.errors import ConfigError, MissingExtra, SegtrainError


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
    """``settings``: of segtrain, for the rehearsal alone (``{"train.duration": "20st"}``). ``namespaces=False``: do
    without, as where the kernel gives none. ``grace_s``: between SIGTERM and SIGKILL.

    Raises ConfigError, MissingExtra, and SegtrainError where the rehearsal itself cannot go on; a job that fails is a
    Report.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    _look(request, plant, sample)
    with _signals_end_it(), Guard(folder) as guard:
        try:
            return _rehearse(
                job,
                request,
                bundle,
                hosts,
                procs,
                sample,
                plant,
                folder,
                say,
                settings or {},
                namespaces,
                grace_s,
                guard,
            )
        finally:
            with contextlib.suppress(OSError):  # the terminal may be gone
                say(f"  on disk: {left(folder)}")


def _rehearse(
    job: SageMakerJob,
    request: Mapping[str, Any],
    bundle: Path,
    hosts: int | None,
    procs: int | None,
    sample: Path | None,
    plant: str,
    folder: Path,
    say: Callable[[str], None],
    settings: Mapping[str, Any],
    namespaces: bool,
    grace_s: float,
    guard: Guard,
) -> Report:
    prefix, how = network.namespaces() if namespaces else (None, "it was told to do without")
    said = [_said_of_network(prefix, how)]
    if plant == "disk" and prefix is None:
        raise ConfigError(f"--plant disk: a small disk needs its own mount, and {how}")
    changes = _changes(job, request, folder, hosts, procs, sample, settings, plant, said)
    if read_plant(plant).kind in ("stop", "spot", "kill"):
        changes.setdefault("log.every", 1)  # the moment is known from the lines of the steps
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
    for line in said:
        say(f"note: {line}")
    report = _play(orders, prefix or [], folder, say)
    say("")
    for line in show(report).splitlines():
        say(line)
    return report


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) end a rehearsal as Ctrl-C does: its processes are ended, and what it
    leaves is said.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _look(request: Mapping[str, Any], plant: str, sample: Path | None) -> None:
    """What can be known to be missing before anything is started."""
    read_plant(plant)
    container.toolkit_folder()
    for package in ("sagemaker_pytorch_container", "moto", "boto3", "flask"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "rehearse", "--rehearse")
    if sample is not None and not sample.is_dir():
        raise ConfigError(f"--sample {sample}: there is no such folder")
    if "sagemaker_submit_directory" not in request.get("HyperParameters", {}):
        raise ConfigError("the request names no code (sagemaker_submit_directory): AWS's toolkit cannot start it")


def _said_of_network(prefix: list[str] | None, how: str) -> str:
    if prefix is not None:
        return f"each host has its own network, names, and processes ({how}); gloo instead of NCCL"
    return (
        f"no namespaces ({how}): the hosts are 127.0.0.1, 127.0.0.2, ... on one loopback network, their entry "
        "point is not process 1 and their folder not /opt/ml; gloo instead of NCCL"
    )


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
    """The settings that are others here: what was given, what CPU ranks need, what drawn data need."""
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
    """Raises ConfigError where the run begins with weights of a channel: pictures would lie there in their place."""
    for key, place in files_of_weights(config):
        if place.startswith(f"{CHANNELS}/"):
            folders = " and ".join(f"DIR/{name}" for name in names)
            raise ConfigError(f"{key}={place}: a rehearsal needs these weights: --sample DIR, with {folders}")


def _without_requirements(bundle: Path, folder: Path, said: list[str]) -> Path:
    """AWS's toolkit runs ``pip install -r requirements.txt``.

    Without an index pip looks whether all is there; without pip nobody can.
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


def _play(orders: Orders, prefix: list[str], folder: Path, say: Callable[[str], None]) -> Report:
    """In a process of its own, since namespaces are entered by processes. All that it started ends with it."""
    told, done, wrong = folder / "orders.json", folder / "report.json", folder / "error.txt"
    for old in (done, wrong, folder / "failure.now"):
        old.unlink(missing_ok=True)
    told.write_text(json.dumps(asdict(orders)))
    command = [*prefix, sys.executable, "-m", "launch.aws.rehearse", str(told)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PACKAGE.parent}", "PATH": network.search_path()}
    env[MARK] = orders.mark
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    last = ""
    try:
        for line in process.stdout:
            last = line.rstrip("\n") or last
            say(line.rstrip("\n"))
        code = process.wait()
    except BaseException:
        _end(process, alone=bool(prefix))
        raise
    finally:
        process.stdout.close()
    if wrong.is_file():
        raise ConfigError(wrong.read_text())
    if not done.is_file():
        raise SegtrainError(f"the rehearsal itself broke down with code {code}: {last}")
    return load(done)


def _end(process: subprocess.Popen[str], alone: bool) -> None:
    """``alone``: in namespaces of its own, which take all its processes with them; else it has to end them itself."""
    if not alone:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    process.kill()
    process.wait()
