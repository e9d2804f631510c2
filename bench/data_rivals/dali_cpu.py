"""DALI without a GPU: only the crop's rectangle is decoded, and then resized; the same distribution
of crops.
"""

from __future__ import annotations

from typing import Any

from common import FILL, FLIP, HUE, IGNORE, JITTER, JITTER_P, MEAN, SCALE, STD, arguments, pairs
from measure import measure
from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy


def color(images: Any) -> Any:
    """ColorJitter of half the images: the others get factors of 1."""
    on = fn.random.coin_flip(probability=JITTER_P)

    def factor() -> Any:
        return 1.0 + on * fn.random.uniform(range=(-JITTER, JITTER))

    turn = on * fn.random.uniform(range=(-360 * HUE, 360 * HUE))
    return fn.color_twist(
        images, brightness=factor(), contrast=factor(), saturation=factor(), hue=turn
    )


@pipeline_def
def pipeline(files: list[tuple[str, str]], crop: list[int], uniform: bool) -> tuple[Any, Any]:
    images, masks = zip(*files)
    order = {
        "random_shuffle": True,
        "seed": 7,
        "initial_fill": 64,
        "name": None,
    }  # equal seeds: images and masks stay together
    image, place = fn.readers.file(files=list(images), labels=list(range(len(files))), **order)
    mask, mask_place = fn.readers.file(files=list(masks), labels=list(range(len(files))), **order)
    low, high = SCALE
    if uniform:
        scale = fn.random.uniform(range=(low, high))
    else:
        scale = low * math.pow(high / low, fn.random.uniform(range=(0.0, 1.0)))
    shape = fn.peek_image_shape(image)
    y, x = fn.random.uniform(range=(0.0, 1.0)), fn.random.uniform(range=(0.0, 1.0))
    full = [fn.cast(shape[axis], dtype=types.FLOAT) for axis in (0, 1)]
    # the rectangle in source pixels
    part = [math.min(crop[axis] / scale, full[axis]) for axis in (0, 1)]
    corner = [u * (full[axis] - part[axis]) for axis, u in enumerate((y, x))]
    where = {
        "start": fn.cast(fn.stack(*corner), dtype=types.INT32),
        "shape": fn.cast(fn.stack(*part), dtype=types.INT32),
        "axes": [0, 1],
    }
    image = fn.decoders.image_slice(image, **where)
    mask = fn.decoders.image_slice(mask, output_type=types.GRAY, **where)
    size = [math.min(crop[axis] + 0.0, full[axis] * scale) for axis in (0, 1)]
    size = fn.stack(*size)
    image = fn.resize(image, size=size, interp_type=types.INTERP_LINEAR, antialias=False)
    mask = fn.resize(mask, size=size, interp_type=types.INTERP_NN)
    place_in = {"crop": crop, "crop_pos_y": y, "crop_pos_x": x, "out_of_bounds_policy": "pad"}
    flip = fn.random.coin_flip(probability=FLIP)
    mask = fn.crop_mirror_normalize(
        mask, **place_in, mirror=flip, dtype=types.UINT8, output_layout="HWC", fill_values=[IGNORE]
    )
    image = fn.crop(image, **place_in, fill_values=list(FILL))
    mean, std = ([255 * value for value in values] for values in (MEAN, STD))
    image = fn.crop_mirror_normalize(
        color(image), mirror=flip, mean=mean, std=std, dtype=types.FLOAT, output_layout="CHW"
    )
    return image, mask, place, mask_place


def main() -> None:
    args = arguments()
    built = pipeline(
        pairs(args),
        args.crop,
        args.uniform,
        batch_size=args.batch,
        num_threads=args.workers,
        device_id=None,
        seed=1,
    )
    loader = DALIGenericIterator(
        [built], ["image", "mask", "place", "mask_place"], last_batch_policy=LastBatchPolicy.PARTIAL
    )

    def look(batch: list[dict[str, Any]]) -> tuple[Any, Any]:
        (found,) = batch
        assert (found["place"] == found["mask_place"]).all(), "images and masks have come apart"
        return found["image"], found["mask"][..., 0]

    measure(args, loader, look)


if __name__ == "__main__":
    main()
