"""Prediction for images of any size: in one pass, in sliding windows, at several scales, and also
mirrored.

``forward`` maps normalized images float (N, 3, H, W) to logits (N, C, H, W). If several forward
passes cover a pixel, their softmax probabilities are averaged. Windows at the border are shifted
inward, never padded.
To save memory, logits exist for one window at a time, and ``strips`` holds the sums of one row of
windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segtrain import config
from segtrain.metrics import predict_classes

Size = tuple[int, int]  # height, width in pixels
Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class View:
    """How an image is predicted: in windows of size ``tile`` that overlap by the fraction
    ``overlap``, at ``scales``.

    ``flip``: also predict the mirrored image. All predictions are averaged. ``mirror``: see
    ``LabelSpace``.
    """

    tile: Size | None = None
    overlap: float = 0.5
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    mirror: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: config.Eval, base_scale: float, mirror: tuple[int, ...] = ()) -> View:
        """The view of ``settings``, with scales times ``data.base_scale``, so that object sizes are
        as in training.
        """
        scales = tuple(scale * base_scale for scale in settings.scales)
        return cls(settings.tile, settings.overlap, scales, settings.flip, mirror)

    def is_single(self, size: Size) -> bool:
        """Whether one forward pass covers an image of ``size``, so that nothing needs to be
        averaged.
        """
        return self.windows(size) == 1

    def windows(self, size: Size) -> int:
        """Forward passes for an image of ``size``."""
        return sum(count for count, _ in self._passes(size))

    def pixels(self, size: Size) -> int:
        """Pixels of all forward passes for an image of ``size``."""
        return sum(count * height * width for count, (height, width) in self._passes(size))

    def _passes(self, size: Size) -> Iterator[tuple[int, Size]]:
        """Number and size of the forward passes at each scale."""
        for scale in self.scales:
            height, width = scaled(size, scale)
            tile = self.tile or (height, width)
            count = len(starts(height, tile[0], self.overlap)) * len(
                starts(width, tile[1], self.overlap)
            )
            yield count * (2 if self.flip else 1), (min(tile[0], height), min(tile[1], width))


def starts(length: int, tile: int, overlap: float) -> list[int]:
    """First pixel of each window along one axis; the last window is shifted to end at the border.

    Neighbors overlap by the fraction ``overlap`` (the last two may overlap more). [0] if one tile
    covers the axis.
    """
    if length <= tile:
        return [0]
    step = min(tile, max(1, round(tile * (1.0 - overlap))))
    return [*range(0, length - tile, step), length - tile]


def coverage(
    length: int, tile: int, begins: list[int], device: torch.device | None = None
) -> Tensor:
    """How many windows cover each pixel of an axis, at least 1: float32 (length,)."""
    counts = torch.zeros(length, device=device)
    for start in begins:
        counts[start : start + tile] += 1
    return counts


def nearest(masks: Tensor, size: Size) -> Tensor:
    """Label masks (N, H, W) of any integer type, resized to (N, h, w): the label at the center of
    each new pixel.

    The index is computed in integers, so that it is the same on every platform.
    """
    (height, width), (new_height, new_width) = masks.shape[-2:], size
    if (height, width) == tuple(size):
        return masks
    rows = (2 * torch.arange(new_height, device=masks.device) + 1) * height // (2 * new_height)
    columns = (2 * torch.arange(new_width, device=masks.device) + 1) * width // (2 * new_width)
    return masks[:, rows][:, :, columns]


def resize(images: Tensor, size: Size) -> Tensor:
    """Images float (N, 3, H, W) at another size, bilinear, with an antialiasing filter where they
    shrink.
    """
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    shrinks = size[0] < images.shape[-2] or size[1] < images.shape[-1]
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=shrinks)


def scaled(size: Size, scale: float) -> Size:
    """``size`` times ``scale``, in whole pixels, at least 1."""
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _probabilities(forward: Forward, crop: Tensor, view: View) -> Tensor:
    """Softmax probabilities float32 (N, C, h, w) of a crop; ``view.flip``: averaged with its mirror
    image's.
    """
    mean = forward(crop).float().softmax(1)
    if not view.flip:
        return mean
    mirrored = forward(crop.flip(-1)).float().softmax(1).flip(-1)
    if view.mirror:
        mirrored = torch.stack([mirrored[:, index] for index in view.mirror], 1)
    return (mean + mirrored).mul_(0.5)


def strips(
    forward: Forward, images: Tensor, view: View, logits: bool = False
) -> Iterator[tuple[int, Tensor]]:
    """Slide windows over images (N, 3, H, W); yield finished rows from top to bottom as (top,
    scores (N, C, rows, W)).

    scores: the mean probabilities over all windows that cover a pixel. With ``logits``, they are
    the logits, which requires that one forward pass covers the image. Ignores ``view.scales``.
    """
    height, width = images.shape[-2:]
    if logits:
        yield 0, forward(images).float()
        return
    tile = view.tile or (height, width)
    tile_height, tile_width = min(tile[0], height), min(tile[1], width)
    tops, lefts = starts(height, tile_height, view.overlap), starts(width, tile_width, view.overlap)
    counts_down = coverage(height, tile_height, tops, images.device)
    counts_across = coverage(width, tile_width, lefts, images.device)
    total: Tensor | None = None
    for top, following in zip(tops, [*tops[1:], height]):
        for left in lefts:
            crop = images[:, :, top : top + tile_height, left : left + tile_width]
            part = _probabilities(forward, crop, view)
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
    forward: Forward, images: Tensor, view: View = View(), size: Size | None = None
) -> Tensor:
    """Scores float32 (N, C, h, w) of images (N, 3, H, W) at ``size`` (default: the images' own).

    Probabilities are resized to ``size`` (bilinear) and averaged over the scales. If one forward
    pass covers the image, the scores are logits.
    """
    own = (images.shape[-2], images.shape[-1])
    size = size or own
    total: Tensor | None = None
    for scale in view.scales:
        pieces = strips(forward, resize(images, scaled(own, scale)), view, view.is_single(own))
        part = _joined([piece for _, piece in pieces], 2)
        if tuple(part.shape[-2:]) != tuple(size):
            part = F.interpolate(part, size=size, mode="bilinear", align_corners=False)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total if len(view.scales) == 1 else total.div_(len(view.scales))


def predict_ids(
    forward: Forward,
    images: Tensor,
    view: View = View(),
    size: Size | None = None,
    nonfinite: list[Tensor] | None = None,
    read: Callable[[Tensor, int], None] | None = None,
) -> Tensor:
    """Class ids (N, h, w) of images (N, 3, H, W): the class with the highest score, on a tie the
    lowest id.

    At one scale and at the image's own size, each strip becomes ids at once, so full-size scores
    are never in memory. nonfinite: see ``predict_classes``. read: called with the logits of each
    strip and its first row; of averaged probabilities, they are the logarithm.
    """
    own = (images.shape[-2], images.shape[-1])
    single = view.is_single(own)
    pieces: Iterable[tuple[int, Tensor]]
    if tuple(size or own) != own or len(view.scales) > 1 or scaled(own, view.scales[0]) != own:
        pieces = [(0, predict_scores(forward, images, view, size))]
    else:
        pieces = strips(forward, images, view, single)
    ids = []
    for top, piece in pieces:
        ids.append(predict_classes(piece, nonfinite))
        if read is not None:
            read(piece if single else piece.clamp_min(torch.finfo(piece.dtype).tiny).log(), top)
    return _joined(ids, 1)


def _joined(pieces: list[Tensor], dim: int) -> Tensor:
    """The concatenated pieces; a single piece is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
