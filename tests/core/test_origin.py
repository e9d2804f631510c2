"""The normalization that weights expect, and their license: found, kept with the weights, and the
same wherever they go.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import refused
from torch import Tensor

import segtrain
from segtrain.config import IMAGENET_MEAN, Model, Origin, load_config, make_config
from segtrain.errors import ConfigError
from segtrain.evaluation.load import load_run
from segtrain.infer import export as exporting
from segtrain.infer import onnx_file
from segtrain.infer.predictor import load
from segtrain.models import build_model
from segtrain.models.published import published
from segtrain.models.weights import load_encoder, renamed
from segtrain.runfolder import checkpoint
from segtrain.training.start.initial import begin_with, read_source

HALF = (0.5, 0.5, 0.5)
DPN = (124 / 255, 117 / 255, 104 / 255)


@pytest.mark.parametrize(
    ("arch", "encoder", "weights", "mean", "license"),
    [
        ("fpn", "tu-vit_base_patch16_224.augreg_in21k", "imagenet", HALF, "apache-2.0"),
        ("fpn", "tu-tf_efficientnetv2_s", "w.pth", HALF, "apache-2.0"),
        ("fpn", "tu-resnet50.fb_swsl_ig1b_ft_in1k", "imagenet", IMAGENET_MEAN, "cc-by-nc-4.0"),
        ("fpn", "timm-efficientnet-b0", "advprop", HALF, "apache-2.0"),
        ("fpn", "timm-efficientnet-b0", "imagenet", IMAGENET_MEAN, "apache-2.0"),
        ("fpn", "dpn92", "imagenet+5k", DPN, "unknown"),
        ("fpn", "resnet50", "imagenet", IMAGENET_MEAN, "bsd-3-clause"),
        ("fpn", "resnet50", "ssl", IMAGENET_MEAN, "cc-by-nc-4.0"),
        (
            "segformer",
            "mit_b0",
            "imagenet",
            IMAGENET_MEAN,
            "NVIDIA Source Code License (research only)",
        ),
        ("torchvision/fcn_resnet50", "xception", "imagenet", IMAGENET_MEAN, "bsd-3-clause"),
        ("fpn", "xception", None, IMAGENET_MEAN, ""),
    ],
)
def test_what_published_weights_expect_and_allow(arch, encoder, weights, mean, license):
    pytest.importorskip("timm")
    found = published(Model(arch=arch, encoder=encoder, encoder_weights=weights))
    assert found.mean == pytest.approx(mean)
    assert (mean == IMAGENET_MEAN) == (found == Origin(license=found.license))
    assert found.license == license
    assert found.terms().startswith("warning: ") == (
        license not in ("", "mit", "apache-2.0", "bsd-3-clause")
    )


SMALL = (
    "data.scenes=8",
    "data.scene_size=[48,64]",
    "data.crop=[32,32]",
    "data.workers=0",
    "train.batch_size=2",
    "train.duration=1st",
    "train.device=cpu",
    "log.tensorboard=false",
    "log.pictures=0",
    "log.profile_ms=0",
)
ENCODER = "tu-test_resnet.r160_in1k"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an encoder from a file, whose published weights expect a mean of 0.5."""
    timm = pytest.importorskip("timm")
    folder = tmp_path_factory.mktemp("origin")
    torch.save(timm.create_model("test_resnet").state_dict(), folder / "w.pth")
    settings = [
        "model.arch=fpn",
        f"model.encoder={ENCODER}",
        f"model.encoder_weights={folder / 'w.pth'}",
    ]
    segtrain.train(load_config(None, [*SMALL, *settings, f"out={folder / 'run'}"]))
    return folder / "run"


def test_a_run_and_its_exports_keep_what_the_weights_expect(run, tmp_path, capsys):
    expected = Origin(HALF, HALF, "apache-2.0")
    saved = checkpoint.checkpoints(run)[-1]
    assert torch.load(saved, weights_only=True)["origin"] == vars(expected)
    start = json.loads((run / "journal.jsonl").read_text().splitlines()[0])["derived"]
    assert start["images"] == expected.images()
    assert start["license"] == "apache-2.0"
    exporting.export(run, tmp_path / "out", ("safetensors",))
    facts = json.loads((tmp_path / "out/model.json").read_text())
    assert (facts["input"]["mean"], facts["input"]["std"], facts["license"]) == (
        [0.5] * 3,
        [0.5] * 3,
        "apache-2.0",
    )
    for source in (run, saved, tmp_path / "out", tmp_path / "out/weights.safetensors"):
        assert read_source(str(source))[2] == expected
    image = np.random.default_rng(0).integers(0, 256, (32, 64, 3), np.uint8)
    network = load_run(run)[0]
    with torch.no_grad():
        ids = (
            network((torch.from_numpy(image)[None].permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)
            .argmax(1)[0]
            .numpy()
        )
    for folder in (run, tmp_path / "out"):
        assert np.array_equal(load(folder, device="cpu").predict(image)[0], ids)


def test_an_edited_description_counts(run, tmp_path):
    exporting.export(run, tmp_path, ("safetensors",))
    file = tmp_path / "model.json"
    facts = json.loads(file.read_text())
    facts["input"].update(mean=[0.1, 0.2, 0.3], std=[1, 1, 1])
    file.write_text(json.dumps(facts))
    assert load(tmp_path, device="cpu").model.origin == Origin(
        (0.1, 0.2, 0.3), (1, 1, 1), "apache-2.0"
    )
    for wrong in ([0.1, 0.2], [0.1, 0.2, "x"], [0, 0, 0], [1, 1, float("nan")], "1 1 1"):
        facts["input"]["std"] = wrong
        file.write_text(json.dumps(facts))
        with pytest.raises(ConfigError, match=r"^model.json: data.std"):
            load(tmp_path, device="cpu")


def test_onnx_normalizes_as_the_network_expects(run, tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
    monkeypatch.setattr(onnx_file, "EXPORTERS", [("tracing", onnx_file._trace)])
    exporting.export(run, tmp_path, ("safetensors", "onnx"), size=(32, 32))
    image = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    found = runtime.InferenceSession(tmp_path / "model.onnx").run(
        ["classes"], {"images": image[None]}
    )[0][0]
    assert np.array_equal(found, load(run, device="cpu").predict(image)[0])


def test_model_init_takes_the_normalization_over(run, tmp_path):
    tuned = [
        "model.arch=fpn",
        f"model.encoder={ENCODER}",
        f"model.init={run}",
        f"out={tmp_path / 'tuned'}",
    ]
    segtrain.train(load_config(None, [*SMALL, *tuned]))
    assert load_run(tmp_path / "tuned")[0].origin == Origin(HALF, HALF, "apache-2.0")
    longer = [*tuned, "checkpoint.keep=9"]
    # goes on without the run that it began with
    segtrain.train(load_config(None, [*SMALL, *longer]))
    assert load_run(tmp_path / "tuned")[0].origin.mean == HALF
    with refused("normalization-differs", found=str(run)):
        segtrain.train(
            load_config(
                None, [*SMALL, *tuned, "data.mean=[0.4,0.4,0.4]", f"out={tmp_path / 'other'}"]
            )
        )
    network = build_model(Model(arch="fpn", encoder=ENCODER), 3)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    assert begin_with(network, str(tmp_path / "w.pth"), ["a", "b", "c"]).origin is None


def test_settings_say_it_for_a_network_and_a_loop_of_ones_own(tmp_path):
    seen = []

    class Own(torch.nn.Conv2d):
        def forward(self, images: Tensor) -> Tensor:
            seen.append((float(images.min()), float(images.max())))
            return super().forward(images)

    given = ["data.mean=[0,0,0]", "data.std=[1,1,1]", "data.flip=0", "data.jitter=[0,0,0]"]
    config = load_config(None, [*SMALL, *given, f"out={tmp_path / 'run'}"])
    images, _ = next(iter(segtrain.data.loader(config)))
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    images, _ = next(iter(segtrain.data.loader(config, train=False)))
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    segtrain.train(config, model=Own(3, 10, 1))
    assert len(seen) > 1  # in training and in evaluation
    assert all(0 <= least < most <= 1 for least, most in seen)
    assert config.hash != load_config(None, SMALL).hash
    for wrong in ("data.mean=[123,117,104]", "data.std=[0,1,1]", "data.mean=[0.5]"):
        with pytest.raises(ConfigError):
            load_config(None, [wrong])
    assert make_config({"data": {"std": [0.5, 0.5, 0.5]}}).data.mean is None


@pytest.mark.parametrize(
    ("arch", "name", "options"),
    [
        ("unet", "test_convnext", {}),
        ("dpt", "test_vit", {}),
        ("upernet", "swin_tiny_patch4_window7_224", {"strict_img_size": False}),
    ],
)
def test_files_of_timm_fit_the_encoders_that_smp_makes_of_it(arch, name, options, tmp_path):
    timm = pytest.importorskip("timm")
    network = build_model(Model(arch=arch, encoder=f"tu-{name}", options=options), 3)
    full = timm.create_model(name).state_dict()
    for prefix in ("", "module.", "_orig_mod.module.encoder.", "teacher.backbone."):
        torch.save({prefix + key: value for key, value in full.items()}, tmp_path / "w.pth")
        load_encoder(network, str(tmp_path / "w.pth"))
        theirs = {key.replace(".", "_"): value for key, value in full.items()}
        for key, value in network.encoder_state().items():
            short = key.replace("model.", "").replace(".", "_")
            assert torch.equal(value, theirs[short])
            value.data.zero_()


def test_few_equal_endings_change_no_names():
    own = {f"encoder.layer{n}.conv.weight": torch.ones(1) for n in range(8)}
    assert (
        renamed(
            {"head.conv.weight": torch.ones(1), **{f"x{n}": torch.ones(1) for n in range(9)}}, own
        )
        .keys()
        .isdisjoint(own)
    )
    assert renamed({"weight": torch.ones(1)}, own).keys() == {"weight"}


@pytest.mark.parametrize(
    ("arch", "encoder", "options"),
    [
        ("upernet", "tu-swin_tiny_patch4_window7_224", {}),
        ("dpt", "tu-vit_small_patch14_dinov2", {"patch_size": 14}),
    ],
)
def test_encoders_of_one_image_size_are_refused_for_that(arch, encoder, options):
    pytest.importorskip("segmentation_models_pytorch")
    with refused("image-size-unfit", found=encoder):
        build_model(Model(arch=arch, encoder=encoder, options=options), 3)
