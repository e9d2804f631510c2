"""Run folders with a journal, a profile, and pictures, and a parser of their pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import golden
import pytest
from PIL import Image

from segtrain.config import make_config
from segtrain.insight.report import page
from segtrain.observe.profile_format import ProfileWriter, Value

BEGIN = 1_750_000_000.0


PHASES = {"wait": 0.2, "forward": 0.3, "backward": 0.4, "other": 0.1}  # seconds of a step


CONFUSION = [[90, 10, 0], [5, 45, 0], [0, 0, 0]]


SCORES = {
    "classes": 3,
    "classes_present": 2,
    "miou": 0.8,
    "accuracy": 0.9,
    "iou": [0.857, 0.75, None],
    "pixels": [100, 50, 0],
}


VOID_TAGS = {"meta", "link", "img", "br", "input"}


def line(event: str, ts: float, **fields: Any) -> str:
    return json.dumps({"event": event, "ts": ts, **fields}) + "\n"


def start(ts: float = BEGIN, **more: Any) -> str:
    derived = {"model": "pico", "data": "scenes: 9 images", "decoder": "native"}
    return line(
        "run_start",
        ts,
        version="0.1.0",
        versions={"torch": "2.9"},
        name="street",
        hash="1a2b3c4d",
        host="elsewhere",
        pid=1,
        device="cpu",
        world_size=2,
        total_steps=40,
        derived=derived,
        **more,
    )


def step(
    ts: float, number: int, steps: int, scale: float = 1.0, cpu_s: float = 0.0, **more: Any
) -> str:
    spans = {phase: scale * steps * seconds for phase, seconds in PHASES.items()}
    return line(
        "step",
        ts,
        step=number,
        epoch=1.0,
        loss=2.0 / number,
        lr=0.01,
        images_per_s=8 / scale,
        spans=spans,
        cpu_s=cpu_s,
        **more,
    )


def journal(scale: float = 1.0, miou: float = 0.8) -> str:
    """Forty steps of a second: a line each ten, an evaluation of 4 s after step 20, its images 3.5
    of them, and one for pictures.
    """
    text = start() + step(BEGIN + 7, 1, 1, 5.0, cpu_s=50.0)
    ts = BEGIN + 7
    for number in (10, 20, 30, 40):
        count = 9 if number == 10 else 10
        ts += count * scale + (5 if number == 30 else 0)
        text += step(ts, number, count, scale, cpu_s=50 + 1.5 * number)
        if number in (20, 40):
            scores = {**SCORES, "miou": miou - (0.1 if number == 20 else 0)}
            text += line(
                "eval",
                ts + 4,
                step=number,
                epoch=1.0,
                scores=scores,
                seconds=3.5,
                confusion=CONFUSION,
                protocol={"split": "val", "images": 60, "line": "all"},
            )
    ts += 6
    text += line("checkpoint", ts, step=40, file="step-00000040.pt", reason="end", seconds=1.0)
    return text + line("run_end", ts, status="done", step=40, seconds=46.0, cpu_s=110.0)


def make(folder: Path, text: str | None = None, profile: bool = False, **settings: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text(journal() if text is None else text)
    (folder / "config.yaml").write_text(make_config({"name": "street", **settings}).to_yaml())
    (folder / "labels.json").write_text(
        json.dumps({"names": ["road", "sky", "<car>"], "palette": [[0, 0, 0]] * 3})
    )
    (folder / "pictures").mkdir()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(folder / "pictures/val.png")
    if profile:
        write_profile(folder / "profile")
    return folder


def write_profile(folder: Path) -> None:
    """Each half second of a minute: cpu0 at 100 %, cpu1 at 0, and at 50 from second 30 on; one GPU
    at 25 %.
    """
    writer = ProfileWriter(folder, "algo-1")
    for tick in range(120):
        second = tick / 2
        values = [
            Value("cpu", "cpu0", "CPUUtilization", 100.0),
            Value("cpu", "cpu1", "CPUUtilization", 50.0 * (second >= 30)),
            Value("gpu", "gpu0", "GPUUtilization", 25.0),
            Value("memory", "MemoryUsedPercent", "", 10.0),
        ]
        writer.write(BEGIN + second + 0.1, values)
    writer.close()


class Checked(HTMLParser):
    """Raises where tags do not close in order; collects addresses and the words a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(text)
        assert self.stack == []
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in VOID_TAGS:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("script", "style"):
            self.words += data + "\n"


LINES = {"tr", "p", "li", "h1", "h2", "h3", "figure", "caption", "summary", "b", "button"}


class PageText(HTMLParser):
    """A page as text: a line for each row and paragraph, with widths, colors, links, and copies."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.skipped, self.lines = False, [""]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.skipped = tag in ("script", "style")
        if tag in LINES:
            self.lines.append("")
        if tag in ("td", "th"):
            self.lines[-1] += " | "
        found = {key: value or "" for key, value in attrs}
        kept = [found[key] for key in ("style", "href", "data-copy") if key in found]
        named = tag in ("i", "span", "td") and found.get("class") not in (None, "n")
        marks = [found["class"]] if named else []
        self.lines[-1] += "".join(f"[{mark}]" for mark in (*marks, *kept))

    def handle_endtag(self, tag: str) -> None:
        self.skipped = False

    def handle_data(self, data: str) -> None:
        if not self.skipped:
            self.lines[-1] += data.replace("\n", " ")


def whole_text(html: str) -> str:
    """All that a page shows, and the data of its charts; without what differs among runs."""
    data = re.search(r'id="chart-data">(.*?)</script>', html, re.DOTALL)
    assert data
    Checked(html)
    lines = [line.strip() for line in PageText(html).lines]
    words = {
        r"segtrain \S+, made .*": "",
        r"\d+ (settings at their defaults\n)(\|.*\n)+": r"\1",
    }
    said = golden.masked("\n".join(filter(None, lines)), words)
    return f"{said}\n{golden.data(json.loads(data[1]))}"


def text_of(folder: Path, say: Any = pytest.fail) -> tuple[Checked, dict[str, Any]]:
    text = page.report(folder, say=say).read_text(encoding="utf-8")
    data = re.search(
        r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.DOTALL
    )
    assert data
    return Checked(text), json.loads(data[1])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    executable = browser.find()
    if executable is None:
        pytest.skip("no browser here: apt-get install chromium, or set SEGTRAIN_BROWSER")
    opened = browser.Browser(executable, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()
