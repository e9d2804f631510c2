"""Tests that custom augmentation is reproducible in any thread, process, and order, with true
labels.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conftest import refused

from segtrain.config import Data, load_config
from segtrain.data.augment.transforms import Transforms
from segtrain.data.augment.transforms_build import albumentations
from segtrain.data.datasets import open_dataset
from segtrain.data.sample import SampleMaker, Task, rehearse
from segtrain.errors import ConfigError, DataError, SegtrainError

VOID = 255
CROP = (48, 64)


@pytest.fixture(scope="module")
def A() -> Any:
    try:
        return albumentations()
    except SegtrainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def v2() -> Any:
    pytest.importorskip(
        "torchvision.tv_tensors", reason="torchvision before 0.16 has no tv_tensors"
    )
    from torchvision.transforms import v2

    return v2


def data(**settings: Any) -> Data:
    return Data(scenes=8, scene_size=(60, 80), crop=CROP, **settings)


def pair(seed: int = 0, size: tuple[int, int] = CROP) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    coarse = rng.choice(np.array([1, 4, 7, 9], np.uint8), (6, 8))
    mask = cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_NEAREST)
    return rng.integers(0, 256, (*size, 3), np.uint8), mask


def run(
    transforms: Any,
    key: tuple[int, int, int] = (0, 0, 0),
    seed: int = 0,
    size: tuple[int, int] = CROP,
) -> Any:
    if not isinstance(transforms, Transforms):
        transforms = Transforms(transforms, VOID)
    out = np.zeros((*CROP, 3), np.uint8), np.zeros(CROP, np.uint8)
    transforms(pair(seed, size), out, key, "a.png")
    return out


def rich(A: Any) -> Any:
    """Nested choices, geometry, noise: what draws from every kind of random number that
    albumentations has.
    """
    return A.Compose(
        [
            A.OneOf(
                [A.HorizontalFlip(p=1), A.Sequential([A.VerticalFlip(p=0.5), A.Transpose(p=0)])],
                p=0.8,
            ),
            A.SomeOf(
                [A.GaussNoise(p=1), A.RandomBrightnessContrast(p=1), A.CoarseDropout(p=1)], n=2
            ),
            A.Affine(rotate=(-20, 20), scale=(0.8, 1.2), p=0.7),
            A.ElasticTransform(p=0.3),
            A.ISONoise(p=0.3),
        ]
    )


def rich_v2(v2: Any) -> Any:
    from torchvision.tv_tensors import Mask

    fill = {Mask: VOID, "others": 0}
    return v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomChoice([v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomPhotometricDistort()]),
            v2.RandomApply([v2.RandomRotation(20, fill=fill)], p=0.7),
            v2.RandomOrder([v2.GaussianBlur(3), v2.RandomInvert(0.2)]),
            v2.ElasticTransform(20.0, fill=fill),
        ]
    )


@pytest.mark.parametrize("library", ["albumentations", "torchvision"])
def test_threads_and_order_change_nothing(library, request):
    pipeline = (
        rich(request.getfixturevalue("A"))
        if library == "albumentations"
        else rich_v2(request.getfixturevalue("v2"))
    )
    transforms = Transforms(pipeline, VOID)
    keys, state = (
        [(3, epoch, index) for epoch in range(2) for index in range(8)],
        torch.get_rng_state(),
    )
    plain = {key: run(transforms, key, key[2]) for key in keys}
    assert len({image.tobytes() for image, _ in plain.values()}) == len(keys)  # it does draw
    backwards = list(reversed(keys))
    random.Random(0).shuffle(backwards)
    with ThreadPoolExecutor(4) as pool:
        for key, made in zip(
            backwards, pool.map(lambda key: run(transforms, key, key[2]), backwards)
        ):
            assert all(np.array_equal(a, b) for a, b in zip(plain[key], made)), key
    assert torch.equal(state, torch.get_rng_state())
    again = pickle.loads(pickle.dumps(transforms))  # as in another process
    assert all(
        np.array_equal(a, b)
        for key in keys[:8]
        for a, b in zip(plain[key], run(again, key, key[2]))
    )


def test_image_and_mask_move_together(A, v2):
    """An image whose red is its own label stays so, wherever labels were not made void."""
    from torchvision.tv_tensors import Mask

    nearest = v2.InterpolationMode.NEAREST
    fill = {Mask: VOID, "others": 0}
    for pipeline in (
        A.HorizontalFlip(p=1),
        A.RandomResizedCrop(size=CROP, interpolation=0, p=1),
        A.Affine(rotate=30, translate_px=5, interpolation=0, p=1),
        A.RandomRotate90(p=1),
        v2.RandomAffine(30, translate=(0.1, 0.1), interpolation=nearest, fill=fill),
        v2.RandomHorizontalFlip(1.0),
    ):
        labels = np.arange(CROP[0] * CROP[1], dtype=np.uint32).reshape(CROP) // 40 % 200
        # a quarter turn keeps its size
        square = np.ascontiguousarray(labels.astype(np.uint8)[:, :48])
        image = np.repeat(square[..., None], 3, axis=2)
        out = np.zeros_like(image), np.zeros_like(square)
        if type(pipeline).__name__ == "RandomResizedCrop":
            pipeline = A.RandomResizedCrop(size=square.shape, interpolation=0, p=1)
        for index in range(4):
            Transforms(pipeline, VOID)((image.copy(), square.copy()), out, (0, 0, index), "a.png")
            valid = out[1] != VOID
            assert valid.any()
            assert np.array_equal(out[0][..., 0][valid], out[1][valid]), pipeline
    assert not np.array_equal(out[1], square)


PADDING = {
    "PadIfNeeded": {"min_height": 60, "min_width": 80},
    "CropAndPad": {"px": 6},
    "Affine": {"rotate": 30, "scale": 0.5},
    "RandomCrop": {"height": 60, "width": 80, "pad_if_needed": True},
    "Rotate": {"limit": (30, 30)},
}


@pytest.mark.parametrize("name", PADDING)
def test_masks_are_padded_with_void(A, name):
    """albumentations pads masks with 0 by default: after it they hold the ids of before and void
    alone.
    """
    keeps = {"border_mode": cv2.BORDER_CONSTANT}
    transforms = Transforms(A.Compose([getattr(A, name)(**PADDING[name], **keeps, p=1)]), VOID)
    assert name in transforms.notes[0]
    image, mask = pair()
    made = transforms._runner()(image, mask, np.random.default_rng(0))[1]
    assert {VOID} < set(np.unique(made)) <= {1, 4, 7, 9, VOID}


def test_a_fill_that_was_given_is_kept(A):
    left = A.PadIfNeeded(60, 80, border_mode=0, fill_mask=9)
    assert not Transforms(left, VOID).notes
    assert left.fill_mask == 9
    mine = A.PadIfNeeded(60, 80, border_mode=0)
    Transforms(mine, VOID)
    assert mine.fill_mask == 0  # the caller's own object is not touched


def test_what_would_harm_labels_is_refused(A, v2):
    with refused("transforms-blend-mask", found="Affine"):
        Transforms(A.Compose([A.OneOf([A.Affine(mask_interpolation=1)])]), VOID)
    with refused("transforms-fill-mask", found="RandomRotation"):
        Transforms(v2.Compose([v2.RandomApply([v2.RandomRotation(20)])]), VOID)
    Transforms(v2.RandomCrop(20), VOID)  # does not pad
    with refused("transforms-new-ids", file="a.png", found=[2, 5, 8]):
        run(lambda image, mask, rng: (image, np.where(mask < 9, mask + 1, mask).astype(np.uint8)))


def test_floats_and_other_sizes_are_refused(A, v2):
    with pytest.raises(
        DataError, match="float32: segtrain normalizes on the device: remove Normalize"
    ):
        run(A.Normalize())
    with refused("transforms-wrong-type", part="image", found=("ndarray", "float32")):
        run(v2.ToDtype(torch.float32, scale=True))
    tensors = pytest.importorskip("albumentations.pytorch")
    with refused("transforms-wrong-type", part="image", found=("Tensor", "torch.uint8")):
        run(tensors.ToTensorV2())
    with pytest.raises(
        DataError,
        match=r"image has the shape \(32, 32, 3\), the batch needs \(48, 64, 3\).*crop=\[48, 64\]",
    ):
        run(A.RandomCrop(32, 32))
    with refused("transforms-failed", file="a.png", found="ValueError: no"):
        run(_fails)
    with refused("transforms-failed", file="a.png", found="SystemExit: 3"):
        run(_leaves)
    torchvision = pytest.importorskip("torchvision")
    with refused("transforms-without-masks", found="ColorJitter"):
        Transforms(torchvision.transforms.ColorJitter(0.1), VOID)
    for wrong in (A.HorizontalFlip, 5):
        with refused("not-a-transform"):
            Transforms(wrong, VOID)


def _leaves(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> Any:
    sys.exit(3)


def _fails(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> Any:
    raise ValueError("no")


def test_instead_gets_the_whole_image(A):
    settings = data(transforms_mode="replace", flip=1.0, jitter=(0.9, 0.9, 0.9), cache="ram")
    dataset = open_dataset(settings, "train")
    sampler = SampleMaker(dataset, settings, 0, A.CenterCrop(*CROP))
    image, mask = dataset.read(3)
    out = np.zeros((*CROP, 3), np.uint8), np.zeros(CROP, np.uint8)
    sampler(Task(3, 0, CROP, (1.0, 1.0)), *out)
    assert np.array_equal(out[0], image[6:54, 8:72])
    assert np.array_equal(out[1], mask[6:54, 8:72])
    with refused("transforms-wrong-size", found=(60, 80, 3), expected=(48, 64, 3)):
        SampleMaker(dataset, settings, 0, A.HorizontalFlip())(Task(3, 0, CROP, (1.0, 1.0)), *out)


def test_after_works_on_the_crop(A):
    plain, flipped = data(), data(transforms=({"HorizontalFlip": {"p": 1.0}},))
    dataset = open_dataset(plain, "train")
    a, b = ((np.zeros((*CROP, 3), np.uint8), np.zeros(CROP, np.uint8)) for _ in range(2))
    SampleMaker(dataset, plain, 0)(Task(1, 2, CROP, (0.5, 2.0)), *a)
    SampleMaker(dataset, flipped, 0)(Task(1, 2, CROP, (0.5, 2.0)), *b)
    assert np.array_equal(a[0], b[0][:, ::-1])
    assert np.array_equal(a[1], b[1][:, ::-1])


def test_ways_to_name_a_pipeline(A, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = A.Compose(
        [A.OneOf([A.HorizontalFlip(p=1), A.VerticalFlip(p=1)], p=1), A.GaussNoise(p=1)]
    )
    for form in ("yaml", "json"):
        A.save(pipeline, f"aug.{form}", data_format=form)
    code = "import albumentations as A\npipeline = A.Compose([A.OneOf([A.HorizontalFlip(p=1), A.VerticalFlip(p=1)], p=1), A.GaussNoise(p=1)])\n"
    Path("own_aug.py").write_text(code)
    inline = "[{OneOf: {transforms: [{HorizontalFlip: {p: 1}}, {VerticalFlip: {p: 1}}], p: 1}}, {GaussNoise: {p: 1}}]"
    configs = {
        text: load_config(None, [f"data.transforms={text}"])
        for text in ("aug.yaml", "aug.json", "own_aug.py:pipeline", "own_aug:pipeline", inline)
    }
    expected = run(pipeline)
    for text, config in configs.items():
        assert all(np.array_equal(a, b) for a, b in zip(expected, run(config.data.transforms))), (
            text
        )
    assert configs["aug.yaml"].hash == configs["aug.json"].hash
    sys.modules.pop("own_aug")


def test_what_a_file_holds_is_in_the_hash(A, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hashes = set()
    for p in (0.1, 0.2):
        A.save(A.HorizontalFlip(p=p), "aug.json")
        Path("own.py").write_text(
            f"import albumentations as A\npipeline = A.HorizontalFlip(p={p})\n"
        )
        both = [
            load_config(None, [f"data.transforms={text}"])
            for text in ("aug.json", "own.py:pipeline")
        ]
        hashes |= {config.hash for config in both}
        resolved = tmp_path / f"{p}.yaml"
        resolved.write_text(both[1].to_yaml())
        assert load_config(resolved, ["name=run"]).hash == both[1].hash
    assert len(hashes) == 4
    # can be read, so that its run can be scored; but not trained
    old = load_config(tmp_path / "0.1.yaml")
    with refused("transforms-file-changed"):
        Transforms(old.data.transforms, VOID)
    Path("aug.json").unlink()
    assert json.loads(json.dumps(both[0].data.transforms))["transform"]["p"] == 0.2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nowhere.yaml", "nowhere.yaml': cannot be read"),
        ("nowhere.py:x", "the file 'nowhere.py' was not found"),
        ("no.module:x", "module 'no.module' was not found"),
        ("flip", "file.py:attribute"),
        ("[{HorizontalFlipp: {}}]", "did you mean 'HorizontalFlip'"),
        (
            "[{HorizontalFlip: {prob: 1}}]",
            "HorizontalFlip of albumentations .* has no setting prob",
        ),
        ("[{HorizontalFlip: {p: 7}}]", "cannot build it"),
        ("[{A: {}, B: {}}]", "one name with its settings"),
        ("{transform: {__class_fullname__: Nothing}}", "cannot build it"),
    ],
)
def test_mistakes_in_the_setting(A, setting, words):
    with pytest.raises(ConfigError, match=words):
        Transforms(load_config(None, [f"data.transforms={setting}"]).data.transforms, VOID)


def test_a_script_that_ends_when_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(
        "import sys\ndef augment(image, mask): return image, mask\nsys.exit(4)\n"
    )
    with refused("transforms-import-fails", found="SystemExit: 4"):
        Transforms(load_config(None, ["data.transforms=script.py:augment"]).data.transforms, VOID)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(SegtrainError, match=r"pip install 'segtrain\[albumentations\]'"):
        Transforms([{"HorizontalFlip": {}}], VOID)


def _unseeded(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> Any:
    return np.roll(image, np.random.randint(0, 9), 1), mask


@dataclass
class _Counts:
    calls: int = 0

    def __call__(self, image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> Any:
        self.calls += 1
        return np.roll(image, self.calls, 1), mask


def _seeded(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> Any:
    shift = int(rng.random() * 9)
    return np.roll(image, shift, 1), np.roll(mask, shift, 1)


def test_a_pipeline_that_cannot_be_repeated_is_refused(A):
    settings = data()
    dataset = open_dataset(settings, "train")
    assert rehearse(dataset, settings, 0) == ()
    assert rehearse(dataset, settings, 0, _seeded) == ()
    assert "class 0" in rehearse(dataset, settings, 0, A.Affine(rotate=9))[0]
    with pytest.raises(ConfigError, match=r"draw from numpy.random.*rng argument"):
        rehearse(dataset, settings, 0, _unseeded)
    with refused("transforms-not-repeatable", found="give other pixels when they are called again"):
        rehearse(dataset, settings, 0, _Counts())


def test_settings_that_exclude_each_other():
    for overrides, words in (
        (
            ["data.transforms_mode=replace", "data.class_balanced_crop_prob=0.5"],
            "data.class_balanced_crop_prob",
        ),
        (["data.transforms_mode=replace", "train.progressive=[[0.5,0.5]]"], "train.progressive"),
        (["data.faults=skip", "data.check=off"], "data.check=full"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config(None, ["data.transforms=[{HorizontalFlip: {}}]", *overrides])
