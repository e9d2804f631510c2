"""Comparison of the data of a resumed run with the data that it was trained on, down to the files
that differ.

Each checkpoint holds a record of both splits: names of the samples in their order, classes, sizes
of the files, a checksum of each mask's labels, and the ends of up to LOOKED_AT images; with
data.check=off only names, classes, and the sizes of up to LOOKED_AT files. A name has neither
folder nor ending, so that a moved data.root and packing into shards do not change it.
``data/train.tsv.gz`` and ``data/val.tsv.gz`` in the run folder list all samples, to name
differences.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segtrain.base.files import open_file, write_atomically
from segtrain.config import Config
from segtrain.data.audit.statistics import AuditReport
from segtrain.data.dataset import Dataset
from segtrain.data.index.entries import Entries, relative
from segtrain.data.index.subset import Subset
from segtrain.errors import CheckpointError, DataError, some_of

# Images that differ also differ there: the end of a PNG has a checksum of all its pixels.
END = 1 << 16
LOOKED_AT = 1024  # The sizes of up to this many files of a split are read, if not those of all.
BLOCK = 4096  # samples that are read from the index at once
# raised by ``read_list`` for a missing or damaged list
DAMAGED = (OSError, EOFError, ValueError, zlib.error)
_SHOWN = 3  # names of each kind in one error
_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})

SampleRow = tuple[str, int, int, int]


@dataclass(frozen=True)
class SplitRecord:
    """The record of a split in a checkpoint. Most fields are digests, "" if the files were not
    read.
    """

    split: str
    images: int
    names: str
    classes: str  # their names, and the ignored id
    mapping: str  # from stored ids or colors to classes
    image_some: str  # sizes in bytes of up to LOOKED_AT files
    mask_some: str
    image_sizes: str  # of all files
    mask_sizes: str
    masks: str  # checksums of the labels of all masks
    # fingerprint of the original files, if this split is shards packed without changing a pixel
    packed: str = ""
    # fingerprint of the files, if this split is files; shards packed from them store it
    files: str = ""
    image_ends: str = ""  # the last END bytes of up to LOOKED_AT images

    @classmethod
    def read(cls, saved: Any, role: str) -> SplitRecord | None:
        """The record of the split ``role`` in a checkpoint's "data"; None if there is no valid
        one.
        """
        try:
            content = saved[role]
            return cls(**{**content, "images": int(content["images"])})
        except (TypeError, KeyError, ValueError):
            return None


@dataclass(frozen=True)
class Split:
    """A split. ``sizes``: int64 (n, 2), bytes of image and mask, -1 if unknown. ``mask_crc``:
    uint32 (n,), or empty.
    """

    dataset: Dataset
    sizes: np.ndarray
    mask_crc: np.ndarray
    record: SplitRecord

    def rows(self) -> Iterator[SampleRow]:
        return rows_of(self.dataset, self.sizes, self.mask_crc)


def names_of(dataset: Dataset) -> Iterator[str]:
    """Names of the samples in their order. For shards, they come from the index."""
    entries, root = dataset.entries, dataset.root
    for begin in range(0, len(dataset), BLOCK):
        after = min(begin + BLOCK, len(dataset))
        if isinstance(entries, Entries) and "name" in entries.meta:
            names = [name or "" for name in entries.meta["name"].part(begin, after)]
        else:
            some = (entries[index] for index in range(begin, after))
            # Generated samples have no root.
            names = [entry.meta.get("name", entry.image) if root else entry.image for entry in some]
        yield from (relative(name, root) if name.startswith("/") else name for name in names)


def rows_of(
    dataset: Dataset, sizes: np.ndarray, mask_crc: np.ndarray | None = None
) -> Iterator[SampleRow]:
    """Name, bytes of image and mask, checksum of the labels (0: unknown) of each sample."""
    crc = np.zeros(len(dataset), np.uint32) if mask_crc is None or not len(mask_crc) else mask_crc
    return zip(
        (name.translate(_ESCAPED) for name in names_of(dataset)), sizes[:, 0], sizes[:, 1], crc
    )


def split_of(dataset: Dataset, report: AuditReport | None) -> Split:
    """``dataset``, without samples that are left out, with its record. ``report``: its audit.
    Raises DataError.
    """
    base, keep = (dataset.base, dataset.keep) if isinstance(dataset, Subset) else (dataset, None)
    mask_crc = np.zeros(0, np.uint32)
    if report is not None:
        mask_crc = report.mask_crc
        if keep is not None and len(mask_crc) == len(base):
            mask_crc = mask_crc[keep]
        mask_crc = mask_crc if len(mask_crc) == len(dataset) else mask_crc[:0]
    some = looked_at(len(dataset))
    if report is not None or dataset.sizes_known:
        sizes = dataset.stamps()[:, :, 0]
    else:
        sizes = np.full((len(dataset), 2), -1, np.int64)
        sizes[some] = dataset.stamps(some)[:, :, 0]
    complete = bool((sizes >= 0).all())
    ends = ""
    if report is not None and dataset.stored:
        with ThreadPoolExecutor(32) as pool:
            ends = _digest(
                pool.map(
                    lambda k: dataset.image_bytes(k, max(0, int(sizes[k, 0]) - END), END),
                    some.tolist(),
                )
            )
    labels = dataset.labels
    record = SplitRecord(
        split=dataset.split,
        images=len(dataset),
        names=_digest(f"{name}\0".encode(errors="surrogateescape") for name in names_of(dataset)),
        classes=_digest([json.dumps([labels.names, labels.ignore_index]).encode()]),
        mapping=_digest(
            [
                json.dumps(
                    [sorted(labels.raw_to_train.items()), sorted(labels.colors.items())]
                ).encode()
            ]
        ),
        image_some=_digest([sizes[some, 0].tobytes()]),
        mask_some=_digest([sizes[some, 1].tobytes()]),
        image_sizes=_digest([sizes[:, 0].tobytes()]) if complete else "",
        mask_sizes=_digest([sizes[:, 1].tobytes()]) if complete else "",
        masks=_digest([mask_crc.tobytes()]) if len(mask_crc) else "",
        packed=dataset.packed_from or "",
        files=dataset.fingerprint(sizes[:, :, None])
        if report is not None and dataset.packed_from is None
        else "",
        image_ends=ends,
    )
    return Split(dataset, sizes, mask_crc, record)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def looked_at(count: int) -> np.ndarray:
    """Up to LOOKED_AT evenly spread indices of a list: a look at each file of a large set would
    take minutes.
    """
    return np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(np.int64))


def differences(then: SplitRecord, now: SplitRecord) -> list[str]:
    """The differences between two records: split, classes, names, images, masks."""
    differing = []
    if then.split != now.split:
        differing.append(f"the split is {now.split!r}, it was {then.split!r}")
    if then.classes != now.classes:
        differing.append("the classes differ")
    if (then.images, then.names) != (now.images, now.names):
        differing.append(f"it lists other samples ({now.images:,}, it was {then.images:,})")
        return differing
    linked = then.packed or then.files, now.packed or now.files
    if _differ(then, now, "image_sizes", "image_some"):
        if not (linked[0] and linked[0] == linked[1]):
            differing.append("images have another size in bytes")
    elif _differ(then, now, "image_ends"):
        differing.append("images have other content, of the same size in bytes")
    if then.masks and now.masks:
        if then.masks != now.masks:
            differing.append("masks have other labels")
    elif then.mapping != now.mapping:
        differing.append("masks are read with other classes")
    elif _differ(then, now, "mask_sizes", "mask_some"):
        differing.append("masks have another size in bytes")
    return differing


def _differ(then: SplitRecord, now: SplitRecord, *keys: str) -> bool:
    """Whether two records differ, by the first digest of ``keys`` that both have."""
    pairs = [(getattr(then, key), getattr(now, key)) for key in keys]
    return next((a != b for a, b in pairs if a and b), False)


def check(
    config: Config, saved: Any, splits: dict[str, Split], layout: str = ""
) -> tuple[list[str], list[str]]:
    """Compare the splits with ``saved``, the entry "data" of a checkpoint. Returns remarks and
    accepted differences.

    ``layout``: the earlier data.layout if it differs, else "". Raises DataError that names the
    files that differ, unless checkpoint.data_changed=accept.
    """
    changed: list[str] = []
    for role, split in splits.items():
        then = SplitRecord.read(saved, role)
        differing = (
            differences(then, split.record)
            if then
            else ["the checkpoint does not say which samples it had"]
        )
        if differing:
            named = _named(config.run_dir, role, split)
            changed.append(f"{role}: {'; '.join(differing)}{f': {named}' if named else ''}")
    if not changed:
        was = (
            f"data.layout was {layout}, now it is {config.data.layout}: the samples and their "
            "labels are the same"
        )
        return [was] if layout else [], []
    if config.checkpoint.data_changed == "refuse":
        lines = [
            (
                f"{config.run_dir} was trained on other data than data.root={config.data.root!r} "
                "holds now"
            ),
            *changed,
            (
                "restore the files, or start another run with out=FOLDER; to go on anyway: "
                "checkpoint.data_changed=accept"
            ),
        ]
        raise DataError(
            "\n  ".join(lines), code="data-changed", run=str(config.run_dir), changes=changed
        )
    return [
        "checkpoint.data_changed=accept: this run goes on with other data than it was trained on; "
        "the samples from here on are not those that it would have had, and scores before and "
        "after are not of the same images",
        *changed,
    ], changed


def _named(run_dir: Path, role: str, split: Split) -> str:
    """How many samples were added, removed and changed, with the first names of each; "" if there
    are none.
    """
    path = list_file(run_dir, role)
    try:
        saved_rows = {name: numbers for name, *numbers in read_list(path)}
    except DAMAGED:
        return f"which ones is not known, since {path} cannot be read"
    before = list(saved_rows)
    added = []
    changed = []
    order = []
    for name, image, mask, crc in split.rows():
        then = saved_rows.pop(name, None)
        if then is None:
            added.append(name)
            continue
        order.append(name)
        other_mask = (
            then[2] != crc if then[2] and crc else -1 not in (then[1], mask) and then[1] != mask
        )
        if other_mask or (-1 not in (then[0], image) and then[0] != image):
            changed.append(name)
    lists = (("added", added), ("removed", list(saved_rows)), ("changed", changed))
    text = "; ".join(
        f"{len(names):,} {word} ({some_of(names, _SHOWN)})" for word, names in lists if names
    )
    return text or ("the same samples in another order" if order != before else "")


def as_saved(splits: dict[str, Split], saved: Any) -> dict[str, Any]:
    """Records for the next checkpoints. If nothing differs, digests that are unknown now come from
    the saved record.
    """
    records = {}
    for role, split in splits.items():
        then, now = SplitRecord.read(saved, role), asdict(split.record)
        same = then is not None and not differences(then, split.record)
        records[role] = (
            {key: value or getattr(then, key) for key, value in now.items()} if same else now
        )
    return records


def list_file(run_dir: Path, role: str) -> Path:
    return run_dir / "data" / f"{role}.tsv.gz"


def keep_list(run_dir: Path, splits: dict[str, Split], rewrite: bool) -> None:
    """Write the missing lists of samples into the run folder, or all of them if ``rewrite``. Raises
    CheckpointError.
    """
    for role, split in splits.items():
        path = list_file(run_dir, role)
        if rewrite or not path.is_file():
            write_list(path, split.rows())


def write_list(path: Path, rows: Iterable[SampleRow]) -> None:
    """Write a list of samples. Raises CheckpointError."""
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot make the folder {path.parent}: {error.strerror}: choose another out=FOLDER",
            code="folder-not-made",
            file=str(path.parent),
        ) from None
    lines = "".join(f"{name}\t{image}\t{mask}\t{crc}\n" for name, image, mask, crc in rows)
    content = f"name\timage_bytes\tmask_bytes\tmask_crc\n{lines}".encode(errors="surrogateescape")
    write_atomically(path, gzip.compress(content, 1, mtime=0))


def read_list(path: Path) -> Iterator[SampleRow]:
    """The rows that ``write_list`` wrote. Raises one of DAMAGED."""
    text: dict[str, str] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}
    with open_file(path) as file, gzip.open(file, "rt", **text) as stream:  # type: ignore[call-overload]
        if not stream.readline():
            raise EOFError
        for line in stream:
            name, *numbers = line.rstrip("\n").rsplit("\t", 3)
            image, mask, crc = map(int, numbers)
            yield name, image, mask, crc
