"""What the processes of a run took so far, in time and money, from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spent:
    """``seconds``: of all processes of a run, one after the other. ``dollars``: of their machines;
    None: unknown.
    """

    seconds: float = 0.0
    dollars: float | None = 0.0


def spent(events: Iterable[Mapping[str, Any]], price: float | None = None) -> Spent:
    """The sum over the processes in a journal, each from its beginning to its last event.

    ``price``: dollars per hour and machine, for processes that did not know theirs. The time
    between two processes does not count. Nor does the time between the last event of a process and
    its kill, at most ``log.every`` steps.
    """
    seconds, dollars = 0.0, 0.0
    priced = True
    begin = None
    last = 0.0
    cost = 0.0
    for event in [*events, {"event": "run_start"}]:
        if event["event"] == "run_start":
            if begin is not None:
                seconds = seconds + last - begin
                dollars = dollars + (last - begin) * cost
            if "ts" not in event:
                break
            own = event["price"] if event.get("price") is not None else price
            priced = priced and own is not None
            cost = (own or 0.0) / 3600 * (event.get("hosts") or 1)
            begin = min(event["ts"], event.get("begun") or event["ts"])
        last = event["ts"]
    return Spent(seconds, dollars if priced else None)
