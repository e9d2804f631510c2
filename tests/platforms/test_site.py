"""Tests of the documentation site: the strict build, the pages added to it, and that it asks
nothing of other hosts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="the extra 'docs' (mkdocs-material) is not installed",
)


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(folder / "mkdocs.yml"),
        "-d",
        str(site),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_on_the_site_and_in_its_navigation(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file(), page.name
        assert f'href="{page.stem}.html" class="md-nav__link"' in home, page.name


def test_links_out_of_the_pages_stay_on_the_site(site):
    assert "repository/CHANGELOG.html" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "repository/bench/results/index.html").is_file()
    config = (site / "repository/configs/cityscapes_deeplabv3plus.yaml.html").read_text(
        encoding="utf-8"
    )
    assert "encoder_output_stride" in config


def test_a_reader_loads_nothing_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="(https?:[^"]*)"', text)
        loaded += re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(https?:[^"]*)"', text
        )
        assert not loaded, f"{page.name}: {loaded}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](docs/page.md), [b](docs/page.md#part), [c](settings), [d](settings/run.yaml)", ""),
        ("[a](docs/gone.md)", "gone.md"),
        ("[a](docs/page.md#gone)", "#gone"),
        ("[a](settings/gone.yaml)", "gone.yaml"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, text, problem):
    (tmp_path / "docs").mkdir()
    (tmp_path / "settings").mkdir()
    shutil.copy(ROOT / "docs/site_pages.py", tmp_path / "docs")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings.update(nav=["index.md", "page.md"], theme={"name": "material", "font": False})
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    (tmp_path / "README.md").write_text(f"# Home\n\n{text}\n")
    (tmp_path / "docs/page.md").write_text(
        "# Page\n\n## Part\n\n[config](../settings/run.yaml), [home](../README.md)\n"
    )
    (tmp_path / "settings/run.yaml").write_text("a: 1\n")
    done = build(tmp_path, tmp_path / "site")
    assert (done.returncode != 0) == bool(problem), done.stderr
    assert problem in done.stderr
    if not problem:
        home = (tmp_path / "site/index.html").read_text(encoding="utf-8")
        assert 'href="repository/settings/run.yaml.html"' in home
        assert 'href="../repository/settings/run.yaml.html"' not in home
