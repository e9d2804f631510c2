"""What other tools take of a trained model: masks of raw ids, polygons, ONNX files of another form."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from annotated_sets import masks_of, opened
from conftest import refused
from PIL import Image
from predictable_runs import NAMES, make_run, picture

from segtrain import cli
from segtrain.data.annotations.draw import draw
from segtrain.data.labels.presets import ADE20K150, CITYSCAPES19
from segtrain.data.labels.space import LabelSpace, plain_space
from segtrain.data.pixels.normalize import normalize
from segtrain.evaluation.load import load_run
from segtrain.infer import export as exporting
from segtrain.infer import onnx_file, outputs, polygons

NAMED = ("背景", "sky", "автомобиль", "tree")


def labeled_run(folder: Path, labels: LabelSpace) -> Path:
    make_run(folder)
    (folder / "labels.json").write_text(json.dumps(labels.to_dict()))
    return folder


def predicted(run: Path, images: Path, out: Path, *words: str) -> None:
    """Predicts with the last weights of the run, which find all classes."""
    where = ["predict", str(run), str(images), "--out", str(out), "--no-overlay"]
    assert cli.main([*where, "--which", "last", *words]) == 0


def test_raw_ids_are_those_of_the_masks_of_the_data_set(tmp_path):
    raw = {-1: 255, 0: 255, 7: 0, 8: 1, 9: 1, 26: 2, 300: 3}
    labels = LabelSpace(NAMES, plain_space(NAMES).palette, 255, raw)
    run = labeled_run(tmp_path / "run", labels)
    name = "ulm/ulm_000000_000019"
    picture(tmp_path / f"in/{name}_leftImg8bit.png", 200, 260)
    predicted(run, tmp_path / "in", tmp_path / "train")
    for _ in range(2):  # its own outputs are replaced
        predicted(run, tmp_path / "in", tmp_path / "raw", "--ids", "raw")
    with Image.open(tmp_path / f"train/masks/{name}_leftImg8bit.png") as mask:
        ids = np.array(mask)
    with Image.open(tmp_path / f"raw/masks/{name}_gtFine_labelIds.png") as mask:
        assert mask.mode == "I;16"
        assert (np.array(mask) == np.array([7, 8, 26, 300])[ids]).all()
    assert len(np.unique(ids)) == 4


def test_raw_ids_of_public_data_sets_and_of_ignored_pixels(tmp_path):
    cityscapes, ade20k = outputs.raw_ids(CITYSCAPES19), outputs.raw_ids(ADE20K150)
    assert cityscapes.dtype == ade20k.dtype == np.uint8
    assert cityscapes[[0, 2, 18, 255]].tolist() == [7, 11, 33, 0]
    assert ade20k[[0, 149, 255]].tolist() == [1, 150, 0]
    assert outputs.raw_ids(plain_space(("a", "b")))[[0, 1, 255]].tolist() == [0, 1, 255]
    palette = plain_space(("a", "b")).palette
    assert outputs.raw_ids(LabelSpace(("a", "b"), palette, 255, {0: 0, 255: 1}))[255] == 1
    with refused("raw-id-missing", found=["b"]):
        outputs.raw_ids(LabelSpace(("a", "b"), palette, 255, {0: 0, -1: 1, 1 << 16: 1}))
    outputs.write_raw(tmp_path / "a.png", cityscapes[np.zeros((2, 3), np.uint8)])
    assert (cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_UNCHANGED) == 7).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_outlines_of_areas_have_their_pixels(seed):
    labels = plain_space(("a", "b", "c"))
    rng = np.random.default_rng(seed)
    for side in (1, 2, 9, 30):
        mask = np.kron(rng.integers(0, 3, (side, side + 1)), np.ones((2, 2))).astype(np.uint8)
        mask[rng.random(mask.shape) < 0.1] = 255
        drawn = {"holes": [], "keyhole": []}
        for train_id, rings in polygons.areas(mask, labels):
            flat = [ring.ravel().tolist() for ring in rings]
            joined = [polygons._joined(rings).ravel().tolist()]
            for kind, outlines, holes in (("holes", flat[:1], flat[1:]), ("keyhole", joined, [])):
                name = labels.names[train_id]
                drawn[kind].append({"name": name, "polygons": outlines, "holes": holes})
            for ring in rings:  # OGC: no ring touches itself
                assert len({*map(tuple, ring.tolist())}) == len(ring)
        ids = {name: index for index, name in enumerate(labels.names)}
        for shapes in drawn.values():
            assert (draw(shapes, mask.shape, ids, 255, 254, "void") == mask).all()


@pytest.mark.parametrize("form", polygons.FORMATS)
@pytest.mark.parametrize("names", [NAMES, ("background", *NAMED[1:])])
def test_the_polygons_of_a_prediction_are_read_as_the_prediction(tmp_path, form, names):
    run = labeled_run(tmp_path / "run", plain_space(names))
    count = 1 if form == "geojson" else 2
    for number in range(count):
        path = tmp_path / f"set/images/{number}.{'tif' if form == 'geojson' else 'png'}"
        pixels = picture(path, 200, 260 - 8 * number, seed=number)
        if form == "geojson":
            rasterio = pytest.importorskip("rasterio", reason="the extra 'geo' is not installed")
            to_map = rasterio.Affine(0.3, 0, 500_000.1, 0, -0.3, 5_400_000.7)
            shape = {"width": pixels.shape[1], "height": pixels.shape[0], "count": 3}
            options = {"crs": "EPSG:32633", "transform": to_map, "dtype": "uint8", **shape}
            with rasterio.open(path, "w", driver="GTiff", **options) as target:
                target.write(pixels.transpose(2, 0, 1))
    for _ in range(2):  # its own outputs are replaced
        predicted(run, tmp_path / "set/images", tmp_path / "set", "--polygons", form)
    shown = {path.stem: np.array(Image.open(path)) for path in (tmp_path / "set/masks").iterdir()}
    for path in (tmp_path / "set/masks").iterdir():
        path.unlink()
    dataset = opened(tmp_path / "set", f"data.classes=[{', '.join(names)}]")
    assert dataset.labels.names == names
    assert len(shown) == count
    for name, mask in masks_of(dataset).items():
        assert len(np.unique(mask)) == len(names)
        assert (mask == shown[Path(name).stem]).all()


def test_a_corrected_file_of_polygons_is_not_replaced(tmp_path):
    make_run(tmp_path / "run")
    picture(tmp_path / "in/a.png", 40, 50)
    words = str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--polygons", "labelme"
    assert cli.main(["predict", str(tmp_path / "run"), *words]) == 0
    file = tmp_path / "out/polygons/a.json"
    content = json.loads(file.read_text())
    assert (tmp_path / "out/polygons" / content["imagePath"]).resolve() == tmp_path / "in/a.png"
    content["imageHeight"] += 1
    edited = json.dumps(content, ensure_ascii=False)
    file.write_text(edited)
    assert cli.main(["predict", str(tmp_path / "run"), *words]) == 2
    assert file.read_text() == edited


def test_other_images_do_not_replace_a_file_of_coco(tmp_path, capsys):
    make_run(tmp_path / "run")
    picture(tmp_path / "in/a.png", 40, 50)
    try:
        (tmp_path / "in/a.png").rename(tmp_path / "in/a\udcff.png")
    except OSError:
        pytest.skip("names of files are UTF-8 here")
    picture(tmp_path / "in/b.png", 40, 50)
    words = "--out", str(tmp_path / "out"), "--polygons", "coco"
    predict = ["predict", str(tmp_path / "run"), *words]
    for _ in range(2):
        assert cli.main([*predict, str(tmp_path / "in")]) == 0
    content = json.loads((tmp_path / "out/polygons/annotations.json").read_text())
    assert [image["file_name"] for image in content["images"]] == ["a\udcff.png", "b.png"]
    assert cli.main([*predict, str(tmp_path / "in/b.png")]) == 2
    assert "has 1 image that would be lost" in capsys.readouterr().err


def test_an_onnx_file_of_the_form_that_is_asked_for(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    monkeypatch.setattr(onnx_file, "EXPORTERS", [("tracing", onnx_file._trace)])
    make_run(tmp_path / "run")
    words = "--formats", "onnx", "--opset", "13", "--input", "nchw-float", "--batch", "2"
    for size, height in ((), "height"), (("--size", "32,48"), 32):
        out = tmp_path / f"out{height}"
        assert cli.main(["export", str(tmp_path / "run"), "--out", str(out), *words, *size]) == 0
        model = onnx.load(str(out / "model.onnx"))
        assert [one.version for one in model.opset_import if not one.domain] == [13]
        shape = model.graph.input[0].type.tensor_type.shape.dim
        assert [one.dim_value or one.dim_param for one in shape][:3] == [2, 3, height]
        facts = json.loads((out / "model.json").read_text())["onnx"]
        assert facts["images"] == "float32 RGB from 0 to 1, (N, C, H, W)"
        session = runtime.InferenceSession(str(out / "model.onnx"))
        images = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), np.uint8)
        floats = (images / np.float32(255)).transpose(0, 3, 1, 2)
        (logits,) = session.run(["logits"], {"images": floats})
        with torch.inference_mode():
            expected = load_run(tmp_path / "run")[0](normalize(torch.from_numpy(images)))
        assert np.abs(logits - expected.numpy()).max() < 1e-4 * expected.abs().max()
    for wrong in ("--size", "32"), ("--size", "0,64"), ("--batch", "0"), ("--opset", "99"):
        with pytest.raises(SystemExit):
            cli.main(["export", str(tmp_path / "run"), *wrong])
    monkeypatch.setattr(onnx_file, "EXPORTERS", [])
    assert cli.main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "failed")]) == 2
    assert not (tmp_path / "failed").exists()
    assert exporting.FORMATS == ("safetensors", "onnx")
