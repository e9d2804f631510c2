"""Limits in time and money, as text: ``2h`` and ``20$``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MONEY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\$")


def seconds_of(text: str) -> float | None:
    """Seconds of a time such as "90m", "2h", or "1.5d"; None for any other text."""
    match = _TIME.fullmatch(text)
    return float(match[1]) * _SECONDS[match[2]] if match else None


def dollars_of(text: str) -> float | None:
    """Dollars of an amount such as "20$"; None for any other text."""
    match = _MONEY.fullmatch(text)
    return float(match[1]) if match else None


def limit(read: Callable[[str], float | None], words: str) -> Callable[[Any], Any]:
    """A validator for a text that ``read`` turns into a number above zero, or "". ``words``: what
    to write.
    """

    def check(value: Any) -> Any:
        if value != "" and not (isinstance(value, str) and read(value)):
            raise ValueError(f"must be {words}; empty: no limit")
        return value

    return check
