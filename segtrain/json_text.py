"""JSON of files that anybody may have written: torn, foreign, or nested beyond reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST = 1e15  # of anything that is counted or measured; neither infinite nor NaN is below it


def parse(text: str | bytes) -> Any:
    """What ``text`` says. Raises ValueError, and no other error, where it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def sound(item: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    """What of a JSON object can be reckoned with: its numbers, and what ``form`` names: texts (name: str) and parts (name: form)."""
    kept: dict[str, Any] = {}
    for key, value in item.items() if isinstance(item, dict) else ():
        kind = form.get(key)
        if isinstance(kind, Mapping):
            if isinstance(value, dict):
                kept[key] = sound(value, kind)
        elif isinstance(value, str) if kind is str else _is_number(value):
            kept[key] = value
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST
