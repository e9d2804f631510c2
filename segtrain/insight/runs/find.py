"""Run folders at or below a folder, and one tolerant reader of their YAML and JSON files.

Any file may be missing, empty, or torn: a run may be writing it, may have been killed, or may have been copied in part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from segtrain.base import json_text
from segtrain.base.files import open_file, read_text
from segtrain.base.terminal import printable
from segtrain.errors import DataError, file_error
from segtrain.observe import journal
from segtrain.observe.spans import FOLDER as SPANS

_FILES = ("config.yaml", journal.FILE, "best.json")


def find_runs(folder: str | Path) -> list[Path]:
    """Run folders at or below ``folder``, oldest first. Raises DataError if the folder does not exist."""
    folder = Path(folder)
    if not folder.is_dir():
        problem = f"there is no folder {folder}: name the folder that holds your runs (the default is runs/)"
        raise DataError(problem, code="folder-missing", file=str(folder))
    found = []
    for path, folders, files in os.walk(folder):
        records = {*files} & {journal.FILE, "best.json"} or {*files, *folders} >= {"config.yaml", "checkpoints"}
        if records or (SPANS in folders and _has_spans(Path(path))):
            found.append(Path(path))
            folders.clear()  # a run folder contains no other run folder
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found, key=lambda run: (started(run), str(run)))


def is_run(folder: Path) -> bool:
    """Whether ``folder`` itself, and not a folder below it, holds a file of a run."""
    return any((folder / name).is_file() for name in _FILES) or _has_spans(folder)


def run_home(folder: str | Path) -> Path:
    """The one run folder at or below ``folder``, or ``folder`` itself if there is none.

    In a copy of a SageMaker job's output, the run folder is a subfolder. Raises DataError if there are several runs.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return folder
    found = find_runs(folder)
    if len(found) > 1:
        problem = f"it holds {len(found)} runs: name one, such as {found[0]}"
        raise file_error(str(folder), problem, code="several-runs", found=len(found))
    return found[0] if found else folder


def _has_spans(folder: Path) -> bool:
    return any((folder / SPANS).glob("rank-*.jsonl"))


def started(run: Path) -> float:
    """Unix time of the first event; 0 if there is none."""
    try:
        with open_file(run / journal.FILE) as file:
            return next(float(event["ts"]) for event in journal.parse_lines([file.readline()], "", lambda text: None))
    except (OSError, KeyError, StopIteration):
        return 0.0


def read_mapping(path: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The mapping in a .yaml or .json file; empty if it is missing, and with a warning if it cannot be read."""
    from segtrain.config import load_yaml

    try:
        text = read_text(path)
        value = json_text.parse(text) if path.suffix == ".json" else load_yaml(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = printable(" ".join(str(error).split()))
        say(f"warning: {path} cannot be read, so its content is left out: {reason}")
        return {}
    return value if isinstance(value, dict) else {}
