"""Results of a process of a cloud job: the failure text, or the model, the scores, and the
journal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

from segtrain.base.terminal import Say
from segtrain.errors import SegtrainError, one_line

LONGEST = 1024  # characters of the failure text that DescribeTrainingJob shows as FailureReason
# in an error of segtrain.parallel.failure: a consequence, not the cause
LOST = "has lost another rank"
_PACKAGE = Path(__file__).parents[1]


def cause(error: BaseException) -> str:
    """One line about an error: the text of a SegtrainError, or the type, text, and place of any
    other error.
    """
    text = one_line(error)
    if isinstance(error, SegtrainError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)] or frames
    where = (
        f" ({Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    )
    kind = type(error).__name__
    return f"{kind}: {shortened(text, LONGEST - 400)}{where}" if text else f"{kind}{where}"


def shortened(text: str, most: int = LONGEST) -> str:
    """Start and end of a long text: the end often has the fix."""
    if len(text) <= most:
        return text
    head = (most - 5) * 2 // 3
    return f"{text[:head]} ... {text[len(text) - (most - 5 - head) :]}"


def say_error(error: Exception, text: str) -> int:
    """Print an error of this rank, with the traceback if it is unexpected. Returns the exit
    code.
    """
    if not isinstance(error, SegtrainError):
        traceback.print_exception(type(error), error, error.__traceback__)
        print(f"error: {text}", file=sys.stderr)
        return 1
    local = os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    if not error.silent and (error.silent is False or local == "0"):
        print(f"error: {text}", file=sys.stderr, flush=True)
    return error.exit_code


def write_failure(text: str, files: list[Path], reserve: Path | None = None) -> None:
    """Write the cause of a failure to each file.

    A cause that another process wrote before stays there, unless it only says that a rank was lost
    and ``text`` says more.

    ``reserve``: a file to delete if the disk is full, which makes room for the text. Raises
    nothing.
    """
    content = shortened(" ".join(text.split())).encode()
    for file in files:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and LOST in file.read_text(errors="replace") and LOST not in text:
                file.unlink(missing_ok=True)
            try:
                _write_new(file, content)
            except FileExistsError:
                continue
            except OSError:
                if reserve is None:
                    raise
                reserve.unlink(missing_ok=True)
                _write_new(file, content)


def _write_new(file: Path, content: bytes) -> None:
    """Write a new file, whole or not at all. Raises OSError."""
    stream = file.open("xb")
    try:
        with stream:
            stream.write(content)
    except OSError:
        file.unlink(missing_ok=True)
        raise


def keep_journal(run_dir: Path, output: Path) -> None:
    """Copy the run folder without its checkpoints to ``output``, which becomes output.tar.gz.
    Raises SegtrainError.
    """
    if run_dir.is_relative_to(output):
        return
    try:
        shutil.copytree(
            run_dir, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints", ".*")
        )
    except OSError as error:
        raise _unwritable(output, error) from None


def _unwritable(folder: Path, error: OSError) -> SegtrainError:
    message = f"cannot write to {folder}: {error.strerror or error}: raise volume_gb of the job"
    return SegtrainError(message, code="job-output-unwritable", folder=str(folder))


def keep_model(run_dir: Path, model: Path, *, onnx: bool, say: Say) -> None:
    """Write the best weights to the folder ``model``, and files about their run to its subfolder
    ``run``.

    With ``onnx``, the weights are also written as ONNX if possible. The other files are in a
    subfolder because a folder with config.yaml and weights would look like a run without
    checkpoints. Raises SegtrainError.
    """
    from segtrain.infer.export import export
    from segtrain.insight.runs.table import read_run
    from segtrain.observe.journal import curve, read_journal

    try:
        done = export(run_dir, model, ("safetensors", "onnx") if onnx else ("safetensors",))
    except SegtrainError as error:
        if not onnx:
            raise
        say(f"no model.onnx: {error}")
        done = export(run_dir, model, ("safetensors",))
    beside = model / "run"
    try:
        beside.mkdir(exist_ok=True)
        for name in ("config.yaml", "labels.json", "journal.jsonl"):
            if (run_dir / name).is_file():
                shutil.copy2(run_dir / name, beside / name)
        last = curve(read_journal(run_dir, say=lambda _: None), "eval")[-1:]
        content = {**read_run(run_dir), **({"scores": last[0]["scores"]} if last else {})}
        (beside / "scores.json").write_text(
            json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise _unwritable(beside, error) from None
    say(
        f"model     {', '.join(path.name for path in done.files)}, config, labels, journal, and "
        f"scores, in {model}"
    )
