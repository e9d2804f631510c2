"""Checks both splits before a run begins, and keeps the list of faulty samples that the run leaves
out.

The list is written into the run folder when the run begins, one JSON line per sample. A resumed run
reads the list, so that it trains on the same samples in the same order. If more samples have become
faulty since then, the run is refused.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtrain.base.files import read_text, write_atomically
from segtrain.config import Config
from segtrain.data.audit.audit import (
    AuditReport,
    audit,
    check_before_training,
    class_weights,
    refuse_void,
)
from segtrain.data.audit.finding import SplitFinding, refuse
from segtrain.data.audit.images import depth_finding, flip_finding
from segtrain.data.audit.mask_encoding import mask_finding
from segtrain.data.audit.overlap import overlap_finding, test_finding
from segtrain.data.audit.statistics import label_warnings, save
from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import relative
from segtrain.data.index.subset import without
from segtrain.data.sample import rehearse
from segtrain.errors import DataError, file_error
from segtrain.runfolder.checkpoint import checkpoints

FILE = "faults.jsonl"
AUDITS = "data"  # folder with copies of the audits, in case that the cache is lost
_SHOWN = 20  # faults in one error


@dataclass(frozen=True)
class DataCheck:
    """What a check of both splits shows. The roles of the splits are ``train`` and ``val``."""

    remarks: list[str]  # lines for the user
    caveats: list[str]  # warnings that apply to every score of the run
    class_weights: list[float]  # empty if the classes have none
    skipped: dict[str, list[int]]  # indices of the samples that are left out, by role
    lines: list[str] | None  # the list to pass to ``keep``; None if the run has its list already
    audits: dict[str, AuditReport]  # by role


def check_splits(config: Config, dataset: Dataset, validation: Dataset) -> DataCheck:
    """Check both splits as the config asks; nothing is written. Raises DataError for faults that
    are not skipped.
    """
    auto = config.loss.class_weights == "auto"
    weights = (
        list(config.loss.class_weights) if isinstance(config.loss.class_weights, tuple) else []
    )
    remarks = list(dict.fromkeys([*dataset.notes, *validation.notes]))
    remarks += [f"note: {finding.text()}" for finding in test_finding(config.data, dataset)]
    if config.data.stored:
        remarks.append("color jitter is off: it is for 8-bit RGB, and stored values are kept")
    # If the data may have changed, the indices in an old list may stand for other samples.
    reads_list = config.checkpoint.resume and config.checkpoint.data_changed == "refuse"
    resumed = reads_list and bool(checkpoints(config.run_dir))
    audits: dict[str, AuditReport] = {}
    skipped: dict[str, list[int]] = {"train": [], "val": []}
    lines: list[str] = []
    splits = {"train": dataset, "val": validation}
    checked = splits if config.data.check == "full" else {"train": dataset} if auto else {}
    fresh = (
        {} if resumed else {role: _audit(split, config.run_dir) for role, split in checked.items()}
    )
    caveats = [finding.text() for finding in _findings(config, dataset, fresh)]
    for role, split in splits.items():
        report, where = None, f"{split.name} {split.split}"
        if resumed:
            skipped[role], report, more = _again(config.run_dir, role, split, role in checked)
            remarks += more
        elif role in fresh:
            report = check_before_training(split, faults=config.data.faults, report=fresh[role])
            skipped[role] = report.bad.tolist()
            lines += _lines(role, split, report)
        else:
            refuse_void(split)
        if skipped[role]:
            remarks.append(
                f"{where}: {len(skipped[role]):,} of {len(split):,} images are faulty and left "
                f"out, listed in {config.run_dir / FILE}"
            )
        if report is not None:
            audits[role] = report
            about_labels = label_warnings(report.classes, report.pixels, report.void)
            caveats += [f"{where}: {text}" for text in about_labels]
            remarks += [
                f"warning: {where}: {text}" for text in report.warnings if text not in about_labels
            ]
            remarks += report.notes
            if auto and role == "train":
                weights = [
                    float(w) for w in class_weights(report.pixels, config.loss.class_weight_power)
                ]
    train, val = (without(split, skipped[role]) for role, split in splits.items())
    caveats += _leak(config, train, val)
    remarks += rehearse(train, config.data, config.train.seed)
    remarks += [f"warning: {text}" for text in caveats]
    return DataCheck(remarks, caveats, weights, skipped, None if resumed else lines, audits)


def _audit(split: Dataset, run_dir: Path) -> AuditReport:
    """The audit of a split, from the cache or the run folder if no file has changed.

    A dataset of the user is always read: see ``Dataset.changes_show``.
    """
    return audit(split, cache=split.changes_show, copies=str(run_dir / AUDITS))


def _findings(
    config: Config, dataset: Dataset, reports: dict[str, AuditReport]
) -> list[SplitFinding]:
    """Findings about the settings and about whole splits. Raises DataError for a fatal one."""
    suspicion = mask_finding(
        config.data, dataset.labels, {r.split: r.values for r in reports.values()}
    )
    depth = depth_finding(config.data, (r.brightest for r in reports.values()))
    flips = "data.flip" if config.data.flip else "eval.flip" if config.eval.flip else ""
    findings = [
        finding for finding in (suspicion, depth, *flip_finding(flips, dataset.labels)) if finding
    ]
    refuse(findings, [message for report in reports.values() for _, message in report.faults])
    return findings


def _leak(config: Config, train: Dataset, val: Dataset) -> list[str]:
    """A warning about images that are in both splits. Raises DataError unless the config accepts
    them.
    """
    alike = len(train) == len(val) and train.entries[0].image == val.entries[0].image
    if config.data.check == "off" and not alike:  # then no image is read
        return []
    overlap = overlap_finding(config.data, train, val)
    refuse([overlap] if overlap else [])
    return [overlap.text()] if overlap else []


def keep(run_dir: Path, lines: list[str] | None, reports: Iterable[AuditReport] = ()) -> None:
    """Write the audits, and when a run begins the list of faulty samples.

    If the list is empty, that of an earlier run is removed. If ``lines`` is None, it stays as it
    is.
    """
    for report in reports:
        if report.file and not (run_dir / AUDITS / report.file).exists():
            # a resume without it reads the files again
            save(run_dir / AUDITS / report.file, report)
    if lines:
        write_atomically(run_dir / FILE, "".join(lines).encode(errors="surrogateescape"))
    elif lines is not None:
        (run_dir / FILE).unlink(missing_ok=True)


def left_out(run_dir: Path, dataset: Dataset) -> list[int]:
    """Indices of the samples in ``dataset`` that the run left out, found by file name, for a later
    evaluation.
    """
    names = {line["name"] for line in _read(run_dir) if line["split"] == dataset.split}
    return (
        [index for index in range(len(dataset)) if _name(dataset, index) in names] if names else []
    )


def _again(
    run_dir: Path, role: str, split: Dataset, checked: bool
) -> tuple[list[int], AuditReport | None, list[str]]:
    """For a resumed run: the indices that it left out from the start, the audit (None: unchecked),
    and remarks.

    Raises DataError if the split lists other files, or if more samples have become faulty.
    """
    listed = [line for line in _read(run_dir) if line["role"] == role]
    skipped = sorted(line["index"] for line in listed)
    where = f"{split.name} {split.split}"
    names = {index: _name(split, index) for index in skipped if index < len(split)}
    moved = [line["image"] for line in listed if names.get(line["index"]) != line["name"]]
    if moved:
        raise DataError(
            f"{where}: the split lists other files than when the run began: {moved[0]} is gone or "
            f"has another position (see {run_dir / FILE}); restore the folder, or start another "
            "run with out=FOLDER",
            code="faulty-samples-moved",
            file=moved[0],
        )
    if not checked:
        return skipped, None, []
    report = _audit(split, run_dir)
    now = set(report.bad.tolist())
    new = sorted(now - set(skipped))
    if new:
        messages = _messages(split, report)
        shown = [message for index in new for message in messages[index]]
        first = f"{where}: {len(new):,} samples have become faulty since the run began"
        text = "\n  ".join(
            [first, *shown[:_SHOWN], "restore the files, or start another run with out=FOLDER"]
        )
        raise DataError(text, code="samples-became-faulty", split=split.split, found=len(new))
    if len(now) == len(skipped):
        return skipped, report, []
    remark = (
        f"{where}: {len(skipped) - len(now):,} images that the run left out are whole now: "
        "it goes on without them"
    )
    return skipped, _audit(without(split, skipped), run_dir), [remark]


def _name(split: Dataset, index: int) -> str:
    """The image's path below the root, which stays the same if the folder is moved."""
    return relative(split.entries[index].image, split.root)


def _messages(split: Dataset, report: AuditReport) -> dict[int, list[str]]:
    """The messages about each faulty sample, by its index."""
    by_file = defaultdict(list)
    for file, message in report.faults:
        by_file[file].append(message)
    entries = {index: split.entries[index] for index in report.bad.tolist()}
    return {
        index: [
            message
            for file in dict.fromkeys((entry.image, str(entry.mask)))
            for message in by_file[file]
        ]
        for index, entry in entries.items()
    }


def _lines(role: str, split: Dataset, report: AuditReport) -> Iterable[str]:
    for index, messages in _messages(split, report).items():
        line = {"role": role, "split": split.split, "index": index, "name": _name(split, index)}
        yield json.dumps({**line, "image": split.entries[index].image, "faults": messages}) + "\n"


def _read(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / FILE
    try:
        return [json.loads(line) for line in read_text(path).splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise file_error(
            str(path),
            f"cannot be read ({error}): start another run with out=FOLDER",
            code="file-not-read",
        ) from None
