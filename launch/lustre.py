"""One command to archive a folder of FSx for Lustre to S3, to bring it back, and to see what S3 has of it.

python launch/lustre.py archive /workspace/runs
python launch/lustre.py restore /workspace/data/camvid
python launch/lustre.py state /workspace
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # As in sagemaker.py: a script's folder is not for imports.
    sys.path[:] = [
        str(ROOT),
        *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent),
    ]

from launch import console  # noqa: E402
from launch.findings import tell  # noqa: E402
from launch.hpc.hsm import VARIABLE, Lfs, Verb  # noqa: E402
from launch.hpc.moving import Outcome, Pace, Tally, files, move, prove  # noqa: E402
from launch.job import command as called  # noqa: E402
from launch.job_values import seconds  # noqa: E402
from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE, ConfigError, SegtrainError  # noqa: E402

SHOWN = 10  # names of files in a message
VERBS = {
    "archive": "copy what S3 does not have yet to S3, and prove it",
    "restore": "bring the content of files back from S3, before a training needs it",
    "release": "free the space of files whose content S3 has; a read brings them back",
    "state": "count files by what S3 has of them; change nothing",
}


def build_parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        description="Move the content of files between FSx for Lustre and S3, wait for it, and prove it for each file.",
        epilog=f"It needs root's rights and `lfs` ({VARIABLE} names another program). The same command goes on after "
        f"an interruption. Exit code {EXIT_RESUMABLE}: not all is done yet, run it again; {EXIT_ERROR}: files failed.",
        allow_abbrev=False,
    )
    parser.add_argument("verb", choices=tuple(VERBS), help="; ".join(f"{verb}: {text}" for verb, text in VERBS.items()))
    parser.add_argument("folder", help="on the Lustre file system, such as /workspace/runs")
    parser.add_argument("--proof", metavar="FILE", type=Path, help="write the state of each file as JSON lines")
    parser.add_argument(
        "--pending", type=int, default=Pace.pending, metavar="N", help=f"most open requests (default: {Pace.pending})"
    )
    parser.add_argument("--look", default="5s", metavar="TIME", help="time between two looks (default: 5s)")
    parser.add_argument(
        "--patience", default="1h", metavar="TIME", help="end after so long without any progress (default: 1h)"
    )
    return parser


def main(arguments: list[str] | None = None, command: str = called("lustre")) -> int:
    """The command line. ``command``: how it was called, for the help."""
    known = build_parser(command).parse_args(arguments)
    try:
        pace = _pace(known)
        lfs, paths = Lfs(), files(known.folder)
        if not paths:
            text = f"{known.folder} has no files: is the file system mounted there?"
            raise ConfigError(text, code="lustre-empty", folder=known.folder)
        if known.proof and (os.path.isdir(known.proof) or not os.access(known.proof.absolute().parent, os.W_OK)):
            text = f"--proof {known.proof}: cannot be written: name a file in a folder that exists"
            raise ConfigError(text, code="proof-not-writable", file=str(known.proof))
        if known.verb == "state":
            _say_tally(known.folder, _proved(lfs, None, paths, known.proof))
            return 0
        outcome = move(lfs, known.verb, paths, pace, console.out)
        tally = _proved(lfs, known.verb, files(known.folder), known.proof)
        return _end(known.verb, known.folder, outcome, tally)
    except SegtrainError as error:
        tell(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        tell("left: Lustre goes on with what was asked for; the same command does the rest")
        return 130


def _pace(known: argparse.Namespace) -> Pace:
    if known.pending < 1:
        raise ConfigError(f"--pending {known.pending} must be 1 or more", code="pending-small", found=known.pending)
    look, patience = seconds(known.look, "--look"), seconds(known.patience, "--patience")
    if look < 1:
        raise ConfigError(f"--look {known.look} must be 1s or more", code="look-short", found=known.look)
    return Pace(known.pending, look, max(Pace.forgotten_s, 2 * look), patience)


def _proved(lfs: Lfs, verb: Verb | None, paths: list[str], proof: Path | None) -> Tally:
    try:
        return prove(lfs, verb, paths, proof)
    except OSError as error:
        text = f"--proof {proof}: cannot be written ({error.strerror}): free space, and run the same command again"
        raise ConfigError(text, code="proof-not-writable", file=str(proof)) from None


def _say_tally(folder: str, tally: Tally) -> None:
    console.out(f"{folder}: {tally.files} files, {tally.bytes / 1e9:.3f} GB")
    for state, count in sorted(tally.words.items(), key=lambda pair: -pair[1]):
        console.out(f"  {count:>9}  {state}")
    sys.stdout.flush()


def _end(verb: str, folder: str, outcome: Outcome, tally: Tally) -> int:
    """Say what was moved and what was not, and return the exit code."""
    _say_tally(folder, tally)
    if outcome.gone:
        tell(f"note: {_some(outcome.gone)} deleted meanwhile")
    for path, why in list(outcome.failed.items())[:SHOWN]:
        tell(f"error: {path}: {why}")
    if len(outcome.failed) > SHOWN:
        tell(f"error: and {len(outcome.failed) - SHOWN} more files failed")
    late = [path for path in tally.unproved if path not in outcome.failed]
    if outcome.waiting:
        tell(f"error: no progress any more; {_some(outcome.waiting)} not done yet")
    if late:
        tell(f"{verb}: {_some(late)} not done, or changed meanwhile: run the same command again")
    if outcome.failed:
        return EXIT_ERROR
    if late or outcome.waiting:
        return EXIT_RESUMABLE
    console.out(f"{verb}: all {tally.files} files done, {outcome.moved} of them now")
    return 0


def _some(paths: list[str]) -> str:
    names = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    return f"{len(paths)} file{'s' * (len(paths) > 1)} ({names})"


if __name__ == "__main__":
    console.script(main)
