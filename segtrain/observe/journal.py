"""Journal of a run: one JSON line per event in ``journal.jsonl``.

Every line has ``event`` (its name, always the first key, so that a reader can select lines without
parsing them) and ``ts`` (Unix time in seconds). The other fields, by event:

``run_start``   a process starts or resumes: ``version`` of segtrain, ``versions`` {package:
                version}, ``name``, ``hash`` of the config, ``host``, ``pid``, ``device``,
                ``world_size``, ``strategy``, ``total_steps``, ``eval_every`` and ``save_every``
                (steps), ``derived`` {quantity: value}, ``warnings`` [text] that apply to every
                score of the run, ``begun`` (Unix time at which the process began), ``hosts``, their
                ``machine`` (a type of SageMaker, or "") and ``price`` (dollars per hour of one;
                null: unknown), ``class_weights`` of the loss if they are automatic
``split``       ``data.split_by`` divides the data: ``rule`` {key: value}, ``images`` {split:
                count}, ``folder`` with the names
``init``        weights from ``model.init``: ``source``; the tensors ``taken`` from it, ``new`` (not
                in it, so they stay random), and ``left`` (in it, but with no place in this
                network); the classes whose rows in the last layer were taken (``rows``) or are new
                (``new_rows``); ``remark``
``faults``      faulty files are left out (``data.faults=skip``): ``role`` (train, val), ``skipped``
                of ``images``, ``file``
``resume``      ``step`` from which the run continues, ``world_size`` that wrote the checkpoint
``data_changed``  the run continues with other data (``checkpoint.data_changed=accept``): ``step``,
                  ``text`` with the changes
``step``        every ``log.every`` steps: ``step`` (1-based), ``epoch`` (float: samples seen /
                samples), ``loss`` (mean over the valid pixels of the global batch), ``lr``,
                ``images_per_s`` (all ranks), ``spans`` {phase: seconds} of rank 0 since the last
                ``step`` event (they add up to the wall time, see clock.py), ``cpu_s``
``eval``        ``step``, ``epoch``, ``scores`` {"miou": ..., "iou": [...], ...} as fractions,
                also ``loss`` (the mean over the split), and the one that ``eval.best`` names;
                ``protocol``, ``seconds``, ``cpu_s``, ``best`` (whether no earlier evaluation was
                better by that score); for up to 64 classes ``confusion`` [[pixels]], with a row per
                true class
``checkpoint``  ``step``, ``file``, ``reason``, ``seconds`` for which the loop stopped
``helpers``     what happens to the helpers of rank 0 (``data.helpers``): ``text`` as on the
                console, ``what`` (``working``, with ``cores`` {host: count}; ``lost`` and
                ``refused``, with ``host``, ``cores``, ``samples`` to make again, ``reason``;
                ``told``; ``given_up`` and ``asked_again``, with ``receive_ms`` and ``make_ms``, CPU
                time of this rank for a sample from helpers and for one of its own)
``hang``        no progress for ``log.hang_s``: ``text`` as on the console, ``ranks`` [fields of
                ``RankNotice`` in hang.py]
``slow``        the loop recently waited too long for data, reported once per cause: ``step``,
                ``cause``, ``text``
``signal``      ``signal`` ("SIGTERM"), ``step`` at which all ranks stop
``limit``       ``what`` is known of ``limit`` ("train.deadline=2h"): ``predicted``, ``near``, or
                ``reached``; ``step``, ``ends_at`` (the step at which the limit ends the run, or its
                last one), ``steps`` of the whole run, ``seconds`` and ``dollars`` (null: unknown)
                so far, ``text`` as on the console
``run_end``     ``status`` (``done``; ``stopped`` by a signal or a limit, resumable; ``failed``,
                with ``error``), ``step``, ``seconds`` (wall), ``cpu_s``, ``workers`` of rank 0 at
                the end; if done, the best score (``miou``, or what ``eval.best`` names) and, after
                ``train.patience``, ``text`` as on the console; with helpers, ``samples`` of rank 0
                in this process: ``local``, ``helpers`` {host: count},
                ``again`` (ordered from a helper, but not received), ``make_ms`` and
                ``receive_ms`` (mean CPU time of this rank for a sample),
                ``text`` as on the console

``seconds`` and ``cpu_s`` (process time of all ranks with their workers) of ``run_end`` leave out
evaluation and cover the whole run, resumed processes included. An event may have more fields. A
number that is not finite is written as null. A killed process may leave an incomplete line. Readers
skip it, and an event with a value of
another type; the next event starts on a new line.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from segtrain.base import json_text
from segtrain.base.files import NO_WAIT, open_file
from segtrain.base.terminal import Say as Say
from segtrain.base.terminal import counted, printable
from segtrain.errors import ConfigError, file_error, some_of

FILE = "journal.jsonl"
# Fields that have a number (hash: a text) or null in every event that has them, and those that have
# an object.
_TYPED = (
    "hash",
    "step",
    "epoch",
    "seconds",
    "cpu_s",
    "total_steps",
    "begun",
    "hosts",
    "price",
    "loss",
    "lr",
    "images_per_s",
)
_OBJECTS = ("spans", "scores", "derived", "versions", "protocol", "samples")
LAST_TS = 253402300799.0  # the end of the year 9999, which datetime can still represent


Event = Mapping[str, Any]


def say_on_stderr(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    """``value`` as JSON types: paths and other objects as text, array scalars as numbers, NaN and
    infinity as null.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    # numpy and torch have tolist(): a number for a scalar, nested lists for an array.
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


class LineFile:
    """Appends JSON lines, each by one ``write``, so that a killed process loses at most the line
    that it was writing.

    A full disk does not stop training: a warning is printed at the first lost line. Raises OSError
    if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_WAIT, 0o644)
        self._path, self._has_gap = path, False
        size = os.fstat(self._file).st_size
        # The next line starts on a new line if the last one was cut off.
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(plain(line), ensure_ascii=False) + "\n"
        data = b"\n" * self._torn + text.encode("utf-8", "replace")
        try:
            self._torn = os.write(self._file, data) < len(data)
            problem = "the disk is full" * self._torn
        except OSError as error:
            problem = error.strerror or str(error)
        if problem and not self._has_gap:
            self._has_gap = True
            say_on_stderr(f"warning: {self._path} has a gap: {problem}; training continues")

    def close(self) -> None:
        os.close(self._file)


class Journal:
    """Appends events to a file; ranks other than 0 write nothing. Raises ConfigError if the file
    cannot be opened.
    """

    def __init__(self, path: str | Path, rank: int = 0) -> None:
        self.path = Path(path)
        self._file: LineFile | None = None
        if rank != 0:
            return
        try:
            self._file = LineFile(self.path)
        except OSError as error:
            raise ConfigError(
                f"cannot write the journal {self.path}: {error.strerror}: set out=FOLDER "
                "to a writable folder",
                code="journal-unwritable",
                file=str(self.path),
            ) from None

    def write(self, event: str, **fields: Any) -> None:
        if self._file is not None:
            self._file.write({"event": event, "ts": round(time.time(), 4), **fields})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_time(ts: Any) -> bool:
    """Whether ``ts`` is a Unix time that datetime can represent."""
    return isinstance(ts, (int, float)) and 0 <= ts <= LAST_TS


def parse_lines(lines: Iterable[bytes], source: str, say: Say) -> Iterator[dict[str, Any]]:
    """Events of raw lines, in order. Lines without a valid event are skipped, and listed in one
    warning at the end.
    """
    bad = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json_text.parse(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and _is_sound(event):
            yield event
        else:
            bad.append(number)
    if bad:
        say(f"warning: {source}: skipped {counted(len(bad), 'torn line')} (line {some_of(bad)})")


def _is_sound(event: Event) -> bool:
    """Whether an event has a name and a time, and no field of another type than the events of this
    version.
    """
    typed = {key: event[key] for key in _TYPED if event.get(key) is not None}
    return (
        isinstance(event.get("event"), str)
        and is_time(event.get("ts", 0))
        and json_text.sound(typed, {"hash": str}) == typed
        and all(isinstance(event.get(key, {}), dict) for key in _OBJECTS)
    )


def read_journal(path: str | Path, say: Say = say_on_stderr) -> list[dict[str, Any]]:
    """All complete events of a journal. ``path`` is a journal or a run folder.

    Raises DataError if the journal cannot be read.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        with open_file(path) as file:
            return list(parse_lines(file, str(path), say))
    except OSError as error:
        raise file_error(
            str(path),
            f"the journal cannot be read: {error.strerror}: name a run folder",
            code="journal-unreadable",
        ) from None


def last_status(path: str | Path) -> str:
    """How the last process of a run ended: "done", "stopped", "failed"; "" while it runs, or if it
    was killed. Raises DataError if the journal cannot be read.
    """
    ends = [event for event in read_journal(path) if event["event"] in ("run_start", "run_end")]
    return str(ends[-1].get("status", "")) if ends else ""


def curve(events: Iterable[Event], event: str = "step") -> list[dict[str, Any]]:
    """Events of one kind, ordered by step. Steps that a resumed process repeated replace the
    earlier ones.
    """
    ordered: list[dict[str, Any]] = []
    for item in events:
        step = item.get("step")
        if not isinstance(step, int):
            continue
        if item.get("event") == "resume":
            ordered = [old for old in ordered if old["step"] <= step]
        elif item.get("event") == event:
            ordered = (
                [old for old in ordered if old["step"] < step]
                if ordered and ordered[-1]["step"] >= step
                else ordered
            )
            ordered.append(dict(item))
    return ordered


def best_evaluation(evaluations: Sequence[Event]) -> dict[str, Any]:
    """The event of the best evaluation, as the run decided; empty if nothing has a score.
    ``evaluations``: a ``curve``.

    Earlier versions do not write ``best``: in their journals, it is the one with the highest mIoU.
    """
    scored = [
        event for event in evaluations if isinstance(event["scores"].get("miou"), (int, float))
    ]
    best = [event for event in scored if event.get("best")][-1:]
    return dict(max(best or scored, key=lambda event: event["scores"]["miou"], default={}))
