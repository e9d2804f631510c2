"""The sides of bench/accounts_vertex.py, and how one is run: each is a process of its own that
prints or writes times.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from buckets.photos import BUCKET, KINDS
from environments import PIPELINES, python_of
from environments import versions as versions_of
from rivals import race

HERE = Path(__file__).resolve().parent
BATCH, WORKERS = 32, 2
# Seconds per epoch of 50,000 images in the account: strategy -> (its GPUs, from a local disk).
ACCOUNT_IMAGES = 50_000
ACCOUNT = {"single": (1, 489), "dp": (4, 157), "ddp": (4, 134), "fsdp": (4, 134)}
# Strategy, source -> seconds per epoch in the account. FSDP: "about as DDP".
ACCOUNT_BUCKET = {
    ("single", "mount"): 804,
    ("dp", "mount"): 738,
    ("ddp", "mount"): 432,
    ("ddp", "shards"): 133,
}
SOURCES = ("local", "mount", "files", "shards")
# From the bucket with a disk cache that is empty at the start, and with one that has all samples.
CACHED = ("files, cold cache", "files, warm cache", "shards, cold cache", "shards, warm cache")
BUCKET_SOURCES = ("files", "shards", *CACHED)
ENVIRONMENTS = ("webdataset", "litdata", "s3torch")
_WARMUP = 6
_TIMEOUT_S = 150.0
# Steps are measured in a mount for less long: it needs seconds for each.
_MOUNT_STEPS = 6


@dataclass(frozen=True)
class Side:
    """``case``: spare, naive, or bound. ``name``: strategy, library, or kind of images. ``source``:
    of SOURCES.
    """

    case: str
    name: str
    source: str

    @property
    def mounts(self) -> bool:
        return self.source == "mount"


def all_sides(args: argparse.Namespace) -> list[Side]:
    """Those that this machine can run. dp needs GPUs."""
    strategies = ["single", *(["dp"] if torch.cuda.device_count() > 1 else []), "ddp", "fsdp"]
    spare = [Side("spare", strategy, source) for strategy in strategies for source in SOURCES]
    naive = [
        Side("naive", "torch DataLoader", "local"),
        Side("naive", "torch DataLoader", "mount"),
        *(Side("naive", name, "files" if name == "s3torch" else "shards") for name in ENVIRONMENTS),
    ]
    spare += [Side("spare", "single", source) for source in CACHED]
    bound = [
        Side("bound", kind, source)
        for kind in KINDS
        for source in ("local", "local shards", *BUCKET_SOURCES)
    ]
    # There are too few streets for a measurement within the first epoch.
    bound = [side for side in bound if not ("cold" in side.source and side.name == "streets")]
    return [*spare, *naive, *bound]


def place(side: Side, args: argparse.Namespace, kind: str, mount: str) -> tuple[str, str]:
    """Root and layout of a side's data."""
    shards = "shards" in side.source
    base = (
        f"s3://{BUCKET}"
        if side.source in BUCKET_SOURCES
        else mount
        if side.mounts
        else args.data / BUCKET
    )
    return f"{base}/{kind}{'-shards' * shards}", "shards" if shards else "folders"


def run(
    side: Side, args: argparse.Namespace, endpoint: str, mount: str, folder: Path
) -> dict[str, Any]:
    """One start of one side: {"step_s": ...} or {"cpu_ms": ..., "rate": ...}, or {"error": why}."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if "warm" in side.source:
        _fetch(side, args, folder)
    if side.case == "bound":
        return _fed(side, args, folder)
    steps = min(args.steps, _MOUNT_STEPS) if side.mounts else args.steps
    line, marks, ranks = (
        _trained(side, args, mount, folder)
        if side.case == "spare"
        else _naive(side, args, endpoint, mount, folder)
    )
    if not line:
        return {
            "error": f"no environment: python bench/accounts_vertex.py --install --envs {args.envs}"
        }
    result = race.run(
        line,
        folder,
        marks,
        side=side.name,
        model="",
        number=0,
        batch=BATCH * ranks,
        warmup=_WARMUP,
        steps=steps,
        timeout=_TIMEOUT_S,
    )
    if result.error:
        return {"error": result.error}
    return {
        "step_s": sum(result.step_s) / len(result.step_s),
        "ranks": ranks,
        "cpu_ms": 1000 * result.cpu_s_per_image,
        "others": result.foreign,
    }


def cache_of(side: Side, folder: Path) -> list[str]:
    """The settings of a side's disk cache."""
    return (
        ["data.cache=disk", f"data.cache_dir={folder / 'cache'}"] if side.source in CACHED else []
    )


def _fetch(side: Side, args: argparse.Namespace, folder: Path) -> None:
    """Fill the disk cache with all samples."""
    root, layout = place(side, args, "photos" if side.case == "spare" else side.name, "")
    fetch = ["data", "fetch", root, f"data.layout={layout}", *cache_of(side, folder)[1:]]
    line = [sys.executable, "-m", "segtrain", *fetch]
    subprocess.run(
        line, check=True, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S, cwd=HERE.parents[1]
    )


def device_s(strategy: str) -> float:
    """Seconds of a step on the account's GPU."""
    gpus, epoch = ACCOUNT[strategy]
    return epoch * BATCH * gpus / ACCOUNT_IMAGES


def _trained(
    side: Side, args: argparse.Namespace, mount: str, folder: Path
) -> tuple[list[str], Path, int]:
    root, layout = place(side, args, "photos", mount)
    ranks = args.ranks if side.name in ("ddp", "fsdp") else 1
    request = {
        "root": root,
        "layout": layout,
        "out": str(folder / "out"),
        "strategy": side.name,
        "ranks": ranks,
        "device": "cuda" if torch.cuda.device_count() >= ranks else "cpu",
        "device_s": device_s(side.name),
        "batch": BATCH,
        "crop": KINDS["photos"].crop,
        "scale": KINDS["photos"].scale,
        "workers": WORKERS,
        "settings": cache_of(side, folder),
    }
    return (
        [sys.executable, str(HERE / "trained.py"), json.dumps(request)],
        folder / "out" / "journal.jsonl",
        ranks,
    )


def _naive(
    side: Side, args: argparse.Namespace, endpoint: str, mount: str, folder: Path
) -> tuple[list[str], Path, int]:
    kind = KINDS["photos"]
    request = {
        "folder": f"{mount or args.data / BUCKET}/photos",
        "url": f"s3://{BUCKET}/photos",
        "endpoint": endpoint,
        "marks": str(folder / "marks.jsonl"),
        "cache": str(folder / "cache"),
        "batch": BATCH,
        "workers": WORKERS,
        "crop": kind.crop,
        "scale": kind.scale,
        "device_s": device_s("single"),
    }
    source = side.name if side.name in ENVIRONMENTS else "files"
    python = str(python_of(args.envs, side.name)) if side.name in ENVIRONMENTS else sys.executable
    line = (
        [python, str(HERE / "naive.py"), source, json.dumps(request)]
        if Path(python).exists()
        else []
    )
    return line, folder / "marks.jsonl", 1


def _fed(side: Side, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    kind = KINDS[side.name]
    root, layout = place(side, args, side.name, "")
    samples = (320 if side.name == "streets" else 1600) // (4 if args.quick else 1)
    # the first epoch, with the samples before the clock starts and those read ahead
    if "cold" in side.source:
        samples = min(samples, args.images * 3 // 4)
    line = [
        sys.executable,
        str(HERE.parent / "data_rivals/ours.py"),
        "--data",
        root,
        "--samples",
        str(samples),
        "--warmup",
        "16",
        "--crop",
        *map(str, kind.crop),
        "--workers",
        str(WORKERS),
        f"data.layout={layout}",
        f"data.scale={list(kind.scale)}",
        "data.jitter=[0.3,0.3,0.3]",
        "data.hue=0",
        "data.color_jitter_prob=1",
        *cache_of(side, folder),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    result = json.loads(done.stdout.splitlines()[-1])
    return {key: result[key] for key in ("cpu_ms", "rate", "others", "samples", "quiet")}


def versions(envs: Path) -> str:
    """Versions of the libraries whose ways are measured; those without an environment are left
    out.
    """
    parts = [versions_of(sys.executable, ("torch", "obstore"))]
    parts += [
        versions_of(python_of(envs, name), PIPELINES[name].shown[:1]) for name in ENVIRONMENTS
    ]
    return ", ".join(text for text in parts if text)
