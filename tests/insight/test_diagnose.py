"""Each cause is found first in records that show it, none in healthy ones, and predictions follow
from the records.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import CALM, T0, compiled, diagnosis_of, moments, rank_records, starved, two, write_run

from segtrain.config import make_config
from segtrain.insight.diagnose import Diagnosis, diagnose, judge
from segtrain.insight.diagnose.causes import CAUSES
from segtrain.insight.diagnose.evidence import Evidence, HostLoad, gather
from segtrain.insight.diagnose.live import Starving, closing_line
from segtrain.insight.diagnose.model import Stages, workers_needed
from segtrain.insight.diagnose.verdict import Verdict
from segtrain.insight.diagnose.words import line, page
from segtrain.observe.clock import Clock
from segtrain.observe.profile_format import ProfileWriter, Value
from segtrain.observe.spans import Records

ROOT = Path(__file__).parents[2]


# What reading costs a sample follows from its share of 5 s: 80 samples by 2 workers, 0.125 s each.
READING = {"read": 0.115}
HALF_FULL = HostLoad("algo-1", 8, busy=3.0, iowait=0.0, memory=0.5, swap_bytes_s=0.0)


PLANTED: dict[str, Callable[[], Diagnosis]] = {
    "storage-latency": lambda: diagnosis_of(starved(**moments(0, 0.0575))),
    "storage-bandwidth": lambda: diagnosis_of(starved(**moments(5.6e-7, 0.0001))),
    "decode": lambda: diagnosis_of(starved(stages={"decode": 0.12}, cores=2)),
    "augmentation": lambda: diagnosis_of(starved(stages={"augment": 0.12}, cores=2)),
    "too-few-workers": lambda: diagnosis_of(starved(stages={"decode": 0.06}, workers=1)),
    "too-many-threads": lambda: diagnosis_of(rank_records(threads=16, cores=2, cpu=1.9)),
    "main-thread": lambda: diagnosis_of(rank_records({"other": 1.0}, other_cpu=0.9)),
    "host-to-device": lambda: diagnosis_of(
        rank_records({"device": 0.4}, device="cuda:0"), hosts=(replace(HALF_FULL, gpu=0.9),)
    ),
    "shm": lambda: diagnosis_of(starved(stages={"assemble": 0.12}, kind="process", cores=2)),
    "sync-point": lambda: diagnosis_of(rank_records({"other": 1.0})),
    "logging": lambda: diagnosis_of(rank_records({"log": 1.0})),
    "evaluation": lambda: diagnosis_of(rank_records({"eval": 2.0})),
    "checkpoint": lambda: diagnosis_of(rank_records({"checkpoint": 1.0})),
    "slow-rank": lambda: diagnosis_of(*two({"forward": 1.4}, {"sync": 1.0}, cpu=1.9)),
    "slow-host": lambda: diagnosis_of(
        *two({"forward": 1.4}, {"sync": 1.0}, ("one", "other"), cpu=1.9)
    ),
    "slow-network": lambda: diagnosis_of(
        *two({"gradient_sync": 1.0}, {"gradient_sync": 1.1}, gradient=2_000_000)
    ),
    "small-batch": lambda: diagnosis_of(rank_records({"update": 0.9}, images=1)),
    "other-programs": lambda: diagnosis_of(
        rank_records(cpu_wait=0.5, cores=2), hosts=(HostLoad("algo-1", 2, 2.0, 0.0, 0.5, 0.0),)
    ),
    "too-few-cores": lambda: diagnosis_of(
        rank_records(cpu_wait=0.5, cores=1, stages={"decode": 0.005}, workers=1)
    ),
    "compiling": lambda: diagnosis_of(compiled(120.0), config={"train": {"compile": True}}),
    "memory": lambda: diagnosis_of(
        starved(), hosts=(replace(HALF_FULL, swap_bytes_s=2e7, memory=0.99),)
    ),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_each_cause_is_found_first(cause: str) -> None:
    found = PLANTED[cause]()
    assert found.bound == cause, page(Path("run"), found)
    first = found.verdicts[0]
    assert first.cause == cause
    assert 0 < first.share <= 1
    assert first.gain >= 1
    assert first.fix.text
    assert any(character.isdigit() for character in first.evidence)
    assert cause in line(found)


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
def test_every_fix_is_one_that_the_config_of_the_run_takes(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_fix_that_a_rule_refuses_is_not_advised() -> None:
    """Threads that wait for each other need processes, which a cache in memory cannot have."""
    waits = starved(1.4, stages={"augment": 0.12}, sample_cpu=0.024, workers=4, cpu_wait=0.0)
    assert diagnosis_of(waits).verdicts[0].fix.settings == {"data.worker_kind": "process"}
    cached = diagnosis_of(waits, config={"data": {"cache": "ram"}}).verdicts[0]
    assert not any("data.worker_kind" in choice.settings for choice in cached.fix.choices)
    assert (cached.gain, cached.fix.words) == (1.0, ())
    # A config that is not valid by itself, say of a newer version, refuses nothing.
    assert diagnosis_of(waits, config={"data": {"cache": "ram", "new": 1}}).verdicts[0].fix.settings


def test_an_idle_gpu_is_told_first_to_launch_less() -> None:
    def told(*ranks: Records, gpu: float = 0.34, **config: Any) -> list[Verdict]:
        return list(
            diagnosis_of(*ranks, hosts=(replace(HALF_FULL, gpu=gpu),), config=config).verdicts
        )

    one = rank_records({"device": 0.2}, device="cuda:0")
    both = told(one)
    assert [verdict.cause for verdict in both] == ["small-batch", "host-to-device"]
    choices = [dict(choice.settings) for choice in both[0].fix.choices]
    assert choices == [
        {"train.cuda_graph": True},
        {"train.compile": "reduce-overhead"},
        {"train.batch_size": 64},
    ]
    assert both[0].gain > 1.5
    assert [verdict.cause for verdict in told(one, gpu=0.65)] == ["host-to-device"]
    for config in ({"loss": {"terms": ["lovasz"]}}, {"train": {"accumulate": 4}}):
        assert "train.cuda_graph" not in told(one, **config)[0].fix.settings
    graphs = told(one, train={"cuda_graph": True})[0].fix.choices
    assert [choice.settings for choice in graphs] == [{"train.batch_size": 64}]
    ranks = two({}, {}, device="cuda:0")
    assert told(*ranks)[0].fix.settings == {"train.compile": "reduce-overhead"}
    # A GPU that waits for samples, or for its thread between the phases, needs no other steps.
    assert "small-batch" not in [verdict.cause for verdict in told(starved(device="cuda:0"))]
    held = told(rank_records({"other": 1.0}, device="cuda:0"), gpu=0.34)
    assert [verdict.cause for verdict in held] == ["sync-point"]


def test_each_threshold_has_two_sides() -> None:
    """A little below nothing is said, a little above it is."""
    rest = sum(CALM.values())
    for phase, share in (
        ("wait", 0.10),
        ("log", 0.05),
        ("checkpoint", 0.05),
        ("eval", 0.20),
        ("other", 0.10),
    ):
        for factor, expected in ((0.95, 0), (1.05, 1)):
            without = rest - CALM.get(phase, 0.0)
            seconds = without * factor * share / (1 - factor * share)
            found = diagnosis_of(
                rank_records(
                    {phase: seconds}, workers=1, stages={"decode": seconds / 80 + 0.005}, windows=80
                )
            )
            assert len(found.verdicts) >= expected, (phase, factor)
            assert bool(found.verdicts) == bool(expected), (phase, factor, found.verdicts)


def test_the_start_and_the_end_of_a_run_are_nobodys_fault() -> None:
    calm = rank_records()
    *before, last = calm.windows
    ending = {**last, "phases": {**last["phases"], "eval": 20.0, "checkpoint": 5.0}}
    assert judge(Evidence((replace(calm, windows=(*before, ending)),))).bound == "healthy"
    assert diagnosis_of(rank_records(windows=1)).facts["steady"] is False  # only the start is there


def test_reading_is_split_by_what_grows_with_size() -> None:
    for per_byte, per_read, cause in (
        (0.0, 0.0575, "storage-latency"),
        (5.6e-7, 0.0, "storage-bandwidth"),
    ):
        found = diagnosis_of(starved(**moments(per_byte, per_read)))
        assert (found.verdicts[0].cause, found.verdicts[0].confidence) == (cause, "high")
    # Without sums, or with reads of one size, the answer is a guess and says so.
    small, large = (
        diagnosis_of(starved(stages=READING, sample_cpu=0.006, size=size))
        for size in (20_000, 4_000_000)
    )
    assert (small.bound, large.bound) == ("storage-latency", "storage-bandwidth")
    assert {small.verdicts[0].confidence, large.verdicts[0].confidence} == {"low"}


def test_more_workers_are_asked_for_as_the_model_needs_them() -> None:
    latency = PLANTED["storage-latency"]().verdicts[0]
    # 8 samples of 121 ms in a step whose other phases take 98 ms: 10 workers; then the step is 5 s
    # -> 1 s a window.
    assert latency.fix.text == "data.workers=10"
    assert latency.gain == pytest.approx(4.98 / 0.99, rel=0.02)
    few = PLANTED["too-few-workers"]().verdicts[0]
    assert few.fix.text == "data.workers=6"  # 8 * 62 ms / 98 ms
    assert few.gain == pytest.approx(4.98 / 0.99, rel=0.02)


def test_what_helpers_make_is_not_asked_of_the_workers() -> None:
    slow = starved(stages={"decode": 0.06}, workers=1)
    for window in slow.windows:
        window["workers"]["helpers"] = {"a": 30, "b": 10, "c": 0}
    found = diagnosis_of(slow)
    assert found.facts["workers"]["by_helpers"] == "33% by helpers on 2 hosts"
    # 4 * 62 ms / 98 ms; without helpers 6, see above
    assert found.verdicts[0].fix.text == "data.workers=3"


def test_cores_bound_what_workers_can_bring() -> None:
    """Two cores, one busy worker: the second brings a factor of two less what the loop itself
    computes.
    """
    verdict = diagnosis_of(starved(stages={"decode": 0.06}, workers=1, cores=2)).verdicts[0]
    assert (verdict.cause, verdict.fix.text) == ("too-few-workers", "data.workers=2")
    assert verdict.gain == pytest.approx(0.498 / ((8 * 0.062 + 0.09) / 2), rel=0.02)


def test_cores_that_others_use_bring_nothing() -> None:
    """The same run on a host where other programs leave half a core: 0.5 more than the 1.18 that it
    uses.
    """
    slow = starved(stages={"decode": 0.06}, workers=1, cores=2)
    verdict = diagnosis_of(slow, hosts=(HostLoad("algo-1", 2, 1.5, 0.0, 0.5, 0.0),)).verdicts[0]
    need = 8 * 0.062 + 0.09
    assert verdict.cause == "too-few-workers"
    assert verdict.gain == pytest.approx(0.498 / (need / (need / 0.498 + 0.5)), rel=0.02)


def test_what_a_crowd_of_threads_costs_is_taken_from_its_measurement() -> None:
    """A window: 0.4 s forward, 0.5 s backward, 0.1 s else."""
    passes = {"threads": 2, "forward": 2.0, "backward": 5.0}
    verdict = diagnosis_of(rank_records(threads=16, cores=2, crowded=passes)).verdicts[0]
    assert (verdict.cause, verdict.fix.text) == ("too-many-threads", "parallel.threads=2")
    assert verdict.gain == pytest.approx(1.0 / (0.4 / 2 + 0.5 / 5 + 0.1))
    assert "a backward pass took 5x" in verdict.evidence
    unmeasured = diagnosis_of(rank_records(threads=16, cores=2)).verdicts[0]
    assert (unmeasured.gain, unmeasured.confidence) == (1.0, "low")
    assert (
        diagnosis_of(
            rank_records(threads=16, cores=2, crowded={**passes, "forward": 1.05, "backward": 0.9})
        ).bound
        == "healthy"
    )


def test_the_model_of_a_step() -> None:
    base = Stages(
        device=0.1, stalls=0.01, samples=8, wall=0.05, cpu=0.01, workers=2, computed=0.0, cores=4
    )
    assert base.step == pytest.approx(0.2 + 0.01)  # 8 * 50 ms / 2
    assert replace(base, workers=8).step == pytest.approx(0.1 + 0.01)  # the device
    assert replace(base, workers=8, cores=0.5).step == pytest.approx(0.16 + 0.01)  # the cores
    assert replace(base, workers=0).step == pytest.approx(0.1 + 0.4 + 0.01)  # one after the other
    assert workers_needed(base, 64) == 4
    assert workers_needed(base, 3) == 3


def test_cures_name_present_values() -> None:
    config = {
        "log": {"every": 5},
        "eval": {"every": "1ep"},
        "checkpoint": {"every": "20st", "background": False},
    }
    cures = [
        diagnosis_of(rank_records({phase: 1.0}), config=config).verdicts[0].fix.text
        for phase in ("log", "eval", "checkpoint")
    ]
    assert cures == [
        "log.every=250",
        "eval.every=50ep",
        "checkpoint.every=1000st checkpoint.background=true",
    ]


def test_an_interval_that_the_run_chose_is_named_in_steps() -> None:
    start = ({"event": "run_start", "total_steps": 40_000, "eval_every": 7, "save_every": 9},)
    config = {"eval": {"every": "auto"}, "checkpoint": {"every": "auto"}}
    found = {}
    for phase in ("eval", "checkpoint"):
        (verdict,) = diagnosis_of(rank_records({phase: 1.0}), config=config, events=start).verdicts
        found.update(verdict.fix.settings)
    assert found == {"eval.every": "350st", "checkpoint.every": "450st"}


def test_no_cure_asks_for_more_than_the_run_has() -> None:
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


def test_what_is_so_already_is_no_cure() -> None:
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


def test_the_late_phase_of_a_slow_rank_is_named() -> None:
    found = diagnosis_of(*two({"wait": 1.5}, {"sync": 1.5}, cores=2, stages={"decode": 0.03}))
    assert found.bound == "slow-rank"
    assert "rank 0" in found.verdicts[0].evidence
    assert "'wait'" in found.verdicts[0].evidence


def test_a_rank_without_a_core_is_told_from_one_that_works_more() -> None:
    """Ten steps in a window: rank 0 is 100 ms behind in each."""
    works, waits = (
        diagnosis_of(
            *two(
                {"forward": 1.4, "log": 0.0}, {"sync": 1.0, "log": 0.0}, cpu=1.9, cpu_wait=cpu_wait
            )
        ).verdicts[0]
        for cpu_wait in (0.1, 0.8)
    )
    assert (works.cause, waits.cause) == ("slow-rank", "slow-rank")
    assert "free CPU core" not in works.evidence
    assert "it waits 80 ms for a free CPU core" in waits.evidence
    assert waits.fix.text.startswith("free the cores")
    assert works.gain == pytest.approx(0.2 / 0.1, rel=0.02)
    assert waits.gain == pytest.approx(0.2 / 0.12, rel=0.02)


def test_half_the_bytes_save_half_of_what_is_not_hidden() -> None:
    """A window of 10 steps waits 1.0 s for gradients; they are on their way for 0.1 s a step, or
    for 0.15.
    """
    for shared, saved in ((None, 0.05), (0.1, 0.05), (0.15, 0.075)):
        ranks = [
            rank_records({"gradient_sync": 1.0}, rank=r, world=2, gradient=10**7, shared=shared)
            for r in (0, 1)
        ]
        verdict = next(v for v in diagnosis_of(*ranks).verdicts if v.cause == "slow-network")
        assert verdict.gain == pytest.approx(0.2 / (0.2 - saved), rel=0.02)
        assert ("behind the backward pass" in verdict.evidence) is (shared is not None)
        # Four micro-batches of 0.1 s and one wait of 0.1 s, instead of four steps of 0.2 s.
        assert "train.accumulate 4 times as large: 1.6x" in verdict.fix.texts
        assert "powersgd" not in verdict.fix.texts


def test_ways_to_send_less_depend_on_what_is_sent_already() -> None:
    def told(device: str, **settings: str) -> Verdict:
        ranks = [
            rank_records({"gradient_sync": 1.0}, rank=r, world=2, gradient=10**7, device=device)
            for r in (0, 1)
        ]
        config = {"parallel": {"strategy": "auto", **settings}}
        return next(
            v for v in diagnosis_of(*ranks, config=config).verdicts if v.cause == "slow-network"
        )

    on_gpu = told("cuda:0")
    assert [dict(fix.settings) for fix in on_gpu.fix.choices] == [
        {"parallel.compress": "fp16"},
        {},
        {"parallel.compress": "powersgd"},
    ]
    assert "at most 2x" in on_gpu.fix.texts
    halved = told("cuda:0", compress="fp16")
    assert [dict(fix.settings) for fix in halved.fix.choices] == [
        {},
        {"parallel.compress": "powersgd"},
    ]
    assert halved.gain == pytest.approx(1.6, rel=0.02)
    assert not any(fix.settings for fix in told("cuda:0", strategy="fsdp").fix.choices)
    assert [dict(fix.settings) for fix in told("cpu").fix.choices] == [
        {"parallel.compress": "fp16"},
        {},
    ]


def test_waits_for_a_core_are_told_from_waits_for_a_lock() -> None:
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


def test_a_copy_of_a_jobs_output_is_read(tmp_path: Path) -> None:
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


def test_the_verb_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path, PLANTED_RECORDS)
    code = f"import sys; from segtrain.cli import main; code = main(['diagnose', {str(tmp_path)!r}, '--json']); assert 'torch' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bound"] == "logging"
    assert found["verdicts"][0]["cure"] == "log.every=500"
    assert found["facts"]["phases"]["log"] == pytest.approx(0.5, abs=0.01)


PLANTED_RECORDS = rank_records({"log": 0.99})


def test_every_long_lap_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_run_that_starves_is_told_once_for_each_cause() -> None:
    said: list[tuple[str, str]] = []
    starving = Starving({}, lambda *told: said.append(told))
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
    short = Starving({}, lambda *told: said.append(told))
    for _ in range(5):
        short.check(starved(windows=4))  # a few seconds tell nothing yet
    assert len(said) == 2


def test_the_closing_line_never_fails_a_run(tmp_path: Path) -> None:
    assert closing_line(tmp_path) is None
    write_run(tmp_path / "short", rank_records(windows=1))
    assert closing_line(tmp_path / "short") is None
    write_run(tmp_path / "calm", rank_records())
    assert closing_line(tmp_path / "calm") == "speed     bound by the device: nothing holds it up"


def test_rarer_scores_save_fewer_checkpoints() -> None:
    records = rank_records({"eval": 1.0, "checkpoint": 0.5})
    reasons = {"best": 3, "periodic": 1, "end": 5}
    events = [
        {"event": "checkpoint", "reason": reason} for reason, n in reasons.items() for _ in range(n)
    ]
    gains = [
        next(
            v.gain
            for v in diagnosis_of(records, events=tuple(said)).verdicts
            if v.cause == "evaluation"
        )
        for said in (events, ())
    ]
    # Of four windows the first and the last do not count.
    whole, scores, saves = 2.0 + 2 * 1.5, 2 * 1.0, 2 * 0.5
    assert gains[0] == pytest.approx(whole / (whole - scores - saves * 3 / 4), rel=0.05)
    assert gains[1] == pytest.approx(whole / (whole - scores), rel=0.05)


def test_every_cause_has_words_and_a_chart_of_its_evidence() -> None:
    assert all(cause.words and cause.charts for cause in CAUSES.values())
    table = (ROOT / "docs/diagnose.md").read_text()
    assert not [name for name in CAUSES if f"`{name}`" not in table]
