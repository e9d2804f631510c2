"""Machine types that can be rented: sizes, GPUs, network, price, and the sources of these figures.

The tables are CSV files that a person can edit: one for each cloud, and gpus.csv. A line "# source
KEY: TEXT" in their heads defines a source, and the columns ``..._from`` name one. A test compares
sizes with EC2's own catalog.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# Name of a cloud -> its table of machine types.
TABLES = {"aws": "sagemaker", "gcp": "vertex"}
_FOLDER = Path(__file__).parent
_SOURCE = re.compile(r"# source ([\w-]+): (.+)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
# Of a step on a V100: the share that no larger GPU shortens, and of the rest the share of
# arithmetic.
FIXED, ARITHMETIC = 0.1, 0.36


@dataclass(frozen=True)
class Gpu:
    """Data-sheet rates of one GPU. ``arch``: CUDA architecture, such as "sm_80". ``memory_gb``:
    GiB.

    ``fp32``, ``tf32``, ``fp16``, ``bf16``: peak TFLOP/s without sparsity, None where the GPU has no
    such unit. ``memory_gbs``: GB/s. ``nvlink_gbs``: GB/s in both directions, 0 without NVLink.
    ``watts``: power limit.
    """

    name: str
    arch: str
    memory_gb: int
    fp32: float | None
    tf32: float | None
    fp16: float | None
    bf16: float | None
    memory_gbs: float
    nvlink_gbs: float
    watts: int

    @property
    def mixed(self) -> float:
        """TFLOP/s in mixed precision: of the fastest 16-bit unit, else of the plain cores."""
        return max(self.fp16 or 0.0, self.bf16 or 0.0, self.fp32 or 0.0)

    @property
    def speed(self) -> float:
        """Training speed of a convolutional network in mixed precision, V100 = 1.0, derived from
        the data sheet.

        A step of ResNet-50 on a V100 is about one third arithmetic, and the rest is memory traffic.
        The tenth that larger GPUs do not shorten is chosen so that the A100 80 GB is 2.06 times as
        fast as the V100, as on NVIDIA's page of ResNet-50 v1.5 for PyTorch (container 21.03).
        """
        return 1 / (
            FIXED
            + (1 - FIXED)
            * (ARITHMETIC * 125 / self.mixed + (1 - ARITHMETIC) * 900 / self.memory_gbs)
        )


@dataclass(frozen=True)
class Machine:
    """A machine type. ``gpu``, ``arch``: "" without a GPU. ``gpu_memory_gb``: of one GPU.

    ``network_gbit``: the burst rate where the cloud says "up to". ``nvme_gb``: 0 without a local
    NVMe disk. ``smddp``: whether SageMaker's all-reduce library supports it. ``price``: dollars per
    hour on demand; None if no source is known. ``speed``: training speed of all its GPUs, 8 V100 =
    1.0, as ``Gpu.speed``; None without a GPU. ``source``: where the sizes are from. ``retired``:
    why the cloud no longer rents it, else "".
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
        row["gpu"]: Gpu(
            row["gpu"],
            row["arch"],
            int(row["memory_gb"]),
            fp32=_rate(row["fp32"]),
            tf32=_rate(row["tf32"]),
            fp16=_rate(row["fp16"]),
            bf16=_rate(row["bf16"]),
            memory_gbs=float(row["memory_gbs"]),
            nvlink_gbs=float(row["nvlink_gbs"]),
            watts=int(row["watts"]),
        )
        for row in _rows("gpus")
    }


@lru_cache
def machines(table: str = "sagemaker") -> dict[str, Machine]:
    """The machine types of a table by name, in the table's order."""
    named = sources(table)
    return {row["type"]: _machine(row, named) for row in _rows(table)}


def all_types() -> dict[str, Machine]:
    """The machine types of all tables by name."""
    return {name: machine for table in TABLES.values() for name, machine in machines(table).items()}


@lru_cache
def sources(table: str) -> dict[str, str]:
    """The sources that the head of a table defines: key -> text."""
    return {match[1]: match[2] for line in _lines(table) if (match := _SOURCE.fullmatch(line))}


def dated(source: str) -> str:
    """The first day that the text of a source names, such as "2026-09-27"; "" without one."""
    match = _DAY.search(source)
    return match[0] if match else ""


def _rate(cell: str) -> float | None:
    return float(cell) if cell else None


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
        speed=round(count * gpu.speed / 8, 2) if gpu else None,
        source=named[row["size_from"]],
    )


def _rows(table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in _lines(table) if not line.startswith("#")))


def _lines(table: str) -> list[str]:
    return (_FOLDER / f"{table}.csv").read_text(encoding="utf-8").splitlines()
