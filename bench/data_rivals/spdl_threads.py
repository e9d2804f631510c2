"""SPDL: a pipeline of stages in the threads of one process, with albumentations in the stage that
makes a sample.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator

import albu
import torch
from common import arguments, pairs
from measure import measure
from spdl.pipeline import PipelineBuilder

Sample = tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    args = arguments()
    own = threading.local()  # a transform holds random numbers: one for each thread

    def source() -> Iterator[tuple[str, str]]:
        for _ in itertools.count():
            yield from random.sample(pairs(args), k=len(pairs(args)))

    def make(pair: tuple[str, str]) -> Sample:
        if not hasattr(own, "transform"):
            own.transform = albu.transform(args.crop, args.uniform)
        return albu.augmented(own.transform, *albu.read(*pair))

    def collate(samples: list[Sample]) -> Sample:
        images, masks = zip(*samples)
        return torch.stack(images), torch.stack(masks)

    pipeline = (
        PipelineBuilder()
        .add_source(source())
        .pipe(make, concurrency=args.workers)
        .aggregate(args.batch, drop_last=True)
        .pipe(collate)
        .add_sink()
        .build(num_threads=args.workers)
    )
    with pipeline.auto_stop():
        measure(args, pipeline)


if __name__ == "__main__":
    main()
