"""Tests that the diagnosis of a run that waits for a bucket tells faults, latency, and bandwidth
apart.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import diagnosis_of, starved

from segtrain.insight.diagnose import Diagnosis
from segtrain.insight.diagnose.windows import bucket_reads
from segtrain.insight.diagnose.words import page

# Seconds of a sample: the loop of each window waits 4 s for 80 samples of 2 workers.
READING = {"read": 0.115}


def waiting(
    count: int, each: float, per_byte: float = 0.0, first: float = 0.03, **more: Any
) -> Diagnosis:
    """``count`` requests in each window; every second one is 20 times smaller, or all are of one
    size.
    """
    sizes = more.pop("sizes", (0.2, 0.01))
    mb = [sizes[k % len(sizes)] for k in range(count)]
    times = [each + 1e6 * per_byte * size for size in mb]
    bucket = {
        "requests": count + sum(more.get("retries", {}).values()),
        "bytes": 1e6 * sum(mb),
        "seconds": sum(times),
        "mb2": sum(size * size for size in mb),
        "mb_s": sum(size * s for size, s in zip(mb, times)),
        "retries": {},
        "retry_s": {},
        "ahead": {
            "window": 200,
            "threads": 128,
            "most_threads": 128,
            "held": 5,
            "most_held": 10**9,
        },
        **more,
    }
    bucket["ahead"]["first_s"] = first
    records = starved(stages=READING, sample_cpu=0.006)
    return diagnosis_of(
        replace(records, windows=tuple({**window, "bucket": bucket} for window in records.windows))
    )


def test_latency_of_single_files_asks_for_shards() -> None:
    found = waiting(160, each=3.0, first=2.5)
    first = found.verdicts[0]
    assert (first.cause, first.confidence) == ("storage-latency", "high")
    assert "segtrain data pack" in first.fix.choices[0].text
    assert "data.workers" not in first.fix.texts
    # Half the requests: half the wait.
    step, read = 4.98 / 10, 8 * 0.115 / 2
    assert first.gain == pytest.approx(step / (8 * 0.121 / 2 - read / 2), rel=0.05)


def test_latency_of_shards_asks_for_what_keeps_samples_near_or_for_more_ranks() -> None:
    first = waiting(80, each=3.0, first=2.5).verdicts[0]
    assert first.cause == "storage-latency"
    assert any("ranks" in choice.text for choice in first.fix.choices)
    below = waiting(80, each=3.0, first=2.5, ahead={"threads": 20, "most_threads": 128}).verdicts[0]
    assert (below.cause, below.confidence) == ("storage-latency", "low")


def test_bandwidth_is_told_by_sizes_or_by_the_number_in_flight() -> None:
    by_size = waiting(160, each=0.01, per_byte=5e-6, first=0.5).verdicts[0]
    assert (by_size.cause, by_size.confidence) == ("storage-bandwidth", "high")
    by_number = waiting(80, each=3.0, sizes=(0.2,)).verdicts[0]
    assert (by_number.cause, by_number.confidence) == ("storage-bandwidth", "medium")
    assert by_number.gain > 3


def test_faults_are_a_cause_where_they_take_the_time() -> None:
    retries = {"retries": {"throttled": 80, "cut": 1}, "retry_s": {"throttled": 200.0, "cut": 0.1}}
    found = waiting(80, each=1.0, **retries)
    first = found.verdicts[0]
    assert (first.cause, first.confidence) == ("storage-faults", "high")
    assert (
        "50.3% of 483 requests (the bucket asks for fewer requests: 240, the answer was cut off: 3)"
        in first.evidence
    )
    assert "segtrain data pack" in first.fix.text
    assert 1 < first.gain < 5
    timeouts = waiting(80, each=1.0, retries={"timeout": 8}, retry_s={"timeout": 250.0}).verdicts[0]
    assert timeouts.cause == "storage-faults"
    assert "region" in timeouts.fix.text


def test_faults_that_cost_little_are_said_and_are_no_cause() -> None:
    found = waiting(80, each=3.0, retries={"cut": 4}, retry_s={"cut": 2.5}, late=2)
    assert found.verdicts[0].cause != "storage-faults"
    # Of all four windows.
    assert (found.facts["bucket"]["retries"], found.facts["bucket"]["retry_s"]) == ({"cut": 16}, 10)
    assert "the bucket failed 4.8% of 336 requests" in page(Path("run"), found)
    assert "answered 8 of 336 requests so late" in page(Path("run"), found)
    assert "the bucket" not in page(Path("run"), waiting(80, each=3.0))


def test_an_answer_with_a_wrong_checksum_counts_as_failed() -> None:
    bucket = {"requests": 10, "retries": {"checksum": 3, "cut": 2}, "bytes": 8e6, "seconds": 1.0}
    found = bucket_reads([{"seconds": 1.0, "bucket": bucket}])
    assert found is not None
    assert (found.failed, found.answered) == (5, 5)
