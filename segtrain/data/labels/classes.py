"""Which label space does a run have: the layout's own, or the names, colors and ids that its config gives?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segtrain import config
from segtrain.data.labels.space import Color, LabelSpace, code, color_wheel, plain_space
from segtrain.errors import ConfigError, DataError


def label_space(
    data: config.Data,
    default: LabelSpace | None = None,
    other_classes: Callable[[LabelSpace], LabelSpace] | None = None,
) -> LabelSpace:
    """The label space of a run: the layout's own, or what data.classes, data.label_map and data.ignore_index say.

    A ``label_map`` replaces the whole table from raw to train ids (a raw ``ignore_index`` stays ignored).
    Without one, names of another number than the layout's are taken for raw ids 0, 1, 2, ...
    Raises ConfigError or DataError.
    """
    ignore = data.ignore_index
    if not data.classes and default is None and not data.label_map:
        raise ConfigError(
            f"data.classes is empty, and layout {data.layout!r} has no names of its own: "
            f"list them in data.classes=[...], or in a file classes.txt in {data.root or 'the data folder'}"
        )
    if data.classes:
        space = _own_names(data, default, other_classes)
    elif default is None:
        space = plain_space(tuple(f"class {i}" for i in range(max(data.label_map.values()) + 1)), ignore)
    else:
        space = _with_ignore(default, ignore)
    if data.label_map:
        table = {raw: ignore if train == -1 else train for raw, train in data.label_map.items()}
        space = LabelSpace(space.names, space.palette, ignore, {ignore: ignore, **table}, space.colors)
    return space


def _with_ignore(space: LabelSpace, ignore: int) -> LabelSpace:
    """The same space with another ignore_index."""

    def moved(table: dict[int, int]) -> dict[int, int]:
        return {raw: ignore if train == space.ignore_index else train for raw, train in table.items()}

    return LabelSpace(space.names, space.palette, ignore, moved(space.raw_to_train), moved(space.colors))


def _own_names(
    data: config.Data, default: LabelSpace | None, other_classes: Callable[[LabelSpace], LabelSpace] | None
) -> LabelSpace:
    if isinstance(data.classes, dict):
        space = _mapped(data.classes, data.ignore_index)
    elif isinstance(data.classes, str):
        space = read_classes(find_file(data.classes, data.root), data.ignore_index)
    else:
        space = plain_space(tuple(data.classes), data.ignore_index)
    if default is None or data.label_map:
        return space
    if other_classes and space.num_classes != default.num_classes:
        return other_classes(space)
    if space.num_classes == default.num_classes:  # the layout's ids under other names
        own = space if space.colors else default
        table = _with_ignore(default, data.ignore_index)
        return LabelSpace(space.names, own.palette, data.ignore_index, table.raw_to_train, space.colors or table.colors)
    raise ConfigError(
        f"data.classes has {space.num_classes} names, but layout {data.layout!r} has {default.num_classes} classes: "
        "say with data.label_map which raw id is which class (-1: ignored)"
    )


def voc_colored(space: LabelSpace) -> LabelSpace:
    """Own classes with raw ids 0, 1, 2, ..., which tools that write VOC's folders paint in VOC's colors; its border color is void."""
    if space.colors:
        return space
    palette = ((0, 0, 0), *color_wheel(space.num_classes - 1))
    colors = {**{code(color): place for place, color in enumerate(palette)}, code((224, 224, 192)): space.ignore_index}
    return LabelSpace(space.names, palette, space.ignore_index, space.raw_to_train, colors)


def _mapped(classes: dict[str, Any], ignore_index: int) -> LabelSpace:
    """Names with a color, several ([[...], [...]]), or none ([]), which counts as an id of its own all the same."""
    rows: list[tuple[str, ...]] = []
    for name, given in classes.items():
        colors = [given] if given and isinstance(given[0], int) else given
        rows += [(*map(str, color), name) for color in colors]
    names = tuple(name for name in classes if name.lower() not in _IGNORED)
    palette, colors = dict(zip(names, color_wheel(len(names)))), {}
    if any(row[-1] in names for row in rows):
        known = _colored(Path("data.classes"), rows, ignore_index)
        palette.update(zip(known.names, known.palette))
        train = {place: names.index(name) for place, name in enumerate(known.names)}
        colors = {color: train.get(place, ignore_index) for color, place in known.colors.items()}
    plain = plain_space(names, ignore_index, tuple(palette[name] for name in names))
    return LabelSpace(plain.names, plain.palette, ignore_index, plain.raw_to_train, colors)


def find_file(name: str, root: str) -> Path:
    """A file named in the config: as it stands, else under the data folder. Raises DataError."""
    for path in (Path(name), Path(root) / name):
        if path.is_file():
            return path
    raise DataError(f"{name}: no such file, neither here nor in {root or 'the current folder'}: check data.classes")


_IGNORED = ("void", "ignore")  # names of what is no class
_CVAT_LINE = re.compile(r"([^:]+):(\d{1,3}),(\d{1,3}),(\d{1,3}):[^:]*:[^:]*")
_COLOR_LINE = re.compile(r"(\d{1,3})[ ,\t]+(\d{1,3})[ ,\t]+(\d{1,3})[ ,\t]+(\S.*)")


def read_classes(path: Path, ignore_index: int = 255) -> LabelSpace:
    """Class names from a file, one a line (line number = raw id), '#' starts a comment.

    Lines 'red green blue name', or 'name:red,green,blue::' as CVAT writes, name colors of RGB masks as well; the names 'void' and 'ignore' there are no classes but
    colors to ignore, and two lines of one name are two colors of one class. A .yaml file holds a list of names, or
    a mapping of name to [red, green, blue]. Raises DataError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the class names cannot be read ({error}): write one name a line, in UTF-8") from None
    if path.suffix in (".yaml", ".yml"):
        lines = _yaml_lines(path, text)
    else:
        lines = [line.split("#")[0].strip() for line in text.splitlines()]
        lines = [_CVAT_LINE.sub(r"\2 \3 \4 \1", line) for line in lines if line]
    if not lines:
        raise DataError(f"{path}: holds no class name: write one a line")
    found = [_COLOR_LINE.fullmatch(line) for line in lines]
    if not all(found):
        odd = next((line for line, match in zip(lines, found) if match is None), "")
        if any(found):
            raise DataError(
                f"{path}: the line {odd!r} has no color, but others have: write 'red green blue name' on each"
            )
        return plain_space(tuple(lines), ignore_index)
    return _colored(path, [match.groups() for match in found if match], ignore_index)


def _yaml_lines(path: Path, text: str) -> list[str]:
    import yaml

    try:
        content = config.load_yaml(text)
    except yaml.YAMLError as error:
        raise DataError(f"{path}: no YAML ({' '.join(str(error).split())})") from None
    if isinstance(content, list) and all(isinstance(name, str) for name in content):
        return content
    if isinstance(content, dict) and all(isinstance(c, list) and len(c) == 3 for c in content.values()):
        return [" ".join([*map(str, color), str(name)]) for name, color in content.items()]
    raise DataError(f"{path}: write a list of names, or a mapping of name to [red, green, blue]")


def _colored(path: Path, rows: list[tuple[str, ...]], ignore_index: int) -> LabelSpace:
    names: list[str] = []
    palette: list[Color] = []
    colors: dict[int, int] = {}
    for *channels, name in rows:
        red, green, blue = (int(channel) for channel in channels)
        if max(red, green, blue) > 255:
            raise DataError(f"{path}: color {red} {green} {blue} of {name!r}: channels go from 0 to 255")
        if code((red, green, blue)) in colors:
            raise DataError(
                f"{path}: two lines have the color {red} {green} {blue}, one is {name!r}: give one color one meaning"
            )
        if name.lower() in _IGNORED:
            colors[code((red, green, blue))] = ignore_index
            continue
        if name not in names:
            names.append(name)
            palette.append((red, green, blue))
        colors[code((red, green, blue))] = names.index(name)
    plain = plain_space(tuple(names), ignore_index, tuple(palette))
    return LabelSpace(plain.names, plain.palette, ignore_index, plain.raw_to_train, colors)
