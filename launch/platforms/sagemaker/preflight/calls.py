"""Read-only calls to AWS that never raise: each gives an answer, "does not exist", or a note that
it was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from launch.core.findings import Finding, note
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


@dataclass(frozen=True)
class CallResult:
    """``value`` None: no result; ``absent``: the resource does not exist; ``elsewhere``: it is in
    another region.
    """

    value: Any = None
    absent: bool = False
    elsewhere: bool = False

    def items(self, key: str) -> list[Any]:
        """The list under a key of the result; empty without a result."""
        return list((self.value or {}).get(key, []))


@dataclass
class AwsReadOnlyCalls:
    """Makes read-only calls. A call that is refused or fails is kept as a note."""

    clients: AwsClients
    notes: list[Finding] = field(default_factory=list)

    def __call__(self, what: str, call: Callable[..., Any], **arguments: Any) -> CallResult:
        """The answer of a call. If the call fails, a note says that ``what`` could not be
        checked.
        """
        try:
            return CallResult(call(**arguments))
        except SegtrainError as error:  # its message is already written for users
            self._unanswered(what, str(error))
        except Exception as error:
            code = code_of(error)
            if code in ABSENT:
                return CallResult(absent=True)
            if code in ELSEWHERE:
                return CallResult(elsewhere=True)
            self._unanswered(what, str(explain(error, getattr(call, "__name__", "call"))))
        return CallResult()

    def pages(
        self, what: str, client: Any, operation: str, key: str, **arguments: Any
    ) -> CallResult:
        """All items of a paginated call."""

        def collect() -> list[Any]:
            found = client.get_paginator(operation).paginate(**arguments)
            return [item for page in found for item in page.get(key, [])]

        collect.__name__ = operation
        return self(what, collect)

    def _unanswered(self, what: str, why: str) -> None:
        self.notes.append(
            note("not-asked", f"{what} could not be checked: {' '.join(why.split())}")
        )
