"""Comparison of predicted and measured gains: injects each cause, diagnoses it, applies the fix, and runs again.

    python bench/diagnose_gain.py                  # some minutes; writes bench/results/DATE-diagnose-gain.md and .json
    python bench/diagnose_gain.py --only "decode;main-thread"
    python bench/diagnose_gain.py --draws 3 --seed 1   # each cause thrice (drawn_plants.py)

Cured is by the settings of the verdict's own cure where it names some, by those that plants.py has in their place where
it leaves a choice, else by taking the planted cause out. Measured is the ratio of images/s of the two runs,
their first second left out. Runs take turns: slow, cured, slow, cured; the median over rounds. A sleeping "device"
keeps most steps the same on a shared machine; where the CPU itself is the cause, other programs show in the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page  # noqa: E402
from drawn_plants import draw  # noqa: E402
from plants import PLANTS, SHAPE, SLOW_NETWORK, Plant, code, command, pictures  # noqa: E402

from segtrain.insight.diagnose.judge import diagnose  # noqa: E402
from segtrain.insight.diagnose.verdict import Diagnosis  # noqa: E402
from segtrain.parallel.cluster import Cluster, free_port  # noqa: E402

# The first trains nothing, the second is slow-rank under another name, and of the third no gain is
# predicted.
LEFT_OUT = ("shm", "slow-host", "threads of worker processes")
CLOSE = 0.25


def run(
    name: str, plant: Plant, data: Path, out: Path, settings: tuple[str, ...] = ()
) -> Diagnosis:
    """One run, in a process of its own for each rank; its diagnosis."""
    shutil.rmtree(out, ignore_errors=True)
    words = command(data, out, plant, settings)
    environment = {
        **os.environ,
        **plant.environment,
        "PYTHONPATH": f"{HERE}:{HERE.parent}",
        "OMP_NUM_THREADS": "1",
    }
    if plant.cause == SLOW_NETWORK.cause:
        inside = f"{SHAPE.format(rate=plant.rate)} && exec {sys.executable} -m segtrain {' '.join([*words, 'parallel.procs=2'])}"
        commands = [(["unshare", "-rn", "bash", "-c", inside], environment)]
    else:
        port = free_port()
        places = [
            Cluster(rank, plant.ranks, rank, plant.ranks, "127.0.0.1", port)
            for rank in range(plant.ranks)
        ]
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
    output = [rank.communicate()[0].decode() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{name}: {output[0][-2000:]}")
    return diagnose(out)


def compare(name: str, plant: Plant, data: Path, rounds: int) -> dict:
    results = []
    for _ in range(rounds):
        slow = run(name, plant, data, data / "run")
        first = slow.proposed
        mine = first is not None and first.cause == plant.cause
        cure = (plant.cure if mine else ()) or (first.fix.words if first and not plant.heal else ())
        # A run that is faster needs more steps to be as long.
        gain = min(8.0, first.gain if first else 1.0)
        longer = replace(plant, steps=max(plant.steps, round(plant.steps * gain)))
        cured = run("" if plant.heal else name, longer, data, data / "run", cure)
        results.append(
            {
                "named": slow.bound,
                "share": first.share if first else 0.0,
                "predicted": first.gain if first else 1.0,
                "measured": cured.facts["images_per_s"] / slow.facts["images_per_s"],
                "after": cured.bound,
                "cure": " ".join(cure) or "taken out",
            }
        )
    middle = {
        key: statistics.median(f[key] for f in results)
        for key in ("share", "predicted", "measured")
    }
    last = results[-1]
    return {
        "planted": name,
        "with": _strength(plant),
        "cause": plant.cause,
        "named": [f["named"] for f in results],
        **middle,
        "after": last["after"],
        "cure": last["cure"],
    }


def _strength(plant: Plant) -> str:
    words = [w for w in plant.settings if not w.startswith("data.transforms")]
    if plant.cause == SLOW_NETWORK.cause:
        words.append(plant.rate)
    else:
        words += [f"x {plant.times:.2f}", f"device {1000 * plant.device_s * plant.device:.0f} ms"]
    return " ".join(words)


def line(row: dict) -> str:
    right = sum(named == row["cause"] for named in row["named"])
    named = ", ".join(
        [
            f"{row['cause']} ({right} of {len(row['named'])})",
            *(n for n in row["named"] if n != row["cause"]),
        ]
    )
    off = row["predicted"] / row["measured"] - 1
    return (
        f"| {row['planted']} | {row['with']} | {named} | {row['share']:.0%} | `{row['cure']}` | "
        f"{row['predicted']:.2f} | {row['measured']:.2f} | {off:+.0%} | {row['after']} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="names of plants, separated by semicolons; empty: all"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--draws", type=int, default=0, help="of each plant, in place of the plant itself"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="without ending; empty: bench/results/DATE-diagnose-gain",
    )
    args = parser.parse_args()
    facts = page.facts()
    drawn = f"-draws-{args.seed}" if args.draws else ""
    every = {**PLANTS, "slow-network": SLOW_NETWORK}
    plants = {name: plant for name, plant in every.items() if name not in LEFT_OUT}
    wanted = [name for name in args.only.split(";") if name] or list(plants)
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        pictures(data)
        for name, plant in _chosen(plants, wanted, args.draws, args.seed):
            rows.append(compare(name, plant, data, args.rounds))
            print(line(rows[-1]), flush=True)
            save(f"diagnose-gain{drawn}", args.out, facts, rows)
    return 0


def _chosen(
    plants: dict[str, Plant], wanted: list[str], draws: int, seed: int
) -> list[tuple[str, Plant]]:
    if not draws:
        return [(name, plants[name]) for name in wanted]
    return [
        (name, draw(name, plants[name], random.Random(f"{seed} {name} {k}")))
        for k in range(draws)
        for name in wanted
    ]


def save(name: str, out: Path | None, facts: dict, rows: list[dict]) -> None:
    near = sum(abs(row["predicted"] / row["measured"] - 1) <= CLOSE for row in rows)
    right = sum(named == row["cause"] for row in rows for named in row["named"])
    lines = [
        f"- {right} of {sum(len(row['named']) for row in rows)} times the planted cause is named first; "
        f"{near} of {len(rows)} predictions are within {CLOSE:.0%} of what was measured",
        "",
        "| planted | how | named first | share lost | cure | predicted gain | measured | off by | then bound by |",
        "|---" * 9 + "|",
        *map(line, rows),
    ]
    page.save(name, out, "Gains of fixes, predicted and measured", facts, lines, rows)


if __name__ == "__main__":
    sys.exit(main())
