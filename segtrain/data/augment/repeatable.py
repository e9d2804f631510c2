"""Does augmentation of one's own give the same pixels twice? Tried on a few samples before a run begins."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from segtrain.config import Data
from segtrain.data.cache import SampleSource
from segtrain.data.sample import SampleMaker, Task
from segtrain.errors import ConfigError


def rehearse(source: SampleSource, data: Data, seed: int, transforms: Any = None) -> tuple[str, ...]:
    """Make up to four samples twice; returns notes on what was changed in the pipeline, nothing where there is none.

    Raises ConfigError where the pixels differ or a random state of the whole process was drawn from: the run could then be
    neither resumed nor repeated. What else is wrong with a pipeline is raised as by ``SampleMaker``.
    """
    sampler = SampleMaker(source, data, seed, transforms)
    if sampler.transforms is None or not len(source):
        return ()
    for turn, index in enumerate(sorted({k * (len(source) - 1) // 3 for k in range(4)})):
        task = Task(index, turn, data.crop, data.scale)
        first = _made(sampler, task)
        before = _states()
        second = _made(sampler, task)
        moved = [name for name, state in _states().items() if state != before[name]]
        same = all(np.array_equal(a, b) for a, b in zip(first, second))
        if moved or not same:
            why = f"draw from {' and '.join(moved)}" if moved else "give other pixels when they are called again"
            raise ConfigError(
                f"data.transforms {why}, so that no run can be repeated or resumed: let a function draw from its rng argument, and "
                "a class of your own from self.py_random and self.random_generator (albumentations) or torch (torchvision v2)",
                code="transforms-not-repeatable",
                found=why,
            )
    return tuple(sampler.transforms.notes)


def _made(sampler: SampleMaker, task: Task) -> tuple[np.ndarray, np.ndarray]:
    image, mask = np.zeros((*task.crop, 3), np.uint8), np.zeros(task.crop, np.uint8)
    sampler(task, image, mask)
    return image, mask


def _states() -> dict[str, bytes]:
    """Random states of the whole process."""
    state: Any = np.random.get_state()
    states = {
        "the module random": repr(random.getstate()).encode(),
        "numpy.random": state[1].tobytes() + repr(state[2:]).encode(),
    }
    if "torch" in sys.modules:
        states["torch's global generator"] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states
