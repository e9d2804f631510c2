"""CPU cost of the system profile's sampler on this host.

    python bench/sampler_cost.py                                   # 3 rounds of 60 s; a table, and bench/results/DATE-sampler-cost.md
    python bench/sampler_cost.py --seconds 10 --rounds 1 --out /tmp/sampler-cost

Both sides run at the same time, each a process of its own at 500 ms. Counted is the time that the kernel gave each one's
thread (/proc/PID/schedstat, in nanoseconds), from two seconds after its start, so that Python's start is told apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import page  # noqa: E402

MS, BUDGET = 500, 0.5
OFF, ON = "turned off", "every 500 ms"


@dataclass(frozen=True)
class Cost:
    """``percent`` of one core while it samples; ``start_ms`` of CPU before; ``kib`` of peak memory;
    ``bytes`` a sample.
    """

    side: str
    percent: float
    start_ms: float
    kib: int
    bytes: float


def sample(folder: Path, side: str) -> None:
    from segtrain.observe import system
    from segtrain.observe.profile_format import ProfileWriter

    sampler = system.HostSampler(ProfileWriter(folder, "algo-1"))
    requests = system.ControlRequests(folder / system.CONTROL)
    system.keep_sampling(
        sampler, system.SamplerRequest(side == ON, MS), requests, lambda order: None, os.getppid()
    )


def ran_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def once(seconds: float) -> list[Cost]:
    """Both sides at the same time."""
    with tempfile.TemporaryDirectory(prefix="sampler-cost-") as work:
        started = {}
        for number, side in enumerate((OFF, ON)):
            folder = Path(work, str(number))
            folder.mkdir()
            command = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
            started[side] = (folder, subprocess.Popen(command))
        time.sleep(2)
        begin = {
            side: (time.monotonic(), ran_s(process.pid)) for side, (_, process) in started.items()
        }
        time.sleep(seconds)
        costs = []
        for side, (folder, process) in started.items():
            rate = (ran_s(process.pid) - begin[side][1]) / (time.monotonic() - begin[side][0])
            process.kill()
            kib = os.wait4(process.pid, 0)[2].ru_maxrss
            written = sum(path.stat().st_size for path in folder.rglob("*.json"))
            start_ms = 1000 * (begin[side][1] - 2 * rate)
            costs.append(Cost(side, 100 * rate, start_ms, kib, written / (seconds + 2) * MS / 1000))
        return costs


def table(costs: list[Cost]) -> list[str]:
    lines = [
        "| sampler | % of one core (each round) | start, CPU | memory | a sample |",
        "|---|---|---|---|---|",
    ]
    for side in (OFF, ON):
        mine = [cost for cost in costs if cost.side == side]
        lines.append(
            f"| {side} | {page.each_round((cost.percent for cost in mine), '.3f')} | {median(c.start_ms for c in mine):.0f} ms | "
            f"{median(c.kib for c in mine) / 1024:.0f} MiB | {median(c.bytes for c in mine) / 1000:.1f} kB |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, help="without ending; default: bench/results/DATE-sampler-cost"
    )
    # how this file starts one of its sides
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        sample(args.folder, args.side)
        return 0
    setting = f"a sample every {MS} ms, {args.rounds} rounds of {args.seconds:g} s, both at the same time, medians; no GPU"
    facts = page.facts(setting=setting, budget=f"{BUDGET} % of one core")
    costs = [cost for _ in range(args.rounds) for cost in once(args.seconds)]
    print(
        page.save(
            "sampler-cost",
            args.out,
            "What the sampler of the system profile costs",
            facts,
            table(costs),
        )
    )
    return 0 if max(cost.percent for cost in costs) < BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
