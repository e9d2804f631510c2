"""`segtrain data check`: reports the layout of a folder, and audits its splits."""

from __future__ import annotations

import itertools
import os
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segtrain.base.terminal import counted
from segtrain.bucket import is_bucket
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data, load_config, make_config, parse_overrides
from segtrain.config.paste import Settings, again, command, words
from segtrain.data.audit.audit import AuditReport, audit
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.images import bands_finding, depth_finding, flip_finding
from segtrain.data.audit.mask_encoding import mask_finding
from segtrain.data.audit.overlap import overlap_finding, test_finding, without_leak
from segtrain.data.audit.settled import paired, settled
from segtrain.data.audit.statistics import AuditSample, sample_of
from segtrain.data.audit.written import config_of, first_run
from segtrain.data.convert import command_for, is_jpeg, pasted
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect, left_out, split_files
from segtrain.data.index.detect_files import given as given_folders
from segtrain.data.index.detect_pairs import SPLITS
from segtrain.data.index.folders import choose
from segtrain.data.index.listing import WARNING
from segtrain.data.index.names import NAME
from segtrain.data.index.split_by import POOL, missing, names_of, with_settings
from segtrain.data.index.split_by import splits as by_rule
from segtrain.data.index.walk import tree_of
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError, DataError, SegtrainError, some_of

# At most so many faulty masks are looked at, for JPEGs.
_SOME = 500
# At most so many commands are tried, and shown.
_SHOWN = 8
# Characters of an error beside a command that stops with it.
_SHORT = 100


@dataclass(frozen=True)
class Checked:
    """A checked folder: the settings that describe it, whether they were detected, and a report of
    each split.

    datasets: the splits. audited: the part of each split that its report is about. line: the
    command that has checked the folder.
    """

    data: Data
    detected: bool
    reports: tuple[AuditReport, ...]
    datasets: dict[str, Dataset]
    audited: dict[str, Dataset]
    line: Sequence[str]

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports)

    @property
    def unnamed(self) -> bool:
        """Whether classes have a question mark in place of their names."""
        return any(name.startswith("?") for name in self.reports[0].classes)

    def config(self) -> str:
        """The settings as a config file."""
        return config_of(self.data, self.datasets)

    @property
    def command(self) -> str:
        """The command that trains. Empty after a fault, if classes lack names, and if the settings
        were not detected.
        """
        if not self.detected or self.failed or self.unnamed:
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
        elif self.unnamed:
            ids = not isinstance(self.data.classes, dict)
            ignore = "an id: delete its ?, and map it to -1" if ids else "a color: name it void"
            head = [
                f"{written or 'a config'} with these settings trains when each ? is the name of a "
                f"class (to ignore {ignore})"
            ]
        elif written:
            head = [f"{written} has these settings: segtrain train {shlex.quote(str(written))}"]
        elif self.command:
            head = [self.command]
        if self.detected or written:
            head.insert(0, self.config().rstrip())
        tables = [report.table() for report in self.reports]
        return "\n\n".join([*head, *tables, *[self._next()] * bool(self._next())])

    def _next(self) -> str:
        """The command that checks again with the proposed settings, without faulty images; "" if it
        would fail, or needs names of colors.
        """
        findings = [finding for report in self.reports for finding in report.findings]
        if not self.failed or any(f.fatal and not f.settings for f in findings):
            return ""
        settings = {key: value for f in findings if f.fatal for key, value in f.settings.items()}
        faulty = any(report.faults for report in self.reports)
        whole = all(len(report.bad) < report.images for report in self.reports)
        if faulty and whole and "data.label_map" not in settings:
            settings["data.faults"] = "skip"
        line = again(self.line, settings)
        complete = settings and "?" not in line
        return f"to check again with the proposed settings:\n  {line}" if complete else ""


def check_folder(
    root: str,
    splits: list[str] | None,
    overrides: list[str],
    sample: int | None = None,
    seed: int = 0,
    line: Sequence[str] = (),
) -> Checked:
    """Audit the splits (None: train and val), and verify the checksums of shards. Raises the errors
    of ``settings_of``.

    If the folder has neither train nor val, all its splits are audited.

    With ``sample``, only this many images of each split are audited, drawn at random with ``seed``,
    and the checksums of shards are not verified. line: the command, which an error completes.
    """
    if sample is not None and sample < 1:
        message = (
            f"--sample {sample}: give the number of images to check in each split, such as 400"
        )
        raise ConfigError(message, code="number-out-of-range", key="--sample", found=sample)
    line = line or ("segtrain", "data", "check", root, *overrides)
    why = list[str]()
    detected = not _layout_given(root, overrides)
    try:
        data, all_splits = settings_of(root, overrides, why)
        splits = splits or _audited(data, all_splits)
        if not os.path.isfile(root):
            data = settled(data, splits, why)
    except SegtrainError as error:
        if not error.values.get("choices"):
            raise
        tried = _commands(line, root, overrides, {}, error.values["choices"], set())
        lines = [*itertools.islice(tried, _SHOWN)]
        more = ["..."] * (len(lines) < len(error.values["choices"]))
        text = "\n  ".join([error.values["what"], *lines, *more]) + error.values.get("after", "")
        raise type(error)(text, code=error.code, **error.values) from None
    detected |= bool(why)
    datasets = {split: open_dataset(data, split) for split in splits}
    audited, reports = dict[str, Dataset](), dict[str, AuditReport]()
    findings: dict[str, list[SplitFinding]] = {split: [] for split in datasets}
    notes: dict[str, list[str]] = {split: [] for split in datasets}
    # What is about the whole folder is shown with the first split.
    first, of_folder = next(iter(datasets.values())), next(iter(findings.values()))
    for split, dataset in datasets.items():
        part = audited[split] = dataset if sample is None else sample_of(dataset, sample, seed)
        report = audit(part)
        drawn, faults = None, report.faults
        if part is dataset:
            faults += dataset.verify()
        else:
            drawn = AuditSample(len(part), len(dataset), len(report.bad), seed)
        for note in dataset.notes:
            if note.startswith(WARNING):
                findings[split].append(SplitFinding(note.removeprefix(WARNING)))
            else:
                notes[split].append(note)
        # Faults of whole shards stay faults, as do those of a split without any other sample.
        skips = data.faults == "skip" and faults == report.faults and len(report.bad) < len(part)
        notes[split] += ["data.faults=skip leaves the faulty images out"] * (skips and bool(faults))
        notes[split] += report.notes
        reports[split] = replace(report, faults=faults, sample=drawn, skips_faults=skips)
    if others := [split for split in all_splits if split not in splits]:
        notes[first.split].append(f"not checked: {', '.join(others)} (--split {others[0]})")
    if detected and (unread := left_out(data, all_splits)):
        message = (
            f"{data.root}: {counted(len(unread), 'other folder')} not read: "
            f"{some_of(unread, 4)}. To train on all, name the pairs in lists "
            "(data.layout=list); to use another one, set data.images and data.masks"
        )
        of_folder.append(SplitFinding(message))
    of_folder += map(SplitFinding, why)
    of_folder += _findings(data, first.labels, audited, reports)
    if measured := bands_finding(data, datasets.get(data.train_split, first)):
        of_folder.append(measured)
        data = with_settings(data, measured.settings)
    if {data.train_split, data.split} <= datasets.keys():
        of_folder += test_finding(data, datasets[data.train_split])
    compared = datasets
    # If there is no train or no val split, the printed settings divide the images into both.
    if detected:
        message, settings = missing(
            data,
            all_splits,
            lambda split: names_of(datasets.get(split) or open_dataset(data, split)),
        )
        if settings:
            notes[first.split].append(f"{first.name}: {message}")
        elif message:
            of_folder.append(SplitFinding(f"{first.name}: {message}: add images", True))
        if message and (files := split_files(data.root)):
            index = os.path.join(os.path.dirname(files[0]), "{split}")
            own = (
                f"{some_of(files)} may divide the set, and are not read. If each line has an "
                "image and a mask: data.layout=list "
                f"data.index={index}{os.path.splitext(files[0])[1]}"
            )
            of_folder.append(SplitFinding(own))
        data = with_settings(data, settings)
        if settings:  # equal images may lie in both parts
            parts = {split: open_dataset(data, split) for split in (data.train_split, data.split)}
            compared = datasets | parts
    for split, leak in _leaks(data, compared, sample, seed):
        data, finding = without_leak(data, leak) if detected else (data, leak)
        findings.get(split, of_folder).append(finding)
    complete = (
        replace(report, findings=tuple(findings[split]), notes=tuple(notes[split]))
        for split, report in reports.items()
    )
    return Checked(data, detected, tuple(complete), datasets, audited, line)


def _audited(data: Data, there: Sequence[str]) -> list[str]:
    both = dict.fromkeys((data.train_split, data.split))
    return [split for split in both if split in there] or [*there]


def _commands(
    line: Sequence[str],
    root: str,
    overrides: list[str],
    chosen: Settings,
    choices: Iterable[Settings],
    tried: set[str],
) -> Iterator[str]:
    """A command for each choice of an error, tried up to the listing of the images; with a remark
    if it stops there. chosen: the settings that were chosen before. tried: the commands before.
    """
    for choice in choices:
        # The choice of a layout comes with all settings of it.
        settings = choice if "data.layout" in choice else {**chosen, **choice}
        proposed = again(line, settings)
        if proposed in tried:
            continue
        tried.add(proposed)
        why = list[str]()
        try:
            data, splits = settings_of(root, [*overrides, *words(settings)], [])
            paired(data, _audited(data, splits), why)
        except SegtrainError as other:
            by = choice.get("data.split_by")
            inner = other.values.get("choices", ())
            if any(each.keys() - settings for each in inner):
                yield from _commands(line, root, overrides, settings, inner, tried)
                continue
            if other.code == "split-empty" and by and by["val"] != 1:  # too few for a share
                one = [{**choice, "data.split_by": {**by, "val": 1}}]
                yield from _commands(line, root, overrides, chosen, one, tried)
                continue
            reason = str(other).partition(": ")[2].partition("\n")[0]
            why = [f"stops: {textwrap.shorten(reason, _SHORT, placeholder=' ...')}"]
        yield proposed + "".join(f"  # {text.partition(', since')[0]}" for text in why)


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


def settings_of(
    root: str, overrides: list[str], why: list[str] | None = None
) -> tuple[Data, tuple[str, ...]]:
    """The settings of a folder or of a config file, and the splits. ``overrides`` (such as
    data.classes=...) replace detected settings. If several folders fit, and the files settle which
    is meant, ``why`` gets a sentence about it.

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
                try:
                    values, splits = _detected(root, given)
                except DataError as error:
                    if why is None or not error.values.get("why"):
                        raise
                    why.append(error.values["why"])
                    (choice,) = error.values["choices"][:1]
                    return settings_of(root, [*overrides, *words(choice)], why)
            # Overrides are parsed as YAML; detected values are not, since they have their types.
            settings["data"] = {**values, **given}
        data = make_config(settings, "the command line").data
    if data.split_by.on:
        return data, by_rule(data)
    if splits and data.layout == "folders" and not data.own_splits:
        splits = (POOL,)  # the folders that the user has given have no splits
    both = dict.fromkeys((data.train_split, data.split))
    if data.layout == "folders" and data.own_splits and not is_bucket(data.root):
        tree = tree_of(data.root, data.leave_out)
        _, others = given_folders(data.root, tree, data.images, data.masks) or ({}, [])
        both |= dict.fromkeys(split for split in others if split != POOL)
    if "{split}" in data.annotations:
        place = os.path.join(data.root, data.annotations)
        there = (split for split in SPLITS if os.path.exists(place.replace("{split}", split)))
        both |= dict.fromkeys(there)
    return data, splits or tuple(both)


def _detected(root: str, given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings of a folder, and its splits. given: the settings of ``data`` that override
    them.
    """
    of_listing = {"data": {key: given[key] for key in given if key == "leave_out"}}
    leave_out = make_config(of_listing, "the command line").data.leave_out
    keys = ("annotations", "images", "masks")
    annotations, images, masks = (str(given.get(key, "")) for key in keys)
    pair = given.get("pair")
    names = pair[0] if pair and isinstance(pair, list) else NAME
    data, splits = detect(root, annotations, leave_out, images, masks, names)
    values = data.model_dump(exclude_unset=True)
    if data.layout == "folders":
        values |= choose(data, given, splits, tree_of(root, leave_out))
    return values, splits


def _layout_given(root: str, overrides: list[str]) -> bool:
    return os.path.isfile(root) or any(
        override.lstrip("-").startswith("data.layout") for override in overrides
    )
