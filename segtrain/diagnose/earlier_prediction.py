"""The prediction of an earlier run: one in a neighboring folder whose proposed fix is exactly what this run changed."""

from __future__ import annotations

from pathlib import Path

from segtrain import json_text
from segtrain.diagnose import verify_words
from segtrain.diagnose.differences import EXACT, differing
from segtrain.diagnose.verify import compare, side
from segtrain.errors import DataError
from segtrain.observe import journal
from segtrain.observe.spans import FOLDER
from segtrain.runs.folder import settings_of

MOST_BESIDE = 36  # newest folders whose settings are read
MOST_SETTINGS = 4  # of a fix
MOST_DIAGNOSED = 3
TAIL = 65536  # bytes of a journal in which its last event ends


def earlier_prediction(run: Path) -> str | None:
    """The line, or None. Never raises: neither a run nor its diagnosis may fail because of other folders."""
    try:
        return _earlier(Path(run))
    except Exception:  # torn or foreign files of other runs, a folder without rights
        return None


def _earlier(run: Path) -> str | None:
    mine = settings_of(run)
    if not mine:
        return None
    here = None
    diagnosed = 0
    for other in _beside(run):
        settings = settings_of(other)
        found = differing(settings, mine) if settings else {}
        if not 0 < len(found) <= MOST_SETTINGS or diagnosed == MOST_DIAGNOSED or not _done(other):
            continue
        diagnosed += 1
        try:
            here = here or side(run, _silent)
            checked = compare(side(other, _silent), here)
        except DataError:
            continue
        if (
            checked.before.run == other
            and checked.before.began < here.began
            and checked.fit == EXACT
            and not checked.apart
        ):
            return verify_words.prediction(checked)
    return None


def _beside(run: Path) -> list[Path]:
    """Other run folders with spans, the newest first."""
    run = run.resolve() if run.name in ("", "..") else run
    ages = {folder: age for folder in run.parent.iterdir() if folder.name != run.name and (age := _age(folder))}
    return [folder for folder in sorted(ages, key=lambda f: -ages[f])[:MOST_BESIDE] if (folder / FOLDER).is_dir()]


def _age(folder: Path) -> float:
    """Unix time at which the settings of a run were written; 0 where there are none."""
    try:
        return (folder / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


def _done(folder: Path) -> bool:
    """Whether the last event of its journal is its end."""
    try:
        with (folder / journal.FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            event = json_text.parse(file.read().rstrip().rsplit(b"\n", 1)[-1])
        return bool(event["event"] == "run_end" and event["status"] == "done")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _silent(text: str) -> None:
    """Drop warnings about files of other runs: they appear when such a run is diagnosed."""
