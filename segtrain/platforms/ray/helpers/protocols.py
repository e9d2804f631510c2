"""What a pool needs from the engine that places helpers: see cluster.py for Ray. Tests use threads
and processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from segtrain.errors import DataError
from segtrain.platforms.ray.helpers.wire import Link


class HelperRefused(DataError):
    """A helper must not be used, however often it is hired: it would make other pixels, or cannot
    make any.
    """


@dataclass(frozen=True)
class HelperSlot:
    """A core of a host where a helper may run. ``node``: a name that another start of the host does
    not have.
    """

    node: str
    host: str
    number: int


class RemoteWorker(Protocol):
    """A helper that has been placed. Each method raises an exception if the helper is gone or does
    not answer.
    """

    def identity(self, transforms: bool) -> dict[str, str]: ...

    def meet(self, name: bytes, content: bytes) -> None:
        """Give it a maker of samples, see ``wire.packed``. Raises HelperRefused if it cannot build
        the maker.
        """

    def connect(self, address: tuple[str, int], key: bytes) -> None:
        """Make it connect to the rank, soon."""

    def link(self, limit_s: float) -> Link | None:
        """Another way to it, if it cannot connect; None if there is no other way."""

    def close(self) -> None:
        """End it, without waiting. Raises nothing."""


class Engine(Protocol):
    """Places helpers. ``address``: the IP address of this host on which helpers can reach the
    rank.
    """

    address: str

    def slots(self) -> list[HelperSlot]:
        """The slots of this rank now. May raise any exception."""

    def hire(self, slot: HelperSlot) -> RemoteWorker: ...

    def stop(self) -> None:
        """Calls that wait for a helper give up soon, since the pool ends."""

    def close(self) -> None: ...


def other_than(there: dict[str, str], here: dict[str, str]) -> str:
    """How a helper differs from the rank, in words; "" if it does not."""
    names: dict[str, Any] = dict.fromkeys((*here, *there))
    versions = [(name, there.get(name, "none"), here.get(name, "none")) for name in names]
    return ", ".join(
        f"{name} {its} there and {ours} here" for name, its, ours in versions if its != ours
    )
