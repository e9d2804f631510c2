"""CPU cost of the system profile's sampler, and of the same readings by psutil and json.

    python bench/sampler_cost.py                                   # 3 rounds of 60 s; a table, and bench/results/DATE-sampler-cost.md
    python bench/sampler_cost.py --seconds 10 --rounds 1 --out /tmp/sampler-cost

All sides run at the same time, each a process of its own at 500 ms. Counted is the time that the kernel gave each one's
thread (/proc/PID/schedstat, in nanoseconds), from two seconds after its start, so that Python's start is told apart.
More cores than the host has are made by repeating its lines of /proc/stat: reading them (besides those of this host)
and writing them is real, but not what a kernel takes to make them. The plain side is what one writes first: a dict and
json.dumps for each line, and the file opened for each sample.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

CORES, MS, BUDGET = 96, 500, 0.5
OFF, HERE, MANY = "segtrain, turned off", "segtrain, the cores of this host", f"segtrain, {CORES} cores"
PLAIN_HERE, PLAIN_MANY = "psutil and json, the cores of this host", f"psutil and json, {CORES} cores"
SIDES = (OFF, HERE, MANY, PLAIN_HERE, PLAIN_MANY)


@dataclass(frozen=True)
class Cost:
    """``percent`` of one core while it samples; ``start_ms`` of CPU before; ``kib`` of peak memory; ``bytes`` a sample."""

    side: str
    percent: float
    start_ms: float
    kib: int
    bytes: float


@contextlib.contextmanager
def psutil_root(folder: Path) -> Iterator[None]:
    """psutil reads /proc/stat of a host with many cores."""
    file = folder / "stat"
    if not file.exists():
        whole, *lines = Path("/proc/stat").read_bytes().partition(b"intr")[0].splitlines(keepends=True)
        many = (lines[k % len(lines)].split(b" ", 1)[1] for k in range(CORES))
        file.write_bytes(whole + b"".join(b"cpu%d %b" % (k, line) for k, line in enumerate(many)) + b"intr 0\n")
    psutil.PROCFS_PATH = str(folder)
    try:
        yield
    finally:
        psutil.PROCFS_PATH = "/proc"


def ours(folder: Path, side: str) -> None:
    from segtrain.observe import counters, system
    from segtrain.observe.profile_format import ProfileWriter

    look = counters.open_counters()

    def many() -> counters.Counters:
        """The counters of this host, which also reads the cores of a larger one."""
        with psutil_root(folder):
            psutil.cpu_times(percpu=True)
        found = look()
        cores = list(found.cores.values())
        return dataclasses.replace(found, cores={f"cpu{k}": cores[k % len(cores)] for k in range(CORES)})

    sampler = system.HostSampler(ProfileWriter(folder, "algo-1"), print, lambda: many if side == MANY else look)
    requests = system.Requests(folder / system.CONTROL)
    system.keep_sampling(sampler, system.SamplerRequest(side != OFF, MS), requests, lambda order: None, os.getppid())


def plain(folder: Path, times: int) -> None:
    before = psutil.disk_io_counters(), psutil.net_io_counters()
    psutil.cpu_times_percent(percpu=True)
    while True:
        time.sleep(MS / 1000 - time.time() % (MS / 1000))
        ts, lines = time.time(), []

        def add(kind: str, name: str, dimension: str, value: float, ts: float = ts, lines: list[str] = lines) -> None:
            row = {
                "Type": kind,
                "Name": name,
                "Dimension": dimension,
                "Value": value,
                "NodeId": "algo-1",
                "Timestamp": ts,
            }
            lines.append(json.dumps(row) + "\n")

        for number, core in enumerate(psutil.cpu_times_percent(percpu=True) * times):
            add("cpu", f"cpu{number}", "CPUUtilization", round(100 - core.idle - core.iowait, 2))
            add("cpu", f"cpu{number}", "I/OWaitPercentage", core.iowait)
        add("memory", "MemoryUsedPercent", "", psutil.virtual_memory().percent)
        swap = psutil.swap_memory()
        add("memory", "SwapUsedPercent", "Swap", swap.percent)
        after = psutil.disk_io_counters(), psutil.net_io_counters()
        for field in ("read_bytes", "write_bytes", "read_count"):
            add("i/o", field, "", (getattr(after[0], field) - getattr(before[0], field)) * 1000 / MS)
        for field in ("bytes_recv", "bytes_sent"):
            add("network", field, "Algorithm", (getattr(after[1], field) - getattr(before[1], field)) * 1000 / MS)
        before = after
        with (folder / f"{int(ts) // 60 * 60}.algo-1.json").open("a") as file:
            file.writelines(lines)


def ran_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def once(seconds: float) -> list[Cost]:
    """All sides at the same time."""
    with tempfile.TemporaryDirectory(prefix="sampler-cost-") as work:
        started = {}
        for number, side in enumerate(SIDES):
            folder = Path(work, str(number))
            folder.mkdir()
            command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
            started[side] = (folder, subprocess.Popen(command))
        time.sleep(2)
        begin = {side: (time.monotonic(), ran_s(process.pid)) for side, (_, process) in started.items()}
        time.sleep(seconds)
        costs = []
        for side, (folder, process) in started.items():
            rate = (ran_s(process.pid) - begin[side][1]) / (time.monotonic() - begin[side][0])
            process.kill()
            kib = os.wait4(process.pid, 0)[2].ru_maxrss
            written = sum(path.stat().st_size for path in folder.rglob("*.json"))
            costs.append(
                Cost(side, 100 * rate, 1000 * (begin[side][1] - 2 * rate), kib, written / (seconds + 2) * MS / 1000)
            )
        return costs


def table(costs: list[Cost]) -> list[str]:
    lines = ["| side | of one core (each round) | start, CPU | memory | a sample |", "|---|---|---|---|---|"]
    for side in SIDES:
        mine = [cost for cost in costs if cost.side == side]
        each = ", ".join(f"{cost.percent:.3f}" for cost in mine)
        lines.append(
            f"| {side} | {median(cost.percent for cost in mine):.3f} % ({each}) | {median(c.start_ms for c in mine):.0f} ms | "
            f"{median(c.kib for c in mine) / 1024:.0f} MiB | {median(c.bytes for c in mine) / 1000:.1f} kB |"
        )
    return lines


def facts(args: argparse.Namespace, load: str) -> list[str]:
    names = [s.partition(":")[2].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in s]
    return [
        f"# What the sampler of the system profile costs, {datetime.date.today().isoformat()}",
        "",
        f"- machine: {os.cpu_count()} cores of {names[0] if names else platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, no GPU",
        f"- setting: a sample every {MS} ms, {args.rounds} rounds of {args.seconds:g} s, all sides at the same time, medians",
        f"- budget: {BUDGET} % of one core",
        f"- load: {load} before, {os.getloadavg()[0]:.2f} after",
        f"- {CORES} cores are lines of this host repeated: what the kernel of such a host takes to make them is not in it, nor are GPUs",
        f"- command: `{' '.join(['python', 'bench/sampler_cost.py', *sys.argv[1:]])}`",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="without ending; empty: bench/results/DATE-sampler-cost")
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)  # how this file starts one of its sides
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side in (PLAIN_HERE, PLAIN_MANY):
        plain(args.folder, CORES // (os.cpu_count() or 1) if args.side == PLAIN_MANY else 1)
    elif args.side:
        ours(args.folder, args.side)
    if args.side:
        return 0
    load = f"{os.getloadavg()[0]:.2f}"
    costs = [cost for _ in range(args.rounds) for cost in once(args.seconds)]
    out = args.out or Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-sampler-cost"
    text = "\n".join([*facts(args, load), *table(costs)]) + "\n"
    out.with_name(f"{out.name}.md").write_text(text)
    print(text)
    worst = max(cost.percent for cost in costs if cost.side in (OFF, HERE, MANY))
    return 0 if worst < BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
