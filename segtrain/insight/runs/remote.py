"""Local copies of runs in buckets, also of jobs of a platform: small files are copied, checkpoints
are not.

    gs://BUCKET/PREFIX      a run folder, or a prefix with one run somewhere below, such as the
                            checkpoints of a job
    s3://BUCKET/PREFIX      likewise, as is az://CONTAINER/PREFIX
    NAME:...                a job or an experiment of a platform, see RunService

The copy is in ``$SEGTRAIN_CACHE/remote``. A file is fetched again when its ETag has changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from segtrain.base.files import cache_folder, digest_of, open_file
from segtrain.bucket import CLOUDS, scheme_of, url_forms
from segtrain.config import PLAN
from segtrain.errors import ConfigError, DataError, file_error, some_of
from segtrain.insight.runs.bucket import (
    UNPACKED,
    Copy,
    Object,
    WantedFile,
    list_objects,
    print_command,
    to_read_all_of,
)
from segtrain.insight.runs.table import list_runs
from segtrain.observe.journal import FILE, Say, parse_lines, say_on_stderr
from segtrain.observe.profile_format import MINUTE, minute_and_node

# Most bytes that are fetched from a run, for each kind of file.
MOST_LINES, MOST_SPANS, MOST_PROFILE, MOST_PICTURES, MOST_ARCHIVE = (
    mb << 20 for mb in (128, 128, 256, 16, 512)
)
# When a job ends, its run is packed into this archive, with the checkpoints if the job has no S3
# prefix for them.
ARCHIVE = "/output/output.tar.gz"
_RECORDS = ("config.yaml", "labels.json", "best.json", PLAN, FILE)
_SPANS = r"spans/rank-\d+\.jsonl"
_PICTURES = r"pictures/[^/]+\.png|images-(?:best|last)\.csv|stacks/rank-[\w-]+\.(?:txt|json)"
_PROFILE = r"profile/system/incremental/(?:\d+/)?\d+\.algo-\d+\.json"
_HOME = re.compile(rf"(?:(.*)/)?(?:journal\.jsonl|best\.json|{_SPANS})")
_UNPACK = re.compile(
    rf"(?:\./)?(?:run/)?({'|'.join(map(re.escape, _RECORDS))}|{_SPANS}|{_PICTURES}|{_PROFILE})"
)
_TAIL = 32768  # bytes at the end of a journal that hold its newest event
# seconds of the profile that are fetched before the first event and after the newest one
_MARGIN_S = 120

Say = Say


@dataclass(frozen=True)
class Location:
    """A folder to read. ``shown``: its name as the user gave it.

    ``stem``: how the names of files about it begin, such as STEM-report.html; "" for a local
    folder.
    """

    folder: Path
    shown: str
    stem: str = ""


@dataclass(frozen=True)
class RunService:
    """A platform that knows runs by names. ``prefixes``: how such locations begin.

    ``folders``: the URIs of a run's folders in buckets. Raises ConfigError for a location without
    files. ``rows``: the rows of the table of runs, if the platform itself has them.
    """

    prefixes: tuple[str, ...]
    folders: Callable[[str], list[str]]
    rows: Callable[[str], list[dict[str, Any]]] | None = None


Services = Sequence[RunService]


def service_of(location: str, services: Services) -> RunService | None:
    return next((service for service in services if location.startswith(service.prefixes)), None)


def is_remote(location: str, services: Services) -> bool:
    return "://" in location or service_of(location, services) is not None


def local(location: str, say: Say = say_on_stderr, services: Services = ()) -> Location:
    """The local folder for a location: the folder itself, or a copy of the one remote run. Raises
    SegtrainError.
    """
    if not is_remote(location, services):
        return Location(Path(location), location)
    uris, objects = objects_of(location, services)
    homes = homes_in(objects)
    archives = [item for item in objects if item.uri.endswith(ARCHIVE)]
    if len(homes) > 1 or (not homes and len(archives) != 1):
        raise _not_one(
            location, homes or [item.uri.removesuffix(ARCHIVE) for item in archives], objects
        )
    copy = Copy(copy_folder(location, uris))
    wanted: dict[str, WantedFile] = {}
    if homes:
        files = inside(objects, homes[0])
        wanted = {name: WantedFile(files[name], MOST_LINES) for name in _RECORDS if name in files}
        # The journal comes first, because it shows which minutes of the profile are needed.
        copy.take({name: wanted[name] for name in (FILE,) if name in wanted})
        spans = [name for name in files if re.fullmatch(_SPANS, name)]
        wanted |= {name: WantedFile(files[name], MOST_SPANS // len(spans)) for name in spans}
        wanted |= _pictures(files)
        _warn_of_cuts(homes[0], wanted, say)
    elif archives[0].size > MOST_ARCHIVE:
        uri = archives[0].uri
        raise file_error(
            uri,
            f"it has {_mb(archives[0].size)}, because it includes checkpoints: unpack it with "
            f"{print_command(uri)} | tar xz --exclude=checkpoints, then name that folder",
            code="archive-too-large",
            found=archives[0].size,
        )
    else:
        copy.unpack(WantedFile(archives[0], MOST_ARCHIVE), _UNPACK, MOST_PROFILE, say)
    wanted |= _profile(objects, homes, copy.folder, say)
    fetch(location, copy, wanted, objects, say)
    copy.keep_only({*wanted, *([] if homes else [UNPACKED])})
    return Location(
        copy.folder,
        location,
        _stem(homes[0] if homes and scheme_of(location) in CLOUDS else location),
    )


def rows(location: str, say: Say = say_on_stderr, services: Services = ()) -> list[dict[str, Any]]:
    """The rows of the table of runs for a folder, a prefix in a bucket, or a location of one of
    ``services``.

    Raises SegtrainError.
    """
    if not is_remote(location, services):
        return list_runs(location)
    service = service_of(location, services)
    if service is not None and service.rows is not None:
        return service.rows(location)
    uris, objects = objects_of(location, services)
    homes = homes_in(objects)
    folders = {home: f"{number}/{home.rsplit('/', 1)[-1]}" for number, home in enumerate(homes)}
    share = MOST_LINES // max(1, len(homes))
    wanted = {
        f"{folders[home]}/{name}": WantedFile(item, share)
        for home in homes
        for name, item in inside(objects, home).items()
        if name in _RECORDS
    }
    copy = Copy(copy_folder(location, ["runs", *uris]))
    fetch(location, copy, wanted, objects, say)
    copy.keep_only(wanted)
    origin = {str(copy.folder / folder): home for home, folder in folders.items()}
    return [{**row, "out": origin[row["out"]]} for row in list_runs(copy.folder)]


def objects_of(location: str, services: Services) -> tuple[list[str], list[Object]]:
    """The URIs of the folders of a remote location, and their objects.

    Raises SegtrainError if there are no objects.
    """
    uris = _resolve(location, services)
    # One folder may include another.
    objects = {item.uri: item for uri in uris for item in list_objects(uri)}
    if not objects:
        problem = f"{location}: there are no objects below {' or '.join(f'{uri}/' for uri in uris)}"
        list_command = CLOUDS[scheme_of(uris[0])].list_command
        raise DataError(
            f"{problem}: check the name with `{list_command}`; the first files of a job appear "
            "some minutes after it started to train",
            code="no-objects",
            place=location,
        )
    return uris, list(objects.values())


def _resolve(location: str, services: Services) -> list[str]:
    """The URIs of the folders of a remote location."""
    if scheme_of(location) in CLOUDS:
        return [location.rstrip("/")]
    service = service_of(location, services)
    if service is not None:
        return service.folders(location)
    raise unknown_place(location, f"name a folder, sagemaker:JOB, {url_forms('PREFIX')}")


def unknown_place(location: str, fix: str) -> ConfigError:
    return ConfigError(
        f"{location}: runs cannot be read from there: {fix}", code="unknown-place", place=location
    )


def homes_in(objects: Iterable[Object]) -> list[str]:
    """URIs of run folders, none inside another."""
    homes = sorted(
        {f"{item.base}/{m[1] or ''}" for item in objects if (m := _HOME.fullmatch(item.key))}
    )
    return [
        home
        for home in homes
        if not any(home.startswith(f"{other.rstrip('/')}/") for other in homes if other != home)
    ]


def _not_one(location: str, several: Sequence[str], objects: Sequence[Object]) -> DataError:
    if several:
        return DataError(
            f"{location} has {len(several)} runs: name one of {some_of(several)} (segtrain runs "
            f"{quote(location)} lists them)",
            code="several-runs",
            place=location,
            found=len(several),
        )
    return DataError(
        f"{location} has {len(objects)} objects and no run (no {FILE}, no spans/): name the "
        "prefix of the checkpoints, or sagemaker:JOB, which finds it",
        code="no-run",
        place=location,
        found=len(objects),
    )


def inside(objects: Iterable[Object], home: str) -> dict[str, Object]:
    """The objects of a run folder by their paths in it. Keys with a part ``..``, ``.``, or "" are
    left out.
    """
    start = f"{home.rstrip('/')}/"
    files = {item.uri[len(start) :]: item for item in objects if item.uri.startswith(start)}
    return {name: item for name, item in files.items() if not {"", ".", ".."} & {*name.split("/")}}


def _warn_of_cuts(home: str, wanted: Mapping[str, WantedFile], say: Say) -> None:
    cut = {name: want for name, want in wanted.items() if want.cut}
    if cut:
        size = sum(want.item.size for want in cut.values())
        most = min(want.most for want in cut.values())
        names = next(iter(cut)) + (f" and {len(cut) - 1} more have" if len(cut) > 1 else " has")
        say(
            f"warning: {home}: {names} {_mb(size)}: of each, the first lines and the newest "
            f"{_mb(most)} are read. {to_read_all_of(home)}"
        )


def _pictures(files: Mapping[str, Object]) -> dict[str, WantedFile]:
    """The newest pictures and tables that fit in MOST_PICTURES."""
    left, wanted = MOST_PICTURES, dict[str, WantedFile]()
    for name, item in sorted(files.items(), reverse=True):
        if re.fullmatch(_PICTURES, name) and item.size <= left:
            wanted[name] = WantedFile(item, item.size)
            left -= item.size
    return wanted


def _profile(
    objects: Sequence[Object], homes: Sequence[str], folder: Path, say: Say
) -> dict[str, WantedFile]:
    """The system profile during the run: the run's own, or else the platform's.

    If the profile is too large, only every n-th minute is taken.
    """
    if any((folder / UNPACKED / "profile").rglob("*.algo-*.json")):
        return {}
    own = [
        item
        for home in homes
        for name, item in inside(objects, home).items()
        if name.startswith("profile/")
    ]
    first, last = _times(folder)
    start = first - _MARGIN_S
    end = max(last, *(item.modified for item in objects)) + _MARGIN_S
    minutes = _minutes(own, start, end) or _minutes(objects, start, end)
    size = sum(item.size for _, _, item in minutes)
    every = -(-size // MOST_PROFILE)
    if every > 1:
        minutes = [
            (minute, node, item) for minute, node, item in minutes if minute // MINUTE % every == 0
        ]
        say(
            f"warning: the system profile has {_mb(size)}: {every - 1} of {every} minutes are left "
            f"out. {to_read_all_of(minutes[0][2].uri.partition('/system/')[0])}"
        )
    folders: dict[str, int] = {}
    files = {}
    for minute, node, item in minutes:
        number = folders.setdefault(item.uri.partition("/system/")[0], len(folders))
        files[f"profile/{number}/system/incremental/{minute}.{node}.json"] = WantedFile(
            item, item.size
        )
    return files


def _minutes(objects: Iterable[Object], start: float, end: float) -> list[tuple[int, str, Object]]:
    """Profile files that may have readings from ``start`` to ``end``, with their times and nodes.

    A file whose name is not a full minute may have readings of any time.
    """
    moments = ((minute_and_node(item.uri), item) for item in objects)
    return [
        (*m, item)
        for m, item in moments
        if m is not None and (start <= m[0] <= end or m[0] % MINUTE)
    ]


def _times(folder: Path) -> tuple[float, float]:
    """Unix times of the first and the newest event in a copy, by the clock of the training host;
    -inf if unknown.
    """
    for home in (folder, folder / UNPACKED):
        try:
            with open_file(home / FILE) as file:
                lines = [file.readline()]
                file.seek(max(file.tell(), file.seek(0, 2) - _TAIL))
                events = parse_lines([*lines, *file], "", lambda text: None)
                times = [float(event["ts"]) for event in events if "ts" in event]
                return times[0], max(times)
        except (OSError, IndexError):
            continue
    return -math.inf, -math.inf


def fetch(
    location: str, copy: Copy, wanted: Mapping[str, WantedFile], objects: Sequence[Object], say: Say
) -> None:
    """Fetch the missing files, and print how many."""
    todo = copy.missing(wanted)
    size, fetched = (sum(want.bytes for want in files.values()) for files in (wanted, todo))
    left = sum(item.size for item in objects) - sum(want.item.size for want in wanted.values())
    say(
        f"{location}: {len(wanted)} files of records ({_mb(size)}), to fetch: {len(todo)} "
        f"({_mb(fetched)}), into {copy.folder}; {len(objects) - len(wanted)} other files "
        f"({_mb(left)}) stay there"
    )
    copy.take(wanted)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _stem(location: str) -> str:
    return (
        re.sub(r"[^\w.-]+", "-", re.split(r"[/:]", location.rstrip("/"))[-1]).strip("-.") or "run"
    )


def copy_folder(location: str, uris: Sequence[str]) -> Path:
    digest = digest_of("\n".join(uris), 12)
    return cache_folder() / "remote" / f"{_stem(location)}-{digest}"
