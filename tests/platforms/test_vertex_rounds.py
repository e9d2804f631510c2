"""Tests of the hosts of a Vertex AI job: how they meet, lose each other, are stopped, and end their
ranks.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused

from segtrain.config import Config
from segtrain.parallel.cluster import Cluster, free_port
from segtrain.platforms.vertex import entry as vertex
from segtrain.platforms.vertex import rank_processes
from segtrain.platforms.vertex.hosts import read_replicas
from segtrain.platforms.vertex.rank_processes import Ending
from segtrain.platforms.vertex.rounds import Coordinator, News, Round, RoundMember

HOSTS = {"workerpool0": ["w0-a-0:2222"], "workerpool1": ["w1-a-0:2222", "w1-a-1:2222"]}
SPEC = json.dumps({"cluster": HOSTS, "task": {"type": "workerpool1", "index": 0}})


class Hosts:
    """Members of one meeting, each with a thread that waits in ``meet``."""

    def __init__(self, port: int, count: int, said: list[str]) -> None:
        self.members = [
            RoundMember(("127.0.0.1", port), k, count, k + 1, said.append) for k in range(count)
        ]
        self.rounds: dict[int, Any] = {}

    def meet(self, *numbers: int, **more: float) -> list[threading.Thread]:
        def work(number: int) -> None:
            try:
                self.rounds[number] = self.members[number].meet(lambda: False, **more)
            except Exception as error:
                self.rounds[number] = error

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in numbers]
        for thread in threads:
            thread.start()
        return threads

    def all_meet(self) -> list[Round]:
        for thread in self.meet(*range(len(self.members))):
            thread.join(600)
        return [self.rounds[k] for k in range(len(self.members))]

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture
def meeting() -> Iterator[tuple[Hosts, list[str]]]:
    said: list[str] = []
    with Coordinator(["a", "b", "c"], 0, said.append, say_s=0.1) as coordinator:
        hosts = Hosts(coordinator.port, 3, said)
        yield hosts, said
        hosts.close()


def test_hosts_begin_together_and_a_late_one_is_named(meeting):
    hosts, said = meeting
    early = hosts.meet(0, 2)
    while not any("waiting for b: 2 of 3 hosts are here" in line for line in said):
        time.sleep(0.01)
    assert not hosts.rounds
    for thread in [*early, *hosts.meet(1)]:
        thread.join(600)
    assert len(set(hosts.rounds.values())) == 1
    assert (hosts.rounds[0].number, hosts.rounds[0].counts) == (1, (1, 2, 3))


def test_a_host_that_starts_again_makes_all_meet_again(meeting):
    hosts, _ = meeting
    before = hosts.all_meet()[0]
    hosts.members[1].close()
    assert hosts.members[0].heard(600) == hosts.members[2].heard(600) == News("b is gone")
    after = hosts.all_meet()
    assert {found.number for found in after} == {2}
    assert after[0].counts == before.counts
    lost = News("c has lost another host")
    assert hosts.members[2].again("has lost another host") == lost
    assert [member.heard(600) for member in hosts.members[:2]] == [lost] * 2
    assert {found.number for found in hosts.all_meet()} == {3}
    for member in hosts.members:
        member.done()
    assert [member.heard(600) for member in hosts.members] == [News(over=True)] * 3


def test_a_primary_host_that_starts_again_is_met_again():
    with Coordinator(["a"], 0, print) as first:
        member = RoundMember(("127.0.0.1", first.port), 0, 1, 1, print)
        assert member.meet(lambda: False, patience_s=600) is not None
    assert member.heard(600) == News(f"the primary host 127.0.0.1:{first.port} is gone")
    with Coordinator(["a"], first.port, print):
        found = member.meet(lambda: False, patience_s=60)
        member.close()
    assert found is not None
    assert found.number == 1


def test_a_primary_host_that_is_lost_while_others_wait_is_met_again():
    said: list[str] = []
    with Coordinator(["a", "b"], 0, said.append, say_s=0.05) as first:
        hosts = Hosts(first.port, 2, said)
        waiting = hosts.meet(0, patience_s=600)
        while not any("waiting for b" in line for line in said):
            time.sleep(0.01)
    with Coordinator(["a", "b"], first.port, said.append):
        for thread in [*waiting, *hosts.meet(1, patience_s=600)]:
            thread.join(60)
        hosts.close()
    assert [hosts.rounds[number].counts for number in (0, 1)] == [(1, 2)] * 2


def test_hosts_that_are_stopped_do_not_count_as_lost(meeting):
    """Rank 0 may still upload the checkpoint, while the other hosts have nothing left to do and
    end.
    """
    hosts, _ = meeting
    hosts.all_meet()
    stopped = News("b was stopped", saving=True)
    assert hosts.members[1].again("was stopped", saving=True) == stopped
    hosts.members[1].close()
    hosts.members[2].again("was stopped", saving=True)
    hosts.members[2].close()
    assert hosts.members[0].heard(600) == stopped
    assert hosts.members[0].heard(0.3) is None
    assert {found.number for found in hosts.all_meet()} == {2}


# It ignores SIGTERM, as a rank does that has noted it and saves its state.
RANK = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(float(sys.argv[2]))
sys.exit(75)
"""


@pytest.mark.parametrize(
    ("news", "told", "sleeps", "ending"),
    [
        (News("b was stopped", saving=True), [], "0.3", Ending(75, "b was stopped")),
        (News("b is gone"), [15], "0.3", Ending(75, "b is gone")),
        (News("b is gone"), [], "60", Ending(1, "b is gone")),
    ],
)
def test_ranks_that_save_their_state_outlive_other_hosts(
    news, told, sleeps, ending, tmp_path, monkeypatch
):
    monkeypatch.setattr(rank_processes, "LOST_S", 0.0)
    received, calls = list[int](), iter([None, news])

    def heard() -> News | None:
        if not (tmp_path / "up").exists():
            return None
        received[:] = told
        return next(calls, None)

    command = [sys.executable, "-c", RANK, str(tmp_path / "up"), sleeps]
    assert rank_processes.run(command, Cluster(), received, print, heard) == ending


@pytest.mark.parametrize(
    ("codes", "ending"),
    [
        ([76, 0], Ending(76)),
        ([76, 2], Ending(2, cause=True)),
        ([75, 76], Ending(76)),
        ([75, 0], Ending(75)),
        ([0, None], Ending(1)),
        ([137, 76], Ending(137, cause=True)),
    ],
)
def test_a_rank_that_lost_another_is_not_the_cause(codes, ending):
    """The exit code alone says so: on GPUs, a rank ends at once, and can tell nothing else."""
    assert rank_processes._judged(codes, "") == ending


@pytest.mark.parametrize(("code", "ending"), [(76, Ending(134)), (2, Ending(2, cause=True))])
def test_a_rank_that_a_thread_of_torch_ends_has_lost_another(code, ending):
    """The other rank gets time to end by itself, and may be the cause."""
    end = f"if os.environ['LOCAL_RANK'] == '0':\n    os.kill(os.getpid(), 6)\ntime.sleep(0.5)\nsys.exit({code})"
    command = [sys.executable, "-c", f"import os, sys, time\n{end}"]
    assert rank_processes.run(command, Cluster(0, 2, 0, 2), [], print) == ending


UPLOAD = """
import os, pathlib, sys, time
from segtrain.base import stopping
if os.environ["LOCAL_RANK"] == "1":
    while not os.path.exists(os.environ[stopping.UPLOADING]):
        time.sleep(0.01)
    sys.exit(1)
with stopping.upload_of_the_end():
    time.sleep(2)
pathlib.Path(sys.argv[1]).touch()
sys.exit(76)
"""


def test_a_rank_that_uploads_the_end_of_the_run_may_finish(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_processes, "GRACE_S", 1.0)
    command = [sys.executable, "-c", UPLOAD, str(tmp_path / "done")]
    assert rank_processes.run(command, Cluster(0, 2, 0, 2), [], print) == Ending(1, cause=True)
    assert (tmp_path / "done").exists()


def test_the_error_names_whom_it_waited_for(meeting):
    hosts, said = meeting
    missing = list[list[str]]()
    # on a busy machine, it takes some time until they know of each other
    for patience_s in (1.5, 10.0, 60.0):
        for thread in hosts.meet(0, 1, patience_s=patience_s):
            thread.join(600)
        assert {error.code for error in hosts.rounds.values()} == {"hosts-not-met"}
        missing = [error.values["missing"] for error in hosts.rounds.values()]
        if missing == [["c"]] * 2:
            break
    assert missing == [["c"]] * 2
    alone = RoundMember(("127.0.0.1", free_port()), 1, 2, 1, said.append)
    with refused("hosts-not-met"):
        alone.meet(lambda: False, patience_s=0.1, say_s=0.0)


def test_hosts_that_disagree_are_refused(meeting):
    hosts, said = meeting
    port = hosts.members[0]._address[1]
    with refused("hosts-differ", found=2):
        RoundMember(("127.0.0.1", port), 1, 2, 1, said.append).meet(lambda: False, patience_s=600)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    assert hosts.all_meet()[0].number == 1


def test_what_a_stranger_says_of_a_host_does_not_count(meeting):
    hosts, _ = meeting
    hosts.all_meet()
    with socket.create_connection(("127.0.0.1", hosts.members[0]._address[1])) as stranger:
        stranger.settimeout(600)
        for host in (1, 99):
            stranger.sendall(
                f'{{"host": {host}, "done": true}}\n{{"host": {host}, "again": "x"}}\n'.encode()
            )
        stranger.sendall(b'{"host": 2, "here": 1, "hosts": 1}\n')
        assert b"refused" in stranger.recv(1000)  # all of it was read
    for host in (0, 2):
        hosts.members[host].done()
    assert hosts.members[0].heard(0.3) is None
    hosts.members[1].done()
    assert [member.heard(600) for member in hosts.members] == [News(over=True)] * 3


class Training:
    """A host of three, whose member and ranks are played. ``endings``: of its rounds; the last one
    is repeated.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *endings: Ending, seconds: float = 60.0
    ) -> None:
        self.endings, self.seconds = list(endings), seconds
        self.clock, self.rounds = 0.0, 0
        self.said: list[Any] = []
        self.received: list[int] = []
        monkeypatch.setattr(vertex, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(vertex, "RoundMember", lambda *arguments: self)
        monkeypatch.setattr(vertex.rank_processes, "run", self.run)
        monkeypatch.setattr(vertex, "_ranks", lambda config: 1)

    def run(self, *arguments: object) -> Ending:
        self.clock += self.seconds
        self.rounds += 1
        return self.endings.pop(0) if len(self.endings) > 1 else self.endings[0]

    def meet(self, stopped: Any) -> Round:
        return Round(self.rounds + 1, (1, 1, 1), 1)

    def heard(self, wait_s: float = 0.0) -> News:
        return News(over=True)

    def done(self) -> None:
        self.said.append("done")

    def again(self, why: str, **more: Any) -> None:
        self.said.append((why, more))

    def code(self) -> int:
        replicas = read_replicas({"CLUSTER_SPEC": SPEC})
        assert replicas is not None
        return vertex._with_others(Config.load(None), [], replicas, self.received)


GONE = Ending(1, "w0-a-0 is gone")


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(60.0, vertex.MOST_ROUNDS), (2 * vertex.LONG_S, 10)]
)
def test_only_rounds_that_end_soon_are_limited(monkeypatch, seconds, rounds):
    training = Training(monkeypatch, *[GONE] * 9, Ending(0), seconds=seconds)
    with contextlib.nullcontext() if rounds == 10 else refused("hosts-lost-often", found=rounds):
        assert training.code() == 0
    assert training.rounds == rounds


def test_a_host_says_that_it_was_stopped_before_it_ends(monkeypatch):
    training = Training(monkeypatch, Ending(75))
    training.received.append(15)
    assert training.code() == 75
    assert training.said == [("was stopped", {"saving": True})]


def test_a_host_that_is_stopped_while_it_waits_may_continue(monkeypatch):
    training = Training(monkeypatch, GONE)
    training.received.append(15)
    monkeypatch.setattr(training, "meet", lambda stopped: None if stopped() else Round(1, (1,), 1))
    assert (training.code(), training.rounds) == (75, 0)


def test_a_host_whose_own_rank_fails_ends_with_its_code(monkeypatch):
    training = Training(monkeypatch, Ending(2, cause=True))
    assert (training.code(), training.rounds, training.said) == (2, 1, [])
    killed = Training(monkeypatch, Ending(137))
    killed.received.append(15)
    assert (killed.code(), killed.said) == (137, [])


def test_a_host_that_lost_another_meets_it_again(monkeypatch):
    training = Training(monkeypatch, Ending(76), Ending(0))
    assert (training.code(), training.rounds) == (0, 2)
    assert training.said == [("has lost another host", {}), "done"]


def test_a_single_replica_starts_its_ranks_and_ends_with_their_code(monkeypatch):
    started: list[Cluster] = []

    def run(command: list[str], first: Cluster, *others: object) -> Ending:
        started.append(first)
        return Ending(3)

    monkeypatch.delenv("CLUSTER_SPEC", raising=False)
    monkeypatch.setattr(vertex.rank_processes, "run", run)
    assert vertex.main(["parallel.procs=2", "parallel.strategy=ddp", "train.device=cpu"]) == 3
    (first,) = started
    assert (first.rank, first.world_size, first.local_world_size, first.source.name) == (
        0,
        2,
        2,
        "vertex",
    )


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with refused("meeting-port-taken", port=port):
            Coordinator(["a", "b"], port, print)
