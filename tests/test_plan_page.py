"""The page of a plan: its curves, bars, and tables hold the plan's figures, and it loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log10
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_plan import TERMS, of_one_rank

from segtrain.cli import main
from segtrain.plan import drawing
from segtrain.plan.drawing import Line
from segtrain.plan.market import Market
from segtrain.plan.offers import plan
from segtrain.plan.page import render


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_curves_are_drawn_to_scale_with_intervals_and_the_knee() -> None:
    line = Line("x", "a", [(1, 1.0, 2.0, 5.0), (2, 0.5, 1.0, 2.0)], knee=2)
    drawn = ElementTree.fromstring(drawing.curves([line], "h", 5.0, "deadline 5 h"))
    own = drawn.find("g")
    assert own is not None
    (low, high), (usual, _) = ([float(bar.attrib[f"y{k}"]) for k in (1, 2)] for bar in own.findall("line"))
    middle = float(own.findall("circle")[0].attrib["cy"])
    assert (low - middle) / (low - high) == pytest.approx(log10(2) / log10(5), abs=0.01)  # a logarithmic axis
    knees = [one for one in own.findall("circle") if one.attrib.get("class") == "knee"]
    assert [one.attrib["cx"] for one in knees] == [own.findall("circle")[-2].attrib["cx"]]
    (limit,) = [one for one in drawn.findall("line") if one.attrib["class"] == "limit"]
    assert float(limit.attrib["y1"]) == pytest.approx(high, abs=0.1)
    assert "deadline 5 h" in "".join(drawn.itertext())
    assert usual > high


def test_parts_of_a_step_add_up_to_the_step() -> None:
    for terms in (TERMS, replace(TERMS, wall=3.0, cpu=3.0), replace(TERMS, machine="ml.g5.12xlarge", device=0.02)):
        for offer in plan(terms, (1, 8)).offers:
            assert sum(offer.parts.values()) == pytest.approx(offer.step[1])
            assert min(offer.parts.values()) >= 0


def test_the_page_holds_the_figures_of_the_plan() -> None:
    found = plan(TERMS, (1, 2, 4))
    best = found.best(deadline_s=7200)
    assert best is not None
    html = render(found, "the <words>", "runs/<a>", 7200.0)
    time, money, steps = svgs(html)
    for chart in (time, money):
        assert 2 <= len(chart.findall("g")) <= len(drawing.COLORS)
    assert len([one for one in time.findall("line") if one.attrib["class"] == "limit"]) == 1
    assert not [one for one in money.findall("line") if one.attrib["class"] == "limit"]
    assert len(steps.findall("rect")) % 4 == 0
    assert f"{best.hosts} x {best.machine.name}" in html
    assert f"{best.seconds[1] / 3600:,.2f}" in html
    assert "Plan of runs/&lt;a&gt;" in html
    assert "the &lt;words&gt;" in html
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", html)


def test_the_page_has_the_dollars_on_spot() -> None:
    found, market = plan(TERMS, (1, 2)), Market(0.35, 0.05 / 3600, 20.0, True)
    best = found.best()
    assert best is not None
    html = render(found, "words", "run", market=market)
    assert html.count("dollars on spot") == 2  # a tile, and the head of a column
    assert html.count(f">{market.dollars(best)[1]:,.2f}<") >= 2
    assert "dollars on spot" not in render(found, "words", "run")


def test_a_plan_without_offers_has_a_page_with_its_words() -> None:
    empty = replace(plan(TERMS, (1,)), offers=())
    html = render(empty, "nothing fits", "x")
    assert "nothing fits" in html
    assert "<svg" not in html


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = of_one_rank(tmp_path / "run"), tmp_path / "plan.html"
    assert main(["plan", "--like", str(run), "--hosts", "1,2", "--page", str(file)]) == 0
    assert str(file) in capsys.readouterr().err
    assert len(svgs(file.read_text(encoding="utf-8"))) == 3
