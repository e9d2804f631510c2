"""Tests that each proposal of `data check` works when it is pasted: no faults, and no class without a pixel.

A proposal that cannot be known (which color is which class) must stop when it is pasted as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_mask_encodings import COLORS, THREE, TWO, by_table, check, make, rgb

from segtrain.config.paste import words
from segtrain.data.audit.statistics import AuditReport

Encode = Callable[[np.ndarray, Path], None]


def proposals(reports: dict[str, AuditReport]) -> list[list[str]]:
    """Everything that is printed to be pasted, as arguments."""
    found = [finding for report in reports.values() for finding in report.findings]
    return [words(settings) for f in found for settings in (f.settings, *(s for _, s in f.others)) if settings]


def with_strays(strays: dict[int, int], table: dict[int, int], kind: Any = np.uint8) -> Encode:
    """Like ``by_table``, and each mask has ``strays`` (value -> pixels) in its last row."""

    def encode(mask: np.ndarray, path: Path) -> None:
        stored = np.vectorize(lambda value: table.get(int(value), int(value)))(mask).astype(kind)
        values = np.repeat(list(strays), list(strays.values()))
        stored[-1, : len(values)] = values
        Image.fromarray(stored).save(path.with_name(path.name + ".png"))

    return encode


def one_bit(mask: np.ndarray, path: Path) -> None:
    Image.fromarray(mask > 0).save(path.with_name(path.name + ".png"))


ONE = "data.classes=[crack]"
# Encoding, classes in the masks, settings, and the setting that must be among the proposals ("": any that works).
KINDS: dict[str, tuple[Encode, int, list[str], str]] = {
    "one class, 0/255": (by_table({1: 255}), 2, [ONE], "data.label_map={0: 0, 255: 1}"),
    "one class, 0/1": (by_table({}), 2, [ONE], "data.classes=[background, crack]"),
    "one class, 0/100": (by_table({1: 100}), 2, [ONE], "data.label_map={0: 0, 100: 1}"),
    "one class, all of it": (
        by_table({1: 255}),
        2,
        [ONE, "data.label_map={0: 0, 255: 0}"],
        "data.label_map={0: 0, 255: 1}",
    ),
    "one class, the rest void": (
        by_table({1: 255}),
        2,
        [ONE, "data.label_map={0: -1, 255: 0}"],
        "data.label_map={0: 0, 255: 1}",
    ),
    "void and one class": (by_table({1: 255}), 2, ["data.classes=[void, crack]"], "data.label_map={0: 0, 255: 1}"),
    "a stray 128": (with_strays({128: 1}, {1: 255}), 2, [TWO], "data.label_map={0: 0, 255: 1, 128: -1}"),
    "0/3/250/255": (with_strays({3: 9, 250: 9}, {1: 255}), 2, [TWO], "data.label_map={0: 0, 3: 0, 250: 1, 255: 1}"),
    "a stray among ids": (with_strays({77: 3}, {}), 3, [THREE], "data.label_map={0: 0, 1: 1, 2: 2, 77: -1}"),
    "a stray among gray levels": (
        with_strays({9: 1}, {1: 85, 2: 170}),
        3,
        [THREE],
        "data.label_map={0: 0, 85: 1, 170: 2, 9: -1}",
    ),
    "1 bit, and a map for 255": (one_bit, 2, [TWO, "data.label_map={0: 0, 255: 1}"], "data.label_map={0: 0, 1: 1}"),
    "a map for other ids": (
        by_table({1: 7, 2: 9}),
        3,
        [THREE, "data.label_map={0: 0, 70: 1, 90: 2}"],
        "data.label_map={0: 0, 7: 1, 9: 2}",
    ),
    "16 bits": (by_table({1: 1000, 2: 2000}, np.uint16), 3, [THREE], "data.label_map={0: 0, 1000: 1, 2000: 2}"),
    "void first, not in the masks": (
        by_table({}),
        3,
        ["data.classes=[void, background, road, car]"],
        "data.label_map={0: 0, 1: 1, 2: 2}",
    ),
    "unlabeled in the middle, not in the masks": (
        by_table({}),
        3,
        ["data.classes=[background, unlabeled, road, car]"],
        "data.label_map={0: 0, 1: 1, 2: 2}",
    ),
    "RGB of another red": (
        rgb(COLORS),
        3,
        ["data.classes={background: [0, 0, 0], road: [128, 64, 128], car: [0, 0, 144]}"],
        "",
    ),
    "RGB without black": (rgb(COLORS), 3, ["data.classes={road: [128, 64, 128], car: [0, 0, 142]}"], ""),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_proposed_works(name: str, tmp_path: Path) -> None:
    encode, classes, settings, wanted = KINDS[name]
    make(tmp_path, encode, classes)
    found = proposals(check(tmp_path, *settings))
    assert found
    assert not wanted or any(wanted in words for words in found)
    for pasted in found:
        reports = check(tmp_path, *settings, *pasted)
        assert not any(report.failed for report in reports.values())
        assert all(report.pixels.all() for report in reports.values())
