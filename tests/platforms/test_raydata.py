"""Tests of samples made by Ray Data: what its actors make, where it goes, and what is refused.
Without Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import refused

from segtrain.config import Config, Data
from segtrain.data.datasets import open_dataset
from segtrain.data.sample import SampleMaker
from segtrain.data.train_loader import TrainLoader, worker_kind
from segtrain.platforms.ray.helpers import raydata, wire
from segtrain.platforms.ray.helpers import raydata_actor as there
from segtrain.platforms.ray.helpers.helper import identity
from segtrain.platforms.ray.helpers.raydata import RayDataLoader
from segtrain.platforms.ray.helpers.raydata_actor import Making

DATA = Data(scenes=24, scene_size=(48, 64), crop=(24, 32), helpers="ray-data")
SETTINGS = {"seed": 3, "batch_size": 8, "last_step": 3, "accumulate": 2}


def making(colors: bool = False, ours: dict[str, str] | None = None) -> Making:
    _, content = wire.packed(SampleMaker(open_dataset(DATA, "train"), DATA, 3))
    return Making(
        content, ours or identity(False), DATA.crop, DATA.scale, colors, (os.getcwd(), sys.path)
    )


def shuffled(rank: int, colors: bool) -> Iterator[dict[str, np.ndarray]]:
    """Half of the 24 samples of the run, out of order and in blocks of uneven sizes."""
    for begin, end in ((16, 19), (5, 10), (0, 4)) if rank else ((19, 24), (10, 16), (4, 5)):
        yield from making(colors)({"data": np.array([[begin, end]])})


def loader(monkeypatch: pytest.MonkeyPatch, rank: int, **more: Any) -> RayDataLoader:
    settings = {**SETTINGS, "rank": rank, "world": 2, "workers": 2, **more}
    colors = bool(settings.get("colors"))
    monkeypatch.setattr(raydata, "_batches_of", lambda split: shuffled(int(split), colors))
    return RayDataLoader(
        open_dataset(DATA, "train"), DATA, on_rank_0=lambda work: {"splits": ["0", "1"]}, **settings
    )


def samples_of(steps: Any) -> dict[tuple[int, int], bytes]:
    """The bytes of each sample, by epoch and index."""
    found: dict[tuple[int, int], bytes] = {}
    for step in steps:
        for batch in step:
            for k, key in enumerate(zip(batch.epochs.tolist(), batch.indices.tolist())):
                assert key not in found
                parts = [
                    batch.images,
                    batch.masks,
                    *(part for part in (batch.colors, batch.covered) if part is not None),
                ]
                found[key] = b"".join(part[k].numpy().tobytes() for part in parts)
    return found


@pytest.mark.parametrize("colors", [False, True])
def test_an_epoch_has_each_sample_once_with_its_pixels(monkeypatch, colors):
    with TrainLoader(open_dataset(DATA, "train"), DATA, colors=colors, **SETTINGS) as plain:
        expected = samples_of(plain)
    assert len(expected) == 24
    found: dict[tuple[int, int], bytes] = {}
    for rank in range(2):
        with loader(monkeypatch, rank, colors=colors) as one:
            mine = samples_of(one)
        assert len(mine) == 12
        assert not mine.keys() & found.keys()
        found |= mine
    assert found == expected


def test_a_resume_and_an_uneven_batch_are_refused(monkeypatch):
    with refused("ray-data-resume", step=2):
        loader(monkeypatch, 0, first_step=2)
    with refused("ray-data-uneven", found=6):
        loader(monkeypatch, 0, batch_size=6)


def test_too_few_samples_and_errors_of_ray_are_one_error(monkeypatch):
    with loader(monkeypatch, 0, last_step=9) as more, refused("ray-data-ended"):
        samples_of(more)

    def broken(split: str) -> Iterator[dict[str, np.ndarray]]:
        yield from making()({"data": np.array([[0, 2]])})
        raise RuntimeError("no image 7")

    with loader(monkeypatch, 0) as failing:
        failing._rows = raydata.Rows(broken(""), failing.dataset)
        with refused("ray-data-failed", found="no image 7"):
            samples_of(failing)


def test_another_version_there_is_refused():
    with pytest.raises(RuntimeError, match="numpy"):
        making(ours={**identity(False), "numpy": "0.1"})


def test_pipelines_run_in_threads_with_ray_data():
    assert worker_kind(Data(helpers="ray-data", transforms=[{"Blur": {}}])) == "thread"


def test_a_run_with_ray_data_is_another_run():
    plain, ray, other = (
        Config.load(None, f"data.helpers={kind}") for kind in ("none", "ray", "ray-data")
    )
    assert plain.hash == ray.hash != other.hash
    assert plain.trained_settings() == ray.trained_settings() != other.trained_settings()


def test_an_older_copy_there_is_named(monkeypatch):
    monkeypatch.setattr(there, "file_checksums", lambda source, index: [0, int(index % 5 == 0)])
    with loader(monkeypatch, 0) as one, refused("helper-data-differs"):
        samples_of(one)
