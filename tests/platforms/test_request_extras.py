"""Tests of keys, isolation, plans, fallback types, and the `request:` key in a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.life import hosts_of
from cloud.moto import environment
from golden_findings import check_findings

from launch.core.job import ROOT
from launch.platforms.sagemaker.cloud import connect, submit
from launch.platforms.sagemaker.images import choose
from launch.platforms.sagemaker.job import SageMakerJob, load_job
from launch.platforms.sagemaker.job_parts import Channel, Fallback, Group
from launch.platforms.sagemaker.preflight.cost import cost_ceiling
from launch.platforms.sagemaker.preflight.extras import extras
from launch.platforms.sagemaker.progress import machines
from launch.platforms.sagemaker.rehearse import channels
from launch.platforms.sagemaker.request import code_uri, create_training_job
from launch.platforms.sagemaker.service_model import violations
from segtrain.errors import ConfigError

OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/segtrain:1"
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/large-models"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
CODE = "s3://b/job-1/source/sourcedir.tar.gz"


def request(job: SageMakerJob) -> dict[str, Any]:
    return create_training_job(job, image=OWN, name="job-1", code=CODE)


def test_members_of_a_request_are_added_to_those_of_the_keys():
    """tests/platforms/test_contracts.py compares the members of the other keys with those of the
    SDK.
    """
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    plain = request(SageMakerJob())
    further = {
        "InfraCheckConfig": {"EnableInfraCheck": True},
        "OutputDataConfig": {"CompressionType": "NONE"},
    }
    asked = request(SageMakerJob(max_pending=7200, request=further))
    assert violations(asked) == []
    assert asked == {
        **plain,
        "OutputDataConfig": {**plain["OutputDataConfig"], "CompressionType": "NONE"},
        "StoppingCondition": {**plain["StoppingCondition"], "MaxPendingTimeInSeconds": 7200},
        "InfraCheckConfig": {"EnableInfraCheck": True},
    }


def test_an_isolated_container_is_brought_its_code():
    """As AWS's own SDK does it, with which tests/platforms/test_contracts.py compares the request:
    by a channel named code.
    """
    job = SageMakerJob(network_isolation=True, data=(Channel("train", "s3://b/p/"),))
    asked = request(job)
    assert code_uri(asked) == CODE  # a rehearsal puts the bundle where the channel reads it
    assert code_uri(request(SageMakerJob())) == CODE
    assert [channel["ChannelName"] for channel in channels.of_data(asked)] == ["train"]
    with pytest.raises(ConfigError, match=r"data\.code"):
        request(replace(job, data=(Channel("code", "s3://b/p/"),)))
    groups = (Group("gpu", "ml.g5.xlarge", 1, True), Group("cpu", "ml.c5.xlarge"))
    asked = request(
        replace(job, groups=groups, data=(Channel("train", "s3://b/p/", groups=("gpu",)),))
    )
    assert asked["InputDataConfig"][1]["DataSource"]["S3DataSource"]["InstanceGroupNames"] == [
        "gpu",
        "cpu",
    ]


def test_types_in_order(monkeypatch):
    pytest.importorskip("boto3", reason="the extra 'sagemaker' is not installed")
    job = SageMakerJob(
        type="ml.p4d.24xlarge",
        instances=2,
        fallbacks=(Fallback("ml.p4de.24xlarge"),),
        training_plan=PLAN,
        role="arn:aws:iam::123456789012:role/R",
    )
    asked = request(job)
    assert asked["ResourceConfig"] == {
        "VolumeSizeInGB": 100,
        "InstanceCount": 2,
        "InstancePreferences": [
            {"InstanceType": "ml.p4d.24xlarge", "TrainingPlanArns": [PLAN]},
            {"InstanceType": "ml.p4de.24xlarge"},
        ],
    }
    with CloudEndpoint() as cloud:
        for key, value in environment(cloud.url).items():
            monkeypatch.setenv(key, value)
        submit(connect(), asked)  # the strict endpoint refuses counts here and there
        assert cloud.calls[-1] == ("CreateTrainingJob", asked)
    assert len(hosts_of(asked)) == 2
    assert "sagemaker_torch_distributed_enabled" in asked["HyperParameters"]
    # the toolkit asks the machine that was taken
    assert "sagemaker_instance_type" not in asked["HyperParameters"]
    # the first, until one has been taken
    assert machines(asked["ResourceConfig"]) == [("ml.p4d.24xlarge", 2)]
    taken = {
        **asked["ResourceConfig"],
        "SelectedInstanceType": "ml.g5.48xlarge",
        "SelectedInstanceCount": 3,
    }
    assert machines(taken) == [("ml.g5.48xlarge", 3)]


def test_the_most_that_a_job_of_several_types_can_cost():
    job = SageMakerJob(type="ml.g5.12xlarge", instances=2, max_run=3600)
    dear = replace(job, type="ml.p4d.24xlarge")
    assert cost_ceiling(replace(job, fallbacks=(Fallback("ml.p4d.24xlarge"),))) == cost_ceiling(
        dear
    )
    assert cost_ceiling(replace(dear, fallbacks=(Fallback("ml.g5.12xlarge"),))) == cost_ceiling(
        dear
    )
    assert cost_ceiling(replace(dear, fallbacks=(Fallback("ml.unheard.of"),)))[0] is None


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            {"InfraCheckConfg": {"EnableInfraCheck": True}},
            ("request.InfraCheckConfg: unknown", "'InfraCheckConfig'"),
        ),
        (
            {"InfraCheckConfig": {"EnableInfraCheck": "yes"}},
            ("EnableInfraCheck='yes'", "true or false"),
        ),
        (
            {"ResourceConfig": {"SelectedInstanceCount": 3}},
            ("SelectedInstanceCount=3", "only the service sets it"),
        ),
    ],
)
def test_a_member_that_would_override_or_is_unknown_is_refused(extra, words):
    pytest.importorskip("botocore", reason="the extra 'sagemaker' is not installed")
    with pytest.raises(ConfigError) as refused:
        request(SageMakerJob(request=extra))
    assert all(word in str(refused.value) for word in words), refused.value


def test_every_member_that_the_launcher_can_send_is_guarded():
    """Whatever a job can put into the request is refused in `request:`: no member is forgotten in
    the table of keys.
    """
    job = SageMakerJob(
        data=(Channel("train", "s3://b/p/"),),
        checkpoints="s3://b/c/",
        spot=True,
        max_wait=9,
        retries=1,
        warm_pool=9,
        subnets=("s",),
        security_groups=("g",),
        tags={"a": "b"},
        environment={"A": "b"},
        training_plan=PLAN,
        max_pending=1800,
        volume_kms=KEY,
        output_kms=KEY,
        network_isolation=True,
        encrypt_traffic=True,
        remote_debug=True,
    )

    def paths(members: dict[str, Any], where: str = "") -> list[str]:
        found = []
        for key, value in members.items():
            found += (
                paths(value, f"{where}{key}.") if isinstance(value, dict) else [f"{where}{key}"]
            )
        return found

    for path in paths(request(job)):
        extra: Any = "x"
        for name in reversed(path.split(".")):
            extra = {name: extra}
        with pytest.raises(ConfigError, match=f"request.{path.split('.')[0]}"):
            request(replace(SageMakerJob(), request=extra))


def test_pipe_mode_of_a_file_is_refused():
    with pytest.raises(ConfigError, match=r"mode='Pipe'.*write FastFile"):
        load_job({"data": {"train": {"uri": "s3://b/p/", "mode": "Pipe"}}}, {})


G5, P4D = SageMakerJob(type="ml.g5.12xlarge"), SageMakerJob(type="ml.p4d.24xlarge", instances=2)
FOUND: dict[str, SageMakerJob] = {
    "key for disks of the machine's own": replace(G5, volume_kms=KEY),
    "alias for a volume": replace(G5, type="ml.c5.4xlarge", volume_kms="alias/a"),
    "isolated on a stock image": replace(G5, network_isolation=True),
    "isolated, with a tracker": (
        replace(G5, network_isolation=True, image=OWN, settings={"log.wandb": "p"})
    ),
    "plan on spot": replace(P4D, spot=True, training_plan=PLAN),
    "plan of another region": replace(P4D, region="eu-west-1", training_plan=PLAN),
    "output key of another region": replace(G5, region="eu-west-1", output_kms=KEY),
    "fallbacks on spot": replace(P4D, spot=True, fallbacks=(Fallback("ml.p4de.24xlarge"),)),
    "fallbacks and groups": (
        replace(
            P4D, groups=(Group("g", "ml.p4d.24xlarge"),), fallbacks=(Fallback("ml.p4de.24xlarge"),)
        )
    ),
    "one type twice": replace(P4D, fallbacks=(Fallback("ml.p4d.24xlarge"),)),
    "fallback without code in the image": replace(P4D, fallbacks=(Fallback("ml.p3dn.24xlarge"),)),
    "fallback of no table": replace(P4D, fallbacks=(Fallback("ml.p9.24xlarge"),)),
    "fallback without SMDDP": (
        replace(P4D, strategy="smddp", fallbacks=(Fallback("ml.g5.48xlarge"),))
    ),
    "batch smaller than a fallback's ranks": (
        replace(G5, settings={"train.batch_size": 4}, fallbacks=(Fallback("ml.g5.48xlarge"),))
    ),
    "batch that does not divide": (
        replace(G5, settings={"train.batch_size": 12}, fallbacks=(Fallback("ml.g5.48xlarge"),))
    ),
}


def test_findings_of_what_does_not_go_together():
    jobs = {
        name: list(extras(job, choose(job.training_type, job.strategy, "us-east-1", job.image)))
        for name, job in FOUND.items()
    }
    check_findings("findings/sagemaker-extras", jobs, [])


def test_a_job_without_any_of_it_is_told_nothing():
    here = SageMakerJob(
        type="ml.c5.4xlarge", region="us-east-1", training_plan=PLAN, volume_kms=KEY, output_kms=KEY
    )
    assert not list(extras(here, choose(here.training_type, here.strategy, here.region)))
    for path in sorted((ROOT / "configs/jobs").glob("sagemaker*.yaml")):
        job = load_job(path, {})
        assert not list(
            extras(job, choose(job.training_type, job.strategy, "us-east-1", job.image))
        )
