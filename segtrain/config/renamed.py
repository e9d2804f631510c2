"""Renamed settings: old names still work in configs, on the command line, and in run folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

# Section -> old key -> new key. The hash of a run is computed from the old keys, so that existing runs keep their hash.
KEYS = {
    "data": {
        "colour": "color_jitter_on",
        "jitter_p": "color_jitter_prob",
        "scale_law": "scale_sampling",
        "balance": "class_balanced_crop_prob",
        "transforms_at": "transforms_mode",
    },
    "optim": {},
    "loss.terms": {"keep": "min_kept"},
}
# New key -> old value -> new value.
VALUES = {"transforms_mode": {"instead": "replace"}}


def with_new_names(settings: dict[str, Any], source: str, warn: bool = True) -> dict[str, Any]:
    """Nested ``settings`` with the current names. ``warn``: issue one FutureWarning per old name."""

    def renamed(section: str, block: dict[str, Any]) -> dict[str, Any]:
        for old, new in KEYS[section].items():
            # If both names are given, the old one stays, and is later refused as an unknown key.
            if old in block and new not in block:
                block = {new if key == old else key: value for key, value in block.items()}
                if warn:
                    text = f"{source}: {section}.{old} is now called {section}.{new}; the old name still works"
                    warnings.warn(text, FutureWarning, stacklevel=2)
            if isinstance(block.get(new), str):
                block = {**block, new: VALUES.get(new, {}).get(block[new], block[new])}
        return block

    return each_block(settings, renamed)


def with_old_names(changed: dict[str, Any]) -> dict[str, Any]:
    """The settings ``changed`` with their old names. ``changed``: non-default settings as JSON values.

    The hash of a run is computed from the result.
    """

    def restored(section: str, block: dict[str, Any]) -> dict[str, Any]:
        old_key = {new: old for old, new in KEYS[section].items()}
        old_value = {(key, new): old for key, values in VALUES.items() for old, new in values.items()}
        return {
            old_key.get(key, key): old_value.get((key, value), value) if isinstance(value, str) else value
            for key, value in block.items()
        }

    return each_block(changed, restored)


def each_block(settings: dict[str, Any], change: Callable[[str, dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A copy of ``settings`` in which ``change(section, block)`` replaces data, optim, and each term of the loss."""
    settings, loss = dict(settings), settings.get("loss")
    for section in ("data", "optim"):
        if isinstance(settings.get(section), dict):
            settings[section] = change(section, settings[section])
    if isinstance(loss, dict) and isinstance(loss.get("terms"), (list, tuple)):
        terms = [change("loss.terms", term) if isinstance(term, dict) else term for term in loss["terms"]]
        settings["loss"] = {**loss, "terms": terms}
    return settings
