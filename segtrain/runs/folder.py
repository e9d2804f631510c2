"""What does a run folder tell, be it whole, half-written or copied in part?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from segtrain import json_text
from segtrain.config import load_yaml, upgrade_settings
from segtrain.errors import DataError
from segtrain.observe import journal
from segtrain.observe.console import of_classes
from segtrain.runs.table import is_run, pixels_of, read_run, run_home
from segtrain.terminal import printable

Event = Mapping[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """``row`` as ``segtrain runs`` has it; ``steps`` and ``evals`` rise in step, without what was done again.

    ``top``: the folder that was named, which holds ``folder`` and may hold the system profile beside it.
    """

    folder: Path
    top: Path
    row: Mapping[str, Any]
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    events: tuple[Event, ...]
    steps: tuple[Event, ...]
    evals: tuple[Event, ...]

    @property
    def name(self) -> str:
        return str(self.row["name"])

    @property
    def start(self) -> Event:
        """The newest ``run_start``; empty where there is none."""
        return next((event for event in reversed(self.events) if event["event"] == "run_start"), {})

    @property
    def end(self) -> Event:
        """The ``run_end`` of the newest process; empty where it has said nothing yet, or never will."""
        for event in reversed(self.events):
            if event["event"] in ("run_end", "run_start"):
                return event if event["event"] == "run_end" else {}
        return {}

    @property
    def best(self) -> Event:
        """The evaluation with the highest mIoU; empty where there is none."""
        scored = [event for event in self.evals if isinstance(event["scores"].get("miou"), (int, float))]
        return max(scored, key=lambda event: event["scores"]["miou"], default={})


def load(folder: str | Path, say: Callable[[str], None] = journal.say_on_stderr) -> RunFolder:
    """Of a run folder, or of one that holds a run below. Raises DataError where it holds none, or several.

    A file that is missing leaves gaps; so does one that cannot be read, with a warning.
    """
    top, folder = Path(folder), run_home(folder)
    if not is_run(folder):
        raise DataError(f"{folder} is no run folder: it has no {journal.FILE} (segtrain runs DIR lists runs)")
    events = journal.read_journal(folder, say) if (folder / journal.FILE).is_file() else []
    events = [event for event in events if journal.is_time(event.get("ts"))]
    config = upgrade_settings(_mapping(folder / "config.yaml", say))
    names = _mapping(folder / "labels.json", say).get("names")
    evals = [event for event in journal.curve(events, "eval") if isinstance(event.get("scores"), Mapping)]
    return RunFolder(
        folder=folder,
        top=top,
        row=read_run(folder),
        config=config,
        classes=tuple(map(str, names)) if isinstance(names, list) else (),
        events=tuple(events),
        steps=tuple(journal.curve(events, "step")),
        evals=tuple(evals),
    )


def _mapping(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        value = json_text.parse(text) if path.suffix == ".json" else load_yaml(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = printable(" ".join(str(error).split()))
        say(f"warning: {path} cannot be read, what it says is left out: {reason}")
        return {}
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """``value`` if it is a number that can be drawn, else None: a journal writes null for what is not finite."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def few(event: Event) -> str:
    """`` (1 of 2 classes)`` for an evaluation whose truth lacks some of the classes, else nothing."""
    return of_classes(pixels_of(event)) if isinstance(event.get("scores"), Mapping) else ""
