"""The life of a custom job on Vertex AI in a rehearsal: pending, running, restarts of single
workers, and the end.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from launch.core.findings import Say
from launch.core.rehearse import network
from launch.core.rehearse.buckets import BucketServer
from launch.core.rehearse.cluster import GATEWAY, Fault, RehearsalCluster, read_fault
from launch.core.rehearse.container import Container, environment
from launch.core.rehearse.play import Rehearsal, RunningHost
from launch.core.rehearse.process import RehearsalSpec
from launch.core.rehearse.report import Report
from launch.platforms.vertex.arguments import FAULTS
from launch.platforms.vertex.rehearse import plan

MOST_RESTARTS = 5  # of one worker, as Google documents it
# time for the other replicas to end by themselves after the primary one has ended with 0
LEAVE_S = 5.0


class VertexRehearsal(Rehearsal):
    PENDING, STOPPING, INTERRUPTED = "JOB_STATE_PENDING", "JOB_STATE_CANCELLING", "PREEMPTED"
    TIMEOUT = "TIMEOUT"
    GRACE_S = 30.0  # as on Compute Engine
    program = "segtrain.platforms.vertex.rank"

    def __init__(
        self,
        spec: RehearsalSpec,
        stage: RehearsalCluster,
        store: BucketServer,
        say: Say,
    ) -> None:
        super().__init__(spec, stage, say, {})
        self.store, self.request, self.port = store, spec.request, plan.PORT
        self.scheduling = spec.request["jobSpec"].get("scheduling", {})
        self.error = ""  # why the job has failed
        if not spec.namespaces:
            from segtrain.parallel.cluster import free_port

            self.port = free_port()

    def attempt(self, plant: Fault) -> str:
        self.status("JOB_STATE_RUNNING")
        why = self.watch(plant, float(self.scheduling.get("timeout", "604800s").rstrip("s")))
        if why == "timeout":
            self.error = "the job ran longer than scheduling.timeout"
        elif why == "interrupted" and self.scheduling.get("disableRetries"):
            self.error = "The machines were taken away, and disable_retries forbids new ones."
            why = "ended"
        return why

    def container(self, running: RunningHost, fault: str) -> Container:
        """Start the container of a replica, with an empty disk and the same name as before."""
        host, base = running.host, running.base
        shutil.rmtree(base, ignore_errors=True)
        (base / "tmp").mkdir(parents=True)
        described = plan.container_of(self.request)
        own = {
            **plan.variables(self.request),
            "CLUSTER_SPEC": plan.cluster_spec(host, self.stage, self.request, self.port),
            **plan.environment_of(described),
            **self.store.google_environment(),
            # Missing packages are not installed: pip would install them into this machine's Python.
            "SEGTRAIN_PIP": "0",
            "SEGTRAIN_CODE": str(base / "code"),
            "SEGTRAIN_CACHE": str(base / "cache"),
            "TMPDIR": str(base / "tmp"),
        }
        argv = plan.command(described, self.spec.settings)
        return Container(
            host, base, self.folder, argv, environment(self.spec, fault, own), self.spec.namespaces
        )

    def on_exit(self, ended: Sequence[RunningHost]) -> str:
        """The job ends with its first replica. A replica that fails is started again on its
        machine.
        """
        if self.hosts[0] in ended and self.hosts[0].codes[-1] == 0:
            self.wait(min(LEAVE_S, self.grace_s))
            self.end()
            return "ended"
        for running in ended:
            if running.codes[-1] == 0:
                continue
            self.error = self._restart(running)
            if self.error:
                self.end()
                return "ended"
        return ""

    def lose_machine(self) -> str:
        victim = self.hosts[-1]
        self.status(
            "KILLED", f"the container of replica {victim.name} at step {self.logs.step} (planted)"
        )
        if victim.container is not None:
            victim.container.kill()
        return ""

    def _restart(self, running: RunningHost) -> str:
        """Plan a new start of a failed container on its machine. Returns why the job fails instead,
        or "".
        """
        code = running.codes[-1]
        running.failures += 1
        error = f"The replica {running.name} exited with a non-zero status of {code}."
        if self.scheduling.get("disableRetries"):
            return f"{error} With disable_retries, it is not started again."
        if running.failures > MOST_RESTARTS:
            return f"{error} It was restarted {MOST_RESTARTS} times."
        if running.step == self.logs.step:
            return (
                f"{error} It fails again at the same step; Vertex AI would start it up to "
                f"{MOST_RESTARTS} times."
            )
        running.step = self.logs.step
        self.status(
            "RESTART",
            f"replica {running.name} ended with code {code} and is started again in its machine",
        )
        again = [running]
        if self.scheduling.get("restartJobOnWorkerRestart"):
            self.kill()
            again = self.hosts
        for replica in again:
            replica.due = time.monotonic()
        return ""


def play(spec: RehearsalSpec, say: Say) -> Report:
    """Play a rehearsal from start to end. Called inside the namespaces, if the kernel gives any."""
    stage, folder = (
        plan.set_stage(spec.request, hosts=spec.hosts, isolated=spec.namespaces),
        Path(spec.folder),
    )
    if spec.namespaces:
        network.build(stage, folder, served="storage")
    with BucketServer(GATEWAY if spec.namespaces else "127.0.0.1", folder / "gcs") as store:
        rehearsal = VertexRehearsal(spec, stage, store, say)
        _fill(rehearsal)
        plant = read_fault(spec.plant, FAULTS)
        rehearsal.status("JOB_STATE_PENDING", f"{len(stage.hosts)} replicas")
        return _report(rehearsal, rehearsal.run(plant), plant)


def _fill(rehearsal: VertexRehearsal) -> None:
    """Create the buckets, and write the code bundle and the data into them."""
    spec, store = rehearsal.spec, rehearsal.store
    described = plan.container_of(spec.request)
    environment = plan.environment_of(described)
    addresses = [*environment.values(), *plan.variables(spec.request).values(), spec.data_uri]
    addresses += [
        word.partition("=")[2].strip('"') for word in plan.command(described, spec.settings)
    ]
    for bucket in plan.buckets(addresses):
        (store.folder / bucket).mkdir(parents=True, exist_ok=True)
    if environment.get("SEGTRAIN_BUNDLE"):
        store.write(store.place(environment["SEGTRAIN_BUNDLE"]), Path(spec.bundle).read_bytes())
    if spec.sample and spec.data_uri:
        shutil.copytree(spec.sample, store.place(spec.data_uri), dirs_exist_ok=True)


def _report(rehearsal: VertexRehearsal, why: str, plant: Fault) -> Report:
    state = "JOB_STATE_SUCCEEDED"
    if why == "stopped":
        state = "JOB_STATE_CANCELLED"
    elif rehearsal.error:
        state = "JOB_STATE_FAILED"
    rehearsal.status(state, rehearsal.error)
    if plant.kind == "spot" and rehearsal.scheduling.get("strategy") != "SPOT":
        text = (
            "the request is not for spot machines, which alone are taken away: give "
            "--scheduling spot"
        )
        rehearsal.remarks.append(text)
    store, model = rehearsal.store, {}
    if address := plan.variables(rehearsal.request).get("AIP_MODEL_DIR", ""):
        for path in sorted(store.place(address).rglob("*")):
            if path.is_file():
                model[f"gs://{path.relative_to(store.folder).as_posix()}"] = path.stat().st_size
    return rehearsal.report(state, rehearsal.error, model)
