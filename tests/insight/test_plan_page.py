"""The page of a plan: its curves, bars, and tables hold the plan's figures, and it loads
nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from records import TERMS

from segtrain.insight.plan.offers import plan
from segtrain.insight.plan.page import render


def charts(html: str) -> dict[str, Any]:
    """What report.js draws."""
    return dict(json.loads(html.partition('id="chart-data">')[2].partition("</script>")[0]))


def test_parts_of_a_step_add_up_to_the_step():
    for terms in (
        TERMS,
        replace(TERMS, wall=3.0, cpu=3.0),
        replace(TERMS, machine="ml.g5.12xlarge", device=0.02),
    ):
        for offer in plan(terms, (1, 8)).offers:
            assert sum(offer.parts.values()) == pytest.approx(offer.step[1])
            assert min(offer.parts.values()) >= 0


def test_a_plan_without_offers_has_a_page_with_its_words():
    empty = replace(plan(TERMS, (1,)), offers=())
    html = render(empty, "nothing fits", "x")
    assert "nothing fits" in html
    assert charts(html) == {}
