"""Writer of ONNX files that take raw pixels, each compared with torch."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segtrain.data.loader import IMAGENET_MEAN, IMAGENET_STD, normalize
from segtrain.errors import MissingExtra, SegtrainError

# Largest difference of logits between onnxruntime and torch, as a share of the largest logit.
TOLERANCE = 1e-3
# Height, width in pixels.
Size = tuple[int, int]
Write = Callable[[nn.Module, Path, Size, int, bool], None]


class Deployed(nn.Module):
    """The model from images uint8 (N, H, W, 3) RGB to ids uint8 (N, H, W) and logits float32 (N, C, H, W).

    Padding to the stride is done here without conditions on the size, so that an exporter can keep H and W open.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.stride = int(getattr(model, "stride", 1)) if getattr(model, "pads", False) else 1
        self.register_buffer("shift", torch.tensor([255.0 * m for m in IMAGENET_MEAN]).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor([1.0 / (255.0 * s) for s in IMAGENET_STD]).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = (images.permute(0, 3, 1, 2).to(torch.float32) - self.shift) * self.scale
        height, width = x.shape[-2], x.shape[-1]
        if self.stride > 1:
            # Not -(-height // stride): ONNX divides integers towards zero.
            right, below = ((side + self.stride - 1) // self.stride * self.stride - side for side in (width, height))
            x = F.pad(x, (0, right, 0, below))
        logits = self.model(x)[:, :, :height, :width]
        return logits.argmax(1).to(torch.uint8), logits


def require_onnx() -> None:
    """Raise MissingExtra if a package that writes or checks ONNX files is not installed."""
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "export", "the export to ONNX")


def write_onnx(
    model: nn.Module, path: Path, size: Size, opset: int, facts: dict[str, Any], plain: nn.Module | None = None
) -> dict[str, Any]:
    """Write and check an ONNX file; returns how it was made and how far it is from torch, as plain values.

    Tries torch.export with dynamic sizes, then tracing; the same with fixed sizes. Keeps the first file with which
    onnxruntime gives the right result. "tried" says why the earlier ones failed.
    ``plain`` is the network that is written: ``model`` without rewrites that depend on the size of the image.
    ``facts`` go into the file's metadata as JSON, under "segtrain". Raises SegtrainError if no file is right.
    """
    import onnx

    deployed = Deployed(plain or model).eval()
    tried: list[str] = []
    for open_sizes in (True, False):
        for exporter, write in _exporters():
            try:
                # Exporters take the bins of adaptive pooling for constants of one image size.
                with _quiet(), mock.patch.object(F, "adaptive_avg_pool2d", _pool), torch.no_grad():
                    write(deployed, path, size, opset, open_sizes)
                found = _check(model, path, size, open_sizes)
            except Exception as error:
                # Exporters may raise anything; the next one is tried.
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                tried.append(f"{exporter}, {'open' if open_sizes else 'fixed'} sizes: {reason}")
                continue
            made = {"file": path.name, "exporter": exporter, "open_sizes": open_sizes, **found, "tried": tried}
            graph = onnx.load(str(path))
            onnx.checker.check_model(graph)
            onnx.helper.set_model_props(graph, {"segtrain": json.dumps({**facts, "onnx": made})})
            onnx.save(graph, str(path))
            return made
    network = facts.get("module") or f"model.arch={facts['model']['arch']}"
    why = f"no ONNX file of {network} agrees with torch ({'; '.join(tried)}): use --formats safetensors"
    raise SegtrainError(why, code="onnx-not-exportable", tried=tried)


def _exporters() -> list[tuple[str, Write]]:
    """The exporters that this torch has, best first."""
    known = inspect.signature(torch.onnx.export).parameters
    by_export = "dynamo" in known and "dynamic_shapes" in known and importlib.util.find_spec("onnxscript") is not None
    return [*([("torch.export", _torch_export)] if by_export else []), ("tracing", _trace)]


def _torch_export(deployed: nn.Module, path: Path, size: Size, opset: int, open_sizes: bool) -> None:
    # A batch of 1 would be taken for a constant.
    example = torch.zeros(2, *size, 3, dtype=torch.uint8)
    axes = {0: torch.export.Dim("n"), 1: torch.export.Dim("height", min=2), 2: torch.export.Dim("width", min=2)}
    torch.onnx.export(
        deployed,
        (example if open_sizes else example[:1],),
        str(path),
        dynamo=True,
        dynamic_shapes=(axes,) if open_sizes else None,
        input_names=["images"],
        output_names=["classes", "logits"],
        opset_version=opset,
        external_data=False,
        verbose=False,
    )


def _trace(deployed: nn.Module, path: Path, size: Size, opset: int, open_sizes: bool) -> None:
    choice: dict[str, Any] = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    axes = {"images": {0: "n", 1: "height", 2: "width"}, "classes": {0: "n", 1: "height", 2: "width"}}
    axes["logits"] = {0: "n", 2: "height", 3: "width"}
    torch.onnx.export(
        deployed,
        (torch.zeros(1, *size, 3, dtype=torch.uint8),),
        str(path),
        input_names=["images"],
        output_names=["classes", "logits"],
        dynamic_axes=axes if open_sizes else None,
        opset_version=min(opset, 17),  # the newest that every torch knows here
        **choice,
    )


def _check(model: nn.Module, path: Path, size: Size, open_sizes: bool) -> dict[str, Any]:
    """Compare onnxruntime with torch on random pixels; with open sizes also on two images of another size.

    Raises SegtrainError if the outputs differ (see TOLERANCE).
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    shapes = [(1, *size)] + ([(2, size[0] + 13, size[1] + 38)] if open_sizes else [])
    worst, largest, other, pixels = 0.0, 0.0, 0, 0
    for shape in shapes:
        images = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        classes, logits = session.run(["classes", "logits"], {"images": images})
        with torch.no_grad():
            expected = model(normalize(torch.from_numpy(images))).numpy()
        if logits.shape != expected.shape or classes.shape != shape or classes.dtype != np.uint8:
            why = f"outputs {classes.dtype} {classes.shape} and {logits.shape}, not uint8 {shape} and {expected.shape}"
            raise SegtrainError(why, code="onnx-outputs-shape")
        worst, largest = max(worst, float(np.abs(logits - expected).max())), max(largest, float(np.abs(expected).max()))
        other, pixels = other + int((classes != expected.argmax(1)).sum()), pixels + classes.size
    if not worst <= TOLERANCE * largest:
        why = f"logits differ from torch's by up to {worst:.3g}; the largest logit is {largest:.3g}"
        raise SegtrainError(why, code="onnx-logits-differ")
    opset = max(item.version for item in onnx.load(str(path)).opset_import if item.domain in ("", "ai.onnx"))
    return {
        "opset": opset,
        "checked": [list(shape) for shape in shapes],
        "max_difference": worst,
        "largest_logit": largest,
        "other_classes": other,
        "pixels": pixels,
    }


def _pool(x: Tensor, size: Any) -> Tensor:
    """``F.adaptive_avg_pool2d`` as two products with averaging matrices, which leave the size of ``x`` open."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return _means(x.shape[-2], rows, x) @ x @ _means(x.shape[-1], columns, x).transpose(0, 1)


def _means(length: Any, bins: Any, like: Tensor) -> Tensor:
    """(bins, length): row i averages the pixels from floor(i L / bins) to ceil((i + 1) L / bins) - 1; None: length."""
    bins = length if bins is None else bins
    pixel = torch.arange(length, device=like.device)[None]
    number = torch.arange(bins, device=like.device)[:, None]
    inside = (pixel >= number * length // bins) & (pixel < ((number + 1) * length + bins - 1) // bins)
    inside = inside.to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, some of which write to the standard streams from C++."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept = os.dup(1), os.dup(2)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:
            warnings.simplefilter("ignore")
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
    finally:
        for number, copy in enumerate(kept, start=1):
            os.dup2(copy, number)
            os.close(copy)
        logging.disable(level)
