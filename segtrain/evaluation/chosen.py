"""The classes and the score that the settings of an evaluation name. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from segtrain.config import Eval
from segtrain.errors import ConfigError
from segtrain.observe.scores import HAUSDORFF, named_score, refuse_unknown_class


def counted_classes(settings: Eval, names: Sequence[str]) -> list[int] | None:
    """Ids of the classes that the means are over; None: all. Raises ConfigError for an unknown
    class, and if no class is left.
    """
    key = "eval.mean_over" if settings.mean_over else "eval.leave_out"
    chosen = settings.mean_over or settings.leave_out
    for name in chosen:
        refuse_unknown_class(key, name, names)
    if not chosen:
        return None
    counted = [c for c, name in enumerate(names) if (name in chosen) == bool(settings.mean_over)]
    if not counted:
        raise ConfigError(
            f"{key} leaves out every class: name fewer", code="no-class-counts", key=key
        )
    return counted


def refuse_eval(settings: Eval, names: Sequence[str]) -> None:
    """Raise ConfigError if the settings name a class or a score that an evaluation does not
    have.
    """
    counted_classes(settings, names)
    best = named_score(settings.best)
    class_name = best.key.partition("/")[2]
    if class_name:
        refuse_unknown_class("eval.best", class_name, names)
    if best == HAUSDORFF and not settings.hausdorff:
        raise ConfigError(
            "eval.best=mean_hausdorff needs the distances: add eval.hausdorff=true",
            code="unknown-score",
            key="eval.best",
            found=best.key,
        )
