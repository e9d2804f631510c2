"""A starved device with a helper on another host, over 1 Gbit/s: its speed, and how long it waits when the helper is lost.

    python bench/helpers_link.py            # 4 minutes; writes bench/results/DATE-helpers-link.md

Each of two hosts has one core (two_hosts.py). First both make samples alone, at the same time: these are the rates
that the cores can give. Then the second host helps the first one, whose device never waits for anything but samples.
The speed should be the sum of both rates, less what receiving takes from the first core. Last, the helping host is lost
and comes back, again and again: all its processes are stopped, its link is down, or all its processes are killed. It
needs root, two cores, and an environment with the extra `ray`.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from buckets import photos  # noqa: E402
from origin import model  # noqa: E402
from two_hosts import HELPS, PYTHONPATH, TRAINS, TwoHosts, soon  # noqa: E402

from segtrain.cores import cores  # noqa: E402
from segtrain.diagnose.remedies import receive_seconds  # noqa: E402

DEVICE_S = 0.01  # of a step: a device that always waits
LOST_S = 5.0  # how long a host is stopped, or its link is down
AFTER_S = 8.0  # how long steps are watched after the loss
BACK_S = 90.0  # for a lost host to help again
START_S = 120.0
SHORTFALL, WAIT_S = 0.15, 2.0  # what is promised
WAYS = {
    "stopped": "all its processes are stopped",
    "link": "its link is down",
    "killed": "all its processes are killed",
}


@dataclass(frozen=True)
class Case:
    """``data``: a kind of photos.py. ``transform``: of blurs.py."""

    data: str
    transform: str
    said: str
    batch: int

    @property
    def crop(self) -> tuple[int, int]:
        return photos.KINDS[self.data].crop


CASES = [
    Case("photos", "ten", "224x224, ten blurs", 8),
    Case("streets", "first", "512x1024, one blur", 8),
]  # fmt: skip


class Loop:
    """A process of link_loop.py on a host, and its steps so far."""

    def __init__(self, hosts: TwoHosts, host: str, case: Case, data: Path, helpers: bool) -> None:
        self.name = f"{host}-{case.data}{'-helped' * helpers}"
        asked = {"root": str(data), "crop": case.crop, "transform": case.transform, "batch": case.batch,
                 "device_s": DEVICE_S, "helpers": helpers}  # fmt: skip
        line = [sys.executable, str(HERE / "link_loop.py"), json.dumps(asked)]
        self._batch, self._log = case.batch, hosts.folder / f"{self.name}.log"
        self._process = hosts.start(host, *line, log=self.name, RAY_ADDRESS=hosts.address)

    def steps(self) -> list[dict[str, Any]]:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended: {self._log.read_text(errors='replace')[-2000:]}")
        text = self._log.read_text(errors="replace")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]

    def said(self) -> str:
        """What the pool has said about helpers."""
        return "".join(
            line for line in self._log.read_text(errors="replace").splitlines(True) if not line.startswith("{")
        )

    def helped(self) -> int:
        steps = self.steps()
        return int(steps[-1]["helped"]) if steps else 0

    def rate(self, begin: float, end: float) -> tuple[float, float]:
        """Samples per second between two times, and of these the share of helpers."""
        own = [step for step in self.steps() if begin <= step["ts"] <= end]
        samples = self._batch * (len(own) - 1)
        return samples / (own[-1]["ts"] - own[0]["ts"]), (own[-1]["helped"] - own[0]["helped"]) / samples

    def longest(self, begin: float, end: float) -> float:
        """The longest time between two steps of which the later one comes after ``begin``, and the earlier one before ``end``."""
        times = [step["ts"] for step in self.steps()]
        return max(b - a for a, b in itertools.pairwise(times) if b > begin and a < end)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)


def watch(seconds: float) -> tuple[float, float]:
    begin = time.time()
    time.sleep(seconds)
    return begin, time.time()


def rates(hosts: TwoHosts, case: Case, data: Path, seconds: float) -> tuple[float, float]:
    """Samples per second that the core of each host makes, both at the same time."""
    loops = [Loop(hosts, host, case, data, helpers=False) for host in (TRAINS, HELPS)]
    soon(lambda: all(len(loop.steps()) > 3 for loop in loops), START_S, "steps")
    window = watch(seconds)
    found = [loop.rate(*window)[0] for loop in loops]
    for loop in loops:
        loop.end()
    return found[0], found[1]


def helped_by(loop: Loop) -> None:
    """Wait until helpers have made more samples, for some batches."""
    before = loop.helped()
    try:
        soon(lambda: loop.helped() > before + 16, BACK_S, "help")
    except TimeoutError:
        print(loop.said(), flush=True)
        raise


def speed(hosts: TwoHosts, loop: Loop, seconds: float) -> dict[str, float]:
    """With a helper that works: samples/s, its share, and bytes over the link for each of its samples."""
    helped_by(loop)
    wire, helped = hosts.wire(), loop.helped()
    begin, end = watch(seconds)
    wire, helped = hosts.wire() - wire, loop.helped() - helped
    rate, share = loop.rate(begin, end)
    return {"rate": rate, "share": share, "wire_kb": wire / max(1, helped) / 1000, "usual_s": loop.longest(begin, end)}


def lose(hosts: TwoHosts, loop: Loop, way: str) -> float:
    """Lose the helping host in a way, and get it back. The longest time between two steps meanwhile."""
    helped_by(loop)
    begin = time.time()
    if way == "stopped":
        hosts.processes[HELPS].signal(signal.SIGSTOP)
    elif way == "link":
        hosts.connect(False)
    else:
        hosts.processes[HELPS].signal(signal.SIGKILL)
    time.sleep(LOST_S)
    if way == "stopped":
        hosts.processes[HELPS].signal(signal.SIGCONT)
    elif way == "link":
        hosts.connect(True)
    else:
        hosts.start_helper()
    time.sleep(AFTER_S - LOST_S)
    return loop.longest(begin, begin + AFTER_S)


def measure(hosts: TwoHosts, case: Case, data: Path, args: argparse.Namespace, lost: bool) -> dict[str, Any]:
    here, there = rates(hosts, case, data, args.seconds)
    hosts.start_ray()
    loop = Loop(hosts, TRAINS, case, data, helpers=True)
    found = {"case": case.said, "here": here, "there": there, **speed(hosts, loop, args.seconds)}
    receive = receive_seconds(*case.crop)
    found["can"] = there + here * (1 - there * receive)
    found["shortfall"] = 1 - found["rate"] / found["can"]
    print(json.dumps(found), flush=True)
    waits: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(args.losses if lost else 0):
        for way in WAYS:
            waits[way].append(lose(hosts, loop, way))
            print(way, waits[way][-1], flush=True)
    loop.end()
    hosts.stop_ray()
    return {**found, "waits": waits}


def page(facts: dict[str, str], results: list[dict[str, Any]]) -> str:
    lines = [f"# A helper over a link of 1 Gbit/s, {facts['date']}\n"]
    lines += [f"- {key}: {value}" for key, value in facts.items() if key != "date"]
    lines += [
        "\nSamples per second. *Can give*: what both cores make alone, at the same time, less the time in which the first "
        "one receives samples (0.3 ms for 224x224, 2.9 ms for 512x1024).\n",
        "| sample | first core | second core | can give | with a helper | short of it | made by the helper | link, kB a sample |",
        "|---" * 8 + "|",
    ]
    for one in results:
        lines.append(
            f"| {one['case']} | {one['here']:.1f} | {one['there']:.1f} | {one['can']:.1f} | {one['rate']:.1f} | "
            f"{one['shortfall']:+.0%} (promised: at most {SHORTFALL:.0%}) | {one['share']:.0%} | {one['wire_kb']:.0f} |"
        )
    lines += [
        f"\nThe longest time between two steps of a device of {1000 * DEVICE_S:g} ms when the helping host is lost (promised: at "
        f"most {WAIT_S:g} s):\n",
        "| sample | usually | " + " | ".join(WAYS.values()) + " |",
        "|---" * (2 + len(WAYS)) + "|",
    ]
    for one in results:
        if any(one["waits"].values()):
            cells = [", ".join(f"{wait:.2f} s" for wait in one["waits"][way]) for way in WAYS]
            lines.append(f"| {one['case']} | {one['usual_s']:.2f} s | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of a rate")
    parser.add_argument("--losses", type=int, default=3, help="how often the host is lost in each way")
    parser.add_argument("--rate", default="1gbit", help="of the link")
    parser.add_argument(
        "--out", type=Path, default=None, help="without ending; default: bench/results/DATE-helpers-link"
    )
    args = parser.parse_args()
    if cores() < 2 or os.geteuid():
        sys.exit("it needs root and two cores")
    out = args.out or HERE / "results" / f"{datetime.date.today()}-helpers-link"
    facts = {
        "date": str(datetime.date.today()),
        "machine": f"{cores()} cores of {model()}, Python {platform.python_version()}",
        "load before": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
        "setting": f"two network namespaces with a core each, a link of {args.rate}, one local worker, one helper, batches of 8",
        "command": " ".join(["python", "bench/helpers_link.py", *sys.argv[1:]]),
    }
    results = []
    with tempfile.TemporaryDirectory() as temporary, TwoHosts(args.rate) as hosts:
        os.environ["PYTHONPATH"] = PYTHONPATH
        for number, case in enumerate(CASES):
            photos.make(Path(temporary), case.data, 64)
            data = Path(temporary) / photos.BUCKET / case.data
            results.append(measure(hosts, case, data, args, lost=number == 0))
    text = page(facts, results)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
