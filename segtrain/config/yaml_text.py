"""A safe YAML reader that refuses duplicate keys, deep nesting, and texts with many aliases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

DEPTH = 50  # nested lists and mappings
# Each alias may repeat what others have repeated. Of these, a text cannot make more than 1,500
# times its own size.
ALIASES = 20

# The C parser is ten times faster, if it is installed. Its composer recurses in C, so deep nesting
# must not reach it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RefusedYaml(yaml.YAMLError):
    """Valid YAML that is refused. The message says where and why."""


@dataclass
class _OpenNode:
    """A list or mapping whose end has not been read yet."""

    anchor: str | None
    mapping: bool
    parts: int = 0  # keys and values in it so far
    keys: dict[str, int] = field(default_factory=dict)  # key -> its line
    glued: str = ""  # the last key, if it contains a colon: `lr:0.1`


def load_yaml(text: str) -> Any:
    """Parse a YAML text and return its value.

    Raises yaml.YAMLError for invalid YAML, a duplicate key, a key that contains its value
    (`{lr:0.1}`), deep nesting, and alias bombs (a few lines whose aliases expand to gigabytes).
    """
    try:
        _check(text)
        return yaml.load(text, _LOADER)
    except UnicodeEncodeError:
        raise RefusedYaml("the text is not valid UTF-8") from None
    except (ValueError, OverflowError) as error:  # an impossible date or number
        raise RefusedYaml(str(error)) from None


def _check(text: str) -> None:
    stack, aliases = [_OpenNode(None, False)], 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        line, node = event.start_mark.line + 1 if event.start_mark else 0, stack[-1]
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if any(event.anchor == part.anchor for part in stack):
                raise RefusedYaml(
                    f"line {line}: the alias *{event.anchor} is inside its own value: write it out"
                )
            if aliases > ALIASES:
                raise RefusedYaml(f"line {line}: more than {ALIASES} aliases: write the values out")
        elif isinstance(event, yaml.ScalarEvent) and node.mapping:
            _check_key(node, event, line)
        node.parts += 1
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append(_OpenNode(event.anchor, isinstance(event, yaml.MappingStartEvent)))
            if len(stack) > DEPTH:
                raise RefusedYaml(
                    f"line {line}: lists and mappings are nested more than {DEPTH} deep: "
                    "flatten them"
                )


def _check_key(node: _OpenNode, event: yaml.ScalarEvent, line: int) -> None:
    key = event.value
    if node.parts % 2:
        if node.glued and not key and not event.style:  # no value follows, as in {lr:0.1}
            raise RefusedYaml(f"line {line}: a space is missing after the ':' of {node.glued!r}")
        return
    node.glued = key if not event.style and ":" in key.strip(":") else ""
    if key in node.keys and key != "<<":
        raise RefusedYaml(
            f"line {line}: duplicate key {key!r}, which line {node.keys[key]} sets already"
        )
    node.keys[key] = line
