"""What is said of a run's speed while it goes on, and at its end? A line when it starves for data, a line when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from segtrain.diagnose.data_rules import STARVED
from segtrain.diagnose.evidence import Evidence, gather
from segtrain.diagnose.foretold import foretold
from segtrain.diagnose.judge import UNKNOWN, judge
from segtrain.diagnose.words import line
from segtrain.errors import DataError
from segtrain.observe.spans import Records

WINDOWS = 8  # that are looked at: seconds, at least
SURE = 2  # looks in a row that must agree


class Starving:
    """Told of each window that ends; tells the cause that the last ones starve for, and its line, once, and again when that changes."""

    def __init__(self, config: Mapping[str, Any], tell: Callable[[str, str], None]) -> None:
        self._config, self._tell = config, tell
        self._said = self._seen = ""
        self._times = 0

    def look(self, records: Records) -> None:
        """``records``: of one rank, the last windows. A fed run costs a sum."""
        windows = records.windows[-WINDOWS:]
        waited = sum(window["phases"].get("wait", 0.0) for window in windows)
        cause = ""
        if len(windows) == WINDOWS and waited > STARVED * sum(window["seconds"] for window in windows):
            found = judge(Evidence((Records(records.rank, records.begins, windows),), config=self._config))
            cause = found.bound if found.verdicts else ""
        self._times = self._times + 1 if cause == self._seen else 1
        self._seen = cause
        if cause and cause != self._said and self._times >= SURE:
            self._said = cause
            self._tell(cause, line(found))


def closing_line(run: Path) -> str | None:
    """What held a run up, or that nothing did, and what an earlier one had foretold of it; None where it was too short to tell,
    or has left no spans."""
    try:
        found = judge(gather(run, say=lambda text: None))
    except (DataError, OSError):
        return None
    if found.bound == UNKNOWN or not found.facts.get("steady"):
        return None
    before = foretold(run)
    return f"speed     {line(found)}" + (f"\nforetold  {before}" if before else "")
