"""Tests of the diagnosis on the report page, with a fix that can be copied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import refused
from report_pages import BEGIN, Checked, chromium, make, text_of

from segtrain.insight.report import page
from segtrain.insight.runs.folder import load
from segtrain.observe.profile_format import ProfileWriter, Value

__all__ = ["chromium"]  # the fixture
FED = {"forward": 0.5, "backward": 0.4, "update": 0.1}  # seconds of a window
STARVED = {"wait": 0.7, "forward": 0.2, "backward": 0.1}
LATE = {"wait": 0.5, "forward": 0.2, "backward": 0.1, "checkpoint": 0.2}
WORK = {
    "count": 4,
    "kind": "thread",
    "samples": 16,
    "cpu_s": 0.6,
    "bytes": 16 * 50_000,
    "seconds": {"read": 3.0, "decode": 0.4, "augment": 0.1, "assemble": 0.0},
    "reads": {"count": 32, "bytes2": 16 * 60_000**2, "bytes_s": 3.0 * 25_000},
}


def write_spans(folder: Path, *ranks: dict[str, float], windows: int = 40) -> Path:
    """A window a second of each rank, with two steps of 8 images; the first one counts as the
    start, the last line is torn.
    """
    (folder / "spans").mkdir(parents=True)
    for rank, phases in enumerate(ranks):
        lines: list[dict[str, Any]] = [
            {
                "begin": 1,
                "rank": rank,
                "ts": BEGIN,
                "host": "<vm>",
                "world_size": len(ranks),
                "local_world_size": 1,
                "device": "cpu",
                "cores": 8,
                "bytes_gradient": 1000,
            }
        ]
        lines += [
            {
                "rank": rank,
                "ts": BEGIN + second,
                "seconds": 1.0,
                "first": 2 * second + 1,
                "last": 2 * second + 2,
                "images": 16,
                "phases": phases,
                "cpu_s": 0.5,
                "threads": 1,
                "workers": WORK,
            }
            for second in range(windows)
        ]
        text = "\n".join(map(json.dumps, lines)) + '\n{"rank": 0, "pha'
        (folder / f"spans/rank-{rank:05d}.jsonl").write_text(text)
    return folder


def spans_of(
    *ranks: dict[str, float], text: str | None = None, windows: int = 40, **more: Any
) -> Any:
    """A function that makes such a run in a folder."""
    return lambda folder: write_spans(make(folder, text, **more), *ranks, windows=windows)


def test_the_links_of_a_card_lead_to_charts_of_the_page(tmp_path):
    checked, data = text_of(spans_of(STARVED)(tmp_path / "run"))
    assert {"#wait0", "#samplecost"} <= set(checked.addresses)
    assert {address[1:] for address in checked.addresses if address.startswith("#")} <= set(
        checked.ids
    )
    assert "wait0" in data


def test_a_slow_rank_leads_to_who_waited_for_whom(tmp_path):
    slow = {"forward": 0.2, "backward": 0.1, "other": 0.7}
    others = {"forward": 0.2, "backward": 0.1, "sync": 0.7}
    checked, _ = text_of(spans_of(others, slow)(tmp_path / "run"))
    assert "Bound by one rank that is slower than the others" in checked.words
    assert "rank 1 on <vm> takes" in checked.words  # a host's name is text
    assert "#wait1" in checked.addresses
    assert "the others wait for the rank that waits least" in checked.words
    text = page.report(tmp_path / "run").read_text()  # advice without a setting has no button
    assert "data-copy=" not in text[text.index("<main>") : text.index("</main>")]


def test_a_healthy_run_is_called_so(tmp_path):
    words = text_of(spans_of(FED)(tmp_path / "run"))[0].words
    assert "Waiting for data takes 0.0 % of its time, logging and checkpoints 0.0 %." in words
    assert "lost to it" not in words


def test_a_run_that_was_too_short_is_not_judged(tmp_path):
    words = text_of(spans_of(STARVED, windows=1)(tmp_path / "run"))[0].words
    assert "The run was too short to tell what held it up" in words
    assert "Bound by" not in words
    words = text_of(spans_of(windows=0)(tmp_path / "none"))[0].words
    assert "This run wrote no spans" in words


def test_a_wait_that_no_span_explains(tmp_path):
    folder = spans_of(STARVED)(tmp_path / "run")
    spans = folder / "spans/rank-00000.jsonl"
    spans.write_text(re.sub(r', "workers": \{.*\}', "}", spans.read_text()))
    checked, _ = text_of(folder)
    assert "It waits for its samples, and its spans do not say why" in checked.words
    assert "#wait0" in checked.addresses
    assert "samplecost" not in checked.ids


def test_a_copy_of_a_jobs_output_has_a_page(tmp_path):
    """The run in one folder, the profiler's files in another; the page lies in the run."""
    folder = spans_of(STARVED)(tmp_path / "job/checkpoints")
    writer = ProfileWriter(tmp_path / "job/profiler-output", "algo-1")
    for second in range(50):
        writer.write(BEGIN + second, [Value("cpu", "cpu0", "CPUUtilization", 40.0)])
    writer.close()
    assert page.report(tmp_path / "job", say=pytest.fail) == folder / "report.html"
    words = Checked((folder / "report.html").read_text()).words
    assert "Bound by storage latency" in words
    assert re.search(r"cpu0\s+40\.0 %", words)
    make(tmp_path / "job/second")
    with refused("several-runs", file=str(tmp_path / "job"), found=2):
        load(tmp_path / "job")


# In a browser.


def test_the_cards_in_a_browser(chromium, tmp_path):
    path = page.report(spans_of(LATE, profile=True)(tmp_path / "run"))
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.open(path)
    assert chromium.run("document.querySelectorAll('.cards > .card').length") == 1
    full = chromium.run("document.querySelector('.meter').getBoundingClientRect().width")
    assert chromium.run(
        "document.querySelector('.meter i').getBoundingClientRect().width"
    ) == pytest.approx(full / 2, abs=2)

    setting = chromium.run("document.querySelector('[data-copy]').dataset.copy")
    chromium.run(
        "window.kept = []; navigator.clipboard.writeText = async text => { kept.push(text); }"
    )
    chromium.run("document.querySelector('[data-copy]').focus()")
    assert chromium.run("document.activeElement.getAttribute('aria-label')") == f"Copy {setting}"
    for kind in ("keyDown", "keyUp"):
        chromium.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    assert chromium.run("kept") == [setting]
    assert chromium.run("document.getElementById('said').textContent") == f"{setting} is copied"
    assert chromium.run("document.activeElement.textContent") == "copied"

    chromium.run(
        "navigator.clipboard.writeText = async () => { throw new Error('closed') }; document.execCommand = () => false"
    )
    chromium.click("[data-copy]")
    assert chromium.run("getSelection().toString()") == setting
    assert "Ctrl+C" in chromium.run("document.getElementById('said').textContent")

    chromium.click(".card a")
    assert chromium.run("location.hash") == "#wait0"
    assert 0 <= chromium.run("document.getElementById('wait0').getBoundingClientRect().top") < 450
    chromium.call(
        "Emulation.setDeviceMetricsOverride",
        width=400,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    chromium.open(path)
    assert chromium.run("document.documentElement.scrollWidth") == 400
    chromium.call(
        "Emulation.setDeviceMetricsOverride",
        width=1280,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    assert chromium.errors == []
    assert {url.split(":")[0] for url in chromium.requests} <= {"file", "data"}
