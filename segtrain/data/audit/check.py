"""`segtrain data check`: the layout of a folder, and an audit of its splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml

from segtrain.config import Data, make_config, parse_overrides
from segtrain.config.paste import command
from segtrain.data.audit.audit import AuditReport, audit
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.image_depth import depth_finding
from segtrain.data.audit.mask_encoding import mask_finding
from segtrain.data.audit.overlap import overlap_finding
from segtrain.data.convert import command_for, is_jpeg
from segtrain.data.datasets import Dataset, open_dataset
from segtrain.data.index.detect import detect
from segtrain.data.index.detect_pairs import others
from segtrain.data.index.listing import WARNING
from segtrain.data.index.split_by import missing, names_of, with_settings
from segtrain.data.index.split_by import splits as by_rule
from segtrain.data.index.subset import whole
from segtrain.data.shards.reader import ShardDataset
from segtrain.errors import ConfigError, DataError

# Classes that are proposed at most, and masks that are read for it.
_NAMED = 16
_SOME = 50


@dataclass(frozen=True)
class Checked:
    """A checked folder: the settings that describe it, whether they were detected, and a report of each split."""

    data: Data
    detected: bool
    reports: tuple[AuditReport, ...]

    def text(self) -> str:
        """Text for a terminal: first the detected settings, ready to paste."""
        head = [pasteable(self.data)] if self.detected else []
        return "\n\n".join([*head, *(report.table() for report in self.reports)])


def check_folder(root: str, splits: list[str] | None, overrides: list[str]) -> Checked:
    """Audit each split (None: all splits), and the checksums of shards. Raises what ``settings_of`` raises."""
    data, found = settings_of(root, overrides)
    datasets = {split: _opened(data, split) for split in splits or found}
    first, detected = next(iter(datasets)), not _layout_given(overrides)
    reports: dict[str, AuditReport] = {}
    told: list[tuple[str, SplitFinding]] = []
    for split, dataset in datasets.items():
        report = audit(dataset)
        inner = whole(dataset)
        faults = report.faults + (inner.verify() if isinstance(inner, ShardDataset) else ())
        notes = [note for note in dataset.notes if not note.startswith(WARNING)]
        told += [
            (split, SplitFinding(note.removeprefix(WARNING))) for note in dataset.notes if note.startswith(WARNING)
        ]
        reports[split] = replace(report, faults=faults, notes=(*notes, *report.notes))
    if detected and data.layout == "folders":
        told += [(first, finding) for finding in _unread(data)]
    told += _findings(data, datasets, reports)
    # The settings that are printed include those that divide a folder without a train or val split.
    if detected:
        says, settings = missing(data, found, lambda split: names_of(datasets.get(split) or _opened(data, split)))
        told += [(first, SplitFinding(f"{datasets[first].name}: {says}", settings=settings))] if says else []
        data = with_settings(data, settings)
    for split, finding in told:
        reports[split] = replace(reports[split], findings=(*reports[split].findings, finding))
    return Checked(data, detected, tuple(reports.values()))


def _unread(data: Data) -> list[SplitFinding]:
    """Other folders of images with masks, which the settings leave out."""
    there = [f"{images} with {masks}" for images, masks in others(data.root, data.images)]
    if not there:
        return []
    return [
        SplitFinding(
            f"{data.root}: {len(there)} other folder{'s' * (len(there) > 1)} of images with masks not read: "
            f"{', '.join(there[:4])}{', ...' * (len(there) > 4)}. To train on all of them, name the pairs in lists "
            "(data.layout=list); to use another one, set data.images and data.masks"
        )
    ]


def _opened(data: Data, split: str) -> Dataset:
    """``open_dataset``. If the classes have no names, the error lists the mask values and proposes names."""
    try:
        return open_dataset(data, split)
    except ConfigError as error:
        if data.classes or data.label_map:
            raise
        values = _values(open_dataset(data.model_copy(update={"classes": ("a", "b")}), split))
        if not values:
            raise
        ids = [value for value in values if value != 255 or len(values) < 3]
        names = ["background", *(f"class{place}" for place in range(1, len(ids)))] if len(ids) <= _NAMED else []
        shown = ", ".join(f"{value} ({share:.1%})" for value, share in list(values.items())[:_NAMED])
        cure = f": such as {command({'data.classes': names})}" if len(names) > 1 else ""
        found = {f"data.{key}": value for key, value in _changed(data).items()}
        raise ConfigError(
            f"{error}\n  the masks of {split} have the ids {shown}{cure}\n  found so far: {command(found)}",
            code=error.code,
            **{**error.values, "ids": sorted(values)},
        ) from None


def _values(dataset: Dataset) -> dict[int, float]:
    """Ids in some masks of a split, with their shares of the pixels; empty if the masks have colors instead of ids."""
    counts = Counter[int]()
    for index in range(0, len(dataset), max(1, len(dataset) // _SOME)):
        try:
            raw = dataset.read_raw_mask(index)
        except DataError:
            continue
        if raw.ndim == 3 and (raw != raw[..., :1]).any():
            return {}
        values, pixels = np.unique(raw if raw.ndim == 2 else raw[..., 0], return_counts=True)
        counts.update(dict(zip(values.tolist(), pixels.tolist())))
    return {value: counts[value] / counts.total() for value in sorted(counts)}


def _findings(
    data: Data, datasets: dict[str, Dataset], reports: dict[str, AuditReport]
) -> Iterator[tuple[str, SplitFinding]]:
    """Findings about several splits, each with the split that it is shown under."""
    first, dataset = next(iter(datasets.items()))
    masks = mask_finding(data, dataset.labels, {split: report.values for split, report in reports.items()})
    if masks:
        yield first, masks
    depth = depth_finding(data, (report.brightest for report in reports.values()))
    if depth:
        yield first, depth
    jpegs = [
        str(entry.mask) for one in datasets.values() for entry in one.entries[:64] if entry.mask and is_jpeg(entry.mask)
    ]
    if jpegs and not dataset.draw:
        yield (
            first,
            SplitFinding(
                f"the masks are JPEGs. Make a copy with PNG masks:\n  {command_for(data, jpegs, dataset.labels)}"
            ),
        )
    train = datasets.get(data.train_split)
    for split in dict.fromkeys((data.split, "test")):
        if train is not None and split in datasets and split != data.train_split:
            try:
                leak = overlap_finding(data, train, datasets[split])
            except DataError:  # a file is missing, which is a fault already
                continue
            if leak:
                yield split, leak


def settings_of(root: str, overrides: list[str]) -> tuple[Data, tuple[str, ...]]:
    """The settings of a folder, and its splits. ``overrides`` (data.layout=..., data.classes=...) take precedence over
    detection.

    Raises DataError for a folder of no known layout, ConfigError for a wrong override.
    """
    if _layout_given(overrides):
        data = _with_overrides({"root": root}, overrides)
        return data, by_rule(data) if data.split_by.on else tuple(dict.fromkeys((data.train_split, data.split)))
    detected, found = detect(root)
    data = _with_overrides(detected.model_dump(exclude_unset=True), overrides)
    return data, by_rule(data) if data.split_by.on else found


def _layout_given(overrides: list[str]) -> bool:
    return any(override.lstrip("-").startswith("data.layout") for override in overrides)


def _with_overrides(found: dict[str, Any], overrides: list[str]) -> Data:
    """The detected values with those of the command line over them. Detected values are never parsed as text."""
    settings = parse_overrides(overrides)
    given = settings.get("data", {})
    settings["data"] = {**found, **given} if isinstance(given, dict) else given
    return make_config(settings, "the command line").data


def _changed(data: Data) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    return data.model_dump(mode="json", exclude_defaults=True)


def pasteable(data: Data) -> str:
    """The settings that differ from the defaults: as a section of a YAML file, and as a command."""
    values = _changed(data)
    section = yaml.safe_dump({"data": values}, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return f"{section}\nsegtrain train {command({f'data.{key}': value for key, value in values.items()})}"
