"""Tests of what a process inside a job finds, as tables: its rank, its settings, its texts of
failures, and what pools and registers of helpers decide.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden

from segtrain.data.workers.made import NO_COST, SampleCounts
from segtrain.errors import SegtrainError
from segtrain.parallel.cluster import Cluster, discover
from segtrain.platforms import RANK_SOURCES, outcome, spot
from segtrain.platforms.ray import register
from segtrain.platforms.ray.helpers.balance import Balance
from segtrain.platforms.ray.helpers.manager import Manager
from segtrain.platforms.ray.helpers.need import SampleDemand, cores_of, lost
from segtrain.platforms.ray.helpers.protocols import HelperSlot, other_than
from segtrain.platforms.sagemaker import settings
from segtrain.platforms.sagemaker.helping import plan
from segtrain.platforms.sagemaker.hosts import read_hosts
from segtrain.platforms.slurm import hosts as slurm_hosts
from segtrain.platforms.vertex import folders, rounds


def result(call: Callable[[], Any], *hidden: object) -> Any:
    """What a call returns, or its error in words."""
    try:
        return call()
    except SegtrainError as error:
        text = f"{error.code}: {error}"
        for path in hidden:
            text = text.replace(str(path), "BASE")
        return text


def place(environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields that differ from those of a process alone."""
    alone = asdict(Cluster())
    found = asdict(discover(RANK_SOURCES, environ))
    return {key: value for key, value in found.items() if value != alone[key]}


STEP = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[01-02],big7",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),1",
    "MASTER_ADDR": "10.0.0.9",
    "SLURM_STEP_GPUS": "0,1",
}
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[08-10,3]", "SLURM_JOB_NUM_NODES": "4"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}
TORCHRUN |= {"MASTER_ADDR": "10.0.0.8", "MASTER_PORT": "29777"}
POOLS = {"workerpool0": ["a:2222"], "workerpool1": ["b:3333", "c"], "workerpool2": ["d:1"]}


def spec(kind: str, index: int | str | None, **pools: Any) -> dict[str, str]:
    task = {"type": kind, **({} if index is None else {"index": index})}
    return {"CLUSTER_SPEC": json.dumps({"cluster": {**POOLS, **pools}, "task": task})}


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "nothing": {},
    "torchrun": TORCHRUN,
    "torchrun without a size": {"RANK": "5", "MASTER_ADDR": "h"},
    "srun": STEP,
    "srun with a port, restarted": {**STEP, "MASTER_PORT": "2300", "SLURM_RESTART_COUNT": "3"},
    "srun, restarted": {**STEP, "SLURM_RESTART_COUNT": "3", "SLURM_STEP_ID": "2"},
    "srun without tasks per node": {**STEP, "SLURM_STEP_TASKS_PER_NODE": ""},
    "srun without GPUs": {**STEP, "SLURM_STEP_GPUS": ""},
    "srun with a wrong rank": {**STEP, "SLURM_PROCID": "x"},
    "srun with a rank that is too large": {**STEP, "SLURM_PROCID": "9"},
    "shell of salloc": {**ALLOCATION, "SLURMD_NODENAME": "n08"},
    "shell of salloc elsewhere": ALLOCATION,
    "ray": {**TORCHRUN, "SEGTRAIN_RAY_WORKER": "1"},
    "vertex primary": spec("workerpool0", None),
    "vertex worker": spec("workerpool1", 1),
    "vertex worker with a port": {**spec("workerpool1", "0"), "MASTER_PORT": "1234"},
    "vertex parameter server": spec("workerpool2", 0),
    "vertex evaluator": spec("evaluator", 0, workerpool3=["e:9"]),
    "vertex alone": {"CLUSTER_SPEC": '{"task": {"type": "workerpool0"}}'},
    "vertex as TensorFlow": {
        "TF_CONFIG": '{"cluster": {"chief": ["a"], "worker": ["b:7"]}, "task": {"type": "worker"}}',
        "CLOUD_ML_JOB_ID": "1",
    },
    "vertex twice": spec("workerpool1", 0, workerpool1=["a:2222"]),
    "vertex with a wrong index": spec("workerpool1", 2),
    "vertex with two primaries": spec("workerpool1", 1, workerpool0=["a", "z"]),
    "vertex with a wrong pool": spec("workerpool4", 1),
    "vertex with a wrong port": spec("workerpool1", 1, workerpool0=["a:70000"]),
    "vertex with a text": spec("workerpool1", 1, workerpool0="a"),
    "vertex without a task": {"CLUSTER_SPEC": "{}"},
    "vertex cut off": {"CLUSTER_SPEC": "{" + "x" * 400},
}
RESOURCES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "one host": ({"current_host": "algo-1", "hosts": ["algo-1"]}, {}),
    "groups": (
        {
            "current_host": "algo-4",
            "hosts": ["algo-1", "algo-4", "algo-3", "algo-2"],
            "current_group_name": "gpu",
            "current_instance_type": "ml.g5.12xlarge",
            "network_interface_name": "eth7",
            "instance_groups": [
                {"instance_group_name": "cpu", "hosts": ["algo-1"]},
                {"instance_group_name": "gpu", "hosts": ["algo-4", "algo-2", "algo-3"]},
            ],
        },
        {"sagemaker_distribution_instance_groups": '["gpu"]', "helpers.groups": '["cpu"]'},
    ),
    "a host that does not train": (
        {
            "current_host": "algo-1",
            "hosts": ["algo-1", "algo-2"],
            "current_group_name": "cpu",
            "instance_groups": [
                {"instance_group_name": "cpu", "hosts": ["algo-1"]},
                {"instance_group_name": "gpu", "hosts": ["algo-2"]},
            ],
        },
        {"sagemaker_distribution_instance_groups": '["gpu"]'},
    ),
    "an unknown group": (
        {
            "current_host": "algo-1",
            "hosts": ["algo-1"],
            "instance_groups": [{"instance_group_name": "cpu", "hosts": ["algo-1"]}],
        },
        {"sagemaker_distribution_instance_groups": '["gpus"]'},
    ),
    "an unknown host": ({"current_host": "algo-9", "hosts": ["algo-1"]}, {}),
}


def _configure(base: Path, **files: Mapping[str, Any]) -> None:
    folder = base / "input/config"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_places_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "login.cluster.local")
    found: dict[str, Any] = {
        name: result(lambda environ=environ: place(environ))
        for name, environ in ENVIRONMENTS.items()
    }
    for number, (name, (resources, parameters)) in enumerate(RESOURCES.items()):
        base = tmp_path / str(number)
        _configure(base, resourceconfig=resources, hyperparameters=parameters)
        for more in ({}, TORCHRUN):
            environ = {"SAGEMAKER_BASE_DIR": str(base), **more}
            title = f"sagemaker: {name}{', torchrun' if more else ''}"
            found[title] = result(lambda environ=environ: place(environ), base)
        hosts = base / "input/config/resourceconfig.json"
        found[f"hosts: {name}"] = result(lambda hosts=hosts: read_hosts(hosts), base)
    found["lists of hosts"] = {
        text: slurm_hosts.expand_hosts(text)
        for text in ("n[01-03,7],m2,k[9-10]-x", "a", "r[098-101]", "")
    }
    golden.check("inside/places.txt", golden.data(found))


def test_settings_of_sagemaker(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINING_JOB_NAME", "crowd-7")
    parameters = {
        "config": '"configs/a.yaml"',
        "optim.lr": "0.03",
        "train.compile": "True",
        "data.train_split": '"7"',
        "train.duration": "3ep",
        "data.crop": "[96, 128]",
        "sagemaker_program": '"train.py"',
        "helpers.join_s": "77.5",
        "helpers.required": "true",
    }
    resources, groups = RESOURCES["groups"]
    _configure(tmp_path, hyperparameters={**parameters, **groups}, resourceconfig=resources)
    found: dict[str, Any] = {"settings": settings.read_settings(tmp_path)}
    found["plain folder"] = settings.run_folder(tmp_path)
    for name, path in (("folder", "/opt/ml/checkpoints/x"), ("other folder", "/mnt/y")):
        _configure(tmp_path, checkpointconfig={"LocalPath": path})
        found[name] = settings.run_folder(tmp_path)
    _configure(tmp_path, hyperparameters={settings.TUNED: "x"})
    found["folder of a trial"] = settings.run_folder(tmp_path)
    found["no channel"] = settings.channel(tmp_path, {})
    _configure(tmp_path, inputdataconfig={"code": {}, "scans": {}})
    found["one channel"] = settings.channel(tmp_path, {})
    found["named channel"] = settings.channel(tmp_path, {"SM_CHANNEL_TRAIN": "/x/y"})
    _configure(tmp_path, inputdataconfig={"scans": {}, "masks": {}})
    found["two channels"] = result(lambda: settings.channel(tmp_path, {}))
    (tmp_path / "input/config/hyperparameters.json").write_text("[1]")
    found["a list"] = result(lambda: settings.read_settings(tmp_path))
    _configure(tmp_path, hyperparameters={**parameters, **groups})
    monkeypatch.setattr("segtrain.platforms.sagemaker.helping.token", lambda *_: "TOKEN")
    hosts = read_hosts(tmp_path / "input/config/resourceconfig.json")
    found["helpers"] = plan(tmp_path, hosts, {})
    places = ("/gcs/bucket/run 7/", "/mnt/run/", "gs://bucket/run", "")
    found["vertex"] = {place: folders.run_folder(place) for place in places}
    text = golden.data(found).replace(str(tmp_path), "BASE")
    golden.check("inside/settings.txt", text)


def test_texts_of_failures(tmp_path, capsys, monkeypatch):
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    texts = [outcome.shortened("abcdefghij" * 2, most) for most in (19, 20, 11, 8)]
    texts += [outcome.cause(SegtrainError("two\n lines")), outcome.cause(ValueError())]
    texts += [outcome.cause(ValueError("x" * 700))]
    try:
        raise KeyError("a name")
    except KeyError as error:
        texts.append(outcome.cause(error).partition(" (")[0])
    lost_rank = f"rank 3 {outcome.LOST}"
    for number, order in enumerate(
        (["first", "second"], [lost_rank, "the cause"], [lost_rank, f"5 {outcome.LOST}"])
    ):
        for text in order:
            outcome.write_failure(text, [tmp_path / f"{number}/failure"])
        texts.append((tmp_path / f"{number}/failure").read_text())
    codes = [
        outcome.say_error(SegtrainError("of all", exit_code=75), "said"),
        outcome.say_error(ValueError("x"), "said too"),
    ]
    texts += [f"exit codes {codes}", capsys.readouterr().err]
    for value in ("", "0", "-1", "inf", "nan", "x"):
        watched = result(
            lambda value=value: spot.watch(SimpleNamespace(local_rank=1), {spot.EVERY: value})
        )
        texts.append(f"SEGTRAIN_SPOT_S={value!r}: {watched}")
    notice = spot.SpotNotice("http://169.254.0.1/")
    for text in ('{"action": "stop", "time": "2026-11-23T08:22:00Z"}', "{}", "[", "y" * 99):
        monkeypatch.setattr(notice, "_ask", lambda *_, text=text: text)
        texts.append(notice.poll())
    golden.check("inside/failures.txt", "\n".join(texts))


class Line:
    """A connection that writes down what is sent."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def send(self, **message: Any) -> None:
        self.said.append(f"  -> {self.name}: {json.dumps(message)}")


def test_messages_of_registers(monkeypatch):
    monkeypatch.setattr(rounds, "free_port", lambda: 29501)
    said: list[str] = []
    node = SimpleNamespace(running=True, last="its last line")
    helpers = register.HelpPlan(
        "algo-1", ("algo-1",), ("algo-2", "algo-3", "algo-4"), "TOKEN", 77.5
    )
    server: Any = register.Register(helpers, node, said.append, port=0)  # type: ignore[arg-type]
    lines = {name: Line(name, said) for name in ("algo-2", "algo-3", "algo-9", "algo-4")}
    _take(server, lines["algo-2"], said, host="algo-2", token="TOKEN")
    server.open()
    _take(server, lines["algo-3"], said, host="algo-3", token="TOKEN")
    _take(server, lines["algo-9"], said, host="algo-9", token="TOKEN")
    _take(server, lines["algo-4"], said, host="algo-4", token="wrong")
    _take(server, lines["algo-2"], said, joined=True)
    _take(server, lines["algo-3"], said, failed="no ray")
    said.append(f"missing {server.missing}, {result(lambda: server.wait([]))}")
    server._tick()
    server._due = 0.0
    node.running = False
    for _ in range(2):
        server._tick()
    server._gone("algo-2")
    server.over()
    server._gone("algo-3")
    server._listener.close()

    said.append("\n## rounds")
    server = rounds.Coordinator(["a", "b", "c"], 0, said.append, say_s=0.0)
    members = [Line(name, said) for name in "abc"]
    _take(server, members[0], said, host=0, here=4, hosts=2)
    for host, ranks in enumerate((4, 2, 3)):
        _take(server, members[host], said, host=host, here=ranks, hosts=3)
        server._tick()
    _take(server, members[1], said, host=1, done=True)
    _take(server, members[2], said, host=2, again="was stopped", saving=True)
    for host in (2, 0, 1):
        _take(server, members[host], said, host=host, here=host + 5, hosts=3)
    for host in (0, 1, 2):
        _take(server, members[host], said, host=host, done=True)
    for host in (0, 1, 2):
        _take(server, members[host], said, host=host, here=1, hosts=3)
    _take(server, Line("b again", said), said, host=1, here=2, hosts=3)
    server._gone(2)
    server._listener.close()
    golden.check("inside/messages.txt", "\n".join(said))


def _take(server: Any, line: Line, said: list[str], **message: Any) -> None:
    said.append(f"{line.name}: {json.dumps(message)}")
    try:
        server._take(line, message)
    except ValueError as error:
        said.append(f"  {error!r}")


def test_decisions_about_helpers():
    said: list[str] = []
    demand = SampleDemand()
    for step, count in enumerate((5, 7, 11, 13, 6, 9, 8, 12, 4, 10, 3)):
        demand.taken(2.0 * step, count)
        rate = demand.rate(2.0 * step + 0.5)
        limits = [
            demand.more_than(limit, 2.0 * step + 0.5)
            for limit in (0, rate, 1.25 * rate, 1.26 * rate)
        ]
        said.append(f"demand {step}: {rate:.5g} {demand.rate(1e6):.5g} {limits}")
    balance = Balance()
    for look in range(14):
        costs = (0.008, 0.0079, 0.002, 0.002)[look // 4]  # receiving: dear, as dear, cheap
        balance.made = balance.made.plus(0.08, 7 + look % 3, 900)
        balance.received = balance.received.plus(33 * costs, 30 + 2 * (look % 4), 33 * 90)
        changed = balance.changed()
        costs_ms = f"{balance.receive_ms:.5g} {balance.make_ms:.5g}"
        said.append(f"balance {look}: {changed} {balance.given_up} {costs_ms}")
        if changed:
            said.append(f"  {balance.line('14 cores on 3 hosts')}")
    said.append(cores_of(Counter({"a": 3, "b": 4})))
    losses = [("a", "gone", 7, False), ("b", "other torch", 0, True), ("a", "gone", 4, False)]
    said += [json.dumps(event) for event in lost(losses)]
    made = SampleCounts(
        2, "thread", 31, {"a": 40, "b": 29}, 14, 5, NO_COST.plus(0.31, 31, 5), NO_COST
    )
    said += [made.line("samples"), json.dumps(made.to_dict())]
    manager: Any = Manager.__new__(Manager)
    manager.helping = {
        number: SimpleNamespace(slot=SimpleNamespace(host="ab"[number % 2]), working=number != 3)
        for number in range(5)
    }
    said.append(f"{manager.cores()}")
    manager._lock, manager._ended = threading.Lock(), threading.Event()
    manager._told, manager._lost, manager._say = set(), [], said.append
    manager._note = lambda **event: said.append(json.dumps(event))
    for text in ("one", "two", "one"):
        manager.tell_once(text)
    for refused in ("", "other torch"):
        helper = SimpleNamespace(slot=HelperSlot("n7", "a", 4), refused=refused)
        manager.lost(helper, "late", 5)
        manager.helping[helper.slot] = helper
        said.append(f"{manager.wants(helper)}")
    manager._ended.set()
    said.append(f"{manager._lost} {manager.wants(helper)}")
    here, there = {"torch": "2.8", "cpu": "x86"}, {"torch": "2.7", "cpu": "x86", "os": "b"}
    said.append(other_than(there, here))
    golden.check("inside/helpers.txt", "\n".join(said))
