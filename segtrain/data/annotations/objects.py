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
from typing import Any, NamedTuple

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
from segtrain.data.index.pairs import MASK_ENDINGS
from segtrain.data.index.split_by import proposal
from segtrain.data.index.unpaired import NUMBER, OwnedMask, owned_masks, several_masks
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


class _Owners(NamedTuple):
    """The masks of each image, and the masks of no image."""

    masks: dict[str, list[OwnedMask]]
    without: list[str]


def _owners(images: list[str], masks: list[str], together: bool) -> _Owners:
    """images, masks: paths below their folders. together: both are files of one folder."""
    folder_of = {path: folder for path in masks if together and (folder := _image_folder(path))}
    if folder_of:
        images_in = defaultdict(list)
        for image in images:
            above = os.path.dirname(image)
            for folder in {above, os.path.dirname(above)} if image not in folder_of else ():
                images_in[folder].append(image)
        owned, without = defaultdict[str, list[OwnedMask]](list), list[str]()
        for path, folder in folder_of.items():
            if len(images_in[folder]) == 1:
                owned[images_in[folder][0]].append(OwnedMask(path, _stem(path), False))
            else:
                without.append(path)
        return _Owners(owned, without)
    named = owned_masks(images, masks, _image_pattern(images, masks), together)
    used = {mask.path for these in named.values() for mask in these}
    if together:
        return _Owners({image: named[image] for image in named if image not in used}, [])
    return _Owners(named, [path for path in masks if path not in used])


def _image_folder(mask: str) -> str:
    """The folder of an image, of a mask in its folder of masks; "" for other masks."""
    above, _, name = os.path.dirname(mask).rpartition("/")
    return above if name.lower() in MASK_WORDS else ""


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _image_pattern(images: list[str], masks: list[str]) -> Names:
    proposal = propose(images, masks)
    return proposal.patterns[0] if proposal else NAME


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
    owners = _owners(images, masks, together)
    names = {mask.path: _class_of(mask) for these in owners.masks.values() for mask in these}
    counts = Counter(names.values())
    if len(owners.masks) > 1 and len(counts) > len(owners.masks) and max(counts.values()) == 1:
        names = dict.fromkeys(names, _OBJECT)  # each name is random
    annotated = [
        Annotated(
            image,
            os.path.join(where.annotations, these[0].path),
            [_shape(where, mask.path, names[mask.path]) for mask in these],
            upright=False,
        )
        for image, these in owners.masks.items()
    ]
    classes = dict.fromkeys(names.values(), 0) or {_OBJECT: 0}
    # No file has such a name, so these count as missing images.
    annotated += [
        Annotated(f"{path}/(its image)", path, [_shape(where, path, next(iter(classes)))])
        for path in owners.without
    ]
    objects = f"{len(names):,} masks, one for each object: their names name no class"
    return Annotations(annotated, classes, notes=(objects,) * (classes == {_OBJECT: 0}))


def _shape(where: Where, mask: str, name: str) -> Shape:
    return Shape(name, {"pixels": {"file": os.path.join(where.annotations, mask)}})


def _detect(root: str, store: Store) -> Detected | None:
    found, ways = list[Detected](), list[Settings]()
    for images, masks, splits in _places(root, store):
        one, other = (
            names_of_pair(root, (folder, folder), splits[0], store)[0] for folder in (images, masks)
        )
        owners = _owners(one, other, images == masks)
        some = [mask.path for these in owners.masks.values() for mask in these][:_DECODED]
        folder = os.path.join(root, masks.replace("{split}", splits[0]).removeprefix("."))
        if max(map(len, owners.masks.values()), default=0) > 1 and all(
            _image_folder(path) or _is_binary(os.path.join(folder, path)) for path in some
        ):
            settings = {"images": images, "annotations": masks}
            rule = proposal([os.path.splitext(image)[0] for image in owners.masks])
            more = (
                {}
                if "{split}" in masks or not rule
                else {"data.split_by": rule.model_dump(exclude_defaults=True)}
            )
            _refuse_whole(root, folder if store.local else "", owners, settings, more)
            _refuse_alike(root, folder, owners, settings, more)
            found.append((settings, splits))
            named = {f"data.{key}": value for key, value in settings.items()}
            ways.append({"data.layout": "objects", **named, **more})
    if len(ways) > 1:
        what = f"{len(ways)} pairs of folders hold images and masks of objects"
        raise several(root, what, ways, code="folders-ambiguous", found=ways)
    return found[0] if found else None


def _refuse_whole(
    root: str, folder: str, owners: _Owners, settings: dict[str, str], more: dict[str, Any]
) -> None:
    """Raise DataError if each image has a mask of its own name: the others may be of no use.
    folder: that of the masks, if they can be compared. more: settings that masks of objects need.
    """
    if all(any(not mask.part for mask in these) for these in owners.masks.values()):
        others = [these[-1].path for these in owners.masks.values() if len(these) > 1]
        images, masks = settings.values()
        pairs = {"data.images": images, "data.masks": masks, "data.faults": "skip"}
        objects = {"data.layout": "objects", "data.images": images, "data.annotations": masks}
        objects |= more

        def content(extra: bool) -> set[int]:
            masks = itertools.chain(*owners.masks.values())
            paths = (Path(folder, mask.path) for mask in masks if (mask.part > "") == extra)
            return {hash(path.read_bytes()) for path in paths}

        why = (
            f"the other masks, such as {others[0]}, are copies of masks of other images (to read "
            f"them as objects: {command(objects)})"
        )
        raise several(
            root,
            f"each image has a mask of its name, and {len(others)} also have more, such as "
            f"{others[0]}: one mask for each image, or one for each object",
            [pairs, objects],
            code="masks-ambiguous",
            found=others[:1],
            why=why * (folder > "" and content(True) <= content(False)),
        )


def _refuse_alike(
    root: str, folder: str, owners: _Owners, settings: dict[str, str], more: dict[str, Any]
) -> None:
    """Raise DataError if two masks of each image, of different names, have most of their pixels in
    common, or any if their names count people: they may be of two annotators. more: settings that
    both ways need.
    """
    some = [(image, these) for image, these in owners.masks.items() if len(these) > 1][:_COMPARED]
    # Pair of names -> number of images, of common pixels, and of pixels of either mask.
    alike: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(3, int))
    sample = dict[tuple[str, str], tuple[str, OwnedMask, OwnedMask]]()
    for image, masks in some:
        classes = [_class_of(mask) for mask in masks]
        named = {
            mask.part if name == _OBJECT or _PEOPLE.search(mask.part) else name: mask
            for mask, name in zip(masks, classes)
            if _stem(image) in os.path.basename(mask.path)
        }
        pixels = {
            name: decode.decode_mask(local_copy(os.path.join(folder, mask.path))) > 0
            for name, mask in itertools.islice(sorted(named.items()), _COMPARED)
        }
        for one, other in itertools.combinations(pixels, 2):
            if pixels[one].shape == pixels[other].shape:
                both, either = pixels[one] & pixels[other], pixels[one] | pixels[other]
                sample[one, other] = image, named[one], named[other]
                alike[one, other] += 1, np.count_nonzero(both), np.count_nonzero(either)
    for (one, other), (count, common, marked) in alike.items():
        numbered = _PEOPLE.sub("", one) == _PEOPLE.sub("", other)
        agree = bool(2 * common > marked)
        if 2 * count > len(some) and (agree or (numbered and common)):
            others = [
                pair
                for pair, (count, common, marked) in alike.items()
                if pair == (one, other)
                or (pair[0] == one and 2 * count > len(some) and 2 * common > marked)
            ]
            image, first, _ = sample[one, other]
            owned = [(image, first), *((i, mask) for i, _, mask in map(sample.__getitem__, others))]
            images, places = {"data.images": settings["images"]}, settings["annotations"]
            each = [
                {
                    "data.masks": os.path.join(places, os.path.dirname(mask.path))
                    if mask.folder
                    else places,
                    "data.pair": [
                        NAME + os.path.splitext(image)[1],
                        os.path.basename(mask.path).replace(_stem(image), NAME),
                    ],
                }
                for image, mask in owned
            ]
            of_each = [{"data.layout": "folders", **images, **names, **more} for names in each]
            of_all = {"data.layout": "objects", **images, "data.annotations": places, **more}
            merged = to_merge(root, each[1:], of_each[0])
            most = f"the masks {one!r} and {other!r} have {'most' if agree else 'some'} pixels"
            sure = numbered and agree
            raise several(
                root,
                f"{most} in common: are they of two annotators, or two classes",
                of_each[:1] if sure else [*of_each, of_all],
                merged,
                code="masks-alike",
                found=[one, other],
                why=f"{most} in common, and their names count: read are those of the first "
                f"annotator{merged}" * sure,
            )


def _places(root: str, store: Store) -> Iterator[tuple[str, str, list[str]]]:
    """Folders of images and of masks, with the names of the splits, where images may have several
    masks.
    """
    folders = folders_below(root, store)
    single = defaultdict(list)
    for folder in folders:
        above, _, name = folder.rpartition("/")
        if name.lower() in MASK_WORDS and above.rpartition("/")[2].lower() not in ("", *SPLITS):
            single[os.path.dirname(above)].append(above)
    several = [base for base, images in single.items() if len(images) > 1]
    if several:
        template, splits = find.by_split(several)
        yield template or ".", template or ".", splits
    pairs = ranked_pairs(root, folders, store)
    for (images, masks), splits in pairs:
        if [*map(os.path.basename, (images, masks))] != [*map(os.path.basename, pairs[0][0])]:
            continue
        one, other = names_of_pair(root, (images, masks), splits[0], store)
        if several_masks(one, other, _image_pattern(one, other)):
            yield images, masks, splits
    if pairs:
        return
    in_split = [name for name in folders if name.lower() in SPLITS]
    for folder, splits in (("{split}", in_split), (".", ["all"])):
        if splits:
            place = os.path.join(root, folder.replace("{split}", splits[0]))
            names = sorted(images_below(place, store))
            if several_masks(names, names, NAME, together=True):
                yield folder, folder, splits
                return


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
