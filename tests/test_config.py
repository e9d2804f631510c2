"""Does a run's description say what is wrong with it, and where?"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from segtrain.config import Config, duration_in_steps, load_config, make_config, parse_overrides
from segtrain.errors import ConfigError

WRONG = [
    (["train.bach_size=8"], "did you mean 'train.batch_size'"),
    (["lr=1"], "did you mean 'optim.lr'"),
    (["optm.lr=1"], "unknown key 'optm'"),
    (["train.batch_size=many"], "train.batch_size='many'"),
    (["train.batch_size=0"], "train.batch_size=0"),
    (["train.batch_size=16", "train.accumulate=3"], "use a multiple of 3"),
    (["train.duration=20"], "'20ep'"),
    (["train.duration=soon"], "'20ep'"),
    (["optim.name=adam"], "'adamw'"),
    (["optim.lr=-1"], "optim.lr=-1"),
    (["loss.terms=[nonsense]"], "'lovasz'"),
    (["loss.terms=[]"], "loss.terms"),
    (["data.layout=camvid"], "set data.root=FOLDER"),
    (["data.root=/somewhere"], "set data.layout"),
    (["data.scale=[2, 1]"], "least"),
    (["data.crop=[4, 4]"], "at least 8"),
    (["data.workers=-1"], "'auto'"),
    (["train.progressive=[[0.5, 2]]"], "[[until, factor], ...]"),
    (["parallel.strategy=smddp", "parallel.sync_bn=true"], "no SyncBatchNorm"),
    (["train.device=cpu", "parallel.backend=nccl"], "gloo"),
    (["train.device=cpu", "train.precision=fp16"], "fp16 needs a GPU"),
    (["parallel.compress=fp16", "parallel.strategy=fsdp"], "works with ddp"),
    (["data.classes=[a, b]", "loss.class_weights=[1, 2, 3]"], "3 numbers for 2 classes"),
    (["train.seed"], "section.key=value"),
    (["train.seed=[1"], "is no YAML"),
    (["train=1", "train.seed=2"], "train"),
]


@pytest.mark.parametrize(("overrides", "expected"), WRONG)
def test_a_mistake_is_named_with_its_cure(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    assert expected in str(caught.value)


def test_overrides_in_both_spellings_and_types() -> None:
    settings = parse_overrides(["train.seed=3", "--optim.lr", "1e-3", "--optim.name=sgd", "loss.terms=[ce, dice]"])
    config = make_config(settings)
    assert config.train.seed == 3
    assert config.optim.lr == 1e-3
    assert [t.name for t in config.loss.terms] == ["ce", "dice"]


def test_file_then_override(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("train: {batch_size: 4, seed: 7}\n")
    config = load_config(path, ["train.batch_size=8"])
    assert (config.train.batch_size, config.train.seed, config.name) == (8, 7, "small")


@pytest.mark.parametrize("text", ["- a\n", "a: [", "\x00"])
def test_a_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_config(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no/such\.yaml"):
        load_config("no/such.yaml")


def test_yaml_of_a_config_gives_the_same_config(tmp_path: Path) -> None:
    config = load_config(None, ["train.progressive=[[0.5, 0.5]]", "eval.tile=[64, 64]"])
    path = tmp_path / "c.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config
    assert load_config(path).hash == config.hash


def test_the_hash_names_what_is_trained() -> None:
    base = Config()
    same = load_config(None, ["out=elsewhere", "data.workers=3", "log.every=1", "parallel.procs=1"])
    other = load_config(None, ["optim.lr=0.5"])
    assert base.hash == same.hash != other.hash


def test_durations() -> None:
    assert duration_in_steps("2ep", samples=10, batch_size=4) == 5
    assert duration_in_steps("1ep", samples=10, batch_size=4) == 3  # every sample at least once
    assert duration_in_steps("7st", samples=10, batch_size=4) == 7


def test_the_long_camvid_recipe_is_the_short_one_with_the_settings_of_the_page() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs/camvid.md").read_text().replace("\\\n", " ")
    command = next(line for line in page.splitlines() if "camvid_cpu.yaml" in line and "3500st" in line)
    short = load_config(root / "configs/camvid_cpu.yaml", shlex.split(command)[3:])
    long = load_config(root / "configs/camvid_cpu_long.yaml", ["data.root=CamVid"])
    assert short.what() == long.what()
    assert short.parallel == long.parallel
