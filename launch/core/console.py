"""What the command lines of all launchers do alike: errors and interrupts, a dry run, and the start
of a rehearsal.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from launch.core.findings import Finding, errors, note, say, tell
from launch.core.job import Job
from segtrain.errors import EXIT_ERROR, ConfigError, SegtrainError

if TYPE_CHECKING:
    from launch.core.rehearse.process import RehearsalSpec

DEFAULT_BATCH = 8  # train.batch_size of configs/scenes.yaml
JobT = TypeVar("JobT", bound=Job)


def out(text: str) -> None:
    tell(text, sys.stdout)


def run(
    act: Callable[[dict[str, Any]], int],
    parser: ArgumentParser,
    arguments: Sequence[str] | None,
    interrupted: str = "no job was sent",
) -> int:
    """Call ``act`` with the flags in ``arguments`` (None: those of this process), and return the
    exit code. Errors are printed on stderr.

    ``interrupted``: what Ctrl-C leaves. Of an action on a sent job, nobody knows whether it has
    arrived.
    """
    flags = vars(parser.parse_intermixed_args(arguments))
    try:
        return act(flags)
    except SegtrainError as error:
        tell(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        for flag, done in (("stop", "told to stop"), ("update", "changed")):
            if flag in flags:
                interrupted = f"{flags[flag]} may not have been {done}: give --{flag} once more"
        tell(f"interrupted: {interrupted}")
        return 130


def script(main: Callable[[], int]) -> NoReturn:
    """End this process as a script whose reader may close the pipe, as in ``... --dry-run |
    head``.
    """
    try:
        raise SystemExit(main())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + getattr(signal, "SIGPIPE", 13)) from None


def spread(job: JobT, ranks: int) -> JobT:
    """Raise the batch size of the default config, which is meant for one machine, to two images per
    rank.
    """
    if "train.batch_size" in job.settings or ranks <= DEFAULT_BATCH // 2:
        return job
    images = 2 * ranks
    say(
        [
            note(
                "batch",
                f"no --config is given: {job.config} with train.batch_size={images}, two per rank",
            )
        ]
    )
    return replace(job, settings={**job.settings, "train.batch_size": images})


def dry_run(text: str, findings: list[Finding], also: str = "") -> int:
    """Print the request or script on stdout, and the findings, and ``also``, on stderr."""
    bad = errors(findings)
    try:
        print(text, flush=True)
    finally:  # even if the reader of stdout has closed the pipe (`| head`)
        say(findings)
        if also:
            tell(also)
        stop = f"; {len(bad)} error{'s' * (len(bad) > 1)} would stop it" if bad else ""
        tell(f"dry run: nothing was sent{stop}")
    return EXIT_ERROR if bad else 0


def refuse_others(flags: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raises ConfigError if a flag or a setting is not for a sent job: --stop JOB --dry-run must
    not stop the job.
    """
    others = [f"--{key.replace('_', '-')}" for key in sorted({*flags} - {*allowed, "overrides"})]
    others += flags.get("overrides", [])
    if others:
        raise ConfigError(
            f"{others[0]} is for a new job, not for one that has been sent: leave it out",
            code="flag-of-a-new-job",
            found=others[0],
        )


def rehearsal(
    job: Job,
    flags: Mapping[str, Any],
    plants: Sequence[str],
    name: str,
    build: Callable[[Any, Path], Any],
    hosts: int | None,
) -> RehearsalSpec:
    """Build the bundle (``name``) in the folder of a rehearsal. Returns its spec."""
    if sys.platform == "win32":
        raise ConfigError(
            "--rehearse needs Linux or macOS: on Windows, use WSL 2", code="rehearse-windows"
        )
    from launch.core.rehearse.cluster import read_fault
    from launch.core.rehearse.local_config import shorter
    from launch.core.rehearse.process import RehearsalSpec

    text = flags.get("plant", "")
    plant = read_fault(text, plants)
    folder = flags.get("folder") or Path(tempfile.mkdtemp(prefix="segtrain-rehearsal-"))
    folder.mkdir(parents=True, exist_ok=True)
    build(job, folder / name)
    chosen = any(setting.startswith("train.duration=") for setting in flags.get("overrides", []))
    short = {} if chosen else shorter(job, 0 if plant.kind in ("fail", "late") else plant.at)
    if short:
        out(
            f"note: a short training, train.duration={short['train.duration']}: give "
            "train.duration=... to choose"
        )
    return RehearsalSpec(
        str(folder / name),
        str(folder),
        str(flags.get("sample", "")),
        hosts,
        flags.get("procs"),
        text,
        short,
    )
