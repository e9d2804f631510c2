"""Tests that a mirrored image exchanges the classes of data.flip_pairs: in training, evaluation,
and prediction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conftest import refused
from predictable_runs import make_run, picture

from segtrain import load
from segtrain.config import Config, Data
from segtrain.data.audit.images import flip_finding, sides
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.classes import label_space
from segtrain.data.labels.space import LabelSpace, plain_space
from segtrain.data.order import rng_for
from segtrain.data.pixels import crop
from segtrain.data.sample import SampleMaker, Task, draw
from segtrain.evaluation import tiles
from segtrain.evaluation.evaluation import evaluate
from segtrain.evaluation.tiles import View
from segtrain.infer.export import export

NAMES = ["background", "left ear", "right ear"]
SIZE = (40, 48)


def folder(root: Path) -> None:
    """Four pairs: the left ear in the left half, the right ear in the right half, and void in the
    first rows.
    """
    for kind in ("images", "masks"):
        (root / kind / "train").mkdir(parents=True)
        (root / kind / "val").mkdir(parents=True)
    for number in range(4):
        random = np.random.default_rng(number)
        mask = np.zeros(SIZE, np.uint8)
        mask[:4] = 255
        top = int(random.integers(8, 20))
        mask[top : top + 12, 4:16], mask[top : top + 12, 30:42] = 1, 2
        image = (
            random.integers(0, 40, (*SIZE, 3)) + np.where(mask == 255, 0, mask > 0)[..., None] * 180
        )
        for split in ("train", "val"):
            cv2.imwrite(str(root / f"images/{split}/{split}{number}.png"), image.astype(np.uint8))
            cv2.imwrite(str(root / f"masks/{split}/{split}{number}.png"), mask)


def settings(root: Path, **more: Any) -> Data:
    plain: dict[str, Any] = {
        "scale": (1.0, 1.0),
        "jitter": (0, 0, 0),
        "crop": SIZE,
        "flip_pairs": [NAMES[1:]],
    }
    return Data(root=str(root), layout="folders", classes=NAMES, **{**plain, **more})


@pytest.mark.parametrize("angle", [0, 20])
def test_the_mask_of_a_mirrored_crop_has_the_other_ids(angle, tmp_path, monkeypatch):
    folder(tmp_path)
    made: dict[tuple[bool, bool], list[np.ndarray]] = {}
    for pairs in (True, False):
        data = settings(tmp_path, rotate=angle, **({} if pairs else {"flip_pairs": []}))
        dataset = open_dataset(data, "train")
        for native in (True, False):
            with monkeypatch.context() as patch:
                if not native:
                    patch.setattr(crop, "_native_crop", lambda *_: False)
                for index in range(len(dataset)):
                    image, mask = np.empty((*SIZE, 3), np.uint8), np.empty(SIZE, np.uint8)
                    SampleMaker(dataset, data, 7)(
                        Task(index, 1, data.crop, data.scale), image, mask
                    )
                    made.setdefault((pairs, native), []).append(mask)
    flipped = [draw(rng_for(7, 1, index), SIZE, SIZE, data).flip for index in range(4)]
    assert set(flipped) == {True, False}
    exchange = np.arange(256, dtype=np.uint8)
    exchange[[1, 2]] = 2, 1
    for flip, mask, plain in zip(flipped, made[True, True], made[False, True]):
        assert np.array_equal(mask, exchange[plain] if flip else plain)
        assert set(np.unique(mask)) == {0, 1, 2, 255}
        assert (mask[:, :24] != 2).all()
        assert (mask[:, 24:] != 1).all()
    for pairs in (True, False):
        assert all(map(np.array_equal, made[pairs, True], made[pairs, False]))


def by_side(images: torch.Tensor) -> torch.Tensor:
    """Logits of an ideal model: a bright pixel is the left ear in the left half, the right ear in
    the right half.
    """
    bright = images.mean(1) > -0.5
    left = (torch.arange(images.shape[-1]) < images.shape[-1] // 2).expand_as(bright)
    classes = (bright & left) * 1 + (bright & ~left) * 2
    return torch.nn.functional.one_hot(classes, 3).movedim(-1, 1) * 8.0


class Ideal(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return by_side(images)


@pytest.mark.parametrize("pairs", [[NAMES[1:]], [[2, 1]], []])
def test_a_mirrored_evaluation_keeps_the_score_of_an_ideal_model(pairs, tmp_path):
    folder(tmp_path)
    dataset = open_dataset(settings(tmp_path, flip_pairs=pairs), "val")
    with_flip = Config().eval.model_copy(update={"flip": True})
    scores = [
        evaluate(Ideal(), dataset, view, device="cpu").scores for view in (Config().eval, with_flip)
    ]
    assert scores[0].iou == (1, 1, 1)
    assert (scores[1].iou == (1, 1, 1)) is bool(pairs)


def test_windows_exchange_the_channels_of_mirrored_windows():
    images = torch.randn(1, 3, 20, 24, generator=torch.Generator().manual_seed(0))

    def forward(crop: torch.Tensor) -> torch.Tensor:
        return crop * torch.linspace(0, 1, crop.shape[-1])

    mean = torch.zeros(1, 3, 20, 24)
    for left in (0, 12):
        window = images[..., left : left + 12]
        mirrored = forward(window.flip(-1)).softmax(1).flip(-1)[:, [0, 2, 1]]
        mean[..., left : left + 12] = (forward(window).softmax(1) + mirrored) / 2
    scores = tiles.predict_scores(forward, images, View((20, 12), 0.0, flip=True, mirror=(0, 2, 1)))
    torch.testing.assert_close(scores, mean)


def test_a_prediction_exchanges_the_classes_of_the_run_and_an_export_keeps_them(tmp_path):
    make_run(tmp_path / "run", mirror=(0, 2, 1, 3))
    pixels = picture(tmp_path / "a.png", 40, 50)
    export(tmp_path / "run", tmp_path / "export", ("safetensors",))
    for folder in ("run", "export"):
        once, turned, both = (
            load(tmp_path / folder, f"eval.flip={flip}", device="cpu").launch(
                [(image, "a.png")], True
            )()[0][1]
            for flip, image in (("false", pixels), ("false", pixels[:, ::-1]), ("true", pixels))
        )
        expected = (once.astype(np.float32) + turned.astype(np.float32)[[0, 2, 1, 3], :, ::-1]) / 2
        assert np.abs(both - expected).max() < 2e-3


@pytest.mark.parametrize(
    "pairs",
    [
        [["left ear", "tail"]],
        [["left ear", 3]],
        [["left ear", -1]],
        [["left ear", "left ear"]],
        [[1, "left ear"]],
        [["left ear", "right ear"], ["right ear", "background"]],
    ],
)
def test_pairs_that_are_none_are_refused(pairs):
    with refused("flip-pair-invalid", found=tuple(pairs[-1])):
        label_space(Data(classes=NAMES, flip_pairs=pairs))


def test_names_of_sides_are_found():
    names = [
        "Left Eye",
        "right eye",
        "l_ear",
        "r_ear",
        "copyright",
        "leftover",
        "L",
        "wall",
        "left lane",
    ]
    assert sides(names) == [["Left Eye", "right eye"], ["l_ear", "r_ear"]]
    space = plain_space(("background", "left", "right"))
    (found,) = flip_finding("data.flip", space)
    assert found.settings == {"data.flip_pairs": [["left", "right"]]}
    assert not found.fatal
    assert not flip_finding("", space)
    assert not flip_finding("data.flip", label_space(Data(classes=NAMES, flip_pairs=[[1, 2]])))


def test_the_exchange_is_kept_with_the_labels():
    space = label_space(Data(classes=NAMES, flip_pairs=[[1, 2]]))
    assert LabelSpace.from_dict(space.to_dict()) == space
    assert space.identity() == label_space(Data(classes=NAMES)).identity()
