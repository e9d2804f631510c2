"""Tests of a SageMaker job's processes: they read their inputs, obey a stop, and leave the model or
the cause.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused

from segtrain.errors import ConfigError, DataError
from segtrain.platforms import decoder, outcome
from segtrain.platforms.sagemaker import entry, settings
from segtrain.platforms.sagemaker.runs import uris_of

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from segtrain.platforms.sagemaker.entry import main; sys.exit(main())"
SETTINGS = {
    "config": "configs/scenes.yaml",
    "data.scenes": 13,
    "data.scene_size": [40, 48],
    "data.crop": [32, 32],
    "data.workers": 1,
    "model.options": {"stem": 8, "widths": [8, 8, 16, 16], "decoder": 8, "bins": [1]},
    "train.batch_size": 4,
    "train.duration": "3st",
    "eval.every": "3st",
    "checkpoint.every": "1st",
    "log.every": 1,
    "log.tensorboard": False,
    "log.pictures": 0,
    "log.profile_ms": 0,
    "parallel.strategy": "single",
}
GROUPS = [
    {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
    {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-3", "algo-2"]},
]


def make_base(
    base: Path, parameters: dict[str, Any], current: str = "algo-1", hosts: int = 1, **more: Any
) -> Path:
    """A host's /opt/ml as SageMaker fills it."""
    folder = base / "input/config"
    folder.mkdir(parents=True)
    resources = {
        "current_host": current,
        "current_instance_type": "ml.g5.xlarge",
        "network_interface_name": "lo",
        "hosts": [f"algo-{n + 1}" for n in range(hosts)],
        **more,
    }
    (folder / "resourceconfig.json").write_text(json.dumps(resources))
    encoded = {key: json.dumps(value) for key, value in parameters.items()}
    (folder / "hyperparameters.json").write_text(json.dumps(encoded))
    return base


def test_hyperparameters_of_both_sdks(tmp_path):
    make_base(
        tmp_path,
        {
            "config": "configs/x.yaml",
            "data.layout": "voc",
            "sagemaker_program": "train.py",
            "name": "1",
        },
    )
    path = tmp_path / "input/config/hyperparameters.json"
    bare = {
        "optim.lr": "1e-3",
        "log.tensorboard": "False",
        "_tuning_objective_metric": "x",
        "name": "it's",
    }
    bare["helpers.join_s"] = "90"
    path.write_text(json.dumps({**json.loads(path.read_text()), **bare}))
    config, found = settings.read_settings(tmp_path)
    assert config == "configs/x.yaml"
    assert found == {
        "data.layout": '"voc"',
        "optim.lr": "0.001",
        "log.tensorboard": "False",
        "name": "it's",
    }


def test_a_number_that_was_quoted_stays_a_text(tmp_path):
    config, _ = settings.resolve({"SAGEMAKER_BASE_DIR": str(make_base(tmp_path, {"name": "1"}))})
    assert config.name == "1"


def resolved(base: Path, environ: dict[str, str] | None = None) -> Any:
    return settings.resolve({"SAGEMAKER_BASE_DIR": str(base), **(environ or {})}, (ROOT,))


def test_the_channel_is_the_data(tmp_path):
    base = make_base(tmp_path, {"data.layout": "camvid"})
    with pytest.raises(ConfigError, match=r"data\.root is empty"):
        resolved(base)
    (base / "input/data/faces").mkdir(parents=True)
    assert resolved(base)[0].data.root == str(base / "input/data/faces")  # the only one
    (base / "input/data/other").mkdir()
    with refused("several-channels", found=["faces", "other"]):
        resolved(base)
    (base / "input/data/train").mkdir()
    assert resolved(base)[0].data.root == str(base / "input/data/train")
    assert resolved(base, {"SM_CHANNEL_TRAIN": "/fsx"})[0].data.root == "/fsx"


@pytest.mark.parametrize(
    ("root", "expected"),
    [("CamVid", "{channel}/CamVid"), ("/data", "/data"), ("s3://b/data", "s3://b/data")],
)
def test_a_root_of_ones_own(tmp_path, root, expected):
    base = make_base(tmp_path, {"data.layout": "camvid", "data.root": root})
    channel = base / "input/data/train"
    channel.mkdir(parents=True)
    assert resolved(base)[0].data.root == expected.format(channel=channel)


def test_generated_scenes_say_that_the_channel_is_not_used(tmp_path):
    base = make_base(tmp_path, {})
    (base / "input/data/train").mkdir(parents=True)
    config, remarks = resolved(base)
    assert config.data.root == ""
    assert "is not used" in remarks[0]


def test_jobs_of_a_tuning_do_not_share_a_run(tmp_path):
    """They have one checkpoint prefix: without folders of their own, each would go on from
    another's checkpoint.
    """
    (make_base(tmp_path, {"_tuning_objective_metric": "val:miou_percent"}) / "checkpoints").mkdir()
    assert (
        settings.run_folder(tmp_path, {"TRAINING_JOB_NAME": "t-1"}) == tmp_path / "checkpoints/t-1"
    )
    job = {
        "TrainingJobName": "t-1",
        "CheckpointConfig": {"S3Uri": "s3://b/c/"},
        "TuningJobArn": "arn:aws:x",
    }
    assert uris_of(job) == ["s3://b/c/t-1"]


def test_the_first_cause_stays_and_a_consequence_makes_room(tmp_path):
    place = tmp_path / "output/failure"
    outcome.write_failure(f"rank 2 on algo-2: rank 2 {outcome.LOST} (closed)", [place])
    outcome.write_failure("rank 1 on algo-2: " + "x" * 3000 + " raise volume_gb", [place])
    outcome.write_failure("rank 0 on algo-1: later", [place])
    text = place.read_text()
    assert text.startswith("rank 1 on algo-2: xxx")
    assert text.endswith("raise volume_gb")
    assert len(text) <= 1024


def test_a_cause_names_the_place_of_a_crash_and_the_words_of_an_error():
    assert outcome.cause(DataError("a.png\n has 3 sizes")) == "a.png has 3 sizes"
    with pytest.raises(AttributeError) as caught:
        outcome.write_failure(None, [])  # type: ignore[arg-type]
    assert outcome.cause(caught.value).startswith("AttributeError: 'NoneType'")
    assert "(outcome.py, line" in outcome.cause(caught.value)


def test_a_job_leaves_its_model_and_what_explains_it(zygote, tmp_path):  # type: ignore[no-untyped-def]
    base = make_base(tmp_path, SETTINGS)
    (base / "checkpoints").mkdir()
    # an export takes long, and a stock image has none
    without_onnx = "import sys; sys.modules['onnx'] = None\n" + MAIN
    process = zygote.start(code=without_onnx, cwd=ROOT, SAGEMAKER_BASE_DIR=str(base))
    assert process.wait() == 0, process.output
    assert "host algo-1 (ml.g5.xlarge): ranks 0 to 0 of 1" in process.output
    assert "no model.onnx" in process.output
    assert "stopped: " not in process.output
    assert {"weights.safetensors", "model.json"} <= {
        path.name for path in (base / "model").iterdir()
    }
    assert 0 <= json.loads((base / "model/run/scores.json").read_text())["scores"]["miou"] <= 1
    assert (base / "output/data/journal.jsonl").is_file()
    assert not (base / "output/data/checkpoints").exists()
    assert not (base / "output/failure").exists()
    from segtrain.evaluation.load import load_run

    load_run(base / "model")  # what is in model.tar.gz loads by itself


@pytest.mark.parametrize("when", ["before it starts", "while it trains"])
def test_a_stop_saves_and_ends_with_0(zygote, tmp_path, when):  # type: ignore[no-untyped-def]
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    duration = {"train.duration": "100000st"} if when == "while it trains" else {}
    base = make_base(tmp_path / "ml", {**SETTINGS, **duration})
    if when == "before it starts":
        (ranks / "stop").touch()
    process = zygote.start(
        code=MAIN, cwd=ROOT, SAGEMAKER_BASE_DIR=str(base), SEGTRAIN_RANKS=str(ranks)
    )
    if when == "while it trains":
        journal, failure = base / "output/data/run/journal.jsonl", base / "output/failure"
        while not failure.exists() and not (
            journal.exists() and '"step": 2' in journal.read_text()
        ):
            time.sleep(0.1)
        (mark,) = ranks.glob("*.pid")
        os.kill(int(mark.read_text()), signal.SIGTERM)
    assert process.wait() == 0, process.output
    assert f"stopped: the state is saved in {base}" in process.output
    assert (len(list((base / "output/data/run/checkpoints").glob("*.pt"))) > 0) == (
        when == "while it trains"
    )
    assert list(ranks.glob("*.pid")) == []
    assert not (base / "output/failure").exists()


def test_a_failure_names_rank_host_and_cause(zygote, tmp_path):  # type: ignore[no-untyped-def]
    base = make_base(tmp_path, {**SETTINGS, "train.lr": 1}, "algo-2", 2)
    process = zygote.start(code=MAIN, cwd=ROOT, SAGEMAKER_BASE_DIR=str(base))
    assert process.wait() == 2
    failure = (base / "output/failure").read_text()
    assert failure.startswith("rank 0 on algo-2 (ml.g5.xlarge): ")
    assert "unknown key 'train.lr'" in failure
    assert f"error: {failure}" in process.output


def test_a_failure_on_gpus_leaves_its_cause_too(tmp_path, monkeypatch):
    """There, the process ends inside the training, which has no chance to raise its error."""
    base = make_base(tmp_path, SETTINGS, "algo-2", 2)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(base))
    monkeypatch.setattr(entry.signal, "signal", lambda *_: None)
    monkeypatch.setattr(entry, "_introduce", lambda *_: None)
    monkeypatch.setattr("segtrain.platforms.decoder.prepare", lambda folder: "")
    monkeypatch.setattr(
        "segtrain.training.rank.train",
        lambda *_, report, **__: report(DataError("torn", code="torn")),
    )
    assert entry.main() == 2
    assert (base / "output/failure").read_text() == "rank 0 on algo-2 (ml.g5.xlarge): torn"


def test_a_decoder_that_cannot_be_compiled_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("SEGTRAIN_NATIVE", raising=False)
    monkeypatch.setattr(decoder.native, "available", lambda: False)
    (tmp_path / "file").touch()
    text = decoder.prepare(tmp_path / "file")
    assert text.startswith("decoder: packages")
    assert "File exists" in text


def test_a_helping_host_ends_at_once(zygote, tmp_path):  # type: ignore[no-untyped-def]
    settings = {**SETTINGS, "sagemaker_distribution_instance_groups": ["gpu"]}
    base = make_base(
        tmp_path, settings, "algo-1", 3, instance_groups=GROUPS, current_group_name="cpu"
    )
    process = zygote.start(code=MAIN, cwd=ROOT, SAGEMAKER_BASE_DIR=str(base))
    assert process.wait() == 0
    assert "has nothing to do: algo-3, algo-2 train" in process.output


@pytest.mark.parametrize(
    ("size", "ranks", "spared"), [(64 << 20, 2, True), (1 << 30, 2, False), (64 << 20, 1, False)]
)
def test_every_rank_of_a_host_keeps_nccl_from_a_small_shm(size, ranks, spared, monkeypatch):
    monkeypatch.delenv("NCCL_SHM_DISABLE", raising=False)
    monkeypatch.setattr(entry.os.path, "isdir", lambda path: True)
    # The ranks that started earlier have filled some of it.
    monkeypatch.setattr(
        entry.shutil, "disk_usage", lambda path: SimpleNamespace(total=size, free=1 << 20)
    )
    assert entry._spare_shm(ranks) is spared
    assert ("NCCL_SHM_DISABLE" in os.environ) is spared
    os.environ.pop("NCCL_SHM_DISABLE", None)
