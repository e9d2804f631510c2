"""Writer of ONNX files that take raw pixels. The outputs of each file are compared with torch's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.data.train_loader import normalize
from segtrain.errors import MissingExtra, SegtrainError, one_line
from segtrain.models.base import channels_of, normalization

# Largest difference of logits between onnxruntime and torch, as a share of the largest logit.
TOLERANCE = 1e-3
# Height, width in pixels.
Size = tuple[int, int]
Write = Callable[["Deployed", Path, Size, int, bool], None]


@dataclass(frozen=True)
class Input:
    """What an ONNX file takes: images uint8 (N, H, W, 3) RGB, or float32 (N, H, W, bands) in
    ``stored`` units.

    nchw_float: float32 with the channels before H and W; RGB from 0 to 1. batch: a fixed N; 0: any.
    """

    stored: bool = False
    nchw_float: bool = False
    batch: int = 0

    @property
    def text(self) -> str:
        order = "(N, C, H, W)" if self.nchw_float else "(N, H, W, C)"
        levels = "float32 RGB from 0 to 1" if self.nchw_float else "uint8 RGB"
        return f"{'float32 in stored units' if self.stored else levels}, {order}"

    def placed(self, images: Any) -> Any:
        """Images (N, H, W, C), an array or a tensor, as the file takes them."""
        if not self.nchw_float:
            return images
        return (images if self.stored else images / np.float32(255)).transpose(0, 3, 1, 2)


def ids_dtype(classes: int) -> torch.dtype:
    """The type of class ids."""
    return torch.uint8 if classes <= 256 else torch.int32


class Deployed(nn.Module):
    """A model that maps images, see ``Input``, to ids (N, H, W) and logits float32 (N, C, H, W).
    NaN counts as the mean.

    It pads images to a multiple of the model's stride, and to its smallest size. The code has no
    branch on the image size, so that an exporter can keep H and W dynamic.
    """

    shift: Tensor
    scale: Tensor

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], taken: Input
    ) -> None:
        super().__init__()
        self.model, self.taken = model, taken
        unit, shape = 1.0 if taken.stored or taken.nchw_float else 255.0, (1, len(mean), 1, 1)
        pads = bool(getattr(model, "pads", False))
        self.stride, self.least = (
            int(getattr(model, name, 1)) if pads else 1 for name in ("stride", "least")
        )
        self.register_buffer("shift", torch.tensor([unit * m for m in mean]).view(shape))
        self.register_buffer("scale", torch.tensor([1.0 / (unit * s) for s in std]).view(shape))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = images if self.taken.nchw_float else images.permute(0, 3, 1, 2)
        x = (x.to(torch.float32) - self.shift) * self.scale
        if self.taken.stored:
            x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
        height, width = x.shape[-2], x.shape[-1]
        if self.stride > 1:
            # ``_padded`` does not use -(-side // stride), because ONNX rounds integer division
            # toward zero.
            right, below = (self._padded(side) - side for side in (width, height))
            x = F.pad(x, (0, right, 0, below))
        logits = self.model(x)[:, :, :height, :width]
        return logits.argmax(1).to(ids_dtype(logits.shape[1])), logits

    def example(self, count: int, size: Size) -> Tensor:
        """Images of the form that it takes."""
        shape = self.taken.batch or count, *size, self.shift.shape[1]
        images = np.zeros(shape, np.float32 if self.taken.stored else np.uint8)
        return torch.from_numpy(self.taken.placed(images)).contiguous()

    def axes(self, names: tuple[Any, Any, Any]) -> dict[int, Any]:
        """The names of the open dimensions of images: of N, H, and W."""
        places = (0, 2, 3) if self.taken.nchw_float else (0, 1, 2)
        return dict([*zip(places, names)][bool(self.taken.batch) :])

    def _padded(self, side: Any) -> Any:
        whole = (side + self.stride - 1) // self.stride * self.stride
        # The larger of the two, without a branch.
        return (
            (whole + self.least + abs(whole - self.least)) // 2
            if self.least > self.stride
            else whole
        )


def require_onnx() -> None:
    """Raise MissingExtra if a package that writes or checks ONNX files is not installed."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "export", "the export to ONNX")


def write_onnx(
    model: nn.Module,
    path: Path,
    size: Size,
    opset: int | None,
    facts: dict[str, Any],
    plain: nn.Module | None = None,
    dynamic: bool = True,
    taken: Input = Input(),
) -> dict[str, Any]:
    """Write and check an ONNX file; returns how it was made and how much it differs from torch, as
    plain values.

    Tries torch.export and then tracing, first with dynamic sizes (if ``dynamic``), then with fixed
    ones. Keeps the first file whose outputs in onnxruntime agree with torch. "tried" in the result
    lists why earlier attempts failed. ``plain``: the network to write, which is ``model`` without
    fast layers that depend on the image size. ``taken``: see ``Input``. ``facts`` go into the
    file's metadata as JSON, under "segtrain". Raises SegtrainError if no file agrees.
    """
    import onnx

    deployed = Deployed(plain or model, *normalization(model), taken).eval()
    tried: list[str] = []
    for open_sizes in (True, False)[not dynamic :]:
        # torch.export writes opset 18, and rarely an older one.
        for exporter, write in EXPORTERS[:: 1 if (opset or 18) >= 18 else -1]:
            try:
                # Exporters turn the bins of adaptive pooling into constants for one image size.
                # ``_pool`` avoids this.
                with _quiet(), mock.patch.object(F, "adaptive_avg_pool2d", _pool), torch.no_grad():
                    write(deployed, path, size, opset or 18, open_sizes)
                comparison = _check(model, path, size, open_sizes, taken)
                if opset not in (None, comparison["opset"]):
                    raise SegtrainError(
                        f"it has opset {comparison['opset']}", code="onnx-opset-differs"
                    )
            except Exception as error:
                # Exporters may raise anything; the next one is tried.
                reason = one_line(error)[:200] or type(error).__name__
                tried.append(f"{exporter}, {'open' if open_sizes else 'fixed'} sizes: {reason}")
                continue
            made = {
                "file": path.name,
                "exporter": exporter,
                "open_sizes": open_sizes,
                "images": taken.text,
                **comparison,
                "tried": tried,
            }
            graph = onnx.load(str(path))
            onnx.checker.check_model(graph)
            onnx.helper.set_model_props(graph, {"segtrain": json.dumps({**facts, "onnx": made})})
            onnx.save(graph, str(path))
            return made
    network = facts.get("module") or f"model.arch={facts['model']['arch']}"
    raise SegtrainError(
        f"no ONNX file of {network} agrees with torch ({'; '.join(tried)}): use --formats "
        "safetensors",
        code="onnx-not-exportable",
        tried=tried,
    )


def _torch_export(deployed: Deployed, path: Path, size: Size, opset: int, open_sizes: bool) -> None:
    # torch.export would treat a size of 1 as a constant: that of the batch, and of the features at
    # the largest stride.
    if open_sizes:
        least = 2 * int(getattr(deployed.model, "stride", 1))
        size = max(size[0], least), max(size[1], least)
    example = deployed.example(2, size)
    height, width = (torch.export.Dim(name, min=2) for name in ("height", "width"))
    axes = deployed.axes((torch.export.Dim("n"), height, width))
    torch.onnx.export(
        deployed,
        (example if open_sizes or deployed.taken.batch else example[:1],),
        str(path),
        dynamo=True,
        dynamic_shapes=(axes,) if open_sizes else None,
        input_names=["images"],
        output_names=["classes", "logits"],
        opset_version=opset,
        external_data=False,
        verbose=False,
    )


def _trace(deployed: Deployed, path: Path, size: Size, opset: int, open_sizes: bool) -> None:
    axes = {"images": deployed.axes(("n", "height", "width"))}
    axes["classes"] = {0: "n", 1: "height", 2: "width"}
    axes["logits"] = {0: "n", 2: "height", 3: "width"}
    torch.onnx.export(
        deployed,
        (deployed.example(1, size),),
        str(path),
        input_names=["images"],
        output_names=["classes", "logits"],
        dynamic_axes=axes if open_sizes else None,
        # the newest opset that tracing supports in every version of torch
        opset_version=min(opset, 17),
        dynamo=False,
    )


# Best first. The first one needs onnxscript, and torch 2.5 or newer.
EXPORTERS: tuple[tuple[str, Write], ...] = (("torch.export", _torch_export), ("tracing", _trace))


def _check(
    model: nn.Module, path: Path, size: Size, open_sizes: bool, taken: Input
) -> dict[str, Any]:
    """Compare onnxruntime with torch on random pixels; with dynamic sizes, also on other sizes.
    Some stored values are missing.

    Raises SegtrainError if the outputs differ (see TOLERANCE).
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # onnxruntime would print an error that it raises too
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    shapes = [(1, *size)] + ([(2, size[0] + 13, size[1] + 38)] if open_sizes else [])
    if open_sizes and (least := int(getattr(model, "least", 1))) > 1:
        shapes.append((1, least // 2, least // 2 + 3))
    shapes = [(taken.batch or count, height, width) for count, height, width in shapes]
    worst = 0.0
    largest = 0.0
    other = 0
    pixels = 0
    for shape in shapes:
        seen: np.ndarray = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        images = seen
        if taken.stored:
            seen = rng.normal(*normalization(model), (*shape, channels_of(model)))
            seen = seen.astype(np.float32)
            seen[:, 0, 0] = normalization(model)[0]
            images = seen.copy()
            images[:, 0, 0] = np.nan
        classes, logits = session.run(["classes", "logits"], {"images": taken.placed(images)})
        with torch.no_grad():
            expected = model(normalize(torch.from_numpy(seen), *normalization(model))).numpy()
        ids = str(ids_dtype(expected.shape[1])).removeprefix("torch.")
        if (logits.shape, classes.shape, str(classes.dtype)) != (expected.shape, shape, ids):
            raise SegtrainError(
                f"outputs {classes.dtype} {classes.shape} and {logits.shape}, not {ids} "
                f"{shape} and {expected.shape}",
                code="onnx-outputs-shape",
            )
        worst = max(worst, float(np.abs(logits - expected).max()))
        largest = max(largest, float(np.abs(expected).max()))
        other = other + int((classes != expected.argmax(1)).sum())
        pixels = pixels + classes.size
    if not worst <= TOLERANCE * largest:
        raise SegtrainError(
            f"logits differ from torch's by up to {worst:.3g}; the largest logit is {largest:.3g}",
            code="onnx-logits-differ",
        )
    opset = max(
        item.version for item in onnx.load(str(path)).opset_import if item.domain in ("", "ai.onnx")
    )
    return {
        "opset": opset,
        "checked": [list(shape) for shape in shapes],
        "max_difference": worst,
        "largest_logit": largest,
        "other_classes": other,
        "pixels": pixels,
    }


def _pool(x: Tensor, size: Any) -> Tensor:
    """``F.adaptive_avg_pool2d`` as two products with averaging matrices, so that the size of ``x``
    can be dynamic.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    return _means(x.shape[-2], rows, x) @ x @ _means(x.shape[-1], columns, x).transpose(0, 1)


def _means(length: Any, bins: Any, like: Tensor) -> Tensor:
    """Averaging matrix (bins, L): row i averages pixels floor(i L / bins) to ceil((i + 1) L / bins)
    - 1.

    L is ``length``. If ``bins`` is None, there are L bins.
    """
    bins = length if bins is None else bins
    pixel = torch.arange(length, device=like.device)[None]
    number = torch.arange(bins, device=like.device)[:, None]
    inside = (pixel >= number * length // bins) & (
        pixel < ((number + 1) * length + bins - 1) // bins
    )
    inside = inside.to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, including output that C++ code writes to the standard streams."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    streams = os.dup(1), os.dup(2)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:
            warnings.simplefilter("ignore")
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
    finally:
        for number, copy in enumerate(streams, start=1):
            os.dup2(copy, number)
            os.close(copy)
        logging.disable(level)
