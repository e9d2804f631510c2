"""FSx for Lustre on the endpoint: file systems, associations with S3, and import tasks that take
time on its clock.
"""

from __future__ import annotations

from typing import Any

from launch.platforms.fsx.lustre import LEAST_GB, MORE_GB

SYSTEM_S, ASSOCIATION_S, IMPORT_S = 600.0, 120.0, 60.0


class Refusal(Exception):
    """Code and words; the endpoint makes its own error of it."""


class Lustre:
    """The part of the endpoint that plays FSx. ``fail``: ID -> words, of what ends as FAILED."""

    clock: float
    file_systems: list[dict[str, Any]]

    def __init__(self) -> None:
        self.associations: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = []
        self.fail: dict[str, str] = {}
        self._ready: dict[str, float] = {}

    def settle(self) -> None:
        """What was begun long enough ago is done."""
        for key, listed, done in (
            ("FileSystemId", self.file_systems, "AVAILABLE"),
            ("AssociationId", self.associations, "AVAILABLE"),
            ("TaskId", self.tasks, "SUCCEEDED"),
        ):
            for one in listed:
                if self._ready.get(one[key], float("inf")) <= self.clock and one["Lifecycle"] in (
                    "CREATING",
                    "EXECUTING",
                ):
                    one["Lifecycle"] = done
                    if kind := next((name for name in self.fail if one[key].startswith(name)), ""):
                        one |= {
                            "Lifecycle": "FAILED",
                            "FailureDetails": {"Message": self.fail[kind]},
                        }

    def create_file_system(self, request: dict[str, Any]) -> dict[str, Any]:
        size, lustre = request["StorageCapacity"], request["LustreConfiguration"]
        if size != LEAST_GB and size % MORE_GB:
            raise Refusal("BadRequest", f"Invalid storage capacity {size}")
        if (lustre["DeploymentType"] == "PERSISTENT_2") != ("PerUnitStorageThroughput" in lustre):
            raise Refusal(
                "BadRequest",
                "PerUnitStorageThroughput is for PERSISTENT file systems, and needed there",
            )
        if len(request["SubnetIds"]) != 1:
            raise Refusal("BadRequest", "Lustre needs exactly one subnet")
        name = f"fs-{len(self.file_systems) + 1:017x}"
        system = {
            "FileSystemId": name,
            "Lifecycle": "CREATING",
            "CreationTime": self.clock,
            **{
                key: request[key]
                for key in ("FileSystemType", "StorageCapacity", "SubnetIds", "Tags")
            },
            "LustreConfiguration": {**lustre, "MountName": "abcd1234"},
        }
        self.file_systems.append(system)
        self._ready[name] = self.clock + SYSTEM_S
        return {"FileSystem": system}

    def associate(self, request: dict[str, Any]) -> dict[str, Any]:
        self.settle()
        system = next(
            (one for one in self.file_systems if one["FileSystemId"] == request["FileSystemId"]),
            None,
        )
        if system is None or system["Lifecycle"] != "AVAILABLE":
            raise Refusal("BadRequest", f"file system {request['FileSystemId']} is not available")
        number = len(self.associations) + 1
        association = {
            "AssociationId": f"dra-{number:017x}",
            "Lifecycle": "CREATING",
            "CreationTime": self.clock,
            **{
                key: request[key]
                for key in ("FileSystemId", "FileSystemPath", "DataRepositoryPath", "S3", "Tags")
            },
        }
        self.associations.append(association)
        self._ready[association["AssociationId"]] = self.clock + ASSOCIATION_S
        if request.get("BatchImportMetaDataOnCreate"):
            task = {
                "TaskId": f"task-{number:017x}",
                "Lifecycle": "EXECUTING",
                "Type": "IMPORT_METADATA_FROM_REPOSITORY",
                "CreationTime": self.clock,
                "ResourceARN": f"arn:aws:fsx:us-east-1:123456789012:association/{association['AssociationId']}",
                "FileSystemId": request["FileSystemId"],
                "Paths": [],
            }
            self.tasks.append(task)
            self._ready[task["TaskId"]] = self.clock + ASSOCIATION_S + IMPORT_S
        return {"Association": association}

    def tasks_of(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        self.settle()
        (only,) = request["Filters"]
        assert only["Name"] == "data-repository-association-id", only
        return [
            one for one in self.tasks if one["ResourceARN"].rpartition("/")[2] in only["Values"]
        ]
