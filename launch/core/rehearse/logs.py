"""Logs of the hosts of a rehearsal: one file per host, and the steps and metrics in them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from launch.core.findings import Say

STEP = re.compile(r"\bstep +(\d+)/\d+\b")
_ALWAYS = ("entrypoint:", " ERROR ", "Reporting training", "error:")


class HostLogs:
    """Collects the output lines of all hosts, each read by its own thread.

    ``leader``: the host whose lines the user sees live, beginning with the first line that contains
    ``after``. ``metrics``: name -> regular expression whose first group is the value.
    """

    def __init__(
        self,
        folder: Path,
        leader: str,
        say: Say,
        metrics: Mapping[str, str],
        after: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._leader, self._say, self._after = folder, leader, say, after
        self._metrics = {name: re.compile(pattern) for name, pattern in metrics.items()}
        self._lock = threading.Lock()
        self._talking: set[str] = set()
        self.values: dict[str, list[float]] = {name: [] for name in self._metrics}
        self.missing: set[str] = set()  # requirements that pip could not find in the rehearsal
        self.step = 0
        self.first_step: float | None = None  # time.monotonic()

    def heading(self, host: str, text: str) -> None:
        with (self._folder / f"{host}.log").open("a") as file:
            file.write(f"==== {text} ====\n")
        self._talking.discard(host)

    def listener(self, host: str) -> Say:
        file = (self._folder / f"{host}.log").open("a", buffering=1)

        def heard(line: str) -> None:
            file.write(line + "\n")
            with self._lock:
                self._take(host, line)

        return heard

    def _take(self, host: str, line: str) -> None:
        if (match := STEP.search(line)) is not None:
            self.step = max(self.step, int(match[1]))
            self.first_step = self.first_step or time.monotonic()
        for name, pattern in self._metrics.items():
            if (value := pattern.search(line)) is not None and value.groups():
                try:
                    self.values[name].append(float(value[1]))
                except ValueError:
                    continue  # a cloud would ignore this value, too
        if (lacking := re.search(r"No matching distribution found for (.+)", line)) is not None:
            self.missing.add(lacking[1].strip())
        if self._after in line:
            self._talking.add(host)
        seen = host == self._leader and host in self._talking
        if line.strip() and (seen or any(word in line for word in _ALWAYS)):
            self._say(f"{host} | {line}")
