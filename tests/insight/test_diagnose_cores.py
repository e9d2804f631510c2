"""Tests of the diagnosis of busy cores, compiling steps, and runs that are too short, from
records.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import CALM, T0, compiled, diagnosis_of, rank_records, two, write_run

from segtrain.insight.diagnose.evidence import HostLoad
from segtrain.insight.diagnose.live import closing_line
from segtrain.insight.diagnose.words import headline, line, page

WHOLE = sum(CALM.values())  # seconds of a window of ten steps
COMPILE: dict[str, Any] = {"config": {"train": {"compile": True}}}


def host(busy: float, cores: int = 2) -> HostLoad:
    return HostLoad("algo-1", cores, busy=busy, iowait=0.0, memory=0.5, swap_bytes_s=0.0)


def test_the_cure_to_try_is_one_that_the_run_can_take(tmp_path):
    """Others have the cores, which costs most; log lines take a quarter of the time, and have a
    setting.
    """
    found = diagnosis_of(
        rank_records({"log": 0.3}, cpu_wait=0.6, cores=2, cpu=0.2), hosts=(host(2.0),)
    )
    assert [verdict.cause for verdict in found.verdicts] == ["other-programs", "logging"]
    assert found.proposed is found.verdicts[1]
    (tmp_path / "config.yaml").write_text("log: {every: 10}\n")
    assert f"try   segtrain train {tmp_path}/config.yaml log.every=" in page(tmp_path, found)
    alone = diagnosis_of(rank_records(cpu_wait=0.6, cores=2, cpu=0.2), hosts=(host(2.0),))
    assert alone.proposed is alone.verdicts[0]
    assert "\ntry " not in page(tmp_path, alone)
    assert diagnosis_of(rank_records()).proposed is None


def test_a_pause_that_other_programs_stretch_is_not_laid_to_the_run():
    """Log lines that take 7 % of the time are too long for a run that has its cores, not where
    others have them.
    """
    stretched = diagnosis_of(
        rank_records({"log": 0.08}, cpu_wait=0.6, cores=2, cpu=0.2), hosts=(host(2.0),)
    )
    assert [verdict.cause for verdict in stretched.verdicts] == ["other-programs"]
    assert (
        diagnosis_of(rank_records({"log": 0.08}, cores=2, cpu=0.2), hosts=(host(0.5),)).bound
        == "logging"
    )


def test_a_batch_is_not_small_because_the_update_has_no_core():
    """Half of the time is the update; the loop lacked a core for nearly as long, or for hardly any
    of it.
    """
    for cpu_wait, expected in ((0.8, ["other-programs"]), (0.2, ["small-batch", "other-programs"])):
        records = rank_records({"update": 0.9}, images=1, cpu_wait=cpu_wait, cores=2, cpu=0.2)
        assert [
            verdict.cause for verdict in diagnosis_of(records, hosts=(host(2.0),)).verdicts
        ] == expected, cpu_wait


def test_ranks_that_wait_for_each_other_because_of_other_programs():
    """Rank 0 had no core in the first half of a window, rank 1 in the second, and each waited for
    the other.
    """
    ranks = [
        rank_records(
            {"forward": 0.9, "gradient_sync": 0.5},
            rank=rank,
            world=2,
            cpu_wait=0.5,
            cores=2,
            cpu=0.3,
        )
        for rank in (0, 1)
    ]
    first = diagnosis_of(*ranks, hosts=(host(2.0),)).verdicts[0]
    assert first.cause == "other-programs"
    assert first.gain == pytest.approx((WHOLE + 1.0) / (WHOLE - CALM["wait"]), rel=0.05)


def test_threads_that_wait_for_each_others_cores_are_not_healthy():
    """Two ranks and two workers on two cores that nobody else wants: half of the loop's time goes
    by without a core.
    """
    ranks = two({}, {}, cores=2, cpu_wait=0.5, cpu=0.7, stages={"decode": 0.006})
    found = diagnosis_of(*ranks, hosts=(host(2.0),), config={"log": {"every": 10}})
    assert found.bound == "too-few-cores"
    assert found.verdicts[0].gain > 1
    assert "nothing holds it up" not in line(found)
    on_gpu = diagnosis_of(
        rank_records(cpu_wait=0.5, device="cuda:0"), hosts=(replace(host(2.0), gpu=0.95),)
    )
    assert on_gpu.bound == "healthy"  # what its loop waits for is behind the device's work


@pytest.mark.parametrize(
    ("cores", "work", "words"),
    [
        (
            1,
            {"cpu": 0.45, "cpu_wait": 0.5},
            "80 images/s, as fast as this core allows; cheaper samples would make it up to 2.1x faster (segtrain",
        ),
        (
            1,
            {"cpu": 0.9, "stages": {"decode": 0.0}},
            "80 images/s, as fast as this core allows (segtrain",
        ),
        (2, {"cpu": 1.4, "workers": 2}, "80 images/s, as fast as these 2 cores allow (segtrain"),
        (
            2,
            {"cpu": 0.9},
            "80 images/s; its threads wait for a core 15% of the time (segtrain",
        ),  # not all cores are busy
    ],
)
def test_a_run_that_keeps_its_cores_busy_ends_with_its_speed(tmp_path, cores, work, words):
    """More cores are no cure that one can type: the last line of a healthy run must not read like a
    fault.
    """
    write_run(tmp_path, rank_records(cores=cores, **{"workers": 1, "cpu_wait": 0.15, **work}))
    line = str(closing_line(tmp_path))
    assert line.startswith(f"speed     {words}")
    assert line.endswith(f" diagnose {tmp_path})")


def test_compiling_is_held_against_the_steps_that_it_was_for():
    """120 s of compiling, then 100 ms a step: 11 steps never pay for it, 20,000 do."""
    start = {"event": "run_start", "total_steps": 11}
    end = {"event": "run_end", "status": "done"}
    short = diagnosis_of(compiled(120.0), events=(start, end), **COMPILE)
    (verdict,) = short.verdicts
    assert short.bound == "compiling"
    assert verdict.share == pytest.approx(120 / (120 + 1.21), rel=0.02)
    assert verdict.fix.settings == {"train.compile": False}
    assert "train longer" in verdict.fix.choices[1].advice
    assert verdict.gain == 1.0
    # The same first minutes of a run that goes on for long are no cause at all.
    assert (
        diagnosis_of(compiled(120.0), events=({**start, "total_steps": 20_000},), **COMPILE).bound
        == "healthy"
    )
    # It has paid back the better part: what is left is a question of how long.
    half = diagnosis_of(
        compiled(1.0, windows=6), events=({**start, "total_steps": 51}, end), **COMPILE
    )
    assert half.bound == "compiling"
    assert half.verdicts[0].fix.settings == {}
    assert half.verdicts[0].fix.choices[1].settings == {"train.compile": False}
    # Without train.compile a long first step is the start, and nobody's fault.
    assert diagnosis_of(compiled(120.0), events=(start, end)).bound == "healthy"


def test_what_compiles_later_counts_too():
    """Another size of crops: a window whose slowest step took 30 s."""
    usual = compiled(30.0, windows=6)
    again = {
        **usual.windows[3],
        "phases": {**CALM, "forward": 30.4},
        "slowest_ms": 30_000.0,
        "seconds": 31.0,
    }
    windows = (*usual.windows[:3], again, *usual.windows[4:])
    verdict = next(
        v
        for v in diagnosis_of(replace(usual, windows=windows), **COMPILE).verdicts
        if v.cause == "compiling"
    )
    assert "torch.compile took 60 s" in verdict.evidence


def test_a_run_of_a_few_steps_is_not_judged(tmp_path):
    """Ten steps, of which four are left after the start; a log line takes a third of their time."""
    records = rank_records({"log": 0.5}, windows=2)
    few = replace(
        records,
        windows=(
            records.windows[0],
            {**records.windows[1], "last": records.windows[1]["first"] + 3},
        ),
    )
    found = diagnosis_of(few)
    assert (found.bound, found.verdicts) == ("unknown", ())
    assert headline(found).startswith("too short to judge: only 4 steps in 1.5 s")
    told = page(
        Path("run"), found
    ).splitlines()  # as docs/diagnose.md says: that it is too short, what a step took, no cause
    assert len(told) == 2
    assert told[1].startswith("  a step takes ")
    assert diagnosis_of(records).bound == "logging"
    write_run(tmp_path, few)
    assert closing_line(tmp_path) is None
    start = diagnosis_of(rank_records({"log": 0.5}, windows=1))
    assert (start.bound, start.verdicts, start.facts["steady"]) == ("unknown", (), False)


def test_a_thread_that_is_blocked_is_told_from_one_that_works_or_has_no_core():
    """A second of each window passes between the phases: in computing, without a core, or
    blocked.
    """
    for cpu, cpu_wait, cause in (
        (0.9, 0.05, "main-thread"),
        (0.45, 0.0, "sync-point"),  # a file that is synced: half of it is copying its bytes
        (0.3, 0.65, "main-thread"),  # as much work, and other programs
        (0.02, 0.1, "sync-point"),
    ):
        found = diagnosis_of(
            rank_records({"other": 1.0}, other_cpu=cpu, other_cpu_wait=cpu_wait, cpu_wait=cpu_wait)
        )
        assert found.proposed is not None
        assert found.proposed.cause == cause, (cpu, cpu_wait)
    # As long as all that only because it has no core there, as in all the other phases.
    crowded = diagnosis_of(
        rank_records({"other": 0.3}, other_cpu=0.01, other_cpu_wait=0.28, cpu_wait=0.9, cores=2),
        hosts=(host(2.0),),
    )
    assert [verdict.cause for verdict in crowded.verdicts] == ["other-programs"]


def test_the_rule_for_a_start_looks_at_the_first_window_of_each_process():
    """A run that was resumed has compiled twice."""
    once = compiled(50.0, windows=3)
    later = {**once.begins[0], "ts": T0 + 100}
    again = [
        {**w, "ts": w["ts"] + 100, "first": w["first"] + 30, "last": w["last"] + 30}
        for w in once.windows
    ]
    both = replace(once, begins=(once.begins[0], later), windows=(*once.windows, *again))
    assert "torch.compile took 100 s" in diagnosis_of(both, **COMPILE).verdicts[0].evidence
