"""Predictions beside what happened: the finished runs that had a plan, and the errors of their
plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtrain.base.terminal import columns
from segtrain.errors import DataError, SegtrainError
from segtrain.insight.diagnose.differences import decisive, other_settings
from segtrain.insight.diagnose.evidence import evidence_of
from segtrain.insight.diagnose.stats import run_stats
from segtrain.insight.plan.saved import FILE, read
from segtrain.insight.runs.folder import RunFolder, load, silent
from segtrain.insight.runs.remote import Services, local
from segtrain.observe.journal import Event
from segtrain.observe.spans import NO_STEP
from segtrain.observe.spent import spent

# Figures of a row, each with what was predicted (10 %, 50 %, 90 %) and what happened: images/s, and
# minutes to the end.
FIGURES = ("rate", "minutes")
# A run may have this share more or fewer images than its plan: steps are whole.
SAME = 0.02


@dataclass(frozen=True)
class Record:
    """``rows``: one for each run. ``missing``: run -> why it is not among them, or lacks a
    figure.
    """

    rows: tuple[Mapping[str, Any], ...]
    missing: dict[str, str]


def record(places: Sequence[str], on: str = "", services: Services = ()) -> Record:
    """The finished runs in or below ``places`` that had a plan. Raises SegtrainError.

    ``places``: folders, and runs in buckets or of SageMaker. ``on``: the type of the machines of
    runs that do not say it.
    """
    rows, missing = list[Mapping[str, Any]](), dict[str, str]()
    for place in places:
        folder = local(place, services=services).folder
        if not folder.is_dir():
            raise DataError(
                f"{folder}: there is no such folder of runs",
                code="folder-missing",
                file=str(folder),
            )
        for run in sorted(file.parent for file in folder.rglob(FILE)):
            try:
                row, gaps = _row(run, on)
            except SegtrainError as problem:
                missing[str(run)] = str(problem)
                continue
            rows.append(row)
            if gaps:
                missing[str(run)] = "; ".join(gaps)
    return Record(tuple(rows), missing)


def errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each figure: ``runs``, ``inside`` (share of the 80 % intervals that held), and the means
    of the ``absolute`` and of the ``signed`` error, as shares of what happened.
    """
    by_figure = {}
    for name in FIGURES:
        pairs = [(row[name]["predicted"], row[name]["happened"]) for row in rows if name in row]
        if pairs:
            wrong = [middle / happened - 1 for (_, middle, _), happened in pairs]
            by_figure[name] = {
                "runs": len(pairs),
                "inside": sum(low <= happened <= high for (low, _, high), happened in pairs)
                / len(pairs),
                "absolute": sum(map(abs, wrong)) / len(pairs),
                "signed": sum(wrong) / len(pairs),
            }
    return by_figure


def text(record: Record) -> str:
    rows = [("figure", "runs", "in the 80 % interval", "mean absolute error", "signed mean")]
    for name, error in errors(record.rows).items():
        inside = error["inside"]
        absolute = error["absolute"]
        signed = error["signed"]
        rows.append(
            (name, f"{error['runs']:.0f}", f"{inside:.1%}", f"{absolute:.1%}", f"{signed:+.1%}")
        )
    lines = columns(rows, right=range(1, 5))
    if not record.rows:
        lines = ["no finished run had a plan: segtrain plan ... --save RUN, before the run begins"]
    return "\n".join([*lines, *(f"{run}: {why}" for run, why in record.missing.items())])


def _row(place: Path, on: str) -> tuple[dict[str, Any], list[str]]:
    """The row of the run in a folder, and which figures it lacks and why. Raises DataError if it is
    left out.
    """
    plan, run = read(place / FILE), load(place, silent)
    if not plan:
        raise _left_out(place, f"{FILE} is damaged, or of another version")
    starts = [event for event in run.events if event["event"] == "run_start"]
    if run.row["status"] != "done" or not starts:
        raise _left_out(place, f"it is not finished ({run.row['status']})")
    if plan["made"] > min(starts[0]["ts"], starts[0].get("begun") or starts[0]["ts"]):
        raise _left_out(place, "its plan was made after it began")
    offer = _offer(place, plan, starts, on)
    changed = other_settings(plan["settings"], decisive(run.config))
    batch = run.setting("train.batch_size")
    if batch != offer["batch"]:
        changed.append(f"train.batch_size={batch}, and not {offer['batch']:g}")
    if changed:
        raise _left_out(place, f"it has other settings than its plan: {'; '.join(changed)}")
    row: dict[str, Any] = {"run": str(place), "machine": offer["machine"], "hosts": offer["hosts"]}
    gaps, step = [], _step(run)
    if step is None:
        gaps.append("rate: it has no spans of steady steps")
    else:
        row["rate"] = {"predicted": offer["rate"], "happened": offer["batch"] / step}
    images = (starts[-1].get("total_steps") or 0) * offer["batch"]
    if abs(images / plan["total"] - 1) > SAME:
        gaps.append(
            f"minutes: it trained on {images:,.0f} images, and its plan has {plan['total']:,.0f}"
        )
    else:
        minutes = [seconds / 60 for seconds in offer["seconds"]]
        row["minutes"] = {"predicted": minutes, "happened": spent(run.events).seconds / 60}
    return row, gaps


def _left_out(place: Path, why: str) -> DataError:
    return DataError(why, code="not-in-the-record", file=str(place))


def _offer(
    place: Path, plan: Mapping[str, Any], starts: Sequence[Event], on: str
) -> Mapping[str, Any]:
    """The plan's offer for the machines of the run."""
    kinds = {
        (str(event.get("machine") or on or plan["machine"]), event.get("hosts") or 1)
        for event in starts
    }
    if len(kinds) > 1:
        named = ", ".join(f"{hosts} x {machine}" for machine, hosts in sorted(kinds))
        raise _left_out(place, f"its processes ran on different machines ({named})")
    ((machine, hosts),) = kinds
    if not machine:
        raise _left_out(
            place, "it does not say on which type of machine it ran: give it with --on TYPE"
        )
    for offer in plan["offers"]:
        if (offer["machine"], offer["hosts"]) == (machine, hosts):
            return dict(offer)
    raise _left_out(place, f"its plan has no offer of {hosts} x {machine}")


def _step(run: RunFolder) -> float | None:
    """Seconds of a mean step without log lines, evaluations, and checkpoints; None without spans of
    steady steps.
    """
    try:
        figures = run_stats(evidence_of(run))
    except DataError:
        return None
    if figures is None or not figures.steady:
        return None
    return sum(rank.step - rank.spent(*NO_STEP) for rank in figures.ranks) / len(figures.ranks)
