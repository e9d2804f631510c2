"""From a run folder to masks, overlays, safetensors and ONNX: whole files, right ids, inputs
untouched, errors with names.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image
from predictable_runs import NAMES, SETTINGS, files, make_run, picture, weights

from segtrain.data.labels.space import plain_space
from segtrain.data.train_loader import normalize
from segtrain.errors import DataError, MissingExtra
from segtrain.evaluation.load import load_export, load_run
from segtrain.infer import export as exporting
from segtrain.infer import onnx_file, predict
from segtrain.models.base import SegModel
from segtrain.models.pico import Pico


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    make_run(folder)
    return folder


def test_load_run_takes_the_best_moving_average_or_the_last(run):
    best, config, labels = load_run(run)
    assert labels.names == NAMES
    assert config.model.arch == "pico"
    assert not best.training
    expected = weights(config, 2)
    assert all(torch.equal(value, expected[key]) for key, value in best.state_dict().items())
    last = load_run(run, "last")[0].state_dict()
    assert torch.equal(last["head.weight"], weights(config, 3)["head.weight"])


def test_load_run_errors_name_what_is_wrong(run, tmp_path):
    with refused("not-a-run-folder", folder=str(tmp_path)):
        load_run(tmp_path)
    other = tmp_path / "other"
    make_run(other)
    (other / "labels.json").write_text(json.dumps(plain_space(("a", "b")).to_dict()))
    with refused("weights-unfit", source=str(other)) as info:
        load_run(other)
    assert info.value.values["found"][0].startswith("head.weight is 4x")
    (other / "labels.json").unlink()
    with refused("labels-unreadable", file=str(other / "labels.json")):
        load_run(other)


def test_predict_writes_ids_that_viewers_show_in_color(run, tmp_path):
    first = picture(tmp_path / "in" / "a.png", 70, 90)
    picture(tmp_path / "in" / "deeper" / "b.jpg", 40, 33, seed=1)
    before = files(tmp_path / "in")
    jobs = predict.predict(run, [tmp_path / "in"], tmp_path / "out")
    assert files(tmp_path / "in") == before
    assert set(files(tmp_path / "out")) == {
        f"{k}/{n}.png" for k in ("masks", "overlays") for n in ("a", "deeper/b")
    }

    model, _, labels = load_run(run)
    with torch.inference_mode():
        expected = model(normalize(torch.from_numpy(first)[None])).max(1)[1][0].numpy()
    assert len(np.unique(expected)) > 1
    with Image.open(jobs[0].mask) as mask:
        assert mask.mode == "P"
        assert np.array_equal(np.asarray(mask), expected)
        assert np.array_equal(np.asarray(mask.convert("RGB")), labels.colorize(expected))
    with Image.open(jobs[0].overlay) as overlay:
        mixed = np.asarray(overlay)
    assert mixed.shape[0] > 70
    assert mixed.shape[1] == 90
    wanted = 0.45 * first + 0.55 * labels.colorize(expected)
    assert np.abs(mixed[:70] - wanted).max() <= 0.51

    # own files are replaced
    again = predict.predict(run, [tmp_path / "in"], tmp_path / "out", overlay=False)
    assert len(again) == 2
    # and never taken for inputs
    predict.predict(run, [tmp_path / "in"], tmp_path / "in")
    assert len(predict.plan([tmp_path / "in"], tmp_path / "elsewhere")) == 2


def test_predict_sees_images_as_the_evaluation_does(tmp_path):
    """Windows, scales, mirror image and base_scale come from the run's config."""
    from segtrain.evaluation.tiles import View, predict_ids

    run = tmp_path / "run"
    make_run(
        run,
        {
            **SETTINGS,
            "data": {"crop": [64, 64], "base_scale": 0.5},
            "eval": {"tile": [32, 32], "flip": True},
        },
    )
    pixels = picture(tmp_path / "a.png", 80, 100)
    (job,) = predict.predict(run, [tmp_path / "a.png"], tmp_path / "out")
    model = load_run(run)[0]
    with torch.inference_mode():
        inputs = normalize(torch.from_numpy(pixels)[None])
        expected = predict_ids(model, inputs, View((32, 32), 0.5, (0.5,), flip=True))[0].numpy()
    with Image.open(job.mask) as mask:
        assert np.array_equal(np.asarray(mask), expected)


def test_predict_names_unreadable_files_and_does_the_others(run, tmp_path):
    picture(tmp_path / "in" / "good.png", 32, 32)
    (tmp_path / "in" / "empty.png").write_bytes(b"")
    (tmp_path / "in" / "text.jpg").write_text("no image")
    whole = (tmp_path / "in" / "good.png").read_bytes()
    (tmp_path / "in" / "cut.png").write_bytes(whole[: len(whole) // 2])
    with refused("images-unreadable", found=3, images=4) as caught:
        predict.predict(run, [tmp_path / "in"], tmp_path / "out")
    assert all(name in str(caught.value) for name in ("empty.png", "text.jpg", "cut.png"))
    assert set(files(tmp_path / "out")) == {"masks/good.png", "overlays/good.png"}


def test_batches_and_threads_change_neither_files_nor_their_order(run, tmp_path):
    for k, size in enumerate([(40, 50), (33, 60), (40, 50), (33, 60), (40, 50), (64, 64)]):
        picture(tmp_path / "in" / f"{k}.png", *size, seed=k)
    (tmp_path / "in" / "2a.png").write_bytes(b"")
    written, order = [], [f"{k + 1 + (k > 2)}/7  {tmp_path / 'in' / f'{k}.png'}" for k in range(6)]
    for size in (1, 2, 4):
        said: list[str] = []
        with refused("images-unreadable", found=1, images=7):
            predict.predict(
                run, [tmp_path / "in"], tmp_path / "out", batch_size=size, say=said.append
            )
        assert [line.partition(" -> ")[0] for line in said] == order
        written.append(files(tmp_path / "out"))
    assert len(written[0]) == 12
    assert written[0] == written[1] == written[2]


def test_ctrl_c_leaves_whole_files_and_no_threads(run, tmp_path):
    for k in range(6):
        picture(tmp_path / "in" / f"{k}.png", 200, 150, seed=k)

    def say(line: str) -> None:
        if line.startswith("2/6"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict.predict(run, [tmp_path / "in"], tmp_path / "out", say=say)
    left = sorted((tmp_path / "out").rglob("*.*"))
    assert {path.suffix for path in left} == {".png"}
    for path in left:
        with Image.open(path) as image:
            image.load()
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("decode", "write"))]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["nothing.png"], "no such file"),
        (["in/void"], "no image in this folder"),
        ([], "no image to predict"),
    ],
)
def test_predict_wants_images(run, tmp_path, paths, message):
    (tmp_path / "in" / "void").mkdir(parents=True)
    with pytest.raises(DataError, match=message):
        predict.predict(run, [tmp_path / path for path in paths], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_predict_never_replaces_what_it_did_not_write(run, tmp_path):
    picture(tmp_path / "set" / "images" / "a.png", 24, 24)
    picture(tmp_path / "set" / "masks" / "a.png", 24, 24, seed=1)  # the truth
    before = files(tmp_path / "set")
    with refused("output-exists", file=str(tmp_path / "set/masks/a.png")):
        predict.predict(run, [tmp_path / "set" / "images"], tmp_path / "set")
    with refused("output-exists"):
        predict.predict(run, [tmp_path / "set" / "masks"], tmp_path / "set")
    picture(tmp_path / "set" / "more" / "a.png", 24, 24)
    both = [tmp_path / "set" / "images", tmp_path / "set" / "more"]
    with refused("same-mask-name"):
        predict.predict(run, both, tmp_path / "out")
    (tmp_path / "set" / "more" / "a.png").unlink()
    assert files(tmp_path / "set") == before


def test_probabilities_of_an_earlier_call_are_not_reported(run, tmp_path):
    picture(tmp_path / "a.png", 24, 24)
    for _ in range(2):
        said: list[str] = []
        predict.predict(run, [tmp_path], tmp_path / "out", probabilities=True, say=said.append)
        assert not [line for line in said if "left out" in line]


def test_a_failed_write_leaves_nothing(run, tmp_path, monkeypatch):
    picture(tmp_path / "a.png", 24, 24)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DataError, match=r"masks/a\.png: No space left on device"):
        predict.predict(run, [tmp_path / "a.png"], tmp_path / "out")
    assert files(tmp_path / "out") == {}


def test_leftovers_of_a_killed_export_are_removed(run, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = tmp_path / "out" / f".part-{socket.gethostname()}-"
    for pid in (ended.pid, os.getpid()):
        Path(f"{mine}{pid}-a").mkdir(parents=True)
    exporting.export(run, tmp_path / "out", ("safetensors",))
    left = [path.name for path in (tmp_path / "out").iterdir() if path.name[0] == "."]
    assert left == [f"{mine.name}{os.getpid()}-a"]


def test_the_description_of_an_export_is_replaced_last(run, tmp_path, monkeypatch):
    replaced: list[str] = []
    rename = os.replace

    def killed(source: Path, target: Path) -> None:
        if replaced:
            raise KeyboardInterrupt
        replaced.append(Path(target).name)
        rename(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(run, tmp_path / "out", ("safetensors",))
    assert replaced == ["weights.safetensors"]
    with refused("export-incomplete"):
        load_export(tmp_path / "out")


@pytest.mark.parametrize("content", ["[]", "1", '{"weights": 1}', '{"weights": {"sha256": "a"}}'])
def test_a_damaged_description_is_no_traceback(run, tmp_path, content):
    exporting.export(run, tmp_path / "out", ("safetensors",))
    (tmp_path / "out/model.json").write_text(content)
    with refused("export-incomplete"):
        load_run(tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "value"),
    [("ignore_index", -1e30), ("ignore_index", -2), ("module", 7), ("module", ["a"])],
)
def test_a_wrong_value_in_a_description_is_no_traceback(run, tmp_path, key, value):
    exporting.export(run, tmp_path / "out", ("safetensors",))
    facts = json.loads((tmp_path / "out/model.json").read_text())
    (facts["labels"] if key == "ignore_index" else facts)[key] = value
    (tmp_path / "out/model.json").write_text(json.dumps(facts))
    with refused("export-incomplete"):
        load_run(tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [b"", b"short", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 8) + b'{"a": 1}'],
)
def test_weights_that_cannot_be_read_are_damaged_also_with_their_checksum(run, tmp_path, content):
    exporting.export(run, tmp_path / "out", ("safetensors",))
    facts = json.loads((tmp_path / "out/model.json").read_text())
    facts["weights"]["sha256"] = hashlib.sha256(content).hexdigest()
    (tmp_path / "out/model.json").write_text(json.dumps(facts))
    (tmp_path / "out/weights.safetensors").write_bytes(content)
    with refused("export-damaged"):
        load_run(tmp_path / "out")


def test_the_opset_and_the_size_of_a_file_are_those_asked_for(run, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")

    def of_another_opset(
        deployed: Any, path: Path, size: Any, opset: int, open_sizes: bool
    ) -> None:
        onnx_file._trace(deployed, path, size, 17, open_sizes)

    exporters = [("another", of_another_opset), ("tracing", onnx_file._trace)]
    monkeypatch.setattr(onnx_file, "EXPORTERS", exporters)
    made = exporting.export(run, tmp_path / "out", ("onnx",), opset=15, size=(32, 48)).onnx
    assert made is not None
    assert (made["exporter"], made["opset"], made["open_sizes"]) == ("tracing", 15, False)
    shape = onnx.load(str(tmp_path / "out/model.onnx")).graph.input[0].type.tensor_type.shape.dim
    assert [one.dim_value for one in shape] == [1, 32, 48, 3]
    del exporters[1]
    with refused("onnx-not-exportable") as info:
        exporting.export(run, tmp_path / "out", ("onnx",), opset=15)
    assert "opset 17" in info.value.values["tried"][0]


class Pooled(SegModel):
    """Pools three times below a stride of 2, so that images need 16 pixels."""

    stride, least, num_classes = 2, 16, len(NAMES)

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, len(NAMES), 3, 2, 1)

    def _low(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low = self.layer(images)
        pooled = torch.nn.functional.avg_pool2d(low, 8)
        return (low + torch.nn.functional.interpolate(pooled, low.shape[-2:], mode="nearest"),)

    def _upsample(self, low: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return torch.nn.functional.interpolate(low, scale_factor=2, mode="nearest")


def test_onnx_pads_small_images_to_the_least_size(tmp_path, monkeypatch):
    pytest.importorskip("onnx", reason="the extra 'export' is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    monkeypatch.setattr(onnx_file, "EXPORTERS", [("tracing", onnx_file._trace)])
    torch.manual_seed(0)
    model = Pooled().eval()
    made = onnx_file.write_onnx(model, tmp_path / "model.onnx", (32, 32), 17, {"module": "Pooled"})
    assert made["open_sizes"], made["tried"]
    session = runtime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    for height, width in ((9, 12), (5, 40), (33, 31)):
        images = np.random.default_rng(5).integers(0, 256, (1, height, width, 3), np.uint8)
        logits = session.run(["logits"], {"images": images})[0]
        with torch.inference_mode():
            expected = model(normalize(torch.from_numpy(images))).numpy()
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.slow
def test_onnx_of_crops_that_are_one_feature_wide_keeps_other_sizes(tmp_path, monkeypatch, capfd):
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    chosen = [pair for pair in onnx_file.EXPORTERS if pair[0] == "torch.export"]
    pytest.importorskip("onnxscript", reason="torch.export needs it")
    monkeypatch.setattr(onnx_file, "EXPORTERS", chosen)
    model = Pico(3, stem=8, widths=(8, 8, 16, 16), decoder=8, bins=(1,)).eval()
    made = onnx_file.write_onnx(model, tmp_path / "model.onnx", (32, 32), 18, {"module": "Pico"})
    assert made["open_sizes"], made["tried"]
    assert "onnxruntime" not in capfd.readouterr().err


def test_safetensors_and_description_give_the_model_back(run, tmp_path):
    result = exporting.export(run, tmp_path / "out", ("safetensors",))
    assert (
        {path.name for path in result.files}
        == set(files(tmp_path / "out"))
        == {"weights.safetensors", "model.json"}
    )
    model, facts = load_export(tmp_path / "out")
    own = load_run(run)[0]
    images = torch.randn(1, 3, 37, 50)
    with torch.inference_mode():
        assert torch.equal(model(images), own(images))
    assert facts["labels"]["names"] == list(NAMES)
    assert facts["source"]["miou"] == 0.5
    assert facts["input"]["mean"] == [0.485, 0.456, 0.406]
    picture(tmp_path / "a.png", 40, 50)
    (from_run,) = predict.predict(run, [tmp_path / "a.png"], tmp_path / "1")
    (from_export,) = predict.predict(tmp_path / "out", [tmp_path / "a.png"], tmp_path / "2")
    assert from_run.mask.read_bytes() == from_export.mask.read_bytes()
    damaged = bytearray((tmp_path / "out" / "weights.safetensors").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "out" / "weights.safetensors").write_bytes(damaged)
    with refused("export-damaged"):
        load_export(tmp_path / "out")


def test_a_torn_best_json_stops_no_export(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "run/best.json").write_text('{"checkpo')
    exporting.export(tmp_path / "run", tmp_path / "out", ("safetensors",))
    assert "miou" not in load_export(tmp_path / "out")[1]["source"]


@pytest.mark.parametrize(
    "exporter", [pytest.param("torch.export", marks=pytest.mark.slow), "tracing"]
)
def test_onnx_takes_raw_pixels_of_any_size(run, tmp_path, exporter, monkeypatch):
    pytest.importorskip("onnx", reason="the extra 'export' is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    chosen = [pair for pair in onnx_file.EXPORTERS if pair[0] == exporter]
    monkeypatch.setattr(onnx_file, "EXPORTERS", chosen)
    result = exporting.export(run, tmp_path / "out", ("onnx",))
    assert result.onnx is not None
    assert result.onnx["exporter"] == exporter
    assert result.onnx["open_sizes"], result.onnx["tried"]
    assert set(files(tmp_path / "out")) == {"model.onnx", "model.json"}

    session = runtime.InferenceSession(
        str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    assert json.loads(session.get_modelmeta().custom_metadata_map["segtrain"])["labels"][
        "names"
    ] == list(NAMES)
    images = np.random.default_rng(5).integers(0, 256, (3, 50, 71, 3), np.uint8)
    classes, logits = session.run(["classes", "logits"], {"images": images})
    with torch.inference_mode():
        expected = load_run(run)[0](normalize(torch.from_numpy(images)))
    assert classes.dtype == np.uint8
    assert np.abs(logits - expected.numpy()).max() < 1e-4 * expected.abs().max()
    assert (classes != expected.max(1)[1].numpy()).mean() < 1e-3


def test_a_wrong_onnx_file_is_refused(run, tmp_path, monkeypatch):
    pytest.importorskip("onnx", reason="the extra 'export' is not installed")
    pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    monkeypatch.setattr(onnx_file, "EXPORTERS", [("tracing", onnx_file._trace)])
    # not what the file does
    monkeypatch.setattr(
        onnx_file, "normalize", lambda images, *_: normalize(images, (0.4, 0.4, 0.4))
    )
    with refused("onnx-not-exportable") as info:
        exporting.export(run, tmp_path / "out", ("safetensors", "onnx"))
    assert all("logits differ" in reason for reason in info.value.values["tried"])
    assert files(tmp_path / "out") == {}


def test_export_asks_for_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"segtrain\[export\]"):
        exporting.export(run, tmp_path / "out", ("onnx",))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [(9, 13), (8, 8), (3, 5), (16, 7)])
def test_pooling_by_products_is_adaptive_pooling(size):
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    for bins in (1, 2, 3, 6, (4, 2), (None, 3)):
        torch.testing.assert_close(
            onnx_file._pool(x, bins), torch.nn.functional.adaptive_avg_pool2d(x, bins)
        )
