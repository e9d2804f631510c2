"""Parts of a SageMaker job (data channels, groups of machines, fallback types, metrics), and
functions that parse them from the job file and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from launch.core import job_values as values
from segtrain.errors import ConfigError


@dataclass(frozen=True)
class Channel:
    """A named folder of data: an S3 prefix (``uri``), or a folder of a file system (``file_system``
    and ``path``).

    ``groups``: the instance groups that get it; empty: all.
    """

    name: str
    uri: str = ""
    mode: Literal["File", "FastFile"] = "File"
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] = "FullyReplicated"
    groups: tuple[str, ...] = ()
    file_system: str = ""
    file_system_type: Literal["FSxLustre", "EFS"] = "FSxLustre"
    path: str = ""
    access: Literal["ro", "rw"] = "ro"

    @property
    def is_file_system(self) -> bool:
        return bool(self.file_system)


@dataclass(frozen=True)
class Group:
    """Machines of one type in a job of several types.

    ``train``: this group trains. ``help``: it makes samples for the group that trains. The others
    end at once.
    """

    name: str
    type: str
    instances: int = 1
    train: bool = False
    help: bool = False


@dataclass(frozen=True)
class Fallback:
    """A machine type that is used while the types before it have no capacity.

    ``instances`` None: as many as of the job's ``type``.
    """

    type: str
    instances: int | None = None


@dataclass(frozen=True)
class Metric:
    """A number that the platform extracts from the log: the first group of ``regex``."""

    name: str
    regex: str


# Metrics in the lines of segtrain/observe/console.py and in the line after an evaluation.
DEFAULT_METRICS = (
    Metric("train:loss", r"step +[0-9]+/[0-9]+  loss +([0-9.]+)"),
    Metric("train:lr", r"  lr ([0-9.]+e[-+][0-9]+)"),
    Metric("train:images_per_second", r" ([0-9.]+) img/s"),
    Metric("train:data_wait_percent", r" img/s  wait +([0-9]+)%"),
    Metric("train:epoch", r"epoch +([0-9.]+)/[0-9.e+]+  step"),
    Metric("val:miou_percent", r"step [0-9]+  mIoU ([0-9.]+)%"),
    Metric("val:pixel_accuracy_percent", r"mIoU [0-9.]+%.*  pixel accuracy ([0-9.]+)%"),
)

_PLACES = (
    "s3://BUCKET/PREFIX/, fsx://fs-0123456789abcdef0/MOUNTNAME/FOLDER or "
    "efs://fs-0123456789abcdef0/FOLDER"
)
_CHOICES = {
    "mode": Literal["File", "FastFile"],
    "distribution": Literal["FullyReplicated", "ShardedByS3Key"],
    "file_system_type": Literal["FSxLustre", "EFS"],
    "access": Literal["ro", "rw"],
}
_CHANNEL_KEYS = tuple(item.name for item in fields(Channel) if item.name != "name")
_GROUP_KEYS = tuple(item.name for item in fields(Group) if item.name != "name")


def mode(value: Any, where: str) -> Any:
    if str(value).lower() == "pipe":
        raise ConfigError(
            f"{where}={value!r}: Pipe hands each channel on as one stream, which training in "
            "random order cannot read: write FastFile, which reads from S3 without a copy as well, "
            "in any order",
            code="mode-pipe",
        )
    return values.choice(value, _CHOICES["mode"], where)


def channels(value: Any, where: str) -> tuple[Channel, ...]:
    """Channels from ``{train: s3://...}`` or ``["train=s3://...", ...]`` (--data). The default name
    is ``train``.
    """
    if isinstance(value, Mapping):
        return tuple(channel(str(name), item, f"{where}.{name}") for name, item in value.items())
    if not isinstance(value, (str, list, tuple)):
        raise ConfigError(
            f"{where}={value!r}: must be names with addresses, such as train: s3://BUCKET/PREFIX/",
            code="channel-form",
        )
    named = [
        values.named(values.text(item, where))
        for item in ([value] if isinstance(value, str) else value)
    ]
    return values.unique([channel(name or "train", text, where) for name, text in named], where)


def channel(name: str, value: Any, where: str) -> Channel:
    """A channel from its location (a string) or from its fields (a mapping). Raises ConfigError."""
    if isinstance(value, str):
        return Channel(name, **_place(value, where))
    described: dict[str, Any] = dict(values.strict_mapping(value, _CHANNEL_KEYS, where))
    for key, item in described.items():
        if key == "mode":
            mode(item, f"{where}.{key}")
        elif key in _CHOICES:
            values.choice(item, _CHOICES[key], f"{where}.{key}")
        elif key == "groups":
            described[key] = values.texts(item, f"{where}.{key}")
        else:
            described[key] = values.text(item, f"{where}.{key}")
    if "uri" in described:  # fsx://... is a short form here as well
        described = {**_place(described.pop("uri"), f"{where}.uri"), **described}
    if not described.get("uri") and not described.get("file_system"):
        raise ConfigError(
            f"{where} has no place: add uri: s3://BUCKET/PREFIX/, or file_system: fs-... and "
            "path: /...",
            code="channel-without-place",
        )
    return Channel(name, **described)


def groups(value: Any, where: str) -> tuple[Group, ...]:
    """Groups from ``{gpu: {type: ml.g5.xlarge, instances: 2, train: true}}`` or
    ``["gpu=ml.g5.xlarge*2:train"]``.
    """
    if isinstance(value, Mapping):
        return tuple(_group(str(name), item, f"{where}.{name}") for name, item in value.items())
    return values.unique(
        [Group(*_named_group(item, where)) for item in values.texts(value, where)], where
    )


def _group(name: str, value: Any, where: str) -> Group:
    if isinstance(value, str):
        return Group(*_named_group(f"{name}={value}", where))
    described = values.strict_mapping(value, _GROUP_KEYS, where)
    if "type" not in described:
        raise ConfigError(
            f"{where} has no type: add one, as type: ml.g5.xlarge", code="group-without-type"
        )
    return Group(
        name,
        values.text(described["type"], f"{where}.type"),
        values.whole(described.get("instances", 1), f"{where}.instances"),
        values.switch(described.get("train", False), f"{where}.train"),
        values.switch(described.get("help", False), f"{where}.help"),
    )


def fallbacks(value: Any, where: str) -> tuple[Fallback, ...]:
    """Fallback types from ``[ml.g5.48xlarge, ml.g5.24xlarge*2]``."""
    entries = []
    for item in values.texts(value, where):
        name, star, count = item.partition("*")
        entries.append(Fallback(name, values.whole(count, f"{where} {item}") if star else None))
    return tuple(entries)


def members(value: Any, where: str) -> dict[str, Any]:
    """Members of the request from ``{A: {B: 1}}``, or from the command line's ``["A.B=1",
    ...]``.
    """
    if isinstance(value, Mapping):
        return dict(value)
    tree: dict[str, Any] = {}
    for item in values.texts(value, where):
        path, equals, content = item.partition("=")
        if not equals or not all(path.split(".")):
            raise ConfigError(
                f"{where}={item!r}: must be MEMBER.MEMBER=value, as "
                "InfraCheckConfig.EnableInfraCheck=true",
                code="request-form",
            )
        *above, last = path.split(".")
        place = tree
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"{where}={item!r}: {name} has a value already", code="request-twice"
                )
        place[last] = values.scalar(content, path)
    return tree


def metrics(value: Any, where: str) -> tuple[Metric, ...]:
    """Metrics from ``{name: regex}``."""
    pairs = values.mapping(value, where).items()
    return tuple(Metric(str(name), values.text(regex, f"{where}.{name}")) for name, regex in pairs)


def _place(content: str, where: str) -> dict[str, Any]:
    """The channel fields of a location: an S3 prefix, ``fsx://ID/path``, ``efs://ID/path``, or
    ``fs-...:/path``.
    """
    content = values.place(content, where)
    if content.startswith("s3://"):
        return {"uri": content}
    match = re.fullmatch(r"(?:(fsx|efs)://)?(fs-[^/:]*)(?::?(/.*))?", content)
    if match is None:
        raise ConfigError(
            f"{where}={content!r} is not a place that the machines can read: write {_PLACES}"
            + (
                ""
                if "://" in content
                else "; upload a folder first: aws s3 sync FOLDER s3://BUCKET/PREFIX/"
            ),
            code="channel-place",
        )
    kind = "EFS" if match[1] == "efs" else "FSxLustre"
    return {"file_system": match[2], "file_system_type": kind, "path": match[3] or "/"}


def _named_group(content: str, where: str) -> tuple[str, str, int, bool, bool]:
    """Name, type, instances, whether it trains, and whether it helps, of a group such as
    ``gpu=ml.g5.xlarge:train``.
    """
    match = re.fullmatch(r"([A-Za-z0-9._-]+)=([^*:=]+)(?:\*(\d+))?(?::(train|help))?", content)
    if match is None:
        raise values.wrong(
            where,
            content,
            "NAME=TYPE*INSTANCES, with :train for the one that trains and :help for one that makes "
            "samples for it, as gpu=ml.g5.xlarge*2:train",
        )
    return (
        match[1],
        match[2],
        values.whole(match[3] or 1, where),
        match[4] == "train",
        match[4] == "help",
    )
