"""Which samples are in shards that other tools wrote? The headers of each tar are walked once, the index is kept in the cache."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from segtrain.config.paste import command
from segtrain.data import storage
from segtrain.data.index.pairs import no_folder
from segtrain.data.index.split_by import POOL
from segtrain.data.pixels import decode
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description, Shard, ShardIndex, ShardSpan
from segtrain.data.shards.reader import array
from segtrain.data.shards.tar import Member, members
from segtrain.errors import DataError
from segtrain.files import cache_folder

_PICTURES = ("jpg", "jpeg", "png", "npy", "webp", "tif", "tiff", "bmp", "ppm")
_IMAGES = ("", "image", "img", "rgb", "input")  # what stands before the last ending of an image: "jpg", "image.jpg"
_MASKS = ("mask", "seg", "segmentation", "label", "labels", "annotation", "gt", "target")
_HEAD = 1 << 16  # bytes that nearly always hold a picture's size
_READERS = 8


def shards_of(root: str, split: str) -> list[str]:
    """Names of a split's shards under ``root``: ``SPLIT/*.tar``, else ``SPLIT.tar`` and ``SPLIT-000000.tar`` (or with _)."""
    inside = storage.listing(os.path.join(root, split), ".tar")
    if inside:
        return [f"{split}/{name}" for name in inside]
    return [name for name in storage.listing(root, ".tar") if split_of(name) == split]


def split_of(name: str) -> str:
    """``train`` of ``train-000012.tar`` and ``train.tar``."""
    return re.sub(r"[-_.]?\d*$", "", name.removesuffix(".tar")) or "all"


def splits_in(root: str, indexed: bool = False) -> list[str]:
    """Splits that a folder holds as shards, or only those with an index of segtrain's."""
    packed = [name.removesuffix(shard_index.ENDING) for name in storage.listing(root, shard_index.ENDING)]
    if indexed:
        return packed
    plain = [split_of(name) for name in storage.listing(root, ".tar")]
    with os.scandir(root) as found:
        folders = [entry.name for entry in found if entry.is_dir() and storage.listing(entry.path, ".tar")]
    return sorted({*packed, *plain, *folders})


def index_of(root: str, split: str) -> ShardIndex:
    """The index of shards without one of segtrain's, from the cache while names, sizes and times of the shards stay.

    Raises DataError for no shards, a tar that is damaged, and samples without image or mask (all named at once).
    """
    if not os.path.isdir(root):
        raise no_folder(root, "data.root")
    names = shards_of(root, split)
    if not names:
        raise DataError(_nothing(root, split))
    stats = [os.stat(f"{root}/{name}") for name in names]
    marks = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(names, stats)]
    digest = hashlib.sha256(repr((shard_index.VERSION, root, split, marks)).encode()).hexdigest()[:24]
    path = str(cache_folder() / f"shards-{digest}{shard_index.ENDING}")
    try:
        return shard_index.load(path)
    except DataError:  # not there, or of no use
        pass
    what = Description(split, root, tuple(Shard(name, size) for name, size, _ in marks), ())
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda pair: _places(root, *pair), enumerate(names)))
    faults = [fault for _, odd in found for fault in odd]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise DataError(
            f"{root}: {len(faults)} samples of split {split!r} are not whole: {', '.join(faults[:5])}{more}: "
            "a sample is KEY.jpg beside KEY.mask.png, one after the other, and no KEY stands twice in a shard"
        )
    shard_index.write(path, what, itertools.chain.from_iterable(places for places, _ in found))
    return shard_index.load(path)


def _places(root: str, number: int, name: str) -> tuple[list[ShardSpan], list[str]]:
    """Samples of one shard, and what is wrong with others."""
    path = f"{root}/{name}"
    content, places, faults = storage.map(path), [], []
    seen: set[str] = set()
    for key, group in itertools.groupby(_named(content, path), lambda item: item[0]):
        members_of_key = list(group)
        files = {ending: member for _, ending, member in members_of_key}
        image, mask = _roles(files)
        if image or mask:
            if key in seen or len(files) < len(members_of_key):
                faults.append(f"{path}: {key} (twice)")
                continue
            seen.add(key)
        if not image or not mask:
            if image or mask or any(_is_picture(ending) for ending in files):
                faults.append(f"{path}: {key} (without {'a mask' if image else 'an image'})")
            continue
        size = _size(content, files[image], image, f"{path}: {key}.{image}")
        parts = [(ending, files[ending].offset, files[ending].size) for ending in (image, mask)]
        places.append(ShardSpan(key, number, parts[0], parts[1], size))
    return places, faults


def _named(content: memoryview, path: str) -> Iterator[tuple[str, str, Member]]:
    """Key, ending and member: all after the first dot of the file's name is the ending, as WebDataset has it."""
    for member in members(content, path):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, ending = base.partition(".")
        if stem and dot:
            yield (
                f"{folder.removeprefix('.').lstrip('/')}{slash if folder.strip('./') else ''}{stem}",
                ending.lower(),
                member,
            )


def _is_picture(ending: str) -> bool:
    return ending.rpartition(".")[2] in _PICTURES


def _roles(files: dict[str, Member]) -> tuple[str, str]:
    """Which ending is the image, which the mask ("" for none)."""
    pictures = [ending for ending in files if _is_picture(ending)]
    masks = [ending for ending in pictures if ending.rpartition(".")[0] in _MASKS]
    images = [ending for ending in pictures if ending.rpartition(".")[0] in _IMAGES]
    if not masks and len(images) == 2 and images[0] != "png" and "png" in images:  # KEY.jpg beside KEY.png
        masks = ["png"]
        images.remove("png")
    return (images[0] if len(images) == 1 else ""), (masks[0] if len(masks) == 1 else "")


def _size(content: memoryview, member: Member, ending: str, name: str) -> tuple[int, int]:
    """Height and width by the image's header; 0, 0 where it cannot be read: then reading the sample says why."""
    part = content[member.offset : member.offset + member.size]
    try:
        if ending.endswith("npy"):
            shape = array(part, name).shape
            return (shape[0], shape[1]) if len(shape) == 3 else (0, 0)
        try:
            header = decode.read_header(part[:_HEAD], name)
        except DataError:
            header = decode.read_header(part, name)
        return header.height, header.width
    except DataError:
        return 0, 0


def _nothing(root: str, split: str) -> str:
    """The message for a split without shards: what there is."""
    there = splits_in(root)
    packed = [name for ending in (".tar.gz", ".tgz", ".tar.zst") for name in storage.listing(root, ending)]
    if packed and not there:
        return f"{root}: {packed[0]} is compressed: pictures are already, and a sample must be found without unpacking: use plain tars"
    return (
        f"{root}: no shards of split {split!r} ({split}{shard_index.ENDING}, {split}-000000.tar, {split}/*.tar): "
        f"the folder holds {', '.join(there) or 'no shard'}"
        + (f"; to divide them: {command({'data.split_by': {'of': POOL, 'val': '20%'}})}" if there == [POOL] else "")
    )
