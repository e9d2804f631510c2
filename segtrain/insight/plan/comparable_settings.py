"""Settings that decide how long a step takes, to compare a run with a plan, or a job with a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings that do not change how long a run takes, beside those that name places, limits, and initial weights.
_FREE = {
    "data": {"root", "check", "faults", "overlap", "outage_s", "cache_gb", "color_jitter_on"},
    "train": {"seed", "device", "deadline", "budget", "price", "duration", "batch_size", "accumulate"},
    "model": {"encoder_weights", "init"},
    "loss": set[str](),
}
# Settings that name a file, which may be in another folder on the machines of a job.
_FILES = {"data": {"classes", "transforms"}}


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` -> value of the settings that decide how long a step takes.

    The length and the batch are left out: they are compared as numbers of images.
    """
    found = {}
    for section, free in _FREE.items():
        part = settings.get(section)
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if key not in free:
                named = isinstance(value, str) and key in _FILES.get(section, ())
                found[f"{section}.{key}"] = value.rpartition("/")[2] if named else value
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two results of ``decisive``, in words."""
    return [
        f"{key}={now.get(key)}, and not {before.get(key)}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
