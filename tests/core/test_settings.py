"""Tests of invalid settings: each is refused by its key before torch is imported and before any
file is written.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import yaml
from conftest import refused

from segtrain.cli import main
from segtrain.config import Config, load_config, make_config
from segtrain.config.mistakes import OTHER_TRAINERS, fields
from segtrain.config.section import sections_of
from segtrain.data import cache
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels.reading import PLAIN
from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster
from segtrain.runfolder.rundir import make_run_dir
from segtrain.training.start import early_checks as early

GIB = 2**30


# Values that can be refused only with the number of ranks, the memory (here 16 GiB), or the
# installed libraries.
EARLY = {
    "train.batch_size=1000000000": "train.batch_size=1000000000",
    "model.arch=unett": "did you mean 'unet'?",
}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "memory_limit", lambda: (16 * GIB, "host"))
    monkeypatch.setattr(cache, "memory_limit", lambda: (16 * GIB, "host"))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("given", EARLY)
def test_the_command_refuses_before_anything_is_made(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)  # no rank is started
    settings = [
        "train.batch_size=2",
        "data.crop=[32,32]",
        "parallel.procs=2",
        "train.device=cpu",
        given,
    ]
    assert main(["train", *settings]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert EARLY[given] in told[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "code", "found", "suggestion"),
    [
        ("model.encoder=resnet17", "unknown-encoder", "resnet17", "resnet18"),
        ("model.encoder=tu-resnet18x", "unknown-encoder", "tu-resnet18x", "tu-resnet18"),
        ("model.encoder_weights=imagenett", "unknown-encoder-weights", "imagenett", "imagenet"),
    ],
)
def test_an_encoder_that_no_library_knows(given, code, found, suggestion):
    pytest.importorskip("segmentation_models_pytorch")
    with refused(code, found=found, suggestion=suggestion):
        early.refuse(load_config(None, ["model.arch=unet", given]), Cluster(source="torchrun"), 1)


def test_every_encoder_that_a_library_knows_is_let_through():
    encoders = pytest.importorskip("segmentation_models_pytorch").encoders
    timm = pytest.importorskip("timm")
    names = [
        (name, weights)
        for name in encoders.encoders
        for weights in encoders.encoders[name]["pretrained_settings"]
    ]
    unet = load_config().model.model_copy(update={"arch": "unet"})
    for name, weights in [*names, *((f"tu-{name}", "imagenet") for name in timm.list_models())]:
        early.refuse_names(unet.model_copy(update={"encoder": name, "encoder_weights": weights}))


def test_no_torch_is_imported_for_it(tmp_path):
    """Also for a folder that holds another run."""
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/step-00000001.pt").touch()
    (tmp_path / "run/config.yaml").write_text(load_config(None, ["optim.lr=0.5"]).to_yaml())
    code = (
        "import sys; from segtrain.cli import main\n"
        "for given in (['out=run'], ['parallel.procs=1000'], ['model.arch=unett'], ['model.arch=unet', 'model.encoder=resnet17']):\n"
        "    assert main(['train', 'train.device=cpu', *given]) == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "run holds a run with other settings (optim.lr: 0.5 there, 0.001 here)" in done.stderr


def test_ranks_that_others_started_do_not_look_at_the_folder_alone(tmp_path):
    (tmp_path / "file").touch()
    config = load_config(None, [f"out={tmp_path}/file"])
    early.refuse(config, Cluster(0, 2, 0, 2, source="torchrun"), 2)
    with refused("run-folder-not-writable", run=f"{tmp_path}/file"):
        early.refuse(config, Cluster(), 2)
    with refused(
        "run-folder-not-writable", run=f"{tmp_path}/file", reason=os.strerror(errno.ENOTDIR)
    ):
        make_run_dir(config)


@pytest.mark.usefixtures("memory")
def test_each_rank_of_a_host_keeps_a_cache_of_its_own():
    class Pictures:
        reading, labels = PLAIN, LabelSpace(("a",), {0: 0})
        entries = ()

        def __len__(self) -> int:
            return 1000

        def size(self, index: int) -> tuple[int, int]:
            return 1024, 1024

    cache.refuse_cache(Pictures(), ranks=3)  # type: ignore[arg-type]  # 3 x 3.9 of 12.8 GiB
    with pytest.raises(
        ConfigError,
        match=r"3\.9 GiB in each of 4 ranks, 15\.6 GiB together; this machine has 16\.0 GiB",
    ):
        cache.refuse_cache(Pictures(), ranks=4)  # type: ignore[arg-type]


def test_the_known_words_of_other_trainers_lead_to_settings_that_are():
    known = [key for key, field in fields().items() if not sections_of(field.annotation)]
    for answer in OTHER_TRAINERS.values():
        for word in answer.replace(",", " ").split():
            if "." in word or "=" in word:
                assert word.partition("=")[0] in known


def test_a_profile_is_not_switched_on_with_no_distance(tmp_path, capsys):
    assert main(["profile", "on", str(tmp_path), "--ms", "0"]) == 2
    assert "segtrain profile off" in capsys.readouterr().err


ODD = (
    "",
    "[]",
    "{}",
    "true",
    "-1",
    "1e400",
    "9" * 40,
    ".nan",
    "[[1, 1]]",
    "{1: 2}",
    "2001-99-99",
    "a: b",
    "[{name: [1]}]",
    "*a",
    "\udc80",
)


@pytest.mark.parametrize(
    "section",
    ["out", "data", "model", "loss", "optim", "train", "parallel", "eval", "checkpoint", "log"],
)
def test_no_value_of_any_key_ends_in_anything_but_a_config_or_an_error_with_its_key(section):
    keys = [key for key in fields() if key.partition(".")[0] == section]
    assert keys
    for key in keys:
        for value in ODD:
            found = outcome(f"{key}={value}")
            if isinstance(found, str):
                assert section in found, (key, value)
            else:
                assert make_config(yaml.safe_load(found.to_yaml())) == found, (key, value)


def outcome(given: str) -> Config | str:
    try:
        return load_config(None, [given])
    except ConfigError as error:
        return str(error)
