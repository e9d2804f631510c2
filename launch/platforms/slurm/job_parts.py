"""Parts of a Slurm job (GPUs, tasks of an array) and the readers of what people write for each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launch.core import job_values as values

# task: srun starts one process per GPU. node: srun starts one torchrun per node, which starts one
# process per GPU.
Start = Literal["task", "node"]
# node: each process sees the GPUs of its node and takes the one of its local number. task: each
# sees its own alone.
Bind = Literal["node", "task"]
_GPUS = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]*):)?(\d+)")
_MEMORY = re.compile(r"\d+[KMGT]|0")
_AFTER = re.compile(r"(?:(after|afterany|afterok|afternotok|aftercorr):)?(\d+(?:_\d+)?)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Gpus:
    """GPUs of each node. ``type``: as the cluster names it (sinfo -o %G), empty for any."""

    count: int
    type: str = ""

    def __str__(self) -> str:
        return f"{self.type}:{self.count}" if self.type else str(self.count)


def gpus(value: Any, where: str) -> Gpus:
    """``4``, ``h100:8``, or ``{type: h100, count: 8}``."""
    if isinstance(value, Mapping):
        described = values.strict_mapping(value, ("type", "count"), where)
        kind = values.text(described.get("type", ""), f"{where}.type")
        count = described.get("count", 1)
    else:
        match = _GPUS.fullmatch(values.text(value, where))
        if match is None:
            raise values.wrong(where, value, "COUNT or TYPE:COUNT for each node, as 4 or h100:8")
        kind, count = match[1] or "", match[2]
    return Gpus(values.at_least(0)(count, f"{where}.count"), kind)


def name(value: Any, where: str) -> str:
    """A word that can be a folder and a job name."""
    if not _NAME.fullmatch(values.text(value, where)):
        raise values.wrong(where, value, "letters, digits, '.', '_', and '-'")
    return str(value)


def memory(value: Any, where: str) -> str:
    """``64G``; ``0`` is all memory of a node. Slurm reads other bare numbers as megabytes."""
    if not _MEMORY.fullmatch(values.text(value, where)):
        raise values.wrong(where, value, "memory of each node, as 64G or 64000M, or 0 for all")
    return str(value)


def after(value: Any, where: str) -> str:
    """``123``: after job 123 has succeeded; ``afterany:123`` and so on as in ``sbatch
    --dependency``.
    """
    match = _AFTER.fullmatch(values.text(value, where))
    if match is None:
        raise values.wrong(where, value, "the number of a job, or KIND:NUMBER, as afterany:123")
    return f"{match[1] or 'afterok'}:{match[2]}"


def seeds(value: Any, where: str) -> tuple[int, ...]:
    """``0,1,2`` or a list of numbers."""
    items = value if isinstance(value, (list, tuple)) else [value]
    texts = [part.strip() for item in items for part in values.text(item, where).split(",")]
    values.once(texts, where)
    return tuple(values.whole(text, where) for text in texts)


def folder(value: Any, where: str) -> str:
    """A path that can stand in a line of #SBATCH."""
    path = values.local_path(value, where)
    if re.search(r'["\\\x00-\x1f]', path):
        raise values.wrong(
            where, value, "a folder whose name has no quotes, backslashes, and line breaks"
        )
    return path


def tasks(value: Any, where: str) -> tuple[str, ...]:
    """The settings of each task of an array, as ``train.seed=1 optim.lr=0.01``."""
    wanted = 'settings for each task, as "train.seed=1 optim.lr=0.1"'
    for item in values.texts(value, where):
        try:
            settings = shlex.split(item)
        except ValueError as error:
            raise values.wrong(where, item, f"{wanted} ({str(error).lower()})") from None
        if not settings or not all(re.match(r"[\w.-]+=", setting) for setting in settings):
            raise values.wrong(where, item, wanted)
        values.once([setting.partition("=")[0] for setting in settings], where)
    return values.texts(value, where)
