"""Digests of batches, weights, scores, and launch requests: run it before and after a change that must not move any of them.

    python bench/digests.py record before.json
    python bench/digests.py compare before.json                  # exits with 1 if anything differs
    python bench/digests.py record old.json --root OTHER_CHECKOUT   # the code of another checkout, with this script

Digests of weights hold on one type of CPU with one version of torch. The codes are those of errors and findings in the source.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from layouts import write_layout

HERE = Path(__file__).resolve()
SHORT = [
    "train.duration=6st",
    "train.batch_size=4",
    "train.device=cpu",
    "eval.every=6st",
    "checkpoint.every=6st",
    "log.every=3",
]
SMALL = ["data.crop=[64,64]", "model.arch=pico"]
DIVIDED = ["parallel.procs=2"]

# name: (data set, settings)
CONFIGS: dict[str, tuple[str, list[str]]] = {
    "scenes-ce-sgd": ("scenes", ["optim.name=sgd", "optim.lr=0.05"]),
    "scenes-ddp-dice-muon": ("scenes", ["loss.terms=[ce,dice]", "optim.name=muon", *DIVIDED]),
    "scenes-fsdp": ("scenes", ["parallel.strategy=fsdp", *DIVIDED]),
    "scenes-accumulate": ("scenes", ["train.accumulate=2", "loss.terms=[ce,{name: jaccard}]"]),
    "scenes-unet": ("scenes", ["model.arch=unet"]),
    "scenes-unet-plain": ("scenes", ["model.arch=unet", "model.fast=false"]),
    "scenes-deeplab": ("scenes", ["model.arch=deeplabv3plus", "loss.terms=[ohem]"]),
    "scenes-fpn-ema": ("scenes", ["model.arch=fpn", "optim.ema=0.9", "loss.stride=2"]),
    "scenes-torchvision": (
        "scenes",
        ["model.arch=torchvision/lraspp_mobilenet_v3_large", "model.encoder_weights=null"],
    ),
    "camvid-ohem-threads": (
        "camvid",
        ["loss.terms=[ohem]", "data.workers=2", "data.worker_kind=thread"],
    ),
    "camvid-ddp-unread-ahead": ("camvid", ["data.workers=0", "loss.class_weights=auto", *DIVIDED]),
    "cityscapes-focal-ram": (
        "cityscapes",
        ["loss.terms=[{name: focal}]", "data.cache=ram", "data.hue=0.05"],
    ),
    "cityscapes-lovasz-ddp": ("cityscapes", ["loss.terms=[lovasz]", *DIVIDED]),
    "ade20k-dice-processes": (
        "ade20k",
        ["loss.terms=[ce,dice]", "data.workers=2", "data.worker_kind=process"],
    ),
    "voc-jaccard": ("voc", ["loss.terms=[jaccard]", "data.class_balanced_crop_prob=0.5"]),
    "voc-tversky-ddp": ("voc", ["loss.terms=[{name: tversky}]", "data.rotate=20", *DIVIDED]),
    "folders-jpeg": ("folders", ["data.workers=3", "data.scale=[0.5,3]", "data.rotate=10"]),
    "folders-tiles": ("folders", ["eval.tile=[64,64]", "eval.overlap=0.25", "eval.flip=true"]),
    "folders-albumentations": (
        "folders",
        ["data.transforms=[{HorizontalFlip: {p: 0.5}}]", "data.workers=1"],
    ),
    "folders-progressive": (
        "folders",
        ["train.progressive=[[0.5,0.5]]", "data.split_by={val: 25%, of: train}"],
    ),
    "list-smoothing": (
        "list",
        ["loss.terms=[{name: ce, label_smoothing: 0.1}]", "data.color_jitter_on=cpu"],
    ),
    "shards-keep": ("shards-keep", ["data.workers=2"]),
    "shards-png-ddp": ("shards-png", [*DIVIDED]),
    "shards-recompress": ("shards-recompress", ["data.cache=ram"]),
    "bucket-folders": ("bucket-folders", []),
    "bucket-shards": ("bucket-shards-keep", ["data.cache=disk", "data.workers=2"]),
}


def digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]


# ---------------------------------------------------------------- data sets


def data_sets(folder: Path, environment: dict[str, str]) -> dict[str, list[str]]:
    """The settings of each data set, which is written into ``folder`` or, for the buckets, into a
    server of S3.
    """
    sets = {
        name: write_layout(folder / name, name)
        for name in ("camvid", "cityscapes", "ade20k", "voc", "folders", "list")
    }
    sets["scenes"] = ["data.layout=scenes", "data.scenes=16", "data.scene_size=[96,128]"]
    labels = sets["folders"][2:]
    for kind in ("keep", "png", "recompress"):
        out = folder / f"shards-{kind}"
        pack = [
            "data",
            "pack",
            str(folder / "folders"),
            str(out),
            "--image",
            kind,
            *sets["folders"],
        ]
        segtrain_command(pack, folder, environment)
        sets[f"shards-{kind}"] = ["data.layout=shards", f"data.root={out}"]
    sets["bucket-folders"] = ["data.layout=folders", "data.root=s3://digests/folders", *labels]
    sets["bucket-shards-keep"] = [
        "data.layout=shards",
        "data.root=s3://digests/shards-keep",
        f"data.cache_dir={folder / 'disk'}",
    ]
    return sets


def fill_bucket(folder: Path, endpoint: str) -> None:
    import boto3

    keys = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "region_name": "us-east-1",
    }
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket="digests")
    for name in ("folders", "shards-keep"):
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                client.upload_file(str(path), "digests", path.relative_to(folder).as_posix())


# ---------------------------------------------------------------- runs


def run_python(arguments: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run Python with arguments in ``folder``, and return what it prints. Raises SystemExit with
    the output if it fails.
    """
    line = [sys.executable, *arguments]
    done = subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = done.stdout[-2000:] + done.stderr[-2000:]
        raise SystemExit(f"python {' '.join(arguments)}\nexited with {done.returncode}:\n{output}")
    return done.stdout


def segtrain_command(arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
    run_python(["-m", "segtrain", *arguments], folder, environment)


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors(value[key], f"{path}/{key}")
    elif hasattr(value, "detach"):
        yield path, value


def run_digests(
    name: str, data: list[str], settings: list[str], folder: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """Train, evaluate, and load batches in processes of their own, and describe the result."""
    import torch

    out = folder / "runs" / name
    given = [*SHORT, *SMALL, *data, *settings]
    if not any(setting.startswith("parallel.procs") for setting in settings):
        given.append("parallel.procs=1")
    segtrain_command(["train", *given, f"out={out}"], folder, environment)
    confusion = folder / f"{name}.json"
    segtrain_command(
        ["eval", str(out), "--which", "last", "--confusion", str(confusion), "train.device=cpu"],
        folder,
        environment,
    )
    batches = run_python([str(HERE), "batches", *given], folder, environment)
    state = torch.load(
        sorted((out / "checkpoints").glob("*.pt"))[-1], map_location="cpu", weights_only=True
    )
    found = {
        part: digest(
            *(
                repr((key, value.dtype, tuple(value.shape))).encode() + as_bytes(value)
                for key, value in tensors(state[part])
            )
        )
        for part in ("model", "ema", "optimizer")
    }
    events = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    scores = [event["scores"] for event in events if event["event"] == "eval"]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    return {
        **found,
        "scores": digest(json.dumps(scores, sort_keys=True).encode()),
        "losses": digest(json.dumps(losses).encode()),
        "confusion": digest(confusion.read_bytes()),
        "batches": batches.split(),
    }


def as_bytes(tensor: Any) -> bytes:
    import torch

    return (
        bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
        if tensor.numel()
        else b""
    )


def print_batches(settings: list[str]) -> None:
    """Digests of one epoch's batches, and of those of the validation split, from
    ``segtrain.data.loader``.
    """
    import segtrain
    from segtrain.config import Config

    config = Config.load(None, *settings)
    for training in (True, False):
        for dtype in ("uint8", "float32"):
            pieces = []
            for images, masks in segtrain.data.loader(config, train=training, dtype=dtype):
                pieces += [as_bytes(images), as_bytes(masks)]
            print(digest(*pieces))


def all_runs(folder: Path, environment: dict[str, str], only: str, workers: int) -> dict[str, Any]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        **environment,
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "SEGTRAIN_CACHE": str(folder / "cache"),
    }
    try:
        sets = data_sets(folder, environment)
        fill_bucket(folder, environment["AWS_ENDPOINT_URL"])
        chosen = {name: row for name, row in CONFIGS.items() if only in name}

        def measured(name: str) -> tuple[str, Any]:
            data, settings = chosen[name]
            print(f"digests: {name}", file=sys.stderr, flush=True)
            return name, run_digests(name, sets[data], settings, folder, environment)

        with ThreadPoolExecutor(workers) as pool:
            return dict(pool.map(measured, chosen))
    finally:
        server.stop()


# ---------------------------------------------------------------- requests and codes

SLURM: dict[str, dict[str, Any]] = {
    "one-node": {"config": "configs/scenes.yaml", "output": "/shared/runs"},
    "four-nodes": {
        "config": "",
        "output": "/shared/runs",
        "nodes": 4,
        "gpus": 8,
        "start": "node",
        "partition": "gpu",
    },
    "ranks": {
        "config": "",
        "output": "/shared/runs",
        "nodes": 2,
        "gpus": 4,
        "start": "task",
        "most_stops": 5,
    },
}


def print_requests(root: Path) -> None:
    """Requests of the captured jobs of SageMaker and Vertex AI, and scripts of Slurm jobs, as
    digests by name.
    """
    sys.path[:0] = [str(root), *(str(root / "tests" / part) for part in ("platforms", "kit", ""))]
    import test_contracts as sagemaker
    import test_vertex_contracts as vertex

    from launch.core.job import load_job
    from launch.platforms.slurm.job import SlurmJob
    from launch.platforms.slurm.script import sbatch_script
    from launch.platforms.vertex.request import custom_job

    found = {}
    for path in sagemaker.FILES:
        found[f"sagemaker/{path.stem}"] = sagemaker.ours_for(
            path.stem, json.loads(path.read_text(encoding="utf-8"))
        )
    for name, job in vertex.JOBS.items():
        found[f"vertex/{name}"] = custom_job(job, image=vertex.IMAGE, name="job-1")
    for name, keys in SLURM.items():
        script = sbatch_script(load_job(SlurmJob, keys, {}))
        found[f"slurm/{name}"] = script.replace(sys.executable, "PYTHON").replace(str(root), "ROOT")
    print(
        json.dumps(
            {
                name: digest(json.dumps(value, sort_keys=True).encode())
                for name, value in found.items()
            }
        )
    )


def codes(root: Path) -> list[str]:
    """The literal codes of errors (``code="..."``) and findings (the first text of ``Finding(...)``
    and the like).
    """
    found = set()
    for folder in ("segtrain", "launch"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    texts = [
                        word.value for word in node.keywords if word.arg == "code"
                    ] + node.args[:2]
                    found.update(
                        text.value
                        for text in texts
                        if isinstance(text, ast.Constant)
                        and isinstance(text.value, str)
                        and is_code(text.value)
                    )
    return sorted(found)


def is_code(text: str) -> bool:
    words = text.split("-")
    return len(words) > 1 and all(word.isalnum() and word == word.lower() for word in words)


# ---------------------------------------------------------------- main


def record(root: Path, only: str, workers: int) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    # In the checkout, because the path of a config is part of a request.
    requests = run_python([str(HERE), "requests", "--root", str(root)], root, environment)
    found = {"requests": json.loads(requests), "codes": codes(root)}
    with tempfile.TemporaryDirectory() as folder:
        return {**found, "runs": all_runs(Path(folder), environment, only, workers)}


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = []
    for name in sorted({*before["runs"], *after["runs"]}):
        old, new = before["runs"].get(name), after["runs"].get(name)
        parts = [part for part in old if old[part] != new[part]] if old and new else ["missing"]
        if parts:
            lines.append(f"run {name}: {', '.join(parts)}")
    for name in sorted({*before["requests"], *after["requests"]}):
        if before["requests"].get(name) != after["requests"].get(name):
            lines.append(f"request {name}")
    lines += [f"code gone: {code}" for code in sorted({*before["codes"]} - {*after["codes"]})]
    lines += [f"code new: {code}" for code in sorted({*after["codes"]} - {*before["codes"]})]
    return lines


def main() -> int:
    if sys.argv[1:2] == ["batches"]:
        print_batches(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare", "requests"])
    parser.add_argument("file", nargs="?", help="where the digests are")
    parser.add_argument(
        "--root",
        type=Path,
        default=HERE.parents[1],
        help="checkout whose code runs (default: this one)",
    )
    parser.add_argument("--only", default="", help="part of a config's name")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    root = args.root.resolve()
    if args.action == "requests":
        print_requests(root)
        return 0
    if args.file is None:
        parser.error("name the file of digests")
    found = record(root, args.only, args.workers)
    if args.action == "record":
        Path(args.file).write_text(json.dumps(found, indent=1) + "\n")
        print(
            f"{len(found['runs'])} runs, {len(found['requests'])} requests, {len(found['codes'])} codes: {args.file}"
        )
        return 0
    lines = differences(json.loads(Path(args.file).read_text()), found)
    print(
        "\n".join(lines)
        or f"{len(found['runs'])} runs, {len(found['requests'])} requests, {len(found['codes'])} codes: equal"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
