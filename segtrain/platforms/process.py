"""Start of a process of a cloud job: its environment variables, and its config file."""

from __future__ import annotations

import os
from pathlib import Path

from segtrain.errors import ConfigError


def set_defaults() -> None:
    """Set the variables that the command line sets, too: see cli.py."""
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")


def config_path(name: str, folders: tuple[Path, ...]) -> Path:
    """The config file, in the first of ``folders`` that has it. Raises ConfigError that lists the
    folders.
    """
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    message = (
        f"there is no config file {name} in {' or '.join(map(str, folders))}: start the "
        "job with --config FILE"
    )
    raise ConfigError(message, code="job-config-missing", file=name)
