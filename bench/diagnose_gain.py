"""Does the cure of a diagnosis bring what was predicted? Plants each cause, diagnoses, cures, and compares with the second run.

    python bench/diagnose_gain.py                  # some minutes; writes bench/results/DATE-diagnose-gain.md and .json
    python bench/diagnose_gain.py --only decode

Cured is by the settings of the verdict's own cure where it names some, by those that plants.py has in their place where it leaves a
choice, else by taking the planted cause out. Measured is the ratio of images a second of the two runs, their first second left out.
Runs take turns: slow, cured, slow, cured; the median over rounds. A sleeping "device" keeps most steps the same on a shared machine;
where the CPU itself is the cause, other programs show in the figures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from plants import PLANTS, SHAPE, SLOW_NETWORK, Plant, code, command, pictures  # noqa: E402

from segtrain.cores import cores  # noqa: E402
from segtrain.diagnose import Diagnosis, diagnose  # noqa: E402
from segtrain.parallel.cluster import Cluster, free_port  # noqa: E402

LEFT_OUT = ("shm", "slow-host")  # the first trains nothing, the second is slow-rank under another name
CLOSE = 0.25


def run(name: str, plant: Plant, data: Path, settings: tuple[str, ...]) -> Diagnosis:
    """One run, in a process of its own for each rank; its diagnosis."""
    out = data / "run"
    shutil.rmtree(out, ignore_errors=True)
    words = command(data, out, plant, settings)
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}", "OMP_NUM_THREADS": "1"}
    if plant.cause == SLOW_NETWORK.cause:
        inside = f"{SHAPE.format(rate='200mbit')} && exec {sys.executable} -m segtrain {' '.join([*words, 'parallel.procs=2'])}"
        commands = [(["unshare", "-rn", "bash", "-c", inside], environment)]
    else:
        port = free_port()
        places = [Cluster(rank, plant.ranks, rank, plant.ranks, "127.0.0.1", port) for rank in range(plant.ranks)]
        commands = [
            (
                [sys.executable, "-c", code(name, words, plant.device)],
                {**environment, **(place.environment() if plant.ranks > 1 else {})},
            )
            for place in places
        ]
    ranks = [
        subprocess.Popen(words, env=env, cwd=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for words, env in commands
    ]
    said = [rank.communicate()[0].decode() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{name}: {said[0][-2000:]}")
    return diagnose(out)


def settings_of(cure: str) -> tuple[str, ...]:
    return tuple(re.findall(r"(?<!\S)[a-z]+\.[a-z_]+=[^\s,;]+", cure))


def compare(name: str, plant: Plant, data: Path, rounds: int) -> dict:
    found = []
    for _ in range(rounds):
        slow = run(name, plant, data, ())
        first = slow.verdicts[0] if slow.verdicts else None
        cure = () if plant.heal or first is None else plant.cure or settings_of(first.cure)
        # A run that is faster needs more steps to be as long.
        gain = min(8.0, first.gain if first else 1.0)
        longer = replace(plant, steps=max(plant.steps, round(plant.steps * gain)))
        cured = run("" if plant.heal else name, longer, data, cure)
        found.append(
            {
                "named": slow.bound,
                "share": first.share if first else 0.0,
                "predicted": first.gain if first else 1.0,
                "measured": cured.facts["images_per_s"] / slow.facts["images_per_s"],
                "after": cured.bound,
                "cure": " ".join(cure) or "taken out",
            }
        )
    middle = {key: statistics.median(f[key] for f in found) for key in ("share", "predicted", "measured")}
    last = found[-1]
    return {
        "planted": name,
        "cause": plant.cause,
        "named": [f["named"] for f in found],
        **middle,
        "after": last["after"],
        "cure": last["cure"],
    }


def line(row: dict) -> str:
    right = sum(named == row["cause"] for named in row["named"])
    off = row["predicted"] / row["measured"] - 1
    return (
        f"| {row['planted']} | {row['cause']} ({right} of {len(row['named'])}) | {row['share']:.0%} | `{row['cure']}` | "
        f"{row['predicted']:.2f} | {row['measured']:.2f} | {off:+.0%} | {row['after']} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of plants, separated by commas; empty: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=None, help="without ending; empty: bench/results/DATE-diagnose-gain"
    )
    args = parser.parse_args()
    date = datetime.date.today().isoformat()
    out = args.out or HERE / "results" / f"{date}-diagnose-gain"
    plants = {name: plant for name, plant in {**PLANTS, "slow-network": SLOW_NETWORK}.items() if name not in LEFT_OUT}
    wanted = [name for name in args.only.split(",") if name] or list(plants)
    rows: list[dict] = []
    load = "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg())
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        pictures(data)
        for name in wanted:
            rows.append(compare(name, plants[name], data, args.rounds))
            print(line(rows[-1]), flush=True)
            save(
                out,
                rows,
                f"{cores()} cores, {platform.machine()}, Python {platform.python_version()}; load before {load}",
                date,
            )
    return 0


def save(out: Path, rows: list[dict], machine: str, date: str) -> None:
    near = sum(abs(row["predicted"] / row["measured"] - 1) <= CLOSE for row in rows)
    lines = [
        f"# What cures bring, predicted and measured, {date}",
        "",
        f"- machine: {machine}",
        f"- command: python bench/diagnose_gain.py {' '.join(sys.argv[1:])}".rstrip(),
        f"- {near} of {len(rows)} predictions are within {CLOSE:.0%} of what was measured",
        "",
        "| planted | named first | share lost | cure | predicted gain | measured | off by | then bound by |",
        "|---" * 8 + "|",
        *map(line, rows),
    ]
    out.with_name(out.name + ".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out.with_name(out.name + ".json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
