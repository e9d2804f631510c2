"""Reader of a run folder: its config, labels, events, spans, and system profile.

The folder may be complete, half-written, or a partial copy. In a copy of a SageMaker job, the profile may be in another
subfolder than the spans and the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from segtrain.config import refuse_older_run
from segtrain.errors import DataError
from segtrain.insight.runs.find import is_run, read_mapping, run_home
from segtrain.insight.runs.table import read_run
from segtrain.observe import journal
from segtrain.observe.console import of_classes
from segtrain.observe.profile_format import Series, Track, read_profile
from segtrain.observe.run_row import pixels_of
from segtrain.observe.spans import Records, read_spans

Event = Mapping[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """A run, read from ``folder``; ``classes`` are the names of its labels. Missing files leave gaps.

    ``top``: the folder that the user named: ``folder``, or one above it, which may also hold the system profile.
    """

    folder: Path
    top: Path
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    events: tuple[Event, ...]

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The row of ``segtrain runs``."""
        return read_run(self.folder)

    @cached_property
    def steps(self) -> tuple[Event, ...]:
        """The step events in order of steps. If a resumed process repeated a step, only its newest event is kept."""
        return tuple(journal.curve(self.events, "step"))

    @cached_property
    def evals(self) -> tuple[Event, ...]:
        """The evaluations that have scores. If a resumed process repeated one, only the newest is kept."""
        found = journal.curve(self.events, "eval")
        return tuple(event for event in found if isinstance(event.get("scores"), Mapping))

    def spans(self) -> tuple[Records, ...]:
        """The records of all ranks, in the order of ranks. Raises DataError if there are none."""
        return tuple(read_spans(self.folder))

    def profile(
        self, start: float, end: float, say: Callable[[str], None] = journal.say_on_stderr
    ) -> dict[Series, Track]:
        """Readings of the system profile between two Unix times; empty if there are none (log.profile_ms=0)."""
        try:
            return read_profile(self.top, start, end, say=say)
        except DataError:
            return {}

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def start(self) -> Event:
        """The newest ``run_start``; empty if there is none."""
        return next((event for event in reversed(self.events) if event["event"] == "run_start"), {})

    @property
    def end(self) -> Event:
        """The ``run_end`` of the newest process; empty if it has written none."""
        last = next((event for event in reversed(self.events) if event["event"] in ("run_end", "run_start")), {})
        return last if last.get("event") == "run_end" else {}

    @property
    def best(self) -> Event:
        """The evaluation with the highest mIoU; empty if there is none."""
        scored = [event for event in self.evals if isinstance(event["scores"].get("miou"), (int, float))]
        return max(scored, key=lambda event: event["scores"]["miou"], default={})


def load(folder: str | Path, say: Callable[[str], None] = journal.say_on_stderr) -> RunFolder:
    """The run in ``folder``, or the one run below it. Raises DataError if there is none, or several."""
    home = run_home(folder)
    if not is_run(home):
        problem = f"{home} is not a run folder: it has no {journal.FILE} (segtrain runs DIR lists runs)"
        raise DataError(problem, code="not-a-run-folder", file=str(home))
    return read_folder(folder, say)


def read_folder(folder: str | Path, say: Callable[[str], None] = journal.say_on_stderr) -> RunFolder:
    """The run in a folder that may still be empty. ``say`` gets a warning for each file that cannot be read.

    Raises ConfigError for a run of segtrain 0.1, whose spans have other names.
    """
    home = run_home(folder)
    refuse_older_run(home)
    events = journal.read_journal(home, say) if (home / journal.FILE).is_file() else []
    config = settings_of(home, say)
    names = read_mapping(home / "labels.json", say).get("names")
    return RunFolder(
        folder=home,
        top=Path(folder),
        config=config,
        classes=tuple(map(str, names)) if isinstance(names, list) else (),
        events=tuple(event for event in events if journal.is_time(event.get("ts"))),
    )


def settings_of(folder: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The settings in a run's config.yaml; empty if it cannot be read."""
    return read_mapping(folder / "config.yaml", say)


def few(event: Event) -> str:
    """`` (1 of 2 classes)`` for an evaluation whose ground truth lacks some of the classes, else an empty text."""
    return of_classes(pixels_of(event)) if isinstance(event.get("scores"), Mapping) else ""
