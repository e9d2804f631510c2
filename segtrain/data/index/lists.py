"""Which files does a list (CSV, JSONL, text) name, and are they there? Read line by line: a list may be long."""

from __future__ import annotations

import csv
import difflib
import json
import os
import re
import shlex
from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np

from segtrain import config
from segtrain.data.index.entries import Column, Entries, TextsBuilder
from segtrain.data.index.layout import Detected, Layout
from segtrain.data.index.listing import Watch
from segtrain.data.index.names import SUFFIXES
from segtrain.data.index.unpaired import in_other_form
from segtrain.errors import DataError

_RUN_LENGTHS = re.compile(r"rle|encoded_?pixels|run_?length", re.IGNORECASE)  # as columns are called at Kaggle
_MANY = 1000  # listed files of one folder, from which reading the folder beats a look at each of them


def listed(data: config.Data, split: str, watch: Watch) -> Entries:
    """A CSV (or .tsv) with the columns image and mask, or JSONL with those keys; paths are under data.root or absolute.

    Other columns become the entry's metadata. A file for all splits (no ``{split}`` in data.index) has a column ``split``.
    A list without a header has two paths a line, image and mask, with a comma, a tab or spaces between them.
    """
    path = watch.look(os.path.join(data.root, data.index.replace("{split}", split)))
    if path.endswith((".jsonl", ".ndjson", ".json")):
        rows = _json_rows(path)
    else:
        rows = _plain_rows(path) if is_plain(path) else _csv_rows(path)
    one_for_all = "{split}" not in data.index
    by_split, keys, table = False, set[str](), _Table()
    for row in rows:
        keys.update(row)
        if one_for_all and "split" in row and not by_split:
            by_split, table = True, _Table()  # rows so far name no split: they are of none
        if not by_split or row.get("split") == split:
            table.append(row)
    missing = [key for key in ("image", "mask") if key not in keys]
    if keys and missing:
        lengths = next((key for key in sorted(keys) if _RUN_LENGTHS.search(key)), None)
        if lengths:
            raise DataError(
                f"{path}: {lengths!r} holds masks as run lengths, which are not read: write the mask of each image as a PNG of "
                "class ids, and a list with the columns image and mask"
            )
        near = difflib.get_close_matches(missing[0], sorted(keys), n=1)
        few = ", ".join(sorted(keys)[:8])
        hint = f"rename {near[0]!r}" if near else f"it has {few}: write a first line with the names of the columns"
        raise DataError(f"{path}: no column {missing[0]!r}: {hint}")
    if table.empty:
        shown = ", ".join(map(str, table.empty[:5]))
        raise DataError(f"{path}: {len(table.empty)} rows of the split without image or mask: rows {shown}")
    entries = table.entries(data.root)
    foreign = _elsewhere(entries, data.root) if len(entries) else ""
    if foreign:
        raise DataError(
            f"{path}: {entries.image[0]} does not exist, but without {foreign!r} it lies in {data.root}: take that out of the list: "
            f"sed -i {shlex.quote(f's#{foreign}##g')} {shlex.quote(path)}"
        )
    return checked(entries, path, watch)


def is_plain(path: str) -> bool:
    """Whether a list has no header: its first line is two paths of pictures."""
    for line in lines(path):
        if line.strip():
            return _two(line) is not None
    return False


def _two(line: str) -> list[str] | None:
    """The two paths of a line without a header, None for another line."""
    for mark in (",", "\t", None):
        parts = [part.strip().strip("\"'") for part in line.strip().split(mark)]
        if len(parts) == 2 and all(os.path.splitext(part)[1].lower() in SUFFIXES for part in parts):
            return parts
    return None


def _plain_rows(path: str) -> Iterator[dict[str, str]]:
    for number, line in enumerate(lines(path), 1):
        two = _two(line)
        if two is not None:
            yield {"image": two[0], "mask": two[1]}
        elif line.strip():
            raise DataError(
                f"{path}: line {number} is not two paths of pictures as those above: {line.strip()[:100]!r}"
            )


def _elsewhere(entries: Entries, root: str) -> str:
    """What the first path begins with, where the file is not there but, without that, under ``root``; else ""."""
    image = str(entries.image[0])
    if not image.startswith("/") or not str(entries.image.texts[0]).startswith("/") or os.path.exists(image):
        return ""
    parts = image.split("/")
    for count in range(1, len(parts)):
        if os.path.isfile(os.path.join(root, *parts[count + 1 :])):
            return "/".join(parts[: count + 1]) + "/"
    return ""


class _Table:
    """Rows as columns. Where an image's name and its suffix meet it is cut: the first part is also the sample's name."""

    def __init__(self) -> None:
        self.count, self.empty = 0, list[int]()
        self.stems, self.masks = TextsBuilder(), TextsBuilder()
        self.tails, self.codes = dict[str, int](), array("L")
        self.others: dict[str, TextsBuilder] = {}

    def append(self, row: dict[str, str]) -> None:
        image, mask = row.get("image"), row.get("mask")
        if not image or not mask:
            self.empty.append(self.count + len(self.empty) + 1)
            return
        stem, suffix = os.path.splitext(image)
        self.stems.append(stem)
        self.codes.append(self.tails.setdefault(suffix, len(self.tails)))
        self.masks.append(mask)
        for key, value in row.items():
            if key not in ("image", "mask"):
                column = self.others.setdefault(key, TextsBuilder())
                self._fill(column)
                column.append(value)
        self.count += 1

    def _fill(self, column: TextsBuilder) -> None:
        """Nothing in the rows that have no such key."""
        while len(column) < self.count:
            column.append(None)

    def entries(self, root: str) -> Entries:
        for column in self.others.values():
            self._fill(column)
        under, stems = os.path.join(root, ""), self.stems.done()
        codes = np.array(self.codes, np.min_scalar_type(len(self.tails)))
        images = Column(stems, under, tuple(self.tails) or ("",), codes)
        others = {key: Column(column.done()) for key, column in self.others.items()}
        if "name" in others:  # where a row has none, the image's
            names = TextsBuilder()
            for own, stem in zip(others["name"], stems):
                names.append(stem if own is None else own)
            others["name"] = Column(names.done())
        return Entries(images, Column(self.masks.done(), under), {"name": Column(stems), **others})


def lines(path: str) -> Iterator[str]:
    """Lines of a text file, their ends with them. Raises DataError for one that is not there or no UTF-8."""
    if not os.path.isfile(path):
        folder = os.path.dirname(path) or "."
        there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        near = difflib.get_close_matches(os.path.basename(path), there, n=1, cutoff=0.4)
        raise DataError(
            f"{path}: no such list: " + (f"did you mean {near[0]!r}?" if near else "check data.root and the split")
        )
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            yield from stream
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}): write it in UTF-8") from None


def _csv_rows(path: str) -> Iterator[dict[str, str]]:
    try:
        reader = csv.DictReader(lines(path), delimiter="\t" if path.endswith(".tsv") else ",", skipinitialspace=True)
        for row in reader:
            yield {(k or "").strip(): v or "" for k, v in row.items() if isinstance(v, str) or v is None}
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num} is no CSV ({error}): one row a line") from None


def _json_rows(path: str) -> Iterator[dict[str, str]]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}: line {number} is no JSON ({error.msg}): write one object a line") from None
        if not isinstance(row, dict):
            raise DataError(f'{path}: line {number} is no object: write {{"image": ..., "mask": ...}}')
        yield {str(key): "" if value is None else str(value) for key, value in row.items()}


def checked(entries: Entries, source: str, watch: Watch) -> Entries:
    """Entries of a list, whose files must exist and whose images must differ."""
    if not len(entries):
        raise DataError(f"{source}: the split holds no row: check the list and data.split")
    double = _double(_spelled_out(entries.image))
    absent = [] if double else [*_absent(entries.image, watch), *_absent(entries.mask, watch)]
    for odd, what in ((double, "are listed twice"), (absent, "do not exist")):
        if odd:
            shown = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
            other = in_other_form(odd[0]) if what == "do not exist" else ""
            cause = f"; {other!a} is there, the same text in another Unicode normalization (NFC/NFD)" if other else ""
            raise DataError(f"{source}: {len(odd)} files {what}: {shown}{cause}: correct the list")
    return entries


def _spelled_out(paths: Column) -> Column:
    """The same files, each under one spelling: absolute, without ``./``, ``//`` and ``x/../``. Itself where that changes nothing."""
    absolute, odd = 0, False
    for text in paths.texts:
        absolute += (text or "").startswith("/")
        odd |= text is not None and ("./" in text or "//" in text)
    if not odd and absolute in (0, len(paths)):
        return paths
    texts, root = TextsBuilder(), os.path.abspath(paths.prefix)
    for text in paths.texts:
        texts.append(os.path.normpath(os.path.join(root, text or "")))
    return Column(texts.done(), "", paths.tails, paths.codes)


def _double(paths: Column) -> list[str]:
    """Paths that occur more than once. Compared by their hashes first: a table of a million strings would be large."""
    hashes = np.fromiter(map(hash, paths), np.int64, len(paths))
    order = np.argsort(hashes)
    equal = np.flatnonzero(np.diff(hashes[order]) == 0)
    places = np.unique(order[np.concatenate([equal, equal + 1])]).tolist()
    return [str(path) for path, count in Counter(paths[place] for place in places).items() if count > 1]


def _absent(paths: Column, watch: Watch) -> list[str]:
    """Paths that are no files, in their order. A folder of which many are listed is read once."""
    numbers: dict[str, int] = {}
    folders, names = array("L"), array("q")
    for path in paths:
        folder, name = os.path.split(str(path))
        folders.append(numbers.setdefault(folder, len(numbers)))
        names.append(hash(name))
    of, hashes = np.array(folders), np.array(names)
    order = np.argsort(of, kind="stable")
    absent: list[int] = []
    for folder, rows in zip(numbers, np.split(order, np.flatnonzero(np.diff(of[order])) + 1)):
        watch.look(folder)
        if len(rows) < _MANY or not os.path.isdir(folder):
            absent += [row for row in rows.tolist() if not os.path.isfile(str(paths[row]))]
            continue
        with os.scandir(folder) as listing:
            there = np.fromiter((hash(item.name) for item in listing if item.is_file()), np.int64)
        absent += rows[~np.isin(hashes[rows], there)].tolist()
    return [str(paths[row]) for row in sorted(absent)]


_ENDINGS = (".csv", ".tsv", ".jsonl")


def _detect(root: str) -> Detected | None:
    names = sorted(os.listdir(root))
    lists = [name for name in names if name.endswith(_ENDINGS)]
    lists = lists or [name for name in names if name.endswith(".txt") and _lists_pairs(os.path.join(root, name))]
    if not lists:
        return None
    ending = os.path.splitext(lists[0])[1]
    return {"index": "{split}" + ending}, [os.path.splitext(name)[0] for name in lists if name.endswith(ending)]


def _lists_pairs(path: str) -> bool:
    try:
        return is_plain(path)
    except DataError:  # not UTF-8, or gone
        return False


LIST = Layout(
    "list",
    "SPLIT.csv, .tsv or .jsonl; SPLIT.txt with an image and a mask per line",
    _detect,
    listed,
    files=lambda data: ("images/{name}.png", "masks/{name}.png"),
    list_of=lambda data, split, rows: (
        data.index.replace("{split}", split),
        ["image,mask", *(",".join(row) for row in rows)],
    ),
    needs=lambda data: (data.index,),
)
