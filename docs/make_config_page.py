"""Writes docs/config.md from the fields of segtrain.config:   python docs/make_config_page.py"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic.fields import FieldInfo

from segtrain.config import Config, Loss
from segtrain.config.mistakes import in_words
from segtrain.config.section import Section, blocks, is_section

PAGE = Path(__file__).with_name("config.md")

INTRO = """# Settings

Every key of a run, by section. `python docs/make_config_page.py` writes this page.

A config is a YAML file with one mapping per section; write only what differs from the defaults below. The command line overrides the
file: `section.key=value`, or `--section.key value`, which some launchers pass.

```bash
segtrain train configs/scenes.yaml train.duration=2st "data.crop=[64,96]" \\
    "loss.terms=[ce,dice]" --print-config
```

`--print-config` prints the resolved config and stops; the run folder has the same text as `config.yaml`.

- Durations have a unit: `20ep` (epochs), `500st` (optimizer steps), `15%` (of the run; warm-up only). Sizes are `[height, width]` in pixels.
  `~/` is your home folder in `out`, `data.root`, `model.init`, and `model.encoder_weights`.
- On the command line, numbers, lists, and mappings are parsed as YAML, and text is used as it is. Your shell needs quotes around spaces and
  brackets. In a file, nest the settings under their section: dotted keys are for the command line.
- A wrong key, type, or combination, or a key that appears twice, stops the command with exit code 2; the error names key, value, and fix.
- Settings that decide only where and how a run executes (ranks, workers, paths, logging, checkpoints, evaluation) may change on resume. If any
  other differs from the folder's `config.yaml`, the run is refused, and the error names it.
- Without `out`, the run folder is `runs/NAME-HASH`. The hash covers the settings that affect the training and are not at their defaults. If a
  release changes a default, the folder stays the same, and the command is refused with both values.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [
        INTRO,
        "## Run\n",
        _table("", {name: Config.model_fields[name] for name in ("out", "name")}),
    ]
    for name, field in Config.model_fields.items():
        section = field.annotation
        if is_section(section):
            parts += [
                f"## {name}\n",
                f"{_flat(section.__doc__ or '')}\n",
                _table(f"{name}.", section.model_fields),
            ]
            for key, inner in section.model_fields.items():
                if is_section(inner.annotation):
                    parts += [f"### `{name}.{key}`\n", f"{_flat(inner.annotation.__doc__ or '')}\n"]
                    parts.append(_table(f"{name}.{key}.", inner.annotation.model_fields))
            if name == "loss":
                parts += [
                    "### A term of `loss.terms`\n",
                    f"{TERMS}\n",
                    *_blocks("", blocks(Loss.model_fields["terms"].annotation)),
                ]
        elif known := blocks(section):
            parts += [f"## {name}\n", f"{OPTIM}\n", *_blocks(f"{name}.", known)]
    return "\n".join(parts)


TERMS = """Each term has a name, a weight, and the settings of its name. `loss.terms=[ce, dice]` is short for
`loss.terms=[{name: ce, weight: 1}, {name: dice, weight: 1}]`. A setting of another term is refused."""
OPTIM = """Optimizer, schedule, and gradient clipping. Each optimizer has its own settings; settings of another optimizer or
schedule are refused. If the command line changes `optim.name`, settings in the file that the new optimizer does not have are
dropped."""


HEAD = "| key | default, other values | what it is |\n|---|---|---|"


def _blocks(prefix: str, known: dict[str, type[Section]]) -> list[str]:
    """What all blocks share in one table, what each has of its own in another."""
    shared = set.intersection(*(set(kind.model_fields) for kind in known.values())) - {"name"}
    first = next(iter(known.values()))
    names = ", ".join(f"`{name}`" for name in known)
    rows = [HEAD, f"| `{prefix}name` | {names} | which one |"]
    rows += [
        _row(prefix, name, field) for name, field in first.model_fields.items() if name in shared
    ]
    parts = ["\n".join(rows) + "\n"]
    lines = [
        "| name | what it is | key | default, other values | what the key is |",
        "|---|---|---|---|---|",
    ]
    for name, kind in known.items():
        own = [
            (key, field) for key, field in kind.model_fields.items() if key not in shared | {"name"}
        ]
        about = f"| `{name}` | {_flat(kind.__doc__ or '').rstrip('.')} "
        abouts = [about, *["| | "] * len(own)]
        lines += [about + _row(prefix, *key) for about, key in zip(abouts, own)] or [
            about + "| | | |"
        ]
    return [*parts, "\n".join(lines) + "\n"]


def _table(prefix: str, fields: dict[str, FieldInfo]) -> str:
    lines = [HEAD]
    lines += [_row(prefix, name, field) for name, field in fields.items()]
    return "\n".join(lines) + "\n"


def _row(prefix: str, name: str, field: FieldInfo) -> str:
    cells = (f"`{prefix}{name}`", _values(field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(field: FieldInfo) -> str:
    """The default, and which other values are allowed. Of a switch that is the opposite, which
    needs no words.
    """
    default, allowed = f"`{_default(field)}`", _allowed(field)
    if field.annotation is bool:
        return default
    words = allowed.split(", ")
    if default in words and all(word.startswith("`") for word in words):
        return ", ".join([default, *(word for word in words if word != default)])
    return f"{default}; {allowed}"


def _default(field: FieldInfo) -> str:
    if is_section(field.annotation):
        return "{}"
    value = field.get_default(call_default_factory=True)
    plain = json.loads(json.dumps(value, default=lambda section: section.name))
    return json.dumps(plain).replace('"', "") if not isinstance(plain, str) else plain or '""'


def _allowed(field: FieldInfo) -> str:
    limits = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    found = [
        text.format(f"{value:,}" if isinstance(value := getattr(limit, key), int) else f"{value:g}")
        for limit in field.metadata
        for key, text in limits.items()
        if getattr(limit, key, None) is not None
    ]
    return " ".join([in_words(field.annotation), *found])


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
