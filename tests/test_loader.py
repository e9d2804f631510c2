"""Does a loader give the same pixels however it runs, in bounded memory, with errors that name the file?"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from segtrain.config import Data
from segtrain.data.augment import apply, draw
from segtrain.data.cache import RamCache
from segtrain.data.loader import IMAGENET_MEAN, IMAGENET_STD, EvalLoader, TrainLoader, normalise, worker_count
from segtrain.data.order import eval_groups, rng_for, samples
from segtrain.errors import ConfigError, DataError

SETTINGS = Data(crop=(24, 32), balance=0.3)


class Pictures:
    """A data set in memory that counts its readings; sizes differ, one mask is all void."""

    def __init__(self, n: int = 11, broken: dict[int, Exception] | None = None) -> None:
        self.labels = SimpleNamespace(num_classes=5, ignore_index=255)
        self.entries = [SimpleNamespace(image=f"images/{i}.png", mask=f"masks/{i}.png") for i in range(n)]
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
        return rng.integers(0, 256, (*self.size(index), 3), np.uint8), np.full_like(mask, 255) if index == 4 else mask


def load(data: Data = SETTINGS, dataset: Pictures | None = None, **settings: object) -> list[list]:
    options = {"seed": 5, "batch_size": 8, "last_step": 6, **settings}
    with TrainLoader(dataset or Pictures(), data, **options) as loader:
        return list(loader)


def content(steps: list[list]) -> list[bytes]:
    """Every byte of every sample, in the order of its step."""
    return [
        batch.images[k].numpy().tobytes()
        + batch.masks[k].numpy().tobytes()
        + bytes(f"{batch.epochs[k]}/{batch.ids[k]}", "ascii")
        for parts in steps
        for batch in parts
        for k in range(len(batch.ids))
    ]


def threads() -> int:
    return sum(thread.name.startswith("segtrain-data") for thread in threading.enumerate())


def test_batches_are_what_their_parts_say() -> None:
    dataset, data = Pictures(), Data(crop=(24, 32))
    for step, (batch,) in enumerate(load(data, dataset, last_step=3)):
        epochs, ids = samples(5, 11, 8 * step, 8)
        assert (batch.ids == ids).all()
        assert (batch.epochs == epochs).all()
        assert batch.images.dtype == batch.masks.dtype == torch.uint8
        assert batch.images.is_contiguous()
        assert batch.images.shape == (8, 24, 32, 3)
        assert batch.masks.shape == (8, 24, 32)
        for k in range(8):
            image, mask = dataset.read(ids[k])
            geometry = draw(rng_for(5, epochs[k], ids[k]), mask.shape, (24, 32), data)
            pixels, classes = apply(image, mask, geometry, (24, 32), 255)
            assert (batch.images[k].numpy() == pixels).all()
            assert (batch.masks[k].numpy() == classes).all()


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("cache", ["off", "ram"])
def test_workers_and_cache_change_nothing(workers: int, cache: str) -> None:
    cached = SETTINGS.model_copy(update={"cache": cache})
    assert content(load(cached, workers=workers)) == content(load())


def test_the_epoch_changes_the_pixels() -> None:
    samples_of = {}
    for parts in load(last_step=11):
        for k, index in enumerate(parts[0].ids):
            samples_of.setdefault(int(index), []).append(parts[0].images[k].numpy().tobytes())
    assert all(len(set(seen)) == 8 for seen in samples_of.values())


@pytest.mark.parametrize("first_step", [1, 4, 5, 6])
@pytest.mark.parametrize("workers", [0, 2])
def test_any_step_starts_with_the_same_samples_and_pixels(first_step: int, workers: int) -> None:
    dataset = Pictures()
    late = load(dataset=dataset, first_step=first_step, workers=workers)
    assert content(late) == content(load())[8 * first_step :]
    assert dataset.reads == 8 * (6 - first_step)  # nothing was read and thrown away


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 1), (1, 4), (3, 1), (4, 2), (2, 3), (8, 1)])
def test_ranks_and_micro_batches_make_up_the_global_batch(world: int, accumulate: int) -> None:
    ranks = [load(world=world, rank=rank, accumulate=accumulate, workers=rank % 2) for rank in range(world)]
    assert all(len(parts) == accumulate for steps in ranks for parts in steps)
    # Micro-batches one after the other, in each of them the ranks in turn.
    united = [[steps[s][m] for m in range(accumulate) for steps in ranks] for s in range(6)]
    assert content(united) == content(load())


def test_resume_with_another_world_size() -> None:
    before = load(last_step=3)
    ranks = [load(first_step=3, world=2, rank=rank, accumulate=2, workers=1) for rank in range(2)]
    after = [[steps[s][m] for m in range(2) for steps in ranks] for s in range(3)]
    assert content(before) + content(after) == content(load())


def test_size_and_scale_follow_the_step() -> None:
    small, full = ((16, 16), (0.25, 0.3)), ((24, 32), (0.5, 2.0))
    dataset, data = Pictures(), Data(crop=(24, 32))
    steps = load(data, dataset, size_at=lambda step: small if step < 2 else full, workers=2)
    for step, (batch,) in enumerate(steps):
        crop, scale = small if step < 2 else full
        image, mask = dataset.read(int(batch.ids[0]))
        geometry = draw(rng_for(5, batch.epochs[0], batch.ids[0]), mask.shape, crop, data, None, scale)
        assert (batch.images[0].numpy() == apply(image, mask, geometry, crop, 255)[0]).all()
        assert tuple(batch.masks.shape[1:]) == crop


@pytest.mark.parametrize("workers", [0, 3])
def test_an_error_names_the_file_and_comes_in_its_turn(workers: int) -> None:
    bad = int(samples(5, 11, 8 * 1, 8)[1][3])
    for error, text in [
        (ValueError("odd\nbits"), rf"images/{bad}\.png with masks/{bad}\.png: ValueError: odd bits"),
        (DataError(f"masks/{bad}.png: value 99"), f"masks/{bad}.png: value 99"),
    ]:
        first = next(step for step in range(6) if bad in samples(5, 11, 8 * step, 8)[1])
        loader = TrainLoader(Pictures(11, {bad: error}), SETTINGS, seed=5, batch_size=8, last_step=6, workers=workers)
        iterator = iter(loader)
        for _ in range(first):
            next(iterator)
        with pytest.raises(DataError, match=text):
            next(iterator)
        assert threads() == 0


def test_memory_is_bounded() -> None:
    dataset = Pictures()
    with TrainLoader(dataset, SETTINGS, seed=5, batch_size=4, last_step=10**9, workers=4, prefetch=3) as loader:
        for taken, _ in enumerate(loader, 1):
            deadline = time.monotonic() + 5
            while dataset.reads < 4 * (taken + 3) and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.02)  # workers that ran on would show now
            assert dataset.reads == 4 * (taken + 3)
            if taken == 5:
                break
    assert threads() == 0
    with TrainLoader(Pictures(), SETTINGS, seed=5, batch_size=4, last_step=10**9, workers=0) as loader:
        next(iter(loader))
        assert threads() == 0


def test_prefetch_counts_micro_batches() -> None:
    dataset = Pictures()
    with TrainLoader(
        dataset, SETTINGS, seed=5, batch_size=4, accumulate=4, last_step=50, workers=1, prefetch=4
    ) as loader:
        next(iter(loader))
        time.sleep(0.1)
        assert dataset.reads <= 8  # the step in use, and one ahead


def test_threads_end() -> None:
    loader = TrainLoader(Pictures(), SETTINGS, seed=5, batch_size=4, last_step=100, workers=3)
    iterator = iter(loader)
    next(iterator)
    assert threads() > 0
    loader.close()
    assert threads() == 0
    assert list(iterator) == []
    loader.close()
    load(workers=2)
    assert threads() == 0


def test_a_loader_can_run_again() -> None:
    with TrainLoader(Pictures(), SETTINGS, seed=5, batch_size=8, last_step=6, workers=2) as loader:
        next(iter(loader))
        assert content(list(loader)) == content(load())


def test_opencv_keeps_to_one_thread() -> None:
    load(last_step=1)
    assert cv2.getNumThreads() == 1


def test_cache_reads_each_image_once() -> None:
    dataset = Pictures()
    load(Data(crop=(24, 32), cache="ram"), dataset, workers=1, last_step=11)
    assert dataset.reads == 11


def test_a_cache_beyond_memory_is_refused() -> None:
    dataset = Pictures()
    dataset.size = lambda index: (10**6, 10**7)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"data\.cache=ram: 11 images .* data\.cache=off"):
        RamCache(dataset)


def test_what_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(DataError, match="no samples"):
        TrainLoader(Pictures(0), SETTINGS, seed=0, batch_size=4, last_step=1)
    with pytest.raises(ConfigError, match="batch_size"):
        TrainLoader(Pictures(), SETTINGS, seed=0, batch_size=4, world=5, last_step=1)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_eval_gives_each_image_whole_and_once(workers: int) -> None:
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


def test_eval_names_the_file_of_another_size() -> None:
    with (
        EvalLoader(Pictures(), [[0, 1]], workers=2) as loader,
        pytest.raises(DataError, match=r"images/1\.png.* 40x40 .*masks/1\.png 40x40: both must be 30x40"),
    ):
        list(loader)


def test_a_mask_of_another_size_is_named() -> None:
    dataset = Pictures()
    dataset.read = lambda index: (np.zeros((20, 30, 3), np.uint8), np.zeros((30, 20), np.uint8))  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"images/\d+\.png.* 20x30 .*masks/\d+\.png 30x20: both must be of one size"):
        load(dataset=dataset)


def test_eval_names_a_file_without_header() -> None:
    dataset = Pictures()
    dataset.size = lambda index: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(DataError, match=r"images/3\.png.*ZeroDivisionError"):
        list(EvalLoader(dataset, [[3]]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_pinned_memory() -> None:
    parts = load(pin_memory=True, workers=2)
    assert parts[0][0].images.is_pinned()
    assert parts[0][0].masks.is_pinned()
    assert content(parts) == content(load())


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalise(channels_last: bool) -> None:
    images = torch.randint(0, 256, (2, 5, 7, 3), dtype=torch.uint8)
    out = normalise(images, channels_last=channels_last)
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    expected = (images.permute(0, 3, 1, 2).double() / 255 - mean) / std
    assert out.dtype == torch.float32
    assert out.shape == (2, 3, 5, 7)
    assert (out - expected).abs().max() < 1e-6
    assert out.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    assert torch.equal(out, normalise(images, channels_last=not channels_last))
    assert torch.equal(out[1:], normalise(images[1:], channels_last=channels_last))


def test_workers_fit_the_host() -> None:
    assert worker_count(7, ranks=100) == 7
    assert worker_count(0) == 0
    assert worker_count("auto", ranks=10**6) == 1
    assert 1 <= worker_count("auto") <= 16
    assert worker_count("auto", cpu_training=True) == 1
