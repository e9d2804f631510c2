"""The plan of a job: terms from a run's records, offers worked out by hand, limits, and what is
left out.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from conftest import refused
from records import TERMS, a_run

from segtrain.cli import main
from segtrain.insight.plan.command import budget_of, hosts_of, seconds_of
from segtrain.insight.plan.offers import plan
from segtrain.insight.plan.terms import terms_like, terms_of
from segtrain.machines import machines


def test_evaluations_and_checkpoints_are_counted_as_in_the_run(tmp_path):
    run = a_run(tmp_path, augment=0.001, wait=0.1)
    with (run / "journal.jsonl").open("a", encoding="utf-8") as journal:
        for kind, step, seconds in (
            ("eval", 100, 9),
            ("eval", 250, 3),
            ("eval", 500, 3),
            ("checkpoint", 500, 2),
        ):
            journal.write(
                json.dumps({"event": kind, "ts": 2.0, "step": step, "seconds": seconds}) + "\n"
            )
    terms = terms_of(run)
    # A tenth of 5000 steps is done. The 8 ranks share an evaluation.
    assert (terms.scores, terms.saves) == ((30, 8 * 3), (10, 2))
    (offer,) = plan(terms, (2,), [machines()["ml.p4d.24xlarge"]]).offers
    (plain,) = plan(
        replace(terms, scores=(0, 0), saves=(0, 0)), (2,), [machines()["ml.p4d.24xlarge"]]
    ).offers
    assert offer.rate == plain.rate
    faster = offer.parts["device"] / terms.device
    paused = 30 * 24 / 16 * faster + 10 * 2
    assert offer.trained[1] - plain.trained[1] == pytest.approx(paused, rel=0.3)
    assert offer.seconds[1] - plain.seconds[1] == pytest.approx(paused, rel=0.5)


def test_gradients_that_a_run_has_measured_are_those_of_a_plan(tmp_path):
    """Sent as fp16. Without the event, their size alone is known; without a size, the run is
    planned on one rank.
    """
    event = {"event": "gradients", "ts": 2.0, "bytes": [30e6, 40e6], "ready": [0.4, 1.0]}
    run = a_run(tmp_path / "measured", augment=0.001, wait=0.1)
    (run / "config.yaml").write_text("parallel: {compress: fp16}\n")
    with (run / "journal.jsonl").open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(event) + "\n")
    found = terms_of(run)
    assert (found.gradients, found.buckets, found.unsent) == (35e6, ((15e6, 0.4), (20e6, 1.0)), "")
    none = terms_of(
        a_run(tmp_path / "none", "ml.g5.xlarge", ranks=1, sent=0, augment=0.001, wait=0.1)
    )
    offers = plan(none, (1, 2))
    assert {(one.hosts, one.machine.gpus) for one in offers.offers} == {(1, 1)}
    assert none.unsent in offers.left_out["ml.g5.12xlarge"]


def test_a_host_without_gpus_has_the_ranks_of_the_run():
    """Two ranks on four cores: a step of the same host is that of the run, and twice the cores have
    four ranks.
    """
    two = replace(TERMS, machine="ml.c5.xlarge", local=2)
    by = {one.machine.name: one for one in plan(two, (1,)).offers}
    assert by["ml.c5.xlarge"].batch == 2 * two.images
    assert by["ml.c5.xlarge"].has == 2
    assert by["ml.c5.2xlarge"].batch == 4 * two.images


def test_two_runs_of_a_job_differ_and_workers_may_be_set():
    """One GPU, samples that cost nothing: only ``again`` moves the rate."""
    terms = replace(TERMS, machine="ml.g5.xlarge", wall=1e-6, cpu=1e-6, computed=1e-6)
    (offer,) = [one for one in plan(terms, (1,)).offers if one.machine.name == "ml.g5.xlarge"]
    low, middle, high = offer.rate
    assert 16 / 0.25 / 1.08 < low < 0.97 * middle < middle < 0.97 * high < high < 16 / 0.25 / 0.93
    slow = replace(terms, wall=0.1)
    one, three = (
        next(
            o
            for o in plan(replace(slow, workers=n), (1,)).offers
            if o.machine.name == "ml.g5.xlarge"
        )
        for n in (1, 3)
    )
    assert one.rate[1] == pytest.approx(1 / 0.1, rel=0.02)
    assert three.rate[1] == pytest.approx(3 / 0.1, rel=0.02)


def test_busier_cores_are_slower():
    """Samples need (16 * 0.6 + 0.02) s of one of 4 cores, which bounds the step. The run had used
    half of its cores.
    """
    own = replace(TERMS, machine="ml.g5.xlarge", cpu=0.6, wall=0.6, workers=4)
    full, half = (
        next(o for o in plan(replace(own, busy=busy), (1,)).offers if o.machine.name == own.machine)
        for busy in (1.0, 0.5)
    )
    assert full.bound == half.bound == "samples"
    assert full.rate[1] / half.rate[1] == pytest.approx(1.7**0.5, rel=0.05)
    # On a GPU host the device is not slower.
    light = replace(own, cpu=0.001, wall=0.001)
    assert plan(light, (1,)).offers[0].rate == plan(replace(light, busy=0.0), (1,)).offers[0].rate
    # Without a GPU it is: 0.98 s of CPU time in 0.25 s keep all 4 cores busy.
    cpus = replace(TERMS, machine="ml.c5.xlarge", cpu=0.001, computed=0.98, wall=0.001)
    (full,), (half,) = (
        [o for o in plan(replace(cpus, busy=busy), (1,)).offers if o.machine.name == cpus.machine]
        for busy in (1.0, 0.5)
    )
    assert full.rate[1] / half.rate[1] == pytest.approx(1.7**0.5, rel=0.05)


def test_ranks_of_a_host_without_gpus_exchange_gradients_by_gloo():
    """Two ranks of 4 cores each on a type of 8, from one rank on a type of 4."""
    own = replace(TERMS, machine="ml.c5.xlarge", device=1.0, buckets=((70e6, 1.0),), gradients=70e6)
    one, two = (
        next(o for o in plan(own, (1,)).offers if o.machine.name == name)
        for name in ("ml.c5.xlarge", "ml.c5.2xlarge")
    )
    assert one.parts["gradients"] == 0
    assert two.parts["gradients"] == pytest.approx(70e6 / 7e8, rel=0.1)


def test_a_machine_of_no_type_is_known_by_its_gpu(tmp_path, capsys):
    """A GPU of the tables is enough, whatever the host is called; one that they lack needs --on."""
    run = a_run(tmp_path / "run", machine="", ranks=1, gpu="NVIDIA H200")
    assert main(["plan", "--like", str(run), "--hosts", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rates = {offer["machine"]: offer["rate"][1] for offer in said["offers"]}
    assert said["terms"]["machine"] == "a host of 4 cores (1 x H200)"
    typed = plan(terms_of(run, "ml.p5en.48xlarge"), (1,))
    assert rates == {
        offer.machine.name: pytest.approx(offer.rate[1], rel=0.2) for offer in typed.offers
    }
    with refused("unknown-machine-type", found=""):
        terms_like(a_run(tmp_path / "other", machine="", ranks=1, gpu="Some GPU 9000"))


def test_what_cannot_be_planned_is_refused(tmp_path):
    with refused("unknown-machine-type", found=""):
        terms_of(a_run(tmp_path / "no-type", machine=""))
    with refused("unknown-machine-type", found="ml.p3.16xlarg"):
        terms_of(tmp_path / "no-type", "ml.p3.16xlarg")
    with refused("run-too-short"):
        terms_of(a_run(tmp_path / "short", steps=0))
    with refused("bad-time", found="2 h"):
        seconds_of("2 h")
    with refused("bad-hosts", found="1,0"):
        hosts_of("1,0")
    assert seconds_of("90m") == 5400
    assert hosts_of("4,1, 2") == (1, 2, 4)


def test_waits_for_cores_do_not_hide_the_work_of_a_step(tmp_path):
    """Ranks on crowded cores wait for each other and for cores at the same time. The work takes its
    CPU time.
    """
    spans = a_run(tmp_path, augment=0.001, wait=0.1) / "spans/rank-00000.jsonl"
    lines = [json.loads(line) for line in spans.read_text().splitlines()]
    for line in lines:
        line.update(
            {"device": "cpu"}
            if "begin" in line
            else {"cpu_s": 5.0, "cpu_wait_s": 5.9, "threads": 1}
        )
        if "phases" in line:
            line["phases"] = {"forward": 0.1, "gradient_sync": 5.8}
            line["workers"]["cpu_wait_s"] = 0.0
    spans.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    terms = terms_of(tmp_path, on="ml.c5.xlarge")
    assert 0.01 < terms.device == terms.computed
    assert plan(terms, (1,)).offers


def test_samples_that_stay_in_memory_cost_more_in_the_first_epoch(tmp_path):
    """20 steps in an epoch. The samples of windows 1 and 2 take 100 ms, and those of the others 6
    ms.
    """
    run = a_run(tmp_path, augment=0.001, wait=0.1)
    (run / "config.yaml").write_text("data: {cache: ram}\ntrain: {batch_size: 64}\n")
    step = {"event": "step", "ts": 2.0, "step": 40, "epoch": 2.0}
    with (run / "journal.jsonl").open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(step) + "\n")
    spans = run / "spans/rank-00000.jsonl"
    lines = [json.loads(line) for line in spans.read_text().splitlines()]
    for line in lines:
        if line.get("last", 99) <= 20:
            line["workers"]["cpu_s"] = 0.1 * line["workers"]["samples"]
            line["workers"]["seconds"]["augment"] = 0.1 * line["workers"]["samples"]
    spans.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    terms = terms_of(run)
    assert (terms.kept, terms.cold) == (20 * 64, False)
    assert terms.cpu == pytest.approx(0.006)
    assert terms.first[1] == pytest.approx(0.1)
    long = replace(terms, total=100 * terms.kept)
    (offer,) = plan(long, (1,), [machines()["ml.p4d.24xlarge"]]).offers
    (warm,) = plan(replace(long, kept=0.0), (1,), [machines()["ml.p4d.24xlarge"]]).offers
    # Each of 8 ranks meets all samples, and makes them in 11 workers on 12 cores.
    filling = terms.kept / 64 * (64 * terms.first[0] / 11 - warm.step[1])
    assert offer.rate == warm.rate
    assert offer.trained[1] - warm.trained[1] == pytest.approx(filling, rel=0.25)
    spans.write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines if line.get("last", 0) <= 20)
    )
    assert terms_of(run).cold


def test_arguments_that_cannot_be_meant(tmp_path, capsys):
    run = a_run(tmp_path / "run", machine="", augment=0.001, wait=0.1)
    with refused("other-device", found="ml.c5.xlarge"):
        terms_of(run, on="ml.c5.xlarge")
    for amount in (-5.0, 0.0, float("inf"), float("nan")):
        with refused("bad-budget"):
            budget_of(amount)
    assert main(["plan", "--like", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    spans = run / "spans/rank-00000.jsonl"
    spans.write_text(spans.read_text().replace("cuda:0", "cpu"))
    assert main(["plan", "--like", str(run), "--on", "ml.c5.xlarge", "--where", "gcp"]) == 0
    assert "no type can be offered" in capsys.readouterr().out
