"""A SageMaker job's statuses in a rehearsal: Starting, Downloading, Training, Interrupted,
Uploading, Completed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launch.core.findings import Say
from launch.core.rehearse import disks, network
from launch.core.rehearse.buckets import BucketServer
from launch.core.rehearse.cluster import GATEWAY, Fault, RehearsalCluster, read_fault
from launch.core.rehearse.container import Container
from launch.core.rehearse.play import Rehearsal, RunningHost
from launch.core.rehearse.process import RehearsalSpec
from launch.core.rehearse.report import Report
from launch.platforms.sagemaker.rehearse import channels, container
from launch.platforms.sagemaker.rehearse import hosts as trees
from launch.platforms.sagemaker.rehearse.plan import SMDDP, set_stage
from launch.platforms.sagemaker.rehearse.sync import Sync
from launch.platforms.sagemaker.request import code_uri

# above this line, the toolkit prints its environment
TOOLKIT_STARTS = "Invoking script with the following command"
# after a host has failed: time for the other hosts to log the cause before they are killed
FAILED_S = 15.0


class SageMakerRehearsal(Rehearsal):
    PENDING, STOPPING, INTERRUPTED = "Starting", "Stopping", "Interrupted"
    TIMEOUT = "MaxRuntimeExceeded"
    GRACE_S = 120.0  # as documented for StopTrainingJob

    def __init__(
        self,
        spec: RehearsalSpec,
        stage: RehearsalCluster,
        store: BucketServer,
        say: Say,
    ) -> None:
        definitions = spec.request["AlgorithmSpecification"].get("MetricDefinitions", [])
        metrics = {item["Name"]: item["Regex"] for item in definitions}
        super().__init__(spec, stage, say, metrics, after=TOOLKIT_STARTS)
        self.store, self.request = store, spec.request
        self.sample = Path(spec.sample) if spec.sample else None
        self.program = stage.hyperparameters.get("sagemaker_program", '"train.py"').strip('"')

    def attempt(self, plant: Fault) -> str:
        """Run the job once, on new machines: they have only the data and the checkpoints from
        S3.
        """
        self.status("Downloading", "Downloading input data")
        checkpoints = {}
        for running in self.hosts:
            host, base = running.host, running.base
            channels.release(base)
            trees.clear(base)
            trees.lay_out(base, host, self.stage, self.request)
            channels.fill(
                self.store,
                self.request,
                self.stage,
                host,
                base,
                self.sample,
                bind=self.spec.namespaces,
            )
            if (folder := trees.checkpoint_folder(base, self.request)) is not None:
                checkpoints[host.name] = folder
        uri = self.request.get("CheckpointConfig", {}).get("S3Uri", "")
        limit_s = float(self.request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", 86400))
        with Sync(self.store, uri, checkpoints) as sync:
            self.status("Training", "Training image download completed. Training in progress.")
            why = self.watch(plant, limit_s)
        for mark in Path("/tmp").glob("done.algo-*"):  # of AWS's toolkit, after mpirun
            mark.unlink()
        if sync.contested:
            names = ", ".join(sync.contested[:3])
            self.remarks.append(
                f"several hosts wrote {names} into the checkpoints: in S3 the last one wins"
            )
        if killed := [running.name for running in self.hosts if running.killed]:
            self.remarks.append(
                f"{', '.join(killed)} had to be killed: what was not in S3 by then is lost"
            )
        return why

    def container(self, running: RunningHost, fault: str) -> Container:
        region = json.loads(self.stage.hyperparameters.get("sagemaker_region", '"us-east-1"'))
        env = container.environment(
            self.spec, self.stage, running.base, self.store.aws_environment(region), fault
        )
        argv = container.command(self.request)
        if read_fault(self.spec.plant).kind == "absent" and not running.host.trains:
            argv = container.unconnected(argv)
        isolated, mounts = self.spec.namespaces, container.MOUNTS
        if self.stage.hyperparameters.get(SMDDP) == "true":
            mounts += container.SSH
            container.add_ssh(running.base, self.spec.scratch)
        return Container(running.host, running.base, self.folder, argv, env, isolated, mounts)

    def on_exit(self, ended: Sequence[RunningHost]) -> str:
        """A host that fails ends the job."""
        if any(running.codes[-1] for running in ended):
            self.wait(FAILED_S)
            self.kill()
        return "" if any(running.container is not None for running in self.hosts) else "ended"

    def lose_machine(self) -> str:
        self.status(
            "Interrupted",
            "Training job was interrupted: its machines were reclaimed without notice (planted)",
        )
        self.kill()
        return "interrupted"


def play(spec: RehearsalSpec, say: Say) -> Report:
    """Run the rehearsal. This process is inside the namespaces, if there are any."""
    stage = set_stage(
        spec.request,
        hosts=spec.hosts,
        procs=spec.procs,
        isolated=spec.namespaces,
        settings=spec.settings,
        lacking=container.missing_for_mpirun(spec.namespaces),
    )
    if spec.namespaces:
        network.build(stage, Path(spec.folder), served="s3")
    plant = read_fault(spec.plant)
    address = GATEWAY if spec.namespaces else "127.0.0.1"
    with (
        tempfile.TemporaryDirectory(dir=spec.folder) as objects,
        BucketServer(address, Path(objects)) as store,
    ):
        rehearsal = SageMakerRehearsal(spec, stage, store, say)
        rehearsal.status("Starting", "Preparing the instances for training")
        store.put(Path(spec.bundle), code_uri(spec.request))
        channels.upload(store, spec.request, rehearsal.sample)
        if plant.kind == "disk":
            data = sum(trees.files_below(rehearsal.sample).values()) if rehearsal.sample else 0
            for running in rehearsal.hosts:
                disks.mount(running.base, data)
        return _report(rehearsal, rehearsal.run(plant), plant)


def _report(rehearsal: SageMakerRehearsal, why: str, plant: Fault) -> Report:
    hosts = rehearsal.hosts
    models = [trees.files_below(running.base / "model") for running in hosts]
    for running in hosts:
        running.failure = trees.failure(running.base)
    status, reason = "Completed", ""
    if why in ("stopped", "timeout"):
        status = "Stopped"
    elif any(running.codes[-1] for running in hosts):
        status, reason = "Failed", _reason(hosts)
    if any(models) or status == "Completed":
        rehearsal.status("Uploading", "Uploading generated training model")
    rehearsal.status(status)
    _remark(rehearsal, plant)
    model: dict[str, int] = {}
    for running, files in zip(hosts, models):
        if twice := [name for name in files if name in model]:
            rehearsal.remarks.append(
                f"{running.name} and another host wrote {twice[0]} into /opt/ml/model: one of "
                "them is in model.tar.gz"
            )
        model |= files
    return rehearsal.report(status, reason, model)


def _reason(hosts: Sequence[RunningHost]) -> str:
    """The failure of the first host that failed. SageMaker then ends the job, so later failures do
    not count.
    """
    failed = [running for running in hosts if running.codes[-1]]
    first = min(failed, key=lambda running: (running.killed, running.ended))
    return f"AlgorithmError: {first.failure}, exit code: {first.codes[-1]}"


def _remark(rehearsal: SageMakerRehearsal, plant: Fault) -> None:
    """Add the remarks that a user should read before sending the job."""
    remarks, request = rehearsal.remarks, rehearsal.request
    if plant.kind in ("spot", "kill") and not request.get("EnableManagedSpotTraining"):
        remarks.append(
            "the request is not for spot machines, so SageMaker would not have started it again: "
            "give --spot"
        )
    if plant.kind in ("spot", "kill") and not request.get("CheckpointConfig"):
        remarks.append(
            "the request has no checkpoints in S3: the second start began from scratch: give "
            "--checkpoints s3://.../"
        )
    for name, values in rehearsal.logs.values.items():
        if not values:
            remarks.append(f"metric {name}: no line of the log matches its regex")
    for running in rehearsal.hosts:
        if running.codes[-1] == 0 and (running.base / "output/failure").exists():
            remarks.append(
                f"{running.name} ended with code 0 although it left a failure file "
                f"({running.failure or 'empty'}): SageMaker goes by the code"
            )
    for requirement in sorted(rehearsal.logs.missing):
        remarks.append(
            f"{requirement} is not installed here, and a rehearsal installs nothing: pip install "
            f"{requirement!r}"
        )
