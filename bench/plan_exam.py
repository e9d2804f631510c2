"""The errors of `segtrain plan --exam` on published figures that anyone can read, by kind, also held out.

    python bench/plan_exam.py            # 20 seconds; a table, and the four fitted numbers
    python bench/plan_exam.py --rows     # each figure beside its prediction

Figures and sources: bench/open_figures.json and tests/plan/exam_open.json. "held out": the four numbers of
segtrain/plan/device.py are fitted again without every figure of the entry's GPU (or of its network, for segmentation).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import astuple
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from segtrain.plan.device import FITTED, Fit  # noqa: E402
from segtrain.plan.exam import answer  # noqa: E402
from segtrain.plan.inputs import job_of  # noqa: E402
from segtrain.plan.job import rate  # noqa: E402

# Where the fit begins, and what it stays near to if no figure tells: a deviation of 25 % counts as much as an error of
# 25 % of one figure.
PRIOR = Fit(tensor=0.6, plain=0.9, passes=18.0, planar=1.4)
# The rows whose figures set the supply of samples in segtrain/plan/job.py.
SUPPLY_FROM = ("rn50-21.03-V100-SXM-16-amp-8", "rn50-21.03-A100-SXM-80-amp-8")


def figures() -> list[dict[str, Any]]:
    """All entries with "answer" and "source"."""
    files = (ROOT / "bench/open_figures.json", ROOT / "tests/plan/exam_open.json")
    return [entry for file in files for entry in json.loads(file.read_text(encoding="utf-8"))]


def group(entry: dict[str, Any]) -> str:
    """What is left out together: a network of segmentation, else a kind of GPU."""
    inputs = entry["inputs"]
    return "segmentation" if "D8" in inputs["model"] else inputs["gpu"].split("-")[0] + inputs["gpu"][-3:]


def loss(fit: Fit, entries: Iterable[dict[str, Any]]) -> float:
    """Squared logarithms of (predicted / published), and of (fitted / prior)."""
    found = sum(log(one / two) ** 2 for one, two in zip(astuple(fit), astuple(PRIOR)))
    for entry in entries:
        job = job_of(entry["inputs"])
        per = job.ranks if "per GPU" in entry["predict"] else 1
        found += log(rate(job, fit=fit) / per / entry["answer"]) ** 2
    return found


def fitted(entries: list[dict[str, Any]]) -> Fit:
    """The numbers of least loss, one after the other in steps that shrink."""
    numbers, step = list(astuple(PRIOR)), 0.2
    best = loss(Fit(*numbers), entries)
    while step > 0.004:
        before = best
        for k in range(len(numbers)):
            for factor in (exp(step), exp(-step)):
                tried = [one * factor if i == k else one for i, one in enumerate(numbers)]
                if (found := loss(Fit(*tried), entries)) < best:
                    best, numbers = found, tried
        if best == before:
            step /= 2
    return Fit(*(float(f"{number:.3g}") for number in numbers))


def training(entries: list[dict[str, Any]], without: str = "") -> list[dict[str, Any]]:
    """Figures of one GPU from specifications, segmentation left out: their heads have a factor of their own."""
    return [
        entry
        for entry in entries
        if entry["kind"] == "a" and group(entry) != "segmentation" and group(entry) != without
    ]


def judged(entries: list[dict[str, Any]], held_out: bool) -> list[tuple[dict[str, Any], float, bool]]:
    """(entry, error as a share, whether the interval holds the figure)."""
    fits = lru_cache(lambda name: fitted(training(entries, name)))
    found = []
    for entry in entries:
        said = answer(entry, fits(group(entry)) if held_out else FITTED)
        error = said["value"] / entry["answer"] - 1
        found.append((entry, error, said["low"] <= entry["answer"] <= said["high"]))
    return found


def line(kind: str, rows: list[tuple[dict[str, Any], float, bool]]) -> str:
    errors = [error for _, error, _ in rows]
    mean = sum(map(abs, errors)) / len(rows)
    signed = sum(errors) / len(rows)
    inside = sum(held for *_, held in rows) / len(rows)
    return f"| {kind} | {len(rows)} | {100 * mean:.1f} % | {100 * signed:+.1f} % | {100 * inside:.0f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="each figure beside its prediction")
    args = parser.parse_args()
    entries = figures()
    if args.rows:
        for entry, error, held in judged(entries, True):
            print(
                f"{entry['kind']} {entry['id']:52} {entry['answer']:>9} {100 * error:+6.1f} % {'' if held else 'outside'}"
            )
    for held_out in (False, True):
        rows = judged(entries, held_out)
        print(f"\n{'held out' if held_out else 'all figures'}\n")
        print("| kind | figures | mean absolute error | signed mean | within the 80 % interval |\n" + "|---" * 5 + "|")
        for kind, name in KINDS.items():
            print(line(name, [row for row in rows if row[0]["kind"] == kind]))
        print(line("scaling, without the rows that set the supply of samples", [
            row for row in rows if row[0]["kind"] == "b" and row[0]["id"] not in SUPPLY_FROM
        ]))  # fmt: skip
        print(line("all", rows))
    print(f"\nfitted on all: {fitted(training(entries))}\nin device.py:  {FITTED}")


KINDS = {
    "a": "one GPU from specifications",
    "b": "scaling",
    "x": "another GPU",
    "d": "minutes and hours",
    "i": "samples by cores",
}

if __name__ == "__main__":
    main()
