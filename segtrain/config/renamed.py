"""Settings with a new name. Configs, command lines, and run folders with the old one still work."""

from __future__ import annotations

import warnings
from typing import Any

# Section and old key -> new key. The hash of a run still has the old one, so that a run keeps its hash.
KEYS = {
    "data": {
        "colour": "color_jitter_on",
        "jitter_p": "color_jitter_prob",
        "scale_law": "scale_sampling",
        "balance": "class_balanced_crop_prob",
        "transforms_at": "transforms_mode",
    },
}
VALUES = {("data", "transforms_mode"): {"instead": "replace"}}  # likewise: old value -> new value
TERMS = {"keep": "min_kept"}  # of a term of the loss


def with_new_names(settings: dict[str, Any], source: str, warn: bool = True) -> dict[str, Any]:
    """Nested ``settings`` under today's names. ``warn``: say once for each old name what it is called now."""
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
        # Where both are given, the old one stays, and is refused as an unknown key.
        if keys[old] not in block:
            block = {keys[old] if key == old else key: value for key, value in block.items()}
            if warn:
                text = f"{source}: {prefix}{old} is now called {prefix}{keys[old]}; the old name still works"
                warnings.warn(text, FutureWarning, stacklevel=2)
    return block


def with_old_names(changed: dict[str, Any]) -> dict[str, Any]:
    """Changed settings, in JSON form, under the names that the hash of a run was first made of."""
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
