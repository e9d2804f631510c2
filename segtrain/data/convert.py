"""`segtrain data convert`: copies any data set as images and PNG masks of class ids."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from segtrain.base.cores import cores
from segtrain.base.terminal import Say, counted
from segtrain.bucket import is_bucket
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config import Data
from segtrain.config.paste import command
from segtrain.data.audit.statistics import grouped
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.split_by import POOL
from segtrain.data.labels.class_file import is_background, read_classes
from segtrain.data.labels.space import LabelSpace
from segtrain.data.merge import merged, refuse_other_images
from segtrain.data.pixels import decode
from segtrain.data.pixels.bands import BandImage
from segtrain.data.pixels.common_colors import common_colors
from segtrain.data.side_by_side import cut
from segtrain.data.stacks import write_array, write_arrays
from segtrain.data.storage import Store
from segtrain.errors import ConfigError, DataError, file_error, some_of

# Mask values that are closer than this cannot be distinguished in a JPEG.
_APART = 16
# The channels of a pixel in a gray JPEG differ by less than this.
_GRAY = 32
_KEPT = {"ignore_index", "bits", "extra_bands", "channels", "values", "nodata", "mean", "std"}


def convert_folder(
    root: str,
    folder: str,
    splits: list[str] | None,
    overrides: list[str],
    say: Say = print,
    nearest: bool = False,
    merge: str = "",
    annotators: Sequence[str] = (),
    side_by_side: str = "",
) -> None:
    """Write ``folder``/images/SPLIT (hard links if possible), masks/SPLIT, and classes.txt.

    root: the folder of the data set, or a config. nearest: unknown values of masks become the
    nearest known ones, which JPEG masks always do. merge: the rule of ``merged`` for the masks of
    several annotators. annotators: for each further one, the setting that names the masks.
    side_by_side: cut pictures into images and masks, which are "left" or "right" in them. The
    folder appears complete or not at all. Raises DataError, ConfigError.
    """
    # Imported here, because ``check`` imports this file (its findings propose this command).
    from segtrain.data.audit.check import settings_of
    from segtrain.data.audit.settled import settled

    for place in (root, folder):
        if is_bucket(place):
            message = (
                f"{place}: data convert cannot read or write a bucket: download the data set first"
            )
            raise ConfigError(message, code="convert-in-bucket", found=place)
    if bool(merge) != bool(annotators):
        message = (
            "--merge RULE and --annotator SETTING belong together: SETTING names the masks of "
            "another annotator, such as data.masks=masks2"
        )
        raise ConfigError(message, code="annotator-missing")
    if side_by_side and overrides:
        message = f"--side-by-side only cuts the pictures: leave out {some_of(overrides)}"
        raise ConfigError(message, code="setting-unused", found=overrides)
    settings = ""
    with _complete(folder) as made:
        if side_by_side:
            cut(root, made, side_by_side, say)
        else:
            why = list[str]()
            try:
                data, names = settings_of(root, overrides, why)
            except DataError as error:
                if error.code != "layout-unknown" or not write_arrays(root, made, say):
                    raise
            else:
                if data.layout == "folders" and not (data.split_by.on or data.own_splits):
                    names = (POOL,)  # all splits have the same images
                data = settled(data, splits or names, why)
                datasets = [open_dataset(data, split) for split in splits or names]
                if datasets[0].labels.names[0].startswith("?"):
                    raise ConfigError(why[-1], code="classes-missing")
                given = [*overrides, *shlex.split(pasted(data))]
                others = [settings_of(root, [*given, setting])[0] for setting in annotators]
                for dataset in datasets:
                    why += dataset.notes
                for line in why:
                    say(line)
                for dataset in datasets:
                    also = [open_dataset(other, dataset.split) for other in others]
                    refuse_other_images(dataset, also)
                    _convert(dataset, made, say, nearest, merge, also, data.faults == "skip")
                _write_classes(made / "classes.txt", datasets[0].labels)
                kept = data.model_dump(include=_KEPT, exclude_defaults=True)
                settings = command({f"data.{key}": value for key, value in kept.items()})
    say(f"to see how to train on it: segtrain data check {shlex.quote(folder)} {settings}".rstrip())


@contextlib.contextmanager
def _complete(folder: str) -> Iterator[Path]:
    """A new folder that becomes ``folder`` when the block ends without an error."""
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        message = f"{folder}: exists already: choose another folder to convert to"
        raise DataError(message, code="folder-exists", folder=folder)
    target = Path(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as temporary:
            made = Path(temporary) / "set"
            made.mkdir()
            yield made
            made.replace(target)
    except OSError as error:
        message = (
            f"{folder}: cannot be written ({error.strerror or error}): check the free "
            "space and the permissions"
        )
        raise DataError(message, code="folder-unwritable", folder=folder) from None


def _convert(
    dataset: Dataset,
    made: Path,
    say: Say,
    nearest: bool,
    merge: str,
    others: Sequence[Dataset],
    skips: bool,
) -> None:
    names = [_safe(entry.meta["name"]) for entry in dataset.entries]
    where = f"{dataset.name} {dataset.split}"
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        message = f"{where}: {times} samples are named {name!r}: give each its own name"
        raise DataError(message, code="name-repeated", name=name)

    def write(index: int) -> tuple[int, int] | DataError:
        """The number of ambiguous pixels, and of all."""
        try:
            ids, ambiguous = _ids(dataset, index, nearest)
            if others:
                all_ids = [ids, *(_ids(other, index, nearest)[0] for other in others)]
                classes = dataset.labels.names
                background = next((i for i, name in enumerate(classes) if is_background(name)), 0)
                ids = merged(np.stack(all_ids), merge, background, dataset.labels.ignore_index)
            _write(dataset, index, made, names[index], ids)
            return ambiguous, ids.size
        except DataError as error:
            return error

    with ThreadPoolExecutor(cores()) as pool:
        written = [*pool.map(write, range(len(dataset)))]
    pairs = [*zip((str(entry.mask) for entry in dataset.entries), written)]
    faults = [(file, str(each)) for file, each in pairs if isinstance(each, DataError)]
    skips = skips and len(faults) < len(pairs)
    if faults:
        message = (
            f"{where}: {len(faults)} of {len(pairs)} samples cannot be converted, and "
            f"{'they are left out' if skips else 'nothing was written'}: "
        )
        message += "; ".join(grouped(faults))
        if not skips:
            raise DataError(message, code="samples-faulty", split=dataset.split, faults=len(faults))
        say(message)
    files, done_of = zip(*(pair for pair in pairs if not isinstance(pair[1], DataError)))
    counts = np.array(done_of)
    ambiguous, pixels = counts.sum(0).tolist()
    shares = counts[:, 0] / counts[:, 1]
    done = f"{dataset.split}: {counted(len(files), 'mask')} written and read again"
    if dataset.separate_files:
        done += (
            f", {ambiguous:,} of {pixels:,} pixels ({ambiguous / pixels:.2%}) were about halfway "
            "between two values and took the nearest"
        )
    if ambiguous:
        done += f"; most in {files[shares.argmax()]} ({shares.max():.2%})"
    say(done)


def _write_classes(path: Path, labels: LabelSpace) -> None:
    """Write the names, one per line, with colors if the classes have some; as YAML if a line would
    be read otherwise.
    """
    lines = [
        f"{' '.join(map(str, color))} {name}" if labels.colors else name
        for color, name in zip(labels.palette, labels.names)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with contextlib.suppress(DataError, ConfigError):
        if read_classes(path).names == labels.names:
            return
    text = yaml.safe_dump([*labels.names], default_style='"', allow_unicode=True)
    path.write_text(text, encoding="utf-8")


def _safe(name: str) -> str:
    """The name of a sample as a relative path that cannot leave its folder."""
    parts = name.lstrip("/").split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


def _ids(dataset: Dataset, index: int, nearest: bool) -> tuple[np.ndarray, int]:
    """The train ids of a mask, and how many of its pixels were ambiguous. Raises DataError."""
    ids, ambiguous = dataset.stored_mask(index), 0
    if isinstance(ids, np.ndarray):
        ids = dataset.train_ids(ids, index)
    else:
        file = str(dataset.entries[index].mask)
        ids, ambiguous = ids_of(ids, file, dataset.labels, nearest)
    size = dataset.size(index)
    if size != ids.shape:
        raise dataset.other_size(index, size, ids.shape)
    return ids, ambiguous


def _write(dataset: Dataset, index: int, made: Path, name: str, ids: np.ndarray) -> None:
    """Write one image and its mask. Raises DataError."""
    entry = dataset.entries[index]
    split = "" if dataset.split == POOL else dataset.split
    image, mask = (made / part / split / name for part in ("images", "masks"))
    stored = dataset.stored_image(index)
    if isinstance(stored, BandImage) and len(stored.names) > 1:
        stored = stored.values()
    if isinstance(stored, np.ndarray):
        write_array(image, stored)
    else:
        dataset.header(index)  # raises DataError for a file that is cut off
        image = Path(f"{image}{os.path.splitext(entry.image)[1]}")
        image.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(os.path.realpath(entry.image), image)
        except OSError:  # another file system, one without hard links, or a part of a shard
            image.write_bytes(decode.load(entry.image)[0] if dataset.separate_files else stored)
    write_array(mask, ids)
    if not np.array_equal(decode.decode_mask(f"{mask}.png"), ids):
        message = "the ids read back differ from those written: check the disk"
        raise file_error(f"{mask}.png", message, code="mask-readback-differs")


def ids_of(
    stored: bytes | memoryview, name: str, labels: LabelSpace, nearest: bool = False
) -> tuple[np.ndarray, int]:
    """Train ids (H, W) of a mask file of any format, and how many of its pixels were
    ambiguous. Raises DataError.

    nearest: unknown values become the nearest known ones. Those of a JPEG always do.
    """
    header = decode.read_header(stored, name)
    if header.format != "jpeg":
        raw = decode.decode_mask(stored, name)
        if not nearest or raw.dtype != np.uint8:
            return labels.remap(raw, name), 0
        pixels = raw if raw.ndim == 3 else np.repeat(raw[..., None], 3, 2)
    else:
        pixels = decode.decode_image(stored, name)
    if labels.colors and header.channels >= 3:
        known = labels.colors
    elif np.ptp(pixels.astype(np.int16), axis=2).max() < _GRAY:
        known = {
            raw * 0x010101: train for raw, train in labels.raw_to_train.items() if 0 <= raw < 256
        }
        ids = [color & 255 for color in sorted(known)]
        near = any(after - before < _APART for before, after in itertools.pairwise(ids))
        if near and header.format == "jpeg":
            reason = (
                f"the ids {some_of(ids, 12)} are too close for a JPEG mask, whose values are off "
                "by a few: set data.label_map to say which value is which class"
            )
            raise file_error(name, reason, code="mask-ids-too-close", found=ids)
    else:
        setting = "data.classes={road: [128, 64, 128], ...}"
        message = f"is a mask in color: set the color of each class, as in {setting}"
        raise file_error(name, message, code="mask-rgb-without-colors")
    codes = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    values, inverse = np.unique(codes, return_inverse=True)
    table, unsure = _nearest(values, known)
    inverse = inverse.reshape(codes.shape)
    return table.astype(labels.mask_dtype)[inverse], int(unsure[inverse].sum())


def _rgb(codes: np.ndarray) -> np.ndarray:
    """0xRRGGBB [n] as RGB (n, 3)."""
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)


def _nearest(values: np.ndarray, known: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """For each of the colors 0xRRGGBB, the train id of the nearest known one (in a tie, of the
    first of them). known: color -> train id.

    The second array is true where the choice is ambiguous: the nearest color is more than half as
    far away as the second nearest.
    """
    squares = ((_rgb(values)[:, None] - _rgb(np.array([*known]))) ** 2).sum(2)
    near = np.sort(squares, axis=1)
    unsure = 4 * near[:, 0] > near[:, 1] if len(known) > 1 else np.zeros(len(values), bool)
    return np.array([*known.values()])[squares.argmin(1)], unsure


def is_jpeg(mask: str, store: Store) -> bool:
    """Whether a mask is a JPEG file; False if it cannot be read. Raises RequestError."""
    with ignoring_file_faults(), store.open(mask) as stream:
        return decode.read_header(stream, mask).format == "jpeg"
    return False


def proposed_map(masks: list[str], classes: int, store: Store) -> dict[int, int]:
    """A data.label_map of the most frequent values in gray JPEG masks; {} if these are not one
    value per class.

    One more value is allowed if it is 255, which is then ignored. Masks that cannot be read are
    left out. Raises RequestError.
    """

    def pictures() -> Iterator[np.ndarray]:
        for mask in masks[:: max(1, len(masks) // 50)]:
            with ignoring_file_faults():
                yield decode.decode_image(store.content(mask), mask)

    colors = common_colors(pictures())
    if any(max(color) - min(color) >= _GRAY for color in colors):
        return {}
    table = {color[1]: train for train, color in enumerate(colors)}
    if len(table) == classes + 1 and 255 in table:
        return table | {255: -1}
    return table if len(table) == classes else {}


def pasted(data: Data, **more: Any) -> str:
    """The settings of ``data`` that are not defaults, and ``more``, as command-line arguments."""
    values = data.model_dump(exclude_defaults=True) | more
    return command({f"data.{key}": value for key, value in values.items()})


def command_for(data: Data, masks: list[str], labels: LabelSpace, store: Store) -> str:
    """The `segtrain data convert` command that writes a copy with PNG masks, ready to paste.

    For a data set in a bucket, it reads a download with the same name.
    """
    found = (
        {} if data.label_map or labels.colors else proposed_map(masks, labels.num_classes, store)
    )
    root = data.root.rstrip("/")
    root = os.path.basename(root) if is_bucket(root) else root
    settings = pasted(
        data.model_copy(update={"root": ""}), **({"label_map": found} if found else {})
    )
    return f"segtrain data convert {shlex.quote(root)} {shlex.quote(f'{root}-png')} {settings}"
