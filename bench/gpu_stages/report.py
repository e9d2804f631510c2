"""The result files of bench/gpu.py."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_stages.rig import GOOD, Stage

Rows = list[dict[str, Any]]


class Report:
    """The result files, rewritten after each row. Stages of earlier runs on the same commit and GPU
    stay in them.

    ``first``: the rows of the stage check.
    """

    def __init__(
        self, args: argparse.Namespace, root: Path, stages: Sequence[Stage], first: Rows
    ) -> None:
        gpu = next((row["result"] for row in first if row["what"] == "GPU"), args.device)
        name = re.sub(r"[^a-z0-9]+", "-", gpu.split(",")[0].lower()).strip("-") or "unknown"
        today = datetime.date.today().isoformat()
        self.path = args.out or root / "bench/results" / f"{today}-gpu-{name}"
        commit = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
        ).stdout.strip()
        self._head = {
            "date": today,
            "device": args.device,
            "tiny": args.tiny,
            "gpu": gpu,
            "commit": commit or "unknown",
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
        }
        self._titles = {stage.name: stage.title for stage in stages}
        self._stages: dict[str, Rows] = {}
        # Not with_suffix: the name of a GPU may contain a dot.
        with contextlib.suppress(OSError, ValueError):
            earlier = json.loads(Path(f"{self.path}.json").read_text(encoding="utf-8"))
            if {key: earlier.get(key) for key in self._head} == self._head:
                self._stages = earlier["stages"]

    def rows(self, stage: str) -> Rows:
        """The rows of a stage in the results of an earlier call."""
        return self._stages.get(stage, [])

    def note(self, stage: str, earlier: Rows, new: Rows) -> None:
        """Write the rows of a stage so far, with those of an ``earlier`` call. One that is left out keeps the rows of an earlier
        run.
        """
        rows = earlier + new
        if [row["what"] for row in rows] != ["left out"] or stage not in self._stages:
            self._stages[stage] = rows
        self._write({name: self._stages[name] for name in self._titles if name in self._stages})

    def _write(self, stages: dict[str, Rows]) -> None:
        lines = [
            f"# GPU: {self._head['gpu']}",
            "",
            "Made by `python bench/gpu.py`; see [the page](../../docs/gpu-bench.md).",
            "",
        ]
        if self._head["tiny"] or self._head["device"] == "cpu":
            lines += ["**A rehearsal: its figures mean nothing.**", ""]
        lines += [f"- {key}: {value}" for key, value in self._head.items()]
        for name, rows in stages.items():
            lines += [
                "",
                f"## {name}: {self._titles[name]}",
                "",
                "| | what | result | bound |",
                "|---|---|---|---|",
            ]
            logs: list[str] = []
            for row in rows:
                cells = [GOOD[row["ok"]], row["what"], row["result"], row.get("bound", "")]
                lines.append(
                    "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
                )
                if row.get("log"):
                    logs += ["", "```text", row["log"], "```"]
            lines += logs
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**self._head, "stages": stages}, indent=1)
        for ending, text in (("md", "\n".join(lines)), ("json", content)):
            part = Path(f"{self.path}.{ending}.part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(f"{self.path}.{ending}")  # at once, because this process may be killed
