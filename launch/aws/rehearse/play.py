"""A SageMaker job's statuses in a rehearsal: Starting, Downloading, Training, Interrupted, Uploading, Completed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.aws.rehearse import attempt, channels, container
from launch.aws.rehearse import hosts as trees
from launch.aws.rehearse.plan import set_stage
from launch.aws.rehearse.report import HostEnd, Report, Transition
from launch.aws.rehearse.s3 import S3Server
from launch.aws.rehearse.sync import Sync
from launch.aws.request import code_uri
from launch.rehearse import apart, disks, network
from launch.rehearse.cluster import GATEWAY, Plant, RehearsalCluster, read_plant
from launch.rehearse.container import Container
from launch.rehearse.logs import HostLogs

TOOLKIT_STARTS = "Invoking script with the following command"  # above this line, the toolkit prints its environment


@dataclass(frozen=True)
class Orders(apart.Orders):
    procs: int | None


@dataclass
class _Act:
    """The state of a running rehearsal."""

    orders: Orders
    stage: RehearsalCluster
    store: S3Server
    logs: HostLogs
    say: Callable[[str], None]
    began: float
    transitions: list[Transition] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    first_step_s: float | None = None
    training_s: float = 0.0

    @property
    def folder(self) -> Path:
        return Path(self.orders.folder)

    @property
    def sample(self) -> Path | None:
        return Path(self.orders.sample) if self.orders.sample else None

    def base(self, host: Any) -> Path:
        return trees.base_folder(self.folder, host)

    def status(self, name: str, message: str = "") -> None:
        second = time.monotonic() - self.began
        self.transitions.append(Transition(name, second, message))
        self.say(f"{second:7.1f} s  {name}  {message}".rstrip())


def play(orders: Orders, say: Callable[[str], None]) -> Report:
    """Run the rehearsal. This process is inside the namespaces, if there are any."""
    began = time.monotonic()
    plant, folder, request = read_plant(orders.plant), Path(orders.folder), orders.request
    stage = set_stage(
        request, hosts=orders.hosts, procs=orders.procs, isolated=orders.isolated, settings=orders.settings
    )
    if orders.isolated:
        network.build(stage, folder, served="s3")
    region = json.loads(stage.hyperparameters.get("sagemaker_region", '"us-east-1"'))
    definitions = request["AlgorithmSpecification"].get("MetricDefinitions", [])
    metrics = {item["Name"]: item["Regex"] for item in definitions}
    logs = HostLogs(folder / "logs", stage.leader.name, say, metrics, after=TOOLKIT_STARTS)
    with S3Server(GATEWAY if orders.isolated else "127.0.0.1", region) as store:
        act = _Act(orders, stage, store, logs, say, began, remarks=[*orders.said, *stage.said])
        act.status("Starting", "Preparing the instances for training")
        store.put(Path(orders.bundle), code_uri(request))
        channels.upload(store, request, act.sample)
        if plant.kind == "disk":
            for host in stage.hosts:
                disks.mount(act.base(host), sum(trees.files_below(act.sample).values()) if act.sample else 0)
        ending = _attempt(act, plant)
        if ending.why == "interrupted":
            act.status("Starting", "Preparing new instances for training")
            ending = _attempt(act, Plant())
        return _report(act, ending, plant)


def _attempt(act: _Act, plant: Plant) -> attempt.Ending:
    """Run the job once, on new machines: they have only the data and the checkpoints from S3."""
    orders, request = act.orders, act.orders.request
    started = time.monotonic()
    act.status("Downloading", "Downloading input data")
    for host in act.stage.hosts:
        channels.release(act.base(host))
        trees.clear(act.base(host))
        trees.lay_out(act.base(host), host, act.stage, request)
        channels.fill(act.store, request, act.stage, host, act.base(host), act.sample, bind=orders.isolated)
        act.logs.heading(host.name, f"start {sum(t.status == 'Training' for t in act.transitions) + 1}")
    uri = request.get("CheckpointConfig", {}).get("S3Uri", "")
    with Sync(act.store, uri, _checkpoints(act)) as sync:
        act.status("Training", "Training image download completed. Training in progress.")
        flag = act.folder / "failure.now"
        variable = attempt.plant_variable(plant, act.stage.hyperparameters, flag)
        ending = attempt.run(
            [_start(act, host, variable) for host in act.stage.hosts],
            act.logs,
            plant,
            flag=flag,
            fill_disks=lambda: _fill_disks(act),
            grace_s=orders.grace_s,
            limit_s=float(request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 86400)),
            tell=act.status,
        )
    act.training_s += time.monotonic() - started
    if act.logs.first_step is not None and act.first_step_s is None:
        act.first_step_s = act.logs.first_step - ending.began
    if sync.contested:
        act.remarks.append(
            f"several hosts wrote {', '.join(sync.contested[:3])} into the checkpoints: in S3 the last one wins"
        )
    if ending.killed:
        act.remarks.append(f"{', '.join(ending.killed)} had to be killed: what was not in S3 by then is lost")
    return ending


def _checkpoints(act: _Act) -> dict[str, Path]:
    found = {}
    for host in act.stage.hosts:
        if (folder := trees.checkpoint_folder(act.base(host), act.orders.request)) is not None:
            found[host.name] = folder
    return found


def _start(act: _Act, host: Any, plant: str) -> Container:
    orders = act.orders
    env = container.environment(
        orders.request,
        act.stage,
        act.base(host),
        store=act.store.environment(),
        mark=f"{orders.mark}-{uuid.uuid4().hex}",
        scratch=orders.scratch,
        isolated=orders.isolated,
        plant=plant,
    )
    argv = container.command(orders.request)
    if read_plant(orders.plant).kind == "absent" and not host.trains:
        argv = container.unconnected(argv)
    return Container(host, act.base(host), act.folder, argv, env, orders.isolated, container.MOUNTS)


def _fill_disks(act: _Act) -> None:
    act.say(f"{time.monotonic() - act.began:7.1f} s  the disk of each host is full from here on (planted)")
    for host in act.stage.hosts:
        disks.fill(act.base(host))


def _report(act: _Act, ending: attempt.Ending, plant: Plant) -> Report:
    hosts = tuple(
        HostEnd(
            host.name,
            host.group,
            host.type,
            code,
            end - ending.began,
            trees.files_below(act.base(host) / "model"),
            trees.failure(act.base(host)),
        )
        for host, code, end in zip(act.stage.hosts, ending.codes, ending.ends)
    )
    status, reason = "Completed", ""
    if ending.why in ("stopped", "timeout"):
        status = "Stopped"
    elif any(host.code for host in hosts):
        status, reason = "Failed", _reason(ending, hosts)
    if any(host.model for host in hosts) or status == "Completed":
        act.status("Uploading", "Uploading generated training model")
    act.status(
        status,
        {"Failed": "Training job failed", "Stopped": "Training job stopped"}.get(status, "Training job completed"),
    )
    _notice(act, ending, plant, hosts)
    return Report(
        status=status,
        failure_reason=reason,
        transitions=tuple(act.transitions),
        hosts=hosts,
        first_step_s=act.first_step_s,
        end_s=time.monotonic() - act.began,
        training_s=act.training_s,
        metrics={name: (len(found), found[-1] if found else None) for name, found in act.logs.values.items()},
        remarks=tuple(act.remarks),
        folder=str(act.folder),
    )


def _reason(ending: attempt.Ending, hosts: tuple[HostEnd, ...]) -> str:
    """The failure of the first host that failed. SageMaker then ends the job, so later failures do not count."""
    failed = sorted(
        (host.name in ending.killed, end, host.code, host.failure) for end, host in zip(ending.ends, hosts) if host.code
    )
    _, _, code, text = failed[0]
    return f"AlgorithmError: {text}, exit code: {code}"


def _notice(act: _Act, ending: attempt.Ending, plant: Plant, hosts: tuple[HostEnd, ...]) -> None:
    """Add the remarks that a user should read before sending the job."""
    request, seen = act.orders.request, {item.status for item in act.transitions}
    if plant.kind in ("stop", "spot", "kill") and not seen & {"Stopping", "Interrupted"}:
        act.remarks.append(
            f"--plant {act.orders.plant}: the run ended at step {act.logs.step}, before that step was logged"
        )
    if plant.kind in ("spot", "kill") and not request.get("EnableManagedSpotTraining"):
        act.remarks.append(
            "the request is not for spot machines, so SageMaker would not have started it again: give --spot"
        )
    if plant.kind in ("spot", "kill") and not request.get("CheckpointConfig"):
        act.remarks.append(
            "the request has no checkpoints in S3: the second start began from scratch: give --checkpoints s3://.../"
        )
    for name, found in act.logs.values.items():
        if not found:
            act.remarks.append(f"metric {name}: no line of the log matches its regex")
    for host, told in zip(act.stage.hosts, hosts):
        if told.code == 0 and (act.base(host) / "output/failure").exists():
            act.remarks.append(
                f"{host.name} ended with code 0 although it left a failure file ({told.failure or 'empty'}): "
                "SageMaker goes by the code"
            )
    for requirement in sorted(act.logs.missing):
        act.remarks.append(
            f"{requirement} is not installed here, and a rehearsal installs nothing: pip install {requirement!r}"
        )
    writers = [host.name for host in hosts if host.model]
    twice = [name for name in act_model(hosts) if sum(name in host.model for host in hosts) > 1]
    if twice:
        act.remarks.append(
            f"{', '.join(writers)} all wrote {twice[0]} into /opt/ml/model: one of them is in model.tar.gz"
        )


def act_model(hosts: tuple[HostEnd, ...]) -> list[str]:
    return sorted({name for host in hosts for name in host.model})
