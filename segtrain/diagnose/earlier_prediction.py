"""The prediction of an earlier run: one in a neighboring folder whose proposed fix is exactly what this run changed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from segtrain.diagnose import verify_words
from segtrain.diagnose.differences import EXACT, differing
from segtrain.diagnose.evidence import Evidence
from segtrain.diagnose.verify import compare, side
from segtrain.errors import DataError
from segtrain.observe.spans import FOLDER
from segtrain.runs.folder import settings_of

MOST_BESIDE = 36  # newest folders whose settings are read
MOST_SETTINGS = 4  # of a fix
MOST_DIAGNOSED = 3


def earlier_prediction(run: Path) -> str | None:
    """The line, or None. Never raises: other folders may have torn or foreign files, or no read access."""

    def say(text: str) -> None:
        """Drop warnings about files of other runs: they appear when such a run is diagnosed."""

    try:
        mine, here = settings_of(run), side(run, say)
        alike = (folder for folder in _beside(run) if _alike(settings_of(folder), mine))
        for folder in islice(alike, MOST_DIAGNOSED):
            with suppress(DataError):
                found = compare(side(folder, say), here)
                earlier = found.before.run == folder and found.before.began < here.began
                if earlier and _done(found.before.evidence) and found.fit == EXACT and not found.apart:
                    return verify_words.prediction(found)
    except Exception:
        pass
    return None


def _beside(run: Path) -> list[Path]:
    """Other run folders with spans, the newest first."""
    run = run.resolve() if run.name in ("", "..") else run
    configs = [file for file in run.parent.glob("*/config.yaml") if file.parent.name != run.name]
    newest = sorted(configs, key=lambda file: -file.stat().st_mtime)[:MOST_BESIDE]
    return [file.parent for file in newest if (file.parent / FOLDER).is_dir()]


def _alike(settings: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    return bool(settings and mine) and 0 < len(differing(settings, mine)) <= MOST_SETTINGS


def _done(evidence: Evidence) -> bool:
    last = evidence.events[-1] if evidence.events else {}
    return last.get("event") == "run_end" and last.get("status") == "done"
