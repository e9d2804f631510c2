"""Tests of the Python way to predict and to evaluate: equal to what the commands write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image
from predictable_runs import NAMES, make_run, picture

from segtrain import cli
from segtrain.api import evaluate
from segtrain.config import make_config
from segtrain.data.labels.presets import SCENES
from segtrain.infer import predict, predictor
from segtrain.infer.predictor import Predictor, load
from segtrain.infer.stream import Item, Waiting, grouped, segmented
from segtrain.models import build_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    make_run(folder)
    return folder


@pytest.fixture
def subject(run: Path) -> Predictor:
    return load(run, device="cpu")


def written(run: Path, image: Path, out: Path, *overrides: str) -> np.ndarray:
    (task,) = predict.predict(run, [image], out, overrides=overrides, device="cpu")
    return np.asarray(Image.open(task.mask))


INPUTS = {
    "path": lambda path, pixels: path,
    "text": lambda path, pixels: str(path),
    "array": lambda path, pixels: pixels,
    "tensor, channels first": lambda path, pixels: torch.from_numpy(pixels).permute(2, 0, 1),
    "tensor, channels last": lambda path, pixels: torch.from_numpy(pixels),
    "PIL image": lambda path, pixels: Image.fromarray(pixels),
    "batch of arrays": lambda path, pixels: pixels[None],
    "batch of tensors": lambda path, pixels: torch.from_numpy(pixels).permute(2, 0, 1)[None],
    "list": lambda path, pixels: [pixels],
}


@pytest.mark.parametrize("kind", INPUTS)
def test_each_kind_of_image_gives_the_mask_that_the_command_writes(subject, run, tmp_path, kind):
    path = tmp_path / "a.png"
    pixels = picture(path, 70, 90)
    (mask,) = subject.predict(INPUTS[kind](path, pixels))
    assert mask.dtype == np.uint8
    assert mask.shape == (70, 90)
    assert len(np.unique(mask)) > 1
    assert np.array_equal(mask, written(run, path, tmp_path / "out"))


@pytest.mark.parametrize("mode", ["P", "YCbCr", "HSV"])
def test_a_pil_image_of_another_mode_is_read_in_its_colors(subject, tmp_path, mode):
    image = Image.fromarray(picture(tmp_path / "a.png", 40, 50)).convert(mode)
    (found,), (expected,) = (
        subject.predict(image),
        subject.predict(np.asarray(image.convert("RGB"))),
    )
    assert np.array_equal(found, expected)


def test_images_of_several_sizes_and_kinds_keep_their_order(subject, tmp_path):
    first, second = picture(tmp_path / "a.png", 40, 50), picture(tmp_path / "b.png", 33, 60, seed=1)
    masks = subject.predict([first, tmp_path / "b.png", torch.from_numpy(second)])
    assert [mask.shape for mask in masks] == [(40, 50), (33, 60), (33, 60)]
    assert np.array_equal(masks[1], masks[2])
    assert subject.predict([]) == []
    assert all(map(np.array_equal, subject.predict(iter([first, second])), masks[:2]))


def test_images_wait_for_others_of_their_size_but_not_for_long():
    def item(key: int, height: int) -> Item:
        return Item(np.zeros((height, 8, 3), np.uint8), "", key)

    order = [item(k, height) for k, height in enumerate([1, 2, 1, 1, 3, 1, 2, 2, 1, 2, 2])]
    groups = [[one.key for one in group] for group in grouped(order, lambda size: 4)]
    assert groups == [[0, 2, 3, 5], [1, 6, 7, 9], [4], [8], [10]]
    # Of 100 sizes, each image waits for at most 7 others to come.
    read: list[int] = []
    many = (read.append(k) or item(k, 1 + k % 100) for k in range(300))
    seen = 0
    for group in grouped(many, lambda size: 4):
        assert len(read) - seen <= 2 * 4
        seen += len(group)
    assert seen == 300


def test_a_batch_that_does_not_fit_into_the_memory_of_the_gpu_is_divided(subject, monkeypatch):
    images = [np.random.default_rng(k).integers(0, 256, (40, 48, 3), np.uint8) for k in range(10)]
    expected, launch, sizes = subject.predict(images), subject.launch, []

    def small(batch: list, probabilities: bool) -> Waiting:
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.cuda.OutOfMemoryError
        return launch(batch, probabilities)

    monkeypatch.setattr(subject, "launch", small)
    for asynchronous in (False, True):  # True: a batch is waited for when the next one is launched
        monkeypatch.setattr(subject, "asynchronous", asynchronous)
        sizes.clear()
        found = list(
            segmented(subject, (Item(pixels, "", k) for k, pixels in enumerate(images)), 8)
        )
        assert sizes == [8, 4, 2, 2, 4, 2, 2, 2]
        assert [item.key for item, _ in found] == list(range(10))
        assert all(np.array_equal(ids, mask) for (_, (ids, _)), mask in zip(found, expected))


def test_overrides_and_the_last_checkpoint(run, tmp_path):
    pixels = picture(tmp_path / "a.png", 90, 70)
    tiled = load(run, "eval.tile=[32,32]", "eval.flip=true", device="cpu").predict(pixels)[0]
    assert np.array_equal(
        tiled,
        written(run, tmp_path / "a.png", tmp_path / "out", "eval.tile=[32,32]", "eval.flip=true"),
    )
    last = load(run, which="last", device="cpu").predict(pixels)[0]
    assert not np.array_equal(last, load(run, device="cpu").predict(pixels)[0])


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 5, 3), np.float32),
        np.zeros((4, 5), np.uint16),
        np.zeros((4, 5, 4), np.uint8),
        np.zeros((0, 5, 3), np.uint8),
        torch.zeros(3, 4, 5),
        torch.zeros(1, 4, 5, dtype=torch.uint8),
    ],
    ids=["float array", "gray of 16 bits", "four channels", "empty", "float tensor", "one channel"],
)
def test_other_types_and_shapes_are_refused(subject, image):
    with refused("image-array", found=tuple(image.shape), dtype=str(np.asarray(image).dtype)):  # type: ignore[attr-defined]
        subject.predict(image)  # type: ignore[arg-type]


def test_a_gray_array_is_read_as_a_gray_file_and_other_inputs_say_what_to_pass(subject, tmp_path):
    gray = picture(tmp_path / "a.png", 40, 50)[..., 0]
    Image.fromarray(gray).save(tmp_path / "gray.png")
    masks = [
        subject.predict(image)[0]
        for image in (gray, torch.from_numpy(gray.copy()), tmp_path / "gray.png")
    ]
    assert np.array_equal(masks[0], masks[2])
    assert np.array_equal(masks[1], masks[2])
    with refused("image-is-a-folder", file=str(tmp_path)):
        subject.predict(str(tmp_path))
    with refused("image-array", dtype="object") as info:
        subject.predict(None)  # type: ignore[arg-type]
    assert "NoneType" in str(info.value)


def test_an_image_that_does_not_fit_is_named(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(predictor, "free_memory", lambda device: 1.0)
    said: list[str] = []
    subject.say = said.append
    subject.predict([np.zeros((4, 4, 3), np.uint8), picture(tmp_path / "a.png", 200, 260)])
    assert [line.partition(":")[0] for line in said] == ["image 0", "image 1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there(run):
    with refused("no-gpu", device="cuda"):
        load(run, device="cuda")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on generated scenes."""
    folder = tmp_path_factory.mktemp("runs") / "scenes"
    config = make_config(
        {"model": {"arch": "pico"}, "data": {"scenes": 8, "scene_size": [48, 64], "crop": [32, 32]}}
    )
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "labels.json").write_text(json.dumps(SCENES.to_dict()))
    torch.manual_seed(0)
    content = {
        "format": 2,
        "step": 1,
        "model": build_model(config.model, SCENES.num_classes).state_dict(),
        "ema": None,
    }
    torch.save(content, folder / "checkpoints/step-00000001.pt")
    return folder


@pytest.mark.parametrize("overrides", [[], ["data.split=train", "eval.flip=true"]])
def test_evaluate_gives_the_scores_of_the_command(scored, capsys, overrides):
    found = evaluate(scored, *overrides)
    assert capsys.readouterr().out == ""
    assert cli.main(["eval", str(scored), "--json", *overrides]) == 0
    told = json.loads(capsys.readouterr().out)
    assert found.miou == told["miou"] > 0
    assert list(found.per_class) == told["class_names"] == list(SCENES.names)
    known = [iou for iou in told["iou"] if iou is not None]
    assert [iou for iou in found.per_class.values() if iou == iou] == known
    assert (found.accuracy, found.mean_dice) == (told["accuracy"], told["mean_dice"])
    assert {**found.values, "seconds": 0} == {**told, "seconds": 0}


def test_evaluate_writes_what_it_is_asked_for(scored, tmp_path):
    evaluate(scored, images=tmp_path / "images", confusion=str(tmp_path / "confusion.json"))
    assert (tmp_path / "images/images.csv").is_file()
    counts = json.loads((tmp_path / "confusion.json").read_text())["pixels"]
    assert sum(map(sum, counts)) == sum(evaluate(scored).values["pixels"])


def test_evaluate_on_another_folder(run, tmp_path):
    """The run has four classes, and reads its images from a folder when it is told so."""
    with refused("class-count-differs", found=10, expected=4):
        evaluate(run)
    for split, seed in (("val", 1), ("train", 2)):
        picture(tmp_path / f"data/{split}/images/a.png", 40, 50, seed)
        (tmp_path / f"data/{split}/masks").mkdir()
        ids = np.random.default_rng(seed).integers(0, len(NAMES), (40, 50), np.uint8)
        Image.fromarray(ids).save(tmp_path / f"data/{split}/masks/a.png")
    settings = [
        "data.layout=folders",
        f"data.classes={json.dumps(list(NAMES))}",
        "data.images={split}/images",
        "data.masks={split}/masks",
    ]
    found = evaluate(run, *settings, data=tmp_path / "data")
    assert found.values["protocol"]["images"] == 1
    assert sum(found.values["pixels"]) == 40 * 50


@pytest.mark.parametrize("overrides", [(), ("eval.tile=[32,32]",)])
@pytest.mark.parametrize("probabilities", [False, True])
def test_logits_that_are_not_finite_name_the_image(run, overrides, probabilities):
    subject = load(run, *overrides, device="cpu")
    next(subject.model.parameters()).data.fill_(float("nan"))
    with refused("logits-not-finite", images=["a.png"]):
        subject.launch([(np.zeros((40, 50, 3), np.uint8), "a.png")], probabilities)()
