"""Reads class names, with their ids and colors, from a file of any usual form, and makes their
label space.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from segtrain import config
from segtrain.data.labels.space import (
    BACKGROUND,
    Color,
    LabelSpace,
    code,
    color_wheel,
    fitting_void,
    plain_space,
)
from segtrain.errors import DataError, file_error, one_line

# These names are not classes: pixels with their ids or colors are ignored.
IGNORED = ("void", "ignore", "ignored", "__ignore__", "unlabeled", "unlabelled")
# The first label of labelme, whose ids count from -1. It stores this one as 255.
_LABELME = "__ignore__"
# CVAT's file of colors has no line for the background, which is black.
_COLORS = "label_colors.txt"
_BLACK = (0, 0, 0)
# Numbers, a name, numbers, and CVAT's parts. A number after the name needs a mark between them:
# "lane 2" is a name.
_LINE = re.compile(
    r"((?:-?\d+(?:[.)]\s|[\s,;:=|])[\s,;:=|]*)*)"
    r"(.*?)((?:\s*[,;:=|\t]\s*\d+){3,}|(?:\s+\d+){3,}|\s*[,;:=|\t]\s*-?\d+)?(?::[^:]*:[^:]*)?[\s,;:|]*"
)
_NUMBER = re.compile(r"-?\d+")
# How many numbers may be before and after the name: an id, a color, or an id and a color, which may
# have an alpha.
_FORMS = {(0, 0), (1, 0), (0, 1), (3, 0), (0, 3), (1, 3), (4, 0), (1, 4)}
_TITLE = re.compile(r"(class|label)?[ _]?(names?|class|classes|labels?|category|categories)")
_KEYS = ("names", "classes", "categories", "labels", "class_names", "id2label")


class ClassRow(NamedTuple):
    """A class as a file describes it. ``id``: its value in masks, None if the file does not say."""

    name: str
    id: int | None = None
    color: Color | None = None


def is_ignored(name: str) -> bool:
    return name.strip().lower() in IGNORED


def is_background(name: str) -> bool:
    return name.strip(" _").lower() in BACKGROUND


def read_classes(path: Path, ignore_index: int = 255) -> LabelSpace:
    """The classes in a file: text, a table (CSV), YAML, or JSON.

    A line holds a name, and maybe its id or its color (red, green, blue), before or after the name;
    CVAT's lines are 'name:red,green,blue::'. '#' starts a comment, and a table may have a line of
    titles. Without ids, the line number is the id. YAML and JSON hold a list of names, a mapping
    between names and ids or colors, or a list of mappings with ``name`` and ``id`` or ``color``,
    also under the key ``names``, ``classes``, ``categories``, or ``labels``. See ``space_of`` for
    the names of ignored pixels. Raises DataError for any other content.
    """
    try:
        text = path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the class names cannot be read ({error}): write one name per line, in UTF-8"
        raise file_error(str(path), message, code="classes-file-unreadable") from None
    if path.suffix in (".yaml", ".yml", ".json") or text.lstrip().startswith(("{", "[", "- ")):
        rows = _structured(path, text)
    else:
        rows = _lines(path, text)
    if not rows:
        raise file_error(
            str(path),
            "has no class names: write one per line",
            code="classes-file-empty",
        )
    if path.name == _COLORS and all(row.color not in (None, _BLACK) for row in rows):
        rows = [ClassRow("background", color=_BLACK), *rows]
    # Supervisely's table of masks has gray levels from 1, which are ids; 0 is the background.
    if {row.color for row in rows} == {(n, n, n) for n in range(1, len(rows) + 1)}:
        ids = (ClassRow(row.name, row.color[0]) for row in rows if row.color)
        rows = [ClassRow("background", 0), *ids]
    return space_of(rows, ignore_index, str(path))


def _invalid(path: Path, why: str) -> DataError:
    return file_error(
        str(path),
        f"{why}: write one name per line, or 'id name', or 'red green blue name', "
        "each in every line",
        code="classes-file-invalid",
    )


def _lines(path: Path, text: str) -> list[ClassRow]:
    text = re.sub(r"\"(-?\d+)\"", r"\1", text)  # tables may quote every cell
    lines = [*filter(None, (line.split("#")[0].strip() for line in text.splitlines()))]
    # 'road 0' has an id if each line has another name and number, counted from 0 or 1; 'lane 1',
    # 'lane 2' are names.
    ends = [re.fullmatch(r"([^\d,;:=|]+)\s(\d+)", line) for line in lines]
    words, ids = ({end[part].strip() for end in ends if end} for part in (1, 2))
    if len(words) == len(ids) == len(lines) and {"0", "1"} & ids:
        lines = [f"{end[2]} {end[1]}" for end in ends if end]
    parsed = []
    for line in lines:
        match = _LINE.fullmatch(line)
        before, name, after = match.groups("") if match else ("", line, "")
        first, last = _NUMBER.findall(before), _NUMBER.findall(after)
        parsed.append((name, (len(first), len(last)), [*map(int, first + last)], line))
    numbered = [form != (0, 0) for _, form, _, _ in parsed]
    # Titles of a table: a first line without any number, above lines with numbers.
    if parsed and (
        _TITLE.fullmatch(parsed[0][0].strip("'\"").lower())
        or (numbered[1:] and not numbered[0] and all(numbered[1:]))
    ):
        del parsed[0]
    rows = []
    for name, form, numbers, line in parsed:
        if form != parsed[0][1]:
            both = f"{parsed[0][3]!r} and {line!r}"
            raise _invalid(path, f"the lines {both} are of different kinds")
        quoted = re.fullmatch(r"([\"'])([^\"']+)\1", name)
        if form not in _FORMS or not name or (not quoted and re.search(r"[\t,;|{}<>\"]|^- ", name)):
            raise _invalid(path, f"the line {line!r} is not understood")
        has_id = len(numbers) in (1, 4, 5)
        rgb = numbers[has_id:]
        color = (rgb[0], rgb[1], rgb[2]) if rgb else None
        name = quoted[2] if quoted else name
        rows.append(ClassRow(name, numbers[0] if has_id else None, color))
    return rows


def _structured(path: Path, text: str) -> list[ClassRow]:
    import yaml

    try:
        # YAML forbids the tabs that indent some JSON.
        content = config.load_yaml(text.replace("\t", " "))
    except yaml.YAMLError as error:
        raise _invalid(path, f"is not valid YAML or JSON ({one_line(error)})") from None
    while isinstance(content, dict) and (
        key := next((key for key in _KEYS if key in content), None)
    ):
        content = content[key]
    try:
        if isinstance(content, dict):
            rows = [
                _row(*(pair[::-1] if _NUMBER.fullmatch(str(pair[0])) else pair))
                for pair in content.items()
            ]
        elif isinstance(content, str):
            raise TypeError
        else:
            items = ({"name": item} if isinstance(item, str) else item for item in content)
            rows = [_row(item["name"], item.get("id"), item.get("color")) for item in items]
        if len({row.id is None for row in rows}) > 1:
            raise ValueError
        return rows
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _invalid(
            path,
            "is neither a list of names nor a mapping of names to ids or to [red, green, blue]",
        ) from None


def _row(name: Any, *values: Any) -> ClassRow:
    """A row of a name, its id, and its color, in any order. Raises TypeError or ValueError for
    anything else.
    """
    row = ClassRow(name)
    for value in values:
        if isinstance(value, list):
            red, green, blue = map(int, value)
            row = row._replace(color=(red, green, blue))
        elif value is not None:
            row = row._replace(id=int(value))
    if not isinstance(name, str):
        raise TypeError
    return row


def space_of(rows: list[ClassRow], ignore_index: int, source: str = "data.classes") -> LabelSpace:
    """The label space of these rows.

    Rows without ids and colors have the ids 0, 1, ... in their order. A name in ``IGNORED`` is no
    class: its id or color is ignored, and it has no train id. labelme's first label ``__ignore__``
    has no id in masks, so that the next one has the id 0. Rows with colors may repeat a name: it
    has several colors. Raises ConfigError or DataError for an id, a color, or a name that is given
    twice.
    """
    colored, counted = all(row.color for row in rows), all(row.id is None for row in rows)
    if counted and not colored:
        rows = [
            row._replace(id=index) for index, row in enumerate(rows[rows[0].name == _LABELME :])
        ]
    elif not counted:
        rows = sorted(rows, key=lambda row: row.id or 0)
    names = tuple(row.name for row in rows if not is_ignored(row.name))
    if colored:
        space = colored_space(rows, ignore_index, source)
    else:
        space = plain_space(names, ignore_index)
    if colored and counted:
        return space
    void = space.ignore_index
    table = {
        row.id or 0: void if is_ignored(row.name) else space.names.index(row.name) for row in rows
    }
    if len(table) < len(rows):
        raise DataError(
            f"{source}: {len(rows)} classes have {len(table)} different ids: give each "
            "class its own",
            code="class-id-repeated",
            found=len(table),
            expected=len(rows),
        )
    return replace(space, raw_to_train={void: void, **table})


def colored_space(
    rows: list[ClassRow], ignore_index: int, source: str = "data.classes"
) -> LabelSpace:
    """The label space of rows with colors. A name may have several rows, or no color. Raises
    ConfigError or DataError.
    """
    names = tuple(dict.fromkeys(row.name for row in rows if not is_ignored(row.name)))
    palette = dict(zip(names, color_wheel(len(names))))
    palette |= {row.name: row.color for row in reversed(rows) if row.color}
    void = fitting_void(len(names), ignore_index)
    colors: dict[int, int] = {}
    for name, _, color in rows:
        if color is None:
            continue
        written = f"color {' '.join(map(str, color))}"
        if max(color) > 255:
            message = f"{source}: {written} of {name!r}: channels go from 0 to 255"
            raise DataError(message, code="class-color-invalid", name=name, found=color)
        if code(color) in colors:
            raise DataError(
                f"{source}: two lines have the {written}, one is {name!r}: give each its own color",
                code="class-color-repeated",
                name=name,
                found=color,
            )
        colors[code(color)] = void if is_ignored(name) else names.index(name)
    space = plain_space(names, ignore_index, tuple(palette[name] for name in names))
    return replace(space, colors=colors)
