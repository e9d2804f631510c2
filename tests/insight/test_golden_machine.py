"""Recorded benches, checks of a machine, and machine types, from made-up figures."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import golden
import pytest

from segtrain.config import load_config
from segtrain.insight.bench import data as bench
from segtrain.insight.doctor import machine, packages, page
from segtrain.insight.doctor.line import CheckLine
from segtrain.machines import dated, gpus, machines
from segtrain.machines.gpu_names import gpu_named
from segtrain.machines.receiving import receive_seconds

Disk = namedtuple("Disk", "total used free")
READ = {"read": 0.7, "decode": 5.5, "augment": 2.1, "assemble": 0.4}  # ms


def measured(module: str, read: float, files: bool, **more: Any) -> dict[str, Any]:
    """What a process of `segtrain bench data` answers."""
    stages: dict[str, Any] = {
        stage: {"wall_ms": 0.9 * ms, "wall_mean_ms": ms}
        for stage, ms in {**READ, "read": read}.items()
    }
    whole = sum(stage["wall_mean_ms"] for stage in stages.values())
    stages["whole"] = {"wall_ms": 8.1, "wall_mean_ms": whole, "cpu_ms": 7.7, "cpu_mean_ms": 8.3}
    packed = [
        ("files", 61_000, 9.0, ""),
        ("png", 83_000, 6.2, "the same"),
        ("raw", 9e5, 8.9, "raw"),
    ]
    cold: dict[str, Any] = {"ms_a_file": 21.5, "mb_per_s": 37.0, "files": 5}
    if module == "stages":
        return {
            "path": "packages",
            "path_says": "packages: it was not built",
            "samples": 5,
            "stages": stages,
            "packed": [dict(zip(("name", "sample", "ms", "pixels"), row)) for row in packed],
            "cold": cold if files else {"why_not": "its pages stay in memory"},
            "formats": {"jpeg": 3, "png": 2},
            "bytes_image": 52_300.0 if files else 0.0,
            "bytes_mask": 8_700.0,
            "pixels": 431_000.0,
        }
    kinds = (("thread", 1, 97.0), ("thread", 3, 221.0), ("process", 1, 88.0), ("process", 3, 262.0))
    rates = [
        {
            "kind": kind,
            "workers": count,
            "per_s": per_s,
            "cpu_ms": 9.3 + count,
            "memory": 7e7 * count,
        }
        for kind, count, per_s in kinds
    ]
    work = {
        "count": 3,
        "kind": "thread",
        "samples": 221,
        "seconds": {
            stage: 0.221 * cost["wall_mean_ms"] for stage, cost in stages.items() if stage in READ
        },
        "cpu_s": 1.7,
        "bytes": 221 * 61_000,
    }
    window = {"ts": 1.0, "seconds": 1.0, "first": 1, "last": 20, "images": 221, "workers": work}
    return {"rates": rates, "window": window | {"cpu_s": 1.9, "threads": 1}}


def test_benches(monkeypatch):
    texts = []
    for name, read, files, cores, rate, limit in (
        ("decoding", 0.7, True, 3.0, None, 64e9),
        ("files that are read", 31.0, True, 5.0, 400.0, 3e7),
        ("a fast device", 0.7, False, 40.0, 900.0, 64e9),
        ("a slow device", 0.7, False, 1.0, 30.0, 64e9),
    ):
        answer = lambda module, request, read=read, files=files, **_: measured(module, read, files)  # noqa: E731
        monkeypatch.setattr(bench, "child", answer)
        monkeypatch.setattr(bench, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(bench, "memory_limit", lambda limit=limit: (limit, "cgroup"))
        config = load_config(None, ["data.scenes=900", "name=streets", "data.worker_kind=thread"])
        result = bench.measure(config, 5, 0.1, rate)
        texts.append(f"--- {name}\n{golden.masked(bench.table(result), {'#[0-9a-f]+': '#hash'})}")
        if files:
            sizes = {key: result[key] for key in ("data", "host", "feeding", "cures", "verdicts")}
            texts.append(golden.data(sizes))
    golden.check("insight/bench.txt", "\n".join(texts))


def checks(monkeypatch: pytest.MonkeyPatch) -> list[CheckLine]:
    """The lines of each check on good and on bad machines."""
    versions = {**packages.NEEDED, "torch": "2.3.1", "numpy": "1.22", "onnx": "1.20"}
    versions |= {"torchvision": "0.29.2+cu132", "simplejpeg": "1.8"}
    monkeypatch.setattr(packages, "version", versions.get)
    lines = [*packages.needed(), *packages.optional(), *packages.opencv()]
    versions |= {"torch": "2.15.0+cpu", "numpy": "2.0"}
    lines += [*packages.needed(), *packages.torchvision()]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(packages, "driver", lambda: "595.71.05")
    for built, seen, files in (("13.2", "H200", 3), ("13.2", "", 1), ("", "", 2), (None, "", 0)):
        monkeypatch.setattr(packages, "built_for_cuda", lambda built=built: built)
        answer = SimpleNamespace(stdout=f"{seen}\n")
        monkeypatch.setattr(packages.subprocess, "run", lambda *_, answer=answer, **__: answer)
        lines.append(packages.gpu([f"/dev/nvidia{k}" for k in range(files)]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lines.append(packages.gpu(["/dev/nvidia0"]))
    lines += [machine.cores(*row) for row in ((8, 8, None), (3, 8, None), (8, 8, 2.5), (8, 8, 9.0))]
    for threads in ("4", "5", "many"):
        lines += machine.threads({"OMP_NUM_THREADS": threads, "OMP_PLACES": "cores"}, 4)
    for limit, by, free in ((7 << 30, "cgroup", 3 << 30), (9 << 30, "host", 5 << 30)):
        monkeypatch.setattr(machine, "memory_limit", lambda limit=limit, by=by: (limit, by))
        monkeypatch.setattr(machine, "memory_free", lambda free=free: free)
        lines.append(machine.memory())
    monkeypatch.setenv("SEGTRAIN_CACHE", "/")
    monkeypatch.setattr(machine.os, "access", lambda *_: True)
    monkeypatch.setattr(machine.os.path, "isdir", lambda _: True)
    for total, free in (
        (1 << 30, 64 << 20),
        (1 << 30, 65 << 20),
        (7 << 30, 1 << 30),
        (64 << 20, 2 << 30),
    ):
        disk = Disk(total, 0, free)
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _, disk=disk: disk)
        lines += [*machine.shared_memory(), machine.cache()]
    import resource

    for soft, hard in ((1023, 4096), (1023, 999_999), (1024, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        lines += machine.open_files()
    for there, off in ((True, "1"), (True, "0"), (False, "1")):
        monkeypatch.setenv("SEGTRAIN_NATIVE", off)

        def child(module: str, _: Any, there: bool = there, **env: str) -> dict[str, Any]:
            if env["SEGTRAIN_NATIVE"] == "0" or not there:
                return {"path": "packages", "path_says": "packages: none: build it", "cpu_ms": 8.3}
            return {"path": "native", "path_says": "native decoder", "cpu_ms": 3.1}

        monkeypatch.setattr("segtrain.insight.bench.child.child", child)
        lines += machine.decoders()
    return lines


def test_checks_of_a_machine(monkeypatch):
    with monkeypatch.context() as patch:
        lines = checks(patch)
    text = golden.masked(page(lines), {r"^segtrain \S+": "segtrain"})
    states = [json.dumps([line.name, line.state, line.fatal]) for line in lines if line.fatal]
    golden.check("insight/doctor.txt", "\n".join([text, *states]))


def test_machine_types():
    names = (
        "V100-SXM2-32GB|Tesla V100-PCIE-16GB|Tesla T4|RTX 2080Ti|nvidia_a100-sxm4-80gb|A100|L4|A10G"
    )
    names += (
        "|A100-PCIE-40GB|NVIDIA H100 NVL|H100 PCIe|GH200|H200|NVIDIA L40S|a100 mig 1g.5gb|K80|x"
    )
    types = (
        "ml.p4d.24xlarge",
        "ml.p3.2xlarge",
        "ml.c5.4xlarge",
        "ml.g5.xlarge",
        "ml.trn1.32xlarge",
    )
    found = {
        "speeds": {name: [gpu.speed, gpu.mixed] for name, gpu in gpus().items()},
        "names": {name: (gpu := gpu_named(name)) and gpu.name for name in names.split("|")},
        "types": [asdict(machines()[name]) for name in types if name in machines()],
        "vertex": asdict(machines("vertex")["g2-standard-8"]),
        "receive": [receive_seconds(*size) for size in ((1, 1), (512, 1024))],
        "dates": [dated(text) for text in ("read on 2026-09-27 and 2026-10-01", "nowhere")],
    }
    golden.check("insight/machines.yaml", golden.data(found))
