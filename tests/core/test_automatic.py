"""Tests of ``model.arch=auto``: which network it is, its recipe, its weights, and when it is pico."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import segtrain
from segtrain.config import ENCODERS, Config, Model, load_config, make_config, pretrained
from segtrain.models import build_model
from segtrain.training.start import automatic
from segtrain.training.start.automatic import settled

timm = pytest.importorskip("timm", reason="timm is not installed: it builds the encoders")
hub = pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed: its cache is read"
)
TINY = [
    *("data.scenes=8", "data.scene_size=[32,32]", "data.crop=[32,32]", "data.workers=1"),
    *("train.batch_size=2", "train.duration=2st", "log.pictures=0", "train.precision=fp32"),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A GPU of 24 GB, and a hub whose answers are played: what was asked of it."""
    asked: list[Any] = []
    monkeypatch.setattr(automatic, "gpu_memory", lambda device: 0.0 if device == "cpu" else 24.0)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *names: asked.append(names))
    return asked


def test_on_a_cpu_it_is_pico_and_keeps_the_hash_and_the_folder_of_earlier_runs():
    here = settled(load_config(None, ["train.device=cpu"]))
    assert here.model == load_config(None, ["model.arch=pico"]).model
    hashes = {load_config(None, given).hash for given in ([], ["model=auto"], ["model.arch=pico"])}
    assert hashes == {here.hash} == {"44136fa3"}


def test_a_gpu_gets_the_recipe_in_settings_that_the_user_can_replace(asked):
    config = settled(load_config(None, ["model=auto"]))
    assert (config.model.arch, config.model.encoder) == ("upernet", "tu-convnext_base.fb_in22k")
    assert (config.optim.lr, config.optim.layer_decay, config.train.precision) == (
        1e-4,
        0.9,
        "auto",
    )
    assert asked == [("timm/convnext_base.fb_in22k", "model.safetensors")]
    given = ["optim.lr=0.001", "train.precision=fp32", "model.freeze=none", "train.batch_size=64"]
    own = settled(load_config(None, given))
    assert (own.optim.lr, own.train.precision, own.model.freeze) == (0.001, "fp32", "none")
    assert settled(load_config(None, given[3:])).optim.lr == 2e-4
    sgd = load_config(None, ["optim.name=sgd"])
    assert settled(sgd).optim == sgd.optim
    assert settled(make_config(config.model_dump())) == config


def test_networks_by_memory_have_weights_for_all_uses():
    chosen = [pretrained(Config(), memory).model.encoder for memory in (8, 16, 24, 40, 80)]
    assert chosen == [ENCODERS[0], ENCODERS[0], ENCODERS[20], ENCODERS[20], ENCODERS[70]]
    for encoder in ENCODERS.values():
        weights = timm.get_pretrained_cfg(encoder.removeprefix("tu-"))
        assert weights.license in ("apache-2.0", "mit", "bsd-3-clause")
        assert weights.hf_hub_id == f"timm/{encoder.removeprefix('tu-')}"


def test_a_hub_that_does_not_answer_is_said_with_what_helps(asked, monkeypatch, capsys, tmp_path):
    def offline(*names: str) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    assert settled(load_config()).model == load_config(None, ["model.arch=pico"]).model
    (line,) = capsys.readouterr().err.splitlines()
    for words in (
        "no route to host",
        "pico",
        "timm/convnext_base.fb_in22k",
        "encoder_weights=FILE",
    ):
        assert words in line
    named = settled(load_config(None, [f"model.encoder_weights={tmp_path}/convnext.safetensors"]))
    assert named.model.arch == "upernet"
    assert settled(load_config(), download=False).model.arch == "upernet"


def test_a_run_keeps_its_network_and_hands_it_on(asked, tmp_path):
    for arch, settings in (("pico", ["model.arch=pico"]), ("upernet", [])):
        given = [f"out={tmp_path / arch}"]
        begun = settled(load_config(None, given + settings), download=False)
        (tmp_path / arch / "checkpoints").mkdir(parents=True)
        (tmp_path / arch / "checkpoints/step-00000001.pt").touch()
        (tmp_path / arch / "config.yaml").write_text(begun.to_yaml())
        assert settled(load_config(None, given)).model.arch == arch
    assert asked == []
    heir = settled(load_config(None, [f"model.init={tmp_path}/upernet", "train.device=cpu"])).model
    assert (heir.arch, heir.encoder) == ("upernet", ENCODERS[20])
    assert heir.encoder_weights is None
    assert settled(load_config(None, ["model.options={stem: 8}"])).model.arch == "pico"
    assert settled(load_config(), own_model=True).model.arch == "pico"


def test_a_run_with_few_images_trains_the_decoder_on_weights_from_a_file(
    asked, monkeypatch, capfd, tmp_path
):
    monkeypatch.setattr("segtrain.config.automatic.ENCODERS", {0: "tu-test_convnext"})
    encoder = timm.create_model("test_convnext")
    torch.save({"model": encoder.state_dict()}, tmp_path / "e.pth")
    given = [*TINY, f"out={tmp_path}/run", f"model.encoder_weights={tmp_path}/e.pth"]
    run = segtrain.train(load_config(None, given))
    assert run.done
    said = capfd.readouterr()
    assert "model.arch=auto: upernet with tu-test_convnext" in said.err
    assert (
        f"{tmp_path}/e.pth: {len(encoder.state_dict()) - 4} tensors taken, 4 left out (head."
        in said.out
    )
    assert "the encoder is frozen" in said.out
    trained = segtrain.load(run.path).model.encoder_state()
    assert torch.equal(trained["model.stem_0.weight"], encoder.state_dict()["stem.0.weight"])


def test_a_vit_of_14_pixels_takes_any_size_and_the_file_of_its_authors(tmp_path):
    """Their tables of positions begin with that of the class token, which no shape tells."""
    name = "vit_small_patch14_reg4_dinov2"
    file, state = tmp_path / "w.pth", dict(timm.create_model(name).state_dict())
    torch.save(state, file)
    sizes = {"patch_size": 16, "dynamic_img_size": True}
    expected = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay={"file": str(file)}, **sizes
    )
    first = torch.full((1, 1, 384), 0.5)
    theirs = {
        **state,
        "pos_embed": torch.cat([first, state["pos_embed"]], 1),
        "cls_token": state["cls_token"] - first,
        "register_tokens": state["reg_token"],
        "mask_token": torch.zeros(1, 384),
    }
    del theirs["reg_token"]
    torch.save({"teacher": {f"backbone.{key}": v for key, v in theirs.items()}}, file)
    small = {"decoder_intermediate_channels": [8, 8, 8, 8], "decoder_fusion_channels": 8}
    model = {"encoder": f"tu-{name}", "encoder_weights": str(file), "options": small}
    network = build_model(Model(arch="dpt", **model), 3).eval()
    assert any("resampled to 16" in remark for remark in network.remarks)
    own = network.encoder_state()
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(own[f"model.{key}"], value, rtol=0, atol=1e-6)
    with torch.no_grad():
        assert network(torch.randn(1, 3, 70, 93)).shape == (1, 3, 70, 93)
