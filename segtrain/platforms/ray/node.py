"""Ray on one host of a job: started as a child of this process, with a token, and ended within
seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import segtrain
from segtrain.base.cores import cores
from segtrain.errors import MissingExtra, SegtrainError
from segtrain.parallel.spawn import dying_with_parent

PORT = 6379  # of Ray's head
# Label of a node, and its value where the node makes samples; "train": it runs ranks.
ROLE, HELPS = "segtrain/role", "help"
# Bytes of Ray's shared memory on a host. Samples travel by connections of segtrain; Ray itself
# refuses less than 75 MB.
STORE = 500_000_000
START_S = 180.0  # for `ray start` to end with success
END_S = 20.0  # from SIGTERM, after which Ray ends its processes, to SIGKILL
# Of the line that `ray start` prints when the node is up.
_UP = "Ray runtime started"
_OF_TRACEBACKS = ("Traceback ", "File ", "raise")
# Seconds after the end of the head until a node, or a rank, ends: Ray's own default is 60.
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_HEADLESS_S, FOREVER_S = "5", "1000000"


def environment(head: str, token: str) -> dict[str, str]:
    """The variables by which a rank finds the cluster, and is let in.

    Without the last one, Ray ends a rank 60 seconds after the head is gone (measured with Ray
    2.60).
    """
    return {
        "RAY_ADDRESS": f"{head}:{PORT}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        RECONNECT: FOREVER_S,
    }


def address(host: str) -> str:
    """The IP address of a host, because Ray's nodes know each other by address. Raises
    SegtrainError.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        text = f"the name {host} does not resolve ({error}): look at the log of this host"
        raise SegtrainError(text, code="host-unknown", host=host) from None


class RayNode:
    """Ray's processes on this host. ``head``: the address of the head; "" starts the head itself.

    ``role`` "help": all cores of this host are for samples; "train": none. Raises MissingExtra
    without Ray. ``start`` raises SegtrainError if Ray does not come up.
    """

    def __init__(self, own: str, head: str, role: str, token: str) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "ray", "helping hosts")
        words = ["--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor"]
        words = [f"--address={head}:{PORT}"] if head else words
        self._command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words),
            *(
                f"--node-ip-address={own}",
                f"--num-cpus={cores() if role == HELPS else 0}",
                "--num-gpus=0",
            ),
            *(f"--labels={ROLE}={role}", f"--object-store-memory={STORE}", "--disable-usage-stats"),
        ]
        self._environment = {
            **{key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            RECONNECT: _HEADLESS_S,
            # Processes that Ray starts must find this code, although Ray does not start them in
            # this folder.
            "PYTHONPATH": os.pathsep.join(filter(None, (_code(), os.environ.get("PYTHONPATH")))),
        }
        self._process: subprocess.Popen[str] | None = None
        self._last: deque[str] = deque(maxlen=4)
        self._up = False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Start Ray, and wait until it is up. Returns False if ``stopped()`` came first."""
        self._up = False
        self._last.clear()
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=dying_with_parent(signal.SIGTERM),
        )
        changed = threading.Event()
        threading.Thread(
            target=self._read, args=(self._process, changed), name="ray-node", daemon=True
        ).start()
        waited = 0.0
        while not changed.wait(0.2):
            waited += 0.2
            if stopped():
                self.end()
                return False
            if waited > START_S:
                self.end()
                break
        if not self._up:
            raise SegtrainError(
                f"Ray did not start on this host ({self.last or f'nothing within {START_S:g} s'}): "
                "see /tmp/ray of this host, and the versions of Ray and Python of all hosts",
                code="ray-not-started",
                found=self.last,
            )
        return True

    def _read(self, process: subprocess.Popen[str], changed: threading.Event) -> None:
        """Keep the last lines. ``changed``: set when the node is up, or has ended."""
        assert process.stdout is not None
        with process.stdout, contextlib.suppress(ValueError):
            for line in process.stdout:
                if line.strip(" ^~\n") and not line.strip().startswith(_OF_TRACEBACKS):
                    self._last.append(line.strip())
                if _UP in line:
                    self._up = True
                    changed.set()
        process.wait()
        changed.set()

    @property
    def last(self) -> str:
        """The last lines that ``ray start`` has printed."""
        return " / ".join(self._last)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """End Ray on this host. Its exit code says nothing: it is 1 in every case."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _code() -> str:
    return str(Path(segtrain.__file__).parents[1])
