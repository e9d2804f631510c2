"""Tests that batches and whole runs do not depend on the storage: files or shards, on the disk or
in a bucket.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from bucket_sets import COUNT, data_sets, server
from small_runs import assert_same_weights, digests, final
from waiting import until

from segtrain.errors import EXIT_ERROR, EXIT_RESUMABLE
from segtrain.insight.diagnose.judge import diagnose
from segtrain.observe.journal import read_journal
from segtrain.observe.spans import read_spans

__all__ = ["data_sets", "server"]

STEPS = 12
SETTINGS = [
    "data.classes=[a,b,c]",
    "data.split=train",
    "data.overlap=accept",
    "data.crop=[24,32]",
    "data.workers=1",
    "data.check=off",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
    "train.batch_size=4",
    f"train.duration={STEPS}st",
    f"eval.every={STEPS}st",
    "checkpoint.every=1st",
    "checkpoint.background=false",
    "log.every=1",
    "log.digest=true",
    "log.tensorboard=false",
    "log.pictures=0",
    "log.profile_ms=0",
    "parallel.procs=1",
]
PLACES = {"files": ("folders", "files"), "shards": ("shards", "shards")}


def train(out: Path, root: str, form: str, *settings: str) -> list[str]:
    layout, folder = PLACES[form]
    return [
        "train",
        *SETTINGS,
        f"data.layout={layout}",
        f"data.root={root}/{folder}",
        f"out={out}",
        *settings,
    ]


@pytest.fixture(scope="module")
def whole(zygote: Any, data_sets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on local files that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    process = zygote.start(*train(out, str(data_sets / "bkt"), "files"))
    assert process.wait() == 0, process.output
    return out


def reached(out: Path, step: int) -> bool:
    return (out / "journal.jsonl").exists() and max(digests(out), default=0) >= step


@pytest.mark.parametrize("form", PLACES)
def test_a_killed_run_goes_on_from_the_bucket(zygote, server, whole, tmp_path, form):
    out, environment = tmp_path / "run", server.environment()
    server.fault, server.delay = 0.05, 0.03
    process = zygote.start(*train(out, "s3://bkt", form), **environment, HOLD="0:4")
    until(lambda: reached(out, 4))
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    again = zygote.start(*train(out, "s3://bkt", form, "data.workers=2"), **environment)
    assert again.wait() == 0, again.output
    assert digests(out) == digests(whole)
    assert_same_weights(final(out), final(whole))


def test_a_run_goes_on_with_fewer_ranks(zygote, data_sets, server, whole, tmp_path):
    """Two ranks, then one, from the bucket and from the disk."""
    ends, out, environment = [], tmp_path / "run", server.environment()
    ranks = zygote.start_ranks(2, *train(out, "s3://bkt", "shards"), **environment, HOLD="0:3")
    until(lambda: reached(out, 3))
    ranks[0].signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [EXIT_RESUMABLE] * 2, ranks[0].output
    assert final(out)["state"]["step"] < STEPS
    for root in (str(data_sets / "bkt"), "s3://bkt"):
        shutil.copytree(out, tmp_path / f"{len(ends)}/run")
        process = zygote.start(
            *train(Path("run"), root, "shards"), cwd=tmp_path / f"{len(ends)}", **environment
        )
        assert process.wait() == 0, process.output
        assert digests(tmp_path / f"{len(ends)}/run") == digests(whole)
        ends.append(final(tmp_path / f"{len(ends)}/run"))
    assert_same_weights(*ends)


def test_a_bucket_that_is_gone_ends_the_run_with_one_error(zygote, server, whole, tmp_path):
    out, environment = tmp_path / "run", server.environment()
    words = train(out, "s3://bkt", "files", "data.outage_s=0.5")
    server.last = COUNT  # of all samples, half an epoch is read
    process = zygote.start(*words, **environment)
    assert process.wait() == EXIT_ERROR, process.output
    assert process.output.count("data.outage_s") == 1, process.output
    assert "Traceback" not in process.output
    (end,) = [event for event in read_journal(out) if event["event"] == "run_end"]
    assert end["status"] == "failed"
    assert end["step"] < STEPS
    server.last = 0
    again = zygote.start(*words, **environment)
    assert again.wait() == 0, again.output
    assert digests(out) == digests(whole)
    assert_same_weights(final(out), final(whole))


def test_requests_and_retries_are_in_the_spans_and_in_the_diagnosis(zygote, server, tmp_path):
    out = tmp_path / "run"
    server.fault = 0.2
    process = zygote.start(*train(out, "s3://bkt", "shards"), **server.environment())
    assert process.wait() == 0, process.output
    windows = [window["bucket"] for rank in read_spans(out) for window in rank.windows]
    assert windows[0]["requests"] > 0
    failed = sum(sum(found["retries"].values()) for found in windows)
    assert 0 < failed <= sum(server.failed.values())
    assert sum(sum(found["retry_s"].values()) for found in windows) > 0
    assert windows[0]["ahead"]["threads"] > 0
    facts = diagnose(out).facts["bucket"]
    assert sum(facts["retries"].values()) == failed
    assert facts["requests"] == sum(found["requests"] for found in windows)
    assert f"{failed / facts['requests']:.1%} of {facts['requests']} requests" in facts["failures"]
