"""System profile of a run: it starts with the run, and can be turned on and off during training.

The rank with local rank 0 starts the sampler (system.py) and ends it. A sampler that fails does not
stop training.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from segtrain.base.files import now_ns
from segtrain.base.json_text import read_json, write_json
from segtrain.base.units import duration
from segtrain.errors import SegtrainError
from segtrain.observe.journal import say_on_stderr
from segtrain.observe.system import state_file
from segtrain.observe.trace import request, run_ended, wait_until

FOLDER = "profile"  # of a run folder
ANSWER_S = 5.0  # longest wait for a sampler to answer a request or to end
_ROOT = str(Path(__file__).parents[2])


class ProfileOwner(Protocol):
    """The fields of ``parallel.cluster.Cluster`` that this module needs."""

    @property
    def host(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_world_size(self) -> int: ...


def node_name(owner: ProfileOwner, environ: Mapping[str, str] = os.environ) -> str:
    """``algo-N``: the name that SageMaker gives to the host, else its number in the order of its
    ranks.
    """
    named = environ.get("SM_CURRENT_HOST", "")
    return named if re.fullmatch(r"algo-\d+", named) else f"algo-{owner.host + 1}"


@contextlib.contextmanager
def sampling(run_dir: Path, ms: int, owner: ProfileOwner) -> Iterator[None]:
    """Profile this host while the context lasts, and write to ``run_dir``.

    ``ms`` is the number of milliseconds between samples; with 0, sampling begins only on request.

    SIGUSR2 to the rank that starts the sampler turns sampling on or off; the other ranks ignore the
    signal.
    """
    may_listen = threading.current_thread() is threading.main_thread()
    # The sampler inherits SIG_IGN, so that a signal cannot end it before it has installed its own
    # handler.
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN) if may_listen else None
    folder, node = run_dir / FOLDER, node_name(owner)
    process = _start(folder, ms, node, owner.local_world_size) if owner.local_rank == 0 else None
    try:
        if may_listen and process is not None:
            signal.signal(signal.SIGUSR2, lambda number, frame: process.send_signal(number))
        yield
    finally:
        if may_listen:
            # None: a handler that was not installed from Python, which cannot be installed again
            # from here.
            signal.signal(signal.SIGUSR2, before or signal.SIG_DFL)
        if process is not None:
            _end(process, state_file(folder, node))


def _start(folder: Path, ms: int, node: str, ranks: int) -> subprocess.Popen[bytes] | None:
    """Start the sampler. ``ranks``: the number of ranks on this host."""
    call = f"run(Path({str(folder.absolute())!r}), {ms}, {node!r}, {os.getpid()})"
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from pathlib import Path; from segtrain.observe.system import run; {call}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**_whose_gpus(os.environ, ranks), "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C ends the rank, which ends the sampler.
        )
    except OSError as error:
        say_on_stderr(
            f"warning: the run has no system profile: {error.strerror}; training continues"
        )
        return None


def _whose_gpus(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """The environment for the sampler, which should see the GPUs of all ranks of this host.

    If CUDA_VISIBLE_DEVICES lists fewer GPUs than the host has ranks, it was set for this rank
    alone, and is removed.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES", "")
    hides_all = listed.strip() in ("", "-1")
    own = ranks > 1 and not hides_all and len(listed.split(",")) < ranks
    return {
        name: value
        for name, value in environ.items()
        if not (own and name == "CUDA_VISIBLE_DEVICES")
    }


def _end(process: subprocess.Popen[bytes], state: Path) -> None:
    """End the sampler after a last sample. Write pid 0 into its state, because other hosts cannot
    see its process.
    """
    process.terminate()
    try:
        process.wait(ANSWER_S)
    except subprocess.TimeoutExpired:  # The sampler hangs in a call to a file system or a driver.
        process.kill()
        process.wait()
    if content := read_json(state):
        with contextlib.suppress(OSError):
            write_json(state, {**content, "on": False, "pid": 0})


@dataclass(frozen=True)
class SampledHost:
    """The last state of the sampler of one host."""

    node: str
    host: str
    pid: int  # 0: it has ended with its run
    on: bool
    ms: int
    answered: float
    alive: bool | None  # None: it is on another host, where its process cannot be seen
    last: float | None  # Unix time of the newest file of readings
    bytes: int

    def line(self, now: float) -> str:
        state = "ended" if self.alive is False else f"on, every {self.ms} ms" if self.on else "off"
        last = (
            "no sample yet" if self.last is None else f"last sample {duration(now - self.last)} ago"
        )
        pid = f", pid {self.pid}" * bool(self.pid)
        return f"{self.node}  {state}  ({last}, {self.bytes / 1e6:.1f} MB; host {self.host}{pid})"


def hosts(run: Path) -> list[SampledHost]:
    """The samplers of a run, by node. Raises SegtrainError if there are none."""
    folder = run / FOLDER
    files = sorted(folder.glob("*.state.json"), key=lambda path: (len(path.name), path.name))
    states = [state for path in files if "pid" in (state := read_json(path))]
    if not states:
        raise SegtrainError(
            f"{run} has no sampler of the system profile: name the folder of a run that has begun "
            "to train (segtrain runs DIR lists runs)",
            code="no-sampler",
            file=str(run),
        )
    return [_host(folder, state) for state in states]


def _host(folder: Path, state: dict[str, Any]) -> SampledHost:
    files = [path.stat() for path in folder.glob(f"system/incremental/*/*.{state['node']}.json")]
    on_this_host = state["host"] == socket.gethostname()
    return SampledHost(
        **{name: state[name] for name in ("node", "host", "pid", "on", "ms")},
        answered=state.get("asked", 0.0),
        alive=False if not state["pid"] else _is_sampler(state["pid"]) if on_this_host else None,
        last=max((file.st_mtime for file in files), default=None),
        bytes=sum(file.st_size for file in files),
    )


def _is_sampler(pid: int) -> bool:
    """Whether a process is a sampler; the system may reuse its id."""
    import psutil

    try:
        return any("segtrain.observe.system" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def switch(run: Path, on: bool, ms: int | None = None) -> list[SampledHost]:
    """Ask every sampler of a run to start or to stop, and return their states after at most
    ANSWER_S.

    Raises SegtrainError if all of them have ended.
    """
    samplers = hosts(run)
    if all(host.alive is False for host in samplers):
        raise run_ended(run)
    number = time.time()
    request(run / FOLDER, {"on": on, "ms": ms or samplers[0].ms, "asked": number})
    wait_until(
        lambda: all(host.answered == number or host.alive is False for host in hosts(run)), ANSWER_S
    )
    return hosts(run)


def profile(verb: str, run: Path, ms: int | None) -> tuple[str, bool]:
    """Run ``on``, ``off``, or ``status``. Returns text to print, and whether every sampler did what
    was requested.
    """
    samplers = hosts(run) if verb == "status" else switch(run, verb == "on", ms)
    silent = [
        host
        for host in samplers
        if verb != "status" and host.alive is not False and host.on != (verb == "on")
    ]
    now = now_ns(run / FOLDER) / 1e9
    problem = f"has not answered within {ANSWER_S:.0f} s: check that"
    lines = [host.line(now) for host in samplers]
    lines += [f"{host.node} {problem} {host.host} sees this folder" for host in silent]
    return "\n".join(lines), not silent
