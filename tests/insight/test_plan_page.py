"""The page of a plan: its curves, bars, and tables hold the plan's figures, and it loads
nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import TERMS, of_one_rank

from segtrain.cli import main
from segtrain.insight.plan.offers import plan
from segtrain.insight.plan.page import render


def charts(html: str) -> dict[str, Any]:
    """What report.js draws."""
    return dict(json.loads(html.partition('id="chart-data">')[2].partition("</script>")[0]))


def test_parts_of_a_step_add_up_to_the_step() -> None:
    for terms in (
        TERMS,
        replace(TERMS, wall=3.0, cpu=3.0),
        replace(TERMS, machine="ml.g5.12xlarge", device=0.02),
    ):
        for offer in plan(terms, (1, 8)).offers:
            assert sum(offer.parts.values()) == pytest.approx(offer.step[1])
            assert min(offer.parts.values()) >= 0


def test_the_page_holds_the_figures_of_the_plan() -> None:
    found = plan(TERMS, (1, 2, 4))
    best = found.best(deadline_s=7200)
    assert best is not None
    html = render(found, "the <words>", "runs/<a>", 7200.0)
    time, money = charts(html)["hours"], charts(html)["dollars"]
    (line,) = (one for one in time["series"] if one["label"] == best.machine.name)
    at = line["x"].index(best.hosts)
    assert [3600 * line[key][at] for key in ("low", "y", "high")] == pytest.approx(best.seconds)
    assert line["knee"] == found.knee(best.machine.name)
    assert (time["limit"]["y"], money["limit"]) == (2.0, None)
    for chart in (time, money):
        low, high = chart["range"]
        assert low < min(min(one["low"]) for one in chart["series"])
        assert high > max(max(one["high"]) for one in chart["series"])
    widths = [
        sum(float(width) for width in re.findall(r"width:([\d.]+)%", row))
        for row in re.findall("<td class=track>(.*?)</td>", html)
    ]
    assert widths == sorted(widths)
    assert widths[-1] == pytest.approx(100, abs=0.3)
    assert f"{best.hosts} x {best.machine.name}" in html
    assert f", {best.seconds[1] / 3600:.2f} h" in html
    assert "Plan of runs/&lt;a&gt;" in html
    assert "the &lt;words&gt;" in html
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", html)


def test_a_plan_without_offers_has_a_page_with_its_words() -> None:
    empty = replace(plan(TERMS, (1,)), offers=())
    html = render(empty, "nothing fits", "x")
    assert "nothing fits" in html
    assert charts(html) == {}


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = of_one_rank(tmp_path / "run"), tmp_path / "plan.html"
    assert main(["plan", "--like", str(run), "--hosts", "1,2", "--page", str(file)]) == 0
    assert str(file) in capsys.readouterr().err
    assert charts(file.read_text(encoding="utf-8")).keys() == {"hours", "dollars"}
