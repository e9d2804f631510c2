"""Entry point of a container of a Vertex AI job: meets the other hosts, and starts one rank per
GPU.

``python -m segtrain.platforms.vertex [FILE] [section.key=value ...]`` is process 1 of its container
and passes signals on to its ranks. Vertex AI goes by its exit code: a container that does not end
with 0 is started again, and the job has succeeded when the container of the primary replica ends
with 0. It imports no torch; its ranks do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segtrain.base.stopping import note_signals
from segtrain.errors import EXIT_RESUMABLE, SegtrainError
from segtrain.parallel.cluster import Cluster, free_port
from segtrain.parallel.spawn import ranks_to_start, visible_gpus
from segtrain.platforms.process import set_defaults
from segtrain.platforms.vertex import rank as vertex_rank
from segtrain.platforms.vertex import rank_processes
from segtrain.platforms.vertex.hosts import VERTEX, Replicas, read_replicas
from segtrain.platforms.vertex.rounds import Coordinator, News, Round, RoundMember

if TYPE_CHECKING:
    from segtrain.config import Config

# A round (see rounds.py) is one start of the ranks on all hosts. This is the largest number of
# short rounds in a row. A round of at least LONG_S seconds resets the count, because spot machines
# lose some hosts every day. Only rounds that ended because of another host count: if its own ranks
# fail, the container ends, and Vertex AI counts restarts.
MOST_ROUNDS = 6
LONG_S = 3600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Train on this host, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    set_defaults()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # Cloud Logging gets each line at once.
    try:
        return _host(words, note_signals(signal.SIGTERM, signal.SIGINT))
    except SegtrainError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _host(argv: list[str], received: list[int]) -> int:
    config, replicas = vertex_rank.settings(argv), read_replicas()
    command = [sys.executable, "-m", "segtrain.platforms.vertex.rank", *argv]
    if replicas is not None:
        replicas.refuse_idle()
    if replicas is not None and len(replicas.training) > 1:
        return _with_others(config, command, replicas, received)
    ranks = ranks_to_start(config, _say)
    first = Cluster(0, ranks, 0, ranks, "127.0.0.1", free_port(), VERTEX)
    return rank_processes.run(command, first, received, _say).code


def _with_others(
    config: Config, command: list[str], replicas: Replicas, received: list[int]
) -> int:
    """Run rounds with the other hosts, until the ranks of all hosts are done, or this host failed
    or was stopped.
    """
    hosts, number, address = len(replicas.training), replicas.number, replicas.address
    names = [replicas.name(host) for host in range(hosts)]
    ranks = _ranks(config)
    with Coordinator(names, address[1], _say) if number == 0 else contextlib.nullcontext():
        member = RoundMember(address, number, hosts, ranks, _say)
        left = MOST_ROUNDS
        while left:
            current_round = member.meet(stopped=lambda: bool(received))
            if current_round is None:
                _say("stopped by a signal while this host waited for the others")
                return EXIT_RESUMABLE
            first = _first(current_round, replicas, ranks)
            _say(
                f"round {current_round.number}: all {hosts} hosts are here, with "
                f"{first.world_size} ranks"
            )
            began = time.monotonic()
            ending = rank_processes.run(command, first, received, _say, member.heard)
            left = MOST_ROUNDS if time.monotonic() - began >= LONG_S else left - 1
            early = ending.early
            if not early and ending.code == 0:
                member.done()
                news = _all_done(member, received)
                if news is None or news.over:
                    return 0 if news else EXIT_RESUMABLE
                early = news.why
            elif not early and ending.code == EXIT_RESUMABLE:
                # Said before the connection ends, because the other hosts end their ranks soon if a
                # host is lost.
                member.again("was stopped", saving=True)
                early = "this host was stopped"
            elif not early and (ending.cause or received):
                return ending.code
            elif not early:
                member.again("has lost another host")
                early = "this host has lost another host"
            if received and ending.code == EXIT_RESUMABLE:
                return EXIT_RESUMABLE
            _say(f"the hosts meet again: {early}")
    raise SegtrainError(
        f"the ranks lost each other {MOST_ROUNDS} times: look at the logs of all replicas for "
        "the first failure",
        code="hosts-lost-often",
        found=MOST_ROUNDS,
    )


def _first(current_round: Round, replicas: Replicas, ranks: int) -> Cluster:
    """The ``Cluster`` of this host's first rank, which follows the ranks of the hosts before it.

    Hosts may have different numbers of GPUs.
    """
    before = sum(current_round.counts[: replicas.number])
    return Cluster(
        before, sum(current_round.counts), 0, ranks, replicas.address[0], current_round.port, VERTEX
    )


def _all_done(member: RoundMember, received: list[int]) -> News | None:
    """Wait until the ranks of the other hosts have ended too.

    Returns the news that the round is over, or why it ended early. Returns None after a signal.
    """
    while not received:
        if news := member.heard(1.0):
            return news
    return None


def _ranks(config: Config) -> int:
    """Number of ranks on this host, if the job has several hosts: one per GPU, or as parallel.procs
    says.
    """
    if config.parallel.strategy in ("single", "dp", "smddp") or config.parallel.procs != "auto":
        return ranks_to_start(config, _say)
    return max(1, visible_gpus() if config.train.device != "cpu" else 0)


def _say(text: str) -> None:
    print(text, flush=True)
