"""Facts about a run to show and compare: config, environment, data, and events, as flat pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from segtrain.base.units import duration
from segtrain.config import Config
from segtrain.insight.report.html import details, table, thinned
from segtrain.insight.runs.folder import RunFolder, flat
from segtrain.observe.journal import Event
from segtrain.observe.scores import BEST


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """``section.key`` -> value in one line of YAML."""
    return {key: _text(value) for key, value in flat(config).items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def environment(run: RunFolder) -> dict[str, str]:
    start = run.start
    facts = {
        "segtrain": start.get("version"),
        **start.get("versions", {}),
        "host": start.get("host"),
        "device": start.get("device"),
        "ranks": start.get("world_size"),
        **start.get("derived", {}),
    }
    return {
        str(key): str(value)
        for key, value in facts.items()
        if key != "data" and value not in (None, "")
    }


def data(run: RunFolder) -> dict[str, str]:
    """Facts about the data and the evaluation protocol: scores can be compared if the protocol is
    equal.
    """
    facts = {key: value for key, value in run.start.get("derived", {}).items() if key == "data"}
    for event in run.events:
        if event["event"] == "faults":
            skipped = (
                f"{event.get('skipped')} of {event.get('images')} images, see {event.get('file')}"
            )
            facts[f"left out of {event.get('role')}"] = skipped
    protocol = run.evals[-1].get("protocol", {}) if run.evals else {}
    facts |= {
        f"scored: {key.replace('_', ' ')}": value
        for key, value in protocol.items()
        if key != "line"
    }
    return {key: _text(value) for key, value in facts.items()}


def config_table(run: RunFolder) -> str:
    usual = settings(Config().model_dump(mode="json"))
    rows = settings(run.config)
    changed = {key: value for key, value in rows.items() if usual.get(key) != value}
    rest = {key: value for key, value in rows.items() if key not in changed}
    if not rows:
        return "<p class=quiet>The folder has no config.yaml.</p>"
    caption = "Settings that differ from the defaults"
    cells = [(key, value, usual.get(key, "")) for key, value in changed.items()]
    own = table(
        ("setting", "value", "default"), cells, left=(0, 1, 2), kind="facts", caption=caption
    )
    others = table(("setting", "value"), list(rest.items()), left=(0, 1), kind="facts")
    return own + details(f"{len(rest)} settings at their defaults", others)


def pairs(caption: str, facts: Mapping[str, str]) -> str:
    return (
        table((), list(facts.items()), left=(0, 1), kind="facts", caption=caption) if facts else ""
    )


def happenings(run: RunFolder) -> str:
    """Starts, evaluations, checkpoints, and ends, in order."""
    rows = [
        (
            f"{datetime.fromtimestamp(event['ts'], timezone.utc):%Y-%m-%d %H:%M:%S}",
            event.get("step", ""),
            text,
        )
        for event in run.events
        if (text := _event_text(event))
    ]
    events = table(("UTC", "step", "event"), thinned(rows, 200), left=(0, 2), kind="facts")
    return details(f"What happened, in order ({len(rows)} events)", events)


def _event_text(event: Event) -> str:
    seconds = event.get("seconds")
    time = (
        ""
        if seconds is None
        else f", {duration(seconds)}"
        if seconds >= 10
        else f", {seconds:.2f} s"
    )
    kind = event["event"]
    if kind == "run_start":
        return f"a process starts on {event.get('host')} (pid {event.get('pid')})"
    if kind == "resume":
        return f"resumes; {event.get('world_size')} ranks wrote the checkpoint"
    if kind == "eval":
        return f"mIoU {BEST.percent(event.get('scores', {}))}{time}"
    if kind == "checkpoint":
        return f"checkpoint {event.get('file')} ({event.get('reason')}{time})"
    if kind == "helpers":
        return f"helpers: {event.get('text') or event.get('what')}"
    if kind == "signal":
        return f"stopped by {event.get('signal')}"
    if kind == "limit":
        return str(event.get("text", ""))
    if kind == "run_end":
        shares = event.get("samples", {}).get("text", "")
        error = f": {event['error']}" if event.get("error") else ""
        parts = [f"{event.get('status')}{error}", event.get("text"), shares]
        return "; ".join(filter(None, parts))
    return ""
