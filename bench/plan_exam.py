"""The errors of `segtrain plan --exam` on published figures that anyone can read, by kind, also held out.

    python bench/plan_exam.py            # 20 seconds; tables, and the five fitted numbers
    python bench/plan_exam.py --rows     # each figure beside its prediction

Figures and sources: bench/open_figures.json and tests/plan/exam_open.json. "held out": the five numbers of
segtrain/plan/device.py are fitted again without every figure of the entry's group. Groups are families of networks,
generations of GPUs, software, and sources; the widths of the intervals in segtrain/plan/exam.py come from the last table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from segtrain.machines.gpu_names import gpu_named  # noqa: E402
from segtrain.plan.device import FITTED, Fit  # noqa: E402
from segtrain.plan.exam import answer  # noqa: E402
from segtrain.plan.inputs import job_of  # noqa: E402
from segtrain.plan.job import rate  # noqa: E402
from segtrain.plan.names import family_named, kind_named  # noqa: E402


@dataclass(frozen=True)
class Judged:
    """``error``: as a share. ``log``: of (published / the predicted median). ``held``: whether the interval holds it."""

    entry: dict[str, Any]
    error: float
    log: float
    held: bool


# Where the fit begins, and what it stays near to if no figure tells: a deviation of 25 % counts as much as an error of
# 25 % of one figure. Only ``dense`` is free: nothing is known of it but the figures.
PRIOR = Fit(tensor=0.6, plain=0.9, passes=18.0, planar=1.4, dense=1.0)
NUMBERS, KEPT = 5, 4  # numbers of a Fit, and how many of them stay near to PRIOR
LEAST = 3  # figures of a family or of a generation that the fit counts as seen
# The rows whose figures set the supply of samples in segtrain/plan/job.py.
SUPPLY_FROM = ("rn50-21.03-V100-SXM-16-amp-8", "rn50-21.03-A100-SXM-80-amp-8")


def figures() -> list[dict[str, Any]]:
    """All entries with "answer" and "source"."""
    files = (ROOT / "bench/open_figures.json", ROOT / "tests/plan/exam_open.json")
    return [entry for file in files for entry in json.loads(file.read_text(encoding="utf-8"))]


def family(entry: dict[str, Any]) -> str:
    name = entry["inputs"]["model"]
    return family_named(name, kind_named(name))


def generation(entry: dict[str, Any]) -> str:
    found = gpu_named(entry["inputs"]["gpu"])
    return found.arch if found else ""


def software(entry: dict[str, Any]) -> str:
    """The framework, and for NVIDIA's page the container's year, because its layout changed between the two."""
    said = entry["inputs"]["framework"]
    return f"NVIDIA {entry['inputs']['year']}" if "NVIDIA" in said else said


def source(entry: dict[str, Any]) -> str:
    said = str(entry["source"])
    return next(
        (name for name in ("DeepLearningExamples", "mmsegmentation", "mosaicml", "vertex-ai") if name in said), said
    )


GROUPINGS = {"family": family, "generation": generation, "software": software, "source": source}


def loss(fit: Fit, entries: Iterable[dict[str, Any]]) -> float:
    """Squared logarithms of (predicted / published), and of (fitted / prior)."""
    found = sum(log(one / two) ** 2 for one, two in zip(astuple(fit)[:KEPT], astuple(PRIOR)))
    for entry in entries:
        job = job_of(entry["inputs"])
        per = job.ranks if "per GPU" in entry["predict"] else 1
        found += log(rate(job, fit=fit) / per / entry["answer"]) ** 2
    return found


def fitted(entries: list[dict[str, Any]]) -> Fit:
    """The numbers of least loss, one after the other in steps that shrink."""
    counts = Counter(name for entry in entries for name in (family(entry), generation(entry)))
    numbers, step = list(astuple(PRIOR)[:NUMBERS]), 0.2
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
    seen = tuple(sorted(name for name, count in counts.items() if count >= LEAST))
    return Fit(*(float(f"{number:.3g}") for number in numbers), seen=seen)


def training(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures of one GPU from specifications."""
    return [entry for entry in entries if entry["kind"] == "a"]


def judged(entries: list[dict[str, Any]], group: Callable[[dict[str, Any]], str] | None) -> list[Judged]:
    """Each entry with its error, predicted by a fit without its group; with None, by the fit of all."""

    @lru_cache
    def fit_without(name: str) -> Fit:
        return fitted(training(entry for entry in entries if group and group(entry) != name))

    found = []
    for entry in entries:
        said = answer(entry, fit_without(group(entry)) if group else FITTED)
        middle = (said["low"] * said["high"]) ** 0.5  # the median; "value" is below it
        held = said["low"] <= entry["answer"] <= said["high"]
        found.append(Judged(entry, said["value"] / entry["answer"] - 1, log(entry["answer"] / middle), held))
    return found


def from_specifications(entry: dict[str, Any]) -> bool:
    """Whether no measured neighbor tells the rate of a GPU."""
    return entry["kind"] in "ad" and not entry["inputs"].get("given")


def spread(rows: list[Judged], group: Callable[[dict[str, Any]], str]) -> tuple[float, int]:
    """The root mean square of the logarithms of (published / predicted), each group counted once, and their number."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(group(row.entry), []).append(row.log**2)
    return mean(mean(found) for found in errors.values()) ** 0.5, len(errors)


def line(kind: str, rows: list[Judged]) -> str:
    errors = [row.error for row in rows]
    inside = mean(row.held for row in rows)
    return f"| {kind} | {len(rows)} | {mean(map(abs, errors)):.1%} | {mean(errors):+.1%} | {inside:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="each figure beside its prediction")
    args = parser.parse_args()
    entries = figures()
    if args.rows:
        for row in judged(entries, generation):
            name, said = row.entry["id"], row.entry["answer"]
            print(f"{row.entry['kind']} {name:52} {said:>9} {row.error:+7.1%} {'' if row.held else 'outside'}")
    for title, group in (("all figures", None), *GROUPINGS.items()):
        rows = judged(entries, group)
        print(f"\n{f'held out by {title}' if group else title}\n")
        print("| kind | figures | mean absolute error | signed mean | within the 80 % interval |\n" + "|---" * 5 + "|")
        for kind, name in KINDS.items():
            print(line(name, [row for row in rows if row.entry["kind"] == kind]))
        print(line("scaling, without the rows that set the supply of samples", [
            row for row in rows if row.entry["kind"] == "b" and row.entry["id"] not in SUPPLY_FROM
        ]))  # fmt: skip
        print(line("all", rows))
    print(
        "\nfrom specifications, by what is held out:\n\n| held out | groups | deviation of the logarithm |\n|---|---|---|"
    )
    for title, group in GROUPINGS.items():
        deviation, count = spread([row for row in judged(entries, group) if from_specifications(row.entry)], group)
        print(f"| {title} | {count} | {deviation:.2f} |")
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
