"""Errors that a user can act on: one base class, a stable code for each kind of mistake, and the
exit codes.
"""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

# Bad input or a bad config: fix it and start again.
EXIT_ERROR = 2
# EX_TEMPFAIL of sysexits.h: the state is saved, and the same command continues the run.
EXIT_RESUMABLE = 75
# Another rank has ended, and this rank has made no mistake. The same command continues from the
# newest checkpoint.
EXIT_RANK_LOST = 76
# Environment variable with a folder where each process leaves its exit code: see report_exit in
# parallel/failure.py.
EXIT_CODES = "SEGTRAIN_EXIT_CODES"


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def refuse_windows() -> None:
    """Raises ConfigError on Windows, which lacks the signals, processes, and locks that training
    needs.
    """
    if sys.platform == "win32":
        text = (
            "segtrain trains and evaluates on Linux and macOS: on Windows, use WSL 2 (wsl "
            "--install)"
        )
        raise ConfigError(text, code="windows-unsupported")


def kind_of(value: object) -> str:
    """Describe a wrong argument for a message: "the class Net" or "of the type str"."""
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"of the type {type(value).__name__}"
    )


def one_line(text: object) -> str:
    """The words of a text, such as the message of an error, on one line."""
    return " ".join(str(text).split())


def reason_of(error: Exception) -> str:
    """An exception of the user's code on one line, also if it cannot be printed."""
    return one_line("".join(traceback.format_exception_only(error)))


class SegtrainError(Exception):
    """An error whose message says what is wrong, where (file, key, value), and how to fix it.

    ``code`` is a stable name for the kind of mistake, such as ``mask-size-differs``. ``values``
    holds the details, such as the file. Programs and tests should read these two fields, because
    the message may be reworded at any time. The command line prints the message on one line,
    without a traceback, and exits with ``exit_code``.
    """

    exit_code = EXIT_ERROR
    # Whether another rank reports the error. None: every rank of a host raises it, and the first
    # rank reports it.
    silent: bool | None = None
    # Settings that fix the error, if known, such as "data.label_map" -> value. The message shows
    # how to paste them.
    settings: dict[str, Any] | None = None

    def __init__(self, message: str = "", *, code: str = "", **values: Any) -> None:
        super().__init__(message)
        self.code = code
        self.values = values


class ConfigError(SegtrainError):
    """A setting is unknown, has a wrong type or value, or conflicts with another setting."""


class DataError(SegtrainError):
    """A file, a label, or a folder of the data set is not what it should be."""


def file_error(file: Any, reason: str, *, code: str, **values: Any) -> DataError:
    """An error about one file. The message begins with its name, which is also
    ``values["file"]``.
    """
    return DataError(f"{file}: {reason}", code=code, file=file, **values)


class CheckpointError(SegtrainError):
    """A checkpoint cannot be written or read, or does not match the run."""


class RankLost(SegtrainError):
    """Another rank has ended, or has never connected."""

    exit_code = EXIT_RANK_LOST


class MissingExtra(SegtrainError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        # An empty extra means that a required package is missing.
        wanted = f"'segtrain[{extra}]'" if extra else package
        why = f"{purpose} needs the package {package!r}: pip install {wanted}"
        super().__init__(why, code="missing-package", package=package)


def without_platforms(key: str, value: object) -> ConfigError:
    """The error for a setting that needs segtrain/platforms/ in an installation of the core
    alone.
    """
    text = (
        f"{key}={value} needs segtrain.platforms, which this installation lacks: install the "
        "whole of segtrain"
    )
    return ConfigError(text, code="platforms-missing", key=key)


# Advice about a null where a value is expected.
NULL = "~ and an empty value are null in YAML: quote text, as '~'"


def some_of(items: Sequence[object], most: int = 5, separator: str = ", ") -> str:
    """``a, b, c and 7 more``, for messages about many files or names."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return separator.join(map(str, items[:most])) + more
