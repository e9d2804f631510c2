"""Predictor: a trained model that turns images into masks, and its reader of image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor, nn

from segtrain.config import Config
from segtrain.config.paste import command
from segtrain.data.audit.image_depth import look_at
from segtrain.data.labels.space import LabelSpace
from segtrain.data.own import image_fix
from segtrain.data.pixels import decode
from segtrain.data.pixels.normalize import IMAGENET_MEAN, IMAGENET_STD, normalize
from segtrain.data.pixels.reading import PLAIN, depth_of, too_dark
from segtrain.errors import ConfigError, DataError, file_error
from segtrain.evaluate.load import load_run
from segtrain.evaluate.tiles import View, predict_ids, predict_scores
from segtrain.infer.view import bytes_per_pixel, counted, fitted, free_memory, with_settings
from segtrain.metrics import nonfinite_logits, predict_classes
from segtrain.terminal import say

# PIL modes that must be converted to RGB. Their arrays have the shape of gray or RGB images, but hold palette indices,
# or channels of another color space.
_PIL_MODES = ("P", "YCbCr", "HSV")
Image = Union[str, os.PathLike[str], np.ndarray, Tensor]


def load(
    run: str | Path,
    *overrides: str,
    which: str = "best",
    device: str = "auto",
    model: nn.Module | None = None,
    say: Callable[[str], None] = say,
) -> Predictor:
    """Load the model of a run folder, or of the folder of an export, as a ``Predictor``.

    overrides: settings of reading and evaluation, such as ``"eval.tile=[512,512]"`` or ``"eval.flip=true"``.
    which: the ``best`` or the ``last`` checkpoint. device: ``cpu``, ``cuda``, or ``auto``.
    model: the network, if the run was trained with a module of your own whose class takes arguments.
    say: prints remarks about images. Raises ConfigError or CheckpointError.
    """
    if device == "cuda" and not torch.cuda.is_available():
        fix = "check the driver (nvidia-smi), or choose device cpu"
        raise ConfigError(f"device cuda, but torch sees no GPU: {fix}", code="no-gpu", device=device)
    network, config, labels = load_run(run, which, model)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Predictor(network.to(torch.device(device)), with_settings(config, overrides), labels, say)


class Predictor:
    """A model in evaluation mode with its labels; predicts images of any size, as the evaluation of its run does.

    model: maps normalized images (N, 3, H, W) to logits (N, C, H, W). config: the config of the run.
    labels: names and colors of the classes; a mask holds their indices.
    """

    def __init__(self, model: nn.Module, config: Config, labels: LabelSpace, say: Callable[[str], None] = say) -> None:
        self.model, self.config, self.labels, self.say = model, config, labels, say
        self.view = View.of(config.eval, config.data.base_scale)

    def predict(self, images: Image | Iterable[Image]) -> list[np.ndarray]:
        """The mask of each image: class ids uint8 (H, W), at the size of the image.

        images: one image or several. An image is a path, an array uint8 (H, W, 3) RGB or (H, W) gray, or a tensor
        uint8 (3, H, W) or (H, W, 3). A batch of color images is an array or a tensor with one more dimension. Files are
        read as ``segtrain predict`` reads them, upright. Raises DataError for an image that cannot be read or has
        another shape or type, and SegtrainError if any logits are NaN or infinite.
        """
        masks: list[np.ndarray] = []
        for image in _each(images):
            if isinstance(image, (str, os.PathLike)):
                name = os.fspath(image)
                if os.path.isdir(name):
                    fix = f"list its files, as in predict(pathlib.Path({name!r}).glob('*.jpg'))"
                    raise DataError(f"{name} is a folder: {fix}", code="image-is-a-folder", file=name)
                pixels = read_picture(name, decode.Reading.of(self.config.data)).pixels
            else:
                name, pixels = f"image {len(masks)}", _pixels(image)
            masks.append(self.segment(pixels, name)[0])
        return masks

    @torch.inference_mode()
    def segment(
        self, pixels: np.ndarray, name: str, probabilities: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Class ids uint8 (H, W), and probabilities float16 (C, H, W) or None, of an image uint8 (H, W, 3).

        Predicts as the evaluation of the run does, but in windows if the image does not fit into memory. Raises
        SegtrainError if a logit is NaN or infinite.
        """
        size, device = (pixels.shape[0], pixels.shape[1]), self._device
        stride = int(getattr(self.model, "stride", 32))
        crop = self.config.data.crop
        view, remark = fitted(self.view, size, self._bytes_per_pixel, free_memory(device), crop, stride)
        if remark:
            self.say(f"{name}: {remark}")
        inputs = torch.from_numpy(np.require(pixels, requirements=["C", "W"]))[None].to(device)
        inputs = normalize(inputs, IMAGENET_MEAN, IMAGENET_STD, False)
        forward = counted(self.model, view.windows(size), self.say)
        flags: list[Tensor] = []
        scores = predict_scores(forward, inputs, view) if probabilities else None
        found = predict_ids(forward, inputs, view, None, flags) if scores is None else predict_classes(scores, flags)
        ids = found[0].to(torch.uint8).cpu().numpy()
        if torch.stack(flags).any():
            raise nonfinite_logits([name])
        if scores is None:
            return ids, None
        if view.is_single(size):
            scores = scores.softmax(1)
        return ids, scores[0].half().cpu().numpy()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def _bytes_per_pixel(self) -> float:
        return bytes_per_pixel(self.model, self._device)


def _each(images: Any) -> Iterable[Image]:
    """The images of a batch or an iterable, or a list with the single image."""
    if isinstance(images, (str, os.PathLike)) or getattr(images, "ndim", 0) == 3 or hasattr(images, "getbands"):
        return [images]
    if not isinstance(images, (np.ndarray, Tensor, Iterable)) or getattr(images, "ndim", 4) != 4:
        return [images]
    return images


def _pixels(image: Any) -> np.ndarray:
    """uint8 (H, W, 3) of an array, a tensor, or a PIL image. Raises DataError for another shape or type."""
    if getattr(image, "mode", "") in _PIL_MODES:
        image = image.convert("RGB")
    array = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    found = array.shape
    if isinstance(image, Tensor) and array.ndim == 3 and array.shape[2] != 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2 and array.dtype == np.uint8 and array.size:
        array = np.stack([array] * 3, axis=2)
    fix = image_fix(array)
    if fix:
        shown = type(image).__name__ if array.dtype == object else f"{array.dtype} {found}"
        why = f"an image of type {shown} cannot be predicted: {fix}, or give the path of a file"
        raise DataError(why, code="image-array", found=found, dtype=str(array.dtype))
    return array


@dataclass(frozen=True)
class Picture:
    """Pixels uint8 (H, W, 3) RGB, upright, and a note on how they were changed, or ""."""

    pixels: np.ndarray
    note: str = ""


def read_picture(path: str | Path, reading: decode.Reading = PLAIN) -> Picture:
    """Read an image file, and turn the image upright by its EXIF orientation.

    Raises DataError as ``decode.decode_image`` does, and for a 16-bit image that would turn nearly black.
    """
    content, name = decode.load(path)
    header = decode.read_header(content, name)
    look = look_at(content, name, header)
    if look.brightest >= 0 and too_dark(look.brightest, reading):
        fix = f"{command({'data.bits': depth_of(look.brightest)})}, or data.bits=16 if it is meant to be this dark"
        why = f"a 16-bit image without a value above {look.brightest:,} would be nearly black: {fix}"
        raise file_error(name, why, code="image-nearly-black")
    notes = ["its transparent alpha channel left out"] if look.transparent else []
    pixels = decode.decode_image(content, name, reading)
    if header.orientation != 1:
        pixels = upright(pixels, header.orientation)
        notes.append(f"turned upright, EXIF orientation {header.orientation}")
    return Picture(pixels, ", ".join(notes))


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Stored pixels (H, W, ...) as viewers show them.

    ``orientation``: the EXIF tag, 1 to 8, which says on which sides of the picture the stored first row and column are.
    """
    if orientation in (5, 6, 7, 8):  # the first row is at the left or the right
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):  # the first row is at the bottom
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):  # the first column is at the right
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
