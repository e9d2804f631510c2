"""Tests that prediction sees what a viewer shows: orientation, deep images, and no file omitted
silently.
"""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image, ImageOps
from predictable_runs import SETTINGS, files, make_run, picture

from segtrain.config import Config
from segtrain.data.train_loader import normalize
from segtrain.evaluation.load import load_run
from segtrain.infer import export as exporting
from segtrain.infer.predict import predict
from segtrain.infer.predictor import upright


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    make_run(folder)
    return folder


def ids(run: Path, pixels: np.ndarray) -> np.ndarray:
    """What the run's model says, without any code of prediction."""
    with torch.inference_mode():
        return (
            load_run(run)[0](normalize(torch.from_numpy(pixels.copy())[None])).max(1)[1][0].numpy()
        )


def written(mask: Path) -> np.ndarray:
    return np.asarray(Image.open(mask))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_turned_as_viewers_do(orientation):
    stored = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    shown = Image.fromarray(stored)
    shown.getexif()[0x0112] = orientation
    assert np.array_equal(upright(stored, orientation), np.asarray(ImageOps.exif_transpose(shown)))
    assert np.array_equal(
        upright(stored[..., 0], orientation), upright(stored, orientation)[..., 0]
    )


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "tif"])
def test_the_mask_lies_on_the_image_as_it_is_shown(run, tmp_path, ending):
    plain = picture(tmp_path / "plain.png", 24, 40)
    options = (
        {"quality": 100, "subsampling": 0}
        if ending == "jpg"
        else {"lossless": True}
        if ending == "webp"
        else {}
    )
    (tmp_path / "in").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(plain).save(tmp_path / f"in/{orientation}.{ending}", exif=exif, **options)
    told: list[str] = []
    jobs = predict(run, [tmp_path / "in"], tmp_path / "out", say=told.append)
    assert len(jobs) == 8
    for orientation, job in enumerate(jobs, 1):
        if ending == "jpg":
            with Image.open(job.image) as opened:
                stored = Image.fromarray(np.asarray(opened.convert("RGB")))
        # nothing is lost; and Pillow 9.4 turns a loaded TIFF, whose tag it keeps, a second time
        else:
            stored = Image.fromarray(plain)
        stored.getexif()[0x0112] = orientation
        shown = np.asarray(ImageOps.exif_transpose(stored))
        assert shown.shape[:2] == ((40, 24) if orientation >= 5 else (24, 40))
        mask = written(job.mask)
        assert mask.shape == shown.shape[:2]
        assert (mask == ids(run, shown)).mean() > (
            0.95 if ending == "jpg" else 1 - 1e-9
        )  # JPEG decoders differ by a level
        with Image.open(job.overlay) as overlay:
            assert overlay.width == shown.shape[1]
        if ending != "tif":  # its decoder turns it
            assert (f"turned upright, EXIF orientation {orientation}" in told[orientation - 1]) == (
                orientation > 1
            )


def test_deep_images_are_read_as_in_the_run_or_refused(tmp_path):
    run, plain = tmp_path / "run", picture(tmp_path / "plain.png", 24, 40)
    make_run(run)
    deep = tmp_path / "deep.png"
    cv2.imwrite(str(deep), plain[..., ::-1].astype(np.uint16) << 4)
    with refused("images-unreadable", found=1, images=1) as info:
        predict(run, [deep], tmp_path / "out")
    assert "data.bits=12" in info.value.values["faults"][0]
    assert files(tmp_path / "out") == {}
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("bits: auto", "bits: 12"))
    exporting.export(run, tmp_path / "exported", ("safetensors",))
    for source in (run, tmp_path / "exported"):
        (job,) = predict(source, [deep], tmp_path / f"out-{source.name}")
        assert np.array_equal(written(job.mask), ids(run, plain))


def test_no_file_of_a_folder_is_left_out_in_silence(run, tmp_path):
    plain = picture(tmp_path / "in/x.webp", 24, 40)
    frames = [Image.fromarray(plain), Image.fromarray(plain[::-1])]
    frames[0].save(tmp_path / "in/anim.gif", save_all=True, append_images=frames[1:])
    np.save(tmp_path / "in/y.npy", plain)
    os.mkfifo(tmp_path / "in/fifo.png")
    told: list[str] = []
    jobs = predict(run, [tmp_path / "in"], tmp_path / "out", say=told.append)
    assert [job.image.name for job in jobs] == ["anim.gif", "x.webp"]
    assert "2 files left out" in told[0]
    assert "fifo.png" in told[0]
    assert "y.npy" in told[0]
    with refused("image-missing"):
        predict(run, [tmp_path / "in/fifo.png"], tmp_path / "out")


def test_images_that_differ_in_their_ending_alone_are_both_predicted(run, tmp_path):
    for name in ("gray.jpg", "gray.png", "other.png"):
        picture(tmp_path / "in" / name, 24, 40)
    jobs = predict(run, [tmp_path / "in"], tmp_path / "out")
    assert [job.mask.name for job in jobs] == ["gray.jpg.png", "gray.png.png", "other.png"]
    assert all(job.mask.is_file() for job in jobs)


def test_the_settings_of_reading_are_part_of_the_run():
    assert (
        Config.model_validate({**SETTINGS, "data": {"bits": 12}}).hash
        != Config.model_validate(SETTINGS).hash
    )
