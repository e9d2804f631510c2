"""Simulates the life of a custom job on Vertex AI: pending, running, restarts of single workers, and the end."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from launch.gcp.arguments import PLANTS
from launch.gcp.rehearse import plan
from launch.gcp.rehearse.replicas import PAUSE_S, Act, Orders, Replica
from launch.gcp.rehearse.report import HostEnd, Report
from launch.gcp.rehearse.storage import StorageServer
from launch.rehearse import network
from launch.rehearse.cluster import GATEWAY, Plant, read_plant
from launch.rehearse.logs import HostLogs

MOST_RESTARTS = 5  # of one worker, as Google documents it
GRACE_S = 30.0  # between SIGTERM and SIGKILL, as on Compute Engine
LEAVE_S = 5.0  # time for the other replicas to end by themselves after the primary one has ended with 0
RANK = "segtrain.platforms.vertex_rank"


def play(orders: Orders, say: Callable[[str], None]) -> Report:
    """Play a rehearsal from start to end. Called inside the namespaces, if the kernel gives any."""
    stage, folder = plan.set_stage(orders.request, hosts=orders.hosts, isolated=orders.isolated), Path(orders.folder)
    if orders.isolated:
        network.build(stage, folder, served="storage")
    with StorageServer(GATEWAY if orders.isolated else "127.0.0.1", folder / "gcs") as store:
        act = Act(orders, stage, store, say)
        if not orders.isolated:
            from segtrain.parallel.cluster import free_port

            act.port = free_port()
        _fill(act)
        plant = read_plant(orders.plant, PLANTS)
        act.state("JOB_STATE_PENDING", f"{len(stage.hosts)} replicas")
        try:
            state, error = _attempt(act, plant)
            if state == "":
                act.state("JOB_STATE_PENDING", "new machines")
                state, error = _attempt(act, Plant())
        finally:
            act.close()
        return _report(act, state, error, plant)


def _fill(act: Act) -> None:
    """Create the buckets, and write the code bundle and the data into them."""
    orders, store = act.orders, act.store
    given = plan.environment_of(plan.container_of(act.stage.leader, orders.request))
    addresses = [*given.values(), *plan.variables(orders.request).values(), orders.sample_place]
    words = plan.command(plan.container_of(act.stage.leader, orders.request), orders.settings)
    addresses += [word.partition("=")[2].strip('"') for word in words]
    for bucket in plan.buckets(addresses):
        (store.folder / bucket).mkdir(parents=True, exist_ok=True)
    if given.get("SEGTRAIN_BUNDLE"):
        store.write(store.place(given["SEGTRAIN_BUNDLE"]), Path(orders.bundle).read_bytes())
    if orders.sample and orders.sample_place:
        shutil.copytree(orders.sample, store.place(orders.sample_place), dirs_exist_ok=True)


def _attempt(act: Act, plant: Plant) -> tuple[str, str]:
    """Run the job on one set of machines. Returns its final state and error; ("", "") if its machines are lost."""
    orders, now = act.orders, time.monotonic()
    limit = now + float(orders.request["jobSpec"].get("scheduling", {}).get("timeout", "604800s").rstrip("s"))
    flag = act.folder / "failure.now"
    variable = f"{plant.at} {RANK} {flag}" if plant.kind == "fail" else ""
    for replica in act.replicas:
        replica.due = now + (plant.at if plant.kind == "late" and replica is act.replicas[-1] else 0)
    act.state("JOB_STATE_RUNNING")
    planted = plant.kind in ("", "late")
    while True:
        now = time.monotonic()
        for replica in act.replicas:
            if replica.due and now >= replica.due:
                if plant.kind == "late" and replica is act.replicas[-1] and not replica.began:
                    act.state("LATE", f"{replica.name} starts {plant.at} s after the others (planted)")
                act.start(replica, variable)
                replica.due = 0.0
        act.note_first_step()
        if not planted and _due(plant, act.logs):
            planted = True
            if plant.kind in ("stop", "spot"):
                return _take_away(act, plant)
            _hurt(act, plant, flag)
        ended = act.take_codes()
        if act.replicas[0] in ended and act.replicas[0].codes[-1] == 0:
            act.wait(min(LEAVE_S, orders.grace_s))
            act.end(orders.grace_s)
            return "JOB_STATE_SUCCEEDED", ""
        for replica in [one for one in ended if one.codes[-1]]:
            if error := _restart(act, replica):
                act.end(orders.grace_s)
                return "JOB_STATE_FAILED", error
        if now > limit:
            act.end(orders.grace_s)
            return "JOB_STATE_FAILED", "the job ran longer than scheduling.timeout"
        time.sleep(PAUSE_S)


def _due(plant: Plant, logs: HostLogs) -> bool:
    return logs.first_step is not None if plant.kind == "fail" else logs.step >= plant.at


def _hurt(act: Act, plant: Plant, flag: Path) -> None:
    if plant.kind == "fail":
        flag.touch()
        return
    victim = act.replicas[-1]
    act.state("KILLED", f"the container of {victim.name} at step {act.logs.step} (planted)")
    if victim.container is not None:
        victim.container.kill()


def _take_away(act: Act, plant: Plant) -> tuple[str, str]:
    if plant.kind == "stop":
        act.state("JOB_STATE_CANCELLING", f"SIGTERM, then {act.orders.grace_s:.0f} s (planted)")
        act.end(act.orders.grace_s)
        return "JOB_STATE_CANCELLED", ""
    act.state("PREEMPTED", f"STOCKOUT: SIGTERM, then {act.orders.grace_s:.0f} s until the machines go (planted)")
    act.end(act.orders.grace_s)
    if _retries_disabled(act):
        return "JOB_STATE_FAILED", "The machines were taken away. With disable_retries, there are no new ones."
    return "", ""


def _retries_disabled(act: Act) -> bool:
    return bool(act.orders.request["jobSpec"].get("scheduling", {}).get("disableRetries"))


def _restart(act: Act, replica: Replica) -> str:
    """Schedule a new start of a failed container on its machine. Returns why the job fails instead, or ""."""
    code = replica.codes[-1]
    replica.failures += 1
    error = f"The {replica.name} exited with a non-zero status of {code}."
    if _retries_disabled(act):
        return f"{error} With disable_retries, it is not started again."
    if replica.failures > MOST_RESTARTS:
        return f"{error} It was restarted {MOST_RESTARTS} times."
    if replica.step == act.logs.step:
        return f"{error} It fails again at the same step; Vertex AI would start it up to {MOST_RESTARTS} times."
    replica.step = act.logs.step
    act.state("RESTART", f"{replica.name} ended with code {code} and is started again in its machine")
    again = [replica]
    if act.orders.request["jobSpec"].get("scheduling", {}).get("restartJobOnWorkerRestart"):
        act.tell("kill")
        act.wait(math.inf)
        again = act.replicas
    for one in again:
        one.due = time.monotonic()
    return ""


def _report(act: Act, state: str, error: str, plant: Plant) -> Report:
    request = act.orders.request
    act.state(state, error)
    if plant.kind in ("stop", "spot", "kill") and act.logs.step < plant.at:
        act.remarks.append(f"--plant {act.orders.plant}: the run ended at step {act.logs.step}, before that step")
    if plant.kind == "spot" and request["jobSpec"].get("scheduling", {}).get("strategy") != "SPOT":
        act.remarks.append("the request is not for spot machines, which alone are taken away: give --scheduling spot")
    model = plan.variables(request).get("AIP_MODEL_DIR", "")
    place = act.store.place(model) if model else None
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place is not None else []
    return Report(
        state=state,
        error=error,
        transitions=tuple(act.transitions),
        hosts=tuple(
            HostEnd(one.host.name, plan.pool_of(one.host), one.host.type, tuple(one.codes), one.seconds)
            for one in act.replicas
        ),
        first_step_s=act.first_step_s,
        end_s=time.monotonic() - act.began,
        objects=tuple((f"gs://{path.relative_to(act.store.folder).as_posix()}", path.stat().st_size) for path in files),
        remarks=tuple(act.remarks),
        folder=str(act.folder),
    )
