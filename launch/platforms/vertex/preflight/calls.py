"""Calls to Google before a job is sent. A call that fails becomes a note, not an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from launch.core.findings import Finding, note
from segtrain.errors import SegtrainError


@dataclass
class GoogleReadOnlyCalls:
    """Makes calls to Google, and keeps failures as notes. ``ABSENT``: the answer if the resource
    does not exist.
    """

    notes: list[Finding] = field(default_factory=list)
    ABSENT = object()

    def __call__(self, what: str, call: Callable[[], Any]) -> Any:
        """The answer of ``call``; None if it fails, with a note that ``what`` could not be
        checked.
        """
        from segtrain.platforms.vertex.google_api import NotFound

        try:
            return call()
        except NotFound:
            return self.ABSENT
        except SegtrainError as problem:
            self.notes.append(note("not-asked", f"{what} could not be checked: {problem}"))
            return None
