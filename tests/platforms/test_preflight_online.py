"""Tests of the look at the account: it finds what a job lacks there, is quiet about a sound one,
and never fails for a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cloud.endpoint import CloudEndpoint
from cloud.moto import environment, moto_server
from cloud.policies import Policies
from cloud.samples import training_job
from golden_findings import check_findings

from launch.core.findings import Finding
from launch.platforms.sagemaker.cloud import AwsClients, _trusts, trusts
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.job_parts import Channel
from launch.platforms.sagemaker.preflight import rights
from launch.platforms.sagemaker.preflight.online import online
from launch.platforms.sagemaker.preflight.security import admitted, permits
from launch.platforms.sagemaker.request import create_training_job

ROLE = "arn:aws:iam::123456789012:role/Trainer"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
TRUST: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}
USAGE = "ml.g5.12xlarge for training job usage"


@dataclass
class Account:
    """An account in which ``job`` would run, and what a mistake changes."""

    clients: AwsClients
    cloud: CloudEndpoint
    job: SageMakerJob
    ids: dict[str, str] = field(default_factory=dict)

    def look(self, **changes: Any) -> list[Finding]:
        job = replace(self.job, **changes)
        request = create_training_job(
            job, image=job.image, name="job-1", code="s3://results/sourcedir.tar.gz"
        )
        return online(job, request, self.clients)

    def fsx(self, **changes: Any) -> None:
        self.cloud.file_systems[0].update(changes)

    def with_fsx(self, path: str = "/fsx/camvid") -> None:
        system = Channel("train", file_system="fs-0123456789abcdef0", path=path)
        self.job = replace(self.job, data=(system,))

    def with_vpc(self, subnet: str = "subnet", group: str = "group") -> None:
        if not self.ids:
            build_network(self)
        self.job = replace(
            self.job, subnets=(self.ids[subnet],), security_groups=(self.ids[group],)
        )


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    moto = moto_server()
    with CloudEndpoint() as cloud:
        for key, value in environment(cloud.url, moto).items():
            monkeypatch.setenv(key, value)
        clients = AwsClients("us-east-1")
        clients.iam.create_role(RoleName="Trainer", AssumeRolePolicyDocument=json.dumps(TRUST))
        for bucket in ("data", "results"):
            clients.s3.create_bucket(Bucket=f"example-{bucket}")
        clients.s3.put_object(Bucket="example-data", Key="camvid/train/0.png", Body=b"x" * 1000)
        clients.ecr.create_repository(repositoryName="mine")
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "layers": [],
        }
        clients.ecr.put_image(
            repositoryName="mine", imageManifest=json.dumps(manifest), imageTag="1"
        )
        cloud.quotas = [
            {"QuotaName": USAGE, "Value": 4.0},
            {"QuotaName": "Longest run time for a training job", "Value": 432000.0},
        ]
        job = SageMakerJob(
            type="ml.g5.12xlarge",
            instances=2,
            role=ROLE,
            region="us-east-1",
            image=IMAGE,
            output="s3://example-results/jobs",
            checkpoints="s3://example-results/checkpoints/",
            data=(Channel("train", "s3://example-data/camvid/"),),
        )
        yield Account(clients, cloud, job)


def build_network(account: Account, vpc: str = "") -> None:
    """A VPC with a subnet, a group that lets itself in, NAT, an S3 endpoint, and a file system."""
    ec2, ids = account.clients.ec2, account.ids
    ids["vpc"] = vpc or ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    net = "10.2" if vpc else "10.0"
    for name, zone, cidr in (
        ("subnet", "a", f"{net}.0.0/24"),
        ("small", "a", f"{net}.1.0/28"),
        ("other", "b", f"{net}.2.0/24"),
    ):
        made = ec2.create_subnet(
            VpcId=ids["vpc"], CidrBlock=cidr, AvailabilityZone=f"us-east-1{zone}"
        )
        ids[name] = made["Subnet"]["SubnetId"]
    for name in ("group", "closed"):
        ids[name] = ec2.create_security_group(GroupName=name, Description=name, VpcId=ids["vpc"])[
            "GroupId"
        ]
    itself = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": ids["group"]}]}
    ec2.authorize_security_group_ingress(GroupId=ids["group"], IpPermissions=[itself])
    [table] = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [ids["vpc"]]}])[
        "RouteTables"
    ]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=ids["subnet"], AllocationId=address)["NatGateway"][
        "NatGatewayId"
    ]
    ids["table"] = table["RouteTableId"]
    ec2.create_route(RouteTableId=ids["table"], DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    made = ec2.create_vpc_endpoint(
        VpcId=ids["vpc"],
        ServiceName="com.amazonaws.us-east-1.s3",
        RouteTableIds=[ids["table"]],
        VpcEndpointType="Gateway",
    )
    ids["endpoint"] = made["VpcEndpoint"]["VpcEndpointId"]
    card = ec2.create_network_interface(SubnetId=ids["subnet"], Groups=[ids["group"]])[
        "NetworkInterface"
    ]
    account.cloud.file_systems = [
        {
            "FileSystemId": "fs-0123456789abcdef0",
            "FileSystemType": "LUSTRE",
            "Lifecycle": "AVAILABLE",
            "VpcId": ids["vpc"],
            "SubnetIds": [ids["subnet"]],
            "NetworkInterfaceIds": [card["NetworkInterfaceId"]],
            "LustreConfiguration": {"MountName": "fsx"},
        }
    ]


def loud(findings: list[Finding]) -> list[str]:
    return [f"{finding.level} {finding.code}" for finding in findings if finding.level != "note"]


def test_a_sound_job_is_let_through(account):
    assert loud(account.look()) == []
    account.with_vpc()
    account.with_fsx()
    assert loud(account.look()) == []


def answered(account: Account) -> list[Finding]:
    """Without what the stand-in for AWS cannot answer: simulated policies."""
    return [finding for finding in account.look() if "ParserError" not in finding.message]


def no_nat(account: Account) -> None:
    account.clients.ec2.delete_route(
        RouteTableId=account.ids["table"], DestinationCidrBlock="0.0.0.0/0"
    )


def no_way(account: Account) -> None:
    no_nat(account)
    account.clients.ec2.delete_vpc_endpoints(VpcEndpointIds=[account.ids["endpoint"]])


def no_trust(account: Account) -> None:
    policy = json.dumps(TRUST).replace("sagemaker.", "ec2.")
    account.clients.iam.update_assume_role_policy(RoleName="Trainer", PolicyDocument=policy)


def far_bucket(account: Account) -> None:
    place = {"LocationConstraint": "eu-west-1"}
    account.clients.s3.create_bucket(Bucket="example-far", CreateBucketConfiguration=place)
    account.job = replace(account.job, output="s3://example-far/jobs")


def other_vpc(account: Account) -> None:
    ec2 = account.clients.ec2
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    account.ids["foreign"] = ec2.create_security_group(GroupName="x", Description="x", VpcId=vpc)[
        "GroupId"
    ]
    account.with_vpc(group="foreign")


def far_zone(account: Account) -> None:
    made = account.clients.ec2.create_subnet(
        VpcId=account.ids["vpc"], CidrBlock="10.0.3.0/24", AvailabilityZone="us-east-1e"
    )
    account.ids["far"] = made["Subnet"]["SubnetId"]
    account.with_vpc("far")


def few_addresses(account: Account) -> None:
    account.with_vpc("small")
    account.job = replace(account.job, instances=3)


def closed_ports(account: Account) -> None:
    ec2 = account.clients.ec2
    card = ec2.create_network_interface(
        SubnetId=account.ids["subnet"], Groups=[account.ids["closed"]]
    )
    account.fsx(NetworkInterfaceIds=[card["NetworkInterface"]["NetworkInterfaceId"]])


def job(**changes: Any) -> Callable[[Account], None]:
    def change(account: Account) -> None:
        account.job = replace(account.job, **changes)

    return change


def quota(value: float) -> Callable[[Account], None]:
    return lambda account: account.cloud.quotas[0].update(Value=value)


def frozen(account: Account) -> None:
    account.clients.s3.put_object(
        Bucket="example-data", Key="camvid/train/1.png", Body=b"x", StorageClass="GLACIER"
    )


def another_job(account: Account) -> None:
    """A job of somebody else, which runs, writes to a folder of these checkpoints."""
    checkpoints = {"S3Uri": "s3://example-results/checkpoints/", "LocalPath": "/opt/ml/checkpoints"}
    account.clients.sagemaker.create_training_job(
        **training_job("theirs", CheckpointConfig=checkpoints)
    )


def one_level_up(account: Account) -> None:
    """The data lie in camvid/CamVid/, the channel names camvid/."""
    account.clients.s3.delete_object(Bucket="example-data", Key="camvid/train/0.png")
    for name in ("train/0.png", "trainannot/0.png", "val/1.png", "valannot/1.png"):
        account.clients.s3.put_object(Bucket="example-data", Key=f"camvid/CamVid/{name}", Body=b"x")
    account.job = replace(account.job, config="configs/camvid_cpu.yaml")


def dedicated(account: Account) -> None:
    vpc = account.clients.ec2.create_vpc(CidrBlock="10.2.0.0/16", InstanceTenancy="dedicated")[
        "Vpc"
    ]["VpcId"]
    other = Account(account.clients, account.cloud, account.job)
    build_network(other, vpc)
    account.ids = other.ids
    account.with_vpc()


def nothing_out(account: Account) -> None:
    ec2, group = account.clients.ec2, account.ids["group"]
    ec2.revoke_security_group_egress(
        GroupId=group, IpPermissions=[{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    )
    account.job = replace(account.job, instances=1)


def no_https_out(account: Account) -> None:
    nothing_out(account)
    rule = {
        "IpProtocol": "tcp",
        "FromPort": 80,
        "ToPort": 80,
        "IpRanges": [{"CidrIp": "0.0.0.0/0"}],
    }
    account.clients.ec2.authorize_security_group_egress(
        GroupId=account.ids["group"], IpPermissions=[rule]
    )


def tcp_alone(account: Account) -> None:
    ec2, group = account.clients.ec2, account.ids["group"]
    itself = [{"GroupId": group}]
    ec2.revoke_security_group_ingress(
        GroupId=group, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": itself}]
    )
    tcp = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": itself}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[tcp])
    account.cloud.quotas[0]["QuotaName"] = "ml.p4d.24xlarge for training job usage"
    account.job = replace(account.job, type="ml.p4d.24xlarge")


def shut_endpoint(account: Account) -> None:
    other = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": "arn:aws:s3:::example-results/*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [other]})
    account.clients.ec2.modify_vpc_endpoint(
        VpcEndpointId=account.ids["endpoint"], PolicyDocument=policy
    )


PLAIN: dict[str, Callable[[Account], None]] = {
    "a placeholder": job(output="s3://MY-BUCKET/x"),
    "no such role": job(role=ROLE + "s"),
    "a role of another account": job(role=ROLE.replace("123456789012", "210987654321")),
    "a role for EC2": no_trust,
    "a quota of one": quota(1.0),
    "longer than the account allows": job(max_run=864000),
    "a retired type": job(type="ml.p3.16xlarge"),
    "no such image": job(image=IMAGE.replace(":1", ":2")),
    "no such repository": job(image=IMAGE.replace("mine", "yours")),
    "an empty prefix": job(data=(Channel("train", "s3://example-data/camvi/"),)),
    "data in the archive": frozen,
    "a folder above the data": one_level_up,
    "checkpoints of a job that runs": another_job,
    "no such bucket of data": job(data=(Channel("train", "s3://example-date/camvid/"),)),
    "no such bucket of results": job(output="s3://example-result/x"),
    "a bucket of another region": far_bucket,
}
IN_A_VPC: dict[str, Callable[[Account], None]] = {
    "no such subnet": job(subnets=("subnet-0abc1234",)),
    "no such group": job(security_groups=("sg-0abc1234",)),
    "a group of another VPC": other_vpc,
    "a zone without the type": far_zone,
    "few addresses": few_addresses,
    "hosts that cannot talk": lambda account: account.with_vpc(group="closed"),
    "a VPC of dedicated tenancy": dedicated,
    "nothing let out": nothing_out,
    "no HTTPS let out": no_https_out,
    "EFA with TCP alone": tcp_alone,
    "an endpoint for other buckets": shut_endpoint,
    "no way to the package index": no_nat,
    "no way to S3": no_way,
}
ON_FSX: dict[str, Callable[[Account], None]] = {
    "no such file system": lambda account: account.cloud.file_systems.clear(),
    "another kind": lambda account: account.fsx(FileSystemType="ONTAP"),
    "being made": lambda account: account.fsx(Lifecycle="CREATING"),
    "another mount name": lambda account: account.with_fsx("/x7wzhbev/camvid"),
    "another VPC": lambda account: account.fsx(VpcId="vpc-0abc1234"),
    "another zone": lambda account: account.with_vpc("other"),
    "closed ports": closed_ports,
}


@pytest.mark.parametrize("mistake", [*PLAIN, *IN_A_VPC, *ON_FSX])
def test_what_the_account_lacks_is_found(account, mistake):
    if mistake in IN_A_VPC or mistake in ON_FSX:
        account.with_vpc()
    if mistake in ON_FSX:
        account.with_fsx()
    {**PLAIN, **IN_A_VPC, **ON_FSX}[mistake](account)
    if mistake == "a retired type":  # no quota is listed for it either, which is a note
        account.cloud.quotas = []
    check_findings(f"account/{mistake.replace(' ', '-')}", {mistake: answered(account)}, [])


def test_data_larger_than_the_disk(account, monkeypatch):
    # of the 3800 GB of this type
    monkeypatch.setattr("launch.platforms.sagemaker.preflight.channels.SPARE_GB", 3800)
    assert loud(account.look()) == ["error volume-small"]
    fast = (Channel("train", "s3://example-data/camvid/", mode="FastFile"),)
    assert loud(account.look(data=fast)) == []  # is not copied


def test_the_accounts_own_bucket_need_not_be_there_yet(account):
    assert loud(account.look(output="s3://sagemaker-us-east-1-123456789012/segtrain")) == []


def test_spot_has_a_quota_of_its_own(account):
    account.cloud.quotas.append(
        {"QuotaName": "ml.g5.12xlarge for spot training job usage", "Value": 0.0}
    )
    assert loud(account.look(spot=True, max_wait=172800)) == ["error quota"]


USER = "arn:aws:iam::123456789012:user/me"
# What AWS's page on execution roles lists for a training job in a VPC, and what a caller needs.
EVERYTHING = {
    ROLE: [
        ("s3:GetObject", "arn:aws:s3:::example-*/*"),
        ("s3:PutObject", "arn:aws:s3:::example-results/*"),
        ("s3:ListBucket", "arn:aws:s3:::example-*"),
        ("logs:*", "arn:aws:logs:us-east-1:123456789012:log-group:/aws/sagemaker/*"),
        ("cloudwatch:PutMetricData", "*"),
        ("ecr:GetAuthorizationToken", "*"),
        ("ecr:BatchCheckLayerAvailability", "arn:aws:ecr:us-east-1:123456789012:repository/mine"),
        ("ecr:BatchGetImage", "arn:aws:ecr:us-east-1:123456789012:repository/mine"),
        ("ecr:GetDownloadUrlForLayer", "arn:aws:ecr:us-east-1:123456789012:repository/mine"),
        ("ec2:*NetworkInterface*", "*"),
        ("ec2:Describe*", "*"),
        ("kms:*", "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"),
    ],
    USER: [
        ("iam:PassRole", ROLE),
        ("sagemaker:CreateTrainingJob", "arn:aws:sagemaker:us-east-1:123456789012:training-job/*"),
    ],
}


def simulated(account: Account) -> Policies:
    """The account with a simulator in which role and caller may do everything that a job needs."""
    policies = Policies({who: list(rules) for who, rules in EVERYTHING.items()})
    account.clients.iam.simulate_principal_policy = policies.simulate_principal_policy
    account.clients.__dict__["identity"] = {"Account": "123456789012", "Arn": USER}
    return policies


# the right that is taken away
TAKEN: dict[str, tuple[str, str]] = {
    "listing the data": (ROLE, "s3:ListBucket"),
    "reading the data": (ROLE, "s3:GetObject"),
    "writing results": (ROLE, "s3:PutObject"),
    "the log": (ROLE, "logs:*"),
    "metrics": (
        ROLE,
        "cloudwatch:PutMetricData",
    ),
    "a sign-in at the registry": (
        ROLE,
        "ecr:GetAuthorizationToken",
    ),
    "the image": (ROLE, "ecr:BatchGetImage"),
    "network interfaces": (
        ROLE,
        "ec2:*NetworkInterface*",
    ),
    "handing the role over": (USER, "iam:PassRole"),
    "making a job": (
        USER,
        "sagemaker:CreateTrainingJob",
    ),
}


def test_findings_of_missing_rights(account):
    account.with_vpc()
    policies = simulated(account)
    assert loud(account.look()) == []
    jobs = {}
    for right, (who, action) in TAKEN.items():
        rules = policies.allowed[who]
        policies.allowed[who] = [rule for rule in rules if rule[0] != action]
        jobs[right] = account.look()
        policies.allowed[who] = rules
    check_findings("account/rights", jobs, account.look())


def test_the_role_is_handed_to_sagemaker(account):
    """Policies often allow iam:PassRole to SageMaker alone: the simulator has to be told whom it is
    for.
    """
    policies = simulated(account)
    account.look()
    [asked] = [request for request in policies.asked if request["ActionNames"] == ["iam:PassRole"]]
    assert asked["ContextEntries"][0]["ContextKeyName"] == "iam:PassedToService"
    assert asked["ContextEntries"][0]["ContextKeyValues"] == ["sagemaker.amazonaws.com"]


def test_an_explicit_denial_is_certain_and_a_condition_is_not(account):
    policies = simulated(account)
    policies.denied[ROLE] = [("s3:PutObject", "*")]
    assert set(loud(account.look())) == {"error role-rights"}
    policies.missing = ["aws:SourceVpc"]
    found = account.look()
    assert loud(found) == []
    assert "role-rights" in {finding.code for finding in found}


def test_an_assumed_role_is_asked_about_as_the_role_it_is(account):
    policies = simulated(account)
    account.clients.iam.create_role(
        RoleName="Engineer", Path="/team/", AssumeRolePolicyDocument=json.dumps(TRUST)
    )
    account.clients.__dict__["identity"] = {
        "Account": "123456789012",
        "Arn": "arn:aws:sts::123456789012:assumed-role/Engineer/session",
    }
    account.look()
    assert "arn:aws:iam::123456789012:role/team/Engineer" in {
        request["PolicySourceArn"] for request in policies.asked
    }


def test_a_bucket_with_a_key_of_its_own_needs_that_key(account):
    key = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    rule = {
        "ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    }
    account.clients.s3.put_bucket_encryption(
        Bucket="example-data", ServerSideEncryptionConfiguration={"Rules": [rule]}
    )
    policies = simulated(account)
    assert loud(account.look()) == []
    policies.allowed[ROLE] = [one for one in policies.allowed[ROLE] if not one[0].startswith("kms")]
    [finding] = [finding for finding in account.look() if finding.level != "note"]
    assert (finding.code, finding.level) == ("role-kms", "warning")
    assert key in finding.message
    assert "kms:Decrypt" in finding.message


def test_a_caller_who_may_ask_nothing_gets_notes(account):
    account.with_vpc()
    account.with_fsx()
    account.cloud.refuse("ListServiceQuotas", "AccessDeniedException", "you may not", times=9)
    account.cloud.refuse("DescribeFileSystems", "AccessDeniedException", "you may not", times=9)
    # everything else is refused by the network
    nowhere = replace(account.clients, endpoint_url="http://127.0.0.1:9")
    from botocore.config import Config

    for name in ("s3", "ec2", "iam", "sts", "ecr", "fsx", "quotas", "sagemaker"):
        service = {"quotas": "service-quotas"}.get(name, name)
        url = account.cloud.url if name in ("fsx", "quotas") else "http://127.0.0.1:9"
        made = nowhere.session.client(
            service, endpoint_url=url, config=Config(retries={"total_max_attempts": 1})
        )
        nowhere.__dict__[name] = made
    account.clients = nowhere
    found = account.look()
    assert {finding.level for finding in found} == {"note"}
    said = " ".join(finding.message for finding in found)
    for word in (
        "Trainer",
        "quotas",
        "example-results",
        "fs-0123456789abcdef0",
        "mine:1",
        account.ids["subnet"],
    ):
        assert word in said


def test_calls_only_read(account):
    account.with_vpc()
    account.with_fsx()
    asked: list[str] = []
    for name in ("s3", "ec2", "iam", "sts", "ecr", "fsx", "quotas", "sagemaker"):
        client = getattr(account.clients, name)
        client.meta.events.register("before-call", lambda model, **_: asked.append(model.name))
    account.look()
    reading = ("Get", "List", "Describe", "Head", "Simulate", "BatchGet")
    assert len(asked) > 12
    assert [name for name in asked if not name.startswith(reading)] == []


def test_https_to_the_group_of_an_endpoint_is_a_way_out(account):
    account.with_vpc()
    nothing_out(account)
    ec2, ids = account.clients.ec2, account.ids
    for name, wrong in (("group", ["error security-group-egress"]), ("closed", [])):
        rule = {
            "IpProtocol": "tcp",
            "FromPort": 443,
            "ToPort": 443,
            "UserIdGroupPairs": [{"GroupId": ids[name]}],
        }
        ec2.authorize_security_group_egress(GroupId=ids["group"], IpPermissions=[rule])
        assert loud(account.look()) == wrong


def test_the_policy_of_an_endpoint():
    def policy(*statements: dict[str, Any]) -> str:
        return json.dumps({"Statement": list(statements)})

    get, item = "s3:GetObject", "arn:aws:s3:::data/camvid/x"
    allow = {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}
    assert permits("", get, item)
    assert permits(policy(allow), get, item)
    assert permits(
        policy({**allow, "Action": ["s3:Get*"], "Resource": ["arn:aws:s3:::data/*"]}), get, item
    )
    assert not permits(policy({**allow, "Action": "s3:Put*"}), get, item)
    assert not permits(policy({**allow, "Resource": "arn:aws:s3:::other/*"}), get, item)
    assert not permits(
        policy(allow, {**allow, "Effect": "Deny", "Action": "s3:GetObject"}), get, item
    )
    assert permits(policy(allow, {**allow, "Effect": "Deny", "Condition": {"Bool": {}}}), get, item)
    not_others = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:*",
        "NotResource": "arn:aws:s3:::data/*",
    }
    assert not permits(policy(not_others), get, item)


def test_trust_and_ports():
    assert trusts(TRUST)
    denied = {"Statement": {**TRUST["Statement"][0], "Effect": "Deny"}}
    assert not trusts(denied)
    assert _trusts({"AssumeRolePolicyDocument": TRUST})
    assert not _trusts({"AssumeRolePolicyDocument": denied})
    assert not trusts({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*"}]})
    lustre = [
        {
            "IpProtocol": "tcp",
            "FromPort": 988,
            "ToPort": 988,
            "UserIdGroupPairs": [{"GroupId": "sg-1"}],
        }
    ]
    assert admitted(lustre, {"sg-1"}, 988, 988)
    assert not admitted(lustre, {"sg-2"}, 988, 988)
    assert not admitted(lustre, {"sg-1"}, 1018, 1023)
    assert admitted(
        [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}], {"sg-2"}, 1018, 1023
    )


def test_a_key_for_disks_and_results_needs_the_rights_of_both(monkeypatch):
    key = "1234abcd-12ab-34cd-56ef-1234567890ab"
    arn = f"arn:aws:kms:us-east-1:123456789012:key/{key}"
    request = {
        "ResourceConfig": {"VolumeKmsKeyId": key},
        "OutputDataConfig": {"KmsKeyId": arn, "S3OutputPath": "s3://results/jobs"},
    }
    monkeypatch.setattr(rights, "_default_key", lambda bucket, ask: "")
    of = SageMakerJob(role="arn:aws:iam::123456789012:role/Trainer", region="us-east-1")
    rights_of_the_key = (
        "kms:CreateGrant",
        "kms:GenerateDataKeyWithoutPlaintext",
        "kms:GenerateDataKey",
    )
    assert rights._keys(of, request, None) == {arn: rights_of_the_key}  # type: ignore[arg-type]
