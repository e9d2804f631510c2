"""The system profile of a run: started with it, and turned on and off while it goes on.

The rank with local rank 0 starts the sampler (system.py) and takes it along when it ends; a sampler that fails stops no training.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from segtrain.errors import SegtrainError
from segtrain.filetime import now_ns
from segtrain.observe.console import duration
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.system import CONTROL, DEFAULT_MS, read_json, state_file, write_json

FOLDER = "profile"  # of a run folder
ANSWER_S = 5.0  # within which a sampler of this host answers
_ROOT = str(Path(__file__).parents[2])


class ProfileOwner(Protocol):
    """What of a rank's place among all ranks matters here (``parallel.cluster.Cluster``)."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_world_size(self) -> int: ...


def node_name(place: ProfileOwner, environ: Mapping[str, str] = os.environ) -> str:
    """``algo-N``, as SageMaker calls the host, else counted by ranks."""
    named = environ.get("SM_CURRENT_HOST", "")
    return named if re.fullmatch(r"algo-\d+", named) else f"algo-{place.rank // place.local_world_size + 1}"


@contextlib.contextmanager
def sampling(run_dir: Path, ms: int, place: ProfileOwner, say: Callable[[str], None] = say_on_stderr) -> Iterator[None]:
    """A profile of this host in ``run_dir`` while the context lasts; ``ms`` 0: not before somebody turns it on.

    SIGUSR2 to the rank that starts it turns it on and off; the others ignore the signal.
    """
    may_listen = threading.current_thread() is threading.main_thread()
    # Ignored before it starts: a signal that comes too early must not end the sampler, which inherits that.
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN) if may_listen else None
    process = (
        _start(run_dir / FOLDER, ms, node_name(place), say, place.local_world_size) if place.local_rank == 0 else None
    )
    try:
        if may_listen and process is not None:
            signal.signal(signal.SIGUSR2, lambda number, frame: process.send_signal(number))
        yield
    finally:
        if may_listen:
            signal.signal(signal.SIGUSR2, before)
        if process is not None:
            _end(process)
            _note_end(run_dir / FOLDER, node_name(place))


def _start(
    folder: Path, ms: int, node: str, say: Callable[[str], None], ranks: int = 1
) -> subprocess.Popen[bytes] | None:
    """``ranks``: of this host, whose GPUs the sampler reads."""
    words = [str(folder.absolute()), "--ms", str(ms), "--node", node, "--parent", str(os.getpid())]
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(
            [sys.executable, "-c", "import sys; from segtrain.observe.system import main; sys.exit(main())", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**_whose_gpus(os.environ, ranks), "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the rank
        )
    except OSError as error:
        say(f"warning: the run has no system profile: {error.strerror}; training goes on")
        return None


def _whose_gpus(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """Where each rank has GPUs of its own in CUDA_VISIBLE_DEVICES, this one's list names one rank's alone: read all then."""
    listed = environ.get("CUDA_VISIBLE_DEVICES", "")
    own = ranks > 1 and len(listed.split(",")) < ranks
    return {name: value for name, value in environ.items() if not (own and name == "CUDA_VISIBLE_DEVICES")}


def _end(process: subprocess.Popen[bytes]) -> None:
    """It writes a last sample and goes; one that hangs in a disk or a driver must not keep the run."""
    process.terminate()
    try:
        process.wait(ANSWER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _note_end(folder: Path, node: str) -> None:
    """Other hosts cannot see whether the process lives: pid 0 tells them."""
    state = read_json(state_file(folder, node))
    if state:
        with contextlib.suppress(OSError):
            write_json(state_file(folder, node), {**state, "on": False, "pid": 0})


@dataclass(frozen=True)
class SampledHost:
    """What the sampler of one host said last."""

    node: str
    host: str
    pid: int  # 0: it has ended with its run
    on: bool
    ms: int
    asked: float
    alive: bool | None  # None: on another host, which cannot be asked
    last: float | None  # Unix time of the newest file of readings
    bytes: int

    def line(self, now: float) -> str:
        what = "ended" if self.alive is False else f"on, every {self.ms} ms" if self.on else "off"
        last = "no sample yet" if self.last is None else f"last sample {duration(now - self.last)} ago"
        return f"{self.node}  {what}  ({last}, {self.bytes / 1e6:.1f} MB; host {self.host}" + (
            f", pid {self.pid})" if self.pid else ")"
        )


def hosts(run: Path) -> list[SampledHost]:
    """The samplers that a run has had, by node. Raises SegtrainError where it has had none."""
    folder = run / FOLDER
    found = sorted(folder.glob("*.state.json"), key=lambda path: (len(path.name), path.name))
    states = [state for path in found if "pid" in (state := read_json(path))]
    if not states:
        raise SegtrainError(
            f"{run} has no sampler: name the folder of a run that is training on one host at least"
            if run.is_dir()
            else f"{run} is no run folder: there is no such folder (segtrain runs DIR lists runs)"
        )
    return [_host(folder, state) for state in states]


def _host(folder: Path, state: dict[str, Any]) -> SampledHost:
    files = [path.stat() for path in folder.glob(f"system/incremental/*/*.{state['node']}.json")]
    here = state["host"] == socket.gethostname()
    return SampledHost(
        node=state["node"],
        host=state["host"],
        pid=state["pid"],
        on=state["on"],
        ms=state["ms"],
        asked=state.get("asked", 0.0),
        alive=False if not state["pid"] else _is_sampler(state["pid"]) if here else None,
        last=max((file.st_mtime for file in files), default=None),
        bytes=sum(file.st_size for file in files),
    )


def _is_sampler(pid: int) -> bool:
    """Whether the process is there and is one: numbers are given again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        if Path("/proc/self").exists():
            return False
        try:  # a system without /proc
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    return b"segtrain.observe.system" in words


def switch(run: Path, on: bool, ms: int | None = None) -> list[SampledHost]:
    """Ask every sampler of a run to start, or to stop; returns what they say within ANSWER_S.

    Raises SegtrainError where all of them have ended.
    """
    known = hosts(run)
    if all(host.alive is False for host in known):
        raise SegtrainError(
            f"no sampler of {run} is running: the run has ended, and there is nothing to switch "
            "(a profile is written while it trains)"
        )
    wanted = ms or next((host.ms for host in known), DEFAULT_MS)
    asked = time.time()
    try:
        write_json(run / FOLDER / CONTROL, {"on": on, "ms": wanted, "asked": asked})
    except OSError as error:
        raise SegtrainError(
            f"cannot write {run / FOLDER / CONTROL}: {error.strerror}: use the account that started the run, or send "
            f"SIGUSR2 to process {known[0].pid} on {known[0].host}"
        ) from None
    until = time.monotonic() + ANSWER_S  # the wall clock may be set meanwhile
    while time.monotonic() < until:
        known = hosts(run)
        if all(host.asked == asked or host.alive is False for host in known):
            break
        time.sleep(0.05)
    return known


def profile(verb: str, run: Path, ms: int | None) -> tuple[str, bool]:
    """``on``, ``off`` or ``status`` of a run: lines for a person, and whether every sampler does as it was told."""
    if verb == "status":
        known, now = hosts(run), now_ns(run / FOLDER) / 1e9
        return "\n".join(host.line(now) for host in known), True
    known = switch(run, verb == "on", ms)
    deaf = [host for host in known if host.alive is not False and host.on != (verb == "on")]
    now = now_ns(run / FOLDER) / 1e9
    lines = [host.line(now) for host in known]
    lines += [
        f"{host.node} has not answered within {ANSWER_S:.0f} s: does {host.host} see this folder?" for host in deaf
    ]
    return "\n".join(lines), not deaf
