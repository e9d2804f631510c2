"""Recorded reports: the page of a run with all of its files, two runs compared, and their table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import golden
import pytest
from PIL import Image
from records import rank_records, uneven
from report_pages import BEGIN, journal, line, make, start, step, whole_text

from segtrain.cli import main
from segtrain.insight.diagnose.causes import CAUSES
from segtrain.insight.report import page
from segtrain.observe import image_table
from segtrain.observe.image_table import ImageRow
from segtrain.observe.spans import Records

IMAGES = [
    ImageRow("val/a/1.png", 0.21, 0.35, 3000, "sky", 0.05),
    ImageRow("val/b/1.png", 0.47, 0.52, 2900, "road", 0.31),
    ImageRow("val/b/2.png", 0.78, 0.81, 3072, "road", 0.7),
    ImageRow("val/c/3.png", None, None, 0),
]
STACKS = """rank-00000;MainThread;main (a.py:1);run (segtrain/training/loop.py:35);step (segtrain/training/step.py:9) 900
rank-00000;MainThread;main (a.py:1);run (segtrain/training/loop.py:35);wait (threading.py:12) 300
rank-00000;segtrain-data-0;read (segtrain/data/sample.py:4);decode (cv2/a.py:7) 500
rank-00000;Thread-9;upload (boto3/x.py:2) 70
"""


def write_spans(folder: Path, *ranks: Records) -> None:
    (folder / "spans").mkdir()
    for records in map(uneven, ranks):
        begins = ({**begin, "ts": BEGIN} for begin in records.begins)
        windows = ({**w, "ts": BEGIN + 1 + k} for k, w in enumerate(records.windows))
        text = "".join(json.dumps(item) + "\n" for item in (*begins, *windows))
        (folder / f"spans/rank-{records.rank:05d}.jsonl").write_text(text)


def rich(folder: Path) -> Path:
    """A run that was resumed, with all files that a report shows."""
    first, *before, _ = journal().splitlines(keepends=True)
    again = BEGIN + 600
    events = [
        first,
        line("faults", BEGIN + 3, skipped=2, images=62, file="faults.csv", role="train"),
        line("helpers", BEGIN + 4, text="2 hosts make samples"),
        *before,
        start(again),
        line("resume", again + 1, step=40, world_size=3),
        step(again + 9, 44, 4, 1.5, cpu_s=8.0),
        line("checkpoint", again + 10, step=44, file="b.pt", reason="best", seconds=0.25),
        line("signal", again + 11, signal="SIGTERM", step=44),
        line("limit", again + 12, what="reached", limit="deadline=10m"),
        line("run_end", again + 13, status="stopped", step=44, samples={"text": "9 by helpers"}),
    ]
    run = make(folder, "".join(events), profile=True, data={"workers": 1, "rotate": 7})
    config = {"world": 2, "stages": {"decode": 0.06}, "workers": 1, "windows": 40}
    slow, quick = ({"wait": 0.9, "sync": 0.05}, {"wait": 0.2, "sync": 0.7, "log": 0.3})
    write_spans(run, rank_records(slow, **config), rank_records(quick, rank=1, host="b", **config))
    (run / "best.json").write_text('{"checkpoint": "b.pt", "miou": 0.8, "step": 40}')
    (run / image_table.LAST).write_bytes(image_table.as_csv(IMAGES))
    (run / "stacks").mkdir()
    (run / "stacks/rank-00000.txt").write_text(STACKS)
    (run / "stacks/rank-00000.json").write_text('{"seconds": 3.5, "samples": 177}')
    Image.new("RGB", (96, 32), (20, 130, 30)).save(run / "pictures/train.png")
    (run / "pictures/broken.png").write_bytes(b"no picture")
    return run


def plain(folder: Path) -> Path:
    """A slower run that has not ended, of another seed on other data."""
    *text, _ = journal(2.0, 0.75).splitlines(keepends=True)
    told = "".join(text).replace('"2.9"', '"2.10"').replace('"images": 60', '"images": 59')
    told = told.replace("0.857", "0.911")
    run = make(folder, told, train={"seed": 5}, data={"workers": 3, "rotate": 7})
    write_spans(run, rank_records({"wait": 0.25}, workers=3, windows=40, stages={"decode": 0.04}))
    return run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rich(Path("a"))
    plain(Path("b"))


@pytest.mark.usefixtures("runs")
def test_pages():
    for name in ("a", "b"):
        html = page.report(Path(name), say=lambda _: None).read_text(encoding="utf-8")
        golden.check(f"insight/report-{name}.txt", whole_text(html))


@pytest.mark.usefixtures("runs")
def test_commands(capsys):
    texts = []
    for call in (
        ["diff", "a", "b", "--out", "diff.html"],
        ["diff", "a", "a"],
        ["runs", "."],
        ["runs", ".", "--json"],
        ["diagnose", "a"],
        ["diagnose", "a", "--against", "b"],
        ["diagnose", "b", "--against", "a"],
        ["diagnose", "none"],
        ["report", "none"],
        ["runs", "none"],
        ["runs", "a/pictures"],
    ):
        code = main(call)
        said = capsys.readouterr()
        texts.append(f"$ segtrain {' '.join(call)}\n{said.err}{said.out}exit code {code}\n")
    golden.check("insight/report-commands.txt", "\n".join(texts))
    html = Path("diff.html").read_text(encoding="utf-8")
    golden.check("insight/report-diff.txt", whole_text(html))
    assert main(["diagnose", "a", "--json"]) == 0
    golden.check("insight/diagnose.yaml", golden.data(json.loads(capsys.readouterr().out)))


def test_causes_and_their_charts():
    rows = {name: replace(cause, rule=None) for name, cause in CAUSES.items()}
    golden.check("insight/causes.yaml", golden.data(rows))
