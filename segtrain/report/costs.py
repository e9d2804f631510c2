"""The cost of a sample: bars for the stages of making one, from the spans of the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segtrain.diagnose.verdict import Diagnosis
from segtrain.report.html import esc, percent, short_seconds

KEY, TITLE = "samplecost", "What a sample costs"
_WORDS = {"read": "read", "decode": "decode", "augment": "augment", "assemble": "put into its batch"}


def section(found: Diagnosis | None) -> str:
    """Empty where the diagnosis knows nothing about samples."""
    work = found.facts.get("workers") if found is not None else None
    if not isinstance(work, Mapping) or not work.get("sample_ms"):
        return ""
    whole = work["sample_ms"]
    rows = "".join(_row(_WORDS.get(stage, stage), ms, whole, "stage") for stage, ms in work["stages_ms"].items())
    rows += _row("total", whole, whole, "whole") + _row("CPU time", work["cpu_ms"], whole, "cpu")
    return (
        f'<div id="{KEY}" class="scroll"><table class="bars"><caption><b>{TITLE}</b> {esc(_who(work))}</caption>'
        '<thead><tr><th scope="col">stage</th><th scope="col" class=n>time</th>'
        '<th scope="col"><span class=hide>bar</span></th><th scope="col" class=n>share</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(name: str, ms: float, whole: float, kind: str) -> str:
    share = ms / whole
    return (
        f'<tr class="{kind}"><th scope="row">{esc(name)}</th><td class=n>{short_seconds(ms / 1000)}</td>'
        f'<td class=track><i style="width:{100 * min(1.0, share):.1f}%"></i></td><td class=n>{percent(share)}</td></tr>'
    )


def _who(work: Mapping[str, Any]) -> str:
    count, kind = work["count"], work["kind"]
    many = "processes" if kind == "process" else f"{kind}s"
    workers = f"{count:g} {kind if count == 1 else many}" if count else "the loop itself"
    size = f", {work['bytes'] / 1000:,.3g} kB read per sample" if work.get("bytes") else ""
    return f"mean, made by {workers} of the rank that waits most{size}"
