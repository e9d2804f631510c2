"""Read-only calls to AWS, and what AWS's errors say about a resource."""

from __future__ import annotations

from typing import Any

from launch.core.calls import CallResult, ReadOnlyCalls
from launch.platforms.sagemaker.aws_errors import code_of, explain
from launch.platforms.sagemaker.cloud import AwsClients
from segtrain.errors import SegtrainError

# AWS's error codes for a resource that does not exist.
ABSENT = (
    *("404", "NoSuchBucket", "NoSuchKey", "NoSuchEntity", "FileSystemNotFound"),
    *(
        "InvalidSubnetID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidGroupId.Malformed",
        "InvalidSubnetID.Malformed",
    ),
    *(
        "RepositoryNotFoundException",
        "ImageNotFoundException",
        "ServerSideEncryptionConfigurationNotFoundError",
    ),
)
ELSEWHERE = ("301", "PermanentRedirect", "AuthorizationHeaderMalformed")


class AwsReadOnlyCalls(ReadOnlyCalls[AwsClients]):
    def meaning(self, error: Exception) -> CallResult | str:
        code = code_of(error)
        if code in ABSENT:
            return CallResult(absent=True)
        if code in ELSEWHERE:
            return CallResult(elsewhere=True)
        if isinstance(error, SegtrainError):  # its message is already written for users
            return str(error)
        return str(explain(error, getattr(error, "operation_name", "call")))

    def pages(
        self, what: str, client: Any, operation: str, key: str, **arguments: Any
    ) -> CallResult:
        """All items of a paginated call."""

        def collect() -> list[Any]:
            pages = client.get_paginator(operation).paginate(**arguments)
            return [item for page in pages for item in page.get(key, [])]

        return self(what, collect)
