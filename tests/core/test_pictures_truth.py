"""The pictures of an evaluation show each image with its own truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from segtrain.config import Config
from segtrain.data.datasets import open_dataset
from segtrain.evaluation.evaluation import evaluate


class Brightest(nn.Module):
    """Predicts class 0 or 1 by the first channel, so that each image has its own prediction."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = images.new_zeros(len(images), 10, *images.shape[2:])
        logits[:, 1] = images[:, 0]
        return logits


def test_a_picture_keeps_its_truth_when_the_loader_reuses_memory():
    config = Config(
        data={"layout": "scenes", "scenes": 200, "scene_size": [48, 64]}, eval={"batch_size": 2}
    )
    dataset: Any = open_dataset(config.data, "val")
    found = evaluate(Brightest(), dataset, config.eval, workers=1, pictures=8)
    assert len(found.pictures) == 8
    places = [str(entry.image) for entry in dataset.entries]
    for shown in found.pictures:
        image, mask = dataset.read(places.index(shown.name))[:2]
        assert np.array_equal(shown.image, image)
        assert np.array_equal(shown.truth, mask)
