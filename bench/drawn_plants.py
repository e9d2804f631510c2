"""Other plants of the same causes: stronger or weaker, with more or fewer workers, samples and
threads, as a seed draws them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from plants import Plant

NET_S = 0.03  # of a step, beside its device


def draw(name: str, plant: Plant, rng: random.Random) -> Plant:
    """Another plant of that cause: what is drawn is how strong it is, who works on it, and what
    share of the time it costs.
    """
    times = 2 ** rng.uniform(-1.5, 1.5)
    # batch norm needs two images
    lost, batch = rng.uniform(0.35, 0.8), max(2 * plant.ranks, rng.choice((2, 4, 8)))
    workers, every = rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 4))
    size = f"train.batch_size={batch}"
    pause = {"logging": 0.15, "evaluation": 0.4, "checkpoint": 0.3}.get(name, 0.15) * times
    settings: tuple[str, ...] = (size, "data.workers=2")
    if name == "storage-latency":
        pause, settings = 0.1 * times * batch / workers, (size, f"data.workers={workers}")
    elif name == "storage-bandwidth":
        pause, settings = 0.03 * times * batch, (size, f"data.workers={workers}")
    elif name == "decode":
        pause = 0.05 * times * batch / 2
    elif name == "augmentation":
        pause, settings = 0.05 * times * batch / 2, (*settings, "data.transforms=slow.py:slow")
    elif name in ("too-few-workers", "samples in the loop"):
        pause, settings = (
            0.05 * times * batch,
            (size, f"data.workers={int(name == 'too-few-workers')}"),
        )
    elif name == "too-many-threads":
        crop = rng.choice((64, 96, 128))
        settings = (
            f"parallel.threads={rng.choice((4, 6, 8, 12))}",
            f"data.crop=[{crop},{crop}]",
            "data.workers=1",
        )
    elif name == "logging":
        settings = (*settings, f"log.every={every}")
    elif name == "evaluation":
        settings = (*settings, f"eval.every={1 + every}st")
    elif name == "checkpoint":
        settings = (*settings, f"checkpoint.every={1 + every}st")
    elif name == "small-batch":
        settings = (f"train.batch_size={rng.choice((2, 4))}", "data.workers=2")
    elif name == "slow-network":
        return replace(
            plant,
            rate=f"{rng.choice((100, 200, 300, 400))}mbit",
            settings=(f"train.batch_size={batch}",),
        )
    each = pause / {"logging": every, "evaluation": 1 + every, "checkpoint": 1 + every}.get(name, 1)
    beside = name in (
        "storage-latency",
        "storage-bandwidth",
        "decode",
        "augmentation",
        "too-few-workers",
    )
    step = each if beside else each / lost
    # what is left of the step must hold the net's own work
    stronger = max(1.0, NET_S / (step * (1 - lost)))
    times, step = times * stronger, step * stronger
    device = max(0.0, step * (1 - lost) - NET_S)
    return replace(
        plant,
        settings=settings,
        times=times,
        device_s=device,
        steps=min(400, max(plant.steps, round(5 / step))),
    )
