"""Recorded plans: of described jobs and of past runs, as text, JSON, and page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
from records import TERMS, a_run, of_one_rank
from report_pages import whole_text

from segtrain.cli import main
from segtrain.config import load_config
from segtrain.insight.plan import model, page, spot, words
from segtrain.insight.plan.candidates import machines_of
from segtrain.insight.plan.config_words import about_config, about_job
from segtrain.insight.plan.described import (
    DescribedJob,
    SampleSeconds,
    Scored,
    Step,
    StoredSize,
    plan_config,
)
from segtrain.insight.plan.dry import Dry
from segtrain.insight.plan.helping import need
from segtrain.insight.plan.memory import need as memory
from segtrain.insight.plan.offers import plan
from segtrain.insight.plan.probe import assumed_sample
from segtrain.insight.plan.spot import Market
from segtrain.insight.plan.trace import Layer
from segtrain.machines import gpus, machines

WHERE = "ml.g5.2xlarge,ml.g5.12xlarge,ml.p4d.24xlarge,ml.g4dn.xlarge,ml.p3.16xlarge,g2-standard-8"
MARKET = Market(0.35, 0.07 / 3600, 21.0, True)


class Network:
    """Figures of a network, in place of those of a pass without data."""

    most = 48

    def step(self, images: int) -> Dry:
        layers = (
            Layer(4.1e9 * images, 3e7 * images, 5e6 * images, False),
            Layer(2.2e9 * images, 2e7 * images, 3e6 * images, False),
            Layer(0.0, 9e7 * images, 8e6 * images, False),
            Layer(11e9 * images, 7e7 * images, 6e6 * images, True),
        )
        gradients = ((9e6, 0.2), (31e6, 0.55), (7e6, 1.0))
        fixed = ((12_300_000, 11_750_000), 52_000.0, gradients)
        return Dry(images, layers, *fixed, 61e6 * images, 33e7 * images + 3e7, 2e7 * images, 31)


def job(*settings: str, **more: Any) -> DescribedJob:
    config = load_config(
        None, ["train.batch_size=48", "train.duration=7ep", "data.crop=[384,512]", *settings]
    )
    network: Any = Network()
    sample = assumed_sample(config, (1024, 2048))
    parts = {"stored": StoredSize(1234, 1.9e6, 2), "network": network, "sample": sample, **more}
    return DescribedJob(config, **parts)


SAMPLE = SampleSeconds(0.021, 0.024, (0.7, 1.4), "12 samples", measured=True, first=0.043)
SCORED = Scored(211, (640, 960))
JOBS: dict[str, DescribedJob] = {
    "measured": job(
        "train.precision=fp16",
        "train.accumulate=2",
        "data.cache=ram",
        "parallel.sync_bn=true",
        "optim.ema=0.999",
        "name=streets",
        sample=SAMPLE,
        step=Step("A10G", 24, 0.31),
        scored=SCORED,
    ),
    "assumed": job(
        "train.precision=auto",
        "eval.tile=[384,512]",
        "eval.flip=true",
        "eval.batch_size=3",
        "checkpoint.every=50st",
        "checkpoint.background=false",
        scored=SCORED,
    ),
    "in fp32": job("train.precision=fp32", "train.channels_last=false", "data.cache=ram"),
    "in tf32, from shards": job(
        "train.precision=tf32", "optim.name=sgd", stored=StoredSize(98_765, 2.7e6, 1)
    ),
    "too large": job("train.batch_size=4000", "optim.name=muon", stored=StoredSize(9, 0.0, 0)),
}


def test_plans_of_configs():
    texts = []
    for number, (name, described) in enumerate(JOBS.items()):
        planned = plan_config(described, machines_of(WHERE), (1, 2, 5))
        limits = [(0.0, 0.0), (900.0, 0.0), (0.0, 3.0), (60.0, 1.0), (7200.0, 50.0)][number]
        offer = planned.best(*limits) or next(iter(planned.offers), None)
        about, market = about_config(planned, offer), MARKET if number % 2 else None
        text = words.page(planned, about, *limits, every=number == 1, market=market)
        texts.append(f"--- {name}, {limits}\n{text}")
        if number == 0:
            data = {**words.as_dict(planned, *limits, MARKET), **about_job(planned, offer)}
            data["offers"] = [one for one in data["offers"] if one["hosts"] == 2]
            golden.check("insight/plan.yaml", golden.data(data))
    golden.check("insight/plan-configs.txt", "\n".join(texts))


def write_events(run: Path, *events: dict[str, Any]) -> None:
    with (run / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"ts": 2.0, **event}) + "\n" for event in events)


def test_plans_of_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    events = [
        *({"event": "eval", "step": step, "seconds": s} for step, s in ((250, 9), (500, 3.5))),
        *(
            {"event": "checkpoint", "step": step, "seconds": 2.0 + step / 500}
            for step in (250, 500)
        ),
        {"event": "gradients", "bytes": [30e6, 40e6], "ready": [0.4, 1.0]},
        {"event": "step", "step": 500, "epoch": 25.0},
    ]
    for name, cache, machine in (
        ("a", "off", "ml.p3.16xlarge"),
        ("b", "ram", ""),
        ("c", "ram", ""),
    ):
        run = a_run(Path(name), machine, ranks=8, gpu="NVIDIA A10G", augment=0.001, wait=0.1)
        write_events(run, *events)
        settings = (
            f"parallel: {{compress: fp16}}\ndata: {{cache: {cache}}}\ntrain: {{batch_size: 64}}\n"
        )
        (run / "config.yaml").write_text(settings)
    spans = Path("c/spans/rank-00000.jsonl")
    spans.write_text(spans.read_text().replace("cuda:0", "cpu"))
    of_one_rank(Path("d"))
    spotted = ["--spot", "0.35", "--preemptions", "3/d"]
    wrong = [
        ["--like", "none"],
        ["--like", "b", "--on", "ml.g5.xlarg"],
        ["--like", "c"],
        ["--like", "a", "train.seed=1"],
        ["--like", "a", "--on", "ml.c5.xlarge"],
        ["--record", "--like", "a"],
        ["--record", "none"],
        [],
        ["--like", "a", "--deadline", "2 h"],
        ["--like", "a", "--budget", "-3"],
        ["--like", "a", "--hosts", "1,0"],
        ["--like", "a", "--spot", "0.35"],
        ["--like", "a", "--where", "aws2"],
        ["--like", "a", "--save", "a"],
        ["train.seed=1", "--images", "3"],
    ]
    calls = [
        ["--like", "a", "--hosts", "1,2,4", "--deadline", "90m", *spotted],
        ["--like", "b", "--hosts", "1,3", "--budget", "80", "--all", "--where", WHERE],
        ["--like", "c", "--on", "ml.c5.4xlarge", "--hosts", "1,2"],
        ["--like", "d", "--hosts", "1", "--where", "gcp", "--save", "e", "--page", "e.html"],
        *wrong,
    ]
    texts = []
    for call in calls:
        code = main(["plan", *call])
        said = capsys.readouterr()
        texts.append(f"$ segtrain plan {' '.join(call)}\n{said.err}{said.out}exit code {code}\n")
    golden.check("insight/plan-runs.txt", "\n".join(texts))
    terms = {}
    for name in "abcd":
        on = ["--on", "ml.c5.4xlarge"] * (name == "c")
        assert main(["plan", "--like", name, *on, "--hosts", "1", "--json"]) == 0
        terms[name] = json.loads(capsys.readouterr().out)["terms"]
    golden.check("insight/plan-terms.yaml", golden.data(terms))


def test_the_page_of_a_plan():
    found = plan(replace(TERMS, wall=0.1, cpu=0.1), (1, 2, 4))
    html = page.render(found, "the <words>", "runs/<a>", 7200.0, 300.0)
    golden.check("insight/plan-page.txt", whole_text(html))


def test_closed_forms():
    """Internal figures of plans, where a wrong formula differs."""
    inside, between = (6e9, 3e-5), (1.5e9, 4e-5)
    buckets, ready = [1e6, 26e6, 9e6], [0.3, 0.8, 1.0]
    figures: dict[str, Any] = {
        "ring": [model.ring(3e7, ranks, 2e9, 3e-5) for ranks in (1, 2, 7)],
        "tree": [model.tree(3e7, ranks, 2e9, 3e-5) for ranks in (1, 2, 7)],
        "hosts": [
            model.hosts_and_gpus(s, n, 4, inside, between) for s in (3e3, 3e7) for n in (1, 9)
        ],
        "gloo": [model.gloo_ring(s, n, 2e9, 2e-4) for s in (3e3, 3e7) for n in (1, 2, 5)],
        "exposed": [model.exposed(b, [0.2, 0.3, 0.1], r) for b in (0.5, 2) for r in ((), ready)],
        "gloo exposed": [
            model.exposed_gloo(b, buckets, r, 5, 7e8, 1e-4)
            for b in (0.01, 0.5)
            for r in ((), ready)
        ],
        "buckets": model.bucket_sizes(7e7),
        "buckets of gradients": model.buckets_of([(6e5 * k, k / 15) for k in range(1, 16)]),
        "slowest": [model.slowest(ranks, 0.03) for ranks in (1, 2, 30)],
        "reads": [model.reads(workers, 0.05, 130.0) for workers in (1, 6, 40)],
        "checkpoints": [spot.checkpoint_interval(30.0, rate / 3600) for rate in (0.02, 5, 300)],
        "spot": [spot.expected_seconds(9e4, 700.0, 30.0, 400.0, r / 3600) for r in (0.02, 5, 9e3)],
        "memory": [
            memory(one.config, one.network.step(7), ranks, name)
            for one in JOBS.values()
            for ranks, name in ((1, "ddp"), (6, "fsdp"))
        ],
        "device": [
            JOBS[name].device(gpus()[gpu], images)
            for name in JOBS
            for gpu, images in (("T4", 3), ("V100", 24), ("A100-80GB", 48))
        ],
        "scores": [one.scores(gpus()["L4"], 6.0) for one in JOBS.values()],
        "saves": [one.saves() for one in JOBS.values()],
        "samples": [
            replace(one, sample=SAMPLE).terms(machines()["ml.g5.12xlarge"], 8)
            for one in [JOBS["measured"]]
        ],
    }
    golden.check("insight/plan-figures.yaml", golden.data(figures))
    terms = replace(TERMS, machine="ml.g5.12xlarge", cpu=0.3, wall=0.31, receive=0.004)
    helping = [(machines()["ml.c5.4xlarge"], 3)]
    rates = [
        need(terms, machines()[name], hosts, helping)
        for name, hosts in (("ml.g5.12xlarge", 1), ("ml.p4d.24xlarge", 2))
    ]
    golden.check("insight/plan-helpers.yaml", golden.data(rates))
