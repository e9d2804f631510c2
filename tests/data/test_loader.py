"""Tests that a loader gives the same pixels however it runs, in bounded memory, with errors that
name the file.
"""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from batch_bytes import content, kept, threads
from conftest import refused

from segtrain.config import IMAGENET_MEAN, IMAGENET_STD, Data, make_config
from segtrain.data.datasets import open_dataset
from segtrain.data.order import eval_groups, samples
from segtrain.data.pixels.crop import StoredSample
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.reading import PLAIN
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.storage import LOCAL
from segtrain.data.train_loader import EvalLoader, TrainLoader, normalize, worker_kind
from segtrain.data.workers.autoscaler import Autoscaler
from segtrain.errors import DataError

SETTINGS = Data(crop=(24, 32), class_balanced_crop_prob=0.3)


class Pictures:
    """A data set in memory that counts its readings; sizes differ, one mask is all void."""

    store, stored, reading = LOCAL, False, PLAIN

    def __init__(self, n: int = 11, broken: dict[int, Exception] | None = None) -> None:
        self.labels = SimpleNamespace(
            num_classes=5, ignore_index=255, mirror=(), mask_dtype=np.uint8
        )
        self.entries = [
            SimpleNamespace(image=f"images/{i}.png", mask=f"masks/{i}.png") for i in range(n)
        ]
        self.broken = broken or {}
        self.reads = 0
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def size(self, index: int) -> tuple[int, int]:
        return 30 + 10 * (index % 3), 40

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        with self.lock:
            self.reads += 1
        if index in self.broken:
            raise self.broken[index]
        rng = np.random.default_rng(index)
        mask = rng.integers(0, 5, self.size(index), np.uint8)
        return rng.integers(0, 256, (*self.size(index), 3), np.uint8), np.full_like(
            mask, 255
        ) if index == 4 else mask

    def record(self, index: int) -> StoredSample:
        image, mask = self.read(index)
        return StoredSample(
            image, mask, self.entries[index].image, self.entries[index].mask, "train"
        )


def loader_of(
    data: Data = SETTINGS, dataset: Pictures | None = None, **settings: object
) -> TrainLoader:
    options = {"seed": 5, "batch_size": 8, "last_step": 6, **settings}
    return TrainLoader(dataset or Pictures(), data, **options)


def load(data: Data = SETTINGS, dataset: Pictures | None = None, **settings: object) -> list[list]:
    with loader_of(data, dataset, **settings) as loader:
        return kept(loader)


def test_batches_are_what_their_parts_say():
    dataset, data = Pictures(), Data(crop=(24, 32))
    for step, (batch,) in enumerate(load(data, dataset, last_step=3)):
        epochs, ids = samples(5, 11, 8 * step, 8)
        assert (batch.indices == ids).all()
        assert (batch.epochs == epochs).all()
        assert batch.images.dtype == batch.masks.dtype == torch.uint8
        assert batch.images.is_contiguous()
        assert batch.images.shape == (8, 24, 32, 3)
        assert batch.masks.shape == (8, 24, 32)
        for k in range(8):
            pixels, classes = np.empty((24, 32, 3), np.uint8), np.empty((24, 32), np.uint8)
            SampleMaker(dataset, data, 5)(
                Task(int(ids[k]), int(epochs[k]), (24, 32), data.scale), pixels, classes
            )
            assert (batch.images[k].numpy() == pixels).all()
            assert (batch.masks[k].numpy() == classes).all()


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("cache", ["off", "ram"])
def test_workers_and_cache_change_nothing(workers, cache):
    cached = SETTINGS.model_copy(update={"cache": cache})
    assert content(load(cached, workers=workers)) == content(load())


@pytest.mark.parametrize("first_step", [1, 4, 5, 6])
@pytest.mark.parametrize("workers", [0, 2])
def test_any_step_starts_with_the_same_samples_and_pixels(first_step, workers):
    dataset = Pictures()
    late = load(dataset=dataset, first_step=first_step, workers=workers)
    assert content(late) == content(load())[8 * first_step :]
    assert dataset.reads == 8 * (6 - first_step)  # nothing was read and thrown away


@pytest.mark.parametrize(("world", "accumulate"), [(1, 4), (3, 1), (2, 3), (8, 1)])
def test_ranks_and_micro_batches_make_up_the_global_batch(world, accumulate):
    ranks = [
        load(world=world, rank=rank, accumulate=accumulate, workers=rank % 2)
        for rank in range(world)
    ]
    assert all(len(parts) == accumulate for steps in ranks for parts in steps)
    # Micro-batches one after the other, in each of them the ranks in turn.
    united = [[steps[s][m] for m in range(accumulate) for steps in ranks] for s in range(6)]
    assert content(united) == content(load())


def test_size_and_scale_follow_the_step():
    small, full = ((16, 16), (0.25, 0.3)), ((24, 32), (0.5, 2.0))
    dataset, data = Pictures(), Data(crop=(24, 32))
    steps = load(data, dataset, crop_and_scale=lambda step: small if step < 2 else full, workers=2)
    for step, (batch,) in enumerate(steps):
        crop, scale = small if step < 2 else full
        pixels, classes = np.empty((*crop, 3), np.uint8), np.empty(crop, np.uint8)
        SampleMaker(dataset, data, 5)(
            Task(int(batch.indices[0]), int(batch.epochs[0]), crop, scale), pixels, classes
        )
        assert (batch.images[0].numpy() == pixels).all()
        assert tuple(batch.masks.shape[1:]) == crop


@pytest.mark.parametrize("workers", [0, 3])
def test_an_error_names_the_file_and_comes_in_its_turn(workers):
    bad = int(samples(5, 11, 8 * 1, 8)[1][3])
    for error, text in [
        (
            ValueError("odd\nbits"),
            rf"images/{bad}\.png with masks/{bad}\.png: ValueError: odd bits",
        ),
        (DataError(f"masks/{bad}.png: value 99"), f"masks/{bad}.png: value 99"),
    ]:
        first = next(step for step in range(6) if bad in samples(5, 11, 8 * step, 8)[1])
        loader = loader_of(dataset=Pictures(11, {bad: error}), workers=workers)
        iterator = iter(loader)
        for _ in range(first):
            next(iterator)
        with pytest.raises(DataError, match=text):
            next(iterator)
        assert threads() == 0


def test_memory_is_bounded():
    dataset = Pictures()
    with loader_of(dataset=dataset, batch_size=4, last_step=10**9, workers=4, prefetch=3) as loader:
        for taken, _ in enumerate(loader, 1):
            deadline = time.monotonic() + 120
            while dataset.reads < 4 * (taken + 3) and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.02)  # workers that ran on would show now
            assert dataset.reads == 4 * (taken + 3)
            if taken == 5:
                break
    assert threads() == 0
    with loader_of(batch_size=4, last_step=10**9, workers=0) as loader:
        next(iter(loader))
        assert threads() == 0


def test_prefetch_counts_micro_batches():
    dataset = Pictures()
    with loader_of(
        dataset=dataset, batch_size=4, accumulate=4, last_step=50, workers=1, prefetch=4
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        time.sleep(0.1)
        assert dataset.reads <= 8  # the step in use, and one ahead


def test_a_loop_that_is_left_early_ends_its_threads():
    loader = loader_of(batch_size=4, last_step=100, workers=3)
    for _ in loader:
        assert threads() > 0
        break
    assert threads() == 0
    older, newer = iter(loader), iter(loader)
    next(newer)
    del older  # an older pass ends without the newer one
    assert threads() > 0
    del newer
    assert threads() == 0


def test_a_loader_can_run_again():
    with loader_of(workers=2) as loader:
        next(iter(loader))
        assert content(kept(loader)) == content(load())


def test_opencv_keeps_to_one_thread():
    load(last_step=1)
    assert cv2.getNumThreads() == 1


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_eval_gives_each_image_whole_and_once(workers):
    dataset = Pictures()
    groups = eval_groups([dataset.size(i) for i in range(11)], 2)
    seen = []
    with EvalLoader(dataset, groups, workers, prefetch=2) as loader:
        for ids, images, masks in loader:
            for k, index in enumerate(ids.tolist()):
                image, mask = dataset.read(index)
                assert (images[k].numpy() == image).all()
                assert (masks[k].numpy() == mask).all()
                seen.append(index)
    assert sorted(seen) == list(range(11))
    assert threads() == 0


def test_eval_names_the_file_of_another_size():
    with (
        EvalLoader(Pictures(), [[0, 1]], workers=2) as loader,
        refused(
            "sizes-differ", file="images/1.png", mask="masks/1.png", found=((40, 40), (40, 40))
        ),
    ):
        list(loader)


def test_a_mask_of_another_size_is_named():
    dataset = Pictures()
    dataset.read = lambda index: (np.zeros((20, 30, 3), np.uint8), np.zeros((30, 20), np.uint8))  # type: ignore[method-assign]
    with refused("mask-size-differs", found=(30, 20), expected=(20, 30)) as caught:
        load(dataset=dataset)
    assert str(caught.value.values["file"]).startswith("masks/")


def test_eval_names_a_file_without_header():
    dataset = Pictures()
    dataset.size = lambda index: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    with refused("sample-failed", files="images/3.png with masks/3.png"):
        list(EvalLoader(dataset, [[3]]))


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalize(channels_last):
    images = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    out = normalize(images, channels_last=channels_last)
    mean, std = (
        torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD)
    )
    expected = (images.permute(0, 3, 1, 2).double() / 255 - mean) / std
    assert out.dtype == torch.float32
    assert out.shape == (2, 3, 5, 7)
    assert (out - expected).abs().max() < 1e-6
    assert out.is_contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )
    assert torch.equal(out, normalize(images, channels_last=not channels_last))
    assert torch.equal(out[1:], normalize(images[1:], channels_last=channels_last))


def run_autoscaler(autoscaler: Autoscaler, steps: int, period: float, cost: float) -> list[int]:
    """The numbers of workers over some steps of a device that takes ``period`` seconds, for samples
    that take ``cost`` a step.
    """
    now, busy, counts = 0.0, 0.0, []
    for _ in range(steps):
        made = cost / autoscaler.count  # seconds in which the workers make a step's samples
        waited = max(0.0, made - period)
        now, busy = now + period + waited, busy + cost
        counts.append(autoscaler.next(now, waited, busy))
    return counts


def test_the_pace_finds_the_number_that_is_needed():
    # 3 are busy, and a little more for what varies
    assert run_autoscaler(Autoscaler(12, 12), 2000, 1.0, 3.0)[-1] == 4
    # with none too few: as many as do
    assert run_autoscaler(Autoscaler(1, 12), 2000, 1.0, 3.0)[-1] == 3
    assert set(run_autoscaler(Autoscaler(12, 12), 2000, 1.0, 11.9)) == {12}
    assert run_autoscaler(Autoscaler(8, 8), 2000, 1.0, 100.0)[-1] == 8  # never more than the share
    assert run_autoscaler(Autoscaler(8, 8), 2000, 1.0, 0.001)[-1] == 1
    assert set(run_autoscaler(Autoscaler(5, 5, 5), 500, 1.0, 0.1)) == {5}  # a setting is obeyed


def test_the_pace_does_not_swing():
    autoscaler, now, busy, counts = Autoscaler(4, 4), 0.0, 0.0, []
    # 3 workers do by their load, but every 40th step waits for want of the fourth
    for step in range(20000):
        waited = 0.9 if autoscaler.count < 4 and step % 40 == 0 else 0.0
        now, busy = now + 1.0, busy + 2.0
        counts.append(autoscaler.next(now, waited, busy))
    changes = [a != b for a, b in itertools.pairwise(counts)]
    assert sum(changes[10000:]) <= 4 < sum(changes)


def test_what_makes_the_samples():
    assert worker_kind(Data()) == "thread"
    assert worker_kind(Data(worker_kind="process")) == "process"
    assert worker_kind(Data(transforms="operator:pos")) == "process"
    assert worker_kind(Data(transforms="operator:pos", worker_kind="thread")) == "thread"
    assert worker_kind(Data(transforms="operator:pos", cache="ram")) == "thread"
    with refused("cache-with-processes", key="data.worker_kind"):
        make_config({"data": {"worker_kind": "process", "cache": "ram"}})


def test_colors_are_left_to_the_device(tmp_path):
    """What the device makes of plain pixels is what the workers make: within the rounding to whole
    levels.
    """
    for k in range(4):
        for part, pixels in (
            ("images", np.random.default_rng(k).integers(60, 150, (40, 50, 3), np.uint8)),
            ("masks", np.zeros((40, 50), np.uint8)),
        ):
            (tmp_path / part / "train").mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(tmp_path / part / "train" / f"{k}.png"), pixels)
    data = Data(
        layout="folders",
        root=str(tmp_path),
        classes=("a",),
        crop=(32, 48),
        jitter=(0.3, 0.3, 0.3),
        hue=0.05,
        color_jitter_prob=0.8,
    )
    dataset = open_dataset(data, "train")
    options = {"workers": 2, "last_step": 4}
    left = load(data, dataset, **options, colors=True)
    done = load(data, dataset, **options)
    plain = load(data.model_copy(update={"jitter": (0, 0, 0), "hue": 0.0}), dataset, **options)
    changed, unchanged = 0, torch.cat([torch.eye(3).flatten(), torch.zeros(1)])
    for (a,), (b,), (c,) in zip(left, done, plain):
        assert torch.equal(a.images, c.images)
        assert torch.equal(a.masks, b.masks)
        assert a.colors is not None
        assert b.colors is None
        changed += int(((a.colors - unchanged).abs() > 1e-6).any(1).sum())
        made = normalize(a.images, colors=a.colors, covered=a.covered)
        assert (made - normalize(b.images)).abs().max() <= 3 / (255 * min(IMAGENET_STD))
    assert 16 < changed < 32


@pytest.mark.parametrize(
    "floats", [Floats(), Floats("bfloat16"), Floats(channels_last=True), Floats("bfloat16", True)]
)
def test_workers_normalize_to_the_bits_of_normalize(floats, monkeypatch):
    """Also rotated crops, transforms, and crops that were made without the native part."""
    colored = SETTINGS.model_copy(update={"jitter": (0.3, 0.3, 0.3)})
    rotated = colored.model_copy(update={"rotate": 20.0})
    for data, native, transforms in (
        (colored, "1", None),
        (colored, "0", None),
        (rotated, "1", None),
        (colored, "1", brighter),
    ):
        monkeypatch.setenv("SEGTRAIN_NATIVE", native)
        options = {"workers": 2, "transforms": transforms}
        for (made,), (plain,) in zip(load(data, floats=floats, **options), load(data, **options)):
            expected = normalize(plain.images, channels_last=floats.channels_last).to(
                made.images.dtype
            )
            assert made.images.dtype == getattr(torch, floats.dtype)
            assert made.images.stride() == expected.stride()
            assert torch.equal(made.images, expected)
            assert torch.equal(made.masks, plain.masks)


def brighter(
    image: np.ndarray, mask: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    return np.minimum(image, 225) + 30, mask


def test_lent_memory_is_used_again_only_when_its_tensors_are_gone():
    options = {
        "seed": 5,
        "batch_size": 4,
        "accumulate": 2,
        "last_step": 40,
        "workers": 2,
        "prefetch": 4,
    }
    with TrainLoader(Pictures(), SETTINGS, **options) as loader:
        plain = content(kept(loader))
    with TrainLoader(Pictures(), SETTINGS, **options, lends=True) as loader:
        lent = []
        for step, parts in enumerate(loader):
            lent.append(parts if step < 20 else kept([parts])[0])
            blocks = len(loader._ring._all)
            del parts
    assert content(lent) == plain
    # those that are kept, those in progress, and one or two that were given last
    assert 20 < blocks <= 26
