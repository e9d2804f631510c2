"""Each cause is found first in records that show it, none in healthy ones, and predictions follow
from the records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted import PLANTED
from records import T0, diagnosis_of, rank_records, starved, write_run

from segtrain.config import make_config
from segtrain.insight.diagnose.causes import CAUSES
from segtrain.insight.diagnose.evidence import Evidence, HostLoad, gather
from segtrain.insight.diagnose.judge import diagnose, judge
from segtrain.insight.diagnose.live import Starving, closing_line
from segtrain.insight.diagnose.model import Stages, workers_needed
from segtrain.insight.diagnose.windows import bucket_reads
from segtrain.insight.diagnose.words import page
from segtrain.observe.clock import Clock
from segtrain.observe.profile_format import ProfileWriter, Value

ROOT = Path(__file__).parents[2]


HARD: list[dict[str, Any]] = [
    {},
    {"data": {"cache": "ram"}, "train": {"accumulate": 2}, "parallel": {"strategy": "single"}},
    {
        "data": {"worker_kind": "process"},
        "train": {"compile": True},
        "parallel": {"strategy": "fsdp"},
        "loss": {"stride": 2},
    },
    {
        "data": {"transforms": "operator:pos", "workers": 0},
        "train": {"compile": "reduce-overhead", "channels_last": False},
    },
    {"data": {"helpers": "ray-data"}, "train": {"cuda_graph": True}, "optim": {"warmup": "20st"}},
    {
        "data": {"prefetch": 1, "rotate": 10},
        "train": {"duration": "20st"},
        "eval": {"every": "10st"},
        "log": {"digest": True},
    },
]


@pytest.mark.parametrize("settings", HARD)
def test_every_fix_is_one_that_the_config_of_the_run_takes(settings, monkeypatch):
    """Of each planted cause, and of each part of a fix: what is printed is pasted into the run's
    config.
    """
    make_config(settings)
    plain = judge
    monkeypatch.setitem(
        diagnosis_of.__globals__,
        "judge",
        lambda evidence: plain(replace(evidence, config=settings)),
    )
    pasted = 0
    for cause in PLANTED:
        found = PLANTED[cause]()
        for verdict in found.verdicts:
            for choice in verdict.fix.choices:
                changed = {section: dict(part) for section, part in settings.items()}
                for key, value in choice.settings.items():
                    section, _, name = key.partition(".")
                    changed.setdefault(section, {})[name] = value
                make_config(changed)
                pasted += bool(choice.settings)
    assert pasted > 5


def test_a_fix_that_a_rule_refuses_is_not_advised():
    """Threads that wait for each other need processes, which a cache in memory cannot have."""
    waits = starved(1.4, stages={"augment": 0.12}, sample_cpu=0.024, workers=4, cpu_wait=0.0)
    assert diagnosis_of(waits).verdicts[0].fix.settings == {"data.worker_kind": "process"}
    cached = diagnosis_of(waits, config={"data": {"cache": "ram"}}).verdicts[0]
    assert not any("data.worker_kind" in choice.settings for choice in cached.fix.choices)
    assert (cached.gain, cached.fix.words) == (1.0, ())
    # A config that is not valid by itself, say of a newer version, refuses nothing.
    assert diagnosis_of(waits, config={"data": {"cache": "ram", "new": 1}}).verdicts[0].fix.settings


def test_the_start_and_the_end_of_a_run_are_nobodys_fault():
    calm = rank_records()
    *before, last = calm.windows
    ending = {**last, "phases": {**last["phases"], "eval": 20.0, "checkpoint": 5.0}}
    assert judge(Evidence((replace(calm, windows=(*before, ending)),))).bound == "healthy"
    assert diagnosis_of(rank_records(windows=1)).facts["steady"] is False  # only the start is there


def test_cores_bound_what_workers_can_bring():
    """Two cores, one busy worker: the second brings a factor of two less what the loop itself
    computes.
    """
    verdict = diagnosis_of(starved(stages={"decode": 0.06}, workers=1, cores=2)).verdicts[0]
    assert (verdict.cause, verdict.fix.text) == ("too-few-workers", "data.workers=2")
    assert verdict.gain == pytest.approx(0.498 / ((8 * 0.062 + 0.09) / 2), rel=0.02)


def test_cores_that_others_use_bring_nothing():
    """The same run on a host where other programs leave half a core: 0.5 more than the 1.18 that it
    uses.
    """
    slow = starved(stages={"decode": 0.06}, workers=1, cores=2)
    verdict = diagnosis_of(slow, hosts=(HostLoad("algo-1", 2, 1.5, 0.0, 0.5, 0.0),)).verdicts[0]
    need = 8 * 0.062 + 0.09
    assert verdict.cause == "too-few-workers"
    assert verdict.gain == pytest.approx(0.498 / (need / (need / 0.498 + 0.5)), rel=0.02)


def test_the_model_of_a_step():
    base = Stages(
        device=0.1, stalls=0.01, samples=8, wall=0.05, cpu=0.01, workers=2, computed=0.0, cores=4
    )
    assert base.step == pytest.approx(0.2 + 0.01)  # 8 * 50 ms / 2
    assert replace(base, workers=8).step == pytest.approx(0.1 + 0.01)  # the device
    assert replace(base, workers=8, cores=0.5).step == pytest.approx(0.16 + 0.01)  # the cores
    assert replace(base, workers=0).step == pytest.approx(0.1 + 0.4 + 0.01)  # one after the other
    assert workers_needed(base, 64) == 4
    assert workers_needed(base, 3) == 3


def test_no_cure_asks_for_more_than_the_run_has():
    """Of 40 steps, 4 per epoch: ten log lines, three scores, and three checkpoints stay, or no
    change is proposed.
    """
    start = ({"event": "run_start", "total_steps": 40}, {"event": "step", "step": 8, "epoch": 2.0})
    config = {"log": {"every": 1}, "eval": {"every": "2st"}, "checkpoint": {"every": "1ep"}}
    found = {}
    for phase in ("log", "eval", "checkpoint"):
        (verdict,) = diagnosis_of(rank_records({phase: 2.0}), config=config, events=start).verdicts
        found.update(verdict.fix.settings)
        times = {"log": 4, "eval": 13 / 2, "checkpoint": 3.3}[phase]
        share = verdict.share
        assert verdict.gain == pytest.approx(1 / (1 - share + share / times)), phase
    assert found == {"log.every": 4, "eval.every": "13st", "checkpoint.every": "3.3ep"}
    for phase, every in (("log", 5), ("eval", "4ep"), ("checkpoint", "20st")):
        verdict = diagnosis_of(
            rank_records({phase: 2.0}), config={phase: {"every": every}}, events=start
        ).verdicts[0]
        assert (verdict.fix.settings, verdict.gain) == ({}, 1.0), phase
        assert "so short" in verdict.fix.text
    assert (
        page(
            Path("run"),
            diagnosis_of(rank_records({"log": 2.0}), config={"log": {"every": 5}}, events=start),
        ).count("try")
        == 0
    )
    # a tenth of the time, and nothing could be done about it
    for phase, every in (("log", 5), ("checkpoint", "20st")):
        assert (
            diagnosis_of(
                rank_records({phase: 0.1}), config={phase: {"every": every}}, events=start
            ).bound
            == "healthy"
        ), phase


def test_what_is_so_already_is_no_cure():
    slow = starved(stages={"augment": 0.12}, cores=2)
    first = diagnosis_of(slow, config={"data": {"rotate": 0.0, "color_jitter_prob": 1.0}}).verdicts[
        0
    ]
    assert first.fix.words == ("data.color_jitter_prob=0.5",)
    none = diagnosis_of(slow, config={"data": {"rotate": 0.0, "color_jitter_prob": 0.5}}).verdicts[
        0
    ]
    assert (none.fix.settings, none.gain) == ({}, 1.0)
    assert "already has" in none.fix.text


def test_waits_for_a_core_are_told_from_waits_for_a_lock():
    """Decoding of 120 ms with 20 ms of CPU, by two workers on two cores: a lock, or a lack of
    cores?
    """
    slow: dict[str, Any] = {
        "stages": {"decode": 0.12},
        "sample_cpu": 0.02,
        "cores": 2,
        "workers": 2,
    }
    locked = diagnosis_of(starved(**slow, cpu_wait=0.0)).verdicts[0]
    crowded = diagnosis_of(starved(**slow, cpu_wait=0.0, sample_cpu_wait=0.1)).verdicts[0]
    assert "it uses no core" in locked.evidence
    assert "it uses no core" not in crowded.evidence
    # The loop's own 0.5 s of lateness in a window of 4.98 s go with the decoding: 98 ms a step
    # become 48.
    gains = [
        diagnosis_of(starved(**slow, cpu_wait=cpu_wait, sample_cpu_wait=0.1)).verdicts[0].gain
        for cpu_wait in (0.0, 0.5)
    ]
    assert gains[1] / gains[0] == pytest.approx(0.098 / 0.048, rel=0.05)


def test_a_copy_of_a_jobs_output_is_read(tmp_path):
    """Checkpoints in one folder, the profiler's files in another."""
    write_run(tmp_path / "checkpoints", starved())
    writer = ProfileWriter(tmp_path / "profiler-output", "algo-1")
    writer.write(
        T0 + 3,
        [
            Value("memory", "SwapInBytesPerSecond", "Swap", 3e7),
            Value("memory", "MemoryUsedPercent", "", 99.0),
        ],
    )
    writer.write(T0 + 800, [Value("memory", "SwapInBytesPerSecond", "Swap", 3e9)])  # long after
    writer.close()
    evidence = gather(tmp_path)
    assert (evidence.hosts[0].swap_bytes_s, evidence.hosts[0].memory) == (3e7, 0.99)
    assert diagnose(tmp_path).bound == "memory"


def test_the_verb_needs_no_torch(tmp_path):
    write_run(tmp_path, PLANTED_RECORDS)
    code = f"import sys; from segtrain.cli import main; code = main(['diagnose', {str(tmp_path)!r}, '--json']); assert 'torch' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bound"] == "logging"
    assert found["verdicts"][0]["cure"] == "log.every=500"
    assert found["facts"]["phases"]["log"] == pytest.approx(0.5, abs=0.01)


PLANTED_RECORDS = rank_records({"log": 0.99})


def test_every_long_lap_is_looked_at(monkeypatch):
    """Laps of 60 ms: what was computed in one of them does not stand for two. The CPU time of the
    thread is given.
    """
    computed = 0.0
    monkeypatch.setattr("segtrain.observe.clock.time.thread_time", lambda: computed)
    at = 0.0
    clock = Clock(lambda: at)
    for work in (0.01, 0.03, 0.05, 0.0, 0.02):
        computed, at = computed + work, at + 0.06
        clock.mark()
    assert clock.rest_cpu == pytest.approx(0.11)


def test_a_run_that_starves_is_told_once_for_each_cause(tmp_path):
    said: list[tuple[str, str]] = []
    starving = Starving({}, lambda *told: said.append(told), tmp_path)
    fed, slow = rank_records(windows=12), starved(stages={"decode": 0.12}, cores=2, windows=12)
    few = starved(stages={"decode": 0.06}, workers=1, windows=12)
    for records, lines in (
        (fed, 0),
        (slow, 0),
        (slow, 1),
        (slow, 1),
        (fed, 1),
        (fed, 1),
        (few, 1),
        (slow, 1),
        (few, 1),
        (few, 2),
        (few, 2),
    ):
        starving.check(records)
        assert len(said) == lines
    assert [cause for cause, _ in said] == ["decode", "too-few-workers"]
    assert "decode" in said[0][1]
    assert "data.workers=" in said[1][1]
    short = Starving({}, lambda *told: said.append(told), tmp_path)
    for _ in range(5):
        short.check(starved(windows=4))  # a few seconds tell nothing yet
    assert len(said) == 2


def test_the_closing_line_never_fails_a_run(tmp_path):
    assert closing_line(tmp_path) is None
    write_run(tmp_path / "short", rank_records(windows=1))
    assert closing_line(tmp_path / "short") is None
    write_run(tmp_path / "calm", rank_records())
    assert closing_line(tmp_path / "calm") == "speed     bound by the device: nothing holds it up"


def test_every_cause_has_words_and_a_chart_of_its_evidence():
    assert all(cause.words and cause.charts for cause in CAUSES.values())
    table = (ROOT / "docs/diagnose.md").read_text()
    assert not [name for name in CAUSES if f"`{name}`" not in table]


def test_an_answer_with_a_wrong_checksum_counts_as_failed():
    bucket = {"requests": 10, "retries": {"checksum": 3, "cut": 2}, "bytes": 8e6, "seconds": 1.0}
    found = bucket_reads([{"seconds": 1.0, "bucket": bucket}])
    assert found is not None
    assert (found.failed, found.answered) == (5, 5)
