"""Calls to AWS that never fail the check: an answer, "there is no such thing", or a note that AWS refused to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from launch.aws.cloud import Clients
from launch.aws.cures import code_of, explain
from launch.findings import Finding, note
from segtrain.errors import SegtrainError

# What is answered for a thing that is not there.
ABSENT = (
    *("404", "NoSuchBucket", "NoSuchKey", "NoSuchEntity", "FileSystemNotFound"),
    *("InvalidSubnetID.NotFound", "InvalidGroup.NotFound", "InvalidGroupId.Malformed", "InvalidSubnetID.Malformed"),
    *("RepositoryNotFoundException", "ImageNotFoundException", "ServerSideEncryptionConfigurationNotFoundError"),
)
ELSEWHERE = ("301", "PermanentRedirect", "AuthorizationHeaderMalformed")


@dataclass(frozen=True)
class Answer:
    """``value`` None: no answer; ``absent``: there is no such thing; ``elsewhere``: it is in another region."""

    value: Any = None
    absent: bool = False
    elsewhere: bool = False


@dataclass
class Asking:
    """Calls that only read. What was refused, or not understood, is kept as notes."""

    clients: Clients
    notes: list[Finding] = field(default_factory=list)

    def __call__(self, what: str, call: Callable[..., Any], **arguments: Any) -> Answer:
        """``what`` could not be checked where the call is refused."""
        try:
            return Answer(call(**arguments))
        except SegtrainError as error:  # it is in words already
            self._unanswered(what, str(error))
        except Exception as error:
            code = code_of(error)
            if code in ABSENT:
                return Answer(absent=True)
            if code in ELSEWHERE:
                return Answer(elsewhere=True)
            self._unanswered(what, str(explain(error, getattr(call, "__name__", "call"))))
        return Answer()

    def pages(self, what: str, client: Any, operation: str, key: str, **arguments: Any) -> Answer:
        """All items of a paginated call."""

        def collect() -> list[Any]:
            found = client.get_paginator(operation).paginate(**arguments)
            return [item for page in found for item in page.get(key, [])]

        collect.__name__ = operation
        return self(what, collect)

    def _unanswered(self, what: str, why: str) -> None:
        self.notes.append(note("not-asked", f"{what} could not be checked: {' '.join(why.split())}"))
