"""Tests that a rehearsal plays the very request, shows what the cloud would, and leaves no process
however it ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch import sagemaker
from launch.core.rehearse import drawn, local_config, network
from launch.core.rehearse.buckets import BucketServer
from launch.core.rehearse.cluster import Fault, RehearsalCluster, read_fault, refuse_rank
from launch.core.rehearse.process import RehearsalSpec
from launch.core.rehearse.report import Report, load
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import channels as read_channels
from launch.platforms.sagemaker.rehearse import channels, container, hosts
from launch.platforms.sagemaker.rehearse.plan import ONE_GROUP, set_stage
from launch.platforms.sagemaker.rehearse.run import _changes, rehearse
from launch.platforms.sagemaker.rehearse.sync import Sync
from launch.platforms.sagemaker.request import create_training_job
from segtrain.config import load_config
from segtrain.errors import EXIT_ERROR, ConfigError

NAME = "segtrain-2026-11-21-03-56-05-089"
CODE = f"s3://out/{NAME}/source/sourcedir.tar.gz"
JOB = Path(__file__).parents[2] / "configs/jobs/sagemaker.yaml"
NAMESPACES = network.namespaces()[0] is not None


def request_of(job: SageMakerJob) -> dict[str, Any]:
    return create_training_job(job, image="image", name=NAME, code=CODE)


def stage_of(
    job: SageMakerJob,
    hosts: int | None = None,
    procs: int | None = None,
    isolated: bool = True,
    lacking: str = "mpirun",
    **more: Any,
) -> RehearsalCluster:
    given = {"hosts": hosts, "procs": procs, "isolated": isolated, "lacking": lacking}
    return set_stage(request_of(job), settings=more, **given)


HETERO = load_job(None, {"groups": ["gpu=ml.g5.12xlarge*2:train", "cpu=ml.c5.4xlarge*3"]})


def test_hosts_are_those_of_the_request_and_a_difference_is_said():
    stage = stage_of(SageMakerJob(instances=5), hosts=3)
    assert [host.name for host in stage.hosts] == ["algo-1", "algo-2", "algo-3"]
    assert "instead of 5" in stage.said[0]
    assert not stage_of(SageMakerJob(instances=2)).said
    assert [host.name for host in stage_of(SageMakerJob(instances=2), isolated=False).hosts] == [
        "127.0.0.1",
        "127.0.0.2",
    ]


def test_a_group_lists_its_hosts_unsorted_and_rank_0_is_on_the_first_of_them():
    stage = stage_of(SageMakerJob(instances=3))
    config = hosts.described(stage.hosts[0], stage, request_of(SageMakerJob(instances=3)))[
        "resourceconfig.json"
    ]
    assert config["hosts"] == ["algo-1", "algo-2", "algo-3"]
    (group,) = config["instance_groups"]
    assert group["instance_group_name"] == config["current_group_name"] == ONE_GROUP
    assert sorted(group["hosts"]) == config["hosts"] != group["hosts"]
    assert stage.leader.name == group["hosts"][0]


def test_of_groups_one_trains_and_its_hosts_are_not_the_first():
    stage = stage_of(HETERO)
    assert [(host.name, host.group, host.trains) for host in stage.hosts] == [
        ("algo-1", "cpu", False),
        ("algo-2", "gpu", True),
        ("algo-3", "gpu", True),
    ]
    assert stage.leader.group == "gpu"
    files = hosts.described(stage.hosts[0], stage, request_of(HETERO))
    assert files["resourceconfig.json"]["current_instance_type"] == "ml.c5.4xlarge"


def test_a_group_that_helps_has_several_hosts():
    for mark, count in ((":help", 3), ("", 1)):
        stage = stage_of(
            load_job(None, {"groups": ["gpu=ml.g5.xlarge*1:train", f"cpu=ml.c5.4xlarge*5{mark}"]})
        )
        assert [host.group for host in stage.hosts] == [*["cpu"] * count, "gpu"]


def test_hyperparameters_stay_but_for_what_cannot_be_here():
    assert (
        dict(stage_of(SageMakerJob()).hyperparameters)
        == request_of(SageMakerJob())["HyperParameters"]
    )
    stage = stage_of(SageMakerJob(strategy="smddp"), procs=2, **{"train.duration": "3st"})
    assert stage.hyperparameters["sagemaker_torch_distributed_enabled"] == "true"
    assert not [key for key in stage.hyperparameters if "dataparallel" in key]
    assert stage.hyperparameters["parallel.strategy"] == '"smddp"'
    assert stage.hyperparameters["sagemaker_mpi_num_of_processes_per_host"] == "2"
    assert stage.hyperparameters["train.duration"] == '"3st"'
    assert len(stage.said) == 4
    stage = stage_of(SageMakerJob(strategy="smddp"), lacking="")
    assert stage.hyperparameters["sagemaker_distributed_dataparallel_enabled"] == "true"
    assert "sagemaker_torch_distributed_enabled" not in stage.hyperparameters


def test_plants_are_read():
    assert read_fault("spot:20") == Fault("spot", 20)
    assert read_fault("disk") == Fault("disk")
    assert read_fault("") == Fault()
    for text in ("spot", "spot:x", "disk:3", "fire:1"):
        with pytest.raises(ConfigError, match=f"--plant {text}: write fail:RANK"):
            read_fault(text)
    refuse_rank("fail:1", 2)
    refuse_rank("stop:20", 2)
    with pytest.raises(
        ConfigError, match=r"--plant fail:2: there is no rank 2: the rehearsal has 2 ranks, 0 to 1"
    ):
        refuse_rank("fail:2", 2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--plant", "fail:3", "--hosts", "3"), "no rank 3"),
        (("--hosts", "0"), "--hosts 0: at least one"),
    ],
)
def test_a_stage_without_that_rank_or_without_hosts_is_refused(flags, words, tmp_path, capsys):
    needs_the_extra()
    asked = [
        "--job",
        str(JOB),
        "--rehearse",
        "--folder",
        str(tmp_path),
        "--sample",
        str(sample(tmp_path / "sample")),
    ]
    assert sagemaker.main([*asked, *flags]) == EXIT_ERROR
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "until", "changes"),
    [
        ({"train.duration": "80ep"}, 0, {"train.duration": "12st"}),
        # a fault is planted after step 20
        ({"train.duration": "5000st"}, 20, {"train.duration": "24st"}),
        ({"train.duration": "10st"}, 0, {}),
        ({}, 0, {"train.duration": "12st"}),
    ],
)
def test_a_rehearsal_is_a_short_training(settings, until, changes):
    assert local_config.shorter(SageMakerJob(settings=settings), until) == changes


def test_settings_that_need_gpus_or_other_ranks_are_fitted():
    config = local_config.load(
        SageMakerJob(
            settings={"train.batch_size": 64, "train.accumulate": 2, "parallel.backend": "nccl"}
        )
    )
    assert local_config.fitting(config, ranks=6) == {
        "parallel.backend": "gloo",
        "train.batch_size": 60,
    }
    assert local_config.fitting(config, ranks=4) == {"parallel.backend": "gloo"}
    assert local_config.fitting(config, ranks=64)["train.batch_size"] == 128


@pytest.mark.parametrize(
    "layout", ["scenes", "camvid", "cityscapes", "ade20k", "voc", "folders", "list"]
)
def test_drawn_data_are_what_the_layout_reads(layout, tmp_path):
    """Read by segtrain itself: every mask holds classes of the data set and no unknown id."""
    settings = ["data.scene_size=[40,48]", f"data.layout={layout}"]
    if layout in ("folders", "list"):
        settings += ["data.classes=[road, car, sky]", "data.label_map={7: 0, 9: 1, 30: 2, 0: -1}"]
    if layout != "scenes":
        settings += [f"data.root={tmp_path}"]
    changes = drawn.draw(tmp_path, load_config(None, settings))
    if layout == "scenes":
        settings[1:] = [
            f"data.root={tmp_path}",
            *(f"{key}={json.dumps(value)}" for key, value in changes.items()),
        ]
    _read_drawn(load_config(None, settings))


def test_drawn_data_are_divided_as_the_job_divides_its_own(tmp_path):
    settings = [
        f"data.root={tmp_path}",
        "data.layout=folders",
        "data.images=images",
        "data.masks=masks",
    ]
    settings += [
        "data.classes=[road, car, sky]",
        "data.split_by={val: 10%, test: 5, group: 'scene_(.*)'}",
        "data.scene_size=[40,48]",
    ]
    changes = drawn.draw(tmp_path, load_config(None, settings))
    _read_drawn(
        load_config(
            None, [*settings, *(f"{key}={json.dumps(value)}" for key, value in changes.items())]
        )
    )


def _read_drawn(config: Any) -> None:
    from segtrain.data.datasets import open_dataset

    for split, least in (("train", drawn.MOST), ("val", 2)):
        dataset = open_dataset(config.data, split)
        assert len(dataset) >= least
        seen = {
            int(value)
            for index in range(len(dataset))
            for value in set(dataset.read(index)[1].ravel().tolist())
        }
        assert len(seen - {255}) >= 3
        assert max(seen - {255}) < dataset.labels.num_classes


def needs_the_extra() -> None:
    for package in ("boto3", "sagemaker_training", "sagemaker_pytorch_container"):
        pytest.importorskip(package, reason="the extra 'rehearse' is not installed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with BucketServer("127.0.0.1", tmp_path_factory.mktemp("s3")) as server:
        yield server


def sample(folder: Path, count: int = 5) -> Path:
    for index in range(count):
        (folder / f"part/{index}.txt").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"part/{index}.txt").write_text(str(index))
    return folder


def names(folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("distribution", ["FullyReplicated", "ShardedByS3Key"])
def test_channels_are_downloaded_by_each_host_that_gets_them(store, distribution, tmp_path):
    data = {
        "train": {
            "uri": f"s3://data/{distribution}/",
            "distribution": distribution,
            "groups": ["gpu"],
        }
    }
    job = replace(HETERO, data=read_channels(data, "data"))
    request, stage = request_of(job), stage_of(job)
    assert channels.upload(store, request, sample(tmp_path / "sample")) == 5
    got = {}
    for host in stage.hosts:
        base = tmp_path / "hosts" / host.name
        hosts.lay_out(base, host, stage, request)
        channels.fill(store, request, stage, host, base, None, bind=False)
        got[host.name] = names(base / "input/data")
    whole = [f"{index}.txt" for index in range(5)]
    shares = (whole[0::2], whole[1::2]) if distribution == "ShardedByS3Key" else (whole, whole)
    assert got == {"algo-1": [], "algo-2": shares[0], "algo-3": shares[1]}


def test_channels_that_are_filled_in_another_way_are_said(tmp_path):
    spec = RehearsalSpec("bundle", str(tmp_path), sample=str(tmp_path))
    said = {}
    for source in ("s3", "fast", "fsx"):
        fsx = {"fsx": "fs-0123456789abcdef0:/fsx/streets"}
        train = {"uri": "s3://b/a/", **({"mode": "FastFile"} if source == "fast" else {})}
        job = load_job(None, fsx if source == "fsx" else {"data": {"train": train}})
        _changes(job, replace(spec, request=request_of(job)), said.setdefault(source, []))
    assert [[text.split()[0] for text in remarks] for remarks in said.values()] == [
        [],
        ["FastFile"],
        ["file"],
    ]


def test_a_sample_is_divided_where_it_has_a_folder_of_each_channel(tmp_path):
    request = request_of(load_job(None, {"data": ["train=s3://b/a/", "weights=s3://b/w/"]}))
    (tmp_path / "train").mkdir()  # of CamVid: not that of the channel
    assert not channels.divided(tmp_path, request)
    (tmp_path / "weights").mkdir()
    assert channels.divided(tmp_path, request)
    assert not channels.divided(tmp_path, request_of(load_job(None, {"data": ["train=s3://b/a/"]})))


def test_weights_of_a_channel_are_asked_for(tmp_path, capsys):
    needs_the_extra()
    job = [
        "--job",
        str(JOB),
        "--data",
        "weights=s3://MY-BUCKET/w/",
        "model.init=/opt/ml/input/data/weights",
        "--rehearse",
    ]
    assert sagemaker.main([*job, "--folder", str(tmp_path / "a")]) == EXIT_ERROR
    assert (
        "a rehearsal needs these weights: --sample DIR, with DIR/train and DIR/weights"
        in capsys.readouterr().err
    )
    assert (
        sagemaker.main([*job, "--folder", str(tmp_path), "--sample", str(sample(tmp_path / "s"))])
        == EXIT_ERROR
    )
    assert "with DIR/train and DIR/weights" in capsys.readouterr().err


def test_checkpoints_go_up_and_come_back_to_every_host(store, tmp_path):
    first, second, third = (tmp_path / name for name in "abc")
    for folder in (first, second, third):
        folder.mkdir()
    with Sync(store, "s3://ckpt/run-1/", {"a": first, "b": second}) as sync:
        (first / "step-1.pt").write_text("one")
        (first / "both").write_text("a")
        (second / "both").write_text("b")
    assert sync.contested == ["both"]
    with Sync(store, "s3://ckpt/run-1/", {"c": third}) as sync:
        assert (third / "step-1.pt").read_text() == "one"
        sync.up()
    assert sync.contested == []
    # Without its slash a prefix brings the neighbor's files as well, which is why the request has
    # one.
    store.put(first / "step-1.pt", "s3://ckpt/run-10/step-1.pt")
    assert len(store.keys("s3://ckpt/run-1/")) == 2
    assert len(store.keys("s3://ckpt/run-1")) == 3


# What follows starts AWS's toolkit. The program in the place of the training is a few lines, so
# that it takes seconds. At the step HELD it waits for the planted end, however late that comes.
PROGRAM = """
import json, os, pathlib, signal, socket, sys, time
base = pathlib.Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
config = json.loads((base / "input/config/resourceconfig.json").read_text())
ranks = pathlib.Path(os.environ["SEGTRAIN_RANKS"])
(ranks / f"{os.getpid()}.pid").write_text(f"{os.getpid()}\\n")
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
def minds():
    return MINDS and (told or (ranks / "stop").exists())  # the flag: it was told before this program began
state = base / "checkpoints/state.json"
steps = json.loads(state.read_text()) if state.is_file() else []
began = len(steps)
while len(steps) < 6 and not (len(steps) >= HELD and minds()):
    steps.append([len(steps) + 1, config["current_host"], os.getpid()])
    print(f"epoch 1.00/6  step {len(steps)}/6  loss {1 / len(steps):.4f}")
    while FULL:
        steps.append([])
        (base / f"checkpoints/{len(steps)}").write_bytes(bytes(1 << 16))
        time.sleep(0.01)
    while began < HELD == len(steps) and not minds():
        time.sleep(0.05)
if config["current_host"] == config["instance_groups"][0]["hosts"][0]:
    state.write_text(json.dumps(steps))
    data = sorted(path.name for path in (base / "input/data/train").rglob("*") if path.is_file())
    about = {"data": data, "host": socket.gethostname(), "type": os.environ["SM_CURRENT_INSTANCE_TYPE"]}
    (base / "model/about.json").write_text(json.dumps(about))
sys.exit(CODE)
"""


def bundle(folder: Path, **values: Any) -> Path:
    text = "".join(
        f"{key} = {value!r}\n"
        for key, value in {"MINDS": True, "CODE": 0, "FULL": False, "HELD": 0, **values}.items()
    )
    path = folder / "bundle.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        body = (text + PROGRAM).encode()
        entry = tarfile.TarInfo("train.py")
        entry.size = len(body)
        tar.addfile(entry, io.BytesIO(body))
    return path


def play(
    tmp_path: Path,
    *,
    plant: str = "",
    namespaces: bool = True,
    hosts: int = 2,
    grace_s: float = 300,
    **program: Any,
) -> Report:
    needs_the_extra()
    (tmp_path / "light").mkdir(exist_ok=True)
    # The toolkit imports torch to ask for its version, for seconds.
    (tmp_path / "light/torch.py").write_text("__version__ = '0'")
    job = load_job(
        None,
        {
            "environment": [f"PYTHONPATH={tmp_path}/light"],
            "strategy": "single",
            "instances": 2,
            "data": ["s3://data/streets/"],
            "checkpoints": "s3://ckpt/run/",
            "output": "s3://out/seg",
            "spot": plant.startswith("spot"),
            "max_wait": "48h",
            "type": "ml.g5.xlarge",
        },
    )
    files = {
        "bundle": bundle(tmp_path, **program),
        "folder": tmp_path / "stage",
        "sample": sample(tmp_path / "sample"),
    }
    paths = {key: str(path) for key, path in files.items()}
    spec = RehearsalSpec(**paths, hosts=hosts, plant=plant, namespaces=namespaces, grace_s=grace_s)
    return rehearse(job, request_of(job), spec)


def statuses(report: Report) -> list[str]:
    return [item.status for item in report.transitions]


def about(report: Report) -> dict[str, Any]:
    (path,) = Path(report.folder).glob("hosts/*/model/about.json")
    return dict(json.loads(path.read_text()))


def test_a_spot_interruption_goes_on_from_what_s3_has(tmp_path):
    report = play(tmp_path, plant="spot:2", HELD=2)
    begun = ["Starting", "Downloading", "Training"]
    assert statuses(report) == [*begun, "Interrupted", *begun, "Uploading", "Completed"]
    assert report.exit_code == 0
    assert [host.code for host in report.hosts] == [0, 0]
    (state,) = Path(report.folder).glob("hosts/*[2]/checkpoints/state.json")
    steps = json.loads(state.read_text())
    assert [step for step, _, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert len({process for _, _, process in steps}) <= 2
    logs = [path.read_text() for path in sorted(Path(report.folder).glob("logs/*.log"))]
    assert all("==== start 2 ====" in text for text in logs)
    assert "step 1/6" not in logs[1].split("==== start 2 ====")[1]  # it did not begin anew
    assert about(report)["data"] == [f"{index}.txt" for index in range(5)]
    assert about(report)["type"] == "ml.g5.xlarge"
    assert report.metrics["train:loss"][1] == pytest.approx(1 / 6, abs=1e-4)
    assert report.first_step_s is not None
    assert any("metric val:miou_percent: no line" in remark for remark in report.remarks)
    assert not any("had to be killed" in remark for remark in report.remarks)
    assert [len(host.codes) for host in report.hosts] == [2, 2]  # both starts of each container
    assert load(Path(report.folder, "report.json")) == report
    if NAMESPACES:
        assert about(report)["host"] == "algo-2"


def test_without_namespaces_a_failed_host_fails_the_job(tmp_path):
    report = play(tmp_path, namespaces=False, CODE=3)
    assert any("no namespaces" in remark for remark in report.remarks)
    assert [host.name for host in report.hosts] == ["127.0.0.1", "127.0.0.2"]
    assert report.status == "Failed"
    assert report.exit_code == 1
    assert report.failure_reason.startswith("AlgorithmError: ExecuteUserScriptError:\nExitCode 3")
    assert report.failure_reason.endswith(", exit code: 1")  # the toolkit keeps it to itself


@pytest.mark.skipif(not NAMESPACES, reason="a small disk needs a mount of its own")
def test_a_full_disk_is_not_taken_for_success(tmp_path):
    """AWS's toolkit ends with 0 when it cannot write the cause: then the job is Completed, and the
    report says what that is worth.
    """
    report = play(tmp_path, plant="disk", hosts=1, FULL=True)
    noticed = any(
        "algo-1 ended with code 0 although it left a failure file" in remark
        for remark in report.remarks
    )
    assert noticed if report.status == "Completed" else report.status == "Failed"
    assert "about.json" not in report.model
    assert "No space left on device" in (tmp_path / "stage/logs/algo-1.log").read_text()
    with pytest.raises(ConfigError, match="--plant disk"):
        play(tmp_path, plant="disk", namespaces=False)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "smddp"])
def test_the_training_itself_on_two_hosts(strategy, tmp_path):
    """AWS's toolkit starts torchrun, or mpirun for SMDDP, which starts the ranks; rank 0 leaves a
    model on its host.
    """
    needs_the_extra()
    if strategy == "smddp" and (lacking := container.missing_for_mpirun(isolated=True)):
        pytest.skip(f"a start by mpirun needs {lacking}")
    from launch.platforms.sagemaker.bundle import build

    settings = [
        "data.scene_size=[40,48]",
        "data.crop=[32,32]",
        "train.batch_size=7",
        "train.duration=3st",
        "train.progressive=[]",
        "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
        "log.every=1",
        "optim.name=sgd",
    ]
    flags = {
        "instances": 2,
        "fsx": "fs-0123456789abcdef0:/fsx/streets",
        "strategy": strategy,
        "checkpoints": "s3://ckpt/run/",
    }
    job = load_job(None, {**flags, "type": "ml.p4d.24xlarge", "output": "s3://out"}, settings)
    build(job, tmp_path / "code.tar.gz")
    report = rehearse(
        job, request_of(job), RehearsalSpec(str(tmp_path / "code.tar.gz"), str(tmp_path / "stage"))
    )
    assert report.status == "Completed", report
    assert "train.batch_size=6 instead of 7" in report.remarks
    assert "weights.safetensors" in report.model
    assert report.metrics["train:loss"][0] == report.metrics["train:lr"][0] == 3
    log = next((tmp_path / "stage/logs").glob("*2.log")).read_text()
    assert f"strategy {strategy}" in log
    assert f"ranks 0 to 0 of 2 by {'mpi' if strategy == 'smddp' else 'torchrun'}" in log


# A launcher in a process of its own. Its containers have an entry point that needs neither toolkit
# nor torch, and never ends.
LAUNCHER = """
import json, sys
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.rehearse.run import _changes, rehearse
from launch.core.rehearse.process import RehearsalSpec
folder, namespaces, request = sys.argv[1], sys.argv[2] == "True", json.loads(sys.argv[3])
spec = RehearsalSpec(f"{folder}/bundle.tar.gz", f"{folder}/stage", namespaces=namespaces)
rehearse(SageMakerJob(), request, spec, lambda text: print(text, flush=True))
"""
ENDLESS = "(setsid sleep 100000 &) ; echo 'entrypoint: ready'; sleep 100000"


def of_the_test(word: str) -> set[int]:
    """The processes that have this word in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("signals", "namespaces"),
    [
        pytest.param((signal.SIGKILL, "group"), False, id="its whole group is killed"),
        pytest.param((signal.SIGTERM,), True, id="it is ended"),
    ],
)
def test_a_launcher_that_goes_leaves_no_process(tmp_path, signals, namespaces):
    needs_the_extra()
    if namespaces and not NAMESPACES:
        pytest.skip("the kernel gives no namespaces")
    word = f"SEGTRAIN_TEST={tmp_path.name}-{os.getpid()}"
    request = request_of(SageMakerJob(instances=2))
    request["AlgorithmSpecification"] |= {
        "ContainerEntrypoint": ["bash", "-c", ENDLESS],
        "ContainerArguments": [],
    }
    request["Environment"] = dict([word.split("=")])
    bundle(tmp_path)
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, tmp_path, str(namespaces), json.dumps(request)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **dict([word.split("=")]), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    try:
        heard = []
        for line in launcher.stdout:
            heard.append(line)
            if sum("entrypoint: ready" in one for one in heard) == 2:
                break
        # the launcher, the play, two hosts with their processes
        assert len(of_the_test(word)) > 4, "".join(heard)
        (os.killpg if "group" in signals else os.kill)(launcher.pid, signals[0])
        rest = launcher.stdout.read()  # to its end: then nobody of them is left who could write
        code = launcher.wait()
    finally:
        launcher.kill()
        launcher.stdout.close()
    # the last one is on its way out; where one stays, this test never ends
    while of_the_test(word):
        time.sleep(0.05)
    assert code == (-signals[0] if signals[0] == signal.SIGKILL else 128 + signals[0])
    assert f"{tmp_path}/stage holds" in rest
    assert " MB (logs and files of each host): rm -r" in rest
    assert not list(tmp_path.glob("segtrain-tmp-*"))  # their temporary files are gone
