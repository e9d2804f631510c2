"""Soak: runs that train from a failing bucket for a long time, and must see what a local run sees (make test-soak)."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import pytest
from cloud.bucket import FAULTS, LIES, BucketServer
from test_bucket import opened
from test_bucket_matrix import PLACES, reached, train
from test_pack import blocks, smooth
from test_train import digests

from segtrain.config import load_config
from segtrain.data.loader import TrainLoader
from segtrain.data.shards.pack import pack
from segtrain.data.shards.pack_sample import Packing
from segtrain.diagnose import diagnose
from segtrain.errors import EXIT_RESUMABLE
from segtrain.train.loop import _digest

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_S", 1200))
SIZE = (96, 128)
SETTINGS = (
    "train.duration=10000000st", "eval.every=1000st", "checkpoint.every=200st", "data.crop=[64,64]", "data.outage_s=120",
)  # fmt: skip
# Lies about an etag are errors, and an endless answer takes a minute until it is repeated.
PASSING = tuple(lie for lie in LIES if lie not in ("etag", "endless"))


def bucket(root: Path) -> None:
    """The same 64 samples as files and in shards."""
    for index in range(64):
        for part, kind, picture in (
            ("images", "jpg", smooth(index, SIZE)), ("masks", "png", blocks(index, (0, 1, 2), SIZE)),
        ):  # fmt: skip
            path = root / "files" / part / "train" / f"s{index:02d}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imencode(f".{kind}", picture)[1].tofile(path)
    (root / "files/classes.txt").write_text("a\nb\nc")
    pack(opened(root / "files", "folders"), str(root / "shards"), Packing("keep"), shard_mb=0.05, say=lambda text: None)


def rss(pid: int) -> float:
    """Megabytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def trained(zygote: Any, words: list[str], environment: dict[str, str], seconds: float) -> list[float]:
    """Train, killed after a fifth of the time; resumed, and stopped at its end. Memory of the second process, in MB."""
    out = Path(next(word[4:] for word in words if word.startswith("out=")))
    process = zygote.start(*words, **environment)
    began = time.monotonic()
    # The journal is long, and this process serves the bucket.
    while time.monotonic() < began + seconds / 5 or not reached(out, 20):
        assert time.monotonic() < began + seconds / 5 + 600, process.output
        time.sleep(min(5.0, seconds / 20))
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.output
    process, memory, end = zygote.start(*words, **environment), list[float](), time.monotonic() + 0.8 * seconds
    while time.monotonic() < end:
        time.sleep(min(2.0, seconds / 100))
        memory.append(rss(process.pid))
    process.signal(signal.SIGTERM)
    assert process.wait() == EXIT_RESUMABLE, process.output
    return memory


def local_digests(words: list[str], root: Path, form: str, steps: int) -> dict[int, int]:
    config = load_config(None, [*words[1:], f"data.root={root / PLACES[form][1]}"])
    batches = TrainLoader(
        opened(root, PLACES[form][0]), config.data, seed=config.train.seed, batch_size=config.train.batch_size,
        last_step=steps, workers=1, prefetch=config.data.prefetch,
    )  # fmt: skip
    with batches:
        return {number: _digest(step) for number, step in enumerate(batches, 1)}


def test_hours_of_faults_change_nothing(zygote: Any, tmp_path: Path) -> None:
    bucket(tmp_path / "bkt")
    server = BucketServer(tmp_path)
    server.delay, server.fault, server.faults = 0.03, 0.05, (*FAULTS, *PASSING, "429", "slow")
    said, failed = list[str](), Counter[str]()
    try:
        for form in PLACES:
            out = tmp_path / f"run-{form}"
            words = train(out, "s3://bkt", form, *SETTINGS)
            memory = trained(zygote, words, server.environment(), SECONDS / len(PLACES))
            found = digests(out)
            steps = max(found)
            assert sorted(found) == list(range(1, steps + 1))
            assert found == local_digests(words, tmp_path / "bkt", form, steps)
            part = max(1, len(memory) // 10)
            early, late = statistics.mean(memory[part : 2 * part]), statistics.mean(memory[-part:])
            assert late < 1.05 * early + 16, memory
            facts = diagnose(out).facts["bucket"]
            share = sum(facts["retries"].values()) / facts["requests"]
            assert 0.02 < share < 0.08
            failed.update(facts["retries"])
            said.append(
                f"{form}: {4 * steps:,} samples as on the disk, {facts['requests']:,} requests, {share:.1%} failed, "
                f"retries took {facts['retry_s']:,.0f} s beside {facts['seconds']:,.0f} s, memory {early:.0f} MB and "
                f"{late:.0f} MB at the end"
            )
            shutil.rmtree(out)
    finally:
        server.close()
    assert set(failed) == {"throttled", "server", "connection", "cut", "wrong"}
    assert set(server.failed) >= set(server.faults)
    print(f"\nsoak of {SECONDS:.0f} s: " + "; ".join(said))
