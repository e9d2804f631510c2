"""Which settings are there? Writes docs/config.md from the fields of segtrain.config:   python docs/make_config_page.py"""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from segtrain.config import Config, LossTerm

PAGE = Path(__file__).with_name("config.md")

INTRO = """# Settings

Every key of a run, by section. This page is made from the code by `python docs/make_config_page.py`; a test keeps it current.

A config is a flat YAML file of sections; a file says only what differs from the defaults below. On the command line each key
is `section.key=value` (values are YAML), or `--section.key value`, which some launchers pass. What comes later wins: defaults,
file, command line.

```bash
segtrain train configs/scenes.yaml train.duration=2st "data.crop=[64,96]" "loss.terms=[ce,dice]" --print-config
```

`--print-config` prints the resolved config and stops. The same text goes into the run folder as `config.yaml`, with a hash of
every setting that changes what is trained; a run is resumed only under the same hash. Settings that say where and how it runs
(ranks, workers, paths, logging, checkpoints, evaluation) may change on resume.

A wrong key, type or combination is one error that names the key, the value, the nearest right key and the cure, with exit code 2.

Durations are texts with a unit: `20ep` (epochs), `500st` (optimizer steps), `15%` (of the run; warm-up only).
Sizes are `[height, width]` in pixels.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [INTRO, "## Run\n", _table("", {name: Config.model_fields[name] for name in ("out", "name")})]
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            parts += [f"## {name}\n", f"{_flat(section.__doc__ or '')}\n", _table(f"{name}.", section.model_fields)]
            if name == "loss":
                parts += ["### A term of `loss.terms`\n", f"{_flat(LossTerm.__doc__ or '')} {TERMS}\n"]
                parts.append(_table("", LossTerm.model_fields))
    return "\n".join(parts)


TERMS = "`loss.terms=[ce, dice]` is short for `loss.terms=[{name: ce, weight: 1}, {name: dice, weight: 1}]`."


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    lines = ["| key | default | values | what it is |", "|---|---|---|---|"]
    for name, field in fields.items():
        cells = (f"`{prefix}{name}`", f"`{_default(field)}`", _values(field), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    plain = json.loads(json.dumps(value, default=lambda section: section.name))
    return json.dumps(plain).replace('"', "") if not isinstance(plain, str) else plain or '""'


def _values(field: FieldInfo) -> str:
    limits = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    found = [
        text.format(f"{getattr(limit, key):g}")
        for limit in field.metadata
        for key, text in limits.items()
        if getattr(limit, key, None) is not None
    ]
    return " ".join([_type(field.annotation), *found])


def _type(kind: Any) -> str:
    names = {int: "integer", float: "number", str: "text", bool: "true, false", type(None): "null"}
    if kind in names:
        return names[kind]
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{member}`" for member in members)
    if origin is typing.Union:
        return " or ".join(map(_type, members))
    if origin is tuple:
        inner = [_type(member) for member in members if member is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in members else f"[{', '.join(inner)}]"
    if origin is dict:
        return "mapping"
    return "terms" if kind is LossTerm else getattr(kind, "__name__", str(kind))


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
