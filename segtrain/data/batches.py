"""The input pipeline as an iterable of batches, for your own training loop (plain PyTorch or
Lightning).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from segtrain.base.cores import cores
from segtrain.config import Config, Origin
from segtrain.data.datasets import open_dataset
from segtrain.data.order import eval_groups
from segtrain.data.own import own_dataset, own_labels
from segtrain.data.pixels.floats import Floats
from segtrain.data.pixels.reading import Reading
from segtrain.data.train_loader import (
    EvalLoader,
    TrainLoader,
    image_sizes,
    normalize,
    widened,
    worker_kind,
)
from segtrain.data.workers.autoscaler import worker_count
from segtrain.errors import ConfigError

DTYPES = ("float32", "bfloat16", "uint8")


class BatchLoader:
    """Iterates over batches of (images, masks), which ``data.workers`` workers prefetch. One pass
    is an epoch.

    split: by default ``data.train_split``, or ``data.split`` with ``train=False``. data: a
    map-style dataset of (image, mask, id) to use instead of ``data.root``. train: random crops with
    augmentation; otherwise each whole image once. dtype: ``float32`` or ``bfloat16`` images (n, 3,
    H, W) are normalized with ``data.mean`` and ``data.std`` (null: ImageNet's, whatever the encoder
    expects), and masks are int64 (n, H, W); ``uint8`` images are (n, H, W, 3) RGB and masks uint8
    (n, H, W).
    channels_last: the memory format of normalized images. Ignored pixels have the id
    ``data.ignore_index``. rank, world_size: each rank gets its part of ``train.batch_size``; the
    defaults are the environment variables RANK and WORLD_SIZE. A batch stays valid as long as its
    tensors are kept.

    The attribute ``dataset.labels`` has the classes. Raises ConfigError or DataError.
    """

    def __init__(
        self,
        config: Config,
        split: str = "",
        *,
        data: Any = None,
        train: bool = True,
        dtype: str = "float32",
        channels_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        name = split or (config.data.train_split if train else config.data.split)
        if data is None:
            self.dataset = open_dataset(config.data, name)
        else:
            self.dataset = own_dataset(
                data, own_labels(data, config.data), name, Reading.from_data(config.data)
            )
        if dtype not in DTYPES:
            message = f"dtype={dtype!r} is not one of {', '.join(DTYPES)}: pass one of them"
            raise ConfigError(message, code="loader-dtype", found=dtype)
        origin = Origin().changed(config.data)
        if dtype == "uint8" and config.data.stored:
            message = "dtype='uint8' has no place for stored values of bands: pass 'float32'"
            raise ConfigError(message, code="loader-dtype", found=dtype)
        form = dtype, channels_last, origin.mean, origin.std, config.data.stored
        self.floats = None if dtype == "uint8" else Floats(*form)
        self.config, self.train, self.epoch = config, train, 0
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.world_size = (
            int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size
        )
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank={self.rank} does not exist among {self.world_size} ranks: pass 0 to "
                f"{self.world_size - 1}",
                code="rank-outside-world",
                rank=self.rank,
                world_size=self.world_size,
            )
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world_size)))
        cpu_training = not torch.cuda.is_available()
        self.workers = worker_count(
            config.data.workers, cores(), local, cpu_training=cpu_training
        ).start
        self._sizes: list[tuple[int, int]] = []
        self._groups: list[list[int]] = []
        if not train:
            self._sizes = image_sizes(self.dataset)
            self._groups = eval_groups(self._sizes, config.eval.batch_size)[
                self.rank :: self.world_size
            ]

    def __len__(self) -> int:
        """The number of batches in a pass.

        Training samples that do not fill a batch begin the next pass, so none is lost or repeated.
        """
        return (
            max(1, len(self.dataset) // self.config.train.batch_size)
            if self.train
            else len(self._groups)
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, so that a resumed run gets the samples that would have
        come next.
        """
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._training() if self.train else self._whole_images()

    def _training(self) -> Iterator[tuple[Tensor, Tensor]]:
        config, first = self.config, self.epoch * len(self)
        self.epoch += 1
        batches = TrainLoader(
            self.dataset,
            config.data,
            seed=config.train.seed,
            batch_size=config.train.batch_size,
            rank=self.rank,
            world=self.world_size,
            first_step=first,
            last_step=first + len(self),
            workers=self.workers,
            kind=worker_kind(config.data),
            prefetch=config.data.prefetch,
            floats=self.floats,
            lends=True,
        )
        with batches:
            for (batch,) in batches:
                yield batch.images, batch.masks.long() if self.floats else widened(batch.masks)

    def _whole_images(self) -> Iterator[tuple[Tensor, Tensor]]:
        prefetch = self.config.data.prefetch
        with EvalLoader(
            self.dataset,
            self._groups,
            self.workers,
            prefetch,
            sizes=self._sizes,
        ) as batches:
            for _, images, masks in batches:  # in memory that the loader reuses
                if self.floats is None:
                    yield images.clone(), widened(masks.clone())
                else:
                    values = normalize(
                        images, self.floats.mean, self.floats.std, self.floats.channels_last
                    )
                    yield values.to(getattr(torch, self.floats.dtype)), masks.long()
