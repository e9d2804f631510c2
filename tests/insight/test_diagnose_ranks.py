"""Tests that the diagnosis finds what ranks wait for together in their windows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from records import rank_records

from segtrain.insight.diagnose.evidence import Evidence, HostLoad
from segtrain.insight.diagnose.judge import judge
from segtrain.insight.diagnose.live import Starving
from segtrain.insight.diagnose.model import stages_of
from segtrain.insight.diagnose.stats import run_stats
from segtrain.insight.diagnose.verdict import Diagnosis
from segtrain.insight.diagnose.windows import straggler_wait
from segtrain.observe.spans import Records, file_of, read_recent

OWN, IMAGES = 0.1, 4  # seconds of a step beside waiting; images of a rank's step
# of a sample: 4 of them take 1.088 s
STAGES = {"read": 0.0, "decode": 0.02, "augment": 0.25, "assemble": 0.002}
T0 = 1_795_000_000.0
Step = tuple[float, ...]  # what each rank waits for its samples, in one step


def windows_of(
    steps: list[Step], rank: int, each: int, cpu_wait: float = 0.0, cpu: float = 0.0
) -> list[dict[str, Any]]:
    """Of ranks in lockstep: who has its samples waits in ``sync`` for those that have not.

    ``late`` of each step, within OWN.
    """
    found = []
    for first in range(0, len(steps), each):
        block = steps[first : first + each]
        wait = sum(waits[rank] for waits in block)
        sync = sum(max(waits) - waits[rank] for waits in block)
        samples = len(block) * IMAGES
        found.append(
            {
                "ts": T0 + first,
                "seconds": wait + sync + OWN * len(block),
                "first": first + 1,
                "last": first + len(block),
                "rank": rank,
                "images": samples,
                "phases": {"wait": wait, "sync": sync, "forward": OWN * len(block)},
                "slowest_ms": 1.0,
                "cpu_s": cpu * len(block),
                "threads": 1,
                "other_cpu_s": 0.0,
                "cpu_wait_s": cpu_wait * len(block),
                "other_cpu_wait_s": 0.0,
                "workers": {
                    "count": 1,
                    "kind": "process",
                    "samples": samples,
                    "bytes": samples * 1000,
                    "cpu_wait_s": 0.0,
                    "seconds": {stage: samples * s for stage, s in STAGES.items()},
                    "cpu_s": samples * sum(STAGES.values()),
                    "process_cpu_s": samples * sum(STAGES.values()),
                },
            }
        )
    return found


def run_of(steps: list[Step], each: int = 1, **more: float) -> tuple[Records, ...]:
    """The first window of each rank is its start, which counts for nothing."""
    world = len(steps[0])
    ranks = []
    for rank in range(world):
        begin = {**rank_records(rank=rank, world=world, cores=world).begins[0], "ts": T0}
        ranks.append(Records(rank, (begin,), tuple(windows_of(steps, rank, each, **more))))
    return tuple(ranks)


def told(ranks: tuple[Records, ...], **more: Any) -> Diagnosis:
    return judge(Evidence(ranks, **more))


STARVING: dict[str, Callable[[int], Step]] = {
    "in turn": lambda k: (1.0, 0.0) if k % 2 else (0.0, 1.0),
    "together": lambda k: (1.0, 1.0),
    "one for a while, then the other": lambda k: (1.0, 0.0) if k < 30 else (0.0, 1.0),
    "one a little less": lambda k: (1.0, 0.6) if k % 2 else (0.7, 1.0),
    "three in turn": lambda k: tuple(float(k % 3 == rank) for rank in range(3)),
}


@pytest.mark.parametrize("each", [1, 2, 3, 7])
@pytest.mark.parametrize("who", STARVING)
def test_the_gain_does_not_know_which_rank_starves_when(who, each):
    """Of a step of 1.1 s, 1.0 s is a wait for samples that augmentation slows down; without it the
    device limits.
    """
    found = told(run_of([STARVING[who](k) for k in range(60)], each))
    first = found.verdicts[0]
    assert first.cause == "augmentation"
    assert first.gain == pytest.approx(1.1 / 0.1, rel=0.03)
    assert first.share == pytest.approx(
        1.0 / 1.1 * STAGES["augment"] / sum(STAGES.values()), rel=0.03
    )


def test_sums_of_windows_give_the_waits_of_single_steps():
    """Against the steps themselves: what all ranks waited for is the greatest wait of each step,
    added up.
    """
    rng = random.Random(3)
    for world in (1, 2, 4):
        steps = [tuple(max(0.0, rng.gauss(0.2, 0.3)) for _ in range(world)) for _ in range(40)]
        truth = sum(max(waits) for waits in steps) / len(steps)
        for each in (1, 4, 40):
            windows = [windows_of(steps, rank, each) for rank in range(world)]
            found = straggler_wait(windows)
            assert found[0] == pytest.approx(truth), (world, each)


def test_what_ranks_wait_for_something_else_is_no_wait_for_samples():
    """Rank 0 computes 1 s longer in each step; all have their samples."""
    slow = {"last": 1, "first": 1, "phases": {"wait": 0.01, "forward": 1.1}}
    others = {"last": 1, "first": 1, "phases": {"wait": 0.02, "sync": 0.99, "forward": 0.1}}
    assert straggler_wait([[slow], [others]]) == (pytest.approx(0.02), 0.0)


def test_a_slow_rank_beside_other_programs_that_have_the_cores():
    """Rank 1 is blocked for 1 s of each window of 5.6 s, and has no core for 3.5 s; rank 0 for 4
    s.
    """
    quick = rank_records({"forward": 4.0, "sync": 1.0}, cpu_wait=4.0, world=2, cores=2)
    slow = rank_records({"forward": 4.0, "other": 1.0}, rank=1, cpu_wait=3.5, world=2, cores=2)
    (verdict,) = (
        verdict for verdict in told((quick, slow)).verdicts if verdict.cause == "slow-rank"
    )
    assert "rank 1" in verdict.evidence
    assert (
        "(time without a core is not counted); the difference is mostly in 'other'"
        in verdict.evidence
    )
    assert verdict.fix.text.startswith("check ")
    alike = rank_records(
        {"forward": 5.0}, rank=1, cpu_wait=4.9, world=2, cores=2
    )  # it is longer by time without a core
    assert [v.cause for v in told((quick, alike)).verdicts if v.cause == "slow-rank"] == []


def test_windows_that_end_elsewhere_are_cut_where_all_end():
    steps = [STARVING["in turn"](k) for k in range(24)]
    windows = [windows_of(steps, 0, 3), windows_of(steps, 1, 4)]
    assert straggler_wait(windows)[0] == pytest.approx(1.0)
    # no end in common
    assert straggler_wait([windows[0][:1], windows[1][:1]])[0] == pytest.approx(1.0, rel=0.35)


def test_no_core_for_one_rank_is_none_for_all():
    """Half of a step's own 0.1 s is a wait for a core that the workers have: without their work the
    step is 50 ms long.
    """
    ranks = run_of([STARVING["in turn"](k) for k in range(60)], 2, cpu_wait=0.05)
    assert told(ranks).verdicts[0].gain == pytest.approx(
        1.1 / (4 * 0.022), rel=0.03
    )  # then what is left of a sample is the limit


def test_lateness_that_cannot_be_is_not_believed():
    """The system counts more seconds in a window than the loop was awake in it."""
    ranks = run_of([STARVING["together"](k) for k in range(60)], 1)
    (odd,) = [w for w in ranks[0].windows if w["first"] == 30]
    odd["cpu_wait_s"] = 9.0
    assert told(ranks).verdicts[0].gain == pytest.approx(1.1 / 0.1, rel=0.05)


def test_the_line_of_a_running_run_knows_all_ranks_of_its_host(tmp_path):
    """Rank 0 always has its samples, and waits for rank 1."""
    mine, other = run_of([(0.0, 1.0)] * 12)
    file = file_of(tmp_path, 1)
    file.parent.mkdir()
    file.write_text(
        "".join(json.dumps(line) + "\n" for line in (*other.begins, *other.windows))
        + '{"rank": 1, "fi'
    )
    said: list[tuple[str, str]] = []
    for run in (tmp_path / "no spans", tmp_path):
        starving = Starving({}, lambda *told: said.append(told), run)
        for _ in range(3):
            starving.check(mine)
        assert len(said) == (run == tmp_path)
    cause, text = said[0]
    assert cause == "augmentation"
    assert "about 11x faster" in text


def test_the_end_of_a_long_file_of_spans_is_read(tmp_path):
    _, other = run_of([(0.0, 1.0)] * 400)
    file = file_of(tmp_path, 1)
    file.parent.mkdir()
    file.write_text("".join(json.dumps(line) + "\n" for line in (*other.begins, *other.windows)))
    found = read_recent(tmp_path, 1)
    assert found is not None
    assert found.begins == tuple(
        {key: value for key, value in begin.items() if value is not None} for begin in other.begins
    )
    assert 16 <= len(found.windows) < 400
    assert found.windows == other.windows[-len(found.windows) :]
    assert read_recent(tmp_path, 2) is None


def test_cores_of_other_programs_are_shared_by_the_ranks():
    """Two ranks use 2.1 of 3 cores, other programs 0.7: of the 0.2 that nobody uses each can have
    0.1 more.
    """
    host = HostLoad("algo-1", 3, busy=2.8, iowait=0.0, memory=0.5, swap_bytes_s=0.0)
    steps = [STARVING["together"](k) for k in range(60)]
    ranks = tuple(
        Records(of.rank, ({**of.begins[0], "cores": 3},), of.windows)
        for of in run_of(steps, cpu=0.05)
    )
    used = (IMAGES * sum(STAGES.values()) + 0.05) / 1.1
    found = told(ranks, hosts=(host,), config={"data": {"workers": 1}})
    now = stages_of(
        run_stats(Evidence(ranks, hosts=(host,))),
        run_stats(Evidence(ranks, hosts=(host,))).ranks[0],
    )
    assert now.cores == pytest.approx(used + 0.1)
    assert found.facts["cores_of_others"] == pytest.approx(2.8 - 2 * used, abs=0.01)
