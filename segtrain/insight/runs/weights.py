"""Local copies of runs and exports in buckets with their weights, for `segtrain eval`, `predict`,
and `export`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote

from segtrain.base.files import alone
from segtrain.base.json_text import read_json
from segtrain.errors import CheckpointError, DataError
from segtrain.insight.runs.bucket import INDEX, Copy, Object, WantedFile
from segtrain.insight.runs.remote import (
    Say,
    Services,
    copy_folder,
    fetch,
    homes_in,
    inside,
    is_remote,
    objects_of,
)
from segtrain.observe.journal import say_on_stderr

_CHECKPOINT = re.compile(r"checkpoints/step-\d+\.pt")
# Files of a run that the commands read besides its weights.
_RECORDS = (
    "config.yaml",
    "labels.json",
    "parts.json",
    "best.json",
    "faults.jsonl",
    "journal.jsonl",
    "data/",
)
_EXPORT = ("model.json", "weights.safetensors")


def with_weights(
    location: str, which: str = "best", say: Say = say_on_stderr, services: Services = ()
) -> Path:
    """The local folder for a location: the folder itself, or a copy of the run or export in a
    bucket.

    ``which``: the checkpoint to copy (best, last). Its checksums are checked when it is loaded.
    Raises SegtrainError.
    """
    if not is_remote(location, services):
        return Path(location)
    uris, objects = objects_of(location, services)
    folder = copy_folder(location, ["weights", *uris])
    # Of the ranks of a host, the first one fetches, and the others find everything there.
    with alone(folder / INDEX):
        copy = Copy(folder)
        home = _home(location, uris, objects)
        files = inside(objects, home)
        is_export = "model.json" in files and "config.yaml" not in files
        wanted = {
            name: WantedFile(item, item.size)
            for name, item in files.items()
            if name.startswith(_EXPORT if is_export else _RECORDS)
        }
        if not is_export:
            copy.take({name: wanted[name] for name in ("best.json",) if name in wanted})
            name = _checkpoint(
                home, files, read_json(folder / "best.json") if which == "best" else {}
            )
            wanted[name] = WantedFile(files[name], files[name].size)
        fetch(location, copy, wanted, objects, say)
        copy.keep_only(wanted)
    return folder


def _home(location: str, uris: list[str], objects: Iterable[Object]) -> str:
    """The URI of the one run or export. Raises DataError."""
    homes = homes_in(objects) or [
        item.uri.removesuffix("/model.json") for item in objects if item.uri.endswith("/model.json")
    ]
    if len(homes) == 1:
        return homes[0]
    if uris[0] in homes:
        return uris[0]
    raise DataError(
        f"{location} has {len(homes)} runs or exports: name the prefix of one",
        code="several-runs" if homes else "no-run",
        place=location,
        found=len(homes),
    )


def _checkpoint(home: str, files: Mapping[str, Object], best: Mapping[str, object]) -> str:
    """The name of the best checkpoint, else of the newest one. Raises CheckpointError if there is
    none.
    """
    named = f"checkpoints/{best.get('checkpoint')}"
    names = sorted(
        (name for name in files if _CHECKPOINT.fullmatch(name)), key=lambda name: (len(name), name)
    )
    if not names:
        raise CheckpointError(
            f"{home} holds no checkpoint: train it first (segtrain train ... "
            f"out={quote(str(home))})",
            code="no-checkpoint",
            run=home,
        )
    return named if named in names else names[-1]
