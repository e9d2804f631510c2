"""Parts of a Vertex AI job (accelerators, scheduling, mounts), and functions that read each from a
user's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from launch.core import job_values as values
from segtrain.errors import ConfigError

Scheduling = Literal["STANDARD", "SPOT", "FLEX_START"]
Start = Literal["bundle", "image"]
_ACCELERATOR = re.compile(r"([A-Za-z0-9_-]+)(?:[:*](\d+))?")


@dataclass(frozen=True)
class Accelerator:
    """GPUs of one host. ``type``: a name in the API's enum AcceleratorType, such as
    NVIDIA_TESLA_T4.
    """

    type: str
    count: int = 1


@dataclass(frozen=True)
class Nfs:
    """An NFS share, which is mounted in the containers as /mnt/nfs/MOUNT_POINT."""

    server: str
    path: str
    mount_point: str

    @property
    def folder(self) -> str:
        return f"/mnt/nfs/{self.mount_point}"


@dataclass(frozen=True)
class Lustre:
    """A Managed Lustre instance, which is mounted in the containers as /mnt/lustre/MOUNT_POINT."""

    filesystem: str
    instance_ip: str
    volume_handle: str
    mount_point: str

    @property
    def folder(self) -> str:
        return f"/mnt/lustre/{self.mount_point}"


def accelerator(value: Any, where: str) -> Accelerator | None:
    """Read ``NVIDIA_TESLA_T4:4``, or ``{type: ..., count: ...}``. An empty text means None."""
    if isinstance(value, Mapping):
        described = values.strict_mapping(value, ("type", "count"), where)
        kind = values.text(described.get("type", ""), f"{where}.type")
        count = described.get("count", 1)
    else:
        match = _ACCELERATOR.fullmatch(values.text(value, where))
        if value and match is None:
            raise values.wrong(where, value, "TYPE:COUNT, as NVIDIA_TESLA_T4:4")
        kind, count = (match[1], match[2] or 1) if match else ("", 1)
    return Accelerator(kind, values.at_least(1)(count, f"{where}.count")) if kind else None


def named_as(form: str, pattern: str = "") -> Callable[[Any, str], str]:
    """A function that reads a name of this form, in which capitals stand for any word, or with this
    pattern. An empty text stays.
    """
    expected = re.compile(pattern or re.sub("[A-Z]+", "[^/@]+", form))

    def read(value: Any, where: str) -> str:
        name = values.text(value, where)
        if name and not expected.fullmatch(name):
            raise values.wrong(where, value, form)
        return name

    return read


def scheduling(value: Any, where: str) -> Any:
    """Read a scheduling strategy, such as ``spot``, ``SPOT``, ``flex-start``, or ``FLEX_START``."""
    return values.choice(values.text(value, where).upper().replace("-", "_"), Scheduling, where)


def nfs(value: Any, where: str) -> tuple[Nfs, ...]:
    """Read ``[{server: 10.0.0.2, path: /data, mount_point: data}]``, or texts such as
    ``data=10.0.0.2:/data``.
    """
    return tuple(_nfs(item, where) for item in _list(value))


def _nfs(item: Any, where: str) -> Nfs:
    if isinstance(item, Mapping):
        return Nfs(**_described(item, Nfs, where))
    match = re.fullmatch(r"([^=/]+)=([^:/]+):(/.*)", values.text(item, where))
    if match is None:
        raise values.wrong(where, item, "MOUNT_POINT=SERVER:/PATH, as data=10.0.0.2:/data")
    return Nfs(match[2], match[3], match[1])


def lustre(value: Any, where: str) -> tuple[Lustre, ...]:
    """Read ``[{filesystem: ..., instance_ip: ..., volume_handle: ..., mount_point: ...}]``, or
    texts such as ``data=IP:/FILESYSTEM,projects/P/locations/ZONE/instances/NAME``.
    """
    return tuple(_lustre(item, where) for item in _list(value))


def _lustre(item: Any, where: str) -> Lustre:
    if isinstance(item, Mapping):
        return Lustre(**_described(item, Lustre, where))
    match = re.fullmatch(r"([^=/]+)=([^:/]+):/([^,/]+),(.+)", values.text(item, where))
    if match is None:
        raise values.wrong(
            where, item, "MOUNT_POINT=IP:/FILESYSTEM,projects/P/locations/ZONE/instances/NAME"
        )
    return Lustre(match[3], match[2], match[4], match[1])


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _described(item: Mapping[str, Any], kind: type, where: str) -> dict[str, str]:
    names = tuple(field.name for field in fields(kind))
    described = values.strict_mapping(item, names, where)
    missing = [name for name in names if not described.get(name)]
    if missing:
        raise ConfigError(
            f"{where}: a mount without {', '.join(missing)}: give {', '.join(names)}",
            code="mount-incomplete",
            key=where,
        )
    return {name: values.text(described[name], f"{where}.{name}") for name in names}
