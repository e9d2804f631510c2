"""A run on images of five bands, from training to its exports, and the first layers of networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from band_sets import CLASSES, MEAN, STD, band_set
from PIL import Image
from timm.models import adapt_input_conv

import segtrain
from segtrain.cli import main
from segtrain.config import Model
from segtrain.models import build_model
from segtrain.models.channels import first_convolutions, set_channels

BANDS = [
    "data.layout=folders",
    "data.channels=5",
    f"data.classes={CLASSES}",
    f"data.mean={MEAN}",
    f"data.std={STD}",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data set, and the run."""
    root = tmp_path_factory.mktemp("bands")
    band_set(root / "set")
    steps = ["train.duration=24st", "train.batch_size=4", "eval.every=24st", "parallel.procs=1"]
    learn = ["optim.lr=0.01", "optim.warmup=0st", "data.crop=[32,32]", "data.scale=[1,1]"]
    out = [f"data.root={root}/set", f"out={root}/run", "log.tensorboard=false", "data.workers=0"]
    assert main(["train", *BANDS, *steps, *learn, *out]) == 0
    return root / "set", root / "run"


def test_a_run_is_scored_predicted_and_exported(folders, tmp_path):
    data, run = folders
    assert Image.open(run / "pictures/val.png").convert("L").getextrema()[1] == 255
    assert segtrain.evaluate(str(run)).miou > 0.5
    files = sorted((data / "images/val").glob("*.npy"))
    assert (
        main(["predict", str(run), str(data / "images/val"), "--out", str(tmp_path / "out")]) == 0
    )
    assert main(["export", str(run), "--out", str(tmp_path / "export")]) == 0
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "export/model.onnx"))
    exported = segtrain.load(str(tmp_path / "export"))
    for file in files:
        mask = np.array(Image.open(tmp_path / f"out/masks/{file.stem}.png"))
        values = np.load(file)
        void = np.isnan(values).all(2)
        assert (mask[void] == 255).all()
        assert (mask[~void] < 3).all()
        assert (exported.predict(values)[0] == mask).all()
        assert (exported.predict(torch.from_numpy(values).permute(2, 0, 1))[0] == mask).all()
        (classes,) = session.run(["classes"], {"images": values[None]})
        assert (classes[0] != mask)[~void].sum() <= 2  # ties of logits


def test_masks_of_geotiffs_have_their_georeference(folders, tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="the extra 'bands' is not installed")
    data, run = folders
    place = [
        (33550, 12, 3, (10.0, 10.0, 0.0), True),
        (33922, 12, 6, (0.0, 0.0, 0.0, 4e5, 5e6, 0.0), True),
        (34735, 3, 8, (1, 1, 0, 1, 3072, 0, 1, 32633), True),
    ]
    values = np.load(data / "images/val/0.npy")
    options = {"photometric": "minisblack", "planarconfig": "contig", "metadata": None}
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=place, **options)
    for _ in range(2):  # its own outputs are replaced
        words = ["predict", str(run), str(tmp_path / "a.tif"), "--out", str(tmp_path / "out")]
        assert main(words) == 0
    with tifffile.TiffFile(tmp_path / "out/masks/a.tif") as made:
        tags = made.pages[0].tags
        assert [tuple(tags[code].value) for code, *_ in place] == [row[3] for row in place]
        assert tags[42113].value == "255"
        assert (made.asarray() == segtrain.load(str(run)).predict(values)[0]).all()


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_pretrained_colors_are_shared_as_in_timm(channels, tmp_path):
    network = build_model(Model(arch="unet", encoder="resnet18"), 2)
    (first,) = first_convolutions(network).values()
    expected = adapt_input_conv(channels, first.weight.detach())
    set_channels(network, channels, pretrained=True)
    assert torch.equal(first.weight, expected)
    assert network(torch.zeros(2, channels, 64, 64)).shape == (2, 2, 64, 64)


def test_an_encoder_file_of_as_many_bands_fits(tmp_path):
    model = Model(arch="unet", encoder="resnet18")
    source = build_model(model, 2, 5)
    torch.save(source.encoder_parts()[0].state_dict(), tmp_path / "five.pth")
    network = build_model(
        model.model_copy(update={"encoder_weights": str(tmp_path / "five.pth")}), 2, 5
    )
    states = zip(network.encoder_state().values(), source.encoder_state().values())
    assert all(torch.equal(ours, theirs) for ours, theirs in states)
