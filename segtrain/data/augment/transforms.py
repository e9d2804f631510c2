"""Repeatable augmentation by the user's transforms: albumentations, torchvision v2, or a function.

Every random number of a call comes from (seed, epoch, sample id): before each call, the library's
random state is set from them. Each thread has its own copy of the pipeline, since albumentations
stores the parameters of a call there.
"""

from __future__ import annotations

import copy
import inspect
import random
import threading
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data.augment.geometry import ids_in
from segtrain.data.augment.transforms_build import build, kind_of, parts_of, transforms_error
from segtrain.data.order import TRANSFORMS, rng_for
from segtrain.errors import SegtrainError, file_error, some_of

Pair = tuple[np.ndarray, np.ndarray]
Run = Callable[[np.ndarray, np.ndarray, np.random.Generator], "tuple[Any, Any]"]

_NEAREST = (cv2.INTER_NEAREST, cv2.INTER_NEAREST_EXACT)
_FLOATS_FIX = (
    "segtrain normalizes on the device: remove Normalize, ToFloat, ToTensorV2 and their like"
)


class Transforms:
    """A pipeline that any thread may call. It can be pickled: another process builds it again from
    ``given``.

    ``given``: a value of ``data.transforms``, a transform of albumentations or torchvision v2, a
    list of such transforms, or a function ``f(image, mask, rng) -> (image, mask)``. The function
    gets an image uint8 (H, W, 3), a mask uint8 (H, W), and a ``numpy.random.Generator``. Raises
    ConfigError for a pipeline that cannot be built or would change labels, and MissingExtra if
    albumentations is needed but not installed.
    """

    def __init__(self, given: Any, ignore_index: int) -> None:
        self.given, self.ignore_index = given, ignore_index
        self._own = threading.local()
        self._pipeline = build(given)
        self.kind = kind_of(self._pipeline)
        self.notes: tuple[str, ...] = ()  # what was changed in the pipeline
        if self.kind == "albumentations":
            self._pipeline = copy.deepcopy(self._pipeline)  # the caller's pipeline must not change
            self.notes = _guard_masks(self._pipeline, ignore_index)
        elif self.kind == "torchvision":
            from segtrain.data.augment.transforms_torch import refuse_class_0

            refuse_class_0(self._pipeline, ignore_index)

    def __reduce__(self) -> tuple[Any, ...]:
        return Transforms, (self.given, self.ignore_index)

    def __call__(self, pair: Pair, out: Pair, key: tuple[int, int, int], name: str) -> None:
        """Transform an image uint8 (H, W, 3) and its mask uint8 (H, W) into ``out``, two arrays of
        the crop's size.

        ``key``: seed, epoch, sample id. ``name``: the file to name in errors. Raises DataError if
        the pipeline fails or returns a wrong size, a wrong dtype, or new ids.
        """
        run: Run | None = getattr(self._own, "run", None)
        if run is None:
            run = self._own.run = self._runner()
        rng = rng_for(*key, TRANSFORMS)
        known = ids_in(pair[1])
        cv2.setRNGSeed(int(rng.random() * (1 << 31)))  # OpenCV has one random state per thread
        try:
            image, mask = run(*pair, rng)
        except SegtrainError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may call exit()
            reason = (
                f"data.transforms failed: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:500]}"
            )
            found = f"{type(error).__name__}: {error}"
            raise file_error(name, reason, code="transforms-failed", found=found) from error
        for result, target, part in zip((image, mask), out, ("image", "mask")):
            _refuse_wrong_result(result, target, part, name)
            if result is not target:
                target[...] = result
        new = np.setdiff1d(ids_in(out[1]), [*known, self.ignore_index]).tolist()
        if new:
            reason = f"data.transforms add the ids {some_of(new, 8)} to the mask"
            fix = "fill masks with the void id, and resize them by nearest"
            raise file_error(name, f"{reason}: {fix}", code="transforms-new-ids", found=new)

    def _runner(self) -> Run:
        """The pipeline as a function, for this thread."""
        if self.kind == "albumentations":
            return _albumentations(copy.deepcopy(self._pipeline))
        if self.kind == "torchvision":
            from segtrain.data.augment.transforms_torch import runner

            return runner(copy.deepcopy(self._pipeline))
        return self._pipeline


def transforms_of(given: Any, data: Data, ignore_index: int) -> Transforms | None:
    """``Transforms`` of ``given``, or of ``data.transforms`` if ``given`` is None. None if there
    are no transforms.
    """
    if isinstance(given, Transforms):
        return given
    given = data.transforms if given is None else given
    return Transforms(given, ignore_index) if given else None


def _draws(part: Any) -> bool:
    return hasattr(part, "set_random_state")


def _guard_masks(pipeline: Any, ignore_index: int) -> tuple[str, ...]:
    """Make transforms pad masks with ``ignore_index``, not class 0, and return a note. Refuse
    blending of mask ids.
    """
    changed = set()
    for part in parts_of(pipeline, _draws):
        name = type(part).__name__
        if getattr(part, "mask_interpolation", None) not in (None, *_NEAREST):
            reason = f"{name} would blend the ids of a mask: set mask_interpolation to 0 (nearest)"
            raise transforms_error(reason, code="transforms-blend-mask", found=name)
        default = inspect.signature(type(part).__init__).parameters.get("fill_mask")
        # Dropout transforms have the default None, which leaves masks as they are: there, only the
        # user can set 0.
        padding = default is not None and default.default == 0
        if padding and getattr(part, "fill_mask", None) == 0 and ignore_index != 0:
            part.fill_mask = ignore_index
            changed.add(name)
    names = ", ".join(sorted(changed))
    note = (
        f"data.transforms: masks are padded with {ignore_index} (ignored), not with class 0, "
        f"by {names}"
    )
    return (note,) if names else ()


def _albumentations(pipeline: Any) -> Run:
    parts = list(parts_of(pipeline, _draws))

    def run(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> tuple[Any, Any]:
        py_random = random.Random(int(rng.random() * (1 << 53)))
        for part in parts:
            part.random_generator, part.py_random = rng, py_random
        made = pipeline(image=image, mask=mask)
        return made["image"], made["mask"]

    return run


def _refuse_wrong_result(result: Any, target: np.ndarray, part: str, name: str) -> None:
    dtype = getattr(result, "dtype", type(result).__name__)
    if not isinstance(result, np.ndarray) or dtype != target.dtype:
        fix = _FLOATS_FIX if part == "image" else f"masks stay {target.dtype} (H, W) arrays of ids"
        found = type(result).__name__, str(dtype)
        reason = f"after data.transforms the {part} is a {found[0]} of {dtype}: {fix}"
        raise file_error(name, reason, code="transforms-wrong-type", part=part, found=found)
    if result.shape != target.shape:
        reason = (
            f"after data.transforms the {part} has the shape {result.shape}, the batch "
            f"needs {target.shape}"
        )
        fix = (
            f"end the pipeline with a crop to data.crop={list(target.shape[:2])}, or keep the size"
        )
        values = {"found": result.shape, "expected": target.shape}
        raise file_error(name, f"{reason}: {fix}", code="transforms-wrong-size", **values)
