"""The model of a job as an endpoint of SageMaker: the lines of docs/sagemaker.md, and the file that
SageMaker's inference image runs.
"""

from __future__ import annotations

import importlib.util
import io
import re
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from predictable_runs import make_run, picture

import segtrain
from launch.platforms.sagemaker.service_model import violations
from segtrain.infer import export as exporting
from segtrain.infer import onnx_file
from segtrain.platforms.sagemaker import entry

pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
boto3 = pytest.importorskip("boto3", reason="the extra 'sagemaker' is not installed")
real_client = boto3.client


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onnx_file, "EXPORTERS", [("tracing", onnx_file._trace)])
    make_run(tmp_path / "runs/street")
    exporting.export("runs/street", "runs/street/export")
    return tmp_path / "runs/street/export"


def answer(model_dir: Path, body: bytes, content_type: str) -> np.ndarray:
    """What the endpoint returns. The image imports code/inference.py alone."""
    spec = importlib.util.spec_from_file_location("inference", model_dir / "code/inference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    classes = module.predict_fn(module.input_fn(body, content_type), module.model_fn(model_dir))
    content, kind = module.output_fn(classes, "*/*")
    assert kind == "image/png"
    return np.array(Image.open(io.BytesIO(content)))


class Client:
    """Takes the calls of boto3, checks them by botocore's model, and answers with the model's own
    file.
    """

    calls: ClassVar[list[str]] = []

    def __init__(self, service: str, region: str = "") -> None:
        self.service = service

    def upload_file(self, file: str, bucket: str, key: str) -> None:
        with tarfile.open(file) as archive:
            archive.extractall("endpoint", filter="data")

    def get_waiter(self, name: str) -> Client:
        assert name in real_client(self.service, "us-east-1").waiter_names
        return self

    def wait(self, EndpointName: str) -> None:
        pass

    def __getattr__(self, method: str) -> Any:
        operation = "".join(part.title() for part in method.split("_"))

        def call(**request: Any) -> Any:
            assert violations(request, operation, self.service) == []
            self.calls.append(operation)
            if operation == "InvokeEndpoint":
                mask = answer(Path("endpoint"), request["Body"], request["ContentType"])
                content = io.BytesIO()
                Image.fromarray(mask).save(content, "PNG")
                content.seek(0)
                return {"Body": content}
            return {}

        return call


def test_the_lines_of_the_page_serve_an_export(exported, monkeypatch):
    pixels = picture(Path("photos/one.png"), 90, 70)
    page = (ROOT / "docs/sagemaker.md").read_text()
    (code,) = [text for text in re.findall(r"```py\n(.*?)```", page, re.S) if "endpoint" in text]
    monkeypatch.setattr(boto3, "client", Client)
    exec(code, {})
    made = ["CreateModel", "CreateEndpointConfig", "CreateEndpoint", "InvokeEndpoint"]
    assert Client.calls == made
    expected = segtrain.load("runs/street").predict(pixels)[0]
    assert (np.array(Image.open("mask.png")) == expected).mean() > 0.999  # ties of logits


def test_the_artifact_of_a_job_serves_files_and_arrays(exported):
    entry._add_server(exported)
    pixels = picture(Path("one.png"), 60, 80)
    turned, array = io.BytesIO(), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(pixels)).save(turned, "PNG", exif=exif)
    np.save(array, pixels)
    expected = segtrain.load("runs/street").predict(pixels)[0]
    for body, kind in ((turned, "image/png"), (array, "application/x-npy")):
        mask = answer(exported, body.getvalue(), kind)
        assert mask.shape == expected.shape
        assert (mask == expected).mean() > 0.999
    assert (exported / "code/requirements.txt").read_text() == "onnxruntime\n"
    (exported / "model.onnx").unlink()
    (exported / "code/inference.py").unlink()
    entry._add_server(exported)
    assert not (exported / "code/inference.py").exists()
