"""The format of a system profile: the files of the SageMaker Debugger, so that tools for one read the other.

``FOLDER/system/incremental/<YYYYMMDDHH, UTC>/<Unix time of the full minute>.algo-N.json``, one JSON line a value:

    {"Type":"cpu","Name":"cpu5","Dimension":"CPUUtilization","Value":1.36,"NodeId":"algo-1","Timestamp":1591748109.2322}

=========  ==================================  ======================  ===================================================
Type       Name                                Dimension               Value
=========  ==================================  ======================  ===================================================
cpu        cpuN                                CPUUtilization          percent of the core that worked
cpu        cpuN                                I/OWaitPercentage       percent of the core that idled while a disk worked
memory     MemoryUsedPercent                   (empty)                 percent of the host's memory that is not available
i/o        IOPS                                (empty)                 disk transfers a second
i/o        Read-, WriteThroughputInBytes-      (empty)                 bytes a second
           PerSecond
network    Receive-, TransmitBytesPerSecond    Algorithm               bytes a second, all interfaces but loopback
network    the same                            Platform                of SageMaker's own agents: 0 in what we write
gpu        gpuN                                GPUUtilization          percent of the time with a kernel on the device
gpu        gpuN                                GPUMemoryUtilization    percent of its memory in use
=========  ==================================  ======================  ===================================================

Ours alone, under names that the charts of other readers do not select: ``PowerInWatts``, ``SMClockInMHz``, ``MemoryClockInMHz`` of a
gpu; of ``memory`` with dimension ``Swap``: ``SwapUsedPercent``, ``SwapInBytesPerSecond``, ``SwapOutBytesPerSecond``.

Older traces have no folder of the hour, and names that are no full minute. Imports nothing heavy: the sampler is a small process.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from segtrain import json_text
from segtrain.errors import DataError
from segtrain.observe.journal import say_on_stderr

MINUTE = 60
_NAME = re.compile(r"(?:^|/)system/(?:.*/)?(\d{10})\.(algo-\d+)\.json")


class Value(NamedTuple):
    """One reading; when and where it was read is the writer's to add."""

    type: str
    name: str
    dimension: str
    value: float


def file_of(ts: float, node: str) -> str:
    """The file, below the profile's folder, of a reading at Unix time ``ts``."""
    minute = int(ts) // MINUTE * MINUTE
    return f"system/incremental/{time.strftime('%Y%m%d%H', time.gmtime(minute))}/{minute}.{node}.json"


def minute_and_node(name: str) -> tuple[int, str] | None:
    """Unix time in the name of a profile's file, and its node; None for a file that is none."""
    found = _NAME.search(name)
    return (int(found[1]), found[2]) if found and found.end() == len(name) else None


class ProfileWriter:
    """Appends readings; a new file each minute. The one writer of its node.

    All readings of a moment are one ``write`` to a file opened for appending: a killed process leaves whole lines. What a full disk
    or a power cut tore off is cut away, for other readers give up on a file with a broken line. Raises OSError.
    """

    def __init__(self, folder: str | Path, node: str) -> None:
        self.folder, self.node = Path(folder), node
        self._path, self._file = "", -1
        self._heads: dict[tuple[str, str, str], str] = {}

    def write(self, ts: float, values: Iterable[Value]) -> int:
        """Returns bytes. ``ts``: Unix time in seconds, that of all ``values``. A value that is not finite is left out: JSON has none."""
        path = file_of(ts, self.node)
        if path != self._path:
            self._open(path)
        tail = f',"NodeId":"{self.node}","Timestamp":{ts:.4f}}}\n'
        heads, lines = self._heads, []
        for kind, name, dimension, value in values:
            head = heads.get((kind, name, dimension)) or self._head(kind, name, dimension)
            if math.isfinite(value):
                lines.append(f"{head}{round(value, 2)}{tail}")
        data = "".join(lines).encode()
        written = os.write(self._file, data)
        if written < len(data):  # the disk is full
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError("the disk is full")
        return written

    def _head(self, kind: str, name: str, dimension: str) -> str:
        words = json.dumps({"Type": kind, "Name": name, "Dimension": dimension}, separators=(",", ":"))
        self._heads[kind, name, dimension] = head = f'{words[:-1]},"Value":'
        return head

    def _open(self, path: str) -> None:
        self.close()
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(place, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._path = path
        _cut_torn_line(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._path, self._file = "", -1


def _cut_torn_line(file: int) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        tail = os.pread(file, 4096, max(0, size - 4096))  # a line is a tenth of it
        os.ftruncate(file, size - len(tail) + tail.rfind(b"\n") + 1)


class Series(NamedTuple):
    node: str
    type: str
    name: str
    dimension: str


@dataclass(frozen=True)
class Track:
    """One series over time; ``np.asarray`` takes both without a copy. ``times`` (Unix, seconds) never falls."""

    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True)
class MetricSource:
    """Where profile files lie: a folder, a bucket. Both functions speak of the same names, with ``/`` between folders."""

    name: str
    list: Callable[[], Iterable[str]]
    open: Callable[[str], AbstractContextManager[Iterable[bytes]]]


def folder_source(folder: str | Path) -> MetricSource:
    """A folder of this machine: a run folder, a profile's, or a SageMaker job's output."""
    root = Path(folder).absolute()

    def names() -> Iterator[str]:
        for place, _, files in os.walk(root):
            yield from (f"{Path(place).as_posix()}/{name}" for name in files)

    def read(name: str) -> BinaryIO:
        return Path(name).open("rb")

    return MetricSource(str(folder), names, read)


def read_profile(
    source: MetricSource | str | Path,
    start: float = -math.inf,
    end: float = math.inf,
    *,
    say: Callable[[str], None] = say_on_stderr,
) -> dict[Series, Track]:
    """Every series with readings from ``start`` to ``end`` (Unix seconds), both included, in the order of its first one.

    Lines that are no reading are skipped, and said. Raises DataError where no file is a profile's.
    """
    source = source if isinstance(source, MetricSource) else folder_source(source)
    found = sorted((*moment, name) for name in source.list() if (moment := minute_and_node(name)) is not None)
    if not found:
        raise DataError(
            f"{source.name} holds no system profile (system/incremental/HOUR/MINUTE.algo-N.json): name a run folder, or the "
            "profiler-output of a SageMaker job; a run writes one with log.profile_ms=500"
        )
    tracks: dict[Series, Track] = {}
    for minute, node, name in found:
        if not _may_hold(minute, start, end):
            continue
        bad = 0
        with source.open(name) as lines:
            for line in lines:
                reading = _reading(line, node)
                if reading is None:
                    bad += 1
                elif start <= reading[1] <= end:
                    track = tracks.setdefault(reading[0], Track())
                    track.times.append(reading[1])
                    track.values.append(reading[2])
        if bad:
            say(f"warning: {name}: skipped {bad} line{'s' * (bad > 1)} that are no reading")
    return {series: _in_order(track) for series, track in tracks.items()}


def _may_hold(minute: int, start: float, end: float) -> bool:
    """A file holds its minute, or the one before where the writer named it at its end. Other names say nothing."""
    return minute % MINUTE != 0 or (start - MINUTE <= minute + MINUTE and minute - MINUTE <= end)


def _reading(line: bytes, node: str) -> tuple[Series, float, float] | None:
    try:
        event: Any = json_text.parse(line)
        ts, value = float(event["Timestamp"]), float(event["Value"])
        series = Series(
            event.get("NodeId") or node, event["Type"], event.get("Name") or "", event.get("Dimension") or ""
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return (series, ts, value) if math.isfinite(ts) and math.isfinite(value) else None


def _in_order(track: Track) -> Track:
    """By time: a clock that was set back, and files whose names overlap, leave readings out of order."""
    times = track.times
    if all(a <= b for a, b in pairwise(times)):
        return track
    order = sorted(range(len(times)), key=times.__getitem__)
    return Track(array("d", (times[k] for k in order)), array("d", (track.values[k] for k in order)))
