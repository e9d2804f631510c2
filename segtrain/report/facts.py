"""Facts about a run to show and compare: config, environment, data, and events, as flat pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from segtrain.config import Config
from segtrain.observe.console import duration, percent
from segtrain.report.html import details, esc, table, thinned
from segtrain.runs.folder import RunFolder, few
from segtrain.runs.table import number

_DATA = ("data",)  # derived quantities that are not about the environment


def mapping(value: Any) -> dict[str, Any]:
    """``value`` if it is a mapping; a journal of another version may have something else there."""
    return dict(value) if isinstance(value, Mapping) else {}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``section.key`` -> value as one line of YAML."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value and not prefix:
            found.update(flat(value, f"{key}."))
        else:
            found[f"{prefix}{key}"] = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            )
    return found


def defaults() -> dict[str, str]:
    return flat(Config().model_dump(mode="json"))


def environment(run: RunFolder) -> dict[str, str]:
    start = run.start
    derived = mapping(start.get("derived"))
    found = {
        "segtrain": start.get("version"),
        **mapping(start.get("versions")),
        "host": start.get("host"),
        "device": start.get("device"),
        "ranks": start.get("world_size"),
        **{key: value for key, value in derived.items() if key not in _DATA},
    }
    return {str(key): str(value) for key, value in found.items() if value not in (None, "")}


def data(run: RunFolder) -> dict[str, str]:
    """Facts about the data and the evaluation protocol: scores can be compared where the protocol is equal."""
    start = run.start
    derived = mapping(start.get("derived"))
    found = {key: derived[key] for key in _DATA if key in derived}
    for event in run.events:
        if event["event"] == "faults":
            found[f"left out of {event.get('role')}"] = (
                f"{event.get('skipped')} of {event.get('images')} images, see {event.get('file')}"
            )
    protocol = run.evals[-1].get("protocol") if run.evals else None
    if isinstance(protocol, Mapping):
        found.update({f"scored: {key.replace('_', ' ')}": value for key, value in protocol.items() if key != "line"})
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def config_table(run: RunFolder) -> str:
    usual = defaults()
    rows = flat(run.config)
    changed = {key: value for key, value in rows.items() if usual.get(key) != value}
    rest = {key: value for key, value in rows.items() if key not in changed}
    if not rows:
        return "<p class=quiet>The folder has no config.yaml.</p>"
    own = table(
        ("setting", "value", "default"),
        [(key, value, usual.get(key, "")) for key, value in changed.items()],
        left=(0, 1, 2),
        kind="facts",
        caption="Settings that differ from the defaults",
    )
    others = table(("setting", "value"), list(rest.items()), left=(0, 1), kind="facts")
    return own + details(f"{len(rest)} settings at their defaults", others)


def pairs(caption: str, facts: Mapping[str, str]) -> str:
    return table((), list(facts.items()), left=(0, 1), kind="facts", caption=caption) if facts else ""


def happenings(run: RunFolder) -> str:
    """Starts, evaluations, checkpoints, and ends, in order."""
    rows = []
    for event in run.events:
        said = _said(event)
        if said:
            moment = datetime.fromtimestamp(event["ts"], timezone.utc)
            rows.append((moment.strftime("%Y-%m-%d %H:%M:%S"), event.get("step", ""), said))
    shown = thinned(rows, 200)
    return details(
        f"What happened, in order ({len(rows)} events)",
        table(("UTC", "step", "event"), shown, left=(0, 2), kind="facts"),
    )


def _said(event: Mapping[str, Any]) -> str:
    seconds = number(event.get("seconds"))
    took = "" if seconds is None else f", {duration(seconds)}" if seconds >= 10 else f", {seconds:.2f} s"
    kind = event["event"]
    if kind == "run_start":
        return f"a process starts on {event.get('host')} (pid {event.get('pid')})"
    if kind == "resume":
        return f"resumes; {event.get('world_size')} ranks wrote the checkpoint"
    if kind == "eval":
        return f"mIoU {percent(number(mapping(event.get('scores')).get('miou')), 2)}{few(event)}{took}"
    if kind == "checkpoint":
        return f"checkpoint {event.get('file')} ({event.get('reason')}{took})"
    if kind == "signal":
        return f"stopped by {event.get('signal')}"
    if kind == "run_end":
        return f"{event.get('status')}" + (f": {event['error']}" if event.get("error") else "")
    return ""


def quiet(text: str) -> str:
    return f"<p class=quiet>{esc(text)}</p>"
