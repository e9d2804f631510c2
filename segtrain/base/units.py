"""Numbers with their units as text."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """``45s``, ``3m 20s``, ``2h 05m``, ``3d 04h``; ``?`` if it is not finite."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    for unit, lesser, size, part in (
        ("d", "h", 86400, 3600),
        ("h", "m", 3600, 60),
        ("m", "s", 60, 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part:02d}{lesser}"
    return f"{whole}s"


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def rounded(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits; large numbers without an exponent:
    ``1,190``.
    """
    return f"{float(f'{value:.{digits}g}'):,.12g}"


def ms(seconds: float) -> str:
    return f"{rounded(1000 * seconds)} ms"


def short_seconds(seconds: float | None) -> str:
    """Seconds as text with three significant digits: ``0.42 ms``, ``158 ms``, ``2.31 s``."""
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"


def size(number: float) -> str:
    """``812 kB``, ``1.5 GB``: decimal units."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= step:
            return f"{number / step:.3g} {unit}"
    return f"{number:.0f} B"
