"""Serves model.onnx: SageMaker's PyTorch inference image calls the functions of this file as
code/inference.py in model.tar.gz. It needs no other file of segtrain.
"""

import io
import os
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def model_fn(model_dir: str) -> Any:
    providers = onnxruntime.get_available_providers()
    path = os.path.join(model_dir, "model.onnx")
    return onnxruntime.InferenceSession(path, providers=providers)


def input_fn(body: bytes, content_type: str) -> np.ndarray:
    """An image file of any format, upright; or an array (H, W, bands) as a .npy file."""
    if content_type == "application/x-npy":
        return np.load(io.BytesIO(body))[None]
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(body)))
    return np.asarray(image.convert("RGB"))[None]


def predict_fn(images: np.ndarray, session: Any) -> np.ndarray:
    return session.run(["classes"], {"images": images})[0][0]


def output_fn(classes: np.ndarray, accept: str) -> tuple[bytes, str]:
    """A gray PNG of class ids, of 16 bits with more than 256 classes."""
    file = io.BytesIO()
    small = classes.dtype == np.uint8
    Image.fromarray(classes if small else classes.astype(np.uint16)).save(file, "PNG")
    return file.getvalue(), "image/png"
