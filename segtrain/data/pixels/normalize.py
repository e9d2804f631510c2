"""Normalization of images for a network, with color augmentation on the device if requested."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from segtrain import kernels
from segtrain.data.augment.geometry import FILL, GRAY
from segtrain.data.pixels.floats import IMAGENET_MEAN as IMAGENET_MEAN
from segtrain.data.pixels.floats import IMAGENET_STD as IMAGENET_STD
from segtrain.data.pixels.floats import terms

# of the kernels: programs per image that add up levels, and numbers of a program
PARTS, BLOCK = 64, 1024

_FAULTS: dict[tuple[Any, ...], str] = {}  # why the kernels are not used on a device, or ""


def normalize(
    images: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    channels_last: bool = False,
    colors: torch.Tensor | None = None,
    covered: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Convert uint8 (n, H, W, 3) to ``dtype`` (n, 3, H, W), ``(x / 255 - mean) / std``, on the
    device of ``images``; or stored values float32 (n, H, W, C) to (n, C, H, W), ``(x - mean) /
    std``.

    ``channels_last`` chooses the memory format of the result. Without ``colors``, both formats have
    bitwise equal values. ``dtype``: float32, or what its values are rounded to.

    ``colors``: float32 (n, 10), the ``color_terms`` of each image, applied as in
    ``geometry._color`` but without rounding to integers. ``covered``: int (n, 4), the rectangle
    (top, left, bottom, right) that the image covers (None: everything). Outside it is padding,
    which keeps the color ``FILL`` and does not count for the mean gray. ``colors`` and ``covered``
    must be on the device of ``images``.

    On an NVIDIA GPU, kernels (``segtrain.kernels.images``) do this in one pass if they give what
    the operators of torch give. Only the first call on a device synchronizes with it, to create the
    constants there and to compare.
    """
    if images.dtype == torch.float32:
        return _standardized(images, mean, std, channels_last).to(dtype)
    how = (tuple(mean), tuple(std), channels_last, colors, covered, dtype)
    if not images.is_cuda or not len(images):
        return _by_operators(images, *how)
    form = (images.device, channels_last, colors is None, covered is None, dtype)
    if form not in _FAULTS:
        _FAULTS[form] = _fault(images, *how)
    return _by_operators(images, *how) if _FAULTS[form] else _by_kernels(images, *how)


def _standardized(
    images: torch.Tensor, mean: Sequence[float], std: Sequence[float], channels_last: bool
) -> torch.Tensor:
    shift, scale = (_constant(part, torch.float32, images.device) for part in terms(mean, std, 1.0))
    values = ((images - shift) * scale).permute(0, 3, 1, 2)
    return values if channels_last else values.contiguous()


def _fault(images: torch.Tensor, *how: Any) -> str:
    """Why the kernels cannot make these images, or "". Warns about it. Waits for the GPU."""
    why = kernels.unavailable(images.device)
    if not why:
        try:
            made, expected = _by_kernels(images, *how).float(), _by_operators(images, *how).float()
            # A bfloat16 has 8 bits.
            apart, largest = (float(part.abs().max()) for part in (made - expected, expected))
            bound = (4e-5 if how[-1] == torch.float32 else 8e-3) * largest
            why = "" if apart <= bound else f"they are off by {apart:.2g}"
        except Exception as error:  # of Triton, which needs a C compiler, a driver that fits, ...
            why = f"they do not run here ({type(error).__name__}: {error})"
    if why:
        text = f"images are normalized by several kernels of torch instead of one: {why}"
        warnings.warn(text, kernels.UnusedKernels, stacklevel=3)
    return why


def _by_kernels(
    images: torch.Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    channels_last: bool,
    colors: torch.Tensor | None,
    covered: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    images = images.contiguous()
    n, height, width, _ = images.shape
    memory = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(
        (n, 3, height, width), dtype=dtype, device=images.device, memory_format=memory
    )
    shift, scale = terms(mean, std)
    constants = _constant(
        (*shift, *scale, *map(float, FILL), *GRAY.tolist()), torch.float32, images.device
    )
    sums = images  # which is not read
    if colors is not None:
        sums = torch.empty((n, 3, PARTS), dtype=torch.int32, device=images.device)
        kernels.launch(
            "images.level_sums",
            images.device,
            (PARTS, n),
            4,
            images,
            sums,
            height * width,
            PARTS=PARTS,
            BLOCK=BLOCK,
        )
    kernels.launch(
        "images.normalized",
        images.device,
        (-(-3 * height * width // BLOCK), n),
        4,
        images,
        out,
        height,
        width,
        constants,
        *((images, 1) if colors is None else (colors, colors.stride(0))),
        *((images, 1) if covered is None else (covered, covered.stride(0))),
        sums,
        COLORED=colors is not None,
        COVERED=covered is not None,
        LAST=channels_last,
        PARTS=PARTS,
        BLOCK=BLOCK,
    )
    return out


def _by_operators(
    images: torch.Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    channels_last: bool,
    colors: torch.Tensor | None,
    covered: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    shift, scale = (_constant(values, torch.float32, images.device) for values in terms(mean, std))
    if colors is not None:
        return _colored(images, shift, scale, channels_last, colors, covered).to(dtype)
    n, height, width, channels = images.shape
    if channels_last:
        # One long inner axis: broadcasting over an inner axis of length 3 would take 50% longer.
        flat = images.reshape(n, height, width * channels).to(torch.float32)
        flat = flat.sub_(shift.repeat(width)).mul_(scale.repeat(width))
        return flat.view(n, height, width, channels).permute(0, 3, 1, 2).to(dtype)
    planes = torch.empty((n, channels, height, width), dtype=torch.float32, device=images.device)
    planes.copy_(images.permute(0, 3, 1, 2))
    return planes.sub_(shift[:, None, None]).mul_(scale[:, None, None]).to(dtype)


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A constant tensor, copied to a device only once: a copy of Python numbers waits for all
    queued work there.
    """
    # an inference tensor in the cache could not be saved for a later backward pass
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def _colored(
    images: torch.Tensor,
    shift: torch.Tensor,
    scale: torch.Tensor,
    channels_last: bool,
    colors: torch.Tensor,
    covered: torch.Tensor | None,
) -> torch.Tensor:
    """Apply colors and normalization as one affine map, clamped to the normalized values of 0 and
    255.
    """
    n, height, width, _ = images.shape
    device = images.device
    matrix, gain = colors[:, :9].view(n, 3, 3), colors[:, 9]
    if covered is not None:
        covered = covered.long()
    matrix = matrix * scale[:, None]
    offset = ((gain * _mean_gray(images, covered))[:, None] - shift) * scale
    memory = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(
        (n, 3, height, width), dtype=torch.float32, device=device, memory_format=memory
    )
    for c in range(3):
        plane, taps = out[:, c], matrix[:, c, :, None, None]
        torch.addcmul(offset[:, c, None, None], images[..., 0], taps[:, 0], out=plane)
        plane.addcmul_(images[..., 1], taps[:, 1]).addcmul_(images[..., 2], taps[:, 2])
    least, most = -shift * scale, (255 - shift) * scale
    torch.clamp(out, least[:, None, None], most[:, None, None], out=out)
    if covered is not None:
        y, x = torch.arange(height, device=device), torch.arange(width, device=device)
        top, left, bottom, right = covered.T[..., None]
        rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        padding = (_constant(FILL, torch.float32, device) - shift) * scale
        torch.where(inside, out, padding[:, None, None], out=out)
    return out


def _mean_gray(images: torch.Tensor, covered: torch.Tensor | None) -> torch.Tensor:
    """float32 (n,): the mean gray of the covered part, from the integer sum of all pixels minus
    that of the padding.
    """
    n, height, width, _ = images.shape
    # along rows first, in memory order
    sums = images.reshape(n, height, width * 3).sum(1, dtype=torch.int32)
    sums = sums.view(n, width, 3).sum(1, dtype=torch.int64)
    area = torch.full((n,), height * width, device=images.device)
    if covered is not None:
        area = (covered[:, 2] - covered[:, 0]) * (covered[:, 3] - covered[:, 1])
        sums = sums - (height * width - area)[:, None] * _constant(FILL, torch.int64, images.device)
    gray = _constant(tuple(GRAY), torch.float64, images.device)
    return ((sums.double() * gray).sum(1) / area).float()
