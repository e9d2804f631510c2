"""Training loops of other libraries and ours on the same network: see bench/loops."""

from __future__ import annotations

import importlib.util
import time

from loops.race import race

from gpu_stages.rig import Rig


def run(rig: Rig) -> None:
    if importlib.util.find_spec("segmentation_models_pytorch") is None:
        rig.left_out("all loops", "segmentation-models-pytorch is not installed")
        return
    rounds = 1 if rig.tiny else 2
    end = time.monotonic() + rig.left_s
    race(rig.device, not rig.tiny, rig.tiny, rounds, end, rig.note, rig.earlier)
