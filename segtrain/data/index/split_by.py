"""Division of a data set without splits into train, val, and test by the names of its images
(``data.split_by``).

If the splits are given as shares, the split of an image depends only on its name and the seed. So a
new file moves no other file to another split. The layout gives each image its name: the path
relative to the image folder, without suffix. The names are the same on every machine and in shards
packed from the files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from segtrain.base.terminal import counted
from segtrain.config import Data
from segtrain.config.split_by import Part, SplitBy, share
from segtrain.data.dataset import Dataset
from segtrain.data.index.subset import select
from segtrain.errors import DataError, some_of

TRAIN, VAL, TEST = 0, 1, 2
# The only split of a layout without splits.
POOL = "all"
_SHOWN = 3
# The folder or the beginning of a name may be that of a patient or a scene, if there are not few.
_GROUPS, _FEW = ("^(.*)/", r"^(.*)[_\-. ]"), 5


def splits(data: Data) -> tuple[str, ...]:
    """Names of the splits that ``data.split_by`` makes."""
    return (data.train_split, "val", *["test"] * bool(data.split_by.test))


def divided(data: Data, split: str, open_whole: Callable[[Data, str], Dataset]) -> Dataset:
    """One of the splits, as a view of the whole data set. Raises DataError."""
    rule, names = data.split_by, splits(data)
    if split not in names:
        more = " (data.split_by.test gives a test split)" if split == "test" else ""
        message = (
            f"data.split_by makes the splits {', '.join(names)}, but not {split!r}: check "
            f"data.split{more}"
        )
        raise DataError(message, code="split-unknown", found=split, expected=names)
    plain = data.model_copy(update={"split_by": SplitBy(), "limit": 0})
    whole = open_whole(plain, rule.of or POOL)
    parts = divide(names_of(whole), rule, whole.name)
    keep = np.flatnonzero(parts == names.index(split))
    if 0 < data.limit < len(keep):
        keep = keep[np.arange(data.limit) * len(keep) // data.limit]
    shares = ", ".join(f"{(parts == number).sum():,} {name}" for number, name in enumerate(names))
    note = (
        f"{whole.name}: {counted(len(whole), 'image')}, divided by data.split_by "
        f"({rule.text()}): {shares}"
    )
    return select(whole, keep, split, (*whole.notes, note))


def divide(names: Sequence[str], rule: SplitBy, where: str = "the set") -> np.ndarray:
    """uint8 [n]: TRAIN, VAL, or TEST of each name. Raises DataError if a split stays empty or a
    name has no group.
    """
    # Without a group pattern, each image is its own group.
    numbers: dict[str, int] = {}
    groups = _groups(names, rule, where) if rule.group else names
    group_of = np.array([numbers.setdefault(group, len(numbers)) for group in groups], np.int64)
    sizes = np.bincount(group_of)
    drawn = np.array([_drawn(group, rule.seed) for group in numbers])
    parts = _parts(drawn, sizes, rule)[group_of]
    _refuse_empty(parts, sizes, rule, where)
    return parts


def _parts(drawn: np.ndarray, sizes: np.ndarray, rule: SplitBy) -> np.ndarray:
    """uint8: TRAIN, VAL or TEST of each group."""
    parts = np.full(len(drawn), TRAIN, np.uint8)
    # Val takes the groups with the lowest drawn numbers, and test those with the highest. So a test
    # split that is added later takes nothing from val.
    parts[_chosen(drawn, sizes, rule.val, parts == TRAIN)] = VAL
    if rule.test:
        parts[_chosen(1 - drawn, sizes, rule.test, parts == TRAIN)] = TEST
    return parts


def _refuse_empty(parts: np.ndarray, sizes: np.ndarray, rule: SplitBy, where: str) -> None:
    """Raise DataError if a split has no image."""
    wanted = ("train", "val", "test") if rule.test else ("train", "val")
    empty = next((name for number, name in enumerate(wanted) if number not in parts), "")
    if not empty:
        return
    images, groups = len(parts), len(sizes)
    units = counted(images, "image") + (f" in {counted(groups, 'group')}" if rule.group else "")
    message = (
        f"{where}: data.split_by ({rule.text()}) leaves {empty} without an image: {units}: add "
        "images, ask for other shares or for numbers of images (data.split_by.val=1), or for "
        "smaller groups"
    )
    raise DataError(message, code="split-empty", split=empty, images=images, groups=groups)


def _chosen(drawn: np.ndarray, sizes: np.ndarray, part: Part, free: np.ndarray) -> np.ndarray:
    """bool [groups]: the free groups that become part of a split.

    A share takes the groups whose drawn number is below it. A number of images takes the groups
    with the lowest drawn numbers, until they have enough images.
    """
    limit = share(part)
    if limit is not None:
        return (drawn < limit) & free
    order = np.flatnonzero(free)[np.argsort(drawn[free], kind="stable")]
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = np.zeros(len(drawn), bool)
    chosen[order[before < int(part)]] = True
    return chosen


def _drawn(key: str, seed: int) -> float:
    """A number in [0, 1) that depends on the key and the seed only."""
    digest = hashlib.blake2b(
        f"{seed}\0{key}".encode(errors="surrogateescape"), digest_size=8
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _groups(names: Sequence[str], rule: SplitBy, where: str) -> list[str]:
    pattern = re.compile(rule.group)
    matches = [pattern.search(name) for name in names]
    groups = [
        (match[1] if pattern.groups else match[0]) or "" if match else "" for match in matches
    ]
    other = [name for name, group in zip(names, groups) if not group]
    if other:
        matched = len(names) - len(other)
        message = (
            f"{where}: data.split_by.group='{rule.group}' finds a group in {matched:,} of "
            f"{len(names):,} names, not in "
            f"{some_of(other, _SHOWN)}: every name, relative to the image folder, needs a "
            "group that is not empty"
        )
        raise DataError(message, code="split-group-missing", matches=matched, names=len(names))
    return groups


def proposal(names: Sequence[str]) -> SplitBy | None:
    """The rule ``{val: 20%}``, or a number of images if a share would take less than 10% or more
    than 30%; None for a single image.

    If the names begin with the numbers of patients or scenes, their images stay together.
    """
    if len(names) < 2:
        return None
    number = max(1, round(0.2 * len(names)))
    for group in [*filter(partial(_numbers_groups, names), _GROUPS), ""]:
        for val in ("20%", number):
            rule = SplitBy(val=val, group=group)
            with suppress(DataError):
                # Two of six groups are a third of the images.
                if 0.1 <= np.mean(divide(names, rule) == VAL) <= (0.35 if group else 0.3):
                    return rule
    return SplitBy(val=number)


def _numbers_groups(names: Sequence[str], pattern: str) -> bool:
    """Whether a pattern finds a group with a number in each name, and at least five groups, of two
    images on average.
    """
    matches = [re.match(pattern, name) for name in names]
    groups = {match[1] if match else "" for match in matches}
    numbered = all(re.search(r"\d", group) for group in groups)
    return numbered and _FEW <= len(groups) <= len(names) / 2


def division(data: Data, of: str, names: Sequence[str]) -> dict[str, Any]:
    """The settings that divide split ``of``, whose images have these names, into train and val; {}
    for one image.
    """
    rule = proposal(names)
    if rule is None:
        return {}
    made: dict[str, Any] = {
        "data.split_by": {
            **({"of": of} if data.own_splits else {}),
            **rule.model_dump(exclude_defaults=True),
        }
    }
    if data.train_split in ("val", "test") or data.train_split == data.split:
        made["data.train_split"] = "train"
    return made if data.split == "val" else {**made, "data.split": "val"}


def missing(
    data: Data, there: Sequence[str], names: Callable[[str], Sequence[str]]
) -> tuple[str, dict[str, Any]]:
    """The missing train or val split in words, and the settings that divide an existing one; ("",
    {}) if both exist.

    ``there``: the splits of the data set. ``names``: the names of the images of a split.
    """
    lacks = [split for split in dict.fromkeys((data.train_split, data.split)) if split not in there]
    if data.split_by.on or data.layout == "scenes" or not lacks:
        return "", {}
    divided = data.train_split if data.train_split in there else there[0]
    settings = division(data, divided, names(divided))
    message = f"it has no split {' and none '.join(map(repr, lacks))}, only {', '.join(there)}"
    message = "no splits" if list(there) == [POOL] else message
    what = "the set" if divided == POOL else divided
    message += f": data.split_by divides {what}" if settings else f", and {what} is a single image"
    if "group" in settings.get("data.split_by", ()):
        message += (
            ". Images whose names begin alike, such as those of a patient, stay together (to "
            "divide image by image, leave out its group)"
        )
    return message, settings


def names_of(dataset: Dataset) -> list[str]:
    """The names by which ``data.split_by`` divides the images."""
    return [entry.meta["name"] for entry in dataset.entries]


def with_settings(data: Data, settings: Mapping[str, Any]) -> Data:
    """``data``, changed by the settings of ``division``."""
    changes = {key.removeprefix("data."): value for key, value in settings.items()}
    if "split_by" in changes:
        changes["split_by"] = SplitBy.model_validate(changes["split_by"])
    return data.model_copy(update=changes)
