"""Watchdog for hangs: a thread in each rank that finds out which rank is behind, and where its
threads are.

A rank hangs if for ``hang_s`` its loop has reached no boundary between two phases (clock.py), and
has started or finished no sum over ranks (all-reduce). Evaluation and checkpoints may take long: in
these phases, only a rank inside a sum counts as hanging. The first rank that hangs raises an alarm
on the board (parallel/board.py). Each rank then appends its stacks to its own file, such as
RUN/hang/rank-00000.txt, and posts its position on the board. All ranks run the same loop and pass
the same boundaries and sums, so rank 0 reports the ranks with the lowest count as behind. A rank
that posts nothing is not running: its process is stopped, or its host is gone. As long as no rank
hangs, each check sends only one request to the board.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from segtrain.base.compat import last_collectives
from segtrain.errors import some_of

FOLDER = "hang"  # in a run folder
CHECKS = 8  # least number of checks within ``hang_s``
LONGEST_PAUSE_S = 15.0
MOST = 3  # reports per process
LONG = ("eval", "checkpoint")  # phases that may take long


@dataclass(frozen=True)
class RankPosition:
    """Position of a rank in its loop. ``passed``: the number of phase boundaries and sums that it
    has passed so far.

    ``summing``: whether it is inside a sum over ranks.
    """

    step: int
    phase: str
    passed: int
    summing: bool


@dataclass(frozen=True)
class RankNotice(RankPosition):
    """The position of a rank, for the other ranks. ``line``: the Python line of its main thread."""

    rank: int
    host: str
    seconds: float
    line: str


class PhaseBoard(Protocol):
    """Store of the notices of all ranks (parallel/board.py). Raises RuntimeError if the store is
    gone.
    """

    def raise_alarm(self, number: int) -> None: ...
    def is_raised(self, number: int) -> bool: ...
    def post(self, number: int, rank: int, text: str) -> None: ...
    def posted(self, number: int) -> dict[int, str]: ...


class Watchdog:
    """Watches the thread that created it, and calls ``position`` and ``recent`` from another
    thread.

    ``recent`` returns spans (phase, begin, end; seconds). On rank 0, ``report`` gets the notices
    and one sentence. ``patient``: whether the current phase may take long, too, as the compilation
    in the first step does.
    """

    def __init__(
        self,
        position: Callable[[], RankPosition],
        recent: Callable[[], Sequence[tuple[str, float, float]]],
        run: Path,
        *,
        rank: int,
        world_size: int,
        hang_s: float,
        limit_s: float,
        board: PhaseBoard | None,
        report: Callable[[list[RankNotice], str], None],
        patient: Callable[[], bool] = lambda: False,
    ) -> None:
        self._position = position
        self._recent = recent
        self._report = report
        self._patient = patient
        self._path = run / FOLDER / f"rank-{rank:05d}.txt"
        self._rank = rank
        self._world = world_size
        self._board = board
        self._hang_s, self._limit_s = hang_s, limit_s
        self._every = min(LONGEST_PAUSE_S, hang_s / CHECKS)
        self._main = threading.get_ident()
        self._ended = threading.Event()
        self._seen, self._since, self._reported = position(), time.monotonic(), False
        self._alarms = 0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        # A request to a store that is gone may take longer. The thread then ends with the process.
        self._thread.join(timeout=1)

    def _watch(self) -> None:
        while self._alarms < MOST and not self._ended.wait(self._every):
            try:
                self._check()
            except (RuntimeError, ValueError, OSError):
                # The store is gone with rank 0, or a disk is full: each rank continues alone.
                self._board = None

    def _check(self) -> None:
        position = self._position()
        now = time.monotonic()
        board = self._board
        if position != self._seen:
            self._seen = position
            self._since = now
            self._reported = False
        hangs = not self._reported and now - self._since >= self._hang_s
        hangs = hangs and (position.summing or (position.phase not in LONG and not self._patient()))
        if not hangs and (board is None or not board.is_raised(self._alarms + 1)):
            return
        self._reported = True
        self._alarms += 1
        line = _line(sys._current_frames().get(self._main))
        seconds = round(time.monotonic() - self._since, 1)
        notice = RankNotice(
            **asdict(position),
            rank=self._rank,
            host=socket.gethostname(),
            seconds=seconds,
            line=line,
        )
        self._write(notice)
        if board is not None:
            if hangs:
                board.raise_alarm(self._alarms)
            board.post(self._alarms, self._rank, json.dumps(asdict(notice)))
        if self._rank == 0:
            notices = [notice] if board is None else self._gathered(board)
            text = sentence(
                notices, self._world, self._limit_s, self._path.parent, has_board=board is not None
            )
            self._report(notices, text)

    def _gathered(self, board: PhaseBoard) -> list[RankNotice]:
        """Wait for the notices of all ranks, and return those that came in time.

        Every rank checks the board once per ``self._every`` seconds, so a little more than two
        checks is enough.
        """
        end = time.monotonic() + 2 * self._every + 1
        texts = board.posted(self._alarms)
        while (
            len(texts) < self._world
            and time.monotonic() < end
            and not self._ended.wait(self._every / 4)
        ):
            texts = board.posted(self._alarms)
        return [RankNotice(**json.loads(texts[rank])) for rank in sorted(texts)]

    def _write(self, notice: RankNotice) -> None:
        """Append the notice and all stacks. faulthandler takes no lock, so it also shows threads
        that hold one.
        """
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_head(notice, self._recent()))
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
                file.write("\n")
                file.flush()  # before torch is asked, which may hang as well
                file.write(_last_collectives(last_collectives()))


def _line(frame: FrameType | None) -> str:
    """The innermost line of segtrain or user code in a stack; the innermost line of all if there is
    none.
    """
    shown, current = frame, frame
    while current is not None:
        parts = current.f_code.co_filename.split(os.sep)
        installed = any(
            part.startswith(("python3", "site-packages", "dist-packages")) for part in parts[1:-1]
        )
        if "segtrain" in parts[:-1] or not installed:
            shown = current
            break
        current = current.f_back
    return (
        f"{shown.f_code.co_name} ({os.path.basename(shown.f_code.co_filename)}:{shown.f_lineno})"
        if shown
        else "?"
    )


def _head(notice: RankNotice, recent: Sequence[tuple[str, float, float]]) -> str:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    lines = [
        f"{now} UTC  rank {notice.rank}  host {notice.host}  pid {os.getpid()}",
        f"{_where(notice)}, for {notice.seconds:g} s, in {notice.line}",
        "pending: a sum over ranks" if notice.summing else "pending: no sum over ranks",
        "",
        "last spans, newest first (seconds before the end of the last one; duration):",
    ]
    spans = list(recent)[::-1]
    lines += [
        f"  {spans[0][2] - begin:10.3f}  {end - begin:10.3f}  {phase}"
        for phase, begin, end in spans
    ]
    return "\n".join([*lines, "", "stacks of all threads, innermost line first:", ""])


def _last_collectives(entries: list[dict[str, Any]]) -> str:
    """What torch's flight recorder knows, newest first; "" if it knows nothing (a single rank, or
    an old torch).
    """
    lines = [
        "last collectives of torch, newest first (seconds ago, number, operation, sizes, state):",
        "",
    ]
    for entry in entries:
        ago = time.time() - entry.get("time_created_ns", 0) / 1e9
        number = entry.get("collective_seq_id", "?")
        sizes = entry.get("input_sizes", "?")
        state = "ended" if entry.get("retired") else entry.get("state", "?")
        lines.append(
            f"  {ago:10.3f}  {number:>6}  {entry.get('profiling_name', '?')}  {sizes}  {state}"
        )
    return "\n".join([*lines, "", ""]) if entries else ""


def _where(notice: RankNotice) -> str:
    return f"step {notice.step}, phase {notice.phase}" + (
        " (in a sum over ranks)" if notice.summing else ""
    )


def sentence(
    notices: Sequence[RankNotice],
    world_size: int,
    limit_s: float,
    folder: Path,
    has_board: bool = True,
) -> str:
    """Which rank is behind, where, and what to read. ``has_board``: whether all ranks were asked
    for their notices.
    """
    missing = sorted(set(range(world_size)) - {notice.rank for notice in notices})
    longest = max(notice.seconds for notice in notices)
    least = min(notice.passed for notice in notices)
    behind = [notice for notice in notices if notice.passed == least]
    before = next((notice for notice in notices if notice.passed > least), None)
    if missing and has_board:
        problem = (
            f"{_ranks(missing)} did not answer: stopped processes, or their hosts are "
            f"gone; {_at(behind[0])}"
        )
    elif missing:
        problem = f"the other ranks cannot be asked; {_at(behind[0])}"
    elif before is None:
        problem = ("all ranks are at one place: " if world_size > 1 else "") + "; ".join(
            map(_at, behind[:4])
        )
    else:
        ranks, first = _ranks([notice.rank for notice in behind]), behind[0]
        problem = f"{ranks} (host {first.host}) did not arrive: {_at(first)}; {_at(before)}"
    end = (
        f"; a rank that waits {limit_s:g} s (parallel.timeout_s) ends the job"
        if world_size > 1
        else ""
    )
    return (
        f"hang: no progress for {longest:.0f} s: {problem}. Stacks: {folder}/rank-*.txt on "
        f"each host{end}"
    )


def _at(notice: RankNotice) -> str:
    return f"rank {notice.rank} is at {_where(notice)} for {notice.seconds:.0f} s, in {notice.line}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {some_of(ranks, 8)}"
