"""Reader of run folders: where they are, and what is in them.

A folder may be complete, half-written, or a partial copy: any file may be missing, empty, or torn.
In a copy of a SageMaker job, the profile may be in another subfolder than the spans and the
journal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from segtrain.base import json_text
from segtrain.base.files import open_file, read_text
from segtrain.base.terminal import printable
from segtrain.config import load_yaml, refuse_older_run
from segtrain.errors import DataError, file_error, one_line
from segtrain.observe import journal
from segtrain.observe.journal import Event, Say
from segtrain.observe.profile_format import Series, Track, read_profile
from segtrain.observe.run_row import run_row
from segtrain.observe.scores import BEST, Score, named_score
from segtrain.observe.spans import FOLDER as SPANS
from segtrain.observe.spans import Records, read_spans


def silent(text: str) -> None:
    """Drop a warning: it has appeared already, or it is about a run that nobody has named."""


@dataclass(frozen=True)
class RunFolder:
    """A run, read from ``folder``; ``classes`` are the names of its labels. Missing files leave
    gaps.

    ``top``: the folder that the user named: ``folder``, or one above it, which may also hold the
    system profile.
    """

    folder: Path
    top: Path
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    events: tuple[Event, ...]

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The row of ``segtrain runs``."""
        return run_row(
            self.folder, self.config, read_mapping(self.folder / "best.json", journal.say_on_stderr)
        )

    @cached_property
    def steps(self) -> tuple[Event, ...]:
        """The step events in order of steps. If a resumed process repeated a step, only its newest
        event is kept.
        """
        return tuple(journal.curve(self.events, "step"))

    @cached_property
    def evals(self) -> tuple[Event, ...]:
        """The evaluations that have scores. If a resumed process repeated one, only the newest is
        kept.
        """
        return tuple(event for event in journal.curve(self.events, "eval") if "scores" in event)

    def setting(self, key: str, default: Any = None) -> Any:
        """``section.key`` of the run's config.yaml."""
        return setting_of(self.config, key, default)

    def spans(self) -> tuple[Records, ...]:
        """The records of all ranks, in the order of ranks. Raises DataError if there are none."""
        return tuple(read_spans(self.folder))

    def profile(
        self, start: float, end: float, say: Say = journal.say_on_stderr
    ) -> dict[Series, Track]:
        """Readings of the system profile between two Unix times; empty if there are none
        (log.profile_ms=0).
        """
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
        return newest(self.events, "run_start")

    @property
    def end(self) -> Event:
        """The ``run_end`` of the newest process; empty if it has written none."""
        last = newest(self.events, "run_end", "run_start")
        return last if last.get("event") == "run_end" else {}

    @property
    def best(self) -> Event:
        """The best evaluation; empty if there is none."""
        return journal.best_evaluation(self.evals)

    @property
    def best_by(self) -> Score:
        """The score that decides which evaluation is the best."""
        return named_score(str(self.setting("eval.best", BEST.key)))


def newest(events: tuple[Event, ...], *kinds: str) -> Event:
    """The last event of these kinds; empty if there is none."""
    return next((event for event in reversed(events) if event.get("event") in kinds), {})


def load(folder: str | Path, say: Say = journal.say_on_stderr) -> RunFolder:
    """The run in ``folder``, or the one run below it. Raises DataError if there is none, or
    several.
    """
    home = run_home(folder)
    if not any(
        (home / name).is_file() for name in ("config.yaml", journal.FILE, "best.json")
    ) and not _has_spans(home):
        raise DataError(
            f"{home} is not a run folder: it has no {journal.FILE} (segtrain runs DIR lists runs)",
            code="not-a-run-folder",
            file=str(home),
        )
    return read_folder(folder, say)


def read_folder(folder: str | Path, say: Say = journal.say_on_stderr) -> RunFolder:
    """The run in a folder that may still be empty. ``say`` gets a warning for each file that cannot
    be read.

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


def settings_of(folder: Path, say: Say = silent) -> dict[str, Any]:
    """The settings in a run's config.yaml; empty if it cannot be read."""
    return read_mapping(folder / "config.yaml", say)


def setting_of(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """``section.key`` of a config as read from a file; the default if it is missing or null."""
    section, _, name = key.partition(".")
    part = config.get(section)
    value = part.get(name) if isinstance(part, Mapping) else None
    return default if value is None else value


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config as ``section.key`` -> value."""
    settings: dict[str, Any] = {}
    for section, content in config.items():
        if isinstance(content, Mapping):
            settings |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            settings[section] = content
    return settings


def read_mapping(path: Path, say: Say = silent) -> dict[str, Any]:
    """The mapping in a .yaml or .json file; empty if it is missing, and with a warning if it cannot
    be read.
    """
    try:
        text = read_text(path)
        value = json_text.parse(text) if path.suffix == ".json" else load_yaml(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = printable(one_line(error))
        say(f"warning: {path} cannot be read, so its content is left out: {reason}")
        return {}
    return value if isinstance(value, dict) else {}


def find_runs(folder: str | Path) -> list[Path]:
    """Run folders at or below ``folder``, oldest first. Raises DataError if the folder does not
    exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}: name the folder that holds your runs (the "
            "default is runs/)",
            code="folder-missing",
            file=str(folder),
        )
    runs = []
    for path, folders, files in os.walk(folder):
        records = {*files} & {journal.FILE, "best.json"} or {*files, *folders} >= {
            "config.yaml",
            "checkpoints",
        }
        if records or (SPANS in folders and _has_spans(Path(path))):
            runs.append(Path(path))
            folders.clear()  # a run folder contains no other run folder
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(runs, key=lambda run: (_started(run), str(run)))


def run_home(folder: str | Path) -> Path:
    """The one run folder at or below ``folder``, or ``folder`` itself if there is none.

    In a copy of a SageMaker job's output, the run folder is a subfolder. Raises DataError if there
    are several runs.
    """
    folder = Path(folder)
    runs = find_runs(folder) if folder.is_dir() else []
    if len(runs) > 1:
        raise file_error(
            str(folder),
            f"it holds {len(runs)} runs: name one, such as {runs[0]}",
            code="several-runs",
            found=len(runs),
        )
    return runs[0] if runs else folder


def _has_spans(folder: Path) -> bool:
    return any((folder / SPANS).glob("rank-*.jsonl"))


def _started(run: Path) -> float:
    """Unix time of the first event; 0 if there is none."""
    try:
        with open_file(run / journal.FILE) as file:
            return next(
                float(event["ts"]) for event in journal.parse_lines([file.readline()], "", silent)
            )
    except (OSError, KeyError, StopIteration):
        return 0.0
