"""Lines about a run's speed for the console: one while it waits for its samples, and one at its
end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from segtrain.errors import DataError
from segtrain.insight.diagnose.data_rules import STARVED
from segtrain.insight.diagnose.evidence import Evidence, gather
from segtrain.insight.diagnose.judge import UNKNOWN, judge
from segtrain.insight.diagnose.words import closing, line
from segtrain.observe.spans import Records, read_recent

WINDOWS = 8  # windows to look at, each of a second or more
SURE = 2  # checks in a row that must agree


class Starving:
    """Watches the windows of a run and reports why it waits for its samples: once, and again when
    the cause changes.

    ``run``: its folder, which has the spans of the other ranks of this host. A rank that has its
    samples waits for a rank whose samples are late, so the spans of one rank do not show what the
    run waits for.
    """

    def __init__(
        self, config: Mapping[str, Any], tell: Callable[[str, str], None], run: Path
    ) -> None:
        self._config = config
        self._tell = tell
        self._run = run
        self._reported = self._seen = ""
        self._times = 0

    def check(self, records: Records) -> None:
        """Check the last windows of one rank. If the run does not wait, this only sums up a few
        numbers.
        """
        windows = records.windows[-WINDOWS:]
        waited = sum(
            window["phases"].get(phase, 0.0) for window in windows for phase in ("wait", "sync")
        )
        cause = ""
        if len(windows) == WINDOWS and waited > STARVED * sum(
            window["seconds"] for window in windows
        ):
            mine = Records(records.rank, records.begins, windows)
            diagnosis = judge(Evidence((mine, *self._others(mine)), config=self._config))
            cause = diagnosis.bound if diagnosis.verdicts else ""
        self._times = self._times + 1 if cause == self._seen else 1
        self._seen = cause
        if cause and cause != self._reported and self._times >= SURE:
            self._reported = cause
            self._tell(cause, line(diagnosis))

    def _others(self, mine: Records) -> list[Records]:
        """The windows of the other ranks of this host, from the first step in ``mine`` on."""
        ranks_on_host = mine.begins[-1].get("local_world_size", 1) if mine.begins else 1
        first = mine.windows[0]["first"]
        ranks = range(mine.rank + 1, mine.rank + ranks_on_host)
        recent = [read_recent(self._run, rank) for rank in ranks]
        since = [
            replace(records, windows=tuple(w for w in records.windows if w["last"] >= first))
            for records in recent
            if records
        ]
        return [records for records in since if records.windows]


def closing_line(run: Path) -> str | None:
    """A line about what limited the speed of a run; None if the run was too short to tell, or has
    no spans.
    """
    try:
        diagnosis = judge(gather(run, say=lambda text: None))
    except (DataError, OSError):
        return None
    return None if diagnosis.bound == UNKNOWN else f"speed     {closing(diagnosis, run)}"
