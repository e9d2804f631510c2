"""Calls to a cloud before a job is sent. They only read, and never raise: each has a result, or a
note says what could not be checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, Generic, TypeVar

from launch.core.findings import Finding, note

ClientsT = TypeVar("ClientsT")


@dataclass(frozen=True)
class CallResult:
    """``value`` None: the call failed, or the resource does not exist (``absent``), or it is in
    another region (``elsewhere``).
    """

    value: Any = None
    absent: bool = False
    elsewhere: bool = False

    def items(self, key: str) -> list[Any]:
        """The list under a key of the value; empty without a value."""
        return list((self.value or {}).get(key, []))


@dataclass
class ReadOnlyCalls(ABC, Generic[ClientsT]):
    """Makes calls with the clients of a cloud, and keeps a note of each that failed."""

    clients: ClientsT
    notes: list[Finding] = field(default_factory=list)

    @abstractmethod
    def meaning(self, error: Exception) -> CallResult | str:
        """What an error of a call says about the resource, or else why the call failed."""

    def __call__(
        self, what: str, call: Callable[..., Any], *items: Any, **named: Any
    ) -> CallResult:
        """The result of ``call(*items, **named)``. ``what``: what it is to check, for the note."""
        try:
            return CallResult(call(*items, **named))
        except Exception as error:
            result = self.meaning(error)
        if isinstance(result, str):
            self.unchecked(what, result)
            return CallResult()
        return result

    def unchecked(self, what: str, why: str) -> None:
        why = shorten(why, 300)  # a proxy may answer with a whole page of HTML
        self.notes.append(note("not-asked", f"{what} could not be checked: {why}"))
