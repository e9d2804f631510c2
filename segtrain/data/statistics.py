"""What is in a split: the record of a scan, the class weights that follow from it, and its copy on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from segtrain.data.keep import writing


@dataclass(frozen=True)
class AuditReport:
    """What a scan of one split found. Arrays are int64 [C], over the samples without a fault."""

    name: str
    split: str
    fingerprint: str
    images: int
    classes: tuple[str, ...]
    pixels: np.ndarray  # of each class over the split
    void: int  # ignored pixels
    images_with: np.ndarray  # images that hold at least one pixel of the class
    sizes: dict[tuple[int, int], int]  # (height, width) -> images
    faults: tuple[tuple[str, str], ...] = ()  # (file, message)
    bad: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # indices of faulty samples, rising
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)  # about the scan itself
    decoded: bool = True  # whether every image was decoded, or only its header and end looked at

    def weights(self, power: float = 0.5) -> np.ndarray:
        """Proposed class weights, float32 [C]."""
        return class_weights(self.pixels, power)

    def table(self) -> str:
        """All of it for a terminal."""
        total = max(1, int(self.pixels.sum()) + self.void)
        sizes = ", ".join(
            f"{h} x {w}" + (f" ({n})" if len(self.sizes) > 1 else "") for (h, w), n in _common(self.sizes)
        )
        more = f" and {len(self.sizes) - 4} more sizes" if len(self.sizes) > 4 else ""
        head = f"{self.name} {self.split} #{self.fingerprint}: {self.images} images, {sizes}{more}, {self.void / total:.1%} void"
        wide = max(len(name) for name in ("class", *self.classes))
        lines = [head, f"{'class':<{wide}}  {'pixels':>15}  {'share':>8}  {'images':>7}  {'weight':>7}"]
        rows = zip(self.classes, self.pixels, self.images_with, self.weights())
        lines += [f"{n:<{wide}}  {p:>15,}  {p / total:>8.3%}  {i:>7,}  {w:>7.3f}" for n, p, i, w in rows]
        lines += [f"warning: {text}" for text in self.warnings]
        lines += [f"note: {text}" for text in self.notes]
        lines += [f"fault: {message}" for _, message in self.faults]
        faults = f"{len(self.faults):,} faults" + (
            f" in {len(self.bad):,} of {self.images:,} images" if self.faults else ""
        )
        return "\n".join([*lines, f"{faults}, {len(self.warnings)} warnings"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``from_dict`` is the way back."""
        return {
            "name": self.name,
            "split": self.split,
            "fingerprint": self.fingerprint,
            "images": self.images,
            "classes": list(self.classes),
            "pixels": self.pixels.tolist(),
            "void": self.void,
            "images_with": self.images_with.tolist(),
            "weights": [round(float(w), 6) for w in self.weights()],
            "sizes": [[h, w, n] for (h, w), n in self.sizes.items()],
            "faults": [list(fault) for fault in self.faults],
            "bad": self.bad.tolist(),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "decoded": self.decoded,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> AuditReport:
        """Raises KeyError, TypeError or ValueError for anything that ``to_dict`` did not write."""
        return cls(
            name=content["name"],
            split=content["split"],
            fingerprint=content["fingerprint"],
            images=int(content["images"]),
            classes=tuple(content["classes"]),
            pixels=np.array(content["pixels"], np.int64),
            void=int(content["void"]),
            images_with=np.array(content["images_with"], np.int64),
            sizes={(int(h), int(w)): int(n) for h, w, n in content["sizes"]},
            faults=tuple((file, message) for file, message in content["faults"]),
            bad=np.array(content["bad"], np.int64),
            warnings=tuple(content["warnings"]),
            notes=tuple(content["notes"]),
            decoded=bool(content["decoded"]),
        )


def class_weights(pixels: np.ndarray | Sequence[int], power: float = 0.5) -> np.ndarray:
    """(median share / share) ** power over the classes that occur, float32 [C]; an absent class gets 1.

    Power 1 is median frequency balancing (Eigen and Fergus 2015) with shares taken over the whole split; 0 is no weight.
    """
    counts = np.asarray(pixels, np.float64)
    weights = np.ones(len(counts))
    present = counts > 0
    if present.any():
        weights[present] = (np.median(counts[present]) / counts[present]) ** power
    return weights.astype(np.float32)


def _common(sizes: dict[tuple[int, int], int]) -> list[tuple[tuple[int, int], int]]:
    return sorted(sizes.items(), key=lambda item: -item[1])[:4]


def load(place: Path) -> tuple[AuditReport | None, str]:
    """Kept statistics, or why they are of no use ("" where there are none)."""
    try:
        return AuditReport.from_dict(json.loads(place.read_text(encoding="utf-8"))), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"kept statistics in {place} are of no use ({type(error).__name__}): read again"


def save(place: Path, report: AuditReport) -> list[str]:
    """Write whole or not at all; a note where it is not possible."""
    try:
        with writing(place) as stream:
            stream.write(json.dumps(report.to_dict()).encode())
    except OSError as error:
        return [
            f"statistics are not kept ({error.strerror}: {place.parent}): set SEGTRAIN_CACHE to a folder to write to"
        ]
    return []
