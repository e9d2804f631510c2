"""Logs of the hosts: one file per host, like the log streams of CloudWatch, and the steps and metrics in them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STEP = re.compile(r"\bstep +(\d+)/\d+\b")
_SCRIPT = "Invoking script with the following command"  # before it the toolkit prints its whole environment
_ALWAYS = ("entrypoint:", " ERROR ", "Reporting training", "error:")


class HostLogs:
    """Lines of all hosts, from their threads. ``leader``: the host whose lines a person gets to see while it runs."""

    def __init__(self, folder: Path, leader: str, request: Mapping[str, Any], say: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._leader, self._say = folder, leader, say
        definitions = request["AlgorithmSpecification"].get("MetricDefinitions", [])
        self._metrics = {item["Name"]: re.compile(item["Regex"]) for item in definitions}
        self._lock = threading.Lock()
        self._talking: set[str] = set()
        self.values: dict[str, list[float]] = {name: [] for name in self._metrics}
        self.missing: set[str] = set()  # requirements that pip would have fetched
        self.step = 0
        self.first_step: float | None = None  # time.monotonic()

    def heading(self, host: str, text: str) -> None:
        with (self._folder / f"{host}.log").open("a") as file:
            file.write(f"==== {text} ====\n")
        self._talking.discard(host)

    def listener(self, host: str) -> Callable[[str], None]:
        file = (self._folder / f"{host}.log").open("a", buffering=1)

        def heard(line: str) -> None:
            file.write(line + "\n")
            with self._lock:
                self._take(host, line)

        return heard

    def _take(self, host: str, line: str) -> None:
        if (found := STEP.search(line)) is not None:
            self.step = max(self.step, int(found[1]))
            self.first_step = self.first_step or time.monotonic()
        for name, pattern in self._metrics.items():
            if (value := pattern.search(line)) is not None and value.groups():
                try:
                    self.values[name].append(float(value[1]))
                except ValueError:
                    continue  # CloudWatch would not take it either
        if (lacking := re.search(r"No matching distribution found for (.+)", line)) is not None:
            self.missing.add(lacking[1].strip())
        if _SCRIPT in line:
            self._talking.add(host)
        seen = host == self._leader and host in self._talking
        if line.strip() and (seen or any(word in line for word in _ALWAYS)):
            self._say(f"{host} | {line}")
