"""Every image counts once, in int64, on any number of ranks: the same confusion to the bit, and no
rank waits for ever.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conftest import refused
from torch import Tensor, nn

import segtrain
from segtrain.config import Eval, Loss
from segtrain.data.generated import GeneratedDataset
from segtrain.data.index.entries import Entry
from segtrain.data.labels.space import plain_space
from segtrain.data.train_loader import normalize
from segtrain.errors import DataError
from segtrain.evaluation.evaluation import evaluate
from segtrain.evaluation.hausdorff import hausdorff
from segtrain.evaluation.image_scores import class_dice
from segtrain.evaluation.region import inside
from segtrain.evaluation.tiles import View, nearest, predict_scores
from segtrain.losses import DiceLoss, build_criterion
from segtrain.models.base import normalization
from segtrain.parallel import collective

CLASSES = 5
SIZES = ((24, 32), (17, 40), (33, 21), (24, 31))


def draw(index: int) -> tuple[np.ndarray, np.ndarray]:
    """A noisy image of mixed size whose blobs carry the labels; some void."""
    rng = np.random.default_rng(index)
    height, width = SIZES[index * 7 % len(SIZES)]
    mask = np.kron(rng.integers(0, CLASSES, (9, 11)), np.ones((4, 4), np.int64))[
        :height, :width
    ].astype(np.uint8)
    image = (
        (mask[..., None] * [40, 20, 50] + rng.normal(0, 30, (height, width, 3)))
        .clip(0, 255)
        .astype(np.uint8)
    )
    mask[rng.random(mask.shape) < 0.1] = 255
    return image, mask


class Mixed(GeneratedDataset):
    """101 images of four sizes."""

    def size(self, index: int) -> tuple[int, int]:
        return SIZES[index * 7 % len(SIZES)]


def mixed(count: int = 101) -> Mixed:
    entries = tuple(Entry(f"image {index}", None, {}) for index in range(count))
    names = tuple(f"class {index}" for index in range(CLASSES))
    return Mixed("mixed", "val", plain_space(names), entries, make=draw)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(3, 8, 5, padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, CLASSES, 3, padding=1),
    ]
    return nn.Sequential(*layers)


WEIGHTS = (1.0, 0.5, 2.0, 1.0, 3.0)
CRITERION = build_criterion(Loss(terms=["ce", "dice"], class_weights=WEIGHTS), CLASSES)
VIEWS = {
    "whole": Eval(batch_size=4, hausdorff=True, leave_out=("class 1",)),
    "windows": Eval(batch_size=3, tile=(16, 18), overlap=0.4, flip=True),
    "scales": Eval(batch_size=2, scales=(0.75, 1.5), size=(20, 28)),
}


def slow_truth(model: nn.Module, dataset: GeneratedDataset, settings: Eval) -> np.ndarray:
    """The confusion by plain loops over single images and pixels, for whole images at their own
    size.
    """
    table = np.zeros((CLASSES, CLASSES), np.int64)
    model.eval()
    for index in range(len(dataset)):
        image, mask = dataset.read(index)
        pixels = (image / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        with torch.no_grad():
            guess = (
                model(torch.tensor(pixels, dtype=torch.float32).permute(2, 0, 1)[None])[0]
                .argmax(0)
                .numpy()
            )
        for truth, prediction in zip(mask.ravel(), guess.ravel()):
            if truth != 255:
                table[truth, prediction] += 1
    return table


def test_confusion_is_that_of_plain_loops():
    model, dataset = network(), mixed(9)
    result = evaluate(model, dataset, VIEWS["whole"])
    expected = slow_truth(model, dataset, VIEWS["whole"])
    # A float32 sum in another order may move a pixel that lies on the fence: nearly all must agree.
    assert np.abs(result.confusion - expected).sum() <= 4
    assert result.confusion.dtype == np.int64
    assert result.confusion.sum() == sum(int((dataset.read(i)[1] != 255).sum()) for i in range(9))


def test_batches_and_workers_change_nothing():
    model, dataset = network(), mixed(23)
    torch.set_num_threads(1)
    one = evaluate(model, dataset, Eval(batch_size=1))
    threads = evaluate(model, dataset, Eval(batch_size=1), workers=3, prefetch=2)
    batches = evaluate(model, dataset, Eval(batch_size=5))
    assert np.array_equal(one.confusion, threads.confusion)
    assert np.abs(one.confusion - batches.confusion).sum() <= 4


@pytest.mark.parametrize("view", VIEWS)
def test_the_loss_is_the_mean_over_all_valid_pixels_by_their_weights(view):
    """Of cross-entropy; that of Dice is the mean over the classes of each image."""
    model, dataset = network().eval(), mixed(9)
    criterion = build_criterion(Loss(class_weights=WEIGHTS), CLASSES)
    result = evaluate(model, dataset, VIEWS[view], criterion=criterion)
    total = weight = 0.0
    settings = VIEWS[view]
    for index in range(9):
        image, mask = dataset.read(index)
        inputs = normalize(torch.from_numpy(image)[None], *normalization(model), False)
        truth = torch.from_numpy(mask)[None]
        truth = nearest(truth, settings.size) if settings.size else truth
        with torch.no_grad():
            scores = predict_scores(
                model, inputs, View.of(settings, 1.0), (truth.shape[1], truth.shape[2])
            ).double()
        logits = scores if view == "whole" else scores.log()
        for logit, label in zip(logits[0].flatten(1).T, truth.flatten().tolist()):
            if label != 255:
                total += WEIGHTS[label] * float(torch.logsumexp(logit, 0) - logit[label])
                weight += WEIGHTS[label]
    assert result.more["loss"] == pytest.approx(total / weight, rel=1e-5)


def test_the_dice_loss_is_the_mean_over_the_classes_of_each_image():
    model, dataset = network(), mixed(3)
    result = evaluate(
        model, dataset, Eval(), criterion=build_criterion(Loss(terms="dice"), CLASSES)
    )
    term, sums = DiceLoss(CLASSES), []
    for index in range(3):
        image, mask = (torch.from_numpy(array)[None] for array in dataset.read(index))
        with torch.no_grad():
            logits = model.eval()(normalize(image, *normalization(model), False))
        sums.append([float(part) for part in term.sum_and_count(logits, mask)])
    total, count = np.sum(sums, 0)
    assert result.more["loss"] == pytest.approx(total / count, rel=1e-6)


def test_an_image_without_a_class_does_not_count_in_its_dice():
    counts = np.array([[[4, 0], [4, 0], [8, 8]], [[2, 6], [8, 8], [4, 12]]])  # (image, kind, class)
    assert class_dice(counts) == ((8 / 12 + 4 / 12) / 2, 12 / 20)


def test_the_hausdorff_distance_is_that_between_outlines():
    truth, guess = np.zeros((2, 40, 60), np.uint8)
    truth[5:15, 5:15] = 1
    guess[5:15, 12:22] = 1
    apart = hausdorff(truth, guess, 3, 255)
    ours, theirs = (
        [(y, x) for y in range(5, 15) for x in range(left, left + 10) if y in (5, 14) or x in ends]
        for left, ends in ((5, (5, 14)), (12, (12, 21)))
    )
    there = [min(np.hypot(y - v, x - u) for v, u in theirs) for y, x in ours]
    back = [min(np.hypot(y - v, x - u) for v, u in ours) for y, x in theirs]
    assert apart[1] == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)))
    assert np.isnan(apart[2])  # in neither
    guess[:, 15:] = 0
    truth[:, 15:] = 255  # what is void does not count
    guess[5:15, 15:30] = 1
    assert hausdorff(truth, guess, 3, 255)[1] <= 7


def test_the_means_are_over_the_classes_that_are_named():
    model, dataset = network(), mixed(9)
    whole = evaluate(model, dataset, Eval())
    over = evaluate(model, dataset, Eval(mean_over=("class 3", "class 2")))
    without = evaluate(model, dataset, Eval(leave_out=("class 0", "class 1", "class 4")))
    assert over.scores == without.scores
    assert over.scores.iou == whole.scores.iou
    assert over.scores.miou == pytest.approx(np.mean(whole.scores.iou[2:4]))
    assert over.scores.mean_precision == pytest.approx(np.mean(whole.scores.precision[2:4]))
    assert over.values()["classes"] == 2
    assert over.protocol["mean_over"] == ["class 2", "class 3"]
    assert "mean over class 2 class 3, mixed" in over.protocol["line"]
    with refused("no-such-class", key="eval.leave_out", found="clas 0"):
        evaluate(model, dataset, Eval(leave_out=("clas 0",)))
    with refused("no-class-counts"):
        evaluate(model, dataset, Eval(leave_out=dataset.labels.names))


@pytest.mark.parametrize("pattern", ["fov", "fov/{name}.png"])
def test_only_pixels_inside_the_region_count(tmp_path, pattern):
    (tmp_path / "fov").mkdir()
    base, pixels = mixed(4), 0
    for index in range(4):
        mask = draw(index)[1]
        region = np.zeros(mask.shape, np.uint8)
        region[:, 5:20] = 255
        pixels += int((mask[:, 5:20] != 255).sum())
        cv2.imwrite(f"{tmp_path}/fov/image {index}.png", region)
    whole = Mixed("mixed", "val", base.labels, base.entries, root=str(tmp_path), make=draw)
    part = inside(whole, pattern)
    results = [evaluate(network(), data, Eval(region=pattern)) for data in (whole, part)]
    assert [int(result.confusion.sum()) for result in results] == [
        sum(int((draw(index)[1] != 255).sum()) for index in range(4)),
        pixels,
    ]
    assert results[0].protocol["split_hash"] != results[1].protocol["split_hash"]
    assert f"inside {pattern}" in results[1].protocol["line"]
    assert set(part.read(0)[1][:, :5].ravel()) == {255}
    cv2.imwrite(f"{tmp_path}/fov/image 3.png", np.ones((3, 4), np.uint8))
    with refused("region-size"):
        evaluate(network(), part, Eval())
    (tmp_path / "fov/image 2.png").unlink()
    with refused("region-missing", found=[]):
        inside(whole, pattern)


def test_labels_go_to_the_given_size_by_nearest():
    class Truth(nn.Module):
        """Logits from the red channel: 40 x class id, so that a noise-free image gives its own
        label.
        """

        def forward(self, images: Tensor) -> Tensor:
            red = (images[:, :1] * 0.229 + 0.485) * 255 / 40
            return -(red - torch.arange(CLASSES).view(1, -1, 1, 1)).abs()

    def flat(index: int) -> tuple[np.ndarray, np.ndarray]:
        mask = draw(index)[1]
        return np.repeat((np.where(mask == 255, 0, mask) * 40)[..., None], 3, 2).astype(
            np.uint8
        ), mask

    base = mixed(6)
    dataset = Mixed("flat", "val", base.labels, base.entries, make=flat)
    own = evaluate(Truth(), dataset, Eval())
    assert own.scores.miou == 1.0
    assert own.confusion.sum() == np.trace(own.confusion)
    half = evaluate(Truth(), dataset, Eval(size=(12, 10)))
    truth = torch.cat(
        [nearest(torch.from_numpy(flat(index)[1])[None], (12, 10)) for index in range(6)]
    )
    counts = torch.bincount(truth[truth != 255].long(), minlength=CLASSES).numpy()
    assert np.array_equal(half.confusion.sum(1), counts)
    assert half.protocol["size"] == [12, 10]
    assert half.protocol["labels_resized"]


def test_protocol_says_all_a_score_depends_on():
    dataset = mixed(8)
    result = evaluate(network(), dataset, VIEWS["windows"], pictures=3)
    facts = result.protocol
    assert facts["split_hash"] == evaluate(network(1), dataset, Eval()).protocol["split_hash"]

    def corrected(index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = draw(index)
        mask[0, 0] = (mask[0, 0] + 1) % CLASSES  # in a file of the same size
        return image, mask

    after = Mixed("mixed", "val", dataset.labels, dataset.entries, make=corrected)
    assert after.fingerprint() == dataset.fingerprint()
    assert evaluate(network(), after, Eval()).protocol["split_hash"] != facts["split_hash"]
    content = json.loads(json.dumps(result.to_dict()))
    assert content["miou"] == result.scores.miou
    assert content["protocol"] == facts
    other = evaluate(network(), dataset, VIEWS["scales"]).protocol
    assert "scales 0.75 1.5" in other["line"]
    assert "labels resized to 20x28" in other["line"]
    assert [picture.name for picture in result.pictures] == ["image 1", "image 4", "image 6"]
    assert all(
        p.image.shape == (*p.truth.shape, 3) and p.truth.shape == p.prediction.shape
        for p in result.pictures
    )


def test_base_scale_multiplies_the_scales():
    sizes: list[tuple[int, ...]] = []

    class Watched(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            sizes.append(tuple(images.shape[-2:]))
            return images.new_zeros(len(images), CLASSES, *images.shape[-2:])

    result = evaluate(Watched(), mixed(1), Eval(scales=(1.0, 2.0)), base_scale=0.5)
    assert sizes == [(12, 16), (24, 32)]
    assert result.protocol["scales"] == [0.5, 1.0]


def test_layers_keep_their_modes_and_statistics():
    model = network().train()
    model[1].eval()  # a frozen batch norm
    before = {key: value.clone() for key, value in model.state_dict().items()}
    evaluate(model, mixed(3), Eval())
    assert model.training
    assert model[0].training
    assert not model[1].training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_one_collective_and_none_in_the_loop():
    calls: list[Tensor] = []
    dataset = mixed(5)

    def summed(value: Tensor) -> Tensor:
        calls.append(value)
        return value

    with refused("images-not-counted-once", found=2, images=5):
        evaluate(
            network(), dataset, Eval(), rank=0, world_size=2, all_reduce=summed
        )  # the other rank never adds its share
    assert len(calls) == 1
    assert calls[0].dtype == torch.int64


def test_a_file_that_fails_is_told_to_all_ranks_first():
    def broken(index: int) -> tuple[np.ndarray, np.ndarray]:
        if index == 1:
            raise DataError("image 1: cannot be decoded", code="image-damaged")
        return draw(index)

    base = mixed(5)
    dataset = Mixed("broken", "val", base.labels, base.entries, make=broken)
    told: list[int] = []

    def summed(value: Tensor) -> Tensor:
        told.append(int(value[-1]))
        return value

    model = network().train()
    with refused("image-damaged"):
        evaluate(model, dataset, Eval(), rank=0, world_size=2, all_reduce=summed)
    assert told == [1]
    assert model.training
    with refused("other-rank-failed", ranks=1):
        evaluate(
            model,
            mixed(5),
            Eval(),
            rank=1,
            world_size=2,
            all_reduce=lambda v: v.index_fill(0, torch.tensor(len(v) - 1), 1),
        )


def _rank(rank: int, folder: str) -> None:
    """Rank ``rank`` of gloo groups of 1 to 4: confusions, scores of images, and pictures into a
    file for each group.
    """
    import torch.distributed as dist

    torch.set_num_threads(1)

    def all_reduce(value: Tensor) -> Tensor:
        collective.all_reduce(value)  # it keeps the tensor, which torch 2.0 needs
        return value

    model, dataset = network(), mixed()
    for world in range(rank + 1, 5):
        dist.init_process_group(
            "gloo", f"file://{folder}/meet-{world}", world_size=world, rank=rank
        )
        place = {"rank": rank, "world_size": world, "all_reduce": all_reduce}
        saved: dict[str, list[Any]] = {}
        for name, settings in VIEWS.items():
            result = evaluate(
                model, dataset, settings, pictures=4, extremes=3, criterion=CRITERION, **place
            )
            bits = np.stack([value.view(np.int64) for value in vars(result.images).values()])
            shown = [sample.name for sample in (*result.pictures, *result.worst, *result.best)]
            saved[name] = [torch.from_numpy(result.confusion), torch.from_numpy(bits), shown]
            saved[name].append(repr(result.values()))  # repr tells apart all floats
        torch.save(saved, f"{folder}/{world}-{rank}.pt")
        dist.destroy_process_group()


@pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without distributed"
)
def test_bit_equal_on_1_2_3_4_ranks_with_101_images(tmp_path):
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    started = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)], env=environment)
        for rank in range(4)
    ]
    try:
        assert [process.wait(timeout=300) for process in started] == [0, 0, 0, 0]
    finally:
        for process in started:
            process.kill()
    alone = torch.load(tmp_path / "1-0.pt")
    pixels = sum(int((draw(index)[1] != 255).sum()) for index in range(101))
    assert int(alone["whole"][0].sum()) == int(alone["windows"][0].sum()) == pixels
    assert int(alone["scales"][0].sum()) > 0
    for world in (2, 3, 4):
        for rank in range(world):
            found = torch.load(tmp_path / f"{world}-{rank}.pt")
            for name in VIEWS:
                confusion, images, shown, values = alone[name]
                assert found[name][3] == values, (world, rank)
                assert images.shape == (5, 101)
                assert len(shown) == 4 + 3 + 3
                assert torch.equal(found[name][0], confusion), (world, rank)
                assert torch.equal(found[name][1], images), (world, rank)
                assert found[name][2] == (shown if rank == 0 else []), (world, rank)


if __name__ == "__main__":
    _rank(int(sys.argv[1]), sys.argv[2])


def test_cudnn_tries_no_kernels_while_it_scores_and_goes_on_trying_afterwards(monkeypatch):
    """Images of many sizes would pay for each new one, where crops of one size pay once."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = set()
    model = network()
    model.register_forward_pre_hook(lambda *_: seen.add(torch.backends.cudnn.benchmark))
    evaluate(model, mixed(3), Eval())
    assert seen == {False}
    assert torch.backends.cudnn.benchmark
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(model, mixed(3), Eval())
    assert torch.backends.cudnn.benchmark


def test_a_model_with_more_classes_than_the_data_is_refused():
    more_classes = nn.Sequential(*network()[:-1], nn.Conv2d(8, CLASSES + 2, 3, padding=1))
    with refused("prediction-classes"):
        evaluate(more_classes, mixed(9), VIEWS["whole"])


@pytest.mark.parametrize(
    "key", ["optim.lr=3", "data.crop=[32,32]", "eval.every=1ep", "loss.terms=[ce]"]
)
def test_a_setting_that_would_change_no_score_is_refused(tmp_path, key):
    with refused("setting-not-for-eval", key=key.partition("=")[0]):
        segtrain.evaluate(tmp_path, key)
    with refused("not-a-run-folder"):
        segtrain.evaluate(
            tmp_path,
            "eval.flip=true",
            "data.split=test",
            "data.split_by.val=20%",
            "train.precision=bf16",
        )


class Odd(nn.Module):
    """Logits that hold ``value`` in one pixel of white images."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.net, self.value = network(), value

    def forward(self, images: Tensor) -> Tensor:
        logits = self.net(images)
        logits[:, 1, 0, 0] = torch.where(images.mean((1, 2, 3)) > 2, self.value, logits[:, 1, 0, 0])
        return logits


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_their_images(view, value):
    def white(index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = draw(index)
        return (np.full_like(image, 255) if index in (2, 7) else image), mask

    with refused("logits-not-finite", images=["image 2", "image 7"]):
        evaluate(Odd(value), dataclasses.replace(mixed(9), make=white), VIEWS[view])


def test_a_model_may_rule_out_a_class_by_a_logit_of_minus_infinity():
    class Masked(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            logits = images.new_zeros(len(images), CLASSES, *images.shape[2:])
            logits[:, 0] = -torch.inf
            return logits

    assert evaluate(Masked(), mixed(3), VIEWS["windows"]).confusion[:, 1].sum() > 0
