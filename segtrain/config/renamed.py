"""Renamed settings: old names still work in configs, on the command line, and in run folders."""

from __future__ import annotations

import warnings
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
}
# Section and key -> old value -> new value.
VALUES = {("data", "transforms_mode"): {"instead": "replace"}}
# In a term of the loss: old key -> new key.
TERMS = {"keep": "min_kept"}


def with_new_names(settings: dict[str, Any], source: str, warn: bool = True) -> dict[str, Any]:
    """Nested ``settings`` with the current names. ``warn``: issue one FutureWarning per old name."""
    settings = dict(settings)
    for section, keys in KEYS.items():
        if isinstance(settings.get(section), dict):
            settings[section] = _renamed(settings[section], keys, f"{section}.", source, warn)
    for (section, key), values in VALUES.items():
        block = settings.get(section)
        if isinstance(block, dict) and isinstance(block.get(key), str) and block[key] in values:
            settings[section] = {**block, key: values[block[key]]}
    loss = settings.get("loss")
    if isinstance(loss, dict) and isinstance(loss.get("terms"), (list, tuple)):
        terms = [
            _renamed(term, TERMS, "loss.terms: ", source, warn) if isinstance(term, dict) else term
            for term in loss["terms"]
        ]
        settings["loss"] = {**loss, "terms": terms}
    return settings


def _renamed(block: dict[str, Any], keys: dict[str, str], prefix: str, source: str, warn: bool) -> dict[str, Any]:
    for old in keys.keys() & block.keys():
        # If both names are given, the old one stays, and is later refused as an unknown key.
        if keys[old] not in block:
            block = {keys[old] if key == old else key: value for key, value in block.items()}
            if warn:
                text = f"{source}: {prefix}{old} is now called {prefix}{keys[old]}; the old name still works"
                warnings.warn(text, FutureWarning, stacklevel=2)
    return block


def with_old_names(changed: dict[str, Any]) -> dict[str, Any]:
    """Changed settings, in JSON form, with the names that the first hashes were computed from."""
    changed = dict(changed)
    for (section, key), values in VALUES.items():
        if (value := changed.get(section, {}).get(key)) in values.values():
            old = next(old for old, new in values.items() if new == value)
            changed[section] = {**changed[section], key: old}
    for section, keys in KEYS.items():
        if section in changed:
            back = {new: old for old, new in keys.items()}
            changed[section] = {back.get(key, key): value for key, value in changed[section].items()}
    if "terms" in changed.get("loss", {}):
        back = {new: old for old, new in TERMS.items()}
        terms = [{back.get(key, key): value for key, value in term.items()} for term in changed["loss"]["terms"]]
        changed["loss"] = {**changed["loss"], "terms": terms}
    return changed
