"""The variables in which launchers tell a process its place: torchrun, MPI, Slurm, and others. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from segtrain.errors import ConfigError


class Launcher(NamedTuple):
    """Names of variables. An empty ``local_size``: the launcher does not say how many processes run on a host."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# SLURM_NTASKS is set in a batch script and in salloc's shell as well; SLURM_STEP_NUM_TASKS only under srun.
SLURM = Launcher("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
_PREFIXES = {"mpi": "OMPI_COMM_WORLD", "mvapich": "MV2_COMM_WORLD", "jsrun": "JSM_NAMESPACE"}
_WORDS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
# PALS and MVAPICH set variables of MPICH, too.
_MPI = (
    *(Launcher(name, *(f"{prefix}_{word}" for word in _WORDS)) for name, prefix in _PREFIXES.items()),
    Launcher("pals", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    Launcher("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""),
    Launcher("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # and Intel MPI
)


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process as one of several; None: no launcher, or a single process.

    torchrun also counts with a single process. Raises ConfigError if a launcher that is not known has started several.
    """
    if TORCHRUN.rank in environ or TORCHRUN.size in environ:
        return TORCHRUN
    started = [row for row in _MPI if row.rank in environ and environ.get(row.size) != "1"]
    if SLURM.rank in environ and environ.get(SLURM.size, "1") != "1":
        place = environ[SLURM.rank], environ[SLURM.size]
        if all(place == (environ[row.rank], environ.get(row.size)) for row in started):
            return SLURM  # srun --mpi=pmi2 sets MPICH's variables, too; Slurm's also name the hosts.
    if started:
        return started[0]
    _refuse_unknown(environ)
    return None


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if there are a rank and a size above 1 whose names begin alike, such as X_RANK and X_SIZE."""
    for size, count in environ.items():
        found = re.fullmatch(r"(?!SLURM)(\w+?_)(WORLD_)?(SIZE|NTASKS|NPROCS|NRANKS)", size)
        for rank in (found[1] + word for word in ("RANK", "RANKID", "PROCID")) if found and count.isdigit() else ():
            if environ.get(rank, "").isdigit() and int(environ[rank]) < int(count) != 1:
                raise ConfigError(
                    f"{rank}={environ[rank]} and {size}={count}: a launcher that segtrain does not know seems to have "
                    f"started {count} processes, and each would train alone: set RANK, WORLD_SIZE, and MASTER_ADDR in "
                    f"each, or unset {size}",
                    code="unknown-launcher", rank=rank, size=size,
                )  # fmt: skip


def number(environ: Mapping[str, str], key: str, default: str | None = None) -> int:
    """The integer in a variable of a launcher. Raises ConfigError."""
    text = environ.get(key, default)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        problem = " is missing, but others of its launcher are set" if text is None else f"={text!r} is not a number"
        raise ConfigError(
            f"the environment variable {key}{problem}: start with torchrun or srun, or set RANK, WORLD_SIZE, and "
            "MASTER_ADDR in each process",
            code="bad-launcher-variable", key=key, found=text,
        ) from None  # fmt: skip
