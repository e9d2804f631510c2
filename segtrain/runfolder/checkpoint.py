"""Checkpoints: finding the newest and the best one, reading them, and checking that they fit;
writer.py writes them.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from segtrain.base.files import open_file, write_atomically
from segtrain.base.json_text import read_json
from segtrain.config import Origin, refuse_older_run
from segtrain.errors import CheckpointError, some_of
from segtrain.models.weights import StateDict, misfit
from segtrain.observe import journal
from segtrain.observe.scores import BEST, named_score

FORMAT = 2
SUFFIX = ".pt"
NAME = r"step-[0-9]+\.pt"
# Required parts of a checkpoint and their types; written by Session.save and learner_state.
PARTS = {
    **dict.fromkeys(("model", "buffers", "criterion", "optimizer", "ema", "scaler", "state"), dict),
    **dict.fromkeys(("config_hash", "decoder", "precision"), str),
    "world_size": int,
}


def checkpoints(run_dir: Path) -> list[Path]:
    """Whole checkpoints by step, oldest first (a file has its final name only when it is whole)."""
    files = Path(run_dir, "checkpoints").glob(f"step-*{SUFFIX}")
    return sorted(path for path in files if re.fullmatch(NAME, path.name))


def step_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def fingerprint(path: Path) -> str:
    """SHA-256 of the checksums in a checkpoint's ZIP directory: equal on two hosts whose files are
    equal.

    Raises CheckpointError if the file is missing or incomplete.
    """
    try:
        with open_file(path, math.inf) as file, zipfile.ZipFile(file) as archive:
            table = [
                (item.filename.partition("/")[2], item.CRC, item.file_size)
                for item in archive.infolist()
            ]
    except (OSError, zipfile.BadZipFile) as error:
        raise _incomplete(path, str(error)) from None
    return hashlib.sha256(repr(table).encode()).hexdigest()


@dataclass(frozen=True, order=True)
class Best:
    """The step with the best score so far, and its score, which ``by`` names as ``eval.best`` does.
    Step 0: nothing was scored.
    """

    step: int = 0
    value: float = -1.0
    by: str = "miou"

    @property
    def file(self) -> str:
        return f"step-{self.step:08d}{SUFFIX}"

    def after(self, step: int, value: float | None, by: str) -> Best:
        """The best step when also ``step`` is scored. Nothing else compares scores of a run."""
        if value is None or not math.isfinite(value):
            return self
        first = not self.step
        return Best(step, value, by) if first or named_score(by).better(value, self.value) else self

    def entries(self) -> dict[str, Any]:
        """The entries of a checkpoint's state, in the order of the fields."""
        return {"best_step": self.step, "best_value": self.value, "best_by": self.by}

    def record(self) -> dict[str, Any]:
        """The content of best.json."""
        content: dict[str, Any] = {"checkpoint": self.file, "step": self.step}
        if self.by == BEST.key:
            return {**content, "miou": self.value}
        return {**content, "by": self.by, "value": self.value}

    def text(self, scores: Mapping[str, Any]) -> str:
        """Its score, with the number of classes in ``scores``."""
        score = named_score(self.by)
        return score.text({**scores, score.key: self.value})


def renamed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state in a checkpoint, with the names of this version: 0.2 knew only the mIoU."""
    return {"best_value" if key == "best_miou" else key: value for key, value in state.items()}


def best_of(content: Mapping[str, Any]) -> Best | None:
    """The best step according to a checkpoint. None if nothing was scored, or if its state is
    damaged.
    """
    state = content.get("state")
    if not isinstance(state, dict):
        return None
    state = renamed(state)
    step, value = state.get("best_step"), state.get("best_value")
    valid = type(step) is int and step > 0 and isinstance(value, float)
    return Best(step, value, str(state.get("best_by", BEST.key))) if valid else None  # type: ignore[arg-type]


def named_best(run_dir: Path) -> Best | None:
    """The best step according to best.json; None if the file is missing or damaged."""
    try:
        record = read_json(Path(run_dir, "best.json"))
        by = str(record.get("by", BEST.key))
        value = record["miou" if by == BEST.key else "value"]
        best = Best(int(record["step"]), float(value), by)
        return best if record["checkpoint"] == best.file else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def write_best(run_dir: Path, best: Best) -> None:
    write_atomically(run_dir / "best.json", json.dumps(best.record()).encode())


def mend_best(run_dir: Path, best: Best) -> tuple[Best, list[str]]:
    """Make best.json agree with the ``best`` step of the checkpoint that a run resumes from.
    Returns the best step from here on, and a remark per change.

    If the file of the best step is missing, the next score is the best.
    """
    named, path = named_best(run_dir), run_dir / "best.json"
    if not best.step:
        if not path.exists():
            return best, []
        path.unlink()
        return best, [f"{path} named a score from later steps, which will be repeated: removed"]
    if not (run_dir / "checkpoints" / best.file).is_file():
        path.unlink(missing_ok=True)
        return Best(), [
            f"the best checkpoint {best.file} is missing: only scores from here on count toward "
            "the best"
        ]
    if best == named:
        return best, []
    before = f"named {named.file}" if named else "was damaged" if path.exists() else "was missing"
    write_best(run_dir, best)
    return best, [f"{path} {before}: rewritten, the best so far is {best.file} ({best.text({})})"]


def read(path: Path, content: bytes | None = None, lazily: bool = False) -> dict[str, Any]:
    """Load one checkpoint to the CPU with ``weights_only=True`` (tensors and plain values; no code
    in it is run).

    ``content``: the bytes of the file, if another host sent them. ``lazily``: memory-map the
    tensors.

    Raises CheckpointError if the file is missing, unreadable, damaged, or not a checkpoint of this
    format.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = str(path) if content is None else io.BytesIO(content)
            if content is None:
                open_file(path, math.inf).close()  # refuses a pipe or a device
            mapped = lazily and content is None
            state = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
        if not lazily:  # torch.load does not verify the checksums in the archive
            with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
                damaged = archive.testzip()
            if damaged is not None:
                raise zipfile.BadZipFile(f"{damaged} has another checksum")
        if isinstance(state, dict):
            state["origin"] = Origin.read(state.get("origin", {}))
    except FileNotFoundError:
        raise CheckpointError(
            f"there is no checkpoint {path}", code="checkpoint-missing", file=str(path)
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {error.strerror or error}: check its "
            "permissions and its disk",
            code="checkpoint-not-read",
            file=str(path),
        ) from None
    except Exception as error:  # zip, pickle, and zlib each raise their own exceptions
        raise _incomplete(path, type(error).__name__) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of format {FORMAT}: use another, or the segtrain "
            "version that wrote it",
            code="checkpoint-foreign",
            file=str(path),
        )
    return state


def _incomplete(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is incomplete or damaged ({reason}): move it away to use another checkpoint",
        code="checkpoint-damaged",
        file=str(path),
        reason=reason,
    )


def misfits(own: StateDict, weights: StateDict) -> list[str]:
    """How ``weights`` differ from a model's tensors: one remark per tensor."""
    return [
        *(f"{key} is missing" for key in own if key not in weights),
        *(f"{key} is unknown" for key in weights if key not in own),
        *misfit(own, weights),
    ]


def refuse_foreign(
    state: Mapping[str, Any],
    own: Mapping[str, Any],
    run_dir: str,
    averaged: StateDict | None = None,
) -> None:
    """Raise CheckpointError if a checkpoint lacks a part or belongs to a different network.

    ``averaged``: the moving average of this run's weights, or None. The average in the checkpoint
    must fit it.
    """
    faults = _faults(state, own)
    if not faults and averaged is not None:
        faults = [f"ema: {text}" for text in misfits(averaged, state["ema"])]
    if faults:
        raise CheckpointError(
            f"the newest checkpoint in {run_dir} is from a different run ({len(faults)} "
            f"differences; {faults[0]}): move it out of checkpoints/, or choose another out=FOLDER",
            code="checkpoint-foreign",
            run=run_dir,
            found=faults,
        )


def _faults(state: Mapping[str, Any], own: StateDict) -> list[str]:
    """Remarks on missing and invalid parts. If all parts are valid, remarks on tensors that do not
    fit ``own``.
    """
    faults = [
        f"{part} is a {type(state[part]).__name__}" if part in state else f"{part} is missing"
        for part, kind in PARTS.items()
        if not isinstance(state.get(part), kind)
    ]
    if faults:
        return faults
    faults = misfits(own, state["model"])
    if not all(isinstance(state["scaler"].get(key), (int, float)) for key in ("scale", "good")):
        faults.append("scaler.scale or scaler.good is not a number")
    if not isinstance(state.get("buffers_of_ranks"), (Tensor, type(None))):
        faults.append("buffers_of_ranks is not a tensor")
    for name, slots in state["optimizer"].items():
        if name not in own:
            faults.append(f"optimizer.{name} is unknown")
        elif not isinstance(slots, dict):
            faults.append(f"optimizer.{name} is a {type(slots).__name__}")
        else:
            faults += [
                f"optimizer.{name}.{key} differs in shape from its weight"
                for key, value in slots.items()
                if isinstance(value, Tensor) and value.dim() and value.shape != own[name].shape
            ]
    return faults


@dataclass(frozen=True)
class NewestCheckpoint:
    """The newest checkpoint in a run folder that can be loaded; empty if there is none."""

    path: Path | None = None
    state: dict[str, Any] | None = None
    remarks: tuple[str, ...] = ()  # about newer ones that cannot be loaded


def newest(run_dir: Path, lazily: bool = False) -> NewestCheckpoint:
    remarks: tuple[str, ...] = ()
    for path in reversed(checkpoints(run_dir)):
        try:
            return NewestCheckpoint(path, read(path, lazily=lazily), remarks)
        except CheckpointError as error:
            remarks += (f"skipped: {error}",)
    return NewestCheckpoint(remarks=remarks)


def best_file(run_dir: Path) -> Path | None:
    """The best checkpoint, as named by the newest complete checkpoint or by best.json, whichever
    names a later step. None if nothing was scored.

    Raises CheckpointError if the named file is missing.
    """
    last = newest(run_dir, lazily=True).state
    # After a kill, best.json may be the older one; without its newest file, the last checkpoint.
    best = max(best_of(last or {}) or Best(), named_best(run_dir) or Best())
    if not best.step:
        return None
    file = run_dir / "checkpoints" / best.file
    if not file.is_file():
        fix = (
            "use the last one (--which last)"
            if last
            else "no other one loads: restore this one, or train again"
        )
        raise CheckpointError(
            f"the best checkpoint of {run_dir}, {file.name}, is not there: {fix}",
            code="checkpoint-missing",
            file=str(file),
        )
    return file


def _last_file(run_dir: Path) -> Path | None:
    path = next(reversed(checkpoints(run_dir)), None)
    events = journal.read_journal(run_dir) if (run_dir / journal.FILE).is_file() else []
    files = [str(event.get("file")) for event in events if event["event"] == "checkpoint"]
    if path and path.name < max(files[-1:], default=""):
        journal.say_on_stderr(
            f"warning: {run_dir}: the last checkpoint, {files[-1]}, is not there: the weights are "
            f"those of {path.name}"
        )
    return path


def load_weights(run_dir: Path, which: str = "best") -> tuple[dict[str, Tensor], Origin]:
    """State dict of the best or the last checkpoint: the moving average if the run has one,
    otherwise the model.

    Raises CheckpointError if the run folder has no checkpoint, or if this one is missing or
    damaged, or if the weights are not finite. If the last one of the journal is missing, an earlier
    one is the last, with a warning.
    """
    run_dir = Path(run_dir)
    refuse_older_run(run_dir)
    if which not in ("best", "last"):
        raise CheckpointError(
            f"which={which!r}: choose best or last", code="unknown-checkpoint", found=which
        )
    path = best_file(run_dir) if which == "best" else None
    path = path or _last_file(run_dir)
    if path is None:
        raise CheckpointError(
            f"{run_dir} holds no checkpoint: train it first (segtrain train ... "
            f"out={quote(str(run_dir))})",
            code="no-checkpoint",
            run=str(run_dir),
        )
    state = read(path)
    weights, averages = state.get("model"), state.get("ema") or {}
    if not isinstance(weights, dict) or not isinstance(averages, dict):
        raise CheckpointError(
            f"the checkpoint of {run_dir} holds no weights: take another",
            code="no-weights",
            run=str(run_dir),
        )
    weights, trained = {**weights, **averages}, state.get("optimizer")
    bad = [
        name
        for name, value in weights.items()
        # A buffer or a frozen weight may be infinite on purpose, such as a mask of an attention.
        if not isinstance(trained, dict) or name in (trained or weights)
        # A tensor that was expanded may have more numbers than memory holds; its shape is compared
        # with the network's.
        if isinstance(value, Tensor)
        and value.nbytes <= value.untyped_storage().nbytes()
        and not value.isfinite().all()
    ]
    if bad:
        raise CheckpointError(
            f"the {which} checkpoint of {run_dir} holds values that are not finite, in "
            f"{some_of(bad, 1)}: take an earlier checkpoint, or train again with a lower optim.lr",
            code="not-finite",
            run=str(run_dir),
            found=bad,
        )
    return weights, state["origin"]
