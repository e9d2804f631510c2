"""Tests of `segtrain bench data`: it counts what is there, and names the bottleneck. No test
asserts a time.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from conftest import refused

from segtrain.base import cores, memory
from segtrain.cli import main
from segtrain.config import Config, Data, load_config
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import native
from segtrain.data.scenes.scene import scene
from segtrain.data.stages import Cost
from segtrain.insight.bench import data as bench
from segtrain.insight.bench import rates, stages, verdict
from segtrain.insight.bench.child import child
from segtrain.insight.bench.data import bench_data, worker_counts
from segtrain.insight.bench.stages import summary
from segtrain.insight.diagnose.causes import CAUSES
from segtrain.insight.diagnose.verdict import Verdict

CLASSES = [f"class{k}" for k in range(10)]
COUNT = 6
EVENLY = [place * COUNT // 4 for place in range(4)]  # of which the four samples are


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six scenes as files."""
    root = tmp_path_factory.mktemp("files")
    write_scenes(root, COUNT, "jpg")
    return root


def write_scenes(root: Path, count: int, kind: str) -> None:
    for name in ("images/train", "masks/train"):
        (root / name).mkdir(parents=True)
    for k in range(count):
        image, mask = scene(1, k, (64 + 8 * k, 96))
        cv2.imwrite(str(root / f"images/train/{k}.{kind}"), image)
        cv2.imwrite(str(root / f"masks/train/{k}.png"), mask)


def settings(root: Path, *more: str) -> list[str]:
    return [
        "data.layout=folders",
        f"data.root={root}",
        f"data.classes=[{','.join(CLASSES)}]",
        "data.crop=[32,48]",
        "train.batch_size=4",
        *more,
    ]


@pytest.fixture(scope="module")
def result(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is measured on the files, once for several tests."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGTRAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SEGTRAIN_NATIVE", raising=False)
        changes = settings(folder, "data.class_balanced_crop_prob=0.5")
        bench_data(
            None, changes, samples=4, seconds=0.05, device_ms=20.0, as_json=True, say=said.append
        )
    return dict(json.loads(said[0]))


def test_files_are_counted_and_every_stage_is_told(folder, result):
    assert result["data"]["total"] == COUNT
    assert result["data"]["measured"] == 4
    assert result["data"]["formats"] == {"jpeg": 4}
    assert result["data"]["pixels"] == np.mean([(64 + 8 * k) * 96 for k in EVENLY])
    stored = [
        np.mean([(folder / name.format(k)).stat().st_size for k in EVENLY])
        for name in ("images/train/{}.jpg", "masks/train/{}.png")
    ]
    here = result["sample"]
    assert [here["bytes_image"], here["bytes_mask"]] == stored
    assert result["data"]["stored_bytes"] == int(sum(stored) * COUNT)
    assert result["storage_mb_per_s"] == pytest.approx(sum(stored) * result["measured_per_s"] / 1e6)
    assert here["path"] == ("native" if native.available() else "packages")
    costs = here["stages"]
    assert list(costs) == ["read", "decode", "augment", "assemble", "whole"]
    parts = [cost["wall_mean_ms"] for cost in costs.values()]
    assert min(parts) > 0
    assert sum(parts[:-1]) == pytest.approx(parts[-1])
    assert costs["whole"]["cpu_ms"] > 0
    # The system may keep a file's pages in memory, and such a file is not counted.
    assert "why_not" in here["cold"] or 1 <= here["cold"]["files"] <= 8
    assert result["bound"] in {*CAUSES, "healthy"}
    assert result["why"]
    assert {row["name"] for row in here["packed"]} >= {"files", "keep", "png", "raw"}


def test_the_loader_is_tried_with_each_kind_and_number_of_workers(result):
    counts = worker_counts(result["host"]["cores"])
    assert [(found["kind"], found["workers"]) for found in result["rates"]] == [
        (kind, count) for kind in ("thread", "process") for count in counts
    ]
    assert all(
        found["samples"] >= 8 and found["per_s"] > 0 and found["cpu_ms"] > 0
        for found in result["rates"]
    )
    assert [row["ranks"] for row in result["feeding"]] == [1, 2, 4, 8]
    # two devices that each take four images in 20 ms
    assert result["feeding"][1]["wanted_per_s"] == 400


def test_a_bad_file_is_named_or_left_out(tmp_path, capsys):
    write_scenes(tmp_path, 3, "png")
    bad = tmp_path / "images/train/1.png"
    bad.write_bytes(bad.read_bytes()[:700])
    assert main(["bench", "data", *settings(tmp_path)]) == 2
    assert str(bad) in capsys.readouterr().err
    config = load_config(None, settings(tmp_path, "data.faults=skip"))
    request = {
        "config": config.model_dump(mode="json"),
        "samples": 3,
        "scratch": str(tmp_path / "scratch"),
    }
    assert child("stages", {**request, "packed": False})["samples"] == 2


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"seconds": 0.0}, {"rate": 0.0}, {"rate": 5.0, "device_ms": 5.0}]
)
def test_wrong_figures_are_refused(wrong):
    with refused("not-positive" if len(wrong) == 1 else "two-rates"):
        bench_data(None, [], **wrong)


STAGES = {
    stage: {"wall_mean_ms": ms}
    for stage, ms in (("read", 1.0), ("decode", 6.0), ("augment", 3.0), ("whole", 10.0))
}


def loader(
    workers: int = 2, read: float = 0.001, cpu: float = 0.009, **more: Any
) -> dict[str, Any]:
    """A second of a loader: 10 ms per sample and worker, most of it in decoding."""
    made = round(workers / (read + 0.009))
    seconds = {"read": made * read, "decode": made * 0.007, "augment": made * 0.002}
    work = {
        "count": workers,
        "kind": "thread",
        "samples": made,
        "seconds": seconds,
        "cpu_s": made * cpu,
        "bytes": 0,
    }
    counts = {
        "ts": 1.0,
        "seconds": 1.0,
        "first": 1,
        "last": 10,
        "images": made,
        "phases": {"wait": 1.0},
        "cpu_s": 0.01,
    }
    return {**counts, "cpu_wait_s": 0.0, "workers": {**work, "cpu_wait_s": 0.0, **more}}


def test_what_bounds_is_what_diagnose_says_of_a_run_with_this_loader():
    def first(window: dict[str, Any], cores: float = 2, **more: Any) -> Verdict:
        return verdict.verdicts(window, Config(), cores, more.pop("device_per_s", None), **more)[0]

    busy = first(loader())
    assert (busy.cause, busy.share) == ("decode", pytest.approx(0.7))
    assert busy.fix.settings == {"data.cache": "ram"}
    assert first(loader(), cores=8).cause == "too-few-workers"
    # its threads wait for something other than a core
    assert first(loader(cpu=0.001)).cause == "decode"
    assert "it uses no core" in first(loader(cpu=0.001)).evidence
    cold = first(loader(bytes=200 * 50_000), cold_s=0.04)
    # A sample of 49 ms costs 9 ms of two cores, which 11 workers keep busy.
    assert (cold.cause, cold.fix.settings) == ("storage-latency", {"data.workers": 11})
    assert first(loader(), cold_s=0.0005).cause == "decode"  # what was read is in the page cache
    # A device that takes 50 images/s has them in time; one that takes 300 waits for a third of its
    # time.
    assert verdict.verdicts(loader(), Config(), 2, 50.0) == []
    assert first(loader(), device_per_s=300.0).share == pytest.approx(0.7 / 3, rel=1e-3)
    assert first(loader(), device_per_s=300.0).gain == pytest.approx(1.5, rel=1e-3)


def test_a_kind_of_worker_that_was_measured_as_slower_is_not_advised():
    """On 16 cores, processes gave 3,168 samples/s and threads at most 1,459. Then the same the
    other way round.
    """
    # 58 % of 16 s
    late = {"seconds": {"read": 0.0, "decode": 9.0, "augment": 0.2}, "count": 16, "samples": 3168}
    window = loader(16, cpu=0.0047, kind="process", **late) | {"images": 3168}

    def rates(**best: float) -> list[dict[str, Any]]:
        return [
            {"kind": kind, "per_s": per_s * part}
            for kind, per_s in best.items()
            for part in (0.3, 1.0, 0.9)
        ]

    def advice(kind: str, **best: float) -> list[Mapping[str, Any]]:
        config = Config(data=Data(worker_kind=kind))  # type: ignore[arg-type]
        found = verdict.verdicts(window, config, 16, None, rates=rates(**best))
        assert found[0].cause == "shm"
        return [choice.settings for choice in found[0].fix.choices]

    assert advice("auto", thread=1459, process=3168)[0] == {"data.worker_kind": "process"}
    assert advice("process", thread=1459, process=3168) == [{}]
    assert advice("process", thread=3168, process=1459)[0] == {"data.worker_kind": "thread"}
    assert advice("auto", thread=3168, process=1459) == [{"data.worker_kind": "thread"}]


def test_each_rank_has_a_loader_of_its_own_and_all_share_the_cores(monkeypatch):
    stage = {
        "path": "native",
        "path_says": "",
        "pixels": 1,
        "bytes_image": 1,
        "bytes_mask": 1,
        "cold": {},
        "samples": 1,
    }
    stage |= {"formats": {}, "stages": STAGES, "packed": []}
    best = {"kind": "thread", "per_s": 1000.0, "cpu_ms": 1.0}
    answers = {"stages": stage, "rates": {"rates": [best], "window": loader()}}
    monkeypatch.setattr(bench, "child", lambda module, request, **_: answers[module])
    for count, given in (
        (16, [600.0, 1000.0, 1000.0, 1000.0]),
        (64, [600.0, 1200.0, 2400.0, 4000.0]),
    ):
        monkeypatch.setattr(bench, "usable_cores", lambda count=count: float(count))
        rows = bench.measure(Config(data=Data(scenes=8)), 1, 0.1, 600.0)["feeding"]
        assert [row["given_per_s"] for row in rows] == given
    # a rank's loader gives more than its device wants, the host's two less
    rows = verdict.feeding(150.0, 200.0, 100.0)
    assert [row["given_per_s"] for row in rows] == [100.0, 200.0, 200.0, 200.0]
    assert [(row["wait"], row["fed"]) for row in rows[1:3]] == [(0.0, True), (0.5, False)]
    assert verdict.feeding(150.0, 9000.0, 200.0)[0]["given_per_s"] == 150.0


def test_costs_are_means_and_medians_of_samples():
    costs = [
        Cost(read=0.001, decode=0.001, cpu_s=0.001),
        Cost(read=0.001, decode=0.004, cpu_s=0.003),
    ]
    found = summary([*costs, Cost(decode=0.010, cpu_s=0.008)])
    assert found["decode"] == pytest.approx({"wall_ms": 4.0, "wall_mean_ms": 5.0})
    assert found["whole"] == pytest.approx(
        {"wall_ms": 5.0, "wall_mean_ms": 17 / 3, "cpu_ms": 3.0, "cpu_mean_ms": 4.0}
    )
    assert [worker_counts(n) for n in (0.5, 2, 6, 64)] == [
        [1],
        [1, 2],
        [1, 2, 4, 6],
        [1, 2, 4, 8, 16],
    ]


GONE = BlockingIOError(errno.EAGAIN, "the page is not in memory")
UNKNOWN = OSError(errno.EOPNOTSUPP, "this file system does not know RWF_NOWAIT")


@pytest.mark.parametrize(("answer", "why"), [(GONE, ""), (1, stages.KEPT), (UNKNOWN, stages.KEPT)])
def test_a_file_counts_as_cold_where_the_kernel_says_so(tmp_path, monkeypatch, answer, why):
    """Whether the kernel drops a page is its own decision, so its answers are planted here."""
    asked: list[str] = []

    def preadv(handle: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        asked.append("preadv")
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(stages.os, "fdatasync", lambda handle: asked.append("fdatasync"))
    monkeypatch.setattr(
        stages.os, "posix_fadvise", lambda *given: asked.append("fadvise"), raising=False
    )
    monkeypatch.setattr(stages.os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(stages.os, "RWF_NOWAIT", 8, raising=False)
    monkeypatch.setattr(stages.os, "preadv", preadv, raising=False)
    path = tmp_path / "file"
    path.write_bytes(bytes(5000))
    assert stages.cold_reads([None, "", "scene/0"]) == {
        "why_not": "the samples are not files of their own"
    }
    found = stages.cold_reads([str(path), "scene/0"])
    assert asked == ["fdatasync", "fadvise", "preadv"]
    assert found.get("why_not", "") == why
    assert found.get("files", 0) == (0 if why else 1)
    assert why or found["mb_per_s"] == pytest.approx(5000 / 1e3 / found["ms_a_file"])


def test_the_cgroup_says_how_many_cores_and_how_much_memory(tmp_path):
    assert cores.cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores.cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores.cpu_quota(tmp_path) is None
    (tmp_path / "memory.max").write_text("1048576\n")
    assert memory.memory_limit(tmp_path) == (1 << 20, "cgroup")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.memory_limit(tmp_path)[1] == "host"
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("2097152\n")
    assert memory.memory_limit(tmp_path) == (2 << 20, "cgroup")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_count_with_their_process(kind):
    config = load_config(
        None,
        ["data.scenes=8", "data.scene_size=[48,64]", "data.crop=[32,48]", "train.batch_size=4"],
    )
    dataset = open_dataset(config.data, "train")
    found = rates.rate(config, dataset, 2, kind, 0.05, warm=1)
    window = found["window"]
    assert found["samples"] == window["images"] == 4 * window["last"]
    of_workers = window["workers"]["process_cpu_s" if kind == "process" else "cpu_s"]
    assert of_workers > 0
    assert 1000 * (window["cpu_s"] + of_workers * (kind == "process")) == pytest.approx(
        found["cpu_ms"] * found["samples"], rel=1e-3
    )
    assert found["memory"] > rates._memory([os.getpid()]) / 2
    assert set(window["workers"]["seconds"]) == {"read", "decode", "augment", "assemble"}
