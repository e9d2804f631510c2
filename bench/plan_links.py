"""The planner's time of a step on slow links beside the time that real ranks take on such links, on this one machine.

    python bench/plan_links.py            # 12 settings that the formulas were checked with, 12 drawn ones; as root
    python bench/plan_links.py --draw 12 --seed 7

Hosts are network namespaces, joined by links with a set rate and latency (bench/links/hub.py). The ranks are real
DistributedDataParallel over gloo, on a device that sleeps, so that two cores suffice for four hosts. Inputs of a
prediction: the link's rate and latency, the sizes of the parameters, and what the ranks measure without the network: the
time of a step alone, and the cost of one message.

This tests the formulas for overlap, buckets, latency, and bandwidth. It does not test EFA, NVSwitch, or NCCL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page  # noqa: E402
from links import hub  # noqa: E402
from links.rank import NETWORKS, gradients, shapes  # noqa: E402

from segtrain.plan.model import BACKWARD, buckets_of, exposed_gloo  # noqa: E402


def chosen() -> list[dict[str, Any]]:
    """Settings at the edges, with which the formulas were checked."""
    rows = [
        (2, "squeezenet", 0.05, 0.1, 300), (2, "shufflenet", 0.2, 5, 300), (2, "resnet18", 1, 1, 400),
        (2, "resnet18", 2, 0.1, 400), (3, "squeezenet", 0.1, 10, 300), (3, "shufflenet", 0.5, 1, 300),
        (3, "resnet18", 0.2, 0.1, 400), (3, "shufflenet", 2, 10, 100), (4, "squeezenet", 1, 5, 100),
        (4, "shufflenet", 0.1, 1, 600), (4, "resnet18", 0.5, 10, 400), (4, "squeezenet", 0.5, 0.1, 50),
    ]  # fmt: skip
    names = ("hosts", "network", "gbit", "latency_ms", "device_ms")
    return [{**dict(zip(names, row)), "bucket_mb": 25, "drawn": False} for row in rows]


def drawn(count: int, seed: int) -> list[dict[str, Any]]:
    """Settings drawn at random: 2 to 4 hosts, 50 Mbit/s to 2 Gbit/s, 0.1 to 10 ms."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        found.append({
            "hosts": rng.choice((2, 3, 4)), "network": rng.choice(sorted(NETWORKS)),
            "gbit": round(0.05 * 40 ** rng.random(), 3), "latency_ms": round(0.1 * 100 ** rng.random(), 2),
            "device_ms": round(50 * 12 ** rng.random()), "bucket_mb": rng.choice((1, 5, 25)), "drawn": True,
        })  # fmt: skip
    return found


def predicted(run: dict[str, Any]) -> float:
    """Seconds of a step. ``run``: a setting, and what its ranks measured without the network."""
    sizes, ready = zip(*buckets_of(gradients(shapes(run["network"])), run["bucket_mb"] * 2**20))
    rate, latency = run["gbit"] * 1e9 / 8, run["latency_ms"] / 1e3 + run["message"]
    backward = BACKWARD * run["device"]
    return run["device"] + exposed_gloo(backward, sizes, ready, run["hosts"], rate, latency)


@contextlib.contextmanager
def links(hosts: int, folder: Path) -> Iterator[Path]:
    """The namespaces of ``hosts`` hosts and the process that carries their packets; yields the file of the links."""
    state = folder / f"link{hosts}"
    hub.Link(state)
    carrier = subprocess.Popen(
        [sys.executable, str(HERE / "links/hub.py"), str(hosts), str(state)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert carrier.stdout
        if carrier.stdout.readline().strip() != "ready":
            raise SystemExit("no links: this bench needs root, ip, nsenter, sysctl, and /dev/net/tun")
        yield state
    finally:
        carrier.kill()
        carrier.wait()
        for host in range(hosts):
            hub.remove(host)


def run_all(settings: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Settings with what their ranks measured: all settings of the same number of hosts in the same processes."""
    found: list[dict[str, Any]] = []
    for hosts in sorted({setting["hosts"] for setting in settings}):
        same = [setting for setting in settings if setting["hosts"] == hosts]
        asked, answer = folder / f"settings{hosts}.json", folder / f"results{hosts}.json"
        asked.write_text(json.dumps(same))
        with links(hosts, folder) as state:
            ranks = []
            for host in range(hosts):
                words = [sys.executable, str(HERE / "links/rank.py"), host, hosts, asked, state, answer]
                environment = {**os.environ, "GLOO_SOCKET_IFNAME": hub.space(host)}
                ranks.append(subprocess.Popen(hub.inside(host, *map(str, words)), env=environment))
            codes = [rank.wait() for rank in ranks]
            if any(codes):
                raise SystemExit(f"a rank of {hosts} hosts failed")
        found += json.loads(answer.read_text())
    return found


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: a row for each setting, and the errors."""
    lines = [
        "| hosts | network | Gbit/s | latency, ms | bucket, MB | drawn | alone, ms | measured, ms | predicted, ms | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    errors: dict[bool, list[float]] = {False: [], True: []}
    for run in runs:
        step = predicted(run)
        errors[run["drawn"]].append(step / run["step"] - 1)
        lines.append(
            f"| {run['hosts']} | {run['network']} | {run['gbit']} | {run['latency_ms']} | {run['bucket_mb']} | "
            f"{'yes' if run['drawn'] else ''} | {run['device'] * 1e3:.0f} | {run['step'] * 1e3:.0f} | {step * 1e3:.0f} | "
            f"{step / run['step'] - 1:+.1%} |"
        )
    for is_drawn, found in errors.items():
        if found:
            within = sum(abs(error) <= 0.15 for error in found)
            lines.append(
                f"\n{'drawn' if is_drawn else 'chosen'}: {within} of {len(found)} within 15 %, mean absolute error "
                f"{mean(map(abs, found)):.1%}, mean {mean(found):+.1%}, median {median(found):+.1%}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=12, help="number of drawn settings")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn settings")
    parser.add_argument("--chosen", type=int, default=12, help="number of the chosen settings")
    parser.add_argument("--out", type=Path, help="without ending; default: bench/results/DATE-plan-links")
    args = parser.parse_args()
    facts = page.facts()
    with tempfile.TemporaryDirectory() as folder:
        runs = run_all(chosen()[: args.chosen] + drawn(args.draw, args.seed), Path(folder))
    print(page.save("plan-links", args.out, "A planned step on slow links, beside a measured one", facts, table(runs)))


if __name__ == "__main__":
    main()
