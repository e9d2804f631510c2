"""Settings that matter for speed and differ between two runs, compared with a proposed fix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segtrain.errors import ConfigError
from segtrain.insight.diagnose.verdict import Settings, Verdict
from segtrain.insight.runs.folder import flat

EXACT = "exact"
MORE = "more"
OTHER = "other"
WORDS = "words"


@dataclass(frozen=True)
class Change:
    """A setting in two runs. ``proposed``: its value in the proposed fix, None if the fix does not
    name it.
    """

    key: str
    before: Any
    after: Any
    proposed: Any = None
    cure: bool = False  # whether the fix names it

    @property
    def as_proposed(self) -> bool:
        return self.cure and equal(self.after, self.proposed)

    @property
    def text(self) -> str:
        return f"{self.key} {shown(self.before)} -> {shown(self.after)}"


def differing(before: Settings, after: Settings) -> dict[str, tuple[Any, Any]]:
    """Settings that differ and can matter for speed: ``section.key`` -> both values. A missing key
    has its default.
    """
    from segtrain.config import Config, keys_with

    left = flat(before)
    right = flat(after)
    neutral = keys_with("speed_neutral")
    usual = flat(Config().model_dump(mode="json"))
    pairs = {
        key: (left.get(key, usual.get(key)), right.get(key, usual.get(key)))
        for key in {**left, **right}
    }
    return {key: pair for key, pair in pairs.items() if key not in neutral and not equal(*pair)}


def changes(before: Settings, after: Settings, proposed: Settings) -> tuple[Change, ...]:
    """The settings of the fix, changed or not, then all other differences. ``proposed``:
    ``section.key`` -> value.
    """
    pairs, same = differing(before, after), flat(before)
    for key in proposed:
        pairs.setdefault(key, (same.get(key), same.get(key)))
    ordered = [*proposed, *(key for key in pairs if key not in proposed)]
    return tuple(Change(key, *pairs[key], proposed.get(key), key in proposed) for key in ordered)


def possible(
    verdict: Verdict,
    settings: Settings,
    takes: Callable[[Settings], bool] = lambda _: True,
) -> Verdict:
    """The verdict, with a fix of settings that a run with the config ``settings`` lacks, and that
    its rules accept.

    Every fix that is printed comes from here. ``takes``: another rule for the settings of a choice.
    """
    has = flat(settings)
    fix = verdict.fix.within(
        lambda key, value: equal(has.get(key), value),
        lambda change: takes(change) and accepted(settings, change),
    )
    return (
        verdict
        if fix == verdict.fix
        else replace(verdict, fix=fix, gain=verdict.gain if fix.settings else 1.0)
    )


def accepted(settings: Settings, change: Settings) -> bool:
    """Whether the config ``settings`` is valid with ``change`` (``section.key`` -> value), or is
    not without it.
    """
    from segtrain.config import make_config

    def valid(changed: Settings) -> bool:
        sections = {
            key: dict(part) if isinstance(part, Mapping) else part for key, part in settings.items()
        }
        for key, value in changed.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        try:
            make_config(sections, saved=True)
        except ConfigError:
            return False
        return True

    return valid(change) or not valid({})


def fit(changes: Sequence[Change]) -> str:
    """How the changes fit the fix. ``exact``: all of it and nothing else; ``more``: all of it and
    other settings; ``other``: not all of it, or other values; ``words``: the fix is advice without
    settings.
    """
    fix = [change for change in changes if change.cure]
    if not fix:
        return WORDS
    if not all(change.as_proposed and not equal(change.before, change.after) for change in fix):
        return OTHER
    return EXACT if len(fix) == len(changes) else MORE


def equal(a: Any, b: Any) -> bool:
    """Whether two values mean the same setting, although YAML turned ``off`` into false or a tuple
    into a list.
    """
    return _plain(a) == _plain(b)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "off" if value is False else value


def shown(value: Any) -> str:
    return value or "''" if isinstance(value, str) else json.dumps(value, default=str)


# Settings that name a file, which may be in another folder on the machines of a job.
_FILES = {"data": {"classes", "transforms"}}


def decisive(settings: Settings) -> dict[str, Any]:
    """``section.key`` -> value of the settings that decide how long a step takes.

    The length and the batch are left out: they are compared as numbers of images.
    """
    from segtrain.config import keys_with

    values, neutral = {}, keys_with("plan_neutral")
    for section in ("data", "train", "model", "loss"):
        part = settings.get(section)
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if f"{section}.{key}" not in neutral:
                named = isinstance(value, str) and key in _FILES.get(section, ())
                values[f"{section}.{key}"] = value.rpartition("/")[2] if named else value
    return values


def other_settings(before: Settings, now: Settings) -> list[str]:
    """What differs between two results of ``decisive``, in words."""
    return [
        f"{key}={now.get(key)}, and not {before.get(key)}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
