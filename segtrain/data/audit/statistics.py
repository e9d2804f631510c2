"""The report of an audit, of a split or of a random sample: class statistics, class weights, and
the cached file.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from segtrain.base.json_text import cache_json, read_json
from segtrain.base.terminal import counted
from segtrain.data.audit.finding import SplitFinding
from segtrain.data.audit.mask_values import MaskValues
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import select
from segtrain.errors import some_of

_CONFIDENCE, _Z = 0.95, 1.959964  # the quantile of the normal distribution at 0.975


@dataclass(frozen=True)
class AuditReport:
    """The result of the audit of one split.

    ``images`` counts all samples, and ``values`` covers all masks that can be read. The other
    counts leave out faulty samples; if all are faulty, ``pixels``, ``void``, and ``images_with``
    cover the masks that can be read.

    images: number of images. pixels: int64 [C], pixels of each class. void: number of ignored
    pixels. images_with: int64 [C], number of images with at least one pixel of each class.
    sizes: (height, width) -> number of images. faults: (file, message). bad: indices of faulty
    samples, ascending. notes: remarks about the audit itself. mask_crc: uint32 [images], CRC-32 of
    the train ids of each mask, to detect changed labels; 0 for a faulty sample. forms: kind of
    image, such as "8-bit RGB" -> number of images. brightest: the largest value in images of more
    than 8 bits, and the file that has it; -1 if there is no such image. values: the values that the
    masks store.
    examples: (what it shows, index) of samples without a fault: one for each kind of warning, then
    one for each class, the rarest first. findings: problems with the settings and the splits.
    sample: the sample that was audited; None: the whole split. file: name of the cached file.
    skips_faults: whether training leaves the faulty samples out. ``findings``, ``sample``,
    ``file``, and ``skips_faults`` are not cached.
    """

    name: str
    split: str
    fingerprint: str
    images: int
    classes: tuple[str, ...]
    pixels: np.ndarray
    void: int
    images_with: np.ndarray
    sizes: dict[tuple[int, int], int]
    faults: tuple[tuple[str, str], ...] = ()
    bad: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    mask_crc: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32), repr=False)
    forms: dict[str, int] = field(default_factory=dict)
    brightest: tuple[int, str] = (-1, "")
    values: MaskValues = field(default_factory=MaskValues)
    examples: tuple[tuple[str, int], ...] = ()
    findings: tuple[SplitFinding, ...] = ()
    sample: AuditSample | None = None
    file: str = field(default="", compare=False)
    skips_faults: bool = False

    @property
    def failed(self) -> bool:
        """Whether faults or fatal findings prevent training."""
        return (bool(self.faults) and not self.skips_faults) or any(
            finding.fatal for finding in self.findings
        )

    @property
    def fault_count(self) -> int:
        return len(self.faults) + sum(finding.fatal for finding in self.findings)

    @property
    def warning_count(self) -> int:
        return len(self.warnings) + sum(not finding.fatal for finding in self.findings)

    def table(self) -> str:
        """Text for a terminal."""
        total = max(1, int(self.pixels.sum()) + self.void)
        common = sorted(self.sizes.items(), key=lambda item: -item[1])
        sizes = [f"{h} x {w}" + (f" ({n})" if len(common) > 1 else "") for (h, w), n in common]
        forms = "".join(
            f", {form}" + (f" ({n})" if len(self.forms) > 1 else "")
            for form, n in self.forms.items()
        )
        drawn = self.sample
        images = (
            counted(self.images, "image")
            if drawn is None
            else f"a sample of {self.images:,} of {drawn.total:,} images"
        )
        # A sample has the fingerprint of its images, which is not that of the split.
        name = f"{self.name} {self.split}" + (f" #{self.fingerprint}" if drawn is None else "")
        lines = [
            (
                f"{name}: {images}, {some_of(sizes, 4) or 'all faulty'}{forms}, "
                f"{self.void / total:.1%} void"
            )
        ]
        wide = max(len(name) for name in ("class", *self.classes))
        lines.append(
            f"{'class':<{wide}}  {'pixels':>15}  {'share':>8}  {'images':>7}  {'weight':>7}"
        )
        rows = zip(self.classes, self.pixels, self.images_with, class_weights(self.pixels))
        lines += [
            f"{n:<{wide}}  {p:>15,}  {p / total:>8.3%}  {i:>7,}  {w:>7.3f}" for n, p, i, w in rows
        ]
        fatal = [finding.text() for finding in self.findings if finding.fatal]
        others = [finding.text() for finding in self.findings if not finding.fatal]
        lines += [
            f"warning: {text}"
            for text in (*(f"{self.split}: {text}" for text in self.warnings), *others)
        ]
        lines += [f"note: {text}" for text in self.notes]
        # Findings explain the faults of single files, so they come first.
        lines += [f"fault: {text}" for text in (*fatal, *grouped(self.faults))]
        where = f" in {len(self.bad):,} of {self.images:,} images" if self.faults else ""
        warnings = counted(self.warning_count, "warning")
        lines.append(f"{counted(self.fault_count, 'fault')}{where}, {warnings}")
        return "\n".join([*lines, *([drawn.text()] if drawn else [])])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without ``mask_crc`` and ``examples``."""
        content = {name: value for name, value in vars(self).items() if name not in _INSIDE}
        return {
            **content,
            **{name: content[name].tolist() for name in _ARRAYS},
            "weights": [round(float(weight), 6) for weight in class_weights(self.pixels)],
            "sizes": [[h, w, n] for (h, w), n in self.sizes.items()],
            "values": self.values.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            **({"sample": self.sample.to_dict()} if self.sample else {}),
        }


# Fields that are not shown in JSON as they are, and fields that are not cached.
_INSIDE = {"mask_crc", "examples", "sample", "file", "skips_faults"}
_NOT_CACHED = {"findings", "sample", "file", "skips_faults"}
_ARRAYS = ("pixels", "images_with", "bad")
Fault = tuple[str, str]  # file, message


def kinds_of(faults: Sequence[Fault]) -> list[list[Fault]]:
    """The faults of each kind. Faults are of one kind if their messages, without the file, agree up
    to the first digit.
    """
    kinds: dict[str, list[Fault]] = defaultdict(list)
    for file, message in faults:
        kinds[re.sub(r"\d.*", "", message.replace(file, ""), flags=re.DOTALL)].append(
            (file, message)
        )
    return [*kinds.values()]


def grouped(faults: Sequence[Fault]) -> list[str]:
    """One line for each kind of fault: the message of the first file, the number of others, and two
    of their names.
    """
    lines = []
    for (_, message), *others in kinds_of(faults):
        names = ", ".join(file for file, _ in others[:2]) + ", ..." * (len(others) > 2)
        lines.append(message + (f"; {len(others):,} more like this: {names}" if others else ""))
    return lines


def label_warnings(
    names: Sequence[str], pixels: Sequence[int] | np.ndarray, void: int = 0
) -> tuple[str, ...]:
    """Warnings that a score over these pixels says little: classes have no pixel, only one has any,
    most are void.
    """
    absent = [name for name, count in zip(names, pixels) if not count]
    texts, total = [], int(sum(int(count) for count in pixels)) + void
    if absent:
        texts.append(f"no pixel of {some_of(absent, 10)} ({len(absent)} of {len(names)} classes)")
    if len(names) - len(absent) == 1 < len(names):
        texts.append("all pixels belong to one class: scores on them are meaningless")
    if void > total / 2:
        texts.append(
            f"{void / total:.1%} of the pixels are void: the loss and the scores ignore them"
        )
    return tuple(texts)


def class_weights(pixels: np.ndarray | Sequence[int], power: float = 0.5) -> np.ndarray:
    """The weight (median share / share) ** power of each class, float32 [C]. An absent class gets
    the weight 1.

    The median is over the classes that occur. Power 1 is median frequency balancing (Eigen and
    Fergus 2015) with shares of the whole split. Power 0 gives all classes the same weight.
    """
    counts = np.asarray(pixels, np.float64)
    weights = np.ones(len(counts))
    present = counts > 0
    if present.any():
        weights[present] = (np.median(counts[present]) / counts[present]) ** power
    return weights.astype(np.float32)


def load(path: Path) -> AuditReport | None:
    """Cached statistics; None if there are none, or the file is damaged."""
    try:
        content = read_json(path)
        values = {f.name: content[f.name] for f in fields(AuditReport) if f.name not in _NOT_CACHED}
        values |= {name: np.array(content[name], np.int64) for name in _ARRAYS}
        tuples = ("classes", "warnings", "notes", "brightest")
        values |= {name: tuple(content[name]) for name in tuples}
        values |= {name: tuple(map(tuple, content[name])) for name in ("faults", "examples")}
        values["sizes"] = {(height, width): images for height, width, images in content["sizes"]}
        values["values"] = MaskValues.from_dict(content["values"])
        packed = zlib.decompress(base64.b64decode(content["mask_crc"]))
        return AuditReport(**values | {"mask_crc": np.frombuffer(packed, np.uint32)})
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error):
        return None


def save(path: Path, report: AuditReport) -> tuple[str, ...]:
    """Write the cached file atomically. Returns a note if that is not possible."""
    try:
        mask_crc = base64.b64encode(zlib.compress(report.mask_crc.tobytes())).decode()
        content = {**report.to_dict(), "mask_crc": mask_crc, "examples": report.examples}
        cache_json(path, content)
    except OSError as error:
        where = f"{error.strerror}: {path.parent}"
        return (f"statistics are not cached ({where}): set SEGTRAIN_CACHE to a writable folder",)
    return ()


@dataclass(frozen=True)
class AuditSample:
    """``checked`` of the ``total`` images of a split, fewer than all, drawn with ``seed``;
    ``faulty`` of them have a fault.
    """

    checked: int
    total: int
    faulty: int
    seed: int

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound of the share of faulty images in the whole split, with 95 %
        confidence.

        This is the Wilson score interval of the binomial distribution (1927). It is wider than
        necessary, since images are drawn without replacement.
        """
        count, share = self.checked, self.faulty / self.checked
        middle = self.faulty + _Z**2 / 2
        reach = _Z * math.sqrt(count * share * (1 - share) + _Z**2 / 4)
        low, high = ((middle + sign * reach) / (count + _Z**2) for sign in (-1, 1))
        return max(low, 0.0), min(high, 1.0)

    def text(self) -> str:
        """One sentence: the faulty images in the sample, and the confidence interval for the whole
        split.
        """
        low, high = (f"{100 * share:.3g} %" for share in self.interval)
        share = f"{low} to {high}" if self.faulty else f"fewer than {high}"
        checked = counted(self.checked, "checked image")
        return (
            f"{self.faulty or 'none'} of {checked} {'has' if self.faulty < 2 else 'have'} a fault: "
            f"with 95 % confidence, {share} of all {self.total:,} images have one"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        low, high = self.interval
        return {**asdict(self), "confidence": _CONFIDENCE, "faulty_share": [low, high]}


def sample_of(dataset: Dataset, count: int, seed: int) -> Dataset:
    """``count`` samples drawn uniformly without replacement, in the order of the split."""
    if count >= len(dataset):
        return dataset
    keep = np.sort(np.random.default_rng(seed).choice(len(dataset), count, replace=False))
    return select(dataset, keep, dataset.split, dataset.notes)
