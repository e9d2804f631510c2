"""Hosts of a rehearsal, and the faults that a user may plant in it. Pure functions, the same for
all platforms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segtrain.errors import ConfigError

NETWORK = "10.77.0."  # the bridge's network, inside the rehearsal's own network namespace
GATEWAY = NETWORK + "254"
MOST_HOSTS = 64
FAULTS = ("fail:RANK", "stop:STEP", "spot:STEP", "kill:STEP", "disk", "helper:STEP", "absent")


@dataclass(frozen=True)
class Fault:
    """A fault to inject. ``kind``: ``fail`` (a rank raises an exception), ``stop`` (the user stops
    the job), ``spot`` (machines are reclaimed with notice), ``kill`` (a machine is lost without
    notice), ``disk`` (the disk is full), ``late`` (a host starts late), ``helper`` (the hosts that
    do not train are stopped), or ``absent`` (they never reach the others). ``at``: the rank for
    fail; the seconds for late; the step for the others that have a number.
    """

    kind: str = ""
    at: int = 0


def read_fault(text: str, plants: Sequence[str] = FAULTS) -> Fault:
    """Read a fault such as ``spot:20``, which must match one of ``plants``; ``""``: no fault.
    Raises ConfigError.
    """
    if not text:
        return Fault()
    kind, colon, number = text.partition(":")
    numbered = {name: bool(word) for name, _, word in (plant.partition(":") for plant in plants)}
    if kind not in numbered or not (number.isdigit() if numbered[kind] else not colon):
        raise ConfigError(
            f"--plant {text}: write {', '.join(plants[:-1])} or {plants[-1]}, for example "
            "--plant spot:20",
            code="plant-unknown",
            found=text,
        )
    return Fault(kind, int(number or 0))


def refuse_rank(text: str, ranks: int) -> None:
    """Raises ConfigError if the rehearsal has no rank with the number in ``fail:RANK``: nothing
    would fail, and the rehearsal would pass.
    """
    kind, _, number = text.partition(":")
    if kind == "fail" and int(number) >= ranks:
        raise ConfigError(
            f"--plant {text}: there is no rank {number}: the rehearsal has {ranks} "
            f"rank{'s' * (ranks > 1)}, 0 to {ranks - 1} (--hosts and --procs make more)",
            code="plant-without-rank",
            found=text,
        )


@dataclass(frozen=True)
class RehearsalHost:
    name: str  # without namespaces, which give names: a loopback address
    number: int
    group: str
    type: str
    trains: bool

    @property
    def address(self) -> str:
        return f"{NETWORK}{self.number}"


@dataclass(frozen=True)
class RehearsalCluster:
    """All hosts of a rehearsal. ``leader``: the host of rank 0; ``interface``: the network
    interface of each host.
    """

    hosts: tuple[RehearsalHost, ...]
    interface: str
    leader: RehearsalHost
    hyperparameters: Mapping[str, str]
    said: tuple[str, ...]  # differences from the cloud, one sentence each

    def members(self, group: str) -> list[str]:
        """The host names of a group, deliberately not sorted, as no cloud promises an order."""
        return [host.name for host in reversed(self.hosts) if host.group == group]

    @property
    def groups(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((host.group, host.type) for host in self.hosts))
