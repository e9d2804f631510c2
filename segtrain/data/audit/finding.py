"""Findings about whole splits; each may come with settings that fix it, both as values and as text
to paste.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from segtrain.config.paste import Settings, command, in_yaml, words
from segtrain.errors import DataError


@dataclass(frozen=True)
class SplitFinding:
    """A problem with the settings or the splits.

    ``settings`` are the proposed fix, and ``others`` are fixes for other cases, as pairs
    (condition, settings). If the finding is ``fatal``, the check fails, and training does not
    start. ``pairs``: some images that are in two splits, as (name in train, name in the other).
    """

    message: str
    fatal: bool = False
    settings: Settings = field(default_factory=dict)
    others: tuple[tuple[str, Settings], ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The message, then one line for each way to paste a fix."""
        lines = [self.message]
        if self.settings:
            lines.append(f"  on the command line: {command(self.settings)}")
            lines.append(f"  in the config file:  {in_yaml(self.settings)}")
        lines += [f"  {when}: {command(settings)}" for when, settings in self.others]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. JSON turns number keys into text, so ``paste`` has the settings as
        arguments, too.
        """
        others = [{"when": when, "settings": dict(settings)} for when, settings in self.others]
        return {**vars(self), "paste": words(self.settings), "others": others}


def refuse(findings: Iterable[SplitFinding], faults: Sequence[str] = ()) -> None:
    """Raise one DataError for all fatal findings, with the settings of the first one that has any.

    ``faults``: messages about single files. The error shows their number and the first one.
    """
    fatal = [finding for finding in findings if finding.fatal]
    if not fatal:
        return
    lines = [finding.text() for finding in fatal]
    if faults:
        lines.append(f"  the first of {len(faults):,} faulty files: {faults[0]}")
    error = DataError(
        "\n".join(lines), code="data-check-failed", findings=len(fatal), faults=len(faults)
    )
    error.settings = next((dict(finding.settings) for finding in fatal if finding.settings), None)
    raise error
