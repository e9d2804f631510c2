"""Ways to feed a starved device: speeds compared with a search over all splits, prices with the
table, and their order.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import refused
from records import heavy, starved

from segtrain.insight.diagnose.evidence import Evidence
from segtrain.insight.diagnose.judge import judge
from segtrain.insight.diagnose.model import Stages
from segtrain.insight.diagnose.remedies import with_helpers
from segtrain.machines import machines
from segtrain.machines.receiving import receive_seconds
from segtrain.observe.spans import Records

# A GPU that needs 0.6 s for 64 images whose samples take 100 ms of CPU: 4 cores need 1.6 s for
# them.
NOW = Stages(
    device=0.6, stalls=0.01, samples=64, wall=0.1, cpu=0.1, workers=4, computed=0.04, cores=4
)
TYPES = machines()


def evidence(records: Records, crop: tuple[int, int] = (224, 224)) -> Evidence:
    return Evidence(
        (records,), config={"data": {"crop": list(crop), "transforms": "blurs.py:train"}}
    )


@pytest.mark.parametrize("helpers", [0, 1, 4, 16, 64, 400])
@pytest.mark.parametrize("receive", [0.0003, 0.03, 0.09])
def test_the_step_with_helpers_is_that_of_the_best_split(helpers, receive):
    def step(made: float) -> float:
        """Seconds of a step in which helpers make ``made`` of the samples."""
        own = NOW.samples - made
        cores = (own * NOW.cpu + made * receive + NOW.computed) / NOW.cores
        theirs = made * NOW.cpu / helpers if helpers else float("inf") * (made > 0)
        return (
            max(NOW.device, own * NOW.wall / NOW.workers, cores, theirs if made else 0.0)
            + NOW.stalls
        )

    best = min(step(made / 100) for made in range(100 * int(NOW.samples) + 1))
    assert with_helpers(NOW, helpers, receive) == pytest.approx(best, rel=0.01)


def test_helpers_do_not_pay_for_cheap_samples():
    """Receiving a crop of 512x1024 costs 2.9 ms; making it 5 ms."""
    found = judge(evidence(heavy(augment=0.0, wait=2.0, images=640), crop=(512, 1024))).facts[
        "remedies"
    ]
    assert not any("data.helpers" in way["name"] for way in found["ways"])
    assert "2.9 ms" in found["note"]
    assert receive_seconds(512, 1024) == pytest.approx(2.9e-3, rel=0.02)
    assert receive_seconds(224, 224) == pytest.approx(0.3e-3, rel=0.05)


def test_what_receiving_has_cost_in_the_run_counts():
    records = heavy()
    for window in records.windows:
        window["workers"] |= {"helpers": {"a": 10}, "receive_s": 0.9}
    found = judge(evidence(records)).facts
    assert "90 ms" in found["remedies"]["note"]
    assert not any("data.helpers" in way["name"] for way in found["remedies"]["ways"])


def test_no_prices_without_a_type_and_none_for_a_healthy_run():
    assert "remedies" not in judge(evidence(heavy(machine=""))).facts
    assert judge(evidence(heavy(machine="")), "ml.g4dn.xlarge").facts["remedies"]["price"] == 0.7364
    assert "remedies" not in judge(evidence(heavy(wait=0.0))).facts
    with refused("unknown-machine-type", found="ml.g5.xlarg"):
        judge(evidence(heavy()), "ml.g5.xlarg")


def test_cheaper_samples_gain_at_most_and_more_workers_just_that():
    few = starved(stages={"decode": 0.06}, workers=1, cores=2)
    begins = tuple({**begin, "machine": "ml.g5.xlarge"} for begin in few.begins)
    facts = judge(evidence(replace(few, begins=begins))).facts, judge(evidence(heavy())).facts
    at_most = {way["name"]: way["most"] for fact in facts for way in fact["remedies"]["ways"]}
    assert at_most["cheaper data.transforms"]
    assert not at_most["data.workers=2"]
