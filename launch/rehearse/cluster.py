"""Hosts of a rehearsal, and the faults that may be planted in it. Pure, and of no platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from segtrain.errors import ConfigError

NETWORK = "10.77.0."  # of the bridge, inside a network namespace of the rehearsal's own
GATEWAY = NETWORK + "254"
MOST_HOSTS = 64
PLANTS = ("fail", "stop", "spot", "kill", "disk")


@dataclass(frozen=True)
class Plant:
    """What is to go wrong: ``fail`` (rank ``at`` raises), ``stop`` (the user stops the job), ``spot`` (reclaimed, with
    notice), ``kill`` (lost, without), ``disk`` (full). ``at``: the step of stop, spot and kill.
    """

    kind: str = ""
    at: int = 0


def read_plant(text: str) -> Plant:
    """``fail:RANK``, ``stop:STEP``, ``spot:STEP``, ``kill:STEP``, ``disk`` or ``""``. Raises ConfigError."""
    if not text:
        return Plant()
    kind, colon, number = text.partition(":")
    good = kind in PLANTS and (number.isdigit() if kind != "disk" else not colon)
    if not good:
        raise ConfigError(
            f"--plant {text}: write fail:RANK, stop:STEP, spot:STEP, kill:STEP or disk, for example --plant spot:20"
        )
    return Plant(kind, int(number or 0))


def refuse_rank(text: str, ranks: int) -> None:
    """Raises ConfigError where the rank that a plant names is not on stage: it would never fail, and the rehearsal
    would pass.
    """
    plant = read_plant(text)
    if plant.kind == "fail" and plant.at >= ranks:
        raise ConfigError(
            f"--plant {text}: there is no rank {plant.at}: the rehearsal has {ranks} rank{'s' * (ranks > 1)}, "
            f"0 to {ranks - 1} (--hosts and --procs make more)"
        )


@dataclass(frozen=True)
class RehearsalHost:
    name: str  # or the loopback address where names cannot be made
    number: int
    group: str
    type: str
    trains: bool

    @property
    def address(self) -> str:
        return f"{NETWORK}{self.number}"


@dataclass(frozen=True)
class RehearsalCluster:
    """``leader``: the host of rank 0."""

    hosts: tuple[RehearsalHost, ...]
    interface: str
    leader: RehearsalHost
    hyperparameters: Mapping[str, str]
    said: tuple[str, ...]  # each difference from the cloud, in a sentence

    def members(self, group: str) -> list[str]:
        """The names of the hosts of a group, in an order that is not sorted: no cloud promises one."""
        return [host.name for host in reversed(self.hosts) if host.group == group]

    @property
    def groups(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((host.group, host.type) for host in self.hosts))
