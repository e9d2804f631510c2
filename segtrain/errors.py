"""What can go wrong in words a user can act on: one exception, three exit codes."""

from __future__ import annotations

from typing import Any

EXIT_ERROR = 2  # bad input or config: mend it and start again
EXIT_RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: the state is saved, the same command goes on


class SegtrainError(Exception):
    """An error with a cure. The message names what was found, where (file, key, value) and what to do.

    The command line prints it on one line, without a traceback, and exits with ``exit_code``.
    """

    exit_code = EXIT_ERROR
    # Which of several ranks says it: None: every rank of a host meets it, and the first one speaks; else: decided.
    silent: bool | None = None
    # Settings that put it right, where they are known: "data.label_map" -> value. The message shows how to paste them.
    settings: dict[str, Any] | None = None


class ConfigError(SegtrainError):
    """A setting is unknown, of the wrong type, or does not go with another one."""


class DataError(SegtrainError):
    """A file, a label or a folder of the data set is not what it should be."""


class CheckpointError(SegtrainError):
    """A checkpoint cannot be written, read, or does not fit the run."""


class MissingExtra(SegtrainError):
    """An optional package is absent."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        wanted = f"'segtrain[{extra}]'" if extra else package  # "": a plain dependency is gone
        super().__init__(f"{purpose} needs the package {package!r}: pip install {wanted}")
