"""Export of a trained model: safetensors with a description, and ONNX that takes raw pixels."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from segtrain import __version__
from segtrain.base.files import is_running
from segtrain.bucket import is_bucket, split_url
from segtrain.bucket.client import client_of
from segtrain.config import Config, read_parts
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError, SegtrainError, some_of
from segtrain.evaluation.load import assemble, load_run
from segtrain.infer.onnx_file import Input, Size, ids_dtype, require_onnx, write_onnx
from segtrain.models.base import SegModel
from segtrain.runfolder.checkpoint import named_best

FORMATS = ("safetensors", "onnx")
OUTAGE_S = 60.0  # longest outage of a bucket that an upload waits for


@dataclass(frozen=True)
class Export:
    """The files of an export, and how closely the ONNX file agrees with torch (None: no ONNX
    file).
    """

    files: tuple[Path, ...]
    onnx: dict[str, Any] | None = None  # see ``onnx_file.write_onnx``; also in model.json
    # URLs of the files if the export is in a bucket; ``files`` is then empty
    urls: tuple[str, ...] = ()


def export(
    run_dir: str | Path,
    out: str | Path,
    formats: tuple[str, ...] = FORMATS,
    *,
    which: str = "best",
    size: Size | None = None,
    opset: int | None = None,
    batch: int | None = None,
    input: str = "nhwc",
    model: nn.Module | None = None,
) -> Export:
    """Write ``weights.safetensors``, ``model.json``, and ``model.onnx`` into the folder ``out``.

    ``out`` may be in a bucket (``gs://BUCKET/FOLDER``). The files are first written to a temporary
    folder, so an error there leaves the files in ``out`` unchanged. Then they are moved to ``out``
    one by one, model.json last.

    model.onnx has the input ``images``, uint8 (N, H, W, 3) RGB or float32 (N, H, W, bands) in
    stored units, and the outputs ``classes``, uint8 (N, H, W), or int32 with more than 256
    classes, and ``logits``, float32 (N, C, H, W). The file includes normalizing, padding, and
    cropping. N, H, and W are dynamic if an exporter supports that and no ``size`` (H, W) is given.
    Otherwise, N is 1, and (H, W) is ``size`` (default: the training crop). ``batch``: a fixed N.
    ``input="nchw-float"``: ``images`` is float32 (N, 3, H, W) RGB from 0 to 1, or (N, bands, H, W)
    in stored units; it still includes normalizing. ``opset``: of the file
    (default: the newest that the exporter supports, up to 18). The file is checked with onnxruntime
    on random pixels: no logit may differ from torch's by more than a thousandth of the largest
    logit.
    model: the network, if the run was trained with a module of your own.
    Raises MissingExtra, ConfigError for an unknown format, and SegtrainError if no exporter
    succeeds.
    """
    if is_bucket(str(out)):
        with tempfile.TemporaryDirectory() as local:
            done = export(
                run_dir,
                local,
                formats,
                which=which,
                size=size,
                opset=opset,
                batch=batch,
                input=input,
                model=model,
            )
            return Export((), done.onnx, _uploaded(done.files, str(out)))
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ConfigError(
            f"export format {(unknown or ['(none)'])[0]!r}: choose from {', '.join(FORMATS)}",
            code="unknown-export-format",
            found=unknown,
        )
    if "onnx" in formats:
        require_onnx()
    network, config, labels = load_run(run_dir, which, model)
    facts = describe(config, labels, network, Path(run_dir), which)
    module = read_parts(Path(run_dir)).get("model", "") or (
        type(model).__qualname__ if model is not None else ""
    )
    if module:
        facts["module"] = module
    folder = Path(out)
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f"{_clean(folder)}{os.getpid()}-", dir=folder
        ) as partial:
            onnx, names = None, ["model.json"]
            if "safetensors" in formats:
                facts["weights"] = _write_weights(network, Path(partial, "weights.safetensors"))
                names.append("weights.safetensors")
            if "onnx" in formats:
                plain = network
                if not module:
                    settings = config.model.model_copy(update={"fast": False})
                    form = labels.num_classes, config.data.channels
                    plain = assemble(settings, form, network.state_dict(), str(run_dir))
                path = Path(partial, "model.onnx")
                taken = Input(config.data.stored, input == "nchw-float", batch or 0)
                onnx = facts["onnx"] = write_onnx(
                    network, path, size or config.data.crop, opset, facts, plain, not size, taken
                )
                names.append("model.onnx")
            Path(partial, "model.json").write_text(
                json.dumps(facts, indent=1) + "\n", encoding="utf-8"
            )
            # model.json is moved last, because it holds the checksum of the weights.
            for name in reversed(names):
                os.replace(Path(partial, name), folder / name)
    except OSError as error:
        raise SegtrainError(
            f"cannot write to {folder}: {error.strerror or error}: choose another folder",
            code="export-unwritable",
        ) from None
    finally:
        if not existed:
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
    return Export(tuple(folder / name for name in names), onnx)


def _uploaded(files: Sequence[Path], out: str) -> tuple[str, ...]:
    """Upload files to a folder in a bucket, model.json last. Returns their URLs."""
    base, prefix = split_url(out)
    urls = []
    for path in sorted(files, key=lambda path: path.name == "model.json"):
        key = f"{prefix}/{path.name}" if prefix else path.name
        client_of(base).put(key, path, OUTAGE_S)
        urls.append(f"{base}/{key}")
    return tuple(urls)


def _clean(folder: Path) -> str:
    """Remove what killed exports of this host left in ``folder``. Returns the prefix of this host's
    partial folders.
    """
    prefix = f".part-{socket.gethostname()}-"
    for left in folder.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not is_running(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return prefix


def describe(
    config: Config, labels: LabelSpace, model: SegModel, run_dir: Path, which: str
) -> dict[str, Any]:
    """The content of model.json: what a program needs to use the weights."""
    data = config.data
    reading: dict[str, Any] = {"bits": data.bits, "extra_bands": data.extra_bands}
    pixels, formula = "uint8 RGB, (N, H, W, 3), upright", "(x / 255 - mean) / std"
    if data.stored:
        reading = {"channels": data.channels, "values": "stored", "nodata": data.nodata}
        reading |= {"files": data.files} if data.files else {}
        pixels = f"float32, (N, H, W, {data.channels}), in stored units, NaN where there is no data"
        formula = "(x - mean) / std, 0 for NaN"
    best = named_best(run_dir) if which == "best" else None
    scored = best.record() if best else {}
    ids = str(ids_dtype(labels.num_classes)).removeprefix("torch.")
    versions = {"segtrain": __version__, "torch": torch.__version__}
    return {
        "format": "segtrain-model",
        "version": 1,
        # The initial weights no longer matter.
        "model": {**config.model.model_dump(mode="json"), "init": "", "freeze": "none"},
        "license": model.origin.license,
        "labels": labels.to_dict(),
        "input": {
            "pixels": pixels,
            "reading": reading,
            "normalize": formula,
            "mean": list(model.origin.mean),
            "std": list(model.origin.std),
            "crop": list(config.data.crop),
            "scale": config.data.base_scale,
            "resize": "multiply height and width by scale (bilinear, antialiased), predict, and "
            "bring the logits back (bilinear)",
            "stride": model.stride,
            "least": model.least,
            "padding": "right and bottom to a multiple of stride, and to least pixels, with 0 "
            "after normalizing; cropped from the logits",
        },
        "output": {
            "classes": f"{ids} train ids (N, H, W): the largest logit, the lowest id on a tie",
            "logits": "float32 (N, C, H, W)",
        },
        "eval": config.eval.model_dump(mode="json"),
        "source": {"run": config.name, "hash": config.hash, "which": which, **scored, **versions},
    }


def _write_weights(model: nn.Module, path: Path) -> dict[str, Any]:
    from safetensors.torch import save

    state = model.state_dict()
    if others := [key for key, value in state.items() if not isinstance(value, Tensor)]:
        raise ConfigError(
            f"safetensors holds tensors only, but the model's state has {some_of(others, 3)}: "
            "export onnx alone",
            code="state-not-tensors",
            found=others,
        )
    # safetensors refuses tensors that share memory, so each is copied.
    tensors = {key: value.detach().clone().contiguous() for key, value in state.items()}
    # ``save_file`` would make a file that only its owner may read.
    content = save(tensors)
    path.write_bytes(content)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "file": path.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "parameters": parameters,
    }
