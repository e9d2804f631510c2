"""Machine types that can be rented: sizes, GPUs, network, price, and the sources of these figures.

The tables are CSV files that a person can edit: one for each cloud, and gpus.csv. A line "# source KEY: TEXT" in their
heads defines a source, and the columns ``..._from`` name one. A test compares sizes with EC2's own catalog.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_SOURCE = re.compile(r"# source ([\w-]+): (.+)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Gpu:
    """``arch``: CUDA architecture, such as "sm_80". ``memory_gb``: of one GPU. ``speed``: training speed of one GPU,
    V100 16 GB = 1.0; None if no measurement is known.
    """

    name: str
    arch: str
    memory_gb: int
    speed: float | None


@dataclass(frozen=True)
class Machine:
    """A machine type. ``gpu``, ``arch``: "" without a GPU. ``gpu_memory_gb``: of one GPU.

    ``network_gbit``: the burst rate where the cloud says "up to". ``nvme_gb``: 0 without a local NVMe disk. ``smddp``:
    whether SageMaker's all-reduce library supports it. ``price``: dollars per hour on demand; None if no source is
    known. ``speed``: training speed of all its GPUs, 8 V100 = 1.0; None if no measurement is known. ``source``: where
    the sizes are from. ``retired``: why the cloud no longer rents it, else "".
    """

    name: str
    gpus: int
    gpu: str
    arch: str
    gpu_memory_gb: int
    vcpus: int
    memory_gb: float
    nvme_gb: int
    network_gbit: float
    efa: bool
    smddp: bool
    price: float | None
    price_source: str
    retired: str
    speed: float | None
    source: str


@lru_cache
def gpus() -> dict[str, Gpu]:
    """All GPUs of the tables by name."""
    return {
        row["gpu"]: Gpu(row["gpu"], row["arch"], int(row["memory_gb"]), float(row["speed"]) if row["speed"] else None)
        for row in _rows("gpus")
    }


@lru_cache
def machines(cloud: str = "sagemaker") -> dict[str, Machine]:
    """The machine types of a table by name, in the table's order."""
    named = sources(cloud)
    return {row["type"]: _machine(row, named) for row in _rows(cloud)}


@lru_cache
def sources(table: str) -> dict[str, str]:
    """The sources that the head of a table defines: key -> text."""
    return {found[1]: found[2] for line in _lines(table) if (found := _SOURCE.fullmatch(line))}


def dated(source: str) -> str:
    """The first day that the text of a source names, such as "2026-09-27"; "" without one."""
    found = _DAY.search(source)
    return found[0] if found else ""


def _machine(row: dict[str, str], named: dict[str, str]) -> Machine:
    count, gpu = int(row["gpus"]), gpus().get(row["gpu"])
    return Machine(
        name=row["type"],
        gpus=count,
        gpu=row["gpu"],
        arch=gpu.arch if gpu else "",
        gpu_memory_gb=gpu.memory_gb if gpu else 0,
        vcpus=int(row["vcpus"]),
        memory_gb=float(row["memory_gb"]),
        nvme_gb=int(row["nvme_gb"]),
        network_gbit=float(row["network_gbit"]),
        efa=row["efa"] == "yes",
        smddp=row["smddp"] == "yes",
        price=float(row["usd_per_hour"]) if row["usd_per_hour"] else None,
        price_source=named[row["price_from"]] if row["price_from"] else "",
        retired=named[row["retired"]] if row["retired"] else "",
        speed=round(count * gpu.speed / 8, 2) if gpu and gpu.speed else None,
        source=named[row["size_from"]],
    )


def _rows(table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in _lines(table) if not line.startswith("#")))


def _lines(table: str) -> list[str]:
    return (_FOLDER / f"{table}.csv").read_text(encoding="utf-8").splitlines()
