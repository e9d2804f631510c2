"""Prediction of images of any size: whole, in windows, at several scales, mirrored.

Every function here is pure: ``forward`` maps normalized images float (N, 3, H, W) to logits (N, C, H, W), and the views
of an image are combined by the mean of their softmax probabilities, each view with the same weight. A window at the
border is shifted inwards, never padded, so that each pixel is covered and no window sees made-up pixels. Where a single
view covers the image (the usual case) there is nothing to average, and the logits stay as they are: no softmax is paid.

Memory: logits exist for one window at a time. ``strips`` holds the sums of one row of windows, (N, C, tile height,
W) float32, and gives away each row of pixels when its last window is in; ``predict_ids`` keeps class ids alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from segtrain.metrics import predict_classes

Size = tuple[int, int]  # height, width in pixels
Forward = Callable[[Tensor], Tensor]


def starts(length: int, tile: int, overlap: float) -> list[int]:
    """First pixel of each window along one axis; the last window is shifted to end at the border.

    Neighbors share ``overlap`` of a tile (the last two may share more). A tile at least as long as the axis: [0].
    """
    if length <= tile:
        return [0]
    step = min(tile, max(1, round(tile * (1.0 - overlap))))
    return [*range(0, length - tile, step), length - tile]


def coverage(length: int, tile: int, first: list[int], device: torch.device | None = None) -> Tensor:
    """How many windows cover each pixel of an axis, at least 1: float32 (length,), made on ``device`` without a copy."""
    counts = torch.zeros(length, device=device)
    for start in first:
        counts[start : start + tile] += 1
    return counts


def nearest(masks: Tensor, size: Size) -> Tensor:
    """Label masks (N, H, W) of any integer type at another size (N, h, w): the label under each new pixel's center.

    The index is computed in integers, so that it is the same on every platform; no label is ever mixed.
    """
    (height, width), (new_height, new_width) = masks.shape[-2:], size
    if (height, width) == tuple(size):
        return masks
    rows = (2 * torch.arange(new_height, device=masks.device) + 1) * height // (2 * new_height)
    columns = (2 * torch.arange(new_width, device=masks.device) + 1) * width // (2 * new_width)
    return masks[:, rows][:, :, columns]


def resize(images: Tensor, size: Size) -> Tensor:
    """Images float (N, 3, H, W) at another size, bilinear, with an antialiasing filter where they shrink."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    shrinks = size[0] < images.shape[-2] or size[1] < images.shape[-1]
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=shrinks)


def scaled(size: Size, scale: float) -> Size:
    """``size`` times ``scale``, in whole pixels, at least 1."""
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def single_view(size: Size, tile: Size | None, scales: tuple[float, ...], flip: bool) -> bool:
    """Whether one forward pass covers the image, so that logits need no softmax and no mean."""
    height, width = scaled(size, scales[0])
    return len(scales) == 1 and not flip and (tile is None or (height <= tile[0] and width <= tile[1]))


def _probabilities(forward: Forward, crop: Tensor, flip: bool) -> Tensor:
    """Mean over a crop and, with ``flip``, its mirror image, of softmax probabilities, float32 (N, C, h, w)."""
    mean = forward(crop).float().softmax(1)
    return (mean + forward(crop.flip(-1)).float().softmax(1).flip(-1)).mul_(0.5) if flip else mean


def strips(
    forward: Forward, images: Tensor, tile: Size | None, overlap: float = 0.5, flip: bool = False, logits: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Slide windows over images (N, 3, H, W); give finished rows from top to bottom as (top, scores (N, C, rows, W)).

    scores: mean probabilities over all windows that cover a pixel, or with ``logits`` (allowed for a single view, see
    ``single_view``) the logits. Together the strips cover each row once.
    """
    height, width = images.shape[-2:]
    if logits:
        yield 0, forward(images).float()
        return
    tile_height, tile_width = (min(tile[0], height), min(tile[1], width)) if tile else (height, width)
    tops, lefts = starts(height, tile_height, overlap), starts(width, tile_width, overlap)
    counts_down = coverage(height, tile_height, tops, images.device)
    counts_across = coverage(width, tile_width, lefts, images.device)
    total: Tensor | None = None
    for top, following in zip(tops, [*tops[1:], height]):
        for left in lefts:
            crop = images[:, :, top : top + tile_height, left : left + tile_width]
            part = _probabilities(forward, crop, flip)
            if total is None:
                total = part.new_zeros((*part.shape[:2], tile_height, width))
            total[:, :, :, left : left + tile_width] += part
        assert total is not None
        done = following - top  # rows that no later window covers
        yield top, total[:, :, :done] / (counts_down[top:following, None] * counts_across)
        kept = total[:, :, done:].clone()
        total.zero_()
        total[:, :, : tile_height - done] = kept


def predict_scores(
    forward: Forward,
    images: Tensor,
    *,
    size: Size | None = None,
    tile: Size | None = None,
    overlap: float = 0.5,
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
) -> Tensor:
    """Scores float32 (N, C, h, w) of images (N, 3, H, W) at ``size`` (default: the images' own).

    For each scale the image is resized, windows of ``tile`` slide over it, and the result is resized (bilinear) to
    ``size``. The scores are the mean probabilities over scales, or the logits where there is a single view.
    """
    own = (images.shape[-2], images.shape[-1])
    size = tuple(size) if size else own  # type: ignore[assignment]
    logits = single_view(own, tile, scales, flip)
    total: Tensor | None = None
    for scale in scales:
        pieces = [
            piece for _, piece in strips(forward, resize(images, scaled(own, scale)), tile, overlap, flip, logits)
        ]
        part = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
        if tuple(part.shape[-2:]) != size:
            part = F.interpolate(part, size=size, mode="bilinear", align_corners=False)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total if len(scales) == 1 else total.div_(len(scales))


def predict_ids(
    forward: Forward,
    images: Tensor,
    *,
    size: Size | None = None,
    tile: Size | None = None,
    overlap: float = 0.5,
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
) -> Tensor:
    """Class ids (N, h, w) of images (N, 3, H, W): the highest score, ties to the lowest id.

    At one scale and the image's own size each strip becomes ids at once, so that a large image needs no full-size scores.
    """
    own = (images.shape[-2], images.shape[-1])
    if (size is not None and tuple(size) != own) or len(scales) > 1 or scaled(own, scales[0]) != own:
        scores = predict_scores(forward, images, size=size, tile=tile, overlap=overlap, scales=scales, flip=flip)
        return predict_classes(scores)
    logits = single_view(own, tile, scales, flip)
    pieces = [predict_classes(piece) for _, piece in strips(forward, images, tile, overlap, flip, logits)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
