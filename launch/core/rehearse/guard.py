"""Kills the processes of a rehearsal once its launcher has ended, however that happens: `python
guard.py MARK FOLDER SCRATCH`.

The guard's standard input is a pipe, whose other end only the launcher holds. The pipe closes when
the launcher ends, even by SIGKILL. The guard then kills every process with the rehearsal's mark in
its environment. It is started before everything else, in its own session, and imports only the
standard library.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

MARK = "SEGTRAIN_REHEARSAL"
DONE = b"done"


class RehearsalGuard:
    """A context manager around a rehearsal.

    Every process of the rehearsal must have ``mark`` as the variable MARK in its environment.
    ``scratch`` is a folder for temporary files, which is removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="segtrain-tmp-"))
        self.mark = self.scratch.name
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.mark, str(folder), str(self.scratch)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> RehearsalGuard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(DONE)
            self._process.stdin.close()
        self._process.wait()


def kill_marked(mark: str) -> bool:
    """Kill every process whose environment has this mark, or this mark followed by a hyphen and
    more.

    Returns whether there was such a process.
    """
    wanted, killed = f"{MARK}={mark}".encode(), False
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
            if int(folder.name) != os.getpid() and any(
                entry == wanted or entry.startswith(wanted + b"-") for entry in entries
            ):
                os.kill(int(folder.name), signal.SIGKILL)
                killed = True
        except OSError:
            continue
    return killed


def size_of(folder: Path) -> int:
    """Bytes on the disk below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def left(folder: Path) -> str:
    """A line that tells the user which files a rehearsal leaves, and how to remove them."""
    return (
        f"{folder} holds {size_of(folder) / 1e6:.0f} MB (logs and files of each host): rm -r "
        f"{shlex.quote(str(folder))}"
    )


def main(mark: str, folder: Path, scratch: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    received = sys.stdin.buffer.read()
    while kill_marked(mark):  # repeated, as a killed process may have just started another one
        time.sleep(0.05)
    shutil.rmtree(scratch, ignore_errors=True)
    if received != DONE:
        with contextlib.suppress(OSError):
            print(
                f"rehearsal: its launcher is gone; its processes were ended. {left(folder)}",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
