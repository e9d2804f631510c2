"""Tests of helping hosts with a stand-in for Ray: they join, and end with the training, however
either of them ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import refused
from waiting import until

from segtrain.errors import EXIT_ERROR, SegtrainError
from segtrain.parallel.cluster import free_port
from segtrain.platforms.ray import node as ray_node
from segtrain.platforms.ray.helping import MOST_STARTS, help_out, helped
from segtrain.platforms.ray.register import JOIN_S, HelpPlan

PLAN = HelpPlan("127.0.0.1", ("127.0.0.1",), ("127.0.0.2",), "secret", join_s=300.0)
HELPER = replace(PLAN, current="127.0.0.2")
# It notes its arguments, and runs until SIGTERM. The file `broken-help` makes it fail on helping
# hosts.
STANDIN = """
import os, pathlib, signal, sys, time
room = pathlib.Path(os.environ["STANDIN"])
role = "help" if "--labels=segtrain/role=help" in sys.argv else "train"
note = room / f"{role}-{os.getpid()}"
note.write_text("\\n".join([*sys.argv[1:], os.environ["RAY_AUTH_TOKEN"], os.environ.get("RAY_ADDRESS", "no other Ray")]))
broken = room / f"broken-{role}"
if broken.exists():
    if broken.read_text() == "once":
        broken.unlink()
    sys.exit("Traceback (most recent call last):\\n  File 'x'\\n    raise\\n    ^^^^^\\nversions differ")
signal.signal(signal.SIGTERM, lambda *_: (note.unlink(), os._exit(1)))
print("Ray runtime started.", flush=True)
time.sleep(600)
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with a note of each running stand-in."""
    scripts = tmp_path / "standin/ray/scripts"
    scripts.mkdir(parents=True)
    for folder in (scripts.parent, scripts):
        (folder / "__init__.py").touch()
    (scripts / "scripts.py").write_text(STANDIN)
    folder = tmp_path / "room"
    folder.mkdir()
    monkeypatch.setenv("STANDIN", str(folder))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.9:6379")  # of a Ray that is there already
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(scripts.parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.syspath_prepend(str(scripts.parents[1]))
    monkeypatch.setattr(ray_node, "START_S", 60.0)
    return folder


def notes(room: Path, role: str) -> list[Path]:
    """Of the stand-ins that run."""
    return list(room.glob(f"{role}-*"))


def arguments(room: Path, role: str) -> set[str]:
    (note,) = notes(room, role)
    return set(note.read_text().splitlines())


class Host(threading.Thread):
    """A helping host. ``ended``: its exit code, or its error."""

    def __init__(self, plan: HelpPlan, port: int) -> None:
        super().__init__(daemon=True)
        self.received: list[int] = []
        self.said: list[str] = []
        self.ended: Any = None
        self._plan, self._port = plan, port
        self.start()

    def run(self) -> None:
        try:
            self.ended = help_out(self._plan, self.received, self.said.append, self._port)
        except SegtrainError as error:
            self.ended = error

    def end(self) -> Any:
        self.join(300)
        assert not self.is_alive()
        return self.ended


@contextmanager
def training(plan: HelpPlan = PLAN, port: int = 0) -> Iterator[tuple[int, list[str]]]:
    said: list[str] = []
    port = port or free_port()
    with helped(plan, [], said.append, port):
        yield port, said


def test_a_helping_host_joins_with_its_cores_and_ends_with_the_training(room):
    port = free_port()
    host = Host(HELPER, port)  # it may start long before the training host
    with training(port=port) as (_, said):
        until(lambda: any("127.0.0.2 has joined" in line for line in said))
        head, help_ = arguments(room, "train"), arguments(room, "help")
        assert {
            "--head",
            "--num-cpus=0",
            "--labels=segtrain/role=train",
            "secret",
            "no other Ray",
        } <= head
        assert {"--address=127.0.0.1:6379", "--labels=segtrain/role=help", "secret"} <= help_
        assert "--num-cpus=0" not in help_
        assert host.is_alive()
    assert host.end() == 0
    assert not notes(room, "help") + notes(room, "train")


def test_a_training_that_fails_ends_them_with_success_too(room):
    port = free_port()
    host = Host(HELPER, port)

    def fail() -> None:
        with training(port=port) as (_, said):
            until(lambda: any("has joined" in line for line in said))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    # the cause is the other host's, and the job shows the first host that fails
    assert host.end() == 0
    assert not notes(room, "help")


def test_a_foreign_host_and_a_wrong_token_are_refused(room):
    with training() as (port, said):
        for plan in (replace(HELPER, token="guess"), replace(HELPER, current="127.0.0.3")):
            host = Host(plan, port)
            error = host.end()
            assert (error.code, error.values["host"]) == ("helper-refused", plan.current)
        assert not notes(room, "help")
        assert not [line for line in said if "joined" in line]


def test_a_lost_head_is_named_and_leaves_no_process(room):
    port = free_port()
    script = (
        "import time; from segtrain.platforms.ray.helping import helped; from segtrain.platforms.ray.register import HelpPlan\n"
        f"with helped({PLAN!r}, [], print, {port}): time.sleep(600)"
    )
    head = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        host = Host(HELPER, port)
        until(lambda: any("has joined" in line for line in host.said))
        head.send_signal(signal.SIGKILL)
        error = host.end()
        assert (error.code, error.values["host"]) == ("head-lost", "127.0.0.1")
        until(lambda: not notes(room, "help") + notes(room, "train"))
    finally:
        head.kill()
        head.communicate()


def test_a_head_that_never_comes_has_a_time_limit(room):
    port = free_port()
    with refused("head-not-reached", host="127.0.0.1", port=port):
        help_out(replace(HELPER, join_s=0.3, required=True), [], print, port)
    # the training goes on without this host
    assert help_out(replace(HELPER, join_s=0.3), [], print, port) == 0
    assert help_out(HELPER, [signal.SIGTERM], print, port) == 0


def test_a_helper_that_never_joins_is_named_or_ends_the_training_as_set(room):
    late = replace(PLAN, join_s=0.5)
    with training(late) as (_, said):
        until(lambda: any("127.0.0.2 did not join" in line for line in said))
    with (
        refused("helpers-not-joined", missing=["127.0.0.2"]),
        training(replace(late, required=True)),
    ):
        pytest.fail("the training has begun")
    assert not notes(room, "train")


def test_a_helping_host_that_is_stopped_is_missed_and_nothing_else(room):
    with training() as (port, said):
        host = Host(HELPER, port)
        until(lambda: any("has joined" in line for line in said))
        host.received.append(signal.SIGTERM)
        assert host.end() == 0
        until(lambda: any("127.0.0.2 is gone" in line for line in said))
        again = Host(HELPER, port)  # on another machine of this name
        until(lambda: sum("has joined" in line for line in said) == 2)
    assert again.end() == 0


def test_ray_that_ends_on_the_training_host_ends_the_help_but_not_the_training(room):
    with training() as (port, said):
        host = Host(HELPER, port)
        until(lambda: any("has joined" in line for line in said))
        (head,) = notes(room, "train")
        os.kill(int(head.name.split("-")[1]), signal.SIGTERM)
        until(lambda: any("goes on without helpers" in line for line in said))
        until(lambda: not notes(room, "help"))
        assert host.is_alive()
    assert host.end() == 0


def test_ray_that_ends_on_a_helping_host_is_started_again(room):
    with training() as (port, said):
        host = Host(HELPER, port)
        until(lambda: any("has joined" in line for line in said))
        (node,) = notes(room, "help")
        os.kill(int(node.name.split("-")[1]), signal.SIGTERM)
        until(lambda: sum("has joined" in line for line in said) == 2)
    assert host.end() == 0


def test_a_host_whose_ray_does_not_start_is_named(room):
    (room / "broken-help").touch()
    with training() as (port, said):
        host = Host(HELPER, port)
        until(
            lambda: any(
                "127.0.0.2 does not help" in line and "versions differ" in line for line in said
            )
        )
        assert len(notes(room, "help")) == MOST_STARTS
    assert host.end() == 0
    port = free_port()
    host = Host(HELPER, port)
    with (
        refused("helpers-not-joined", missing=["127.0.0.2"]),
        training(replace(PLAN, required=True), port),
    ):
        pytest.fail("the training has begun")
    assert host.end() == 0


def test_a_head_that_does_not_start_is_an_error(room):
    (room / "broken-train").touch()
    with refused("ray-not-started", found="versions differ"), training():
        pytest.fail("the training has begun")
    assert len(notes(room, "train")) == MOST_STARTS


def test_a_further_training_host_runs_ray_beside_the_head(room):
    further = replace(PLAN, current="127.0.0.4", training=("127.0.0.1", "127.0.0.4"))
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_node, "PORT", port)
            with helped(further, [], print):
                assert {f"--address=127.0.0.1:{port}", "--num-cpus=0", "secret"} <= arguments(
                    room, "train"
                )
            assert not notes(room, "train")
            with helped(further, [signal.SIGTERM], print):
                assert not notes(room, "train")


def test_a_port_that_is_taken_is_named(room):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with refused("register-port-taken", port=port), training(port=port):
            pytest.fail("the training has begun")


def container(base: Path, current: str, **parameters: Any) -> Path:
    """The files of SageMaker on a host of a job with the groups gpu, cpu, and spare."""
    groups = {"gpu": ["127.0.0.1"], "cpu": ["127.0.0.2"], "spare": ["127.0.0.3"]}
    folder = base / "input/config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(
        json.dumps(
            {
                "current_host": current,
                "current_instance_type": "ml.c5.4xlarge",
                "current_group_name": next(
                    name for name, hosts in groups.items() if current in hosts
                ),
                "hosts": sorted(host for hosts in groups.values() for host in hosts),
                "network_interface_name": "lo",
                "instance_groups": [
                    {"instance_group_name": name, "instance_type": "t", "hosts": hosts}
                    for name, hosts in groups.items()
                ],
            }
        )
    )
    found = {
        "sagemaker_distribution_instance_groups": ["gpu"],
        "helpers.groups": ["cpu"],
        **parameters,
    }
    (folder / "hyperparameters.json").write_text(
        json.dumps({key: json.dumps(value) for key, value in found.items()})
    )
    return base


def test_the_files_of_sagemaker_say_who_helps(tmp_path, monkeypatch):
    from segtrain.platforms.sagemaker import helping as sagemaker_helping
    from segtrain.platforms.sagemaker.hosts import read_hosts

    base = container(tmp_path, "127.0.0.2", **{"helpers.join_s": 90, "helpers.required": True})
    hosts = read_hosts(base / "input/config/resourceconfig.json")
    assert (hosts.training, hosts.helping, hosts.trains) == (("127.0.0.1",), ("127.0.0.2",), False)
    with refused("helpers-key-missing"):
        sagemaker_helping.plan(base, hosts, {})
    monkeypatch.setattr(
        sagemaker_helping.segtrain, "__file__", str(tmp_path / "segtrain/__init__.py")
    )
    (tmp_path / sagemaker_helping.KEY).write_bytes(b"k" * 32)
    first, second = (
        sagemaker_helping.plan(base, hosts, {"TRAINING_JOB_NAME": name}) for name in ("a", "b")
    )
    assert first is not None
    assert second is not None
    assert (first.head, first.join_s, first.required) == ("127.0.0.1", 90.0, True)
    assert len(first.token) == 64
    assert first.token != second.token
    usual = sagemaker_helping.plan(container(tmp_path / "usual", "127.0.0.2"), hosts, {})
    assert usual is not None
    assert (usual.join_s, usual.required) == (JOIN_S, False)
    monkeypatch.setattr(sagemaker_helping.os, "environ", environ := {"LOCAL_RANK": "1"})
    # only the first rank of a host runs Ray, but all must find it
    with sagemaker_helping.around(first, 1, []):
        assert (environ["RAY_ADDRESS"], environ["RAY_AUTH_TOKEN"]) == (
            "127.0.0.1:6379",
            first.token,
        )
        assert environ["RAY_AUTH_MODE"] == "token"
        # Ray ends each process that is attached to a lost head, but helping hosts must not end the
        # training.
        assert int(environ["RAY_gcs_rpc_server_reconnect_timeout_s"]) > 86400
    idle = replace(hosts, helping=())
    assert sagemaker_helping.plan(base, idle, {}) is None


def test_a_failing_helper_is_named_in_the_failure_file(room, tmp_path, monkeypatch):
    from segtrain.platforms.sagemaker import entry as sagemaker
    from segtrain.platforms.sagemaker import helping as sagemaker_helping

    monkeypatch.setattr(
        sagemaker_helping.segtrain, "__file__", str(tmp_path / "segtrain/__init__.py")
    )
    (tmp_path / sagemaker_helping.KEY).write_bytes(b"k" * 32)
    base = container(tmp_path, "127.0.0.2", **{"helpers.join_s": 0.3, "helpers.required": True})
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(base))
    assert sagemaker.main() == EXIT_ERROR
    text = (base / "output/failure").read_text()
    assert text.startswith(
        "helping host 127.0.0.2 (ml.c5.4xlarge): 127.0.0.1 has not opened port 7788"
    )
