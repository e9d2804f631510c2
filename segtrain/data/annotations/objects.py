"""A mask file for each object or class of an image: in a folder per image, in a folder per class,
or with a part of its own in the name.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from segtrain.config.label_values import Names
from segtrain.config.paste import Settings, command
from segtrain.data.annotations import find
from segtrain.data.annotations.layout import Format, Where
from segtrain.data.annotations.shapes import Annotated, Annotations, Shape
from segtrain.data.bucket.tree import local_copy
from segtrain.data.index.detect_pairs import (
    MASK_WORDS,
    SPLITS,
    folders_below,
    names_of_pair,
    ranked_pairs,
    to_merge,
)
from segtrain.data.index.layout import Detected
from segtrain.data.index.names import NAME, propose
from segtrain.data.index.pairs import MASK_ENDINGS, NUMBER, OwnedMask, owned_masks, several_masks
from segtrain.data.index.split_by import proposal
from segtrain.data.index.walk import images_below, several
from segtrain.data.pixels import decode
from segtrain.data.storage import Store
from segtrain.errors import DataError

# The class of masks whose names name none.
_OBJECT = "object"
_RANDOM = re.compile(r"[\d\W_]*|[0-9a-fA-F-]{8,}")
# Names of annotators, by what differs.
_PEOPLE = re.compile(
    r"1st|2nd|first|second|(annotator|expert|observer|rater|reader)[_\-. ]?([a-z]|\d+)$",
    re.IGNORECASE,
)
_ENDING = re.compile(rf"({'|'.join(MASK_ENDINGS)})$|^masks?$")
# So many masks are decoded to detect the layout.
_DECODED = 3
# JPEG changes 0 and 255 by less than this, at least in this share of a mask.
_BLUR, _MOST = 32, 0.9
# The masks of so many images are compared, and so many of each.
_COMPARED = 8
# Image -> its masks.
_Owned = dict[str, list[OwnedMask]]


def _owners(images: list[str], masks: list[str], together: bool) -> tuple[_Owned, list[str]]:
    """The masks of each image, and the masks of no image.

    images, masks: paths below their folders. together: both are files of one folder.
    """
    owned: _Owned = defaultdict(list)
    folder_of = {path: folder for path in masks if together and (folder := _image_folder(path))}
    if folder_of:
        masks, images_in = [*folder_of], defaultdict[str, list[str]](list)
        for image in images:
            above = os.path.dirname(image)
            for folder in {above, os.path.dirname(above)} if image not in folder_of else ():
                images_in[folder].append(image)
        for path, folder in folder_of.items():
            if len(images_in[folder]) == 1:
                owned[images_in[folder][0]].append(OwnedMask(path, _stem(path), False))
    else:
        owned = owned_masks(images, masks, _image_pattern(images, masks), together)
    used = {mask.path for these in owned.values() for mask in these}
    if together and not folder_of:
        return {image: owned[image] for image in owned if image not in used}, []
    return owned, [path for path in masks if path not in used]


def _image_folder(mask: str) -> str:
    """The folder of an image, of a mask in its folder of masks; "" for other masks."""
    above, _, name = os.path.dirname(mask).rpartition("/")
    return above if name.lower() in MASK_WORDS else ""


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _image_pattern(images: list[str], masks: list[str]) -> Names:
    proposal = propose(images, masks)
    return proposal.patterns[0] if proposal else NAME


def _name_of(mask: OwnedMask) -> str:
    """What tells the masks of an image apart: the class, or else the part of the name."""
    name = _class_of(mask)
    return mask.part if name == _OBJECT or _PEOPLE.search(mask.part) else name


def _class_of(mask: OwnedMask) -> str:
    """The class that the name of a mask names."""
    if mask.folder:
        return mask.part
    part = _ENDING.sub("", NUMBER.sub("", mask.part)).strip("_-. ")
    return _OBJECT if _RANDOM.fullmatch(part) or _RANDOM.fullmatch(mask.part) else part


def _read(where: Where) -> Annotations:
    together = where.images == where.annotations
    images, masks = (
        sorted(images_below(folder, where.store)) for folder in (where.images, where.annotations)
    )
    owned, without = _owners(images, masks, together)
    names = {mask.path: _class_of(mask) for these in owned.values() for mask in these}
    counts = Counter(names.values())
    if len(owned) > 1 and len(counts) > len(owned) and max(counts.values()) == 1:
        names = dict.fromkeys(names, _OBJECT)  # each name is random
    annotated = [
        Annotated(
            image,
            os.path.join(where.annotations, these[0].path),
            [_shape(where, mask.path, names[mask.path]) for mask in these],
            upright=False,
        )
        for image, these in owned.items()
    ]
    classes = dict.fromkeys(names.values(), 0) or {_OBJECT: 0}
    # No file has such a name, so these count as missing images.
    annotated += [
        Annotated(f"{path}/(its image)", path, [_shape(where, path, next(iter(classes)))])
        for path in without
    ]
    objects = f"{len(names):,} masks, one for each object: their names name no class"
    return Annotations(annotated, classes, notes=(objects,) * (classes == {_OBJECT: 0}))


def _shape(where: Where, mask: str, name: str) -> Shape:
    return Shape(name, {"pixels": {"file": os.path.join(where.annotations, mask)}})


def _detect(root: str, store: Store) -> Detected | None:
    found = list[tuple[Settings, Detected]]()
    for images, masks, splits in _places(root, store):
        one, other = (
            names_of_pair(root, (folder, folder), splits[0], store)[0] for folder in (images, masks)
        )
        owned, _ = _owners(one, other, images == masks)
        some = [mask.path for these in owned.values() for mask in these][:_DECODED]
        folder = os.path.join(root, masks.replace("{split}", splits[0]).removeprefix("."))
        if max(map(len, owned.values()), default=0) > 1 and all(
            _image_folder(path) or _is_binary(os.path.join(folder, path)) for path in some
        ):
            way: dict[str, Any] = {
                "data.layout": "objects",
                "data.images": images,
                "data.annotations": masks,
            }
            rule = proposal([os.path.splitext(image)[0] for image in owned])
            if rule and "{split}" not in masks:
                way["data.split_by"] = rule.model_dump(exclude_defaults=True)
            _refuse_whole(root, folder if store.local else "", owned, way)
            _refuse_alike(root, folder, owned, way)
            found.append((way, ({"images": images, "annotations": masks}, splits)))
    if len(found) > 1:
        what = f"{len(found)} pairs of folders hold images and masks of objects"
        ways = [way for way, _ in found]
        raise several(root, what, ways, code="folders-ambiguous", found=ways)
    return found[0][1] if found else None


def _refuse_whole(root: str, folder: str, owned: _Owned, way: Settings) -> None:
    """Raise DataError if each image has a mask of its own name: the others may be of no use.
    folder: that of the masks, if they can be compared. way: the settings of masks of objects.
    """
    if all(any(not mask.part for mask in these) for these in owned.values()):
        others = [these[-1].path for these in owned.values() if len(these) > 1]
        pairs = {"data.images": way["data.images"], "data.masks": way["data.annotations"]}

        def content(extra: bool) -> set[int]:
            masks = itertools.chain(*owned.values())
            paths = (Path(folder, mask.path) for mask in masks if (mask.part > "") == extra)
            return {hash(path.read_bytes()) for path in paths}

        why = (
            f"the other masks, such as {others[0]}, are copies of masks of other images (to read "
            f"them as objects: {command(way)})"
        )
        raise several(
            root,
            f"each image has a mask of its name, and {len(others)} also have more, such as "
            f"{others[0]}: one mask for each image, or one for each object",
            [pairs | {"data.faults": "skip"}, way],
            code="masks-ambiguous",
            found=others[:1],
            why=why * (folder > "" and content(True) <= content(False)),
        )


def _refuse_alike(root: str, folder: str, owned: _Owned, way: Settings) -> None:
    """Raise DataError if two masks of each image, of different names, have most of their pixels in
    common, or any if their names count people: they may be of two annotators. way: the settings of
    masks of objects.
    """
    # For some images: name -> image and mask.
    named = [
        {_name_of(mask): (image, mask) for mask in these if _stem(image) in _stem(mask.path)}
        for image, these in owned.items()
        if len(these) > 1
    ][:_COMPARED]
    counts = Counter(itertools.chain(*named))
    names = sorted(name for name, count in counts.items() if 2 * count > len(named))[:_COMPARED]
    complete = [masks for masks in named if masks.keys() >= {*names}]
    common = np.zeros((len(names), len(names)), int)
    for masks in complete:
        paths = (os.path.join(folder, masks[name][1].path) for name in names)
        drawn = [decode.decode_mask(local_copy(path)) > 0 for path in paths]
        if len({pixels.shape for pixels in drawn}) == 1:
            common += [[np.count_nonzero(one & other) for one in drawn] for other in drawn]
    area = common.diagonal()
    alike = 2 * common > area + area[:, None] - common
    for one, other in itertools.combinations(range(len(names)), 2):
        numbered = _PEOPLE.sub("", names[one]) == _PEOPLE.sub("", names[other])
        if alike[one, other] or (numbered and common[one, other]):
            people = [n for n in range(len(names)) if n in (one, other) or alike[one, n]]
            ways = [_masks_alone(way, *complete[0][names[n]]) for n in people]
            merged = to_merge(root, ways[1:], ways[0])
            most = "most" if alike[one, other] else "some"
            what = f"the masks {names[one]!r} and {names[other]!r} have {most} pixels in common"
            sure = numbered and bool(alike[one, other])
            raise several(
                root,
                f"{what}: are they of two annotators, or two classes",
                ways[:1] if sure else [*ways, way],
                merged,
                code="masks-alike",
                found=[names[one], names[other]],
                why=f"{what}, and their names count: read are those of the first "
                f"annotator{merged}" * sure,
            )


def _masks_alone(way: Settings, image: str, mask: OwnedMask) -> Settings:
    """The settings that read only masks with names such as that of ``mask``."""
    above, file = os.path.split(mask.path)
    pair = [NAME + os.path.splitext(image)[1], file.replace(_stem(image), NAME)]
    settings = {**way, "data.layout": "folders", "data.pair": pair}
    masks = os.path.join(settings.pop("data.annotations"), above if mask.folder else "")
    return {**settings, "data.masks": masks.removesuffix("/")}


def _places(root: str, store: Store) -> Iterator[tuple[str, str, list[str]]]:
    """Folders of images and of masks, with the names of the splits, where images may have several
    masks.
    """
    folders = folders_below(root, store)
    above = [
        os.path.dirname(name) for name in folders if os.path.basename(name).lower() in MASK_WORDS
    ]
    of_images = [name for name in above if os.path.basename(name).lower() not in ("", *SPLITS)]
    counts = Counter(map(os.path.dirname, of_images))
    bases = [base for base, count in counts.items() if count > 1]
    pairs = ranked_pairs(root, folders, store)
    if bases or not pairs:
        in_split = [name for name in folders if name.lower() in SPLITS]
        template, splits = find.by_split(bases or in_split or [""])
        names = sorted(
            images_below(os.path.join(root, template.replace("{split}", splits[0])), store)
        )
        if bases or several_masks(names, names, NAME, together=True):
            yield template or ".", template or ".", splits
    for (images, masks), splits in pairs:
        if [*map(os.path.basename, (images, masks))] == [*map(os.path.basename, pairs[0][0])]:
            one, other = names_of_pair(root, (images, masks), splits[0], store)
            if several_masks(one, other, _image_pattern(one, other)):
                yield images, masks, splits


def _is_binary(path: str) -> bool:
    """Whether a mask has at most two values, of which one is 0."""
    try:
        mask = decode.decode_mask(local_copy(path))
    except DataError as error:
        if error.code != "mask-lossy":
            return False
        picture = decode.decode_image(local_copy(path))
        return bool(np.mean((picture < _BLUR) | (picture > 255 - _BLUR)) > _MOST)
    return len(np.setdiff1d(np.unique(mask), [0])) <= 1


OBJECTS = Format(
    "objects",
    "a mask of two values for each object or class: ID/images/ID.png with ID/masks/*.png, "
    "masks/CLASS/a.png, or a_CLASS.png",
    _detect,
    _read,
    "smallest",
).layout
