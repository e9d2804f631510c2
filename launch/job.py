"""The description of a job that every platform shares: a YAML file or keys, then flags, then settings of the training.

A platform derives its own class, whose fields name what it alone knows (machines, data, prices). Each field carries the
function that reads what people write for it. Imports nothing but the standard library, so that a laptop with a bare
Python can look at a job; PyYAML only where a YAML file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import segtrain.errors
from launch import job_values as values
from segtrain.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]  # holds configs/ and docker/ as well: a checkout, or what the wheel carries
CARRIED = "_checkout"  # that folder in an installed package (setup.py)
PACKAGE = Path(segtrain.errors.__file__).resolve().parent

Strategy = Literal["single", "ddp", "fsdp", "dp", "smddp"]


def option(read: Callable[[Any, str], Any], flag: str = "", **default: Any) -> Any:
    """A field of a job. ``read``: takes what people write for it and where it is written, and returns the value or
    raises ConfigError.

    ``flag``: its name on the command line, where that is not the field's own. ``default``: as in ``dataclasses.field``.
    """
    return field(**default, metadata={"read": read, "flag": flag})


def _strategy(value: Any, where: str) -> Any:
    return values.choice(value, Strategy, where)


def _settings(value: Any, where: str) -> dict[str, Any]:
    return values.dotted(values.mapping(value, where))


@dataclass(frozen=True)
class Job:
    """What every platform needs to know. Empty text: the launcher finds or picks it, and says so."""

    name: str = option(values.text, default="segtrain")
    # A config of segtrain: relative to the working directory, or to the repository.
    config: str = option(values.text, default="configs/scenes.yaml")
    # Settings of the training: dotted key -> value.
    settings: Mapping[str, Any] = option(_settings, default_factory=dict)
    strategy: Strategy = option(_strategy, default="ddp")  # noqa: RUF009
    output: str = option(values.text, default="")
    environment: Mapping[str, str] = option(values.pairs, flag="--env", default_factory=dict)
    image: str = option(values.text, default="")
    max_run: int = option(values.seconds, default=86400)
    # A pip requirements file whose lines are added to those of the package.
    requirements: str = option(values.text, default="")
    program: str = option(values.text, default="train.py")


JobT = TypeVar("JobT", bound=Job)


def command(platform: str) -> str:
    """What a user types to launch on a platform, from here."""
    return f"segtrain launch {platform}" if PACKAGE in ROOT.parents else f"python launch/{platform}.py"


def load_job(
    kind: type[JobT],
    source: str | Path | Mapping[str, Any] | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str] = (),
) -> JobT:
    """A job from a YAML file or its keys (None: only defaults), then the flags, then ``section.key=value``.

    A flag of None was not given. Raises ConfigError that names the key, the value, and the fix.
    """
    return build(kind, described(kind, source), given(kind, flags), overrides)


def described(kind: type[Job], source: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields that a YAML file or keys set."""
    keys = values.read_mapping(source) if isinstance(source, (str, Path)) else source or {}
    return _checked(kind, keys, label(source))


def given(kind: type[Job], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that flags set."""
    return _checked(kind, {key: value for key, value in flags.items() if value not in (None, [], ())}, "")


def label(source: str | Path | Mapping[str, Any] | None) -> str:
    """What messages call the place that keys are from."""
    return "the job" if isinstance(source, Mapping) else str(source)


def build(
    kind: type[JobT], described: Mapping[str, Any], given: Mapping[str, Any], overrides: Sequence[str] = ()
) -> JobT:
    """A job with checked fields. Flags replace the values of the file, except for pairs, which are merged."""
    added = {item.name for item in fields(kind) if item.metadata["read"] is values.pairs}
    both = {key: {**described[key], **given[key]} for key in added & set(described) & set(given)}
    job = kind(**{**described, **given, **both})
    settings = {**job.settings, **_overrides(kind, overrides)}
    if (other := settings.pop("parallel.strategy", job.strategy)) != job.strategy:
        raise ConfigError(
            f"parallel.strategy={other} and strategy={job.strategy}: the machines start the ranks of one strategy: "
            f"say it once, with --strategy {other}",
            code="strategy-twice", found=other, expected=job.strategy,
        )  # fmt: skip
    return replace(job, settings=settings)


def config_file(job: Job, root: Path = ROOT) -> Path:
    """Where ``job.config`` lies: seen from the working directory, else from the repository (it may be in neither)."""
    here = Path(job.config)
    return here if here.is_absolute() or here.is_file() else root / here


def config_name(job: Job, root: Path = ROOT) -> str:
    """The name of ``job.config`` in the bundle of code: its own where it is of the repository's configs, else one in
    configs/job/.
    """
    if not job.config:
        return ""
    path, configs = config_file(job, root).resolve(), (root / "configs").resolve()
    return f"configs/{path.relative_to(configs).as_posix() if configs in path.parents else f'job/{path.name}'}"


def _checked(kind: type[Job], keys: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The fields with their right types. Raises ConfigError for an unknown key and a value of another type."""
    known = {item.name: item for item in fields(kind)}
    checked: dict[str, Any] = {}
    for key, value in values.known(keys, tuple(known), source or "the flags").items():
        if value is None:  # a key with nothing behind it: its default
            continue
        flag = known[key].metadata["flag"] or f"--{key.replace('_', '-')}"
        checked[key] = known[key].metadata["read"](value, f"{source}: {key}" if source else flag)
    return checked


def _overrides(kind: type[Job], arguments: Sequence[str]) -> dict[str, Any]:
    keys = {item.name for item in fields(kind)}
    settings: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.lstrip("-").partition("=")
        if not equals or not key:
            raise ConfigError(
                f"cannot read the argument {argument!r}: write --flag VALUE or section.key=value",
                code="argument-unreadable", found=argument,
            )  # fmt: skip
        if key in keys and key != "name":
            raise ConfigError(
                f"{argument}: {key} is a setting of the job, not of the training: write "
                f"--{key.replace('_', '-')} {text}",
                code="setting-of-the-job", key=key, found=text,
            )  # fmt: skip
        settings[key] = values.scalar(text, key)
    return settings
