"""What a Slurm cluster says of itself: its settings, partitions, nodes, reservations, accounts, and
this user's jobs.

Read from Slurm's own commands, which only look. An answer that Slurm refuses is absent, and named.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launch.platforms.slurm.tools import fields
from segtrain.errors import SegtrainError

Ask = Callable[..., str]
# Flags and states of a node on which no job starts until a person or Slurm has changed them. A node
# that is powered down or booting is none of them.
AWAY = frozenset(
    (
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "ERROR",
        "MAINT",
        "NOT_RESPONDING",
        "NO_RESPOND",
    )
    + ("UNKNOWN", "INVALID_REG", "BLOCKED")
)
_ASLEEP = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP"))
_NOTHING = ("", "(null)", "N/A", "n/a", "None", "NONE", "none")


@dataclass(frozen=True)
class Partition:
    """``fields``: as ``scontrol show partition`` names them."""

    name: str
    fields: Mapping[str, str]

    def names(self, key: str) -> tuple[str, ...]:
        """A list of accounts or the like; () for ALL, or where Slurm names none."""
        return () if self.fields.get(key) == "ALL" else listed(self.fields.get(key, ""))

    @property
    def default(self) -> bool:
        return self.fields.get("Default") == "YES"


@dataclass(frozen=True)
class Node:
    """``gpus``: number of each type; a type of "" where the cluster names none."""

    name: str
    fields: Mapping[str, str]

    @property
    def partitions(self) -> tuple[str, ...]:
        return listed(self.fields.get("Partitions", ""))

    @property
    def state(self) -> frozenset[str]:
        words = (
            self.fields.get("State", "")
            .replace("*", "+NOT_RESPONDING")
            .replace("~", "+POWERED_DOWN")
        )
        return frozenset(word for word in words.split("+") if word)

    @property
    def away(self) -> bool:
        return bool(AWAY & self.state)

    @property
    def awake(self) -> bool:
        """Whether a job could start here at once."""
        return not self.away and not _ASLEEP & self.state and bool({"IDLE", "MIXED"} & self.state)

    @property
    def cpus(self) -> int:
        return int(self.fields.get("CPUEfctv") or self.fields.get("CPUTot") or 0)

    @property
    def memory_mb(self) -> int:
        return int(self.fields.get("RealMemory") or 0)

    @property
    def gpus(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kind, count in re.findall(
            r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)", self.fields.get("Gres", "")
        ):
            counts[kind] = counts.get(kind, 0) + int(count)
        return counts


@dataclass(frozen=True)
class Account:
    """What the user may do in one account. ``limits``: as sacctmgr names them."""

    name: str
    default_qos: str
    limits: Mapping[str, str]


@dataclass(frozen=True)
class SlurmState:
    """Everything that was asked. ``accounts``, ``qos``: None where Slurm does not say; ``refused``:
    question -> why; ``jobs``: number, state, dependency, and script of each job of this user.
    """

    config: Mapping[str, str]
    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]
    reservations: tuple[Mapping[str, str], ...] = ()
    accounts: tuple[Account, ...] | None = None
    default_account: str = ""
    qos: Mapping[str, Mapping[str, str]] | None = None
    jobs: tuple[tuple[str, str, str, str], ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def partition(self, name: str) -> Partition | None:
        """The one of that name; the default one for ""."""
        return next(
            (
                partition
                for partition in self.partitions
                if (partition.name == name if name else partition.default)
            ),
            None,
        )

    def nodes_of(self, partition: Partition) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if partition.name in node.partitions)

    def seconds(self, key: str) -> int:
        """A setting such as KillWait, which Slurm shows as ``30 sec``; 0 where it is not set."""
        match = re.match(r"\d+", self.config.get(key, ""))
        return int(match[0]) if match else 0

    @property
    def accounting(self) -> bool:
        return "slurmdbd" in self.config.get("AccountingStorageType", "")

    def enforces(self, what: str) -> bool:
        """Whether Slurm refuses, or holds, a job because of its association, limit, or QOS."""
        return what in self.config.get("AccountingStorageEnforce", "").lower()


def read(ask: Ask, user: str = "") -> SlurmState:
    """Ask Slurm. Raises SegtrainError where it does not answer at all."""
    user, refused = user or _user(), dict[str, str]()

    def may(what: str, *command: str) -> str | None:
        try:
            return ask(*command)
        except SegtrainError as problem:
            refused[what] = str(problem)
            return None

    config = settings(ask("scontrol", "show", "config"))
    partitions = [
        fields(line)
        for line in _lines(may("partitions", "scontrol", "-a", "-o", "show", "partition"))
    ]
    nodes = [fields(line) for line in _lines(may("nodes", "scontrol", "-a", "-o", "show", "node"))]
    booked = [
        fields(line)
        for line in _lines(may("reservations", "scontrol", "-o", "show", "reservation"))
    ]
    accounting: dict[str, Any] = {}
    if "slurmdbd" in config.get("AccountingStorageType", ""):
        accounting = _accounting(may, user, config.get("ClusterName", ""))
    jobs = [
        line.split("|", 3)
        for line in _lines(may("your jobs", "squeue", "-h", "-u", user, "-o", "%i|%T|%E|%o"))
    ]
    return SlurmState(
        config,
        tuple(Partition(row["PartitionName"], row) for row in partitions if "PartitionName" in row),
        tuple(Node(row["NodeName"], row) for row in nodes if "NodeName" in row),
        tuple(row for row in booked if "ReservationName" in row),
        jobs=tuple(
            (columns[0], columns[1], columns[2], columns[3])
            for columns in jobs
            if len(columns) == 4
        ),
        refused=refused,
        **accounting,
    )


def _accounting(may: Callable[..., str | None], user: str, cluster: str) -> dict[str, Any]:
    show, limits = ("sacctmgr", "-n", "-P", "show"), ("MaxWall", "MaxTRES", "GrpTRES")
    text = may(
        "your accounts",
        *show,
        "assoc",
        "where",
        f"user={user}",
        f"cluster={cluster}",
        f"format=account,partition,qos,defaultqos,{','.join(limits).lower()}",
    )
    rows = [line.split("|") for line in _lines(text)]
    accounts = tuple(
        Account(row[0], row[3], dict(zip(limits, row[4:]))) for row in rows if len(row) > 6
    )
    columns = (
        "MaxWall",
        "MaxTRES",
        "MaxTRESPU",
        "GrpTRES",
        "Flags",
        "Preempt",
        "PreemptMode",
        "GraceTime",
    )
    table = may("the QOS", *show, "qos", f"format=name,{','.join(columns).lower()}")
    levels = [line.split("|") for line in _lines(table)]
    default = _lines(may("your default account", *show, "user", user, "format=defaultaccount"))
    return {
        "accounts": None if text is None else accounts,
        "default_account": default[0].strip() if default else "",
        "qos": {row[0]: dict(zip(columns, row[1:])) for row in levels if len(row) > len(columns)}
        or None,
    }


def settings(text: str) -> dict[str, str]:
    """``scontrol show config`` as a mapping."""
    pairs = re.findall(r"^(\S+)\s+= ?(.*)$", text, re.MULTILINE)
    return {key: value.strip() for key, value in pairs}


def listed(text: str) -> tuple[str, ...]:
    return (
        ()
        if text.strip() in _NOTHING
        else tuple(part.strip() for part in text.split(",") if part.strip())
    )


def seconds(text: str) -> int | None:
    """``2-00:00:00``, ``01:00:00``, or ``30:00`` in seconds; None for UNLIMITED and where there is
    none.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, *rest = (int(part) if part else None for part in match.groups())
    first, second, third = rest
    assert first is not None
    if days is not None or third is not None:
        return (days or 0) * 86400 + first * 3600 + (second or 0) * 60 + (third or 0)
    return first * 60 + (second or 0)  # minutes, or minutes and seconds


def amounts(text: str) -> dict[str, int]:
    """``cpu=4,gres/gpu=2,mem=64G`` as numbers, memory in MB."""
    numbers: dict[str, int] = {}
    for part in listed(text):
        key, _, value = part.partition("=")
        if match := re.fullmatch(r"(\d+)([KMGT]?)", value):
            numbers[key] = megabytes(value) if key == "mem" else int(match[1])
    return numbers


def megabytes(text: str) -> int:
    """``64G``, or megabytes as Slurm reads a bare number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.strip().upper())
    unit = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
    return int(float(match[1]) * unit[match[2]]) if match else 0


def _lines(text: str | None) -> list[str]:
    return [line for line in (text or "").splitlines() if line.strip()]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""
