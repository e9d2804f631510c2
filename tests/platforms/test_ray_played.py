"""A rank that Ray Train starts, and a helper that Ray places, with a Ray whose answers are played."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from segtrain.platforms.ray import worker
from segtrain.platforms.ray.helpers import cluster
from segtrain.platforms.ray.helpers.cluster import Placed

ORDER = {"arguments": ["a.yaml", "optim.lr=1"], "environment": {"MINE": "1"}}


class GetTimeoutError(Exception):
    pass


class RayTaskError(Exception):
    def __init__(self, cause: Exception | None) -> None:
        self.cause = cause


class DeadlineReached(Exception):
    pass


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    errors = SimpleNamespace(GetTimeoutError=GetTimeoutError, RayTaskError=RayTaskError)
    module = SimpleNamespace(
        exceptions=errors,
        util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
        killed=[],
    )
    module.kill = module.killed.append
    numbers = {"world_rank": 1, "world_size": 4, "local_rank": 0, "local_world_size": 2}
    context = SimpleNamespace(
        **{f"get_{name}": lambda number=number: number for name, number in numbers.items()}
    )
    train = SimpleNamespace(get_context=lambda: context)
    meeting = SimpleNamespace(broadcast_from_rank_zero=lambda value: value or ("10.0.0.7", 4321))
    for name, part in (("", module), (".train", train), (".train.collective", meeting)):
        monkeypatch.setitem(sys.modules, f"ray{name}", part)
    return module


class Child:
    """The process of a rank. ``codes``: what its polls return."""

    def __init__(self, *codes: int | None) -> None:
        self.codes, self.signals = list(codes), list[int]()
        self.send_signal = self.signals.append

    def __call__(self, words: list[str], **options: Any) -> Child:
        self.words, self.options = words, options
        return self

    def poll(self) -> int | None:
        return self.codes.pop(0)


@pytest.fixture
def start(
    ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Child], dict[str, int]]:
    def start(child: Child, notices: tuple[float | None, ...] = ()) -> dict[str, int]:
        left, sleeps = iter(notices), iter(range(5))

        def sleep(seconds: float) -> None:
            if next(sleeps, None) is None:
                raise DeadlineReached

        monkeypatch.setattr(worker.subprocess, "Popen", child)
        monkeypatch.setattr(worker, "_preemption", lambda: next(left, None))
        monkeypatch.setattr(worker.time, "sleep", sleep)
        return worker.work(ORDER)

    return start


def test_a_rank_is_started_with_its_place(start):
    child = Child(None, 0)
    assert start(child) == {"code": 0}
    assert child.words[1:] == ["-m", "segtrain", "train", *ORDER["arguments"]]
    environment, code = child.options["env"], child.options["cwd"]
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == code
    wanted = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    wanted |= {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "4321", "MINE": "1"}
    wanted |= {"RAY_ADDRESS": "10.0.0.1:6379", "GLOO_SOCKET_IFNAME": "lo"}
    assert {name: environment[name] for name in wanted} == wanted


def test_only_an_end_that_would_come_again_is_no_failure(start):
    assert start(Child(2)) == {"code": 2}
    for code in (75, 76, 137, -9):
        with pytest.raises(RuntimeError, match=f"rank 1 ended with exit code {code}:"):
            start(Child(code))


def test_a_preempted_rank_saves_once_and_waits_for_the_deadline(start):
    child = Child(None, None, None, 75)
    with pytest.raises(DeadlineReached):
        start(child, notices=(None, 30.0, 20.0))
    assert child.signals == [signal.SIGTERM]
    assert start(Child(None, 0), notices=(30.0,)) == {"code": 0}  # it ended by itself


def test_an_answer_of_a_helper_is_waited_for(ray, monkeypatch):
    def placed(*answers: Any) -> Placed:
        left = iter(answers)

        def get(reference: Any, timeout: float) -> Any:
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer

        ray.get = get
        remote = SimpleNamespace(remote=lambda *values: values)
        return Placed(SimpleNamespace(identity=remote), 9.0, stopping)

    stopping = threading.Event()
    late, failed = GetTimeoutError(), RayTaskError(ValueError("no such file"))
    assert placed(late, late, {"torch": "2"}).identity(False) == {"torch": "2"}
    with pytest.raises(ValueError, match="no such file"):
        placed(late, failed).identity(False)
    with pytest.raises(RayTaskError):
        placed(RayTaskError(None)).identity(False)
    placed().close()
    monkeypatch.setattr(cluster, "PLACE_S", -1.0)
    with pytest.raises(TimeoutError):
        placed(late).identity(False)
    stopping.set()
    with pytest.raises(EOFError):
        placed().identity(False)
    placed().close()
    assert len(ray.killed) == 1
