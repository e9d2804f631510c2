"""`segtrain data check`: reports the layout of a folder, and audits its splits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from segtrain.base.terminal import counted
from segtrain.bucket import is_bucket
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data, load_config, make_config, parse_overrides
from segtrain.config.paste import command
from segtrain.data.audit.audit import AuditReport, audit
from segtrain.data.audit.band_statistics import bands_finding
from segtrain.data.audit.coded_ids import code_of
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.flips import flip_finding
from segtrain.data.audit.image_depth import depth_finding
from segtrain.data.audit.mask_colors import shares
from segtrain.data.audit.mask_encoding import mask_finding
from segtrain.data.audit.mask_values import (
    MaskValues,
    ids_of,
    numbers_objects,
    raw_and_values,
    rgb,
    shown,
)
from segtrain.data.audit.overlap import overlap_finding, test_finding
from segtrain.data.audit.sampling import AuditSample, sample_of
from segtrain.data.audit.tried import LISTED
from segtrain.data.audit.written import config_of, first_run
from segtrain.data.convert import command_for, is_jpeg, pasted
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.choices import choose
from segtrain.data.index.detect import detect, left_out, split_files
from segtrain.data.index.listing import WARNING
from segtrain.data.index.skeleton import tree_of
from segtrain.data.index.split_by import POOL, missing, names_of, with_settings
from segtrain.data.index.split_by import splits as by_rule
from segtrain.data.labels.mask_code import CODES
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError, DataError, some_of

# If classes have no names, the values in about this many masks are read.
_SOME = 500


@dataclass(frozen=True)
class Checked:
    """A checked folder: the settings that describe it, whether they were detected, and a report of
    each split.

    datasets: the splits. audited: the part of each split that its report is about.
    """

    data: Data
    detected: bool
    reports: tuple[AuditReport, ...]
    datasets: dict[str, Dataset]
    audited: dict[str, Dataset]

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports)

    def config(self) -> str:
        """The settings as a config file."""
        return config_of(self.data, self.datasets)

    @property
    def command(self) -> str:
        """The command that trains. Empty after a fault, and if the settings were not detected."""
        if not self.detected or self.failed:
            return ""
        settings = first_run(self.data, self.datasets)
        return f"segtrain train {pasted(self.data)} {command(settings)}".rstrip()

    def text(self, written: Path | None = None) -> str:
        """Text for a terminal: the reports of all splits.

        If the layout was detected, settings to paste come first, and the command to train if no
        report failed. ``written``: the file that has the settings then.
        """
        head = []
        if written and self.failed:
            head = [f"{written} was not written: correct the faults below"]
        elif written:
            head = [f"{written} has these settings: segtrain train {shlex.quote(str(written))}"]
        elif self.command:
            head = [self.command]
        if self.detected or written:
            head.insert(0, self.config().rstrip())
        return "\n\n".join([*head, *(report.table() for report in self.reports)])


def check_folder(
    root: str,
    splits: list[str] | None,
    overrides: list[str],
    sample: int | None = None,
    seed: int = 0,
) -> Checked:
    """Audit the splits (None: train and val), and verify the checksums of shards. Raises the errors
    of ``settings_of``.

    If the folder has neither train nor val, all its splits are audited.

    With ``sample``, only this many images of each split are audited, drawn at random with ``seed``,
    and the checksums of shards are not verified.
    """
    if sample is not None and sample < 1:
        message = (
            f"--sample {sample}: give the number of images to check in each split, such as 400"
        )
        raise ConfigError(message, code="number-out-of-range", key="--sample", found=sample)
    data, all_splits = settings_of(root, overrides)
    splits = (
        splits
        or [split for split in dict.fromkeys((data.train_split, data.split)) if split in all_splits]
        or [*all_splits]
    )
    detected = not _layout_given(root, overrides)
    datasets = {split: opened(data, split, all_splits if detected else ()) for split in splits}
    others = [split for split in all_splits if split not in splits]
    unchecked = [f"not checked: {', '.join(others)} (--split {others[0]})"] if others else []
    audited: dict[str, Dataset] = {}
    reports: dict[str, AuditReport] = {}
    findings: dict[str, list[SplitFinding]] = {split: [] for split in datasets}
    # Findings about the whole folder are shown with the first split.
    first, of_folder = next(iter(datasets.values())), next(iter(findings.values()))
    for split, dataset in datasets.items():
        part = audited[split] = dataset if sample is None else sample_of(dataset, sample, seed)
        report = audit(part)
        faults = report.faults
        if part is dataset:
            faults += dataset.verify()
        else:
            drawn = AuditSample(len(part), len(dataset), len(report.bad), seed)
            report = replace(
                report, sample=drawn, warnings=tuple(f"in the sample, {w}" for w in report.warnings)
            )
        notes = [note for note in dataset.notes if not note.startswith(WARNING)]
        findings[split] += [
            SplitFinding(note.removeprefix(WARNING)) for note in dataset.notes if note not in notes
        ]
        # Faults of whole shards stay faults, as do those of a split without any other sample.
        skips = data.faults == "skip" and faults == report.faults and len(report.bad) < len(part)
        notes += ["data.faults=skip leaves the faulty images out"] * (skips and bool(faults))
        reports[split] = replace(
            report,
            faults=faults,
            notes=(*notes, *report.notes, *unchecked),
            skips_faults=skips,
        )
        unchecked = []
    if detected and (unread := left_out(data, all_splits)):
        message = (
            f"{data.root}: {counted(len(unread), 'other folder')} not read: "
            f"{some_of(unread, 4)}. To train on all, name the pairs in lists "
            "(data.layout=list); to use another one, set data.images and data.masks"
        )
        of_folder.append(SplitFinding(message))
    of_folder += _findings(data, first.labels, audited, reports)
    if measured := bands_finding(data, datasets.get(data.train_split, first)):
        of_folder.append(measured)
        data = with_settings(data, measured.settings)
    for split, leak in _leaks(data, datasets, sample, seed):
        findings[split].append(leak)
    if {data.train_split, data.split} <= datasets.keys():
        of_folder += test_finding(data, datasets[data.train_split])
    # If there is no train or no val split, the printed settings divide the images into both.
    if detected:
        message, settings = missing(
            data, all_splits, lambda split: names_of(datasets.get(split) or opened(data, split))
        )
        if message:
            if settings:
                whole = reports[first.split]
                divided = f"{first.name}: {message}"
                reports[first.split] = replace(whole, notes=(*whole.notes, divided))
            else:
                of_folder.append(SplitFinding(f"{first.name}: {message}"))
            if files := split_files(data.root):
                index = os.path.join(os.path.dirname(files[0]), "{split}")
                own = (
                    f"{some_of(files)} may divide the set, and are not read. If each line has an "
                    "image and a mask: data.layout=list "
                    f"data.index={index}{os.path.splitext(files[0])[1]}"
                )
                of_folder.append(SplitFinding(own))
        data = with_settings(data, settings)
    complete = (
        replace(report, findings=tuple(findings[split])) for split, report in reports.items()
    )
    return Checked(data, detected, tuple(complete), datasets, audited)


def opened(data: Data, split: str, there: Sequence[str] = ()) -> Dataset:
    """Open a split. If the classes have no names, the error lists the values in some masks, and has
    a config with ? for the names. there: the detected splits, which the config divides if one is
    missing.
    """
    try:
        return open_dataset(data, split)
    except DataError as error:
        if error.code != "files-unpaired" or data.absent_mask == "leave-out":
            raise
        message = f"{error}{_classes_missing(data, split, there)}"
        raise DataError(message, code=error.code, **error.values) from None
    except ConfigError as error:
        if error.code != "classes-missing":
            raise
        (values, looked), coded = _some_values(data, split), ""
        if data.mask_code == "none" and (code := code_of(values)):
            data = data.model_copy(update={"mask_code": code})
            (values, looked), coded = _some_values(data, split), f" (coded: {CODES[code].formula})"
        ids = ids_of(values)
        if not (ids or 0 < len(values.colors) <= LISTED):
            message = f"{error}\n  {looked}"
            if values.colors:
                count = f"{'over ' * values.cut}{len(values.colors)} colors"
                message += (
                    f" of {split} have {count}: write the color of each class, as in "
                    "data.classes={road: [128, 64, 128]}, and segtrain data convert --nearest"
                )
            raise ConfigError(message, code=error.code, **error.values) from None
        what = f"ids {shown(ids)}" if ids else f"colors {shares(values.colors, values.colors)}"
        unnamed = _unnamed(sorted(ids) or sorted(values.colors), bool(ids), data)
        dataset = open_dataset(_with_any_names(data), split)
        if measured := bands_finding(data, dataset):
            data = with_settings(data, measured.settings)
        if there:
            data = with_settings(data, missing(data, there, partial(_names, data))[1])
        message = (
            f"{error}\n  {looked} of {split} have the {what}{coded}\n  write the names of the "
            f"classes in place of ?: {pasted(data, **unnamed)}"
        )
        if min(ids, default=0) < 0:
            message += "\n  in data.label_map, -1 in place of ? ignores an id"
        if numbers_objects(ids):
            message += (
                "\n  if each id is an object: data.classes=[background, object]; the next check "
                "maps the ids"
            )
        more = {"ids": sorted(ids), "config": config_of(data, {split: dataset}, **unnamed)}
        raise ConfigError(message, code=error.code, **{**error.values, **more}) from None


def _classes_missing(data: Data, split: str, there: Sequence[str]) -> str:
    """The error for classes without names in the images that have a mask; "" if there is none."""
    with suppress(DataError):
        try:
            opened(data.model_copy(update={"absent_mask": "leave-out"}), split, there)
        except ConfigError as error:
            return f"\n{error}"
    return ""


def _unnamed(values: list[int], are_ids: bool, data: Data) -> dict[str, Any]:
    """The settings data.classes and data.label_map of these ids or colors, with ? for names."""
    if not are_ids:
        return {"classes": {f"?{number}": rgb(color) for number, color in enumerate(values)}}
    known = [value for value in values if value >= 0]
    kept = [value for value in known if value != data.ignore_index]
    # Ids count from 0 or 1, also beside a void value; gray levels (0, 64, 128, 255) do not.
    kept = kept if len(kept) > 1 and kept[-1] <= len(kept) else known
    # Negative ids are most often void.
    table: dict[int, Any] = {value: "?" for value in values if value < 0}
    counted_on = not table and kept == list(range(len(kept)))
    table |= {value: number for number, value in enumerate(kept)}
    return {
        "classes": [f"?{value}" for value in kept],
        **({} if counted_on else {"label_map": table}),
    }


def _some_values(data: Data, split: str) -> tuple[MaskValues, str]:
    """The values in some masks of a split, and which masks these are, in words. Masks that cannot
    be read are left out; if none can be read, the words are the fault of the last one.
    """
    dataset, values, fault = open_dataset(_with_any_names(data), split), MaskValues(), ""
    some = range(0, len(dataset), max(1, len(dataset) // _SOME))
    for index in some:
        with ignoring_file_faults() as faults:
            values.add(raw_and_values(dataset, index)[1])
        fault = f"{len(some)} masks: {faults[0]}" if faults else fault
    if not (values.ids or values.colors):
        return values, fault
    if len(some) == len(dataset):
        return values, "the masks"
    later = "the next check reads all, and names what these lack"
    return values, f"{len(some)} of {len(dataset):,} masks ({later})"


def _with_any_names(data: Data) -> Data:
    return data.model_copy(update={"classes": ("a", "b"), "flip_pairs": ()})


def _names(data: Data, split: str) -> list[str]:
    return names_of(open_dataset(_with_any_names(data), split))


def _findings(
    data: Data, labels: LabelSpace, datasets: dict[str, Dataset], reports: dict[str, AuditReport]
) -> Iterator[SplitFinding]:
    """Findings about the masks and images of all splits."""
    masks = mask_finding(data, labels, {split: report.values for split, report in reports.items()})
    depth = depth_finding(data, (report.brightest for report in reports.values()))
    yield from filter(None, (masks, depth, *flip_finding("data.flip" if data.flip else "", labels)))
    first = next(iter(datasets.values()))
    if not first.separate_files:
        return
    faulty = (
        part.entries[int(index)].mask
        for split, part in datasets.items()
        for index in reports[split].bad[:_SOME]
    )
    jpegs = [mask for mask in faulty if mask and is_jpeg(mask, first.store)]
    # A map for the values of a few JPEGs would not fit the other masks.
    others = any(report.values.ids or report.values.colors for report in reports.values())
    if jpegs and (data.label_map or labels.colors or not others):
        copy = command_for(data, jpegs, labels, first.store)
        make = "Download the data set, and make" if is_bucket(data.root) else "Make"
        yield SplitFinding(f"the masks are JPEGs. {make} a copy with PNG masks:\n  {copy}")


def _leaks(
    data: Data, datasets: dict[str, Dataset], sample: int | None, seed: int
) -> Iterator[tuple[str, SplitFinding]]:
    """Pairs (split, finding) for splits that contain training images.

    ``sample``: compare only this many images of each split with all training images.
    """
    train = datasets.get(data.train_split)
    for split in dict.fromkeys((data.split, "test")):
        if train is not None and split in datasets and split != data.train_split:
            other = datasets[split] if sample is None else sample_of(datasets[split], sample, seed)
            with ignoring_file_faults():  # a file is missing, which is a fault already
                if leak := overlap_finding(data, train, other):
                    yield split, leak


def settings_of(root: str, overrides: list[str]) -> tuple[Data, tuple[str, ...]]:
    """The settings of a folder or of a config file, and the splits. ``overrides`` (such as
    data.classes=...) replace detected settings.

    Raises DataError if the layout of the folder is not known, ConfigError for a wrong override.
    """
    splits: tuple[str, ...] = ()
    if os.path.isfile(root):
        data = load_config(root, overrides).data
    else:
        settings = parse_overrides(overrides)
        given = settings.get("data", {})
        if isinstance(given, dict):  # ``make_config`` refuses anything else
            values: dict[str, Any] = {"root": root}
            if not _layout_given(root, overrides):
                values, splits = _detected(root, given)
            # Overrides are parsed as YAML; detected values are not, since they have their types.
            settings["data"] = {**values, **given}
        data = make_config(settings, "the command line").data
    if data.split_by.on:
        return data, by_rule(data)
    if splits and data.layout == "folders" and not data.own_splits:
        splits = (POOL,)  # the folders that the user has given have no splits
    return data, splits or tuple(dict.fromkeys((data.train_split, data.split)))


def _detected(root: str, given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings of a folder, and its splits. given: the settings of ``data`` that override
    them.
    """
    of_listing = {"data": {key: given[key] for key in given if key == "leave_out"}}
    leave_out = make_config(of_listing, "the command line").data.leave_out
    keys = ("annotations", "images", "masks")
    annotations, images, masks = (str(given.get(key, "")) for key in keys)
    data, splits = detect(root, annotations, leave_out, images, masks)
    values = data.model_dump(exclude_unset=True)
    if data.layout == "folders":
        values |= choose(data, given, splits, tree_of(root, leave_out))
    return values, splits


def _layout_given(root: str, overrides: list[str]) -> bool:
    return os.path.isfile(root) or any(
        override.lstrip("-").startswith("data.layout") for override in overrides
    )
