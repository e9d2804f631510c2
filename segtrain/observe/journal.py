"""The journal of a run: one JSON line per event in ``journal.jsonl`` of the run folder.

The journal is the one source of the table of runs and of anything that explains a run later. Every line has ``event`` (its
name, always the first key, so that a reader can choose lines without parsing them) and ``ts`` (Unix time in seconds).
The other fields, by event:

``run_start``   a process begins, also after a resume: ``version`` (of segtrain), ``versions`` {package: version}, ``name``,
                ``hash`` (of the config), ``host``, ``pid``, ``device``, ``world_size``, ``total_steps``, ``eval_every`` and
                ``save_every`` (steps), ``derived`` {quantity: value}, ``warnings`` that every score of the run must be read with [text]
``split``       ``data.split_by`` divides the set: ``rule`` {key: value}, ``images`` {split: count}, ``folder`` of the names in each split
``init``        the weights that ``model.init`` gave: ``source``, tensors ``taken``, ``new`` (random) and ``left``, classes whose head
                rows were taken (``rows``) or are new (``new_rows``), ``remark``
``faults``      faulty files are left out (``data.faults=skip``): ``role`` (train, val), ``skipped`` of ``images``, ``file`` that lists them
``resume``      ``step`` it goes on from, ``world_size`` that wrote it
``data_changed``  it goes on with other data (``checkpoint.data_changed=accept``): ``step``, ``text`` with what differs
``step``        every ``log.every`` steps: ``step`` (1-based), ``epoch`` (float: samples seen / samples), ``loss`` (mean over the
                valid pixels of the global batch), ``lr``, ``images_per_s`` (all ranks), ``spans`` {phase: seconds} since the
                last ``step`` event, on this rank (``wait``, ``forward``, ``backward``, ``update``, ..., ``other``: they add up to the
                wall time, see clock.py), ``cpu_s``
``eval``        ``step``, ``epoch``, ``scores`` {"miou": ..., "iou": [...], ...} as fractions, ``protocol``, ``seconds``, ``cpu_s``;
                up to 64 classes also ``confusion`` [[pixels]]: a row a true class, a column a predicted one
``checkpoint``  ``step``, ``file``, ``reason``, ``seconds`` that the loop stood still for it
``hang``        no progress for ``log.hang_s``: ``text`` as on the console, ``ranks`` [{"rank": ..., "step": ..., "phase": ..., "line": ...}, ...] that
                answered (fields of ``Notice`` in hang.py)
``slow``        the last seconds starved for data, said once a cause: ``step``, ``cause`` (as `segtrain diagnose` names it), ``text`` as on the
                console
``signal``      ``signal`` ("SIGTERM"), ``step`` at which all ranks stop
``run_end``     ``status`` (``done``; ``stopped``: by a signal, resumable; ``failed``, with ``error``), ``step``, ``seconds`` (wall),
                ``cpu_s``, ``workers`` that made the samples of rank 0 at the end

``run_end.seconds`` and ``cpu_s`` (process time of all ranks with their workers) leave evaluation out and count over the whole
run: a resumed run goes on counting. An event may have more fields; readers take what they know. A number that is not finite
is written as null, for JSON has none. A process killed while writing leaves a torn last line: the next one starts on a line
of its own, and readers skip it and say so.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from segtrain.errors import ConfigError, DataError
from segtrain.terminal import printable

FILE = "journal.jsonl"


LAST_TS = 253402300799.0  # the end of the year 9999, the last that a calendar shows


def say_on_stderr(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def plain(value: Any) -> Any:
    """What JSON can hold: paths and unknown objects as text, array scalars as numbers, non-finite numbers as null."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    # numpy and torch both have tolist(): a number for a scalar, nested lists for the rest.
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


class Journal:
    """Appends events to a file. Ranks other than 0 are silent, so that the loop need not ask who it is.

    Each event is one ``write`` to a file opened for appending: nothing is buffered in the process, so a killed process
    loses at most the line it was writing. A full disk stops no training: the first lost event is said on stderr.
    """

    def __init__(self, path: str | Path, rank: int = 0, say: Callable[[str], None] = say_on_stderr) -> None:
        self.path = Path(path)
        self.lost = 0
        self._say = say
        self._torn = False
        self._file: int | None = None
        if rank != 0:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"cannot write the journal {self.path}: {error.strerror}: set out=FOLDER to a folder that you can write"
            ) from None
        size = os.fstat(self._file).st_size
        if size:
            os.lseek(self._file, size - 1, os.SEEK_SET)
            self._torn = os.read(self._file, 1) != b"\n"

    def write(self, event: str, **fields: Any) -> None:
        if self._file is None:
            return
        line = json.dumps({"event": event, "ts": round(time.time(), 4), **plain(fields)}, ensure_ascii=False) + "\n"
        data = (b"\n" if self._torn else b"") + line.encode("utf-8", "replace")
        try:
            written = os.write(self._file, data)
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        # A short write means a disk that fills up; the torn line is ended by the next event.
        self._torn = written < len(data)
        if self._torn:
            self._lose("the disk is full")

    def _lose(self, reason: str) -> None:
        self.lost += 1
        if self.lost == 1:
            self._say(f"warning: {self.path} lacks an event: {reason}; training goes on")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_time(ts: Any) -> bool:
    """Whether ``ts`` is a Unix time that a calendar can show."""
    return isinstance(ts, (int, float)) and 0 <= ts <= LAST_TS


def parse_lines(
    lines: Iterable[bytes], source: str, say: Callable[[str], None] = say_on_stderr
) -> Iterator[dict[str, Any]]:
    """Events of raw lines in order; lines that are no event are skipped, and said once at the end with their numbers."""
    bad = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and isinstance(event.get("event"), str) and is_time(event.get("ts", 0)):
            yield event
        else:
            bad.append(number)
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        say(f"warning: {source}: skipped {len(bad)} torn line{'s' * (len(bad) > 1)} (line {shown})")


def read_journal(path: str | Path, say: Callable[[str], None] = say_on_stderr) -> list[dict[str, Any]]:
    """All whole events of a journal or of the run folder that holds it. Raises DataError where there is none."""
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            return list(parse_lines(file, str(path), say))
    except OSError as error:
        raise DataError(f"cannot read the journal {path}: {error.strerror}: name a run folder") from None


def curve(events: Iterable[Mapping[str, Any]], event: str = "step") -> list[dict[str, Any]]:
    """Events of one kind with rising steps: what a resumed process did again replaces what was done before the stop."""
    kept: list[dict[str, Any]] = []
    for item in events:
        step = item.get("step")
        if not isinstance(step, int):
            continue
        if item.get("event") == "resume":
            kept = [old for old in kept if old["step"] <= step]
        elif item.get("event") == event:
            kept = [old for old in kept if old["step"] < step] if kept and kept[-1]["step"] >= step else kept
            kept.append(dict(item))
    return kept
