"""`segtrain predict` with settings of its own, in windows where memory is short, with
probabilities; colors that are told apart.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image
from predictable_runs import NAMES, make_run, picture

from segtrain import cli
from segtrain.base.memory import memory_free
from segtrain.config import Model
from segtrain.data.labels.space import class_palette, is_background, plain_space
from segtrain.data.pixels.normalize import normalize
from segtrain.errors import ConfigError
from segtrain.evaluation.load import load_run
from segtrain.evaluation.tiles import View, predict_ids, predict_scores
from segtrain.infer import outputs, predict, predictor, view
from segtrain.models import build_model
from segtrain.observe.tracker import PARAM_LENGTH, flat
from segtrain.parallel.cluster import Cluster
from segtrain.training.evaluate_run import score
from segtrain.training.score_output import open_folder, refuse_confusion, write_confusion


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    make_run(folder)
    return folder


def seen(run: Path, pixels: np.ndarray) -> tuple[torch.nn.Module, torch.Tensor]:
    return load_run(run)[0], normalize(torch.from_numpy(pixels)[None])


def test_settings_of_the_command_line_change_how_an_image_is_seen(run, tmp_path, capsys):
    pixels = picture(tmp_path / "a.png", 90, 70)
    words = [
        str(tmp_path / "a.png"),
        "eval.tile=[32,32]",
        "--eval.flip=true",
        "--out",
        str(tmp_path / "out"),
        "--no-overlay",
    ]
    assert cli.main(["predict", str(run), *words]) == 0
    assert f"1 image: masks in {tmp_path}/out/masks\n" in capsys.readouterr().out
    model, inputs = seen(run, pixels)
    with torch.inference_mode():
        expected = predict_ids(model, inputs, View((32, 32), flip=True))[0].numpy()
        whole = predict_ids(model, inputs)[0].numpy()
    found = np.asarray(Image.open(tmp_path / "out/masks/a.png"))
    assert np.array_equal(found, expected)
    assert not np.array_equal(found, whole)
    assert not (tmp_path / "out/overlays").exists()


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("optim.lr=1", "optim.lr"),
        ("data.root=x", "data.root"),
        ("eval.tile=[0,0]", ""),
        ("eval.tiles=[8,8]", "eval.tiles"),
    ],
)
def test_settings_that_a_trained_model_cannot_follow(run, tmp_path, setting, key):
    picture(tmp_path / "a.png", 9, 9)
    with pytest.raises(ConfigError, match=r"eval\.tile") as caught:
        predict.predict(run, [tmp_path / "a.png"], tmp_path / "out", overrides=[setting])
    if key:
        assert (caught.value.code, caught.value.values) == ("setting-not-for-predict", {"key": key})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("overrides", [[], ["eval.scales=[0.75, 1.0]"]])
def test_probabilities(run, tmp_path, overrides):
    pixels = picture(tmp_path / "a.png", 40, 50)
    (job,) = predict.predict(
        run, [tmp_path / "a.png"], tmp_path / "out", probabilities=True, overrides=overrides
    )
    assert job.probabilities is not None
    with np.load(job.probabilities) as arrays:
        found, classes = arrays["probabilities"], arrays["classes"]
    assert classes.tolist() == list(NAMES)
    assert found.dtype == np.float16
    assert found.shape == (len(NAMES), 40, 50)
    model, inputs = seen(run, pixels)
    with torch.inference_mode():
        if overrides:
            expected = predict_scores(model, inputs, View(scales=(0.75, 1.0)))
        else:
            expected = model(inputs).softmax(1)
    assert np.abs(found - expected[0].numpy()).max() < 1e-3
    assert np.array_equal(np.asarray(Image.open(job.mask)), expected[0].max(0)[1].numpy())
    # its own files are replaced
    predict.predict(run, [tmp_path / "a.png"], tmp_path / "out", probabilities=True)
    place = tmp_path / "out/probabilities/a.npz"
    for make in (lambda: np.savez(place, mine=np.ones(3)), lambda: place.write_bytes(b"")):
        make()
        with refused("output-exists", file=str(place)):
            predict.predict(run, [tmp_path / "a.png"], tmp_path / "out", probabilities=True)


def test_an_image_that_does_not_fit_is_predicted_in_windows(run, tmp_path, monkeypatch):
    pixels = picture(tmp_path / "a.png", 200, 260)
    model, inputs = seen(run, pixels)
    per_pixel = view.bytes_per_pixel(model, torch.device("cpu"))
    monkeypatch.setattr(
        predictor, "free_memory", lambda device: 100 * 100 * per_pixel / view.TILE_SHARE
    )
    said: list[str] = []
    (job,) = predict.predict(run, [tmp_path / "a.png"], tmp_path / "out", say=said.append)
    assert any(
        "a.png: 200 x 260 pixels need about" in line and "windows of 96 x 96" in line
        for line in said
    )
    with torch.inference_mode():
        expected = predict_ids(model, inputs, View((96, 96)))[0].numpy()
    assert np.array_equal(np.asarray(Image.open(job.mask)), expected)
    monkeypatch.setattr(predictor, "free_memory", lambda device: 300 * 300 * per_pixel / view.SHARE)
    said.clear()
    predict.predict(run, [tmp_path / "a.png"], tmp_path / "out", say=said.append)
    assert len(said) == 1


def test_memory_that_images_before_have_left_is_free(tmp_path, monkeypatch):
    """In torch's own store on a GPU, and as copies of read files in a container: the same image
    must get the same windows.
    """
    for name, value in (
        ("mem_get_info", (5, 24)),
        ("memory_reserved", 16),
        ("memory_allocated", 2),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert view.free_memory(torch.device("cuda", 0)) == 5 + 16 - 2
    for name, text in (
        ("memory.max", "1000\n"),
        ("memory.current", "990\n"),
        ("memory.stat", "anon 90\nfile 900\nactive_file 300\ninactive_file 600\n"),
    ):
        (tmp_path / name).write_text(text)
    assert memory_free(tmp_path) == 1000 - 90
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_free(tmp_path) > 1000
    (tmp_path / "old/memory").mkdir(parents=True)
    for name, text in (
        ("limit_in_bytes", "1000\n"),
        ("usage_in_bytes", "990\n"),
        (
            "stat",
            "active_file 1\ninactive_file 1\ntotal_active_file 300\ntotal_inactive_file 600\n",
        ),
    ):
        (tmp_path / f"old/memory/memory.{name}").write_text(text)
    assert memory_free(tmp_path / "old") == 1000 - 90


def test_windows_are_no_smaller_than_the_crop_and_no_larger_than_the_image():
    plain = View(None, 0.5, (1.0,), False)
    assert view.fitted(plain, (100, 100), 10.0, 1e9, (64, 64), 32) == (plain, "")
    assert view.fitted(plain, (1000, 50), 1000.0, 1e5, (64, 80), 32)[0].tile == (64, 50)
    tiled = View((32, 32), 0.5, (1.0,), False)
    # as the user said
    assert view.fitted(tiled, (10_000, 10_000), 1e6, 1.0, (64, 64), 32) == (tiled, "")
    assert tiled.windows((64, 64)) == 9
    assert View((32, 32), 0.5, (1.0, 0.5), True).windows((64, 64)) == 2 * (9 + 1)


def test_the_estimate_of_memory_grows_with_the_network():
    def estimate(**options: object) -> float:
        return view.bytes_per_pixel(
            build_model(Model(options=options), 4).eval(), torch.device("cpu")
        )

    small, large = estimate(), estimate(stem=64)
    # pico's stem writes 16 float32 at stride 2 where it has read 3 at stride 1; its batch norm
    # reads and writes 16.
    assert small == pytest.approx(4 * 2 * 16 * 4 / 4 + 4 * 4)
    assert large == pytest.approx(4 * 2 * 64 * 4 / 4 + 4 * 4)


def test_progress_is_told_of_long_images():
    clock = iter([0.0, 4.0, 11.0, 12.0])
    said: list[str] = []
    forward = view.counted(lambda images: images, 4, said.append, now=lambda: next(clock))
    for _ in range(3):
        forward(torch.zeros(1))
    assert said == ["  2 of 4 windows"]


def test_a_background_is_not_tinted(tmp_path):
    image = np.full((20, 120, 3), 200, np.uint8)
    ids = np.zeros((20, 120), np.uint8)
    ids[:, 60:] = 1
    labels = plain_space(("background", "crack"))
    outputs.write_overlay(tmp_path / "o.png", image, ids, labels)
    overlay = np.asarray(Image.open(tmp_path / "o.png"))
    assert np.array_equal(overlay[:20, :60], image[:, :60])
    assert not np.array_equal(overlay[:20, 60:], image[:, 60:])
    outputs.write_overlay(tmp_path / "o.png", image, ids, plain_space(("road", "crack")))
    assert not np.array_equal(np.asarray(Image.open(tmp_path / "o.png"))[:20, :60], image[:, :60])
    assert not is_background(("crack", "background"), 1)


def test_every_class_has_a_color_of_its_own():
    for count in (1, 2, 9, 22, 100, 254):
        for first in ("background", "road"):
            palette = class_palette((first, *(f"class {k}" for k in range(1, count))))
            assert len(set(palette)) == len(palette) == count


def test_the_confusion_matrix_as_a_file(tmp_path):
    counts = [[5, 1], [2, 7]]
    write_confusion(tmp_path / "c.csv", counts, ("a, b", "c"))
    assert (tmp_path / "c.csv").read_text() == 'truth \\ prediction,"a, b",c\n"a, b",5,1\nc,2,7\n'
    write_confusion(tmp_path / "c.json", counts, ("a", "c"))
    assert json.loads((tmp_path / "c.json").read_text())["pixels"] == counts
    write_confusion(tmp_path / "D.CSV", counts, ("a, b", "c"))
    assert (tmp_path / "D.CSV").read_text() == (tmp_path / "c.csv").read_text()
    refuse_confusion(tmp_path / "D.CSV")


def test_a_place_without_rights_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with refused("no-right-to-write", file=str(tmp_path)):
        score(tmp_path / "no run", [], "best", Cluster(), quiet=True, confusion=tmp_path / "c.csv")
    with refused("no-right-to-write", file=str(tmp_path)):
        open_folder(tmp_path)


def test_a_matrix_that_cannot_be_written_after_all_names_its_option(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with refused("file-not-written", file=str(tmp_path / "c.csv")):
        write_confusion(tmp_path / "c.csv", [[1]], ("a",))
    assert list(tmp_path.iterdir()) == []


def test_settings_are_flat_texts_for_mlflow():
    settings = {
        "optim": {"lr": 0.001, "betas": [0.9, 0.99]},
        "name": "x",
        "model": {"options": {}},
        "out": None,
    }
    expected = {
        "optim.lr": "0.001",
        "optim.betas": "[0.9, 0.99]",
        "name": "x",
        "model.options": "{}",
        "out": "null",
    }
    assert flat(settings) == expected
    assert len(flat({"data": {"classes": ["a" * 400, "b" * 400]}})["data.classes"]) == PARAM_LENGTH
