"""Checks of the VPC: that a job has one if it needs it, and that the machines in its subnets reach
each other, the file system, S3, and the package index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launch.core.findings import Finding, error, note, warning
from launch.platforms.sagemaker.instances import INSTANCES
from launch.platforms.sagemaker.job import SageMakerJob
from launch.platforms.sagemaker.preflight.account import kinds, offers
from launch.platforms.sagemaker.preflight.calls import AwsReadOnlyCalls
from launch.platforms.sagemaker.preflight.places import API
from launch.platforms.sagemaker.preflight.security import (
    FSX_DOCS,
    Item,
    admitted,
    among_themselves,
    bucket_policy,
    outward,
)
from launch.platforms.sagemaker.preflight.stored import file_system

_FLAGS = {"subnets": "--subnets subnet-...", "security_groups": "--security-groups sg-..."}


def network(job: SageMakerJob) -> Iterator[Finding]:
    systems = [channel for channel in job.data if channel.is_file_system]
    if bool(job.subnets) != bool(job.security_groups):
        there, gone = (
            ("subnets", "security_groups") if job.subnets else ("security_groups", "subnets")
        )
        yield error(
            "vpc-half",
            f"{there}={_ids_of(job, there)} without {gone}: a VPC needs both",
            f"add {_FLAGS[gone]}",
            API,
        )
    elif systems and not job.subnets:
        channel = systems[0]
        yield error(
            "fsx-without-vpc",
            f"data.{channel.name} is on {channel.file_system}, but the job has no subnets: it "
            "could not reach it",
            "--subnets and --security-groups of the file system (Lustre: TCP 988 and 1018-1023 "
            "open between them)",
            FSX_DOCS,
        )
    if systems and len(set(job.subnets)) > 1:
        yield warning(
            "fsx-subnets",
            f"subnets={_ids_of(job, 'subnets')}: a job is placed in any one of them, FSx for "
            "Lustre is in one zone",
            "give the subnet of the file system alone",
            FSX_DOCS,
        )
    if job.subnets and job.security_groups:
        yield note(
            "vpc-internet",
            "in a VPC the job reaches S3 and the package index through your network alone",
            "it needs an S3 gateway endpoint and, for requirements.txt, a NAT gateway; checked "
            "before sending",
            FSX_DOCS,
        )


def _ids_of(job: SageMakerJob, key: str) -> str:
    return ",".join(getattr(job, key))


LUSTRE = ((988, 988), (1018, 1023))


def vpc(job: SageMakerJob, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    if not job.subnets:
        return
    subnets, groups = [], []
    for name in job.subnets:
        answer = ask(f"subnet {name}", ask.clients.ec2.describe_subnets, SubnetIds=[name])
        subnets += answer.items("Subnets")
        if answer.absent:
            yield error(
                "subnet-missing",
                f"subnets: {name!r} is not there",
                "aws ec2 describe-subnets; check --region",
            )
    for name in job.security_groups:
        answer = ask(
            f"security group {name}", ask.clients.ec2.describe_security_groups, GroupIds=[name]
        )
        groups += answer.items("SecurityGroups")
        if answer.absent:
            yield error(
                "security-group-missing",
                f"security_groups: {name!r} is not there",
                "aws ec2 describe-security-groups",
            )
    if not subnets:
        return
    homes = {item["VpcId"] for item in (*subnets, *groups)}
    if len(homes) > 1:
        yield error(
            "vpc-several",
            f"subnets={','.join(job.subnets)} and security_groups={','.join(job.security_groups)} "
            f"are of several VPCs ({', '.join(sorted(homes))})",
            "take subnets and security groups of one VPC",
        )
        return
    yield from _tenancy(subnets[0]["VpcId"], ask)
    yield from _addresses(job, subnets)
    yield from _zones(job, subnets, ask)
    if len(groups) == len(job.security_groups):
        yield from among_themselves(job, groups)
        yield from outward(job, groups)
        yield from _lustre(job, subnets, groups, ask)
    yield from _ways_out(job, subnets, ask)


def _tenancy(name: str, ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    answer = ask(f"VPC {name}", ask.clients.ec2.describe_vpcs, VpcIds=[name])
    if any(item.get("InstanceTenancy") == "dedicated" for item in answer.items("Vpcs")):
        yield error(
            "vpc-tenancy",
            f"{name} has dedicated tenancy: SageMaker trains in a VPC of default tenancy only",
            "--subnets of another VPC",
            FSX_DOCS,
        )


def _addresses(job: SageMakerJob, subnets: Sequence[Item]) -> Iterator[Finding]:
    """Findings for subnets with too few free addresses: all machines of a job are placed in one
    subnet.
    """
    need = sum(
        count * (5 if (machine := INSTANCES.get(name)) and machine.efa else 2)
        for name, count in kinds(job).items()
    )
    few = [item for item in subnets if item.get("AvailableIpAddressCount", need) < need]
    if few:
        level = error if len(few) == len(subnets) else warning
        yield level(
            "addresses",
            f"subnet {few[0]['SubnetId']} has {few[0]['AvailableIpAddressCount']} free addresses; "
            f"{job.hosts} machines take {need}",
            "a larger subnet",
            FSX_DOCS,
        )


def _zones(job: SageMakerJob, subnets: Sequence[Item], ask: AwsReadOnlyCalls) -> Iterator[Finding]:
    for name in kinds(job):
        answer = offers(ask, f"the zones that offer {name}", name, "availability-zone")
        zones = {item["Location"] for item in answer.value or []}
        outside = [item for item in subnets if item["AvailabilityZone"] not in zones]
        if zones and outside:
            level = error if len(outside) == len(subnets) else warning
            yield level(
                "type-zone",
                f"type {name} is not offered in {outside[0]['AvailabilityZone']}, the zone of "
                f"subnet {outside[0]['SubnetId']}",
                f"a subnet in {', '.join(sorted(zones))}",
            )


def _lustre(
    job: SageMakerJob, subnets: Sequence[Item], groups: Sequence[Item], ask: AwsReadOnlyCalls
) -> Iterator[Finding]:
    for channel in job.data:
        system = (
            file_system(channel, ask)
            if channel.file_system_type == "FSxLustre" and channel.is_file_system
            else None
        )
        if not system:
            continue
        where = f"data.{channel.name}: {channel.file_system}"
        if system.get("VpcId") and system["VpcId"] != subnets[0]["VpcId"]:
            yield error(
                "fsx-vpc",
                f"{where} is in {system['VpcId']}, the job's subnets in {subnets[0]['VpcId']}",
                f"--subnets {','.join(system.get('SubnetIds', []))} and security groups of "
                "that VPC",
                FSX_DOCS,
            )
            continue
        own = system.get("SubnetIds", [])
        if own and not set(own) & set(job.subnets):
            answer = ask(f"subnet {own[0]}", ask.clients.ec2.describe_subnets, SubnetIds=list(own))
            zones = {item["AvailabilityZone"] for item in answer.items("Subnets")}
            other = [item for item in subnets if zones and item["AvailabilityZone"] not in zones]
            if other:
                yield error(
                    "fsx-zone",
                    f"{where} is in {', '.join(sorted(zones))}, subnet {other[0]['SubnetId']} in "
                    f"{other[0]['AvailabilityZone']}",
                    f"--subnets {','.join(own)}",
                    FSX_DOCS,
                )
        yield from _fsx_ports(where, system, groups, ask)


def _fsx_ports(
    where: str, system: Item, groups: Sequence[Item], ask: AwsReadOnlyCalls
) -> Iterator[Finding]:
    cards = system.get("NetworkInterfaceIds", [])
    if not cards:
        return
    answer = ask(
        f"the security groups of {system['FileSystemId']}",
        ask.clients.ec2.describe_network_interfaces,
        NetworkInterfaceIds=list(cards)[:1],
    )
    interfaces = answer.items("NetworkInterfaces")
    names = [group["GroupId"] for item in interfaces for group in item.get("Groups", [])]
    if not names:
        return
    answer = ask(
        f"security groups {', '.join(names)}",
        ask.clients.ec2.describe_security_groups,
        GroupIds=names,
    )
    rules = [
        rule for group in answer.items("SecurityGroups") for rule in group.get("IpPermissions", [])
    ]
    mine = {group["GroupId"] for group in groups}
    shut = [f"{first}-{last}" for first, last in LUSTRE if not admitted(rules, mine, first, last)]
    if answer.value and shut:
        yield error(
            "fsx-ports",
            f"{where}: its security group {names[0]} lets TCP {' and '.join(shut)} in from none of "
            f"{', '.join(sorted(mine))}",
            f"rules of {names[0]}: TCP 988 and 1018-1023 from {min(mine)}",
            FSX_DOCS,
        )


def _ways_out(
    job: SageMakerJob, subnets: Sequence[Item], ask: AwsReadOnlyCalls
) -> Iterator[Finding]:
    """Findings for subnets that cannot reach S3 or the package index. Machines of a job have no
    public address, so that they cannot use an internet gateway.
    """
    home = subnets[0]["VpcId"]
    mine = [{"Name": "vpc-id", "Values": [home]}]
    tables = ask.pages(
        f"routes of {home}", ask.clients.ec2, "describe_route_tables", "RouteTables", Filters=mine
    )
    ends = ask.pages(
        f"endpoints of {home}",
        ask.clients.ec2,
        "describe_vpc_endpoints",
        "VpcEndpoints",
        Filters=mine,
    )
    if tables.value is None or ends.value is None:
        return
    for subnet in subnets:
        table = _table(tables.value, subnet["SubnetId"])
        if table is None:
            continue
        gate = any(
            route.get("DestinationCidrBlock") == "0.0.0.0/0"
            and not str(route.get("GatewayId", "")).startswith("igw-")
            and route.get("State") != "blackhole"  # its NAT gateway was deleted
            for route in table.get("Routes", [])
        )
        s3 = [
            end
            for end in ends.value
            if end.get("ServiceName", "").endswith(".s3")
            and end.get("State", "available").lower() == "available"
        ]
        to_s3 = any(
            end.get("VpcEndpointType", "Gateway") == "Interface"
            or table["RouteTableId"] in end.get("RouteTableIds", [])
            for end in s3
        )
        if to_s3:  # traffic to S3 then goes through the endpoint, even if there is a NAT gateway
            yield from bucket_policy(job, s3)
        if not gate and not to_s3:
            yield error(
                "vpc-s3",
                f"subnet {subnet['SubnetId']} has no route to S3 (no gateway endpoint, no NAT), "
                "which the job needs for code, checkpoints, and model",
                f"an S3 gateway endpoint for route table {table['RouteTableId']}",
                FSX_DOCS,
            )
        elif not gate and not any(key.startswith("PIP_") for key in job.environment):
            level = warning if job.image else error
            yield level(
                "vpc-internet",
                f"subnet {subnet['SubnetId']} has no NAT gateway: requirements.txt cannot be "
                "installed from the package index",
                "a NAT gateway, --env PIP_INDEX_URL=... of a mirror, or --image with the "
                "packages inside",
                FSX_DOCS,
            )


def _table(tables: Sequence[Item], subnet: str) -> Item | None:
    """The route table of a subnet: its own, else the VPC's main one."""
    main = None
    for table in tables:
        for association in table.get("Associations", []):
            if association.get("SubnetId") == subnet:
                return table
            if association.get("Main"):
                main = table
    return main
