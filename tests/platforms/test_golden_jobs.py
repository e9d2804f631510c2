"""Tests of whole dry runs (requests, scripts, findings, and costs of jobs with most of their keys),
and of the help of each command.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path

import golden
import pytest
import slurm_mistakes

from launch import cluster, fsx, lustre, ray, sagemaker, slurm, vertex
from launch.core import native
from launch.core.job import ROOT
from launch.platforms.parallelcluster import schema
from launch.platforms.sagemaker import images
from launch.platforms.sagemaker import prepare as sagemaker_prepare
from launch.platforms.slurm.preflight.online import rules
from launch.platforms.slurm.preflight.submit_host import SubmitHost, flags
from launch.platforms.slurm.preflight.training import offline
from launch.platforms.vertex import prepare as vertex_prepare

pytest.importorskip("yaml")
ROLE = "arn:aws:iam::123456789012:role/service-role/Trainer"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
CAMVID = "--config configs/camvid_cpu.yaml"

SAGEMAKER = {
    "no-flags": "",
    "fsx-spot-smddp": f"{CAMVID} --name crowd --instances 3 --type ml.p4d.24xlarge "
    "--strategy smddp --fsx fs-0123456789abcdef0:/fsx/camvid --data-gb 37.5 "
    f"--output s3://results-7/jobs/ --checkpoints s3://results-7/ck --role {ROLE} "
    "--region eu-west-1 --spot --max-run 7h --max-wait 19h --retries 4 --volume-gb 130 "
    "--subnets subnet-0abc1234 --security-groups sg-0abc1234,sg-0abc1235 --tag team=seg "
    "--tag 'cost center=17' --env NCCL_DEBUG=INFO --env 'A=b c' --profile-ms 1000 --price 31.5 "
    f"--volume-kms {KEY} --output-kms alias/mine --encrypt-traffic --remote-debug "
    "--request InfraCheckConfig.EnableInfraCheck=true train.batch_size=48 optim.lr=0.03 "
    "data.crop=[96,128] train.compile=true data.train_split=train",
    "groups": f"{CAMVID} --group gpu=ml.g5.12xlarge*2:train --group cpu=ml.c5.4xlarge*3:help "
    "--helpers-join 7m --helpers-required --data s3://example-data/camvid/ --data-gb 2 "
    f"--output s3://results-7/jobs --checkpoints s3://results-7/ck/ --role {ROLE} "
    "--region us-west-2 --max-run 90m data.helpers=ray train.batch_size=24",
    "fallbacks": f"{CAMVID} --instances 2 --type ml.g5.48xlarge --fallback ml.g5.12xlarge*5 "
    "--fallback ml.g6.12xlarge --max-pending 45m --network-isolation --mode FastFile "
    "--data s3://example-data/camvid --data more=s3://example-data/more/ --role Trainer "
    "--output s3://results-7/jobs --region us-east-1 --subnets subnet-0abc1234 "
    "--security-groups sg-0abc1234 train.batch_size=33 data.workers=99",
    "warm-pool": f"{CAMVID} --instances 2 --type ml.p3.16xlarge --strategy fsdp --warm-pool 20m "
    f"--training-plan arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine "
    f"--data s3://example-data/camvid/ --data-gb 900 --output s3://results-7/x --role {ROLE} "
    "--retries 2 --max-run 6d train.precision=bf16 optim.name=sgd",
    "no-job": "--job /nowhere/job.yaml",
    "dp": "--strategy dp --instances 2 --type ml.c5.4xlarge",
    "errors": "--config configs/nowhere.yaml --type ml.g5.12xlage --output runs --region useast1 "
    "--env SM_HOSTS=1 --tag aws:a=b --spot --warm-pool 2h --retries 31",
}
VERTEX = {
    "no-flags": "",
    "dp": "--strategy dp --hosts 2 --machine g2-standard-24",
    "spot": f"{CAMVID} --name 'My Street_7' --project street-scenes --region europe-west4 "
    "--machine n1-standard-32 --accelerator NVIDIA_TESLA_T4:4 --hosts 3 --scheduling spot "
    "--data gs://street-data/camvid --output gs://street-results-eu/jobs/ "
    "--checkpoints gs://street-results-eu/run-7 --staging gs://street-code/x --max-run 7h "
    "--disk-gb 170 --disk-type pd-standard --label team=seg --env NCCL_DEBUG=INFO "
    "--service-account trainer@street-scenes.iam.gserviceaccount.com --web-access "
    "--network projects/123456789012/global/networks/default --reserved-ip-range one "
    "--reserved-ip-range two --nfs scans=10.0.0.2:/scans "
    "--tensorboard projects/street-scenes/locations/europe-west4/tensorboards/42 "
    "--kms projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k "
    "train.batch_size=25 optim.lr=0.03 data.crop=[96,128]",
    "flex-start": f"{CAMVID} --project street-scenes --machine a3-highgpu-8g --hosts 2 "
    "--scheduling flex-start --max-wait 5h --psc-attachment mine --experiment streets "
    "--experiment-run first-7 --service-account trainer@street-scenes.iam.gserviceaccount.com "
    "--restart-all --data gs://street-data/camvid train.batch_size=16 train.precision=bf16",
    "own-image": f"{CAMVID} --project street-scenes --machine n2-standard-16 --start image "
    "--image us-central1-docker.pkg.dev/street-scenes/images/own:1 --hosts 2 --disable-retries "
    "--persistent-resource cluster-1 --lustre fast=10.0.0.3:/lfs,projects/p/locations/z/i/n "
    "--data /mnt/lustre/fast/camvid --network projects/123456789012/global/networks/default "
    "--reservation projects/p/zones/us-central1-a/reservations/r train.batch_size=3 "
    "parallel.procs=2",
}
SLURM = {
    "no-flags": "",
    "dp": "--strategy dp --nodes 2 --gpus 2 --procs 1 --partition gpu --output /shared/runs "
    "--python /opt/py/bin/python",
    "array": f"{CAMVID} --name crowd --partition gpu --account vision --qos long --nodes 2 "
    "--gpus h100:4 --cpus 3 --memory 40G --bind task --constraint 'h100&nvme' "
    "--reservation course --nodelist n1,n2 --exclude n3 --exclusive --notice 7m --max-run 26h "
    "--most-stops 5 --spot 6s --data '/shared/my data' --output /shared/runs --interface ib0 "
    "--efa --setup 'module load cuda' --setup 'ulimit -l unlimited' --python /opt/py/bin/python "
    "--array 'optim.lr=0.1 train.seed=1' --array 'optim.lr=0.2 data.crop=[64,96]' --at-once 1 "
    "--after afterany:4711 --sbatch=--mail-type=END '--sbatch=--comment=a \"b\" c' "
    "--env 'A=$HOME/\"x\"' --env COST=5$ --env PYTHONPATH=/opt/mine train.batch_size=25",
    "torchrun": "--partition cpu --nodes 2 --procs 3 --cpus 2 --start node --seeds 7,11,13 "
    "--output /shared/runs --python /opt/py/bin/python --memory 0 train.batch_size=12 "
    "model.arch=fpn model.encoder_weights=imagenet",
    "interactive": "--interactive --partition gpu --gpus 2 --bind task --setup x --after 12 "
    "--output /shared/runs --python /opt/py/bin/python --notice 130 train.batch_size=6",
}


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop without an account, at a fixed time."""
    prefixes = ("AWS_", "SAGEMAKER_", "GOOGLE_", "CLOUD", "SLURM_", "SBATCH_", "SALLOC_", "RAY_")
    for name in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(name)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Clock:
            return cls(2026, 11, 21, 3, 56, 5, 89000, timezone.utc)

    class Calendar(date):
        @classmethod
        def today(cls) -> Calendar:
            return cls(2026, 11, 21)

    monkeypatch.setattr(sagemaker_prepare, "datetime", Clock)
    monkeypatch.setattr(vertex_prepare, "datetime", Clock)
    monkeypatch.setattr(images, "date", Calendar)
    monkeypatch.setattr(native, "carried", lambda: ({}, ""))  # whether or not it is built here
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(ROOT)


def dry_run(
    name: str, main: Callable[[list[str]], int], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare stdout and stderr of a dry run with a recorded file."""
    code = main([*shlex.split(words), "--dry-run"])
    printed = capsys.readouterr()
    text = printed.out
    if text.startswith("{"):
        request = json.loads(text)
        pools = request.get("jobSpec", {}).get("workerPoolSpecs", [])
        for part in (request.get("AlgorithmSpecification", {}), *pools):
            container = part.get("containerSpec", part)
            for key in {"ContainerArguments", "command"} & set(container):
                container[key] = f"({key})"  # a whole script
        text = json.dumps(request, indent=1)
    masks = {
        re.escape(sys.executable): "PYTHON",
        str(ROOT): "REPOSITORY",
        r"/(slurm|\w+-array)/[0-9a-f]{8}\b": r"/\1/HASH",
    }
    text = golden.masked(f"{printed.err}exit code {code}\n\n{text}", masks)
    golden.check(f"dry-runs/{name}.txt", text)


@pytest.mark.parametrize("name", SAGEMAKER)
def test_dry_runs_of_sagemaker(name, capsys):
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    dry_run(f"sagemaker-{name}", sagemaker.main, SAGEMAKER[name], capsys)


@pytest.mark.parametrize("name", VERTEX)
def test_dry_runs_of_vertex(name, capsys):
    dry_run(f"vertex-{name}", vertex.main, VERTEX[name], capsys)


@pytest.mark.parametrize("name", SLURM)
def test_dry_runs_of_slurm(name, capsys, monkeypatch):
    here = SubmitHost(Path("/workspace"), {}, {})

    def online(job: slurm.SlurmJob, **_: bool) -> list[slurm.Finding]:
        return [*offline(job), *flags(job), *rules(job, slurm_mistakes.cluster("plain"), here)]

    monkeypatch.setattr(slurm, "online", online)
    dry_run(f"slurm-{name}", slurm.main, SLURM[name], capsys)


OTHERS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "fsx": (
        fsx.main,
        "--data s3://example-data/camvid/ --subnet subnet-0abc1234 "
        "--security-groups sg-0abc1234,sg-0abc1235 --gb 4800 --throughput 250 --dry-run",
    ),
    "fsx-scratch": (
        fsx.main,
        "--data s3://example-data/x --subnet subnet-0abc1234 --security-groups sg-0abc1234 "
        "--scratch --price 0.21 --gb 2400 --dry-run",
    ),
    "cluster-research": (cluster.main, "configs/clusters/research.yaml"),
    "cluster-block": (cluster.main, "configs/clusters/block.yaml"),
    "cluster-cpu": (cluster.main, "configs/clusters/cpu.yaml"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_file_systems_and_clusters(name, capsys, monkeypatch):
    monkeypatch.setattr(schema, "python_of", lambda program: None)
    main, words = OTHERS[name]
    code = main(shlex.split(words))
    printed = capsys.readouterr()
    golden.check(f"dry-runs/{name}.txt", f"{printed.err}exit code {code}\n\n{printed.out}")


@pytest.mark.parametrize(
    ("verb", "days", "report"), [("export", 0, "s3://b/reports/"), ("release", 30, None)]
)
def test_tasks_of_lustre(verb, days, report):
    request = lustre.task_request(verb, "fs-0abc1234", ["/runs/", "/", "a/b"], report, days)
    golden.check(f"dry-runs/lustre-{verb}.txt", golden.data(request))


HELPS = {
    "sagemaker": sagemaker.main,
    "vertex": vertex.main,
    "slurm": slurm.main,
    "ray": ray.main,
    "fsx": fsx.main,
    "lustre": lustre.main,
    "cluster": cluster.main,
}


@pytest.mark.parametrize("name", HELPS)
def test_helps(name, capsys):
    with pytest.raises(SystemExit):
        HELPS[name](["--help"], f"launch {name}")
    golden.check(f"helps/{name}.txt", capsys.readouterr().out)


REFUSED = {
    "sagemaker": [
        "--max-run 3x",
        "--max-run -5",
        "--instances two",
        "--instances 1.5",
        "--data-gb much",
        "--data-gb inf",
        "--price nan",
        "--group gpu",
        "--group a=ml.c5.xlarge*0 --instances 2",
        "--group a=x --group a=y",
        "--fallback ml.g5.xlarge*b",
        "--request A",
        "--request A=1 --request A.B=2",
        "--strategy dpp",
        "--mode Pipe",
        "--mode Fast",
        "--data x://y",
        "--data train=s3://a/ --data s3://b/",
        "--data s3://a/ --fsx fs-0abc1234:/fsx/a",
        "--fsx fsx",
        "--env A",
        "--env =1",
        "--env A=1 --env A=2",
        "--attach a --instances 2",
        "--stop a train.steps=3",
        "--update a",
        "--dry-run --rehearse",
        "--plant fail:1",
        "train.steps",
        "instances=3",
        "parallel.strategy=fsdp",
    ],
    "vertex": [
        "--accelerator '4 x T4'",
        "--accelerator NVIDIA_L4:0",
        "--network default",
        "--service-account me",
        "--disk-type ssd",
        "--scheduling cheap",
        "--hosts 0",
        "--nfs 10.0.0.2:/x",
        "--lustre d=10.0.0.3",
        "--start train.py",
        "--disk-gb big",
        "--max-wait 1w",
        "--label team",
        "--stop a --hosts 3",
        "--attach projects/p/locations/us-east1/customJobs/7 --region us-west1",
    ],
    "slurm": [
        "--nodes 0",
        "--gpus many",
        "--procs -1",
        "--memory 64",
        "--bind gpu",
        "--name a/b",
        "--after yesterday",
        "--seeds 1,x",
        "--seeds 1,2 --at-once 0",
        "--seeds 1,1",
        "--array seed",
        '--array "\'a"',
        "--array 'train.seed=1 train.seed=2'",
        "--array train.seed=1 --seeds 3",
        "--array train.seed=1 --array train.seed=1",
        "--interactive --seeds 1,2",
        "--start node --bind task --gpus 2",
        "--output s3://a/b",
        "--output 'a\"b'",
        "--partition 'a\nb'",
        "--stop x",
        "out=a",
    ],
    "ray": [
        "--workers 0",
        "--elastic 4:1",
        "--elastic 2",
        "--workers 2 --elastic 1:4",
        "--strategy smddp",
        "--grace soon",
        "configs/nowhere.yaml",
    ],
    "fsx": [
        "--data x --subnet a --security-groups b",
        "--data s3://a --subnet a --security-groups b --gb 1300",
        "--data s3://a --subnet a --security-groups b --throughput 300",
        "--data s3://a --subnet a --security-groups b --price -1",
        "--data s3://a --subnet subnet-0abc1234 --security-groups sg-0abc1234 --region x",
    ],
    "lustre": ["export fs-1 a --report x", "export fs-1 a --days 3", "release fs-1 a --days -1"],
    "cluster": ["/nowhere/recipe.yaml", "configs/jobs/slurm.yaml"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name, capsys):
    said = []
    for words in REFUSED[name]:
        try:
            code = HELPS[name](shlex.split(words), f"launch {name}")
        except SystemExit as end:
            code = end.code
        last = capsys.readouterr().err.rstrip("\n").rpartition("\nlaunch ")[2]
        said.append(f"{words!r}: exit code {code}\n{last}\n")
    golden.check(f"refusals/{name}.txt", "\n".join(said).replace(str(ROOT), "REPOSITORY"))


@pytest.mark.parametrize("name", ["sagemaker", "vertex", "slurm"])
def test_flags_of_other_tools(name, capsys):
    parser = importlib.import_module(f"launch.platforms.{name}.arguments").build_parser("launch")
    said = []
    for flag in [*parser._called_here, "--nothing"]:
        with pytest.raises(SystemExit):
            parser.parse_intermixed_args([flag, "5"])
        said.append(capsys.readouterr().err.rstrip("\n").rpartition("\n")[2])
    golden.check(f"refusals/{name}-flags.txt", "\n".join(said))
