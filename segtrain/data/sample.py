"""Makes one sample. Its random geometry is drawn first, so that only the pixels that the crop uses
are decoded.

A sample depends only on (seed, epoch, index) and the files. The code uses no torch and keeps no
state, so it is safe in any thread or process.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from segtrain.config import Data
from segtrain.data.augment.geometry import class_center, color_terms, draw
from segtrain.data.augment.transforms import transforms_of
from segtrain.data.dataset import SampleSource
from segtrain.data.order import CLASS, rng_for
from segtrain.data.pixels.crop import mask_of, size_of, write_crop, write_whole
from segtrain.data.pixels.floats import Floats, Pixels
from segtrain.data.pixels.jpeg_tiles import Tiles
from segtrain.data.stages import AUGMENT, DECODE, READ
from segtrain.errors import ConfigError, DataError, SegtrainError, one_line

COLOR_BYTES = 56  # per sample: ten float32 color terms and four int32 borders, see ``colors_in``


def colors_in(memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two views of uint8 [n * COLOR_BYTES]: float32 (n, 10) ``color_terms``, int32 (n, 4) top,
    left, bottom, right.
    """
    rows = memory.reshape(-1, COLOR_BYTES)
    return rows[:, :40].view(np.float32), rows[:, 40:].view(np.int32)


@dataclass(frozen=True)
class Task:
    """One training sample to make, with the crop (height, width) and the random scale (min, max) of
    its step.
    """

    index: int
    epoch: int
    crop: tuple[int, int]
    scale: tuple[float, float]


@dataclass(eq=False)
class SampleMaker:
    """Makes training samples of ``source``. It can be pickled, so that each worker process can have
    a copy.

    ``transforms``: augmentation to use instead of ``data.transforms``, see
    ``transforms.Transforms``. ``floats``: the form of normalized images, if they are wanted instead
    of levels.
    """

    source: SampleSource
    data: Data
    seed: int
    transforms: Any = None
    floats: Floats | None = None
    tiles: Tiles = field(init=False)

    def __post_init__(self) -> None:
        self.tiles = Tiles.from_source(self.source)
        self.transforms = transforms_of(self.transforms, self.data, self.source.labels.ignore_index)
        if self.source.reading.pixels.stored and self.transforms is not None:
            raise ConfigError(
                "data.transforms take 8-bit RGB images, but data.channels and data.values keep "
                "stored values: leave the transforms out",
                code="transforms-of-bands",
                key="data.transforms",
            )

    def __call__(
        self,
        task: Task,
        image_out: np.ndarray,
        mask_out: np.ndarray,
        colors_out: np.ndarray | None = None,
    ) -> None:
        """Write the crop to ``image_out`` uint8 (h, w, 3) and ``mask_out`` (h, w), both contiguous.
        A mask of uint16 may be its memory, uint8 (h, 2 w). For bands, ``image_out`` is the memory
        uint8 [bytes] of float32 (h, w, C).

        ``colors_out``: uint8 [COLOR_BYTES]. If given, the color terms and the covered part are
        written there (see ``colors_in``), and the crop keeps its colors: the device changes them.
        With ``floats``, ``image_out`` is uint8 [bytes], the memory of the normalized image. Raises
        DataError naming the file.
        """
        try:
            made = image_out = self.form.view(image_out, *task.crop)
            mask_out = mask_out.view(self.source.labels.mask_dtype)
            if self.floats is not None and self.transforms is not None:
                made = np.empty((*task.crop, 3), np.uint8)
            if self.transforms is None or self.data.transforms_mode == "after":
                self._make(task, made, mask_out, colors_out)
            if self.transforms is not None:
                self._transform(task, made, mask_out)
            if self.floats is not None and made is not image_out:
                self.floats.write(made, image_out)
        except Exception as error:
            raise named(self.source, task.index, error) from error

    @property
    def form(self) -> Floats | Pixels:
        """The form of the images."""
        return self.floats or self.source.reading.pixels

    def _make(
        self, task: Task, image_out: np.ndarray, mask_out: np.ndarray, colors_out: np.ndarray | None
    ) -> None:
        labels, key = self.source.labels, (self.seed, task.epoch, task.index)
        with READ:
            record = self.source.record(task.index)
        with DECODE:
            size = size_of(record)
        center = None
        if self.data.class_balanced_crop_prob > 0:
            u = rng_for(*key, CLASS).random(3)
            if u[0] < self.data.class_balanced_crop_prob:
                with DECODE:
                    mask = mask_of(record, labels)
                center = class_center(mask, u[1:], labels.num_classes)
                record = replace(record, mask=mask, ids="train")
        with AUGMENT:
            geometry = draw(rng_for(*key), size, task.crop, self.data, center, task.scale)
        if colors_out is not None:
            colors, covered = colors_in(colors_out)
            colors[0], covered[0] = color_terms(geometry.colors), geometry.covered(task.crop)
            geometry = geometry.plain()
        out, pixels, jpeg_index = (image_out, mask_out), self.source.reading.pixels, b""
        if pixels.stored:
            geometry = geometry.plain()
        else:
            jpeg_index = self.tiles.get(task.index, record.image_name, record.image, size)
        floats = self.floats if self.transforms is None else None
        write_crop(record, labels, geometry, task.crop, out, jpeg_index, floats, pixels)
        if geometry.flip and labels.mirror:
            table = np.arange(labels.mask_values, dtype=labels.mask_dtype)
            table[: labels.num_classes] = labels.mirror
            mask_out[...] = table[mask_out]

    def _transform(self, task: Task, image_out: np.ndarray, mask_out: np.ndarray) -> None:
        """Apply the user's transforms to the finished crop, or to the whole image."""
        pair = image_out, mask_out
        if self.data.transforms_mode == "replace":
            with DECODE:
                image, mask = self.source.read(task.index)
            pair = image.copy(), mask.copy()  # the arrays of a cache must not change
        key = self.seed, task.epoch, task.index
        with AUGMENT:
            self.transforms(
                pair, (image_out, mask_out), key, str(self.source.entries[task.index].image)
            )


def make_whole(
    source: SampleSource, index: int, image_out: np.ndarray, mask_out: np.ndarray
) -> None:
    """Write a whole image and its mask, for evaluation. Raises DataError naming the file."""
    try:
        with READ:
            record = source.record(index)
        with DECODE:
            mask_out = mask_out.view(source.labels.mask_dtype)
            image_out = source.reading.pixels.view(image_out, *mask_out.shape)
            write_whole(record, source.labels, (image_out, mask_out))
    except Exception as error:
        raise named(source, index, error) from error


def named(source: SampleSource, index: int, error: Exception) -> SegtrainError:
    """``error`` as a SegtrainError whose message names the files of the sample."""
    if isinstance(error, SegtrainError):
        return error
    files, reason = (
        files_of(source, index),
        f"{type(error).__name__}: {one_line(error)}",
    )
    return DataError(
        f"{files}: {reason}: repair or remove the files",
        code="sample-failed",
        files=files,
        found=reason,
    )


def files_of(source: SampleSource, index: int) -> str:
    entry = source.entries[index]
    return f"{entry.image} with {entry.mask}" if entry.mask else str(entry.image)


def rehearse(
    source: SampleSource, data: Data, seed: int, transforms: Any = None
) -> tuple[str, ...]:
    """Make up to four samples twice, to check that the transforms give the same pixels again.

    Returns the notes of the transforms for the user. Raises ConfigError if the pixels differ or a
    global random state was used, because then no run could be resumed or repeated. Other errors are
    those of ``SampleMaker``.
    """
    maker = SampleMaker(source, data, seed, transforms)
    if maker.transforms is None or not len(source):
        return ()
    for epoch, index in enumerate(sorted({k * (len(source) - 1) // 3 for k in range(4)})):
        made = []
        for _ in range(2):
            before = _states()
            mask = np.zeros(data.crop, source.labels.mask_dtype)
            made.append((np.zeros((*data.crop, 3), np.uint8), mask))
            maker(Task(index, epoch, data.crop, data.scale), *made[-1])
        moved = [name for name, state in _states().items() if state != before[name]]
        if moved or not all(map(np.array_equal, *made)):
            why = (
                f"draw from {' and '.join(moved)}"
                if moved
                else "give other pixels when they are called again"
            )
            raise ConfigError(
                f"data.transforms {why}, so no run can be resumed: let a function draw "
                "from its rng argument, "
                "and a class from self.py_random and self.random_generator "
                "(albumentations) or torch (torchvision)",
                code="transforms-not-repeatable",
                found=why,
            )
    return tuple(maker.transforms.notes)


def _states() -> dict[str, bytes]:
    """Global random states of the process."""
    state: Any = np.random.get_state()
    states = {
        "the module random": repr(random.getstate()).encode(),
        "numpy.random": state[1].tobytes() + repr(state[2:]).encode(),
    }
    if "torch" in sys.modules:
        states["torch's global generator"] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states
