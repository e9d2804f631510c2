"""An FSx for Lustre file system that shows the files of an S3 prefix: an existing one is found, or
a new one is created and awaited.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launch.core.findings import Say
from launch.platforms.sagemaker.aws_errors import explain, explained, passing
from launch.platforms.sagemaker.cloud import AwsClients, split_uri
from launch.platforms.sagemaker.service_model import violations
from segtrain.errors import ConfigError, SegtrainError

FOLDER = "/data"  # folder of the file system that shows the files of the S3 prefix
# tag with the S3 prefix: marks a file system that is not associated with its prefix yet
TAG = "segtrain-data"
LEAST_GB, MORE_GB = 1200, 2400
# $ per GB and month in us-east-1, by MB/s per TiB; 0: scratch. Current:
# https://aws.amazon.com/fsx/lustre/pricing/
PRICES = {0: 0.140, 125: 0.145, 250: 0.210, 500: 0.340, 1000: 0.600}
MONTH_H = 730
PATIENCE_S = 3600.0
_READY = ("AVAILABLE", "UPDATING")


@dataclass(frozen=True)
class WantedFileSystem:
    """The file system to find or create. ``throughput``: MB/s per TiB; 0: a scratch file system,
    whose content is lost if its server fails (the data stay in S3).
    """

    data: str
    subnet: str
    security_groups: tuple[str, ...]
    gb: int = LEAST_GB
    throughput: int = 125
    price: float | None = None  # dollars per GB and month

    @property
    def prefix(self) -> str:
        return self.data.rstrip("/") + "/"


@dataclass(frozen=True)
class FoundFileSystem:
    """A file system as described by DescribeFileSystems, and its association with the S3 prefix;
    None if it has none yet.
    """

    system: Mapping[str, Any]
    association: Mapping[str, Any] | None


def check(wanted: WantedFileSystem) -> None:
    """Raises ConfigError for values that the service would refuse. Makes no call to it."""
    split_uri(wanted.data)
    if wanted.gb != LEAST_GB and (wanted.gb <= 0 or wanted.gb % MORE_GB):
        fit = LEAST_GB if wanted.gb <= LEAST_GB else -(-wanted.gb // MORE_GB) * MORE_GB
        raise ConfigError(
            f"--gb {wanted.gb}: sizes are {LEAST_GB}, {MORE_GB} and multiples of {MORE_GB}: "
            f"--gb {fit}",
            code="fsx-size",
        )
    if wanted.throughput not in PRICES:
        legal = ", ".join(str(one) for one in PRICES if one)
        raise ConfigError(
            f"--throughput {wanted.throughput}: must be one of {legal} (MB/s for each TiB), or "
            "--scratch",
            code="fsx-throughput",
        )
    if not wanted.security_groups:
        raise ConfigError(
            "--security-groups is empty: name those of the jobs", code="security-groups-missing"
        )
    if wrong := violations(system_request(wanted), operation="CreateFileSystem", service="fsx"):
        raise ConfigError("; ".join(wrong), code="fsx-request", found=wrong)


def system_request(wanted: WantedFileSystem) -> dict[str, Any]:
    """The arguments of boto3's ``create_file_system``."""
    lustre: dict[str, Any] = {
        "DeploymentType": "PERSISTENT_2" if wanted.throughput else "SCRATCH_2"
    }
    if wanted.throughput:
        lustre["PerUnitStorageThroughput"] = wanted.throughput
    return {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": "2.15",
        "StorageCapacity": wanted.gb,
        "StorageType": "SSD",
        "SubnetIds": [wanted.subnet],
        "SecurityGroupIds": list(wanted.security_groups),
        "LustreConfiguration": lustre,
        "Tags": [{"Key": "Name", "Value": "segtrain"}, {"Key": TAG, "Value": wanted.prefix}],
    }


def association_request(wanted: WantedFileSystem, system: str) -> dict[str, Any]:
    """The arguments of boto3's ``create_data_repository_association``: file names are imported at
    once, contents when they are first read, and later changes in S3 automatically.
    """
    return {
        "FileSystemId": system,
        "FileSystemPath": FOLDER,
        "DataRepositoryPath": wanted.prefix,
        "BatchImportMetaDataOnCreate": True,
        "S3": {"AutoImportPolicy": {"Events": ["NEW", "CHANGED", "DELETED"]}},
        "Tags": [{"Key": TAG, "Value": wanted.prefix}],
    }


def cost(wanted: WantedFileSystem) -> str:
    price = wanted.price if wanted.price is not None else PRICES[wanted.throughput]
    source = "--price" if wanted.price is not None else "list price of us-east-1"
    month = wanted.gb * price
    kind = f"{wanted.throughput} MB/s for each TiB" if wanted.throughput else "scratch"
    return (
        f"${month:,.2f} per month, ${month / MONTH_H:,.2f} per hour: {wanted.gb} GB, {kind}, at "
        f"${price:g} per GB and month ({source}), until it is deleted, also while no job runs"
    )


def find(clients: AwsClients, wanted: WantedFileSystem) -> tuple[FoundFileSystem | None, list[str]]:
    """A file system in the wanted subnet that shows the prefix, or None; and messages about those
    in other subnets.
    """
    associations = [
        one
        for one in _pages(clients, "describe_data_repository_associations", "Associations")
        if one.get("DataRepositoryPath", "").rstrip("/") + "/" == wanted.prefix
        and one.get("Lifecycle") in (*_READY, "CREATING")
    ]
    by_system = {one["FileSystemId"]: one for one in associations if "FileSystemId" in one}
    others: list[str] = []
    for system in _pages(clients, "describe_file_systems", "FileSystems"):
        name, tags = (
            system["FileSystemId"],
            {one["Key"]: one["Value"] for one in system.get("Tags", [])},
        )
        if name not in by_system and tags.get(TAG) != wanted.prefix:
            continue
        if system.get("FileSystemType") != "LUSTRE" or system.get("Lifecycle") not in (
            *_READY,
            "CREATING",
        ):
            continue
        if wanted.subnet in system.get("SubnetIds", []):
            return FoundFileSystem(system, by_system.get(name)), others
        others.append(
            f"{name} shows {wanted.prefix} too, but in subnet "
            f"{', '.join(system.get('SubnetIds', []))}"
        )
    return None, others


def create(clients: AwsClients, wanted: WantedFileSystem) -> FoundFileSystem:
    with explained("CreateFileSystem"):
        return FoundFileSystem(
            clients.fsx.create_file_system(**system_request(wanted))["FileSystem"], None
        )


def complete(
    clients: AwsClients,
    wanted: WantedFileSystem,
    found: FoundFileSystem,
    say: Say,
    sleep: Callable[[float], None] | None = None,
) -> FoundFileSystem:
    """Wait for the file system, associate it with the prefix if it is not yet, and wait until all
    names are imported.

    Raises SegtrainError.
    """
    name, sleep = found.system["FileSystemId"], sleep or time.sleep
    system = _wait(lambda: _system(clients, name), f"file system {name}", say, sleep)
    association = found.association
    if association is None:
        with explained(f"CreateDataRepositoryAssociation of {name} with {wanted.prefix}"):
            answer = clients.fsx.create_data_repository_association(
                **association_request(wanted, name)
            )
            association = dict(answer["Association"])
    number = association["AssociationId"]
    association = _wait(
        lambda: _association(clients, number), f"association with {wanted.prefix}", say, sleep
    )
    _wait(lambda: _import(clients, number), f"names of {wanted.prefix}", say, sleep)
    return FoundFileSystem(system, association)


def flags(found: FoundFileSystem, wanted: WantedFileSystem) -> str:
    """The flags of a job that make it read from the file system."""
    assert found.association is not None
    mount = found.system["LustreConfiguration"]["MountName"]
    folder = found.association["FileSystemPath"].strip("/")
    place = f"{found.system['FileSystemId']}:/{mount}/{folder}".rstrip("/")
    return shlex.join(
        [
            "--fsx",
            place,
            "--subnets",
            wanted.subnet,
            "--security-groups",
            ",".join(wanted.security_groups),
        ]
    )


def _wait(
    look: Callable[[], Mapping[str, Any]],
    what: str,
    say: Say,
    sleep: Callable[[float], None],
) -> Mapping[str, Any]:
    """Call ``look`` until the resource is ready, and return its description.

    Raises SegtrainError if the resource has failed, or is not ready after an hour.
    """
    waited, said = 0.0, ""
    while True:
        try:
            known = look()
        except Exception as error:
            if not passing(error):
                raise explain(error, what) from None
            known = {"Lifecycle": said}
        state = known["Lifecycle"]
        if state != said:
            say(f"{what}: {state}")
            said = state
        if state in (*_READY, "SUCCEEDED"):
            return known
        if state in (
            "FAILED",
            "MISCONFIGURED",
            "MISCONFIGURED_UNAVAILABLE",
            "DELETING",
            "CANCELED",
            "CANCELING",
        ):
            reason = known.get("FailureDetails", {}).get("Message", "AWS gives no reason")
            raise SegtrainError(
                f"{what} is {state}: {reason}: fix that, delete it, and start again",
                code="fsx-failed",
            )
        if waited >= PATIENCE_S:
            raise SegtrainError(
                f"{what} is still {state} after {waited / 60:.0f} minutes: run the same "
                "command again later",
                code="fsx-not-ready",
            )
        sleep(15.0)
        waited += 15.0


def _system(clients: AwsClients, name: str) -> Mapping[str, Any]:
    return dict(clients.fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"][0])


def _association(clients: AwsClients, number: str) -> Mapping[str, Any]:
    return dict(
        clients.fsx.describe_data_repository_associations(AssociationIds=[number])["Associations"][
            0
        ]
    )


def _import(clients: AwsClients, number: str) -> Mapping[str, Any]:
    """The newest task that imports the file names. If AWS lists none, it counts as done."""
    filters = [{"Name": "data-repository-association-id", "Values": [number]}]
    tasks = clients.fsx.describe_data_repository_tasks(Filters=filters)["DataRepositoryTasks"]
    mine = [one for one in tasks if one.get("Type") == "IMPORT_METADATA_FROM_REPOSITORY"]
    return (
        dict(max(mine, key=lambda one: one["CreationTime"])) if mine else {"Lifecycle": "SUCCEEDED"}
    )


def _pages(clients: AwsClients, call: str, key: str) -> Iterator[dict[str, Any]]:
    more: dict[str, str] = {}
    while True:
        with explained(call):
            page = getattr(clients.fsx, call)(**more)
        yield from page[key]
        if not page.get("NextToken"):
            return
        more = {"NextToken": page["NextToken"]}
