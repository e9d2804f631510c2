"""Writer and reader of a system profile, in the file format of the SageMaker Debugger.

``system/incremental/<YYYYMMDDHH, UTC>/<Unix time of the full minute>.algo-N.json`` has one JSON
line per value:

    {"Type":"cpu","Name":"cpu5","Dimension":"CPUUtilization","Value":1.36,"NodeId":"algo-1","Timestamp":1591748109.2322}

``docs/profile.md`` lists types, names, and dimensions. Older profiles have no folder per hour, and
file names that are not full minutes. The sampler is a small process, so this file imports nothing
large.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from segtrain.base import json_text
from segtrain.base.files import open_file
from segtrain.errors import file_error
from segtrain.observe.journal import Say, say_on_stderr

MINUTE = 60
_NAME = re.compile(r"(?:^|/)system/(?:.*/)?(\d{10})\.(algo-\d+)\.json\Z")


class Value(NamedTuple):
    """One reading; the writer adds its time and its host."""

    type: str
    name: str
    dimension: str
    value: float


def file_of(ts: float, node: str) -> str:
    """The file of a reading at Unix time ``ts``, relative to the folder of the profile."""
    minute = int(ts) // MINUTE * MINUTE
    return (
        f"system/incremental/{time.strftime('%Y%m%d%H', time.gmtime(minute))}/{minute}.{node}.json"
    )


def minute_and_node(name: str) -> tuple[int, str] | None:
    """Unix time and node in the name of a profile file; None for any other file."""
    match = _NAME.search(name)
    return (int(match[1]), match[2]) if match else None


class ProfileWriter:
    """Appends the readings of one node, with a new file each minute. Raises OSError.

    All readings of a moment are one ``write`` to a file opened for appending, so a killed process
    leaves whole lines. An incomplete line that a full disk or a power failure left is removed,
    because other readers fail on such a line.
    """

    def __init__(self, folder: str | Path, node: str) -> None:
        self.folder, self.node = Path(folder), node
        self._path, self._file = "", -1

    def write(self, ts: float, values: Iterable[Value]) -> int:
        """Write the finite ``values`` of Unix time ``ts``, and return the number of bytes."""
        path = file_of(ts, self.node)
        if path != self._path:
            self._open(path)
        tail = f',"NodeId":"{self.node}","Timestamp":{ts:.4f}}}\n'
        lines = [
            f"{_head(kind, name, dimension)}{round(value, 2)}{tail}"
            for kind, name, dimension, value in values
            if math.isfinite(value)
        ]
        data = "".join(lines).encode()
        written = os.write(self._file, data)
        if written < len(data):  # the disk is full
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError("the disk is full")
        return written

    def _open(self, path: str) -> None:
        self.close()
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(target, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._path = path
        _cut_torn_line(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._path, self._file = "", -1


@functools.cache
def _head(kind: str, name: str, dimension: str) -> str:
    """The start of a line, up to its value."""
    words = json.dumps({"Type": kind, "Name": name, "Dimension": dimension}, separators=(",", ":"))
    return f'{words[:-1]},"Value":'


def _cut_torn_line(file: int) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        tail = os.pread(file, 4096, max(0, size - 4096))  # a line is shorter than 400 bytes
        os.ftruncate(file, size - len(tail) + tail.rfind(b"\n") + 1)


class Series(NamedTuple):
    node: str
    type: str
    name: str
    dimension: str


@dataclass(frozen=True)
class Track:
    """One series over time. ``np.asarray`` does not copy its arrays. ``times`` are Unix seconds and
    never decrease.
    """

    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


def read_profile(
    folder: str | Path,
    start: float = -math.inf,
    end: float = math.inf,
    *,
    say: Say = say_on_stderr,
) -> dict[Series, Track]:
    """All series with readings from ``start`` to ``end`` (Unix seconds, inclusive), ordered by
    their first readings.

    ``folder``: a run folder, a profile, or the output of a SageMaker job. Invalid lines are skipped
    and reported. Raises DataError if there is no profile.
    """
    paths = (
        Path(parent, name)
        for parent, _, names in os.walk(Path(folder).absolute())
        for name in names
    )
    files = sorted(
        (*moment, path)
        for path in paths
        if (moment := minute_and_node(path.as_posix())) is not None
    )
    if not files:
        raise file_error(
            str(folder),
            "there is no system profile (system/incremental/HOUR/MINUTE.algo-N.json): "
            "name a run trained with log.profile_ms=500, or the profiler-output of a SageMaker job",
            code="no-profile",
        )
    tracks: dict[Series, Track] = {}
    for minute, node, path in files:
        # A file is named after the start of its minute. In old profiles, it may be the end of the
        # minute, or any time.
        if minute % MINUTE == 0 and not start - 2 * MINUTE <= minute <= end + MINUTE:
            continue
        bad = 0
        try:
            lines = open_file(path)
        except OSError as error:
            say(f"warning: left out: {error}")
            continue
        with lines:
            for line in lines:
                reading = _reading(line, node)
                if reading is None:
                    bad += 1
                elif start <= reading[1] <= end:
                    track = tracks.setdefault(reading[0], Track())
                    track.times.append(reading[1])
                    track.values.append(reading[2])
        if bad:
            say(f"warning: {path}: skipped {bad} line{'s' * (bad > 1)} without a valid reading")
    return {series: _in_order(track) for series, track in tracks.items()}


def _reading(line: bytes, node: str) -> tuple[Series, float, float] | None:
    try:
        event: Any = json_text.parse(line)
        ts, value = float(event["Timestamp"]), float(event["Value"])
        series = Series(
            event.get("NodeId") or node,
            event["Type"],
            event.get("Name") or "",
            event.get("Dimension") or "",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return (series, ts, value) if math.isfinite(ts) and math.isfinite(value) else None


def _in_order(track: Track) -> Track:
    """Sort a track by time: a clock that was set back, and overlapping files, leave readings out of
    order.
    """
    times = track.times
    if all(a <= b for a, b in pairwise(times)):
        return track
    order = sorted(range(len(times)), key=times.__getitem__)
    return Track(
        array("d", (times[k] for k in order)), array("d", (track.values[k] for k in order))
    )
