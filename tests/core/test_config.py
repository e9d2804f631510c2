"""Tests of loading a config: files, overrides, mistakes, and the hash."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from conftest import refused
from pydantic import Field, create_model

from segtrain.config import (
    RUN_HEADER,
    Config,
    load_config,
    load_saved,
    make_config,
)
from segtrain.errors import NULL, ConfigError
from segtrain.runfolder.rundir import refuse_run_dir


def test_a_missing_file_is_named_with_one_that_is_near(tmp_path):
    (tmp_path / "runs.yaml").touch()
    with refused("unreadable-config", file=f"{tmp_path}/run.yaml") as caught:
        load_config(tmp_path / "run.yaml")
    assert f"{tmp_path}/runs.yaml" in str(caught.value)


def test_a_setting_that_a_newer_version_adds_leaves_the_hash(tmp_path):
    newer = create_model("Newer", __base__=type(Config().train), averaging=(float, 0.5))
    later = create_model("Later", __base__=Config, train=(newer, Field(default_factory=newer)))
    settings = {"optim": {"lr": 0.5}, "train": {"seed": 3}}
    assert later.model_validate(settings).hash == make_config(settings).hash
    settings["train"]["averaging"] = 0.25
    assert (
        later.model_validate(settings).hash
        != make_config({"optim": {"lr": 0.5}, "train": {"seed": 3}}).hash
    )


def test_a_run_in_the_working_directory_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "mine/deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine/deeper")
    assert [load_config(None, [f"out={out}"]).title for out in (".", "..")] == ["deeper", "mine"]


def test_a_default_that_a_newer_version_changes_is_told_in_the_runs_folder(tmp_path):
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
def test_a_folder_whose_files_a_run_would_replace_is_refused(tmp_path, name):
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


def test_a_start_that_was_killed_can_be_repeated(tmp_path):
    config = load_config(None, [f"out={tmp_path}"])
    (tmp_path / "config.yaml").write_text(f"{RUN_HEADER}{config.hash}\n{config.to_yaml()}")
    (tmp_path / "labels.json").touch()
    refuse_run_dir(config)
    other = load_config(None, [f"out={tmp_path}", "optim.lr=0.5"])
    refuse_run_dir(other)
    (tmp_path / "best.json").touch()  # it had checkpoints, which were removed
    refuse_run_dir(config)
    with refused("run-settings-changed"):
        refuse_run_dir(other)


def test_the_long_camvid_recipe_is_the_short_one_with_the_settings_of_the_page():
    root = Path(__file__).parents[2]
    page = (root / "docs/camvid.md").read_text().replace("\\\n", " ")
    command = next(
        line for line in page.splitlines() if "camvid_cpu.yaml" in line and "3500st" in line
    )
    short = load_config(root / "configs/camvid_cpu.yaml", shlex.split(command)[3:])
    long = load_config(root / "configs/camvid_cpu_long.yaml", ["data.root=CamVid"])
    assert short.trained_settings() == long.trained_settings()
    assert short.parallel == long.parallel


def test_a_runs_config_names_code_that_is_not_touched(tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("out", "$NOWHERE/x"),
        ("out", "/scratch/$HERE/x"),
        ("out", "runs/$(date)"),
        ("out", "s3://b/run-$NOWHERE"),
        ("out", "~nobody-has-this-name/x"),
        ("out", "runs/x "),
        ("out", "https://host/x"),
        ("out", "s3://"),
        ("data.root", "${SCRATCH}/x"),
        ("data.root", "gcs://b/x"),
        ("data.root", "s3:/b"),
        ("data.cache_dir", "file:/x"),
        ("model.init", "gs://b/x"),
        ("model.encoder_weights", "az://c/x.pth"),
        ("log.mlflow", "%USERPROFILE%\\runs"),
        ("name", "../x"),
        ("name", "a/b"),
        ("name", "$NOWHERE"),
        ("name", " a"),
    ],
)
def test_what_would_become_the_name_of_a_folder_but_was_meant_otherwise_is_refused(
    key, text, monkeypatch
):
    monkeypatch.setenv("HERE", "x")
    with refused("invalid-value", key=key, found=text):
        load_config(None, [f"{key}='{text}'"])


def test_paths_and_names_that_are_right_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", "x")
    monkeypatch.chdir(tmp_path)
    for folder in ("$HERE", " a"):
        (tmp_path / folder).mkdir()
    for legal in ("runs/a$b", "/$RECYCLE.BIN/x", "a$", "$HERE/new", " a", "C:/x", "gs://b/a$b"):
        assert load_config(None, [f"out='{legal}'"]).out == legal
    assert load_config(None, ["log.mlflow=sqlite:///x.db"]).log.mlflow == "sqlite:///x.db"
    saved = tmp_path / "config.yaml"
    saved.write_text("{name: a/b, log: {mlflow: $NOWHERE/x}}\n")
    assert load_saved(saved).title == "a/b"
    saved.write_text("")
    assert load_config(saved, ["name="]).name == "config"


def test_a_null_is_refused_where_a_key_expects_a_value(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "a.yaml"
    for text, key in (
        ("out: ~", "out"),
        ("data: {root: }", "data.root"),
        ("train: {duration: null}", "train.duration"),
        ("loss: {terms: ~}", "loss.terms"),
        ("optim: {lr: ~}", "optim.lr"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        assert caught.value.values["key"] == key
        assert NULL in str(caught.value)
    file.write_text("data:\noptim: ~\nout: '~'")  # empty sections
    assert load_config(file).out == load_config(None, ["out=~"]).out == "/home/me"
    assert load_config(None, ["data.pair=~"]).data.pair is None
