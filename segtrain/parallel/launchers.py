"""The variables in which torchrun and the launchers of MPI tell a process its place. Imports no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from segtrain.errors import ConfigError


class Launcher(NamedTuple):
    """Names of variables. An empty ``local_size``: the launcher does not say how many processes run
    on a host.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_PREFIXES = {"mpi": "OMPI_COMM_WORLD", "mvapich": "MV2_COMM_WORLD", "jsrun": "JSM_NAMESPACE"}
_WORDS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
# PALS and MVAPICH set variables of MPICH, too.
_MPI = (
    *(
        Launcher(name, *(f"{prefix}_{word}" for word in _WORDS))
        for name, prefix in _PREFIXES.items()
    ),
    Launcher("pals", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    Launcher("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
    # and Intel MPI
    Launcher("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def mpi_launchers(environ: Mapping[str, str]) -> list[Launcher]:
    """The launchers whose variables say that this is one of several processes; the most special one
    is first.
    """
    return [row for row in _MPI if row.rank in environ and environ.get(row.size) != "1"]


def refuse_unknown_launcher(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if there are a rank and a size above 1 whose names begin alike, such as
    X_RANK and X_SIZE.
    """
    for size, count in environ.items():
        match = re.fullmatch(r"(?!SLURM)(\w+?_)(WORLD_)?(SIZE|NTASKS|NPROCS|NRANKS)", size)
        if match is None or not count.isdigit():
            continue
        for rank in (match[1] + word for word in ("RANK", "RANKID", "PROCID")):
            if environ.get(rank, "").isdigit() and int(environ[rank]) < int(count) != 1:
                raise ConfigError(
                    f"{rank}={environ[rank]} and {size}={count}: a launcher that segtrain does not "
                    f"know seems to have started {count} processes, and each would train alone: "
                    f"set RANK, WORLD_SIZE, and MASTER_ADDR in each, or unset {size}",
                    code="unknown-launcher",
                    rank=rank,
                    size=size,
                )


def number(environ: Mapping[str, str], key: str, default: str | None = None) -> int:
    """The integer in a variable of a launcher. Raises ConfigError."""
    text = environ.get(key, default)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        problem = (
            " is missing, but others of its launcher are set"
            if text is None
            else f"={text!r} is not a number"
        )
        raise ConfigError(
            f"the environment variable {key}{problem}: start with torchrun or srun, or set RANK, "
            "WORLD_SIZE, and MASTER_ADDR in each process",
            code="bad-launcher-variable",
            key=key,
            found=text,
        ) from None
