"""The layout ``list``: CSV, JSONL, or text files that name images and masks.

The lists are read line by line, since they may be long. Each file that they name must exist.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from segtrain import config
from segtrain.base.terminal import counted
from segtrain.bucket import is_bucket, key_in, split_url
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import SPLITS
from segtrain.data.index.entries import Column, ColumnBuilder, Entries
from segtrain.data.index.layout import CLASS_TABLES, Detected, Layout
from segtrain.data.index.listing import WARNING, Watch
from segtrain.data.index.names import in_split, is_image, stem
from segtrain.data.storage import Store
from segtrain.errors import DataError, closest, file_error, some_of

# With this many or more listed files in one folder, reading the folder is faster than a stat of
# each file.
_MANY = 1000


def listed(data: config.Data, split: str, watch: Watch) -> Entries:
    """Entries of a CSV or TSV file with the columns image and mask, or of a JSONL file with these
    keys. Paths are absolute or relative to data.root.

    Other columns become the metadata of an entry. In a file for all splits (no ``{split}`` in
    data.index), a column ``split`` names the split of each row. A list without a header has two
    paths per line, image and mask, separated by a comma, a tab, or spaces.
    """
    path = watch.look(in_split(data.root, data.index, split))
    if path.endswith((".jsonl", ".ndjson", ".json")):
        rows = _json_rows(path)
    else:
        rows = _plain_rows(path) if is_plain(path) else _csv_rows(path)
    one_for_all = "{split}" not in data.index
    by_split, keys, table = False, set[str](), _Table()
    for number, row in enumerate(rows, 1):
        keys.update(row)
        if one_for_all and "split" in row and not by_split:
            # This is the first row with a split. The rows before it belong to no split, so they are
            # left out.
            by_split, table = True, _Table()
        if not by_split or row.get("split") == split:
            table.append(row, number)
    missing = [key for key in ("image", "mask") if key not in keys]
    if keys and missing:
        near = closest(missing[0], sorted(keys))
        fix = (
            f"it has {some_of(sorted(keys), 8)}: write the names of the columns into the first line"
        )
        reason = f"no column {missing[0]!r}: {f'rename {near!r}' if near else fix}"
        raise file_error(path, reason, code="list-column-missing", column=missing[0], near=near)
    if table.empty:
        reason = f"rows without an image or a mask: {some_of(table.empty)}: write both paths"
        raise file_error(path, reason, code="list-row-empty", rows=table.empty)
    return checked(table.entries(data.root), path, watch)


def is_plain(path: str) -> bool:
    """Whether a list has no header: its first line that is not empty has two image paths."""
    for line in lines(path):
        if line.strip():
            return _two(line) is not None
    return False


def has_pairs(path: str, edge: str = r"\b") -> bool:
    """Whether a list pairs images with masks, by the columns in its first line or by two paths.
    edge: "" for columns whose names have these words anywhere, as in ``crown_mask``.
    """
    both = f"{edge}image.*{edge}mask|{edge}mask.*{edge}image"
    try:
        columns = next(lines(path), "") if path.endswith(ENDINGS) else ""
        return is_plain(path) or bool(re.search(both, columns, re.IGNORECASE))
    except DataError:  # not UTF-8, or gone
        return False


def _two(line: str) -> list[str] | None:
    """The two image paths in a line; None for any other line."""
    line = line.strip()
    for mark in (",", "\t", r"\s+"):
        cuts = [[line[: at.start()], line[at.end() :]] for at in re.finditer(mark, line)]
        cuts = [[part.strip().strip("\"'") for part in cut] for cut in cuts]
        pairs = [cut for cut in cuts if all(is_image(os.path.basename(part)) for part in cut)]
        if len(pairs) == 1:
            return pairs[0]
    return None


def _plain_rows(path: str) -> Iterator[dict[str, str]]:
    for number, line in enumerate(lines(path), 1):
        two = _two(line)
        if two is not None:
            yield {"image": two[0], "mask": two[1]}
        elif line.strip():
            raise _bad_line(
                path, number, f"two paths of images like the lines above: {line.strip()[:100]!r}"
            )


def _bad_line(path: str, number: int, what: str) -> DataError:
    return file_error(path, f"line {number} is not {what}", code="list-line-invalid", line=number)


class _Table:
    """Collects rows as columns. A row without a value in the column ``name`` is named after its
    image.
    """

    def __init__(self) -> None:
        self.count, self.empty = 0, list[int]()
        self.columns = defaultdict[str, ColumnBuilder](ColumnBuilder)

    def append(self, row: dict[str, str], number: int) -> None:
        if not row.get("image") or not row.get("mask"):
            self.empty.append(number)
            return
        for key, value in {"name": stem(row["image"]), **row}.items():
            self._fill(self.columns[key])
            self.columns[key].append(value)
        self.count += 1

    def _fill(self, column: ColumnBuilder) -> None:
        """Add empty values for the rows that do not have this key."""
        while len(column) < self.count:
            column.append(None)

    def entries(self, root: str) -> Entries:
        for column in self.columns.values():
            self._fill(column)
        under = os.path.join(root, "")
        image, mask = (
            self.columns.pop(key, ColumnBuilder()).done(under) for key in ("image", "mask")
        )
        return Entries(image, mask, {key: column.done() for key, column in self.columns.items()})


def lines(path: str) -> Iterator[str]:
    """Lines of a text file with their line endings. Raises DataError for a file that is missing or
    not UTF-8.
    """
    copy = local_copy(path)
    if not os.path.isfile(copy):
        folder = os.path.dirname(path) or "."
        there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        near = closest(os.path.basename(path), there, 0.4)
        fix = f"did you mean {near!r}?" if near else "check data.root and the split"
        raise file_error(path, f"no such list: {fix}", code="list-missing", near=near)
    try:
        with open(copy, encoding="utf-8-sig", newline="") as stream:
            yield from stream
    except (OSError, UnicodeDecodeError) as error:
        fix = "write it in UTF-8, and check its permissions"
        raise file_error(path, f"cannot be read ({error}): {fix}", code="list-unreadable") from None


def _csv_rows(path: str) -> Iterator[dict[str, str]]:
    try:
        mark = max("\t,;" if path.endswith(".tsv") else ",\t;", key=next(lines(path), "").count)
        reader = csv.DictReader(lines(path), delimiter=mark, skipinitialspace=True)
        for row in reader:
            yield {
                (k or "").strip(): (v or "").strip()
                for k, v in row.items()
                if isinstance(v, str) or v is None
            }
    except csv.Error as error:
        raise _bad_line(
            path, reader.line_num, f"valid CSV ({error}): write one row per line"
        ) from None


def _json_rows(path: str) -> Iterator[dict[str, str]]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise _bad_line(
                path, number, f"valid JSON ({error.msg}): write one object per line"
            ) from None
        if not isinstance(row, dict):
            raise _bad_line(path, number, 'an object: write {"image": ..., "mask": ...}')
        yield {str(key): "" if value is None else str(value) for key, value in row.items()}


ENDINGS = (".csv", ".tsv", ".jsonl")
# At most this many text files of a bucket are read to find out whether they are lists.
_MOST_TEXTS = 20


def _detect(root: str, store: Store) -> Detected | None:
    names = sorted(os.listdir(root)) if store.local else store.list(root, "")
    lists = [name for name in names if name.endswith(ENDINGS) and name not in CLASS_TABLES]
    texts = [name for name in names if name.endswith(".txt")][
        : None if store.local else _MOST_TEXTS
    ]
    pairs = [name for name in lists + texts if has_pairs(os.path.join(root, name), edge="")]
    lists = [name for name in lists if name in pairs or stem(name).lower() in SPLITS] or pairs
    if not lists:
        return None
    ending = os.path.splitext(lists[0])[1]
    return {"index": "{split}" + ending}, [stem(name) for name in lists if name.endswith(ending)]


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


def checked(entries: Entries, source: str, watch: Watch, of_images: bool = False) -> Entries:
    """Return the entries. Raises DataError if there are none, a file is missing, or an image is
    listed twice. With ``data.absent_mask=leave-out``, images without a mask are left out, with a
    warning. of_images: the list names no mask, so images without one may not be labeled.
    """
    if not len(entries):
        raise file_error(
            source, "the split has no rows: check the list and data.split", code="split-empty"
        )
    files, what, code = _repeated(entries.image), "listed twice", "list-file-repeated"
    fix, unpaired = "correct the list", dict[str, int]()
    if not files:
        images, masks = _absent(entries.image, watch), _absent(entries.mask, watch)
        files = [str(entries.image[row]) for row in images]
        if watch.absent == "leave-out" and 0 < len(masks) < len(entries):
            left_out = some_of([str(entries.image[row]) for row in masks])
            watch.notes.append(
                f"{WARNING}{counted(len(masks), 'image')} without a mask left out: {left_out}"
            )
            entries = entries.select(sorted({*range(len(entries))} - {*masks}))
        else:
            files += [str(entries.mask[row]) for row in masks]
            fix += ", or leave these images out: data.absent_mask=leave-out" * (not images)
        what, code = "missing", "list-file-missing"
        if of_images and not images:
            code, unpaired = "files-unpaired", {"images": len(masks), "masks": 0}
    if files:
        message = f"{counted(len(files), 'file')} {what}: {some_of(files)}: {fix}"
        raise file_error(source, message, code=code, found=files[:5], count=len(files), **unpaired)
    return entries


def _repeated(paths: Column) -> list[str]:
    """Absolute paths that occur more than once, also in other spellings (``./``, ``//``,
    ``x/../``).
    """
    here = os.getcwd()

    def absolute(path: str | None) -> str:
        if is_bucket(str(path)):
            base, _ = split_url(str(path))
            return f"{base}/{key_in(base, str(path))}"
        return os.path.normpath(os.path.join(here, str(path)))

    return [path for path, count in Counter(map(absolute, paths)).items() if count > 1]


def _absent(paths: Column, watch: Watch) -> list[int]:
    """The rows of paths that are not existing files. A folder with many listed files is read
    once.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows_of[os.path.dirname(str(path))].append(row)
    absent: list[int] = []
    for folder, rows in rows_of.items():
        watch.look(folder)
        if watch.store.local and len(rows) < _MANY:
            absent += [row for row in rows if not os.path.isfile(str(paths[row]))]
            continue
        there = {*watch.store.list(folder, "")}
        absent += [row for row in rows if os.path.basename(str(paths[row])) not in there]
    return sorted(absent)
