"""A simulated container of a rehearsal: processes with their own base folder, environment, and
signals. The first one is PID 1 if the kernel gives namespaces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launch.core.rehearse import network
from launch.core.rehearse.cluster import RehearsalHost
from launch.core.rehearse.guard import MARK, kill_marked

if TYPE_CHECKING:
    from launch.core.rehearse.process import RehearsalSpec

ROOM = Path(network.__file__).parent  # holds standin/ and planted/
# Variables that are kept from this machine, so that Python, its packages, and downloaded weights
# are found.
KEPT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TORCH_HOME", "HF_HOME")


def environment(
    spec: RehearsalSpec, fault: str, own: Mapping[str, str], *folders: str
) -> dict[str, str]:
    """The variables of a container: its platform's ``own``, and those of all platforms. Of this
    shell's variables, only those in ``KEPT`` are among them.

    ``fault``: the value for planted/sitecustomize.py; "": none. ``folders``: further folders of
    ROOM with modules.
    """
    variables = {key: os.environ[key] for key in KEPT if key in os.environ}
    variables |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), network.search_path()]),
        "CUDA_VISIBLE_DEVICES": "",
        MARK: f"{spec.mark}-{uuid.uuid4().hex}",
        **own,
    }
    paths = [str(ROOM / name) for name in folders]
    if fault:
        variables["SEGTRAIN_PLANT"] = fault
        paths.append(str(ROOM / "planted"))
    paths += [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    if paths:
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables


class Container:
    """A running container: the constructor starts it. ``argv``: the command of its PID 1.
    ``mounts``: see ``network.inside``.
    """

    def __init__(
        self,
        host: RehearsalHost,
        base: Path,
        folder: Path,
        argv: list[str],
        env: Mapping[str, str],
        isolated: bool,
        mounts: str = "",
    ) -> None:
        self.host, self._isolated, self._mark = host, isolated, env[MARK]
        self.ended, self._killed = 0.0, False
        whole = network.inside(host, folder, base, argv, mounts) if isolated else argv
        self._process = subprocess.Popen(
            whole,
            cwd=base,
            env=dict(env),
            stdin=subprocess.PIPE if isolated else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if isolated:
            self._connect()

    def _connect(self) -> None:
        """Wait for the host's network namespace, connect it to the bridge, and let the host
        continue.
        """
        mine, theirs = Path("/proc/self/ns/net"), Path(f"/proc/{self._process.pid}/ns/net")
        while self._process.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # a process that is ending has no link
                if os.readlink(theirs) != os.readlink(mine):
                    break
            time.sleep(0.005)
        network.wire(self.host, self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    def read(self, heard: Callable[[str], None]) -> None:
        """Pass each line of output to ``heard``, until the last process with the output open has
        ended. Call it in a thread.
        """
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # some versions print it when their child is killed
                if not line.startswith(b"unshare: sigprocmask"):
                    heard(line.decode("utf-8", "replace").rstrip("\n"))

    @property
    def code(self) -> int | None:
        """The exit code; None while the container runs. As in docker, it is 128 + the signal that
        ended the process.
        """
        code = self._process.poll()
        if code is not None and self._killed:
            code = -signal.SIGKILL
        if code is not None and not self.ended:
            self.ended = time.monotonic()
        return None if code is None else code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Send SIGTERM to PID 1, as a cloud does to stop a container."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill every process of the container at once."""
        self._killed = self._killed or self._process.poll() is None
        self._signal(signal.SIGKILL)
        if not self._isolated:
            kill_marked(self._mark)

    def _signal(self, number: int) -> None:
        """Send a signal to PID 1. With namespaces, the started process is ``unshare``, and PID 1 is
        its child.
        """
        pid = self._process.pid
        if self._isolated:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            try:
                pids = [int(text) for text in children.read_text().split()]
            except OSError:
                return  # it has ended
        else:
            pids = [pid] if self._process.poll() is None else []
        for process_id in pids:
            try:
                os.kill(process_id, number)
            except ProcessLookupError:
                continue
