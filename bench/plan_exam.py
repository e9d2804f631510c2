"""Predictions of jobs that publications describe, and their errors: each source predicted by the others.

    python bench/plan_exam.py                # a few seconds; tables by kind and by source, and the fitted factor
    python bench/plan_exam.py --rows         # each figure beside its prediction
    python bench/plan_exam.py FILE.json      # predict a list of described jobs (docs/plan.md), and print JSON

Figures and sources: bench/open_figures.json and tests/plan/exam_open.json. The only fitted number, DENSE of segtrain/insight/plan/device.py,
is fitted again without the source of the predicted figure, so no error is of a figure that the fit has seen. All
other numbers of the model are counted or from data sheets. The widths of the intervals come from these tables, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.exam.answers import answer, answers  # noqa: E402
from segtrain.errors import SegtrainError  # noqa: E402
from segtrain.insight.plan.device import DENSE  # noqa: E402

SOURCES = ("DeepLearningExamples", "mmsegmentation", "mosaicml", "vertex-ai", "H200", "account 1")
KINDS = {
    "a": "one GPU from specifications",
    "b": "scaling",
    "x": "another GPU",
    "d": "minutes and hours",
    "i": "samples by cores",
}
Entry = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """``error``: as a share. ``log``: of (published / the predicted median). ``held``: whether the
    interval holds it.
    """

    entry: Entry
    error: float
    log: float
    held: bool


def figures() -> list[Entry]:
    """All entries with "answer" and "source"."""
    files = (ROOT / "bench/open_figures.json", ROOT / "tests/plan/exam_open.json")
    return [entry for file in files for entry in json.loads(file.read_text(encoding="utf-8"))]


def source(entry: Entry) -> str:
    return next((name for name in SOURCES if name in entry["source"]), "bench/results")


def fitted(entries: Iterable[Entry]) -> float:
    """DENSE by the figures of one GPU: averaged over sources on a logarithmic scale.

    Figures that the factor hardly changes are left out.
    """
    found: dict[str, list[float]] = {}
    for entry in entries:
        usual, changed = (log(median(entry, dense)) for dense in (1.0, 1.5))
        if entry["kind"] == "a" and abs(changed - usual) > 0.25:
            power = (log(entry["answer"]) - usual) / (changed - usual)
            found.setdefault(source(entry), []).append(power * log(1.5))
    return float(f"{exp(mean(map(mean, found.values()))):.3g}") if found else 1.0


def median(entry: Entry, dense: float) -> float:
    """The middle of the predicted interval; "value" is below it."""
    said = answer(entry, dense)
    return float((said["low"] * said["high"]) ** 0.5)


def judged(entries: list[Entry]) -> list[Judged]:
    """Each entry with its error, predicted by a fit without its source."""
    fits = {
        name: fitted(one for one in entries if source(one) != name)
        for name in {*map(source, entries)}
    }
    found = []
    for entry in entries:
        dense = fits[source(entry)]
        said = answer(entry, dense)
        held = said["low"] <= entry["answer"] <= said["high"]
        found.append(
            Judged(
                entry,
                said["value"] / entry["answer"] - 1,
                log(entry["answer"] / median(entry, dense)),
                held,
            )
        )
    return found


def from_specifications(entry: Entry) -> bool:
    """Whether no measured neighbor tells the rate of a GPU."""
    return entry["kind"] in "ad" and not entry["inputs"].get("given")


def deviation(rows: list[Judged]) -> float:
    """The root mean square of the logarithms of (published / predicted), each source counted
    once.
    """
    names = {source(row.entry) for row in rows}
    return (
        mean(mean(row.log**2 for row in rows if source(row.entry) == name) for name in names) ** 0.5
    )


def line(title: str, rows: list[Judged]) -> str:
    errors = [row.error for row in rows]
    names = {source(row.entry) for row in rows}
    inside = mean(row.held for row in rows)
    return f"| {title} | {len(rows)} | {len(names)} | {mean(map(abs, errors)):.1%} | {mean(errors):+.1%} | {inside:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE.json", help="described jobs to predict"
    )
    parser.add_argument("--rows", action="store_true", help="each figure beside its prediction")
    args = parser.parse_args()
    if args.file:
        try:
            print(json.dumps(answers(args.file), indent=1))
        except SegtrainError as error:
            parser.error(str(error))
        return
    entries = figures()
    rows = judged(entries)
    if args.rows:
        for row in rows:
            name, said = row.entry["id"], row.entry["answer"]
            print(
                f"{row.entry['kind']} {name:52} {said:>9} {row.error:+7.1%} {'' if row.held else 'outside'}"
            )
    print("\neach source predicted without its own figures\n")
    print(
        "| kind | figures | sources | mean absolute error | signed mean | within the 80 % interval |"
    )
    print("|---" * 6 + "|")
    for kind, title in KINDS.items():
        print(line(title, [row for row in rows if row.entry["kind"] == kind]))
        for name in sorted({source(row.entry) for row in rows if row.entry["kind"] == kind}):
            print(
                line(
                    f"- {name}",
                    [
                        row
                        for row in rows
                        if row.entry["kind"] == kind and source(row.entry) == name
                    ],
                )
            )
    print(line("all", rows))
    specs = [row for row in rows if from_specifications(row.entry)]
    others = [row for row in rows if row.entry["kind"] == "x"]
    print(
        f"\ndeviation of the logarithm: from specifications {deviation(specs):.2f}, another GPU {deviation(others):.2f}"
    )
    print(f"DENSE fitted on all sources: {fitted(entries)}, in device.py: {DENSE}")


if __name__ == "__main__":
    main()
