"""Makes the label space of a run: from its layout, or from the names, colors, and ids in its
config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from segtrain import config
from segtrain.bucket import is_bucket
from segtrain.data.bucket.tree import first_in_bucket
from segtrain.data.labels.class_file import (
    ClassRow,
    colored_space,
    read_classes,
    space_of,
)
from segtrain.data.labels.space import LabelSpace, fitting_void, plain_space
from segtrain.errors import ConfigError, file_error


def label_space(
    data: config.Data,
    default: LabelSpace | None = None,
    other_classes: Callable[[LabelSpace], LabelSpace] | None = None,
) -> LabelSpace:
    """The label space of the layout, changed by data.classes, data.label_map, and
    data.ignore_index.

    ``default``: the label space of the layout. ``other_classes``: adapts the label space of
    data.classes if it has another number of classes than ``default``. Without such a function,
    another number is an error, unless data.label_map is set. data.label_map replaces the whole
    table from raw to train ids (a raw ``ignore_index`` stays ignored). Raises ConfigError or
    DataError.
    """
    ignore = data.ignore_index
    if not data.classes and default is None and not data.label_map:
        raise ConfigError(
            f"data.classes is empty, and layout {data.layout!r} has no class names of its "
            "own: list them in "
            f"data.classes=[...], or in a file classes.txt in {data.root or 'the data folder'}",
            code="classes-missing",
            layout=data.layout,
        )
    if data.classes:
        space = _own_names(data, default, other_classes)
    elif default is None:
        space = plain_space(
            tuple(f"class {i}" for i in range(max(data.label_map.values()) + 1)), ignore
        )
    else:
        space = _with_ignore(default, fitting_void(default.num_classes, ignore))
    ignore = fitting_void(space.num_classes, ignore)
    if data.label_map:
        table = {raw: ignore if train == -1 else train for raw, train in data.label_map.items()}
        space = replace(space, ignore_index=ignore, raw_to_train={ignore: ignore, **table})
    return with_sides(space, data)


def with_sides(space: LabelSpace, data: config.Data) -> LabelSpace:
    """The label space with the exchange of ``data.flip_pairs``. Raises ConfigError for an unknown
    or repeated class.
    """
    train_ids = {key: index for index, name in enumerate(space.names) for key in (index, name)}
    mirror = list(range(space.num_classes))
    for pair in data.flip_pairs:
        left, right = (train_ids.get(key, -1) for key in pair)
        if left == right or min(left, right) < 0 or (mirror[left], mirror[right]) != (left, right):
            message = (
                f"data.flip_pairs: {list(pair)}: name two classes by name or train id, "
                "each in one pair; the classes "
            )
            raise ConfigError(
                f"{message}are {', '.join(space.names)}", code="flip-pair-invalid", found=pair
            )
        mirror[left], mirror[right] = right, left
    return replace(space, mirror=tuple(mirror)) if data.flip_pairs else space


def _with_ignore(space: LabelSpace, ignore: int) -> LabelSpace:
    """The same space with another ignore_index."""
    moved = {space.ignore_index: ignore}
    raw_to_train, colors = (
        {key: moved.get(train, train) for key, train in table.items()}
        for table in (space.raw_to_train, space.colors)
    )
    return replace(space, ignore_index=ignore, raw_to_train=raw_to_train, colors=colors)


def _own_names(
    data: config.Data,
    default: LabelSpace | None,
    other_classes: Callable[[LabelSpace], LabelSpace] | None,
) -> LabelSpace:
    if isinstance(data.classes, dict):
        # A name has a color, several ([[...], [...]]), or none ([]).
        rows = [
            ClassRow(name, color=color)
            for name, value in data.classes.items()
            for color in ([value] if value and isinstance(value[0], int) else value or [None])
        ]
        space = colored_space(rows, data.ignore_index)
    elif isinstance(data.classes, str):
        space = read_classes(find_file(data.classes, data.root), data.ignore_index)
    else:
        space = space_of([ClassRow(name) for name in data.classes], data.ignore_index)
    other = default is not None and space.num_classes != default.num_classes
    if default is None or data.label_map or (other and space.colors and not other_classes):
        return space
    if other_classes and other:
        return other_classes(space)
    if other:
        fix = "set data.label_map to say which raw id is which class (-1: ignored)"
        raise ConfigError(
            f"data.classes has {space.num_classes} names, but layout {data.layout!r} has "
            f"{default.num_classes}: {fix}",
            code="classes-count-differs",
            found=space.num_classes,
            expected=default.num_classes,
        )
    # Shards know the ids of their masks, whatever those of the original masks were.
    default_ids = default.raw_to_train.items()
    own_ids = {
        (raw, train) for raw, train in space.raw_to_train.items() if train != space.ignore_index
    }
    if not space.counted and not own_ids <= default_ids and data.layout != "shards":
        return space
    # Keep the ids of the layout, and rename the classes.
    own = replace(_with_ignore(default, space.ignore_index), names=space.names)
    return replace(own, palette=space.palette, colors=space.colors) if space.colors else own


def find_file(name: str, root: str) -> Path:
    """A file named in the config, in the current folder or under the data folder. Raises
    DataError.
    """
    for path in (Path(name), Path(root) / name):
        if path.is_file():
            return path
    if is_bucket(root) and (copy := first_in_bucket(root, (name,))):
        return copy
    raise file_error(
        name,
        f"no such file, neither in the current folder nor in "
        f"{root or 'data.root'}: check data.classes",
        code="classes-file-missing",
    )
