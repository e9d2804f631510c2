"""The part of a job's description that all platforms share. It comes from a YAML file or keys, then
flags, then training settings.

A platform derives its own class and adds fields for what only it has (machines, data, prices). Each
field holds its flag, and the function that converts a user's input. This module imports only the
standard library, so that a bare Python can check a job; it needs PyYAML only to read a YAML file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

import segtrain.errors
from launch.core import job_values as values
from segtrain.errors import ConfigError

# has configs/ and docker/ too: a checkout, or CARRIED inside the package
ROOT = Path(__file__).resolve().parents[2]
# the name of the folder with launch/, configs/, and docker/ in an installed package (setup.py)
CARRIED = "_checkout"
PACKAGE = Path(segtrain.errors.__file__).resolve().parent

Strategy = Literal["single", "ddp", "fsdp", "dp", "smddp"]
ALONE = ("single", "dp")  # strategies of one process
Reader = Callable[[Any, str], Any]
# Type of a field -> how its value is read, unless the field says so itself.
_READERS: dict[Any, Reader] = {
    str: values.text,
    int: values.whole,
    bool: values.switch,
    float | None: values.amount,
    tuple[str, ...]: values.texts,
    Mapping[str, str]: values.pairs,
}

# the groups of flags in --help
MACHINES, DATA, TIME, JOB = "machines", "data and results", "time and money", "job"


def option(
    default: Any,
    metavar: str = "",
    text: str = "",
    group: str = JOB,
    *,
    read: Reader | None = None,
    flag: str = "",
) -> Any:
    """A field of a job. ``default``: a value, or a type that makes it.

    ``metavar`` and ``text``: of its flag in --help; without a text, it has no flag. The flag is
    repeatable if the text says so. ``read(value, where)`` converts a user's input or raises
    ConfigError, where the type of the field does not say how; ``where`` is the name of the input in
    messages. ``flag``: where it differs from the name of the field.
    """
    metadata = {"read": read, "flag": flag, "metavar": metavar, "text": text, "group": group}
    return field(
        **{"default_factory" if isinstance(default, type) else "default": default},
        metadata=metadata,
    )


def _settings(value: Any, where: str) -> dict[str, Any]:
    return values.dotted(values.mapping(value, where))


@dataclass(frozen=True)
class Job:
    """The settings that every platform needs. If one is an empty text, the launcher chooses a value
    and reports it.
    """

    name: str = option(
        "segtrain",
        "WORD",
        "prefix of the job's name (default: segtrain)",
        read=values.name,
    )
    # Relative to the working directory, or to the repository.
    config: str = option(
        "configs/scenes.yaml",
        "FILE",
        "training config (default: configs/scenes.yaml)",
        DATA,
        read=values.local_path,
    )
    # Settings of the training: dotted key -> value.
    settings: Mapping[str, Any] = option(dict, read=_settings)
    strategy: Strategy = option(
        "ddp", "NAME", "single, ddp, fsdp, smddp, or dp (default: ddp)", MACHINES
    )
    output: str = ""
    environment: Mapping[str, str] = option(
        dict, "KEY=VALUE", "variable of the training; repeatable", flag="--env"
    )
    image: str = ""
    max_run: int = option(
        86400,
        "TIME",
        "limit of the training time, such as 6h or 90m (default: 24h)",
        TIME,
        read=values.seconds,
    )
    # A pip requirements file whose lines are added to those of the package.
    requirements: str = option("", read=values.local_path)
    program: str = "train.py"
    like: str = option(
        "",
        "RUN",
        "a past run with this config, to predict time and cost",
        TIME,
        read=values.local_path,
    )


JobT = TypeVar("JobT", bound=Job)


def command(platform: str) -> str:
    """The command that launches on a platform: with an installed package, or in a checkout."""
    return (
        f"segtrain launch {platform}" if PACKAGE in ROOT.parents else f"python launch/{platform}.py"
    )


def load_job(
    kind: type[JobT],
    source: str | Path | Mapping[str, Any] | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str] = (),
) -> JobT:
    """A job from a YAML file or its keys (None: only defaults), then the flags, then
    ``section.key=value``.

    A flag whose value is None counts as not given. Raises ConfigError that names the key, the
    value, and the fix.
    """
    return build(kind, described(kind, source), flag_fields(kind, flags), overrides)


def described(kind: type[Job], source: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields that a YAML file, or a mapping of keys, sets."""
    keys = values.read_mapping(source) if isinstance(source, (str, Path)) else source or {}
    return _checked(kind, keys, label(source))


def flag_fields(kind: type[Job], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are set by flags. Flags that are no field of the job, such as --dry-run, are
    left out.
    """
    names = {item.name for item in fields(kind)}
    return _checked(
        kind,
        {key: flags[key] for key in flags if key in names and flags[key] not in (None, [], ())},
        "",
    )


def label(source: str | Path | Mapping[str, Any] | None) -> str:
    """The name that messages use for the source of the keys."""
    return "the job" if isinstance(source, Mapping) else str(source)


def build(
    kind: type[JobT],
    described: Mapping[str, Any],
    flag_fields: Mapping[str, Any],
    overrides: Sequence[str] = (),
) -> JobT:
    """A job from checked fields. Flags replace the values of the file, but key=value pairs, such as
    labels, merge.
    """
    added = {name for name, read in readers(kind).items() if read is values.pairs}
    both = {
        key: {**described[key], **flag_fields[key]}
        for key in added & set(described) & set(flag_fields)
    }
    job = kind(**{**described, **flag_fields, **both})
    settings = {**job.settings, **_overrides(kind, overrides)}
    if (other := settings.pop("parallel.strategy", job.strategy)) != job.strategy:
        raise ConfigError(
            f"parallel.strategy={other} and strategy={job.strategy} differ, but the machines start "
            f"the ranks of one strategy: set it once, with --strategy {other}",
            code="strategy-twice",
            found=other,
            expected=job.strategy,
        )
    return replace(job, settings=settings)


def config_file(job: Job) -> Path:
    """The path of ``job.config``: relative to the working directory if it is there, else to
    ROOT (it may be in neither).
    """
    here = Path(job.config)
    return here if here.is_absolute() or os.path.isfile(here) else ROOT / here


def config_name(job: Job) -> str:
    """The name of ``job.config`` in the code bundle: its own path for a file of the repository's
    configs/, else a name in configs/job/.
    """
    if not job.config:
        return ""
    path, configs = config_file(job).resolve(), (ROOT / "configs").resolve()
    inside = configs in path.parents
    return f"configs/{path.relative_to(configs).as_posix() if inside else f'job/{path.name}'}"


def readers(kind: type[Job]) -> dict[str, Reader]:
    """The function that reads the value of each field."""
    functions = {}
    for name, hint in get_type_hints(kind).items():
        own = kind.__dataclass_fields__[name].metadata.get("read")
        functions[name] = own or (
            values.one_of(hint) if get_origin(hint) is Literal else _READERS[hint]
        )
    return functions


def flag_of(item: Field[Any]) -> str:
    return str(item.metadata.get("flag") or f"--{item.name.replace('_', '-')}")


def _checked(kind: type[Job], keys: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The fields, converted to their types. Raises ConfigError for an unknown key, or for a value
    of a wrong type.
    """
    fields_by_name = {item.name: item for item in fields(kind)}
    read = readers(kind)
    checked: dict[str, Any] = {}
    for key, value in values.strict_mapping(keys, tuple(fields_by_name), source).items():
        # A null is an empty section, or no value where that is the default.
        if value is not None or isinstance(fields_by_name[key].default, (str, int, float)):
            where = f"{source}: {key}" if source else flag_of(fields_by_name[key])
            checked[key] = read[key](value, where)
    return checked


def _overrides(kind: type[Job], arguments: Sequence[str]) -> dict[str, Any]:
    keys = {item.name for item in fields(kind)}
    settings: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals or not key:
            raise ConfigError(
                f"cannot read the argument {argument!r}: write --flag VALUE or section.key=value",
                code="argument-unreadable",
                found=argument,
            )
        if key in keys and key != "name":
            raise ConfigError(
                f"{argument}: {key} is a setting of the job, not of the training: write "
                f"--{key.replace('_', '-')} {text}",
                code="setting-of-the-job",
                key=key,
                found=text,
            )
        settings[key] = values.scalar(text, key)
    return settings
