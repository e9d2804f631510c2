"""A run in S3, or a SageMaker job, as a local folder: its small files are copied, its checkpoints are not.

    s3://BUCKET/PREFIX      a run folder, or what holds one run somewhere below, such as a job's checkpoint prefix
    sagemaker:JOB           a training job (or its ARN): DescribeTrainingJob says where checkpoints, profile and output lie

The copy lies under ``$SEGTRAIN_CACHE/remote``. What has not changed since (its ETag) is not fetched again.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segtrain.errors import ConfigError, DataError
from segtrain.files import cache_folder
from segtrain.observe.journal import FILE, parse_lines, say_on_stderr
from segtrain.observe.profile_format import MINUTE, minute_and_node
from segtrain.runs.bucket import Account, Object, split
from segtrain.runs.copies import UNPACKED, Copy, WantedFile
from segtrain.runs.table import list_runs

# Bytes that are fetched of a run at most, each kind by itself.
MOST_LINES, MOST_SPANS, MOST_PROFILE, MOST_PICTURES, MOST_ARCHIVE = (mb << 20 for mb in (128, 128, 256, 16, 512))
ARCHIVE = "/output/output.tar.gz"  # a job leaves its run in it at its end, with the checkpoints where it has no prefix for them
_RECORDS = ("config.yaml", "labels.json", "best.json", FILE)
_SPANS, _PICTURES = (
    re.compile(r"spans/rank-\d+\.jsonl"),
    re.compile(r"pictures/[^/]+\.png|images-(?:best|last)\.csv|stacks/rank-[\w-]+\.(?:txt|json)"),
)
_MARK = re.compile(r"(?:(.*)/)?(?:journal\.jsonl|best\.json|spans/rank-\d+\.jsonl)")
_SMALL = re.compile(
    r"(?:\./)?(?:run/)?(config\.yaml|(?:labels|best)\.json|journal\.jsonl|spans/rank-\d+\.jsonl|pictures/[^/]+\.png|"
    r"images-(?:best|last)\.csv|stacks/rank-[\w-]+\.(?:txt|json)|profile/system/incremental/(?:\d+/)?\d+\.algo-\d+\.json)"
)
_TAIL = 32768  # bytes of the journal, in which its newest event is
_MARGIN_S = 120  # of the profile before the first event, and after the newest one

Say = Callable[[str], None]


@dataclass(frozen=True)
class S3Location:
    """``folder`` to work on; ``shown``: as the user named it; ``stem``: of names of files about a copy, "" for a folder of the user's."""

    folder: Path
    shown: str
    stem: str = ""


def is_remote(place: str) -> bool:
    return place.startswith(("sagemaker:", "arn:")) or "://" in place


def local(place: str, say: Say = say_on_stderr) -> S3Location:
    """A folder as it is, or a copy of the one run that lies elsewhere. Raises SegtrainError."""
    if not is_remote(place):
        return S3Location(Path(place), place)
    account, uris = _resolve(place)
    objects = _list(account, place, uris)
    homes = _homes(objects)
    archives = [item for item in objects if item.uri.endswith(ARCHIVE)]
    if len(homes) > 1 or (not homes and len(archives) != 1):
        raise _not_one(place, homes, archives, objects)
    copy = Copy(_folder(place, uris))
    wanted: dict[str, WantedFile] = {}
    if homes:
        wanted = {name: WantedFile(item, MOST_LINES) for name, item in _records(objects, homes[0])}
        copy.take(
            account, {FILE: wanted[FILE]} if FILE in wanted else {}
        )  # it tells which minutes of the profile count
        wanted |= _spans(objects, homes[0]) | _pictures(objects, homes[0])
        _say_cuts(homes[0], wanted, say)
    elif archives[0].size > MOST_ARCHIVE:
        raise DataError(
            f"{archives[0].uri} has {_mb(archives[0].size)}: it holds checkpoints beside the run; unpack it: aws s3 cp "
            f"{archives[0].uri} - | tar xz --exclude=checkpoints, then name that folder"
        )
    else:
        copy.unpack(account, WantedFile(archives[0], MOST_ARCHIVE), _SMALL, MOST_PROFILE, say)
    wanted |= _profile(objects, homes, copy.folder, say)
    _fetch(account, place, copy, wanted, objects, say)
    copy.keep_only({*wanted, *([] if homes else [UNPACKED])})
    return S3Location(copy.folder, place, _stem(homes[0] if homes and place.startswith("s3:") else place))


def rows(place: str, say: Say = say_on_stderr) -> list[dict[str, Any]]:
    """``list_runs`` of a folder, or of all runs below a prefix. Raises SegtrainError."""
    if not is_remote(place):
        return list_runs(place)
    account, uris = _resolve(place)
    objects = _list(account, place, uris)
    homes = _homes(objects)
    folders = {home: f"{number}/{home.rsplit('/', 1)[-1]}" for number, home in enumerate(homes)}
    share = MOST_LINES // max(1, len(homes))
    wanted = {
        f"{folders[home]}/{name}": WantedFile(item, share) for home in homes for name, item in _records(objects, home)
    }
    copy = Copy(_folder(place, ["runs", *uris]))
    _fetch(account, place, copy, wanted, objects, say)
    copy.keep_only(wanted)
    origin = {str(copy.folder / folder): home for home, folder in folders.items()}
    return [{**row, "out": origin[row["out"]]} for row in list_runs(copy.folder)]


def _resolve(place: str) -> tuple[Account, list[str]]:
    """The folders of S3 in which what is named may lie. Raises ConfigError for a place that is not read."""
    if place.startswith("s3://"):
        split(place)
        return Account(), [place.rstrip("/")]
    if place.startswith(("sagemaker:", "arn:")):
        arn = re.fullmatch(r"arn:[\w-]+:sagemaker:([\w-]+):\d+:training-job/(.+)", place)
        if place.startswith("arn:") and arn is None:
            raise ConfigError(f"{place!r} is no training job's ARN: arn:aws:sagemaker:REGION:ACCOUNT:training-job/NAME")
        account = Account(arn[1] if arn else "")
        return account, _uris_of(account.training_job(arn[2] if arn else place.removeprefix("sagemaker:")))
    if place.startswith("gs://"):
        raise ConfigError(
            f"{place}: runs in Google Cloud Storage are not read from there: gcloud storage rsync -r "
            f"--exclude='.*\\.pt$' {place} FOLDER, then name FOLDER"
        )
    raise ConfigError(f"{place!r} is not read: name a folder, s3://BUCKET/PREFIX or sagemaker:JOB")


def _uris_of(job: Any) -> list[str]:
    """Checkpoints first: there lies the run of a job that goes on."""
    name = job["TrainingJobName"]
    outputs = [job[key].get("S3OutputPath") for key in ("OutputDataConfig", "ProfilerConfig") if key in job]
    kept = job.get("CheckpointConfig", {}).get("S3Uri")
    if kept and "TuningJobArn" in job:  # the jobs of a tuning share a prefix, each with a folder in it
        kept = f"{kept.rstrip('/')}/{name}"
    found = [kept, *(f"{out.rstrip('/')}/{name}" for out in outputs if out)]
    return list(dict.fromkeys(uri.rstrip("/") for uri in found if uri))


def _list(account: Account, place: str, uris: Sequence[str]) -> list[Object]:
    found = {item.uri: item for uri in uris for item in account.list(uri)}  # one may lie in another
    if not found:
        raise DataError(
            f"{place}: nothing lies below {' or '.join(f'{uri}/' for uri in uris)}: look at the name with `aws s3 ls`; the first "
            "files of a job come some minutes after it began to train"
        )
    return list(found.values())


def _homes(objects: Iterable[Object]) -> list[str]:
    """URIs of run folders, none inside another."""
    found = sorted({f"s3://{item.bucket}/{m[1] or ''}" for item in objects if (m := _MARK.fullmatch(item.key))})
    return [
        home for home in found if not any(home.startswith(f"{other.rstrip('/')}/") for other in found if other != home)
    ]


def _not_one(place: str, homes: Sequence[str], archives: Sequence[Object], objects: Sequence[Object]) -> DataError:
    several = homes or [item.uri.removesuffix(ARCHIVE) for item in archives]
    if several:
        names = ", ".join(several[:5]) + (", ..." if len(several) > 5 else "")
        return DataError(
            f"{place} holds {len(several)} runs: name one of {names} (segtrain runs {place} tells of them)"
        )
    return DataError(
        f"{place} holds {len(objects)} objects and no run (no {FILE}, no spans/): name the prefix of the job's checkpoints, or "
        "sagemaker:JOB, which finds it"
    )


def _inside(objects: Iterable[Object], home: str) -> Iterable[tuple[str, Object]]:
    """Path below the run folder -> object."""
    start = f"{home.rstrip('/')}/"
    return ((item.uri[len(start) :], item) for item in objects if item.uri.startswith(start))


def _records(objects: Iterable[Object], home: str) -> list[tuple[str, Object]]:
    return [(name, item) for name, item in _inside(objects, home) if name in _RECORDS]


def _spans(objects: Iterable[Object], home: str) -> dict[str, WantedFile]:
    found = [(name, item) for name, item in _inside(objects, home) if _SPANS.fullmatch(name)]
    return {name: WantedFile(item, MOST_SPANS // len(found)) for name, item in found}


def _say_cuts(home: str, wanted: Mapping[str, WantedFile], say: Say) -> None:
    cut = {name: want for name, want in wanted.items() if want.bytes < want.item.size}
    if cut:
        size, most = sum(want.item.size for want in cut.values()), min(want.most for want in cut.values())
        say(
            f"warning: {home}: {next(iter(cut))}{f' and {len(cut) - 1} more have' if len(cut) > 1 else ' has'} {_mb(size)}: of each "
            f"the first lines and the newest {_mb(most)} are read. {_all_of(home)}"
        )


def _all_of(home: str) -> str:
    return f"All of it: aws s3 sync {home} FOLDER --exclude 'checkpoints/*', then name FOLDER"


def _pictures(objects: Iterable[Object], home: str) -> dict[str, WantedFile]:
    """The newest that fit."""
    left, found = MOST_PICTURES, dict[str, WantedFile]()
    for name, item in sorted(_inside(objects, home), reverse=True):
        if _PICTURES.fullmatch(name) and item.size <= left:
            found[name] = WantedFile(item, item.size)
            left -= item.size
    return found


def _profile(objects: Sequence[Object], homes: Sequence[str], folder: Path, say: Say) -> dict[str, WantedFile]:
    """The run's own, else the platform's, of the time of the run; of a long one some minutes, evenly spread, the same of all hosts."""
    if any((folder / UNPACKED / "profile").rglob("*.algo-*.json")):
        return {}
    own = [item for home in homes for name, item in _inside(objects, home) if name.startswith("profile/")]
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
    """Files of a profile that may hold readings of that time: a name that is no full minute says nothing of it."""
    moments = ((minute_and_node(item.uri), item) for item in objects)
    return [(*m, item) for m, item in moments if m is not None and (start <= m[0] <= end or m[0] % MINUTE)]


def _times(folder: Path) -> tuple[float, float]:
    """Unix times of the first and of the newest event of the copied run, by the clock of its host, which may be ahead of the store's."""
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
    account: Account, place: str, copy: Copy, wanted: Mapping[str, WantedFile], objects: Sequence[Object], say: Say
) -> None:
    """What is missing, with a word about it."""
    left = sum(item.size for item in objects) - sum(want.item.size for want in wanted.values())
    todo = copy.missing(wanted)
    say(
        f"{place}: {len(wanted)} files of records ({_mb(sum(want.bytes for want in wanted.values()))}), to fetch: {len(todo)} "
        f"({_mb(sum(want.bytes for want in todo.values()))}), into {copy.folder}; "
        f"{len(objects) - len(wanted)} other files ({_mb(left)}) stay there"
    )
    copy.take(account, wanted)


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _stem(place: str) -> str:
    return re.sub(r"[^\w.-]+", "-", re.split(r"[/:]", place.rstrip("/"))[-1]).strip("-.") or "run"


def _folder(place: str, uris: Sequence[str]) -> Path:
    return cache_folder() / "remote" / f"{_stem(place)}-{hashlib.sha256(chr(10).join(uris).encode()).hexdigest()[:12]}"
