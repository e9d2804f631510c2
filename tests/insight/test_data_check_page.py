"""The page of `segtrain data check`: its numbers, its pictures, and all faults; names stay text."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import ids, picture
from PIL import Image
from report_pages import Checked, chromium

from segtrain.cli import main
from segtrain.data.audit.check import check_folder
from segtrain.data.audit.written import refuse_existing
from segtrain.insight.report import data_check
from segtrain.observe.pictures import WRONG

__all__ = ["chromium"]  # the fixture

EVIL = "</script><script>alert(1)</script>\"'&"
CLASSES = "data.classes=[background, 'a</b><i>']"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 images of train, of which 3 have masks with the unknown id 9, and 2 of val, one a copy."""
    root = tmp_path / "set"
    for split, names in (("train", range(40)), ("val", range(39, 41))):
        for number in names:
            name = EVIL.replace("/", "\N{DIVISION SLASH}") if number == 5 else f"n{number}"
            picture(root / f"images/{split}/{name}.png", seed=number)
            ids(root / f"masks/{split}/{name}.png", (0, 1, 9) if number in (7, 8, 9) else (0, 1))
    return root


def test_numbers_pictures_and_faults(folder, chromium):
    checked = check_folder(str(folder), None, [CLASSES])
    html = data_check.render(checked)
    page = Checked(html)
    pictures = [address for address in page.addresses if address.startswith("data:image/jpeg")]
    assert len(pictures) == 12 + 2 + 2
    # Masks of 12 x 16 pixels: the first one shown is faulty, and every third of its pixels is 9.
    data = base64.b64decode(pictures[0].partition(",")[2])
    red = np.abs(np.asarray(Image.open(io.BytesIO(data)), int) - WRONG).max(axis=2) < 60
    assert 0.25 < red.mean() < 0.4
    lines = page.words.splitlines()
    assert lines.count(f"{37 * 96:,}") == 2
    assert lines.count("4 faults, 1 warning: correct the faults") == 1
    for report in checked.reports:
        assert all(message in page.words for _, message in report.faults)
        assert all(finding.message in page.words for finding in report.findings)
    path = folder / "page.html"
    path.write_text(html)
    for width in (1280, 390):
        chromium.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        chromium.open(path)
        assert chromium.run("document.documentElement.scrollWidth") == width
    assert chromium.errors == []


def test_faults_that_are_not_listed_are_counted(folder, monkeypatch):
    (folder / "images/train/n0.png").write_bytes(b"")
    monkeypatch.setattr(data_check, "_FAULTS", 2)
    words = Checked(data_check.render(check_folder(str(folder), None, [CLASSES]))).words
    assert "2 more faults" in words


def test_the_page_does_not_replace_the_config(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--write", "a.yaml", "--page", str(tmp_path / "a.yaml")]
    with refused("file-twice"):
        refuse_existing(write=Path(words[1]), page=Path(words[3]))
    assert main(["data", "check", str(folder), CLASSES, *words]) == 2
    assert not (tmp_path / "a.yaml").exists()


def test_a_sample_and_the_command(folder, tmp_path):
    path = tmp_path / "page.html"
    words = ["data", "check", str(folder), CLASSES, "--sample", "2", "--page", str(path)]
    assert main(words) == 0
    assert path.read_text().count('<img src="data:') == 2 + 2 + 2
    before = path.stat().st_mtime_ns
    assert main(words) == 2  # the page exists
    assert path.stat().st_mtime_ns == before
