"""The ``segtrain`` command: parses arguments, calls the command's function, and prints an error as
one line.

Nothing heavy is imported here, so that ``segtrain --help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys

from segtrain.arguments import build_parser
from segtrain.base.stopping import exiting_at_sigterm
from segtrain.base.terminal import printable, say_warnings
from segtrain.errors import EXIT_CODES, EXIT_ERROR, SegtrainError, refuse_windows


def main(argv: list[str] | None = None) -> int:
    """Run a command, and return its exit code.

    If a job script has set SEGTRAIN_EXIT_CODES, each process also reports its code in a file
    (parallel/failure.py).
    """
    code: object = 1
    try:
        code = _run(argv)
        return code
    except SystemExit as stop:
        code = stop.code
        raise
    finally:
        if EXIT_CODES in os.environ:
            from segtrain.parallel.failure import report_exit

            report_exit(code if isinstance(code, int) else int(code is not None))


def _run(argv: list[str] | None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    _prepare_process()
    args = _parse(argv)
    try:
        if argv[0] in ("train", "eval", "prove", "bench", "sweep"):
            refuse_windows()
        # Training and its tools handle SIGTERM themselves.
        files_only = argv[0] in ("data", "predict", "export")
        with exiting_at_sigterm() if files_only else contextlib.nullcontext():
            code = int(args.call(args) or 0)
        # If standard output goes to a full disk, fail here and not when Python exits.
        sys.stdout.flush()
        return code
    except SegtrainError as error:
        if _reports(error):
            print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `segtrain runs | head`
        _drop_stdout()
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            print(
                f"error: {printable(str(error.filename))}: there is no such file: {error.strerror}",
                file=sys.stderr,
            )
            return EXIT_ERROR
        if not _stdout_fails():
            raise
        _drop_stdout()
        problem = f"cannot write to standard output: {error.strerror}"
        print(f"error: {problem}. Free some space, or redirect the output.", file=sys.stderr)
        return EXIT_ERROR
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        print(
            "error: this process has reached its limit of memory or threads "
            f"({error or 'out of memory'}). Raise the limits (ulimit -v, ulimit -u, container "
            "memory), or lower data.workers, train.batch_size, or data.crop.",
            file=sys.stderr,
        )
        return EXIT_ERROR


def _prepare_process() -> None:
    """Set up the streams, warnings, and environment variables that every command needs."""
    # The shell may have closed a stream (`>&-`). Then Python has None, and print fails.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    say_warnings()
    # Each shard in use needs an open file. Systems keep the soft limit low only for programs that
    # call select().
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Idle OpenMP threads spin by default. On a shared machine they take the core from the thread
    # that they wait for.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    # OpenCV would print a warning about unknown tags for each GeoTIFF.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")


def _parse(argv: list[str]) -> argparse.Namespace:
    """The command's arguments, with ``overrides``, its ``section.key=value`` settings, and
    ``argv``. Exits with code 2 for an unknown argument.
    """
    parser = build_parser()
    if not argv:
        parser.print_help(sys.stderr)
        parser.exit(EXIT_ERROR)
    args, overrides = parser.parse_known_args(_joined(argv))
    command = getattr(args, "takes_settings", None)
    if command is not None:
        # `segtrain train key=value`, without a file
        if "=" in (getattr(args, "config", None) or ""):
            overrides, args.config = [args.config, *overrides], None
        _refuse_flags(command, overrides)
    elif overrides and not hasattr(args, "platform"):  # the launcher parses its arguments itself
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    args.overrides, args.argv = overrides, argv
    return args


def _joined(argv: list[str]) -> list[str]:
    """Join ``--section.key value`` with ``=``. Otherwise, argparse would take the value for the
    config file.
    """
    joined, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        is_setting = (
            word.startswith("--")
            and "=" not in word
            and ("." in word or word in ("--out", "--name"))
        )
        joined.append(f"{word}={rest.pop(0)}" if is_setting and rest else word)
    return joined


def _refuse_flags(command: argparse.ArgumentParser, overrides: list[str]) -> None:
    """Exit at a misspelled flag such as ``--wich last``.

    A word such as ``--train.seed=1`` or ``--out=FOLDER`` is a setting, not a flag: it has a dot or
    is a top-level key.
    """
    flags = [
        word for word in overrides if word.startswith("-") and "." not in word.partition("=")[0]
    ]
    if not flags:
        return
    from segtrain.config import Config

    wrong = [
        word for word in flags if word.lstrip("-").partition("=")[0] not in Config.model_fields
    ]
    if wrong:
        command.error(f"unrecognized arguments: {' '.join(wrong)}")


def _reports(error: SegtrainError) -> bool:
    """Whether this rank prints the error: one rank per job, or one per host if the ranks are not
    connected yet.
    """
    if error.silent is not None:
        return not error.silent
    from segtrain.installed import discover

    try:
        return discover().local_rank == 0
    except SegtrainError:
        return True


def _stdout_fails() -> bool:
    """Whether standard output accepts no more text. An OSError may also come from another file."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """Discard the rest of the output. Otherwise Python fails again when it flushes standard output
    at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
