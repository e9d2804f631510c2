"""Index of shards that other tools wrote, made by reading the headers of each tar once, and kept in
the cache.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from segtrain.base.files import cache_folder, digest_of
from segtrain.bucket.faults import ignoring_file_faults
from segtrain.config.paste import command
from segtrain.data.index.names import SUFFIXES
from segtrain.data.index.split_by import POOL
from segtrain.data.pixels import decode
from segtrain.data.shards import index as shard_index
from segtrain.data.shards.index import Description, Shard, ShardIndex, ShardSpan
from segtrain.data.shards.reader import array
from segtrain.data.shards.tar import Member, View, members
from segtrain.data.storage import LOCAL, Store
from segtrain.errors import DataError, some_of

_PICTURES = {"npy", *(suffix.removeprefix(".") for suffix in SUFFIXES)}
# Texts between key and extension in the names of images (KEY.jpg, KEY.image.jpg) and of masks
# (KEY.mask.png).
_IMAGES = ("", "image", "img", "rgb", "input")
_MASKS = ("mask", "seg", "segmentation", "label", "labels", "annotation", "gt", "target")
_HEAD = 1 << 16  # first bytes of a file, which nearly always hold the image's size
_READERS = 8


def shards_of(root: str, split: str, store: Store = LOCAL) -> list[str]:
    """Names of a split's shards under ``root``: ``SPLIT/*.tar``, else ``SPLIT.tar`` and
    ``SPLIT-000000.tar``.
    """
    inside = store.list(os.path.join(root, split), ".tar")
    if inside:
        return [f"{split}/{name}" for name in inside]
    return [name for name in store.list(root, ".tar") if split_of(name) == split]


def split_of(name: str) -> str:
    """The split in the name of a shard: ``train`` for ``train-000012.tar`` and ``train.tar``,
    ``all`` for ``0.tar``.
    """
    return re.sub(r"[-_.]?\d*$", "", name.removesuffix(".tar")) or "all"


def splits_in(root: str, indexed: bool = False, store: Store = LOCAL) -> list[str]:
    """Names of the splits that a folder holds as shards; ``indexed``: only those that segtrain
    packed.
    """
    packed = [
        name.removesuffix(shard_index.ENDING) for name in store.list(root, shard_index.ENDING)
    ]
    if indexed:
        return packed
    plain = [split_of(name) for name in store.list(root, ".tar")]
    folders = [
        name[:-1]
        for name in store.list(root, "/")
        if store.list(os.path.join(root, name[:-1]), ".tar")
    ]
    return sorted({*packed, *plain, *folders})


def index_of(root: str, split: str, store: Store = LOCAL) -> ShardIndex:
    """The index of shards that other tools wrote. It is cached until the name, size, or etag of a
    shard changes.

    Raises DataError if there are no shards, if a pack of the split is not finished, if a tar is
    damaged, or if samples lack an image or a mask (one error for all of them).
    """
    names = shards_of(root, split, store)
    if not names:
        raise _no_shards(root, split, store)
    if store.list(f"{root}/.packing-{split}", "plan.json"):
        raise DataError(
            f"{root}: the pack of split {split!r} is not finished: start the same segtrain data "
            "pack again, it packs the rest. If these shards are complete and from another tool, "
            f"remove {root}/.packing-{split}",
            code="pack-unfinished",
            folder=root,
            split=split,
        )
    marks = [(name, *store.stat(f"{root}/{name}")) for name in names]
    digest = digest_of(repr((shard_index.VERSION, root, split, marks)), 24)
    path = str(cache_folder() / f"shards-{digest}{shard_index.ENDING}")
    with contextlib.suppress(DataError):  # missing or damaged
        return shard_index.load(path)
    description = Description(split, root, tuple(Shard(name, size) for name, size, _ in marks), ())
    with ThreadPoolExecutor(_READERS) as pool:
        spans, faults = zip(
            *pool.map(lambda pair: _spans(root, pair[0], pair[1], store), enumerate(names))
        )
    incomplete = list(itertools.chain.from_iterable(faults))
    if incomplete:
        raise DataError(
            f"{root}: {len(incomplete)} samples of split {split!r} are incomplete: "
            f"{some_of(incomplete)}: a sample is KEY.jpg followed by KEY.mask.png, and each KEY is "
            "unique in its shard. A KEY ends at its first dot: replace the dots in keys, or pack "
            "the files with `segtrain data pack`",
            code="samples-incomplete",
            split=split,
            found=incomplete,
        )
    shard_index.write(path, description, itertools.chain.from_iterable(spans))
    return shard_index.load(path)


def _spans(root: str, number: int, name: str, store: Store) -> tuple[list[ShardSpan], list[str]]:
    """The complete samples of one shard, and messages about the others."""
    path = f"{root}/{name}"
    view, size = store.scan(path), store.stat(path).size
    spans, faults = [], []
    seen: set[str] = set()
    for key, group in itertools.groupby(_named(view, size, path), lambda item: item[0]):
        members_of_key = list(group)
        files = {ending: member for _, ending, member in members_of_key}
        image, mask = _roles(files)
        if (image or mask) and (key in seen or len(files) < len(members_of_key)):
            faults.append(f"{path}: {key} (twice)")
        elif image and mask:
            shape = _size(view, files[image], image, f"{path}: {key}.{image}")
            parts = [(ending, files[ending].offset, files[ending].size) for ending in (image, mask)]
            spans.append(ShardSpan(key, number, parts[0], parts[1], shape))
        elif any(_is_picture(ending) for ending in files):
            faults.append(
                f"{path}: {key} (without {'a mask' if image else 'an image'}: "
                f"{some_of([*files], 3)})"
            )
        if image or mask:
            seen.add(key)
    return spans, faults


def _named(view: View, size: int, path: str) -> Iterator[tuple[str, str, Member]]:
    """Yield key, ending, and member of each file. As in WebDataset, the ending begins at the first
    dot of its name.
    """
    for member in members(view, size, path):
        folder, _, base = member.name.rpartition("/")
        stem, dot, ending = base.partition(".")
        if stem and dot:
            inside = f"{folder.removeprefix('.').lstrip('/')}/" if folder.strip("./") else ""
            yield f"{inside}{stem}", ending.lower(), member


def _is_picture(ending: str) -> bool:
    return ending.rpartition(".")[2] in _PICTURES


def _roles(files: dict[str, Member]) -> tuple[str, str]:
    """The endings of the image and of the mask ("" for none)."""
    pictures = [ending for ending in files if _is_picture(ending)]
    masks = [ending for ending in pictures if ending.rpartition(".")[0] in _MASKS]
    images = [ending for ending in pictures if ending.rpartition(".")[0] in _IMAGES]
    # KEY.jpg beside KEY.png
    if not masks and len(images) == 2 and images[0] != "png" and "png" in images:
        masks = ["png"]
        images.remove("png")
    return (images[0] if len(images) == 1 else ""), (masks[0] if len(masks) == 1 else "")


def _size(view: View, member: Member, ending: str, name: str) -> tuple[int, int]:
    """Height and width from the image's header; 0, 0 if its first bytes lack them: reading asks
    again.
    """
    with ignoring_file_faults():
        if ending.endswith("npy"):
            shape = array(view(member.offset, member.size), name).shape
            return (shape[0], shape[1]) if len(shape) == 3 else (0, 0)
        header = decode.read_header(view(member.offset, min(_HEAD, member.size)), name)
        return header.height, header.width
    return 0, 0


def _no_shards(root: str, split: str, store: Store) -> DataError:
    """The error for a split without shards. It names the splits that the folder holds."""
    there = splits_in(root, store=store)
    packed = [
        name for ending in (".tar.gz", ".tgz", ".tar.zst") for name in store.list(root, ending)
    ]
    if packed and not there:
        reason = (
            f"{packed[0]} is compressed, so its samples cannot be read one by one: use plain tars"
        )
        return DataError(f"{root}: {reason}", code="shards-compressed", found=packed[0])
    expected = f"{split}{shard_index.ENDING}, {split}-000000.tar, {split}/*.tar"
    message = (
        f"{root}: no shards of split {split!r} ({expected}): the folder holds "
        f"{', '.join(there) or 'no shard'}"
    )
    if there == [POOL]:
        message += f"; to divide them: {command({'data.split_by': {'of': POOL, 'val': '20%'}})}"
    return DataError(message, code="no-shards", split=split, found=there)
