"""Tests of loading a config: files, overrides, mistakes, and the hash."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest
import yaml
from conftest import refused
from pydantic import Field, create_model

from segtrain.config import (
    RUN_HEADER,
    Config,
    load_config,
    load_saved,
    local_paths,
    make_config,
    parse_overrides,
)
from segtrain.config.paste import command, words
from segtrain.errors import ConfigError
from segtrain.runfolder.rundir import refuse_run_dir

WRONG = [
    (["model.freeze=encoder"], "conflicting-settings", {"key": "model.freeze"}),
    (["train.bach_size=8"], "unknown-key", {"suggestion": "train.batch_size"}),
    (["lr=1"], "unknown-key", {"suggestion": "optim.lr"}),
    (["optm.lr=1"], "unknown-key", {"key": "optm", "suggestion": "optim"}),
    (["train.batch_size=0"], "invalid-value", {"key": "train.batch_size", "found": 0}),
    (["train.batch_size=16", "train.accumulate=3"], "conflicting-settings", {"key": "train.batch_size"}),
    (["train.duration=20"], "invalid-value", {"key": "train.duration", "found": "20"}),
    (["train.deadline=0h"], "invalid-value", {"key": "train.deadline", "found": "0h"}),
    (["train.deadline=2"], "invalid-value", {"key": "train.deadline", "found": "2"}),
    (["train.budget=20"], "invalid-value", {"key": "train.budget", "found": "20"}),
    (["train.price=0"], "invalid-value", {"key": "train.price"}),
    (["optim.name=adam"], "unknown-choice", {"key": "optim.name", "found": "adam"}),
    (["optim.lr=-1"], "invalid-value", {"key": "optim.lr", "found": -1}),
    (["loss.terms=[nonsense]"], "unknown-choice", {"key": "loss.terms.0.name"}),
    (["loss.terms=[]"], "invalid-value", {"key": "loss.terms"}),
    (["loss.upsample=fused", "loss.full_logits=true"], "conflicting-settings", {"key": "loss.upsample"}),
    (["loss.upsample=fused", "loss.terms=[lovasz]"], "conflicting-settings", {"key": "loss.upsample"}),
    (["loss.upsample=fused", "train.device=cpu"], "conflicting-settings", {"key": "loss.upsample"}),
    (["data.layout=camvid"], "conflicting-settings", {"key": "data.root"}),
    (["data.root=/somewhere"], "conflicting-settings", {"key": "data.layout"}),
    (["data.scale=[2, 1]"], "invalid-value", {"key": "data.scale"}),
    (["data.crop=[4, 4]"], "invalid-value", {"key": "data.crop"}),
    (["data.helpers=ray", "data.workers=0"], "conflicting-settings", {"key": "data.workers"}),
    (["data.helpers=ray", "data.cache=ram"], "conflicting-settings", {"key": "data.cache"}),
    (["data.helper_cores=0"], "invalid-value", {"key": "data.helper_cores"}),
    (["train.progressive=[[0.5, 2]]"], "invalid-value", {"key": "train.progressive"}),
    (["train.device=mps"], "unknown-choice", {"key": "train.device"}),
    (["parallel.strategy=smddp", "train.device=cpu"], "conflicting-settings", {"key": "parallel.strategy"}),
    (["train.device=cpu", "parallel.backend=nccl"], "conflicting-settings", {"key": "parallel.backend"}),
    (["train.device=cpu", "train.precision=fp16"], "conflicting-settings", {"key": "train.precision"}),
    (["parallel.compress=fp16", "parallel.strategy=fsdp"], "conflicting-settings", {"key": "parallel.compress"}),
    (["train.compile=reduce-overhead", "train.accumulate=2"], "conflicting-settings", {"key": "train.compile"}),
    (["train.cuda_graph=true", "train.accumulate=2"], "conflicting-settings", {"key": "train.cuda_graph"}),
    (["train.cuda_graph=true", "loss.stride=2"], "conflicting-settings", {"key": "train.cuda_graph"}),
    (["train.cuda_graph=true", "parallel.strategy=ddp"], "conflicting-settings", {"key": "train.cuda_graph"}),
    (["train.compile=regions", "parallel.strategy=fsdp"], "conflicting-settings", {"key": "train.compile"}),
    (["data.classes=[a, b]", "loss.class_weights=[1, 2, 3]"], "conflicting-settings", {"key": "loss.class_weights"}),
    (["data.flip_pairs=[[left, right, top]]"], "wrong-type", {"found": ["left", "right", "top"]}),
    (["data.classes=['?1', road]"], "class-name-missing", {"found": "?1"}),
    (["data.label_map={.inf: 0}"], "wrong-type", {"found": {math.inf: 0}}),
    (["data.label_map={0: -.inf}"], "wrong-type", {"found": {0: -math.inf}}),
    (["data.label_map={0: .nan}"], "wrong-type", {"key": "data.label_map"}),
    (["data.classes={a: [.inf, 0, 0]}"], "invalid-color", {"found": [math.inf, 0, 0]}),
    (["train.seed"], "not-a-setting", {"found": "train.seed"}),
    (["train.seed=[1"], "invalid-yaml", {"key": "train.seed"}),
    (["train=1", "train.seed=2"], "setting-has-value", {"key": "train.seed"}),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "code", "values"), WRONG)
def test_a_mistake_is_named_by_code_and_key(
    overrides: list[str], code: str, values: dict[str, object]
) -> None:
    with refused(code, **values) as caught:
        load_config(None, overrides)
    assert "\n" not in str(caught.value)


CONFLICTS = [
    "train.device=cpu train.precision=fp16 parallel.backend=nccl parallel.strategy=smddp loss.upsample=fused",
    "train.batch_size=10 train.accumulate=4 train.cuda_graph=true loss.stride=2",
    "optim.name=muon parallel.strategy=fsdp train.channels_last=true train.compile=regions",
    "data.helpers=ray-data train.deterministic=true data.worker_kind=process data.cache=ram",
    "parallel.strategy=single parallel.compress=fp16 log.hang_s=900 data.faults=skip data.check=off",
    "data.helpers=ray data.workers=0 data.cache=ram data.worker_kind=process",
    "loss.upsample=fused loss.full_logits=true train.device=cpu train.compile=reduce-overhead train.accumulate=2",
]


@pytest.mark.parametrize(
    "given", [*CONFLICTS, *(" ".join(words) for words, code, _ in WRONG if code.startswith("con"))]
)
def test_advice_is_tried_before_it_is_printed(given: str) -> None:
    """The settings that an error advises, pasted behind the others, make a config, also where one
    fix needs another.
    """
    with pytest.raises(ConfigError) as caught:
        load_config(None, given.split(" "))
    advice = caught.value.settings
    assert advice or given not in CONFLICTS
    if advice:
        load_config(None, [*given.split(" "), *words(advice)])
        assert len(advice) == 1 or command(advice) in str(caught.value)


def test_advice_that_another_rule_refuses_says_so() -> None:
    """Workers can be had, but no setting is known to fix the warm-up, which is checked after
    them.
    """
    with refused("conflicting-settings", key="data.workers") as caught:
        load_config(
            None, ["data.helpers=ray", "data.workers=0", "optim.warmup=30st", "train.duration=20st"]
        )
    assert caught.value.settings is None
    assert "optim.warmup" in str(caught.value)


def test_several_mistakes_are_one_error_with_a_line_for_each() -> None:
    with refused("invalid-value", key="optim.lr", keys=("optim.lr", "train.bach_size")) as caught:
        load_config(None, ["train.bach_size=8", "optim.lr=-1"])
    assert len(str(caught.value).splitlines()) == 2


def test_overrides_in_both_spellings_and_types() -> None:
    settings = parse_overrides(
        ["train.seed=3", "--optim.lr", "1e-3", "--optim.name=sgd", "loss.terms=[ce, dice]"]
    )
    config = make_config(settings)
    assert config.train.seed == 3
    assert config.optim.lr == 1e-3
    assert [t.name for t in config.loss.terms] == ["ce", "dice"]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell sees it in a file, and few do behind ``key=``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text("out: ~/runs/a\nmodel: {init: ~/a.pth}\n")
    more = ["data.layout=camvid", "data.root=~/data", "model.encoder_weights=~/b.pth", "name=~/c"]
    config = load_config(tmp_path / "c.yaml", more)
    assert config.run_dir == tmp_path / "runs/a"
    places = (config.model.init, config.data.root, config.model.encoder_weights)
    assert places == (f"{tmp_path}/a.pth", f"{tmp_path}/data", f"{tmp_path}/b.pth")
    assert config.name == "~/c"


@pytest.mark.parametrize(
    ("text", "code"),
    [("- a\n", "config-not-a-mapping"), ("a: [", "invalid-yaml"), ("\x00", "invalid-yaml")],
)
def test_a_file_that_is_not_a_config(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with refused(code, file=str(path)):
        load_config(path)


def test_a_missing_file_is_named_with_one_that_is_near(tmp_path: Path) -> None:
    (tmp_path / "runs.yaml").touch()
    with refused("unreadable-config", file=f"{tmp_path}/run.yaml") as caught:
        load_config(tmp_path / "run.yaml")
    assert f"{tmp_path}/runs.yaml" in str(caught.value)


def test_a_hash_stays_as_it_is() -> None:
    """These name folders and runs that exist: a change here would make the same command begin
    anew.
    """
    hashes = {
        "": "44136fa3",
        "optim.lr=0.1": "0eaacf41",
        "optim.name=sgd": "be3c8747",
        "loss.terms=[dice]": "7f18ed19",
    }
    assert {text: load_config(None, [text] if text else []).hash for text in hashes} == hashes
    assert (
        load_config(None, ["optim.lr=0.001", "optim.name=adamw", "loss.terms=ce"]).hash
        == Config().hash
    )
    elsewhere = [
        "out=elsewhere",
        "data.workers=3",
        "log.every=1",
        "parallel.procs=1",
        "train.compile=true",
    ]
    assert load_config(None, elsewhere).hash == Config().hash


def test_a_setting_that_a_newer_version_adds_leaves_the_hash(tmp_path: Path) -> None:
    newer = create_model("Newer", __base__=type(Config().train), averaging=(float, 0.5))
    later = create_model("Later", __base__=Config, train=(newer, Field(default_factory=newer)))
    settings = {"optim": {"lr": 0.5}, "train": {"seed": 3}}
    assert later.model_validate(settings).hash == make_config(settings).hash
    settings["train"]["averaging"] = 0.25
    assert (
        later.model_validate(settings).hash
        != make_config({"optim": {"lr": 0.5}, "train": {"seed": 3}}).hash
    )


def test_a_run_in_the_working_directory_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine/deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine/deeper")
    assert [load_config(None, [f"out={out}"]).title for out in (".", "..")] == ["deeper", "mine"]


def test_a_default_that_a_newer_version_changes_is_told_in_the_runs_folder(tmp_path: Path) -> None:
    """The hash is the same, the training would not be: the run's own config is what counts."""
    made = load_config(None, [f"out={tmp_path}"])
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/step-00000001.pt").touch()
    (tmp_path / "config.yaml").write_text(made.to_yaml())
    refuse_run_dir(made)
    (tmp_path / "config.yaml").write_text(
        made.to_yaml().replace("weight_decay: 0.01", "weight_decay: 0.02")
    )
    with pytest.raises(ConfigError, match=r"optim\.weight_decay: 0\.02 there, 0\.01 here"):
        refuse_run_dir(made)


@pytest.mark.parametrize(
    "name", ["config.yaml", "labels.json", "best.json", "pictures", "report.html"]
)
def test_a_folder_whose_files_a_run_would_replace_is_refused(tmp_path: Path, name: str) -> None:
    config = load_config(None, [f"out={tmp_path}"])
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "checkpoints").mkdir()
    refuse_run_dir(config)
    (tmp_path / name).write_text("my: config")
    with refused("folder-not-a-run", found=[name]):
        refuse_run_dir(config)
    assert (tmp_path / name).read_text() == "my: config"
    (tmp_path / "journal.jsonl").touch()
    refuse_run_dir(config)


def test_a_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    config = load_config(None, [f"out={tmp_path}"])
    (tmp_path / "config.yaml").write_text(f"{RUN_HEADER}{config.hash}\n{config.to_yaml()}")
    (tmp_path / "labels.json").touch()
    refuse_run_dir(config)


def test_the_long_camvid_recipe_is_the_short_one_with_the_settings_of_the_page() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/camvid.md").read_text().replace("\\\n", " ")
    command = next(
        line for line in page.splitlines() if "camvid_cpu.yaml" in line and "3500st" in line
    )
    short = load_config(root / "configs/camvid_cpu.yaml", shlex.split(command)[3:])
    long = load_config(root / "configs/camvid_cpu_long.yaml", ["data.root=CamVid"])
    assert short.trained_settings() == long.trained_settings()
    assert short.parallel == long.parallel


CHOICES = [
    (["loss.terms=[{name: dice, gamma: 5}]"], "loss.terms.0.gamma", ("focal",)),
    (["loss.terms=[ce, {name: focal, min_kept: .5}]"], "loss.terms.1.min_kept", ("ohem",)),
    (["optim.muon_lr=.5"], "optim.muon_lr", ("muon",)),
    (["optim.name=sgd", "optim.betas=[.9, .9]"], "optim.betas", ("adamw", "muon")),
    (["optim.schedule=cosine", "optim.poly_power=3"], "optim.poly_power", ("poly",)),
]


@pytest.mark.parametrize(("overrides", "key", "owners"), CHOICES)
def test_a_setting_of_another_choice_is_refused_with_its_owner(
    overrides: list[str], key: str, owners: tuple[str, ...]
) -> None:
    with refused("setting-of-another-choice", key=key, owners=owners) as caught:
        load_config(None, overrides)
    assert "\n" not in str(caught.value)


def test_a_typo_in_a_term_is_corrected() -> None:
    with refused("unknown-key", key="loss.terms.0.gama", suggestion="loss.terms.0.gamma"):
        load_config(None, ["loss.terms=[{name: focal, gama: 5}]"])


def test_a_block_holds_its_own_settings_alone() -> None:
    config = load_config(
        None,
        ["optim.name=sgd", "optim.schedule=cosine", "loss.terms=[{name: focal, gamma: 1}, dice]"],
    )
    written = yaml.safe_load(config.to_yaml())
    assert written["loss"]["terms"] == [
        {"name": "focal", "weight": 1.0, "gamma": 1.0},
        {"name": "dice", "weight": 1.0},
    ]
    assert set(written["optim"]) == {
        "name",
        "lr",
        "encoder_lr",
        "weight_decay",
        "schedule",
        "warmup",
        "clip",
        "ema",
        "momentum",
    }
    assert make_config(written) == config


def test_another_optimizer_on_the_command_line_leaves_the_files_settings_of_the_first_behind(
    tmp_path: Path,
) -> None:
    path = tmp_path / "muon.yaml"
    path.write_text("optim: {name: muon, muon_lr: .5, momentum: .8, lr: .25, poly_power: 2}\n")
    config = load_config(path, ["optim.name=sgd", "optim.schedule=linear"])
    assert (config.optim.name, config.optim.lr, config.optim.momentum) == ("sgd", 0.25, 0.8)
    with refused("setting-of-another-choice", key="optim.muon_lr", found=0.3):
        load_config(path, ["optim.name=sgd", "optim.muon_lr=.3"])


def test_a_runs_config_names_code_that_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange/__init__.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    (tmp_path / "strange/inner.py").write_text("def augment(image, mask): return image, mask\n")
    (tmp_path / "config.yaml").write_text("data: {transforms: 'strange.inner:augment'}\n")
    monkeypatch.chdir(tmp_path)
    assert load_saved(tmp_path / "config.yaml").data.transforms == "strange.inner:augment"
    assert not (tmp_path / "ran").exists()
    # one's own config is looked at, and Python runs the package for that
    load_config(tmp_path / "config.yaml")
    assert (tmp_path / "ran").exists()


def test_a_mistake_is_blamed_on_the_file_or_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train: {batch_size: 0}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_config(path, ["optim.lr=x", "train.duration=10st"])
    lines = {line.split("=")[0] for line in str(refused.value).splitlines()}
    assert lines == {f"{path}: train.batch_size", "the command line: optim.lr"}
    with pytest.raises(ConfigError, match=r"^the command line: train.batch_size=-1"):
        load_config(path, ["train={batch_size: -1}"])


def test_local_paths_are_found_by_the_type_of_their_field(tmp_path: Path) -> None:
    settings = (
        "data.layout=camvid",
        "data.root=d",
        "model.init=w/w.pth",
        "model.arch=unet",
        "model.encoder_weights=e.pth",
    )
    found = local_paths(Config.load(None, *settings, "out=s3://bucket/run", "data.cache_dir=c"))
    assert found == {
        "data.root": "d",
        "model.init": "w/w.pth",
        "model.encoder_weights": "e.pth",
        "data.cache_dir": "c",
    }
    assert local_paths(
        Config.load(None, "model.arch=unet", "model.encoder_weights=imagenet", "out=runs/x")
    ) == {"out": "runs/x"}
