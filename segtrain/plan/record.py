"""Predictions beside what happened: rows of finished runs that had a plan, kept in a file, and their errors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtrain.diagnose.evidence import gather
from segtrain.diagnose.stats import run_stats
from segtrain.errors import DataError, SegtrainError
from segtrain.files import read_text, write_atomically
from segtrain.observe.spans import NO_STEP
from segtrain.observe.spent import spent
from segtrain.plan.same import decisive, differences
from segtrain.plan.saved import FILE, read
from segtrain.runs.folder import RunFolder, load
from segtrain.runs.remote import is_remote, local

RECORD = "plan-record.jsonl"
# Figures of a row: name -> unit.
FIGURES = {"step": "s", "rate": "images/s", "minutes": "min", "dollars": "$"}
# A run may have this share more or fewer images than its plan: steps are whole.
SAME = 0.02


@dataclass(frozen=True)
class Found:
    """``rows``: of the record, one for each run. ``left_out``: run -> why it is not among them. ``gaps``: run -> which
    of its figures are missing, and why.
    """

    rows: tuple[Mapping[str, Any], ...]
    left_out: dict[str, str]
    gaps: dict[str, str]


def update(places: Sequence[str], on: str = "") -> Found:
    """Add the finished runs below ``places`` that had a plan to the record of each folder, and read it.

    A run in a bucket, or sagemaker:JOB, goes to the record of runs/. ``on``: the type of the machines of runs that do
    not say it. Raises SegtrainError.
    """
    rows, left_out, gaps = list[Mapping[str, Any]](), dict[str, str](), dict[str, str]()
    for location in places:
        folder = Path("runs" if is_remote(location) else location)
        if is_remote(location):
            folder.mkdir(exist_ok=True)
            runs = [(location, place) for place in _planned(local(location).folder)]
        elif folder.is_dir():
            runs = [(str(place.relative_to(folder)), place) for place in _planned(folder)]
        else:
            raise DataError(f"{folder}: there is no such folder of runs", code="folder-missing", file=str(folder))
        kept = {row["run"]: row for row in _kept(folder / RECORD)}
        before = dict(kept)
        for name, place in runs:
            try:
                row, missing = _row(place, on)
            except SegtrainError as problem:
                kept.pop(name, None)
                left_out[str(place)] = str(problem)
                continue
            kept[name] = {"run": name, **row}
            if missing:
                gaps[str(place)] = missing
        if kept != before:
            lines = "".join(json.dumps(row) + "\n" for row in kept.values())
            write_atomically(folder / RECORD, lines.encode(), "folder")
        rows += kept.values()
    return Found(tuple(rows), left_out, gaps)


def errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each figure: ``runs``, ``inside`` (share of the 80 % intervals that held), and the means of the ``absolute``
    and of the ``signed`` error, as shares of what happened.
    """
    found = {}
    for name in FIGURES:
        pairs = [(row[name]["predicted"], row[name]["happened"]) for row in rows if name in row]
        if pairs:
            wrong = [middle / happened - 1 for (_, middle, _), happened in pairs]
            found[name] = {
                "runs": len(pairs),
                "inside": sum(low <= happened <= high for (low, _, high), happened in pairs) / len(pairs),
                "absolute": sum(map(abs, wrong)) / len(pairs),
                "signed": sum(wrong) / len(pairs),
            }
    return found


def text(found: Found) -> str:
    lines = ["figure   runs  in the 80 % interval  mean absolute error  signed mean"]
    for name, one in errors(found.rows).items():
        inside, absolute, signed = (f"{100 * one[key]:{sign}.1f} %" for key, sign in (
            ("inside", ""), ("absolute", ""), ("signed", "+")))  # fmt: skip
        lines.append(f"{name:<8} {one['runs']:4.0f}  {inside:>20}  {absolute:>19}  {signed:>11}")
    if not found.rows:
        lines = ["no finished run had a plan: segtrain plan ... --save RUN, before the run begins"]
    lines += [f"{run}: only in part: {why}" for run, why in found.gaps.items()]
    return "\n".join([*lines, *(f"{run}: left out: {why}" for run, why in found.left_out.items())])


def _kept(file: Path) -> Iterator[dict[str, Any]]:
    if file.is_file():
        for line in read_text(file).splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "run" in row:
                yield row


def _planned(folder: Path) -> Iterator[Path]:
    """The folders at or below ``folder`` that hold a plan, in order."""
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if FILE in files:
            yield Path(path)


def _row(place: Path, on: str) -> tuple[dict[str, Any], str]:
    """The row of the run in a folder, and which figures it lacks and why. Raises DataError if it is left out."""
    plan, run = read(place / FILE), load(place, say=lambda text: None)
    if not plan:
        raise _left_out(place, f"{FILE} is damaged, or of another version")
    starts = [event for event in run.events if event["event"] == "run_start"]
    if run.row["status"] != "done" or not starts:
        raise _left_out(place, f"it is not finished ({run.row['status']})")
    if plan["made"] > min(starts[0]["ts"], starts[0].get("begun") or starts[0]["ts"]):
        raise _left_out(place, "its plan was made after it began")
    offer = _offer(place, plan, starts, on)
    _refuse_others(place, plan, run, offer)
    row: dict[str, Any] = {"machine": offer["machine"], "hosts": offer["hosts"], "made": plan["made"]}
    gaps = []
    step = _step(place)
    if step is None:
        gaps.append("step and rate: it has no spans of steady steps")
    else:
        row["step"] = {"predicted": offer["step"], "happened": step}
        row["rate"] = {"predicted": offer["rate"], "happened": offer["batch"] / step}
    images = (starts[-1].get("total_steps") or 0) * offer["batch"]
    if abs(images / plan["total"] - 1) > SAME:
        gaps.append(f"minutes and dollars: it trained on {images:,.0f} images, and its plan has {plan['total']:,.0f}")
        return row, "; ".join(gaps)
    took = spent(run.events, offer["price"])
    row["minutes"] = {"predicted": [one / 60 for one in offer["seconds"]], "happened": took.seconds / 60}
    if took.dollars and offer["price"]:
        cost = offer["hosts"] * offer["price"] / 3600
        row["dollars"] = {"predicted": [cost * one for one in offer["seconds"]], "happened": took.dollars}
    else:
        gaps.append("dollars: the price of its machines is not known")
    return row, "; ".join(gaps)


def _left_out(place: Path, why: str) -> DataError:
    return DataError(why, code="not-in-the-record", file=str(place))


def _offer(place: Path, plan: Mapping[str, Any], starts: Sequence[Mapping[str, Any]], on: str) -> Mapping[str, Any]:
    """The plan's offer for the machines of the run."""
    kinds = {(str(event.get("machine") or on or plan["machine"]), event.get("hosts") or 1) for event in starts}
    if len(kinds) > 1:
        named = ", ".join(f"{hosts} x {machine}" for machine, hosts in sorted(kinds))
        raise _left_out(place, f"its processes ran on different machines ({named})")
    (machine, hosts), = kinds  # fmt: skip
    if not machine:
        raise _left_out(place, "it does not say on which type of machine it ran: give it with --on TYPE")
    for offer in plan["offers"]:
        if (offer["machine"], offer["hosts"]) == (machine, hosts):
            return dict(offer)
    raise _left_out(place, f"its plan has no offer of {hosts} x {machine}")


def _refuse_others(place: Path, plan: Mapping[str, Any], run: RunFolder, offer: Mapping[str, Any]) -> None:
    """Raise DataError if the run has other settings than its plan."""
    changed = differences(plan["settings"], decisive(run.config))
    batch = (run.config.get("train") or {}).get("batch_size")
    if batch != offer["batch"]:
        changed.append(f"train.batch_size={batch}, and not {offer['batch']:g}")
    if changed:
        raise _left_out(place, f"it has other settings than its plan: {'; '.join(changed)}")


def _step(place: Path) -> float | None:
    """Seconds of a mean step without log lines, evaluations, and checkpoints; None without spans of steady steps."""
    try:
        evidence = gather(place, say=lambda text: None)
    except DataError:
        return None
    figures = run_stats(evidence)
    if figures is None or not figures.steady:
        return None
    return sum(rank.step - rank.spent(*NO_STEP) for rank in figures.ranks) / len(figures.ranks)
