"""Recorded values of the functions of buckets: refusals, retries, listings, and reading ahead."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

import golden

from segtrain.bucket import CLOUDS, client, command_of, faults
from segtrain.bucket.listing import _divided
from segtrain.bucket.tally import RequestTally
from segtrain.data.bucket import readahead_window
from segtrain.data.bucket.merging import GAP, merged
from segtrain.data.storage import Check, Range
from segtrain.data.workers.autoscaler import Autoscaler, worker_count
from segtrain.errors import SegtrainError


class GenericError(Exception):
    """Stands for obstore's class of this name."""


def request(text: str, source: str = "") -> GenericError:
    return GenericError(
        f"Generic S3 error: Error performing GET http://h/b/k in 0.01s - {text}\n\nDebug source:\n{source}"
    )


def test_faults_of_requests():
    status = "Server returned non-2xx status code: "
    errors = [
        *(request(f"{status}{code} X: <Code>Slow</Code>") for code in (400, 401, 403, 404, 408, 412, 429, 499, 500, 502, 503)),
        request(f"{status}400 Bad Request: <Error><Code>RequestTimeout</Code></Error>"),
        request(f"{status}404 Not Found: <Error><Code>NoSuchBucket</Code></Error>"),
        request(f"{status}404 Not Found: <Code>ContainerNotFound</Code>"),
        *(request("HTTP error: error sending request", f"kind: {kind}, x") for kind in ("Connect", "Request", "Timeout", "Interrupted", "Body", "Decode")),
        request("Requested 0..5, got 0..9"), request("Received non-partial response"), request("Received redirect without LOCATION"),
        request("path contained empty path segment"), request("illegal character sequence"), request("Missing credentials"),
        request("connect 169.254.169.254"), faults.WrongLength(), FileNotFoundError("k"), OSError("disk"), faults.outage("p", "cut", 2, 3, 4),
    ]  # fmt: skip
    lines = []
    for error, base in zip(
        errors, itertools.cycle(("s3://b/k", "gs://b/k", "az://b/k", "https://h/k"))
    ):
        last = faults.lasting(base, error)
        lines.append(f"{type(error).__name__} {' '.join(str(error).partition(' - ')[2].split())}")
        lines += [
            f"    passing {faults.passing_kind(error)!r}",
            f"    {type(last).__name__} {last.code}: {last}",
        ]
    for kind in faults.PASSING:
        for error in (faults.outage("p", kind, 7, 312.6, 300.0), faults.stopped("p", kind, 5.4)):
            lines.append(f"{error.exit_code} {error.code}: {error} {error.values}")
    golden.check("data/faults.txt", "\n".join(lines))


class Clock:
    """Stands for the modules time and random: each pause passes at once."""

    def __init__(self) -> None:
        self.now, self.pauses = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 4))
        self.now += seconds

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


def test_retries_and_read_ahead(monkeypatch, capsys):
    clock, lines = Clock(), []
    for name in ("time", "random"):
        monkeypatch.setattr(client, name, clock)
    monkeypatch.setattr(readahead_window, "time", clock)
    bucket = client.Client("s3://b", None, (), None, None, RequestTally())
    for failures, patience in ((3, 60.0), (14, 60.0), (99, 7.5)):
        left = iter([request("x", "kind: Timeout")] * failures)

        def attempt(left: Any = left) -> str:
            clock.now += 0.25
            for error in left:
                raise error
            return "answer"

        try:
            lines.append(bucket._repeated("k", attempt, patience, read=True))
        except SegtrainError as error:
            lines.append(f"{error.code}: {error}")
        lines += [
            f"  pauses {clock.pauses}",
            f"  {bucket.tally.sums.to_dict()}",
            f"  {capsys.readouterr().err!r}",
        ]
        clock.pauses.clear()
    tally = RequestTally()
    more = tally.counter()
    tally.answered(3_000_000, 0.5)
    tally.retried("cut", 0.125)
    lines.append(str(more().to_dict()))
    tally.withdrawn("checksum", 2_000_000, 0.25)
    tally.repeated()
    lines += [str(more().to_dict()), str(tally.sums.to_dict())]
    window, taken = readahead_window.ReadAheadWindow(8), 0
    for step in range(12):
        for k in range(40):
            seconds = 0.02 + 0.013 * ((k * 7 + step) % 11) + (0.9 if k == 39 else 0)
            window.answered(seconds / 50 if step < 5 else seconds)
        clock.now += 0.06 + 0.05 * (step % 3)
        taken += 5 + 9 * (step % 4)
        window.measure(taken)
        repeats = [window.may_repeat() for _ in range(3)]
        lines.append(
            f"window {window.window} late {window.late_s:.4f} first {window.first_s:.4f} {repeats}"
        )
    ranges = [
        Range("a", 0, 10, (Check(0, 10, 7),)),
        Range("a", 10 + GAP, 5, (Check(1, 3, 9),)),
        Range("a", 16 + 2 * GAP, 4),
        Range("b", 0, -1),
        Range("b", 5, 6),
        Range("a", 3, 4),
    ]
    for requested, parts in merged(ranges):
        lines.append(
            f"{requested.span[:4]} {requested.bytes} bytes: {[(part[:3], at) for part, at in parts]}"
        )
    keys = {
        "digits": ("f_000123", "f_000999"),
        "hex": ("a0f", "a9c"),
        "upper": ("x/AB", "x/CF"),
        "words": ("f", "f/a-z"),
    }
    for name, (first, final) in keys.items():
        lines += [
            f"{name}: {_divided([first, final], '')}",
            f"    {_divided([first, final], final[:2] + 'zz')}",
        ]
    counts = [
        (setting, cores, ranks, cpu)
        for setting in (3, "auto")
        for cores, ranks in ((40, 2), (6, 4), (3, 7))
        for cpu in (False, True)
    ]
    lines += [f"workers {case}: {asdict(worker_count(*case))}" for case in counts]
    scaler, busy, now, numbers = Autoscaler(6, 9), 0.0, 0.0, []
    for step in range(400):
        now, busy = now + 0.1, busy + (0.21 if step < 200 else 0.35)
        numbers.append(scaler.next(now, 0.004 if 180 < step < 260 or step > 390 else 0.0009, busy))
    lines.append(
        f"autoscaler {[(count, len(list(same))) for count, same in itertools.groupby(numbers)]}"
    )
    golden.check("data/requests.txt", "\n".join(lines))


def test_commands_of_clouds():
    lines = []
    for scheme, cloud in CLOUDS.items():
        for template in (cloud.list_command, cloud.print_command, cloud.copy_command):
            lines.append(command_of(template, f"{scheme}://data/runs/my run"))
    golden.check("data/commands-of-clouds.txt", "\n".join(lines))
