"""Evaluation on a split. ``segtrain.evaluate(run)`` scores a run: see ``segtrain.train.score.evaluate``."""

from segtrain.callable_module import make_callable

make_callable(__name__, "segtrain.train.score", "evaluate")
