"""`segtrain doctor`: checks the machine and the installation, and says how to fix problems."""

from __future__ import annotations

import json
from dataclasses import asdict

from segtrain import __version__
from segtrain.base.terminal import counted
from segtrain.errors import EXIT_ERROR
from segtrain.insight.doctor import machine, packages
from segtrain.insight.doctor.line import NOTE, PROBLEM, CheckLine
from segtrain.observe.journal import Say


def doctor(as_json: bool = False, say: Say = print) -> int:
    """Run all checks and print one line per check. Returns 2 if training is impossible, else 0."""
    lines = [*packages.checks(), *machine.checks()]
    if as_json:
        say(json.dumps({"version": __version__, "lines": [asdict(line) for line in lines]}))
    else:
        say(page(lines))
    return EXIT_ERROR if any(line.fatal for line in lines) else 0


def page(lines: list[CheckLine]) -> str:
    """One aligned line per check, each with its fix below, and a count at the end."""
    width = max(len(line.name) for line in lines)
    text_lines = [f"segtrain {__version__}"]
    for line in lines:
        text_lines.append(f"{line.state:<7}  {line.name:<{width}}  {line.found}")
        if line.cure:
            text_lines.append(f"{'':<7}  {'':<{width}}    {line.cure}")
    problems, notes = (sum(line.state == state for line in lines) for state in (PROBLEM, NOTE))
    text_lines.append(f"{counted(problems, 'problem')}, {counted(notes, 'note')}")
    if any(line.fatal for line in lines):
        text_lines[-1] += ": training is impossible"
    return "\n".join(text_lines)
