"""Training: the loop, its state, and how it resumes. ``segtrain.train(config)`` is ``segtrain.api.train``."""

from segtrain.callable_module import make_callable

make_callable(__name__, "segtrain.api", "train")
