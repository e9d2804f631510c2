"""What is to be run, where, on which machines and with which data? One description for every platform: a YAML file, then flags.

Fields that a platform does not know (``spot`` on a Slurm cluster) are left to it to refuse or to ignore. Imports nothing
but the standard library, so that a laptop with a bare Python can look at a job; PyYAML only where a YAML file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import segtrain.errors
from launch import job_parts as parts
from launch import job_values as values
from launch.job_parts import DEFAULT_METRICS, Channel, Fallback, Group, Metric
from segtrain.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]  # holds configs/ and docker/ as well: a checkout, or what the wheel carries
CARRIED = "_checkout"  # that folder in an installed package (setup.py)
PACKAGE = Path(segtrain.errors.__file__).resolve().parent
COMMAND = "segtrain launch sagemaker" if PACKAGE in ROOT.parents else "python launch/sagemaker.py"

Strategy = Literal["single", "ddp", "fsdp", "dp", "smddp"]


@dataclass(frozen=True)
class Job:
    """Empty text: the launcher finds or picks it, and says so."""

    name: str = "segtrain"
    config: str = "configs/scenes.yaml"  # a config of segtrain: relative to the working directory, or to the repository
    settings: Mapping[str, Any] = field(default_factory=dict)  # segtrain's own overrides: dotted key -> value
    strategy: Strategy = "ddp"
    instances: int = 1
    type: str = "ml.g5.12xlarge"
    unknown_type_ok: bool = False  # a type that neither the table nor botocore knows is a warning
    groups: tuple[Group, ...] = ()  # instead of instances and type
    data: tuple[Channel, ...] = ()
    data_gb: float | None = None  # size of the data, for the check of the volume and the estimate
    output: str = ""  # s3://...
    checkpoints: str = ""  # s3://.../
    role: str = ""
    region: str = ""
    spot: bool = False
    max_run: int = 86400  # seconds
    max_wait: int | None = None  # seconds, from the start of the wait for spot machines to the end of the job
    retries: int = 0
    warm_pool: int = 0  # seconds
    volume_gb: int = 100
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = DEFAULT_METRICS
    image: str = ""
    profile_ms: int = 500  # 0: off
    price: float | None = None  # dollars an hour of one instance that trains; overrides the table
    requirements: str = ""  # a pip requirements file whose lines are added
    program: str = "train.py"
    fallbacks: tuple[Fallback, ...] = ()  # types to take, in this order, while ``type`` has no capacity
    training_plan: str = ""  # ARN of reserved capacity, of ``type``
    max_pending: int | None = None  # seconds of waiting for capacity
    volume_kms: str = ""  # key of the machines' disks: its ID or ARN
    output_kms: str = ""  # key of what the job leaves in S3
    network_isolation: bool = False  # no calls out of or into the containers, but among themselves
    encrypt_traffic: bool = False  # between the containers
    remote_debug: bool = False  # a shell in the containers, by AWS Systems Manager
    request: Mapping[str, Any] = field(default_factory=dict)  # further members of the platform's own request

    @property
    def hosts(self) -> int:
        return sum(group.instances for group in self.groups) if self.groups else self.instances

    @property
    def training_groups(self) -> tuple[Group, ...]:
        """The groups that train; where none says so, all of them."""
        return tuple(group for group in self.groups if group.train) or self.groups

    @property
    def training_hosts(self) -> int:
        return sum(group.instances for group in self.training_groups) if self.groups else self.instances

    @property
    def training_type(self) -> str:
        """The machine type of the group that trains."""
        return self.training_groups[0].type if self.groups else self.type


KEYS = tuple(item.name for item in fields(Job))
_TEXTS = ("name", "config", "type", "output", "checkpoints", "role", "region", "image", "requirements", "program",
          "training_plan", "volume_kms", "output_kms")  # fmt: skip
_WHOLE = ("instances", "retries", "volume_gb", "profile_ms")
_AMOUNTS = ("data_gb", "price")
_SECONDS = ("max_run", "max_wait", "max_pending", "warm_pool")
_SWITCHES = ("unknown_type_ok", "spot", "network_isolation", "encrypt_traffic", "remote_debug")
_LISTS = ("subnets", "security_groups")
_PAIRS = ("tags", "environment")
_PARTS = {
    "data": parts.channels,
    "groups": parts.groups,
    "metrics": parts.metrics,
    "fallbacks": parts.fallbacks,
    "request": parts.members,
}
_FLAGS = {
    "tags": "--tag",
    "environment": "--env",
    "fallbacks": "--fallback",
}  # of the keys that are called otherwise there
_FLAGS_ONLY = ("fsx", "mode", "group")


def load_job(
    source: str | Path | Mapping[str, Any] | None, flags: Mapping[str, Any], overrides: Sequence[str] = ()
) -> Job:
    """A YAML file or its keys (None: only defaults), the flags that were given (None: not given) on top, then
    ``section.key=value``.

    Raises ConfigError that names the key, the value and the cure.
    """
    path = "the job" if isinstance(source, Mapping) else source
    keys = values.read_mapping(source) if isinstance(source, (str, Path)) else source or {}
    described = _checked(keys, KEYS, str(path))
    given = _checked({key: value for key, value in flags.items() if value is not None}, KEYS + _FLAGS_ONLY, "")
    given = {key: value for key, value in given.items() if value not in ([], ())}
    _refuse_two_shapes(described, given, str(path))
    data = _with_flags(described.pop("data", ()), given)
    if "group" in given:
        given["groups"] = parts.groups(given.pop("group"), "--group")
        described = {key: value for key, value in described.items() if key not in ("instances", "type")}
    for key in _PAIRS:  # tags and variables add up; everything else is replaced
        if key in described and key in given:
            given[key] = {**described[key], **given[key]}
    job = Job(**{**described, **given, "data": data})
    settings = {**job.settings, **_overrides(overrides)}
    if (other := settings.pop("parallel.strategy", job.strategy)) != job.strategy:
        raise ConfigError(
            f"parallel.strategy={other} and strategy={job.strategy}: the machines start the ranks of one strategy: "
            f"say it once, with --strategy {other}"
        )
    return replace(job, settings=settings)


def config_file(job: Job, root: Path = ROOT) -> Path:
    """Where ``job.config`` lies: seen from the working directory, else from the repository (it may be in neither)."""
    here = Path(job.config)
    return here if here.is_absolute() or here.is_file() else root / here


def config_name(job: Job, root: Path = ROOT) -> str:
    """The name of ``job.config`` in the bundle of code: its own where it is of the repository's configs, else one in configs/job/."""
    if not job.config:
        return ""
    path, configs = config_file(job, root).resolve(), (root / "configs").resolve()
    return f"configs/{path.relative_to(configs).as_posix() if configs in path.parents else f'job/{path.name}'}"


def _checked(described: Mapping[str, Any], known: Sequence[str], source: str) -> dict[str, Any]:
    """The fields with their right types. Raises ConfigError for an unknown key and a value of another type."""
    checked: dict[str, Any] = {}
    for key, value in values.known(described, known, source or "the flags").items():
        where = f"{source}: {key}" if source else _FLAGS.get(key, f"--{key.replace('_', '-')}")
        if value is None:  # a key with nothing behind it: its default
            continue
        if key in _TEXTS:
            checked[key] = values.text(value, where)
        elif key in _WHOLE:
            checked[key] = values.whole(value, where)
        elif key in _AMOUNTS:
            checked[key] = values.amount(value, where)
        elif key in _SECONDS:
            checked[key] = values.seconds(value, where)
        elif key in _LISTS:
            checked[key] = values.texts(value, where)
        elif key in _PAIRS:
            checked[key] = values.pairs(value, where)
        else:
            checked[key] = _part(key, value, where)
    return checked


def _part(key: str, value: Any, where: str) -> Any:
    if key == "strategy":
        return values.choice(value, Strategy, where)
    if key in _SWITCHES:
        return values.switch(value, where)
    if key == "settings":
        return values.dotted(values.mapping(value, where))
    if key in _PARTS:
        return _PARTS[key](value, where)
    return value  # fsx, mode, group: texts of the command line


def _refuse_two_shapes(described: Mapping[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Groups, or instances and type: which was meant cannot be guessed."""
    for mine, source_of_mine in ((described, source), (given, "the flags")):
        for key in ("instances", "type"):
            if key in mine and ("groups" in mine or "group" in mine):
                raise ConfigError(
                    f"{source_of_mine}: {key} and groups exclude each other: the groups say it: remove {key}"
                )
    for key in ("instances", "type"):
        if key in given and "groups" in described:
            raise ConfigError(
                f"--{key} {given[key]}: {source} has groups ({', '.join(group.name for group in described['groups'])}), and the "
                "flag does not say which: give all of them, as --group gpu=ml.g5.xlarge*2:train --group cpu=ml.c5.4xlarge*2"
            )


def _with_flags(data: tuple[Channel, ...], given: dict[str, Any]) -> tuple[Channel, ...]:
    """The channels after --data, --fsx and --mode, which are taken out of ``given``."""
    found = {channel.name: channel for channel in data}
    flagged = {channel.name: channel for channel in given.pop("data", ())}
    if (fsx := given.pop("fsx", None)) is not None:
        if "train" in flagged:
            raise ConfigError(f"--fsx {fsx} and --data {flagged['train'].uri}: both are the channel 'train': give one")
        flagged["train"] = parts.channel("train", fsx, "--fsx")
    for name, channel in flagged.items():
        old = found.get(name)
        both_s3 = old is not None and not old.is_file_system and not channel.is_file_system
        # Another prefix of the same kind: how it is read stays as the file says.
        found[name] = replace(cast(Channel, old), uri=channel.uri) if both_s3 else channel
    if (mode := given.pop("mode", None)) is not None:
        parts.mode(mode, "--mode")
        on_s3 = any(not channel.is_file_system for channel in found.values())
        # With file systems alone it has no meaning, which the preflight says: nothing that was typed is dropped unseen.
        found = {
            name: channel if channel.is_file_system and on_s3 else replace(channel, mode=mode)
            for name, channel in found.items()
        }
    return tuple(found.values())


def _overrides(arguments: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals or not key:
            raise ConfigError(f"cannot read the argument {argument!r}: write --flag VALUE or section.key=value")
        if key in KEYS and key != "name":
            raise ConfigError(
                f"{argument}: {key} is of the job, not of the training: write --{key.replace('_', '-')} {text}"
            )
        settings[key] = values.scalar(text, key)
    return settings
