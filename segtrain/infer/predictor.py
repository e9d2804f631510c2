"""Predictor: a trained model that turns images into masks, and its reader of image files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segtrain.base.precision import autocast, meant, tf32
from segtrain.base.terminal import say
from segtrain.config import Config
from segtrain.config.paste import command
from segtrain.data.audit.images import flip_finding, image_properties
from segtrain.data.device_feed import CudaCopier
from segtrain.data.labels.classes import with_sides
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels import decode
from segtrain.data.pixels.bands import BandImage
from segtrain.data.pixels.floats import Pixels
from segtrain.data.pixels.normalize import normalize
from segtrain.data.pixels.reading import PLAIN, depth_of, too_dark
from segtrain.errors import ConfigError, DataError, file_error
from segtrain.evaluation.load import load_run
from segtrain.evaluation.tiles import Size, View, predict_ids, predict_scores, scaled
from segtrain.infer.stream import Item, Segmentation, Waiting, segmented
from segtrain.infer.view import SHARE, bytes_per_pixel, counted, fitted, free_memory, with_settings
from segtrain.metrics import nonfinite_logits, predict_classes
from segtrain.models.base import normalization
from segtrain.observe.journal import Say

# PIL modes that must be converted to RGB. Their arrays have the shape of gray or RGB images, but
# hold palette indices, or channels of another color space.
_PIL_MODES = ("P", "YCbCr", "HSV")
Image = str | os.PathLike[str] | np.ndarray | Tensor
_MOST = 16  # images in a batch on a GPU


def load(
    run: str | Path,
    *overrides: str,
    which: str = "best",
    device: str = "auto",
    model: nn.Module | None = None,
    say: Say = say,
) -> Predictor:
    """Load the model of a run folder, or of the folder of an export, as a ``Predictor``.

    overrides: settings of reading and evaluation, such as ``"eval.tile=[512,512]"`` or
    ``"eval.flip=true"``. which: the ``best`` or the ``last`` checkpoint. device: ``cpu``, ``cuda``,
    or ``auto``.
    model: the network, if the run was trained with a module of your own whose class takes
    arguments.
    say: prints remarks about images. Raises ConfigError or CheckpointError.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device cuda, but torch sees no GPU: check the driver (nvidia-smi), or choose device "
            "cpu",
            code="no-gpu",
            device=device,
        )
    network, config, labels = load_run(run, which, model)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    config = with_settings(config, overrides)
    labels = with_sides(labels, config.data)
    for finding in flip_finding("eval.flip" if config.eval.flip else "", labels):
        say(f"warning: {finding.text()}")
    predictor = Predictor(network.to(torch.device(device)), config, labels, say)
    if predictor.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return predictor


class Predictor:
    """A model in evaluation mode with its labels; predicts images of any size, as the evaluation of
    its run does.

    model: maps normalized images (N, 3, H, W) to logits (N, C, H, W). config: the config of the
    run.
    labels: names and colors of the classes; a mask holds their indices. On a GPU, the arithmetic is
    that of ``train.precision``; on a CPU it is float32.
    """

    def __init__(
        self, model: nn.Module, config: Config, labels: LabelSpace, say: Say = say
    ) -> None:
        self.model = model
        self.config = config
        self.labels = labels
        self.say = say
        self.view = View.of(config.eval, config.data.base_scale, labels.mirror)
        device = self._device
        self.asynchronous = device.type == "cuda"  # ``launch`` does not wait for its results
        self.precision = meant(config.train.precision, device) if self.asynchronous else "fp32"
        self._copier = CudaCopier(device) if self.asynchronous else None
        self.channels_last = self.asynchronous and config.train.channels_last is not False

    def predict(self, images: Image | Iterable[Image]) -> list[np.ndarray]:
        """The mask of each image: class ids (H, W), at the size of the image: uint8, or uint16
        with more than 254 classes.

        images: one image or several. An image is a path, an array uint8 (H, W, 3) RGB or (H, W)
        gray, or a tensor uint8 (3, H, W) or (H, W, 3). A network of stored values takes numbers (H,
        W, bands), NaN where there is no data; such pixels get the ignored id. A batch of color
        images is an array or a tensor with one more dimension. Files are read as ``segtrain
        predict`` reads them, upright. Raises DataError for an image that cannot be read or has
        another shape or type, and SegtrainError if any logits are NaN or infinite.
        """
        masks = {item.key: ids for item, (ids, _) in segmented(self, self._items(images))}
        return [masks[number] for number in sorted(masks)]

    def _items(self, images: Image | Iterable[Image]) -> Iterator[Item]:
        for number, image in enumerate(_each(images)):
            if isinstance(image, (str, os.PathLike)):
                name = os.fspath(image)
                if os.path.isdir(name):
                    raise DataError(
                        f"{name} is a folder: list its files, as in "
                        f"predict(pathlib.Path({name!r}).glob('*.jpg'))",
                        code="image-is-a-folder",
                        file=name,
                    )
                picture = read_picture(name, self._reading)
            else:
                name = f"image {number}"
                picture = _picture(image, self._reading.pixels)
            yield Item(picture.pixels, name, number, picture.void)

    @torch.inference_mode()
    def launch(
        self, images: Sequence[tuple[np.ndarray, str]], probabilities: bool = False
    ) -> Waiting:
        """Start to predict a batch of images of one size, (pixels, name) each, as the evaluation of
        the run does, but in windows if an image does not fit into memory.

        Returns a function that waits for the results and returns them. Only it raises
        SegtrainError, if a logit is NaN or infinite.
        """
        size = images[0][0].shape[0], images[0][0].shape[1]
        view = self._fitted(size, images[0][1])
        levels = self._placed([pixels for pixels, _ in images])
        inputs = normalize(levels, *normalization(self.model), self.channels_last)
        forward = counted(self._forward, view.windows(size), self.say)
        flags: list[Tensor] = []
        with tf32(self.precision == "tf32"):
            if probabilities:
                scores = predict_scores(forward, inputs, view)
                parts = [
                    predict_classes(scores, flags),
                    (scores.softmax(1) if view.is_single(size) else scores).half(),
                ]
            else:
                parts = [predict_ids(forward, inputs, view, None, flags)]
        parts[0] = parts[0].to(getattr(torch, self.labels.mask_dtype.__name__))
        return partial(
            _results,
            [name for _, name in images],
            *self._to_host([torch.stack(flags).any(0), *parts]),
        )

    def _fitted(self, size: Size, name: str) -> View:
        """The view of an image, in windows if it does not fit into memory, with a remark."""
        stride = int(getattr(self.model, "stride", 32))
        crop = self.config.data.crop
        view, remark = fitted(
            self.view, size, self._bytes_per_pixel, free_memory(self._device), crop, stride
        )
        if remark:
            self.say(f"{name}: {remark}")
        return view

    def batch_size(self, size: Size) -> int:
        """How many images of ``size`` to predict at once: 1 on a CPU, otherwise as many as fit, up
        to 16.
        """
        if not self.asynchronous:
            return 1
        height, width = scaled(size, max(self.view.scales))
        rows = min(height, self.view.tile[0]) if self.view.tile else height
        room = SHARE * free_memory(self._device) / (rows * width * self._bytes_per_pixel)
        return max(1, min(_MOST, int(room)))

    def _forward(self, images: Tensor) -> Tensor:
        with autocast(self._device.type, self.precision):
            return self.model(images)

    def _placed(self, pixels: list[np.ndarray]) -> Tensor:
        """The images on the device, (n, H, W, bands). A GPU copies them during the work that was
        launched before.
        """
        if self._copier is None:
            if len(pixels) == 1:
                return torch.from_numpy(np.require(pixels[0], requirements=["C", "W"]))[None]
            return torch.from_numpy(np.stack(pixels))
        dtype = torch.from_numpy(pixels[0]).dtype
        host = torch.empty((len(pixels), *pixels[0].shape), dtype=dtype, pin_memory=True)
        np.stack(pixels, out=host.numpy())
        placed = self._copier.copy(host)
        self._copier.hand_over([placed], self._copier.mark())
        return placed

    def _to_host(self, tensors: list[Tensor]) -> tuple[list[Tensor], torch.cuda.Event | None]:
        """The tensors on the host, and the event after which they hold their values."""
        if self._copier is None:
            return tensors, None
        hosts = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in tensors]
        for host, part in zip(hosts, tensors):
            host.copy_(part, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return hosts, event

    @cached_property
    def _reading(self) -> decode.Reading:
        return decode.Reading.from_data(self.config.data)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def _bytes_per_pixel(self) -> float:
        return bytes_per_pixel(self.model, self._device)


def _results(
    names: list[str], parts: list[Tensor], event: torch.cuda.Event | None
) -> list[Segmentation]:
    """The results of a batch, when the device has them. Raises SegtrainError naming images with
    nonfinite logits.
    """
    if event is not None:
        event.synchronize()
    nonfinite, ids, *scores = (part.numpy() for part in parts)
    if nonfinite.any():
        raise nonfinite_logits([name for name, wrong in zip(names, nonfinite) if wrong])
    # Copies, because others may keep a mask for long, and page-locked memory is scarce.
    return [(ids[k].copy(), scores[0][k].copy() if scores else None) for k in range(len(names))]


def _each(images: Any) -> Iterable[Image]:
    """The images of a batch or an iterable, or a list with the single image."""
    if (
        isinstance(images, (str, os.PathLike))
        or getattr(images, "ndim", 0) == 3
        or hasattr(images, "getbands")
    ):
        return [images]
    if not isinstance(images, (np.ndarray, Tensor, Iterable)) or getattr(images, "ndim", 4) != 4:
        return [images]
    return images


def _picture(image: Any, pixels: Pixels) -> Picture:
    """An array, a tensor, or a PIL image. Raises DataError for another shape or type."""
    if not pixels.stored and getattr(image, "mode", "") in _PIL_MODES:
        image = image.convert("RGB")
    array = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    shape = array.shape
    if isinstance(image, Tensor) and array.ndim == 3 and array.shape[2] != pixels.channels:
        array = array.transpose(1, 2, 0)
    if array.ndim == 2 and array.dtype == np.uint8 and array.size and not pixels.stored:
        array = np.stack([array] * 3, axis=2)
    if not pixels.fits(array):
        shown = type(image).__name__ if array.dtype == object else f"{array.dtype} {shape}"
        raise DataError(
            f"an image of type {shown} cannot be predicted: give {pixels.wanted}, or the "
            "path of a file",
            code="image-array",
            found=shape,
            dtype=str(array.dtype),
        )
    void = None
    if pixels.stored:
        array, void = pixels.filled(pixels.marked(array))
    return Picture(array, void=void)


@dataclass(frozen=True)
class Picture:
    """Pixels uint8 (H, W, 3) RGB, upright, and a note on how they were changed, or ""; or stored
    values float32 (H, W, bands), and bool (H, W): pixels without data.
    """

    pixels: np.ndarray
    note: str = ""
    void: np.ndarray | None = None


def read_picture(path: str | Path, reading: decode.Reading = PLAIN) -> Picture:
    """Read an image file, and turn the image upright by its EXIF orientation; not if stored values
    are kept.

    Raises DataError as ``decode.decode_image`` does, and for a 16-bit image that would turn nearly
    black.
    """
    if reading.pixels.stored:
        files = reading.files_of(os.fspath(path)) or [os.fspath(path)]
        pixels, void = BandImage(files, files, reading.pixels).read()
        return Picture(pixels, void=void)
    content, name = decode.load(path)
    header = decode.read_header(content, name)
    properties = image_properties(content, name, header)
    if properties.brightest >= 0 and too_dark(properties.brightest, reading):
        raise file_error(
            name,
            f"a 16-bit image without a value above {properties.brightest:,} would be nearly black: "
            f"{command({'data.bits': depth_of(properties.brightest)})}, or data.bits=16 if it is "
            "meant to be this dark",
            code="image-nearly-black",
        )
    notes = ["its transparent alpha channel left out"] if properties.transparent else []
    pixels = decode.decode_image(content, name, reading)
    if header.orientation != 1:
        pixels = upright(pixels, header.orientation)
        notes.append(f"turned upright, EXIF orientation {header.orientation}")
    return Picture(pixels, ", ".join(notes))


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Stored pixels (H, W, ...) as viewers show them.

    ``orientation``: the EXIF tag, 1 to 8, which says on which sides of the picture the stored first
    row and column are.
    """
    if orientation in (5, 6, 7, 8):  # the first row is at the left or the right
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):  # the first row is at the bottom
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):  # the first column is at the right
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
