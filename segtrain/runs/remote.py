"""Local copies of runs in S3 and of SageMaker jobs: small files are copied, checkpoints are not.

    s3://BUCKET/PREFIX      a run folder, or a prefix with one run somewhere below, such as the checkpoints of a job
    sagemaker:JOB           a training job (or its ARN); DescribeTrainingJob says where its files are

The copy is in ``$SEGTRAIN_CACHE/remote``. A file is fetched again when its ETag has changed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError, DataError, file_error, some_of
from segtrain.files import cache_folder
from segtrain.observe.journal import FILE, parse_lines, say_on_stderr
from segtrain.observe.profile_format import MINUTE, minute_and_node
from segtrain.runs.bucket import Account, Object, WantedFile, split
from segtrain.runs.copies import UNPACKED, Copy
from segtrain.runs.table import list_runs

# Maximum of bytes that are fetched of a run, for each kind of file.
MOST_LINES, MOST_SPANS, MOST_PROFILE, MOST_PICTURES, MOST_ARCHIVE = (mb << 20 for mb in (128, 128, 256, 16, 512))
# A job leaves its run in it at its end, with the checkpoints if it has no prefix for them.
ARCHIVE = "/output/output.tar.gz"
_RECORDS = ("config.yaml", "labels.json", "best.json", FILE)
_SPANS = r"spans/rank-\d+\.jsonl"
_PICTURES = r"pictures/[^/]+\.png|images-(?:best|last)\.csv|stacks/rank-[\w-]+\.(?:txt|json)"
_PROFILE = r"profile/system/incremental/(?:\d+/)?\d+\.algo-\d+\.json"
_HOME = re.compile(rf"(?:(.*)/)?(?:journal\.jsonl|best\.json|{_SPANS})")
_UNPACK = re.compile(rf"(?:\./)?(?:run/)?({'|'.join(map(re.escape, _RECORDS))}|{_SPANS}|{_PICTURES}|{_PROFILE})")
_TAIL = 32768  # bytes at the end of a journal that hold its newest event
_MARGIN_S = 120  # seconds of the profile before the first event and after the newest one

Say = Callable[[str], None]


@dataclass(frozen=True)
class S3Location:
    """A folder to read, and its name by the user. ``stem``: for names of files about a copy; "" for a local folder."""

    folder: Path
    shown: str
    stem: str = ""


def is_remote(location: str) -> bool:
    return location.startswith(("sagemaker:", "arn:")) or "://" in location


def local(location: str, say: Say = say_on_stderr) -> S3Location:
    """A folder, or a copy of the one run in a remote location. Raises SegtrainError."""
    if not is_remote(location):
        return S3Location(Path(location), location)
    account, uris, objects = _objects(location)
    homes = _homes(objects)
    archives = [item for item in objects if item.uri.endswith(ARCHIVE)]
    if len(homes) > 1 or (not homes and len(archives) != 1):
        raise _not_one(location, homes or [item.uri.removesuffix(ARCHIVE) for item in archives], objects)
    copy = Copy(_folder(location, uris))
    wanted: dict[str, WantedFile] = {}
    if homes:
        inside = _inside(objects, homes[0])
        wanted = {name: WantedFile(inside[name], MOST_LINES) for name in _RECORDS if name in inside}
        # The journal shows which minutes of the profile are needed.
        copy.take(account, {name: wanted[name] for name in (FILE,) if name in wanted})
        spans = [name for name in inside if re.fullmatch(_SPANS, name)]
        wanted |= {name: WantedFile(inside[name], MOST_SPANS // len(spans)) for name in spans}
        wanted |= _pictures(inside)
        _warn_of_cuts(homes[0], wanted, say)
    elif archives[0].size > MOST_ARCHIVE:
        uri = archives[0].uri
        fix = f"unpack it with aws s3 cp {uri} - | tar xz --exclude=checkpoints, then name that folder"
        problem = f"it has {_mb(archives[0].size)}, because it includes checkpoints: {fix}"
        raise file_error(uri, problem, code="archive-too-large", found=archives[0].size)
    else:
        copy.unpack(account, WantedFile(archives[0], MOST_ARCHIVE), _UNPACK, MOST_PROFILE, say)
    wanted |= _profile(objects, homes, copy.folder, say)
    _fetch(account, location, copy, wanted, objects, say)
    copy.keep_only({*wanted, *([] if homes else [UNPACKED])})
    return S3Location(copy.folder, location, _stem(homes[0] if homes and location.startswith("s3:") else location))


def rows(location: str, say: Say = say_on_stderr) -> list[dict[str, Any]]:
    """``list_runs`` of a folder, or of all runs below a prefix. Raises SegtrainError."""
    if not is_remote(location):
        return list_runs(location)
    account, uris, objects = _objects(location)
    homes = _homes(objects)
    folders = {home: f"{number}/{home.rsplit('/', 1)[-1]}" for number, home in enumerate(homes)}
    share = MOST_LINES // max(1, len(homes))
    wanted = {
        f"{folders[home]}/{name}": WantedFile(item, share)
        for home in homes
        for name, item in _inside(objects, home).items()
        if name in _RECORDS
    }
    copy = Copy(_folder(location, ["runs", *uris]))
    _fetch(account, location, copy, wanted, objects, say)
    copy.keep_only(wanted)
    origin = {str(copy.folder / folder): home for home, folder in folders.items()}
    return [{**row, "out": origin[row["out"]]} for row in list_runs(copy.folder)]


def _objects(location: str) -> tuple[Account, list[str], list[Object]]:
    """The account, the S3 folders of a remote location, and their objects. Raises SegtrainError if there are none."""
    account, uris = _resolve(location)
    found = {item.uri: item for uri in uris for item in account.list(uri)}  # One folder may include another.
    if not found:
        problem = f"{location}: there are no objects below {' or '.join(f'{uri}/' for uri in uris)}"
        fix = "check the name with `aws s3 ls`; the first files of a job appear some minutes after it started to train"
        raise DataError(f"{problem}: {fix}", code="no-objects", place=location)
    return account, uris, list(found.values())


def _resolve(location: str) -> tuple[Account, list[str]]:
    if location.startswith("s3://"):
        split(location)
        return Account(), [location.rstrip("/")]
    if location.startswith("sagemaker:"):
        return (account := Account()), _uris_of(account.training_job(location.removeprefix("sagemaker:")))
    if arn := re.fullmatch(r"arn:[\w-]+:sagemaker:([\w-]+):\d+:training-job/(.+)", location):
        return (account := Account(arn[1])), _uris_of(account.training_job(arn[2]))
    fix = "name a folder, s3://BUCKET/PREFIX, or sagemaker:JOB"
    if location.startswith("gs://"):
        fix = f"gcloud storage rsync -r --exclude='.*\\.pt$' {location} FOLDER, then name FOLDER"
    if location.startswith("arn:"):
        fix = "the ARN of a training job is arn:aws:sagemaker:REGION:ACCOUNT:training-job/NAME"
    raise ConfigError(f"{location}: runs cannot be read from there: {fix}", code="unknown-place", place=location)


def _uris_of(job: Mapping[str, Any]) -> list[str]:
    """The S3 folders of a job, with the checkpoints first: they include the run of a job that still trains."""
    name = job["TrainingJobName"]
    outputs = [job[key].get("S3OutputPath") for key in ("OutputDataConfig", "ProfilerConfig") if key in job]
    kept = job.get("CheckpointConfig", {}).get("S3Uri")
    if kept and "TuningJobArn" in job:  # The jobs of a tuning job share a prefix, with a folder for each.
        kept = f"{kept.rstrip('/')}/{name}"
    found = [kept, *(f"{out.rstrip('/')}/{name}" for out in outputs if out)]
    return list(dict.fromkeys(uri.rstrip("/") for uri in found if uri))


def _homes(objects: Iterable[Object]) -> list[str]:
    """URIs of run folders, none inside another."""
    found = sorted({f"s3://{item.bucket}/{m[1] or ''}" for item in objects if (m := _HOME.fullmatch(item.key))})
    return [
        home for home in found if not any(home.startswith(f"{other.rstrip('/')}/") for other in found if other != home)
    ]


def _not_one(location: str, several: Sequence[str], objects: Sequence[Object]) -> DataError:
    if several:
        problem = f"has {len(several)} runs: name one of {some_of(several)} (segtrain runs {location} lists them)"
        return DataError(f"{location} {problem}", code="several-runs", place=location, found=len(several))
    problem = f"has {len(objects)} objects and no run (no {FILE}, no spans/)"
    fix = "name the prefix of the checkpoints, or sagemaker:JOB, which finds it"
    return DataError(f"{location} {problem}: {fix}", code="no-run", place=location, found=len(objects))


def _inside(objects: Iterable[Object], home: str) -> dict[str, Object]:
    """The objects of a run folder by their paths in it."""
    start = f"{home.rstrip('/')}/"
    return {item.uri[len(start) :]: item for item in objects if item.uri.startswith(start)}


def _warn_of_cuts(home: str, wanted: Mapping[str, WantedFile], say: Say) -> None:
    cut = {name: want for name, want in wanted.items() if want.bytes < want.item.size}
    if cut:
        size, most = sum(want.item.size for want in cut.values()), min(want.most for want in cut.values())
        names = next(iter(cut)) + (f" and {len(cut) - 1} more have" if len(cut) > 1 else " has")
        say(
            f"warning: {home}: {names} {_mb(size)}: of each, the first lines and the newest {_mb(most)} are read. "
            f"{_all_of(home)}"
        )


def _all_of(home: str) -> str:
    return f"To read all of it: aws s3 sync {home} FOLDER --exclude 'checkpoints/*', then name FOLDER"


def _pictures(inside: Mapping[str, Object]) -> dict[str, WantedFile]:
    """The newest pictures and tables that fit in MOST_PICTURES."""
    left, found = MOST_PICTURES, dict[str, WantedFile]()
    for name, item in sorted(inside.items(), reverse=True):
        if re.fullmatch(_PICTURES, name) and item.size <= left:
            found[name] = WantedFile(item, item.size)
            left -= item.size
    return found


def _profile(objects: Sequence[Object], homes: Sequence[str], folder: Path, say: Say) -> dict[str, WantedFile]:
    """The profile of the run, else of the platform, during the run. A long one is reduced to evenly spread minutes."""
    if any((folder / UNPACKED / "profile").rglob("*.algo-*.json")):
        return {}
    own = [item for home in homes for name, item in _inside(objects, home).items() if name.startswith("profile/")]
    first, last = _times(folder)
    start, end = first - _MARGIN_S, max(last, *(item.modified for item in objects)) + _MARGIN_S
    found = _minutes(own, start, end) or _minutes(objects, start, end)
    size = sum(item.size for _, _, item in found)
    every = -(-size // MOST_PROFILE)
    if every > 1:
        found = [(minute, node, item) for minute, node, item in found if minute // MINUTE % every == 0]
        say(
            f"warning: the system profile has {_mb(size)}: {every - 1} of {every} minutes are left out. "
            f"{_all_of(found[0][2].uri.partition('/system/')[0])}"
        )
    folders: dict[str, int] = {}
    files = {}
    for minute, node, item in found:
        number = folders.setdefault(item.uri.partition("/system/")[0], len(folders))
        files[f"profile/{number}/system/incremental/{minute}.{node}.json"] = WantedFile(item, item.size)
    return files


def _minutes(objects: Iterable[Object], start: float, end: float) -> list[tuple[int, str, Object]]:
    """Files of a profile that may have readings of that time. A name that is not a full minute does not tell."""
    moments = ((minute_and_node(item.uri), item) for item in objects)
    return [(*m, item) for m, item in moments if m is not None and (start <= m[0] <= end or m[0] % MINUTE)]


def _times(folder: Path) -> tuple[float, float]:
    """Unix times of the first and the newest event of a copy, by the clock of its host."""
    for home in (folder, folder / UNPACKED):
        try:
            with (home / FILE).open("rb") as file:
                lines = [file.readline()]
                file.seek(max(file.tell(), file.seek(0, 2) - _TAIL))
                events = parse_lines([*lines, *file], "", lambda text: None)
                times = [float(event["ts"]) for event in events if "ts" in event]
                return times[0], max(times)
        except (OSError, IndexError):
            continue
    return -math.inf, -math.inf


def _fetch(
    account: Account, location: str, copy: Copy, wanted: Mapping[str, WantedFile], objects: Sequence[Object], say: Say
) -> None:
    """Fetch the missing files, and print how many."""
    todo = copy.missing(wanted)
    size, fetched = (sum(want.bytes for want in files.values()) for files in (wanted, todo))
    left = sum(item.size for item in objects) - sum(want.item.size for want in wanted.values())
    say(
        f"{location}: {len(wanted)} files of records ({_mb(size)}), to fetch: {len(todo)} ({_mb(fetched)}), into "
        f"{copy.folder}; {len(objects) - len(wanted)} other files ({_mb(left)}) stay there"
    )
    copy.take(account, wanted)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _stem(location: str) -> str:
    return re.sub(r"[^\w.-]+", "-", re.split(r"[/:]", location.rstrip("/"))[-1]).strip("-.") or "run"


def _folder(location: str, uris: Sequence[str]) -> Path:
    digest = hashlib.sha256("\n".join(uris).encode()).hexdigest()[:12]
    return cache_folder() / "remote" / f"{_stem(location)}-{digest}"
