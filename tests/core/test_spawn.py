"""Tests of the number of ranks that one command starts: one per GPU, or one per core without
GPUs.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused

from segtrain.base import stopping
from segtrain.config import Config
from segtrain.errors import EXIT_RESUMABLE
from segtrain.parallel import spawn
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.places import answered
from segtrain.parallel.spawn import ranks_to_start, visible_gpus


def host(folder: Path, gpus: int, slices: int = 0) -> Path:
    (folder / "dev").mkdir()
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-modeset",
        *(f"nvidia{number}" for number in range(gpus)),
    ):
        (folder / "dev" / name).touch()
    for number in range(slices):
        (folder / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{number}").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("listed", "count"),
    [
        (None, 8),
        ("0,1,2", 3),
        ("7", 1),
        ("", 0),
        ("-1", 0),
        ("2, 3", 2),
        ("1,9,2", 1),
        ("GPU-8932f937,GPU-1", 2),
        ("MIG-4f1a", 1),
        ("none", 0),
    ],
)
def test_gpus_are_counted_as_cuda_would_show_them(tmp_path, listed, count):
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_gpus(environ, host(tmp_path, 8)) == count


def test_slices_and_hosts_without_gpus(tmp_path):
    (tmp_path / "mig").mkdir()
    assert visible_gpus({}, host(tmp_path / "mig", 4, slices=3)) == 1
    assert visible_gpus({}, tmp_path / "nothing") == 0
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path / "nothing") == 0


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 4),
        ({"HIP_VISIBLE_DEVICES": "0,2"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
    ],
)
def test_amd_gpus_count_if_torch_is_built_for_them(tmp_path, monkeypatch, environ, count):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    # two CPUs, four GPUs
    for number, gpu_id in enumerate(("0", "0", "4711", "4712", "4713", "4714")):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "gpu_id").write_text(f"{gpu_id}\n")
    version = tmp_path / "torch/version.py"
    version.parent.mkdir()
    found = SimpleNamespace(submodule_search_locations=[str(version.parent)])
    monkeypatch.setattr(spawn.importlib.util, "find_spec", lambda name: found)
    for text, expected in (
        ("hip: Optional[str] = '6.4.43482'\n", count),
        ("hip: Optional[str] = None\ncuda = '13'\n", 0),
    ):
        version.write_text(f"__version__ = '2.9'\n{text}")
        assert visible_gpus(environ, tmp_path) == expected


def test_wsl_and_jetson_have_one_gpu(tmp_path):
    for files in (
        ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"),
        ("dev/nvhost-gpu",),
        ("dev/nvgpu/igpu0",),
    ):
        root = tmp_path / files[0].replace("/", "-")
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        assert visible_gpus({}, root) == 1
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, root) == 0


@pytest.mark.parametrize(
    ("gpus", "settings", "ranks", "words"),
    [
        (8, {"train": {"batch_size": 16}}, 8, ""),
        (8, {"train": {"batch_size": 8}}, 4, "4 of 8 GPUs are used"),  # two images each
        (8, {"train": {"batch_size": 8}, "parallel": {"sync_bn": True}}, 8, ""),
        (
            8,
            {"train": {"batch_size": 6}, "parallel": {"sync_bn": True}},
            6,
            "with 1 or more on each",
        ),
        (8, {"train": {"batch_size": 1}}, 1, "1 of 8 GPUs is used"),
        (3, {"train": {"batch_size": 16}}, 2, "2 of 3 GPUs are used"),
        (8, {"train": {"batch_size": 16}, "parallel": {"procs": 2}}, 2, ""),
        (8, {"train": {"batch_size": 16}, "parallel": {"strategy": "single"}}, 1, ""),
        (0, {"train": {"batch_size": 16}}, 4, ""),
        (0, {"train": {"batch_size": 16, "device": "cuda"}}, 1, ""),  # an error of its own follows
    ],
)
def test_one_rank_per_gpu_or_core(monkeypatch, gpus, settings, ranks, words):
    monkeypatch.setattr(spawn, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(spawn, "cores", lambda: 4)
    said: list[str] = []
    assert ranks_to_start(Config(**settings), said.append) == ranks
    assert words in " ".join(said)
    assert bool(said) == bool(words)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(spawn, "visible_gpus", lambda: 2)
    asked: dict[str, Any] = {"train": {"batch_size": 16}, "parallel": {"procs": 3}}
    with refused("too-few-gpus", found=2, expected=3):
        ranks_to_start(Config(**asked), print)
    asked["parallel"]["backend"] = "gloo"
    assert ranks_to_start(Config(**asked), print) == 3


def test_a_rank_that_a_signal_killed_is_named(capsys, monkeypatch):
    children: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def sleeper(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        children.append(popen(["sleep", "60"]))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    monkeypatch.setattr(spawn, "_watch", lambda *_: None)  # it would end this process

    def lose_a_rank() -> None:
        with spawn.children(Cluster(), 3, []):
            children[1].kill()
            children[1].wait()
            raise ConnectionError

    with pytest.raises(ConnectionError):
        lose_a_rank()
    assert (
        capsys.readouterr().err
        == "error: rank 2 was killed by SIGKILL, perhaps for lack of memory\n"
    )


def test_a_rank_that_crashes_ends_the_others_also_after_one_that_was_stopped(capsys, monkeypatch):
    killed: list[int] = []

    def child(rank: int, code: int | None) -> Any:
        return SimpleNamespace(poll=lambda: code, returncode=code, kill=lambda: killed.append(rank))

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(spawn.os, "_exit", leave)
    monkeypatch.setattr(spawn, "GRACE_S", 0.0)
    for code, expected in ((1, 1), (2, 2), (-signal.SIGTERM, 1)):
        killed.clear()
        with pytest.raises(SystemExit) as ended:
            spawn._watch(
                [child(1, EXIT_RESUMABLE), child(2, code)],
                threading.Event(),
                threading.Event(),
                False,
            )
        assert (killed, ended.value.code) == ([1, 2], expected)
        assert f"rank 2 ended with exit code {code}" in capsys.readouterr().err
    spawn._watch(
        [child(1, EXIT_RESUMABLE), child(2, 0)], threading.Event(), threading.Event(), False
    )
    assert killed == [1, 2]


def test_a_python_that_goes_on_is_not_ended_by_a_rank_that_fails():
    crashed: Any = SimpleNamespace(poll=lambda: 1, returncode=1)
    stopping.rank_ended.clear()
    spawn._watch([crashed], threading.Event(), threading.Event(), True)
    with pytest.raises(TimeoutError):
        answered(lambda: threading.Event().wait(60), 60.0)  # the meeting with that rank
    stopping.rank_ended.clear()
    over = threading.Event()
    over.set()
    spawn._watch([crashed], threading.Event(), over, False)  # rank 0 has left: its process goes on


def test_rank_0_may_finish_its_upload_after_another_rank_has_crashed(monkeypatch):
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 100:
            stopping.uploading.clear()

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(spawn, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(spawn.os, "_exit", leave)
    crashed: Any = SimpleNamespace(poll=lambda: 1, returncode=1, kill=lambda: None)
    for uploads, expected in ((False, spawn.GRACE_S), (True, 100 + spawn.GRACE_S)):
        now[0] = 0.0
        stopping.uploading.set() if uploads else stopping.uploading.clear()
        with pytest.raises(SystemExit):
            spawn._watch([crashed], threading.Event(), threading.Event(), False)
        assert abs(now[0] - expected) <= 1
