"""Tests that `launch.sagemaker.request` and `estimator` give the request that the command would
send.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from launch import sagemaker
from launch.core.job import ROOT
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.prepare import code_place
from launch.platforms.sagemaker.service_model import violations
from segtrain.errors import ConfigError

ROLE = "arn:aws:iam::123456789012:role/Trainer"
OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/segtrain:1"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
PLAIN = {
    "config": "configs/camvid_cpu_long.yaml",
    "settings": {
        "train": {"batch_size": 32, "duration": "80ep", "device": "cuda"},
        "parallel.procs": "auto",
    },
    "output": "s3://example-results/jobs",
    "role": ROLE,
    "region": "us-east-1",
    "data": {"train": "s3://example-data/camvid/"},
}
JOBS: dict[str, dict[str, Any]] = {
    "spot": {
        **PLAIN,
        "instances": 2,
        "type": "ml.g5.12xlarge",
        "spot": True,
        "max_run": "6h",
        "max_wait": "24h",
        "retries": 3,
        "checkpoints": "s3://example-results/checkpoints/camvid/",
        "tags": {"team": "seg"},
        "environment": {"NCCL_DEBUG": "INFO"},
        "data": {"train": {"uri": "s3://example-data/camvid/", "mode": "FastFile"}},
    },
    "smddp and fsx": {
        **PLAIN,
        "instances": 2,
        "type": "ml.p4d.24xlarge",
        "strategy": "smddp",
        "data": {"train": "fsx://fs-0123456789abcdef0/mountname/camvid"},
        "subnets": ["subnet-0abc1234"],
        "security_groups": ["sg-0abc1234"],
    },
    "groups": {
        **PLAIN,
        "groups": {
            "gpu": {"type": "ml.g5.12xlarge", "instances": 2, "train": True},
            "cpu": "ml.c5.4xlarge",
        },
        "data": {"train": {"uri": "s3://example-data/camvid/", "groups": ["gpu"]}},
    },
    "isolated": {
        **PLAIN,
        "type": "ml.p3dn.24xlarge",
        "image": OWN,
        "network_isolation": True,
        "output_kms": KEY,
        "instances": 2,
        "encrypt_traffic": True,
        "remote_debug": True,
        "profile_ms": 0,
        "warm_pool": "10m",
        "volume_gb": 225,
    },
}
# Of SDK 2.257.7: EstimatorBase, Framework and PyTorch together.
ARGUMENTS = set(
    re.findall(
        r"\w+",
        """
    base_job_name checkpoint_local_path checkpoint_s3_uri code_location compiler_config container_arguments
    container_entry_point container_log_level debugger_hook_config dependencies disable_output_compression
    disable_profiler distribution enable_infra_check enable_network_isolation enable_remote_debug
    enable_sagemaker_metrics enable_session_tag_chaining encrypt_inter_container_traffic entry_point environment
    framework_version git_config hyperparameters image_uri input_mode instance_count instance_groups
    instance_placement_config instance_type keep_alive_period_in_seconds max_retry_attempts max_run max_wait
    metric_definitions model_channel_name model_uri output_kms_key output_path profiler_config py_version
    recipe_overrides role rules sagemaker_session security_group_ids source_dir subnets tags
    tensorboard_output_config training_plan training_recipe training_repository_access_mode
    training_repository_credentials_provider_arn use_spot_instances volume_kms_key volume_size
    """,
    )
)


class Kept:
    """What a class of the SDK was called with."""

    def __init__(self, *words: Any, **named: Any) -> None:
        self.words, self.named = words, named


@pytest.fixture
def fake_sdk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An SDK of version 2 that records arguments."""
    classes = {
        "pytorch": ("PyTorch",),
        "debugger": ("ProfilerConfig",),
        "inputs": ("TrainingInput", "FileSystemInput"),
        "instance_group": ("InstanceGroup",),
    }
    top = ModuleType("sagemaker")
    monkeypatch.setitem(sys.modules, "sagemaker", top)
    for name, members in classes.items():
        module = ModuleType(f"sagemaker.{name}")
        for member in members:
            setattr(module, member, type(member, (Kept,), {}))
        setattr(top, name, module)
        monkeypatch.setitem(sys.modules, f"sagemaker.{name}", module)
    top.get_execution_role = lambda session=None: f"role of {session}"  # type: ignore[attr-defined]
    return top


def test_a_request_from_a_file_its_keys_and_a_job_is_one(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(JOBS["spot"]))
    found = [
        json.dumps(asked, sort_keys=True).replace(asked["TrainingJobName"], "NAME")
        for asked in (
            sagemaker.request(one) for one in (file, str(file), JOBS["spot"], load_job(file, {}))
        )
    ]
    assert len(set(found)) == 1
    asked = json.loads(found[0])
    assert asked["ResourceConfig"]["InstanceCount"] == 2
    assert asked["EnableManagedSpotTraining"] is True
    changed = sagemaker.request(file, ["optim.lr=1e-3"])
    assert json.loads(changed["HyperParameters"]["optim.lr"]) == 1e-3


def test_what_would_fail_is_raised_and_what_is_doubtful_is_said(capsys):
    with pytest.raises(ConfigError, match=r"spot=true without max_wait"):
        sagemaker.request({**PLAIN, "spot": True, "type": "ml.p3.16xlarge"})
    assert "retired" in capsys.readouterr().err
    with pytest.raises(
        ConfigError, match=r"the job: unknown key 'instance': did you mean 'instances'"
    ):
        sagemaker.request({"instance": 3})


def test_the_tuning_job_of_the_page_fits_the_model_of_the_service():
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    page = (
        (ROOT / "docs/sagemaker-notebook.md").read_text().partition("## Hyperparameter tuning")[2]
    )
    found: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], found)
    request = found["request"]
    assert violations(request, operation="CreateHyperParameterTuningJob") == []
    definition, tuning = request["TrainingJobDefinition"], request["HyperParameterTuningJobConfig"]
    assert json.loads(definition["StaticHyperParameters"]["config"]) == "configs/camvid_cpu.yaml"
    assert not {
        one["Name"] for one in tuning["ParameterRanges"]["ContinuousParameterRanges"]
    } & set(definition["StaticHyperParameters"])
    metrics = {one["Name"] for one in definition["AlgorithmSpecification"]["MetricDefinitions"]}
    assert tuning["HyperParameterTuningJobObjective"]["MetricName"] in metrics


@pytest.mark.parametrize("name", JOBS)
def test_an_estimator_has_the_arguments_of_the_sdk(name, fake_sdk):
    made = sagemaker.estimator(JOBS[name], dependencies=["x"])
    assert isinstance(made, fake_sdk.pytorch.PyTorch)
    assert set(made.named) <= ARGUMENTS
    assert made.named["dependencies"] == ["x"]
    source = Path(made.named["source_dir"])
    assert (source / made.named["entry_point"]).is_file()
    assert (source / "segtrain/training/loop.py").is_file()
    assert "segmentation-models-pytorch" in (source / "requirements.txt").read_text()
    assert not (
        source / "setup.py"
    ).exists()  # AWS's toolkit would take the folder for a package, and start no torchrun


def test_each_setting_is_its_argument(fake_sdk):
    spot = sagemaker.estimator(JOBS["spot"]).named
    expected = {
        "role": ROLE,
        "instance_type": "ml.g5.12xlarge",
        "instance_count": 2,
        "use_spot_instances": True,
        "max_run": 21600,
        "max_wait": 86400,
        "max_retry_attempts": 3,
        "checkpoint_s3_uri": "s3://example-results/checkpoints/camvid/",
        "checkpoint_local_path": "/opt/ml/checkpoints",
        "output_path": "s3://example-results/jobs",
        "volume_size": 100,
        "environment": {"NCCL_DEBUG": "INFO"},
        "tags": [{"Key": "team", "Value": "seg"}],
        "debugger_hook_config": False,
    }
    assert {key: spot[key] for key in expected} == expected
    assert spot["profiler_config"].named == {"system_monitor_interval_millis": 500}
    assert spot["hyperparameters"]["train.batch_size"] == 32
    assert spot["hyperparameters"]["sagemaker_torch_distributed_enabled"] is True
    assert "sagemaker_submit_directory" not in spot["hyperparameters"]  # the SDK says it
    (train,) = sagemaker.inputs(JOBS["spot"]).values()
    assert (train.words, train.named["input_mode"]) == (("s3://example-data/camvid/",), "FastFile")
    groups = sagemaker.estimator(JOBS["groups"]).named
    assert [group.words for group in groups["instance_groups"]] == [
        ("gpu", "ml.g5.12xlarge", 2),
        ("cpu", "ml.c5.4xlarge", 1),
    ]
    assert groups["hyperparameters"]["sagemaker_distribution_instance_groups"] == ["gpu"]
    (train,) = sagemaker.inputs(JOBS["smddp and fsx"]).values()
    assert train.words == ("fs-0123456789abcdef0", "FSxLustre", "/mountname/camvid", "ro")
    isolated = sagemaker.estimator(JOBS["isolated"]).named
    assert isolated["enable_network_isolation"] is True
    assert isolated["output_kms_key"] == KEY
    assert isolated["disable_profiler"] is True
    assert isolated["keep_alive_period_in_seconds"] == 600


def test_a_notebook_gives_role_and_region(fake_sdk, monkeypatch):
    monkeypatch.delenv("SAGEMAKER_ROLE", raising=False)

    class Session:
        boto_region_name = "eu-west-1"

        def __repr__(self) -> str:
            return "the session"

    job = {key: value for key, value in PLAIN.items() if key not in ("role", "region", "output")}
    made = sagemaker.estimator(job, session=Session()).named
    assert made["role"] == "role of the session"
    assert ".eu-west-1." in made["image_uri"]
    assert "output_path" not in made  # the session's own bucket


@pytest.mark.parametrize("key", ["fallbacks", "max_pending", "request"])
def test_what_an_estimator_cannot_say_is_refused(key, fake_sdk):
    value = {
        "fallbacks": ["ml.g5.24xlarge"],
        "max_pending": "1h",
        "request": {"InfraCheckConfig": {"EnableInfraCheck": True}},
    }[key]
    with pytest.raises(ConfigError, match=f"{key}=.*launch.sagemaker.request"):
        sagemaker.estimator({**PLAIN, key: value})


def test_without_version_2_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sagemaker", None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.27.0")
    with pytest.raises(ConfigError, match=r"SDK 3\.27\.0 is installed.*segtrain\[sagemaker-sdk\]"):
        sagemaker.estimator(PLAIN)


def test_importing_the_module_changes_no_path():
    code = "import sys\nbefore = list(sys.path)\nimport launch.sagemaker\nassert sys.path == before"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# In the SDK's own Python: what it sends, and the definition of a pipeline with that step.
REAL = """
import json, os, sys, tempfile
settings = tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False)  # no report of its use to AWS
settings.write("SchemaVersion: '1.0'\\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\\n")
settings.close()
os.environ |= {"SAGEMAKER_USER_CONFIG_OVERRIDE": settings.name, "SAGEMAKER_SUPPRESS_V2_WARNING": "1"}
import boto3
from sagemaker import Session, estimator
from sagemaker.fw_utils import UploadedCode
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.pipeline_context import PipelineSession
from sagemaker.workflow.steps import TrainingStep
from launch import sagemaker as ours

class Client:
    def create_training_job(self, **request):
        self.request = request
        return {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/x"}

estimator.tar_and_upload_dir = lambda *_, **__: UploadedCode(s3_prefix="s3://code/sourcedir.tar.gz", script_name="train.py")
sent = {}
for name, job in json.loads(sys.argv[1]).items():
    client = Client()
    many = dict(sagemaker_client=client, sagemaker_runtime_client=client, default_bucket="example-bucket")
    session = Session(boto3.Session("x", "x", region_name="us-east-1"), **many)
    ours.estimator(job, session=session).fit(ours.inputs(job), wait=False, job_name="NAME")
    in_pipeline = PipelineSession(boto3.Session("x", "x", region_name="us-east-1"), sagemaker_client=client, default_bucket="b")
    step = TrainingStep(name="train", step_args=ours.estimator(job, session=in_pipeline).fit(ours.inputs(job)))
    (defined,) = json.loads(Pipeline("p", steps=[step], sagemaker_session=in_pipeline).definition())["Steps"]
    sent[name] = [client.request, defined["Arguments"]]
print(json.dumps(sent))
"""


def test_the_real_sdk_sends_our_request():
    """SEGTRAIN_SDK_PYTHON: a Python with the extra `sagemaker-sdk`, which does not go together with
    newer packages.
    """
    python = os.environ.get("SEGTRAIN_SDK_PYTHON")
    if not python:
        pytest.skip("SEGTRAIN_SDK_PYTHON names no Python with the extra 'sagemaker-sdk'")
    done = subprocess.run(
        [python, "-c", REAL, json.dumps(JOBS)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for name, (sent, step) in json.loads(done.stdout.splitlines()[-1]).items():
        ours = sagemaker.request(JOBS[name])
        code = "s3://code/sourcedir.tar.gz"
        text = json.dumps(ours).replace(
            code_place(load_job(JOBS[name], {}), ours["TrainingJobName"]), code
        )
        expected = json.loads(text.replace(ours["TrainingJobName"], "NAME"))
        assert sent == expected, name
        # a step has no name of its own, and its upload has another place
        for request in (expected, step):
            request.pop("TrainingJobName", None)
            for key in ("sagemaker_submit_directory", "sagemaker_job_name"):
                request["HyperParameters"].pop(key, None)
        assert step == expected, name


def test_a_job_given_as_such_is_kept():
    job = SageMakerJob(output="s3://example-results/jobs", role=ROLE, region="us-east-1")
    assert sagemaker.request(job)["RoleArn"] == ROLE
