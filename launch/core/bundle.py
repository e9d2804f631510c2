"""The code bundle that the machines get: one tar.gz with the package, the configs, and the script
that starts training.

Every process has the unpacked bundle as its working directory and imports the package from there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from launch.core import native
from launch.core.job import CARRIED, PACKAGE, ROOT, Job, config_file, config_name
from segtrain.errors import ConfigError

# Settings of the training config that may name a file of the user's own.
FILES = ("data.classes", "data.transforms")
# Images and clusters come with a torch that is built for their GPUs, which pip must not replace.
OF_THE_IMAGE = ("torch", "torchvision")
_SOURCES = (".py", ".cpp", ".h", ".csv")
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+albumentations\b", re.MULTILINE)
_PLACE = re.compile(r"(?:[A-Za-z]:(?=[\\/]))?[^\s:@]+\.(?:py|ya?ml|json|txt)")


def contents(
    job: Job, program: str = "", packages: Iterable[str] = ()
) -> list[tuple[str, Path | bytes]]:
    """The files of the bundle: (name, path or bytes), sorted by name. Raises ConfigError for a file
    that is missing.

    ``program``: the repository's file that becomes train.py, the script that starts training; ""
    for a platform that starts a module. ``packages``: further extras, or lines for
    requirements.txt, that the platform needs.
    """
    files: dict[str, Path | bytes] = {}
    # a wheel holds ROOT in the package
    package = ROOT / "segtrain" if (ROOT / "segtrain").is_dir() else PACKAGE
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package.parent)
        if path.suffix in _SOURCES and path.is_file() and not _hidden(name):
            files[name.as_posix()] = path
    files |= native.carried()[0]
    for path in sorted((ROOT / "configs").rglob("*.y*ml")):
        name = path.relative_to(ROOT)
        # configs/jobs has roles and buckets: machines do not need it
        if name.parts[1] != "jobs" and not _hidden(name):
            files[name.as_posix()] = path
    if program:
        files["train.py"] = _there(ROOT / program, "the script that starts a process")
    if job.config:
        files[config_name(job)] = _there(config_file(job), f"config={job.config}")
    if job.program != "train.py":
        own = _inside(job.program, "program")
        files[own] = _there(_near(job.program), f"program={job.program}")
    for named in named_files(job):
        files[named] = _near(named)
    files["requirements.txt"] = requirements(job, packages).encode()
    return sorted(files.items())


def write(files: Sequence[tuple[str, Path | bytes]], target: Path) -> dict[str, Any]:
    """Write the bundle atomically. Returns the number of files, the bytes, and the SHA-256.

    The same files always give the same bytes: the archive has no times, owners, or permissions of
    this machine.
    """
    content = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=content, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, source in sorted(files, key=lambda file: file[0]):
            body = source if isinstance(source, bytes) else source.read_bytes()
            entry = tarfile.TarInfo(name)  # its defaults: mtime 0, uid 0, gid 0, mode 0644
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    body = content.getvalue()
    target.parent.mkdir(parents=True, exist_ok=True)
    from segtrain.base.files import writing

    with writing(target) as stream:
        stream.write(body)
    return {"files": len(files), "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def script_lines(name: str) -> list[str]:
    """The lines of a script in docker/ that a request carries, without comments and empty lines.
    Raises ConfigError.
    """
    text = _there(ROOT / "docker" / name, "the script that starts a container").read_text("utf-8")
    lines = text.splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def requirements(job: Job, packages: Iterable[str] = ()) -> str:
    """The text of requirements.txt: the package's dependencies except those that the image has, the
    extras in use, ``packages``, and the job's own lines.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ConfigError(
            f"{ROOT / 'pyproject.toml'} has no list 'dependencies': take the file from the "
            "repository",
            code="dependencies-missing",
            file=str(ROOT / "pyproject.toml"),
        )
    lines = [
        line
        for line in re.findall(r'^\s*"([^"]+)"', match[1], re.MULTILINE)
        if _package(line) not in OF_THE_IMAGE
    ]
    lines += dict.fromkeys(_of_extras(text, job, packages))
    if job.requirements:
        own = _there(_near(job.requirements), f"requirements={job.requirements}").read_text(
            encoding="utf-8"
        )
        lines += [f"# {Path(job.requirements).name}", *own.splitlines()]
    return "\n".join(lines) + "\n"


def _of_extras(pyproject: str, job: Job, packages: Iterable[str]) -> Iterator[str]:
    """Packages that ``log.mlflow``, ``log.wandb``, ``data.transforms``, and folders in buckets
    need, if set, and ``packages``. Extras are those in pyproject.toml: neither segtrain's
    dependencies nor the image has them.
    """
    from segtrain.installed import trackers

    settings = all_settings(job)
    used = [kind.extra for kind in trackers() if kind.extra and settings.get(f"log.{kind.setting}")]
    used += ["albumentations"] * _albumentations(settings.get("data.transforms"))
    used += ["buckets"] * any("://" in str(settings.get(key, "")) for key in ("data.root", "out"))
    for name in (*used, *packages):
        extra = re.search(rf'^{re.escape(name)} = \["([^"]+)"\]', pyproject, re.MULTILINE)
        yield extra[1] if extra else name


def _albumentations(pipeline: Any) -> bool:
    """Whether a value of ``data.transforms`` needs albumentations: a list or a saved file does, and
    so does code that imports it.
    """
    if not isinstance(pipeline, str):
        return bool(pipeline)
    place = pipeline.partition("@")[0].rpartition(":")[0]
    if place and not pipeline.startswith(("[", "{")):
        path = _near(place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
        return (
            os.path.isfile(path)
            and _IMPORTED.search(path.read_text(encoding="utf-8", errors="replace")) is not None
        )
    return bool(pipeline)


def named_files(job: Job) -> list[str]:
    """Relative paths that ``data.classes`` and ``data.transforms`` name, below the working
    directory or the repository. The files keep these paths in the bundle. A file elsewhere is left
    out, which the preflight check reports.
    """
    names = []
    for value in file_settings(job).values():
        match = _PLACE.match(value)
        if match and not _escapes(match[0]) and os.path.isfile(_near(match[0])):
            names.append(PurePosixPath(match[0]).as_posix())
    return sorted(set(names))


def file_settings(job: Job) -> dict[str, str]:
    """The settings in ``FILES`` that are strings, from the job's settings or its config (if PyYAML
    is installed).
    """
    settings = all_settings(job)
    return {
        key: settings[key] for key in FILES if isinstance(settings.get(key), str) and settings[key]
    }


def settings_here(job: Job) -> dict[str, str]:
    """The settings in ``FILES`` whose file is below the working directory, with its absolute
    path.
    """
    settings = {}
    for key, value in file_settings(job).items():
        match = _PLACE.match(value)
        if match and not _escapes(match[0]) and os.path.isfile(match[0]):
            settings[key] = f"{Path(match[0]).absolute()}{value[match.end() :]}"
    return settings


def all_settings(job: Job) -> dict[str, Any]:
    """The config's settings (if PyYAML is installed), overridden by the job's own, by their dotted
    keys.
    """
    return {**_of_config(config_file(job)), **job.settings}


def data_setting(job: Job, data: str) -> dict[str, str]:
    """data.root for a job's ``data``, which win over that of the config; {} if the training draws
    its own images.
    """
    layout = all_settings(job).get("data.layout", "" if job.config else "scenes")
    return {"data.root": data} if data and layout != "scenes" else {}


def _of_config(path: Path) -> dict[str, Any]:
    """The settings of a config file by their dotted keys; {} if the file cannot be read, as the
    preflight check of the config then reports it.
    """
    try:
        return _parsed(path.read_bytes())
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=4)  # called several times while one job is checked
def _parsed(text: bytes) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        return {}
    try:
        sections = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    items = sections.items() if isinstance(sections, dict) else ()
    return {
        f"{name}.{key}": value
        for name, keys in items
        if isinstance(keys, Mapping)
        for key, value in keys.items()
    }


def _package(line: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower()


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in ("__pycache__", CARRIED) for part in path.parts)


def _near(name: str) -> Path:
    """The path, relative to the working directory if the file is there, else to the repository."""
    path = Path(name)
    return path if path.is_absolute() or os.path.isfile(path) else ROOT / path


def _escapes(name: str) -> bool:
    return (
        os.path.isabs(name)
        or bool(PureWindowsPath(name).drive)
        or ".." in PurePosixPath(name).parts
    )


def _inside(name: str, key: str) -> str:
    if _escapes(name):
        raise ConfigError(
            f"{key}={name} is outside of the bundle: give a path below the working directory",
            code="path-outside",
            key=key,
            found=name,
        )
    return PurePosixPath(name).as_posix()


def _there(path: Path, what: str) -> Path:
    if not os.path.isfile(path):
        raise ConfigError(
            f"{what}: there is no file {path}: check the path (relative to the working "
            "directory or the repository)",
            code="file-missing",
            file=str(path),
        )
    return path
