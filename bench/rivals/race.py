"""Start and measurement of one side of a race: the same clock, definition of a step, and end for
all.

Every side writes the time at the end of each optimizer step into a file: rivals by
``common.Marks``, segtrain by the ``step`` events of its journal. This process watches that file,
reads the CPU time of the whole process tree at the end of the last warm-up step and at the end of
the last step, then ends the tree (so that no side's final evaluation or checkpoint costs time).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_POLL = 0.05  # seconds between two looks at the file
# What a user's shell does not set either: the library's own default number of threads counts.
_THREADS = ("OMP_", "MKL_", "GOMP_", "KMP_", "OPENBLAS_")


@dataclass(frozen=True)
class Result:
    """One start of one side. Times in seconds; ``foreign`` is the load of other processes
    meanwhile, in cores.
    """

    side: str
    model: str
    round: int
    images_per_s: float
    step_s: list[float]
    first_step_s: float
    cpu_s_per_image: float
    start_cpu_s: float
    foreign: float
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


def run(
    command: list[str],
    folder: Path,
    marks: Path,
    *,
    side: str,
    model: str,
    number: int,
    batch: int,
    warmup: int,
    steps: int,
    timeout: float,
) -> Result:
    """Start ``command`` in ``folder``, wait for ``warmup + steps`` steps in ``marks``, end it.

    images/s = steps * batch / (end of the last step - end of the last warm-up step).
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_THREADS)}
    started = time.time()
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    # step: (CPU seconds of the tree, busy core seconds of the machine)
    cpu: dict[int, tuple[float, float]] = {}
    times: list[float] = []
    try:
        while len(times) < warmup + steps:
            alive = process.poll() is None
            before, times = len(times), _step_times(marks)
            for step in {1, warmup, warmup + steps} & set(range(before + 1, len(times) + 1)):
                cpu[step] = tree_cpu(process.pid), machine_cpu()
            if len(times) < warmup + steps and (not alive or time.time() - started > timeout):
                why = "took too long" if alive else f"ended with code {process.returncode}"
                error = f"{why} after {len(times)} steps: {cause(folder / 'output.txt')}"
                return Result(side, model, number, 0.0, [], 0.0, 0.0, 0.0, 0.0, error)
            time.sleep(_POLL)
    finally:
        _end(process)
    first, last = warmup - 1, warmup + steps - 1
    wall, images = times[last] - times[first], steps * batch
    own = cpu[warmup + steps][0] - cpu[warmup][0]
    busy = cpu[warmup + steps][1] - cpu[warmup][1]
    return Result(
        side=side,
        model=model,
        round=number,
        images_per_s=images / wall,
        step_s=[round(b - a, 4) for a, b in zip(times[first:last], times[first + 1 : last + 1])],
        first_step_s=times[0] - started,
        cpu_s_per_image=own / images,
        start_cpu_s=cpu[1][0],
        foreign=max(0.0, busy - own) / wall,
    )


def _step_times(marks: Path) -> list[float]:
    """Unix times of the ends of steps 1, 2, ...: lines of ``common.Marks`` or of segtrain's
    journal.
    """
    try:
        lines = marks.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    times = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be half-written
            item = json.loads(line)
            if "time" in item or item.get("event") == "step":
                times.append(float(item.get("time", item.get("ts"))))
    return times


def cause(output: Path) -> str:
    """The last line that names an error (a launcher's own summary aside), else the last line."""
    lines = [
        line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()
    ]
    errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    return (errors or lines or ["no output"])[-1][:300]


def running() -> dict[int, tuple[int, float]]:
    """{pid: (parent, CPU seconds with those of reaped children)} of the machine."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                found[int(entry)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICK
    return found


def tree_of(root: int, processes: dict[int, tuple[int, float]]) -> list[int]:
    """``root`` and its descendants, parents first."""
    tree = [root]
    for pid in tree:
        tree += [child for child, (parent, _) in processes.items() if parent == pid]
    return tree


def tree_cpu(root: int) -> float:
    processes = running()
    return sum(processes[pid][1] for pid in tree_of(root, processes) if pid in processes)


def machine_cpu() -> float:
    """Core seconds that the machine's allowed cores were busy, since boot."""
    total = 0.0
    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name in allowed:
            user, nice, system, _idle, _iowait, irq, soft, steal = map(int, values[:8])
            total += (user + nice + system + irq + soft + steal) / _TICK
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the tree: its root first, so that no launcher starts anything anew."""
    for pid in tree_of(process.pid, running()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
