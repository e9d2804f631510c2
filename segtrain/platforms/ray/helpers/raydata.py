"""Samples made by Ray Data, which also divides them among the ranks: for comparison with
``data.helpers=ray``.

The same code makes the samples, so each one has the same pixels. But Ray decides in which order
they come, and which rank gets which. So batches differ from run to run, and a run cannot resume:
see docs/helpers.md.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from segtrain.data.sample import COLOR_BYTES
from segtrain.data.train_loader import Batch, TrainLoader, mask_bytes
from segtrain.data.workers.batch import BatchTask, offsets
from segtrain.data.workers.memory import Ring
from segtrain.errors import ConfigError, DataError, one_line
from segtrain.platforms.ray.helpers import wire
from segtrain.platforms.ray.helpers.cluster import slots_of
from segtrain.platforms.ray.helpers.helper import identity, refuse_other_files
from segtrain.platforms.ray.helpers.raydata_actor import CHUNK, Making
from segtrain.platforms.ray.node import HELPS, ROLE
from segtrain.training.provided import OnRank0

BLOCK_BYTES = 16 << 20  # of the samples that travel together
# of the samples that one task of Ray Data makes; tasks of a run
PART_BYTES, MOST_PARTS = 256 << 20, 2000
AHEAD = 2  # blocks that a rank fetches ahead

START = (
    "helpers   ray-data: Ray makes all samples of training, in an order of its own: batches differ "
    "from run to run, and this run cannot resume"
)


@dataclass(frozen=True)
class BatchPlace:
    """A place in a batch, with the arrays that tell which sample came there."""

    indices: np.ndarray
    epochs: np.ndarray
    number: int


class Rows:
    """Writes the next sample that Ray Data delivers into a place. Local worker threads call it."""

    def __init__(self, batches: Iterator[dict[str, np.ndarray]], source: Any) -> None:
        self._batches, self._source, self._lock = batches, source, threading.Lock()
        self._block: dict[str, np.ndarray] = {}
        self._at = 0
        self._failed: DataError | None = None

    def __call__(
        self,
        place: BatchPlace,
        image: np.ndarray,
        mask: np.ndarray,
        colors: np.ndarray | None = None,
    ) -> None:
        with self._lock:
            while self._at >= len(self._block.get("index", ())):
                self._block, self._at = self._next(), 0
            block, k = self._block, self._at
            self._at += 1
        index = int(block["index"][k])
        refuse_other_files(self._source, index, block["files"][k])
        ids = block["mask"][k]
        image[:], mask.view(ids.dtype)[:] = block["image"][k], ids
        if colors is not None:
            colors[:] = block["colors"][k]
        place.indices[place.number], place.epochs[place.number] = index, block["epoch"][k]

    def _next(self) -> dict[str, np.ndarray]:
        """The next block. Raises DataError, the same one for all samples that are left."""
        if self._failed is not None:
            raise self._failed
        try:
            return next(self._batches)
        except StopIteration:
            message = (
                "Ray Data delivered fewer samples than the run needs: see the logs of Ray on "
                "the hosts that help"
            )
            self._failed = DataError(message, code="ray-data-ended")
        except Exception as error:
            reason = one_line(error)[-500:]
            message = (
                f"Ray Data cannot make samples ({reason}): see the logs of Ray, or set "
                "data.helpers=ray"
            )
            self._failed = DataError(message, code="ray-data-failed", found=reason)
        raise self._failed


class RayDataLoader(TrainLoader):
    """A TrainLoader whose samples come from Ray Data. ``on_rank_0`` is a collective; the rest is as
    there.

    Raises ConfigError if the run resumes, if its batches cannot be divided evenly, or if no host
    helps.
    """

    def __init__(self, *args: Any, on_rank_0: OnRank0, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._world, self._rank, accumulate = (
            settings["world"],
            settings["rank"],
            settings["accumulate"],
        )
        if self.first_step:
            message = (
                "data.helpers=ray-data: a run cannot resume (here at step "
                f"{self.first_step}), because Ray decides the "
            )
            message += (
                "order of its samples: start it again in another run folder, or use "
                "data.helpers=ray"
            )
            raise ConfigError(
                message, code="ray-data-resume", key="data.helpers", step=self.first_step
            )
        if self.batch_size % (self._world * accumulate):
            message = (
                "data.helpers=ray-data gives every rank as many samples: "
                f"train.batch_size={self.batch_size} must be "
            )
            message += f"a multiple of {self._world * accumulate} (ranks x train.accumulate)"
            raise ConfigError(
                message, code="ray-data-uneven", key="train.batch_size", found=self.batch_size
            )
        splits = on_rank_0(self._split)["splits"]
        self._rows = Rows(_batches_of(splits[self._rank]), self.maker.source)

    def _split(self) -> dict[str, Any]:
        """Start Ray Data, on rank 0. Returns an iterator for each rank, as text."""
        import ray
        import ray.data

        data = self.maker.data
        cores = len(slots_of(ray.nodes(), data.helper_cores, 0, 1))
        if not cores:
            message = (
                "data.helpers=ray-data: no host of the cluster helps: start one with "
                "--labels=segtrain/role=help"
            )
            raise ConfigError(message, code="ray-data-no-helpers", key="data.helpers")
        context, (crop, scale) = ray.data.DataContext.get_current(), self.crop_and_scale(0)
        context.enable_progress_bars, context.target_max_block_size = False, BLOCK_BYTES
        total = self.last_step * self.batch_size
        # Each core gets several parts, so that all end at about the same time.
        size = min(PART_BYTES // (4 * crop[0] * crop[1]), total // (4 * cores))
        size = max(CHUNK, size, -(-total // MOST_PARTS))
        parts = [np.array([[begin, min(begin + size, total)]]) for begin in range(0, total, size)]
        _, content = wire.packed(self.maker)
        ours, place = identity(self.maker.transforms is not None), (os.getcwd(), sys.path)
        made = ray.data.from_numpy(parts).map_batches(
            Making,
            batch_size=1,
            fn_constructor_args=(content, ours, crop, scale, self.colors, place),
            compute=ray.data.ActorPoolStrategy(size=cores),
            num_cpus=1,
            label_selector={ROLE: HELPS},
        )
        # kept: the other ranks only borrow them
        self.splits = made.streaming_split(self._world, equal=True)
        return {
            "splits": [
                base64.b64encode(ray.cloudpickle.dumps(split)).decode() for split in self.splits
            ]
        }

    def _read_ahead(self) -> None:
        return None

    def _batches(self, ring: Ring) -> Generator[BatchTask, None, None]:
        crop, _ = self.crop_and_scale(0)
        wide = mask_bytes(self.dataset)
        counts = [part.stop - part.start for part in self.parts]
        for _ in range(self.first_step, self.last_step):
            shapes = [(count, *crop) for count in counts]
            size = sum(offsets(shape, mask_bytes=wide)[-1] for shape in shapes)
            batch, start = BatchTask(self._rows, ring.take(size), []), 0
            for count, shape in zip(counts, shapes):
                indices, epochs = np.zeros(count, np.int64), np.zeros(count, np.int64)
                places = [BatchPlace(indices, epochs, number) for number in range(count)]
                images, masks, memory = batch.lay_out(
                    self.dataset, places, [0] * count, shape, start, self.colors
                )
                looks = torch.from_numpy(memory.reshape(-1, COLOR_BYTES)) if self.colors else None
                batch.result.append(Batch(images, masks, indices, epochs, looks))
                start = offsets(shape, start, mask_bytes=wide)[-1]
            yield batch


def _batches_of(split: str) -> Iterator[dict[str, np.ndarray]]:
    import ray

    iterator = ray.cloudpickle.loads(base64.b64decode(split))
    return iter(
        iterator.iter_batches(batch_size=None, prefetch_batches=AHEAD, batch_format="numpy")
    )
