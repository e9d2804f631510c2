"""The replicas of a Vertex AI job that train, in the order of their ranks, from CLUSTER_SPEC or
TF_CONFIG.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segtrain.errors import ConfigError
from segtrain.parallel.cluster import Cluster, RankStarter, checked
from segtrain.parallel.launchers import number

VERTEX = RankStarter("vertex")
PORT = 2222
# The worker pool of each task type. CLUSTER_SPEC uses the names of pools, and TF_CONFIG uses
# TensorFlow's names.
_POOLS = {f"workerpool{number}": number for number in range(4)}
_POOLS |= {"chief": 0, "master": 0, "worker": 1, "ps": 2, "evaluator": 3}
_TRAINING = (0, 1)
# Vertex AI sets one of these in each container. TF_CONFIG alone may come from elsewhere.
_OF_VERTEX = ("CLOUD_ML_JOB_ID", "CLOUD_ML_PROJECT_ID")
_FIX = (
    "if this is not Vertex AI, unset it; otherwise start the job again, because Vertex AI sets it"
)


@dataclass(frozen=True)
class Replicas:
    """This replica's worker pool and its index there. ``training``: HOST:PORT of each replica that
    trains, by rank.
    """

    variable: str
    pool: int
    index: int
    training: tuple[str, ...]

    @property
    def trains(self) -> bool:
        return self.pool in _TRAINING

    @property
    def number(self) -> int:
        """The index of this replica in ``training``: 0 in pool 0, and 1 + index in pool 1."""
        return self.index + self.pool

    @property
    def address(self) -> tuple[str, int]:
        """Name and port of the primary replica."""
        return _split(self.training[0])

    def name(self, number: int) -> str:
        """The host name of a replica that trains."""
        return _split(self.training[number])[0]

    def refuse_idle(self) -> None:
        """Raise ConfigError if this replica's pool does not train."""
        if self.trains:
            return
        meant = {2: "parameter servers", 3: "evaluators"}[self.pool]
        raise ConfigError(
            f"this replica is in worker pool {self.pool} ({meant}), which segtrain does not use: "
            "remove the pool from the job, or let it run Google's image of the reduction server "
            "(pool 2)",
            code="pool-does-not-train",
            variable=self.variable,
            found=self.pool,
        )


def read_replicas(environ: Mapping[str, str] = os.environ) -> Replicas | None:
    """The replicas of this job; None outside Vertex AI. Raises ConfigError for a variable that
    contradicts itself.
    """
    variable = "CLUSTER_SPEC"
    if not environ.get(variable):
        variable = "TF_CONFIG"
        if not environ.get(variable) or not any(environ.get(name) for name in _OF_VERTEX):
            return None
    text = environ[variable]
    try:
        pool, index, pools = _parsed(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        shown = text if len(text) <= 300 else f"{text[:300]}..."
        raise ConfigError(
            f"the environment variable {variable} cannot be used ({reason}): {shown!r}: {_FIX}",
            code="bad-cluster-spec",
            variable=variable,
            found=text,
            reason=reason,
        ) from None
    training = tuple(address for number in _TRAINING for address in pools.get(number, ()))
    return Replicas(variable, pool, index, training)


def ranks(environ: Mapping[str, str]) -> Cluster | None:
    """One process per host, when neither segtrain.platforms.vertex nor a launcher started this
    process.

    None with one host, where ``segtrain train`` starts one process per GPU by itself.
    """
    replicas = read_replicas(environ)
    if replicas is None:
        return None
    replicas.refuse_idle()
    if len(replicas.training) == 1:
        return None
    host, port = replicas.address
    port = number(environ, "MASTER_PORT", str(port))
    return checked(Cluster(replicas.number, len(replicas.training), 0, 1, host, port, VERTEX))


def _parsed(text: str) -> tuple[int, int, dict[int, list[str]]]:
    """Pool and index of this replica, and the addresses of each pool.

    Raises ValueError, KeyError, TypeError, or AttributeError for a malformed text.
    """
    content: dict[str, Any] = json.loads(text)
    task = content["task"]
    pool, index = _pool(task["type"]), int(task.get("index") or 0)
    pools: dict[int, list[str]] = {}
    for name, addresses in (content.get("cluster") or {}).items():
        if not isinstance(addresses, list):
            raise ValueError(f"cluster.{name} is not a list of HOST:PORT")
        pools.setdefault(_pool(name), []).extend(map(str, addresses))
    if not pools:
        # A job of a single replica.
        pools = {0: [f"127.0.0.1:{PORT}"]}
    everyone = [address for addresses in pools.values() for address in addresses]
    for address in everyone:
        _split(address)
        if everyone.count(address) > 1:
            raise ValueError(f"cluster names {address} twice")
    if len(pools.get(0, ())) != 1:
        raise ValueError(
            f"worker pool 0 has {len(pools.get(0, ()))} replicas, and it must have exactly one"
        )
    if not 0 <= index < len(pools.get(pool, ())):
        raise ValueError(
            f"task says {task['type']} {index}, but cluster has {len(pools.get(pool, ()))} of them"
        )
    return pool, index, pools


def _pool(name: Any) -> int:
    if name not in _POOLS:
        raise ValueError(f"{name!r} is not a worker pool")
    return _POOLS[name]


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon:
        return address, PORT
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host, int(port)
