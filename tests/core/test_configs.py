"""The GPU configs: each one resolves, plans for 1 to 8 GPUs, trains on data of its layout, and
stands in its page with its figures.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from PIL import Image

from segtrain.config import load_config, refuse_names
from segtrain.parallel.cluster import Cluster
from segtrain.training.start.derived import make_plan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/gpu-configs.md"
TORCHRUN = "torchrun --nproc-per-node 8 -m segtrain train"
GPU = [path for path in sorted((ROOT / "configs").glob("*.yaml")) if TORCHRUN in path.read_text()]
IMAGES = {"cityscapes": 2975, "ade20k": 20210, "voc": 10582}  # to train on
CLASSES = {"cityscapes": 19, "ade20k": 150, "voc": 21}
each = pytest.mark.parametrize("path", GPU, ids=lambda path: path.stem)

SIZE = (72, 96)
# The whole network of the config, but random weights, small crops, and a run of three steps.
TINY = (
    "model.encoder_weights=null",
    "data.crop=[64,64]",
    "data.workers=0",
    "train.duration=3st",
    "train.batch_size=2",
    "train.precision=fp32",
    "optim.warmup=1st",
    "parallel.procs=1",
    "parallel.threads=1",
    "eval.every=3st",
    "checkpoint.every=3st",
    "log.every=1",
    "log.pictures=0",
    "log.tensorboard=false",
)


def save(path: Path, ids: list[int] | None, seed: int, palette: bool = False) -> None:
    """A mask of blocks with these raw ids, or without ids an image."""
    draw = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    if ids is None:
        Image.fromarray(draw.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(path)
        return
    mask = Image.fromarray(np.kron(draw.choice(ids, (9, 12)), np.ones((8, 8))).astype(np.uint8))
    if palette:
        mask = mask.convert("P")
        mask.putpalette([k % 256 for k in range(768)])
    mask.save(path)


def cityscapes(root: Path) -> None:
    """As unpacked: each image has four files of truth."""
    for seed, place in enumerate(("train/aachen", "train/ulm", "val/munster")):
        stem = f"{place}/{place.partition('/')[2]}_00000{seed}_000019"
        save(root / f"leftImg8bit/{stem}_leftImg8bit.png", None, seed)
        save(root / f"gtFine/{stem}_gtFine_labelIds.png", [0, 3, 7, 8, 11, 26, 33], seed)
        save(root / f"gtFine/{stem}_gtFine_instanceIds.png", [0, 7, 26], seed)
        save(root / f"gtFine/{stem}_gtFine_color.png", None, seed)
        (root / f"gtFine/{stem}_gtFine_polygons.json").write_text("{}")


def ade20k(root: Path) -> None:
    """As unpacked: ids from 1 to 150, and 0 for what is in no class."""
    for seed, stem in enumerate(
        (
            "training/ADE_train_00000001",
            "training/ADE_train_00000002",
            "validation/ADE_val_00000001",
        )
    ):
        save(root / f"images/{stem}.jpg", None, seed)
        save(root / f"annotations/{stem}.png", [0, 1, 2, 75, 150], seed)


def voc(root: Path) -> None:
    """VOCdevkit with the extended masks: only those have all training images, and they are gray."""
    root = root / "VOC2012"
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for split, stems in {
        "trainaug": ("2007_000032", "2008_000002"),
        "val": ("2007_000033",),
    }.items():
        (root / f"ImageSets/Segmentation/{split}.txt").write_text(
            "".join(f"{stem}\n" for stem in stems)
        )
        for stem in stems:
            save(root / f"JPEGImages/{stem}.jpg", None, int(stem[-2:]))
            if split == "val":
                save(root / f"SegmentationClass/{stem}.png", [0, 1, 15, 20, 255], 3, palette=True)
            else:
                save(root / f"SegmentationClassAug/{stem}.png", [0, 1, 15, 20, 255], 4)


TREES: dict[str, Callable[[Path], None]] = {"cityscapes": cityscapes, "ade20k": ade20k, "voc": voc}


def test_there_are_gpu_configs_of_each_data_set_and_model():
    configs = [load_config(path) for path in GPU]
    assert {config.data.layout for config in configs} == set(TREES)
    assert {config.model.arch for config in configs} == {"deeplabv3plus", "segformer", "upernet"}


@each
def test_a_gpu_config_resolves_and_says_how_to_start_it(path):
    config = load_config(path)
    refuse_names(config.model)
    assert path.stem.startswith(config.data.layout)
    assert config.train.precision == "bf16"
    assert config.model.encoder_weights == "imagenet"
    assert config.parallel.sync_bn
    head = "".join(
        line for line in path.read_text().splitlines(keepends=True) if line.startswith("#")
    )
    assert "Its score has not been measured by this project." in head
    assert f"{config.data.root}/" in head, "where the data set is put"
    assert shlex.split(re.findall(rf"{TORCHRUN} .*", head)[0])[-1] == f"configs/{path.name}"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "smddp"])
@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_each_strategy_takes_a_config_or_names_all_that_does_not_fit(path, strategy):
    root = ["data.root=data"] * ("camvid" in path.stem)
    words = ["train.device=cuda", *root, f"parallel.strategy={strategy}"]
    config = load_config(path, words[:-1])
    misfits = {
        "optim.name=adamw": config.optim.name == "muon",
        "train.channels_last=auto": config.train.channels_last is True,
    }
    if strategy != "fsdp" or not any(misfits.values()):
        assert load_config(path, words).parallel.strategy == strategy
        assert path not in GPU or not any(misfits.values())
        return
    with refused("conflicting-settings") as refusal:
        load_config(path, words)
    for fix, wanted in misfits.items():
        assert (fix in str(refusal.value)) == wanted


@each
@pytest.mark.parametrize(("gpus", "accumulate"), [(1, 1), (1, 8), (2, 4), (4, 2), (8, 1)])
def test_a_gpu_config_plans(path, gpus, accumulate):
    config = load_config(path, [f"train.accumulate={accumulate}"])
    samples = IMAGES[config.data.layout]
    plan = make_plan(config, samples, Cluster(world_size=gpus, local_world_size=gpus), has_gpu=True)
    assert f"{plan.steps}st" == config.train.duration
    assert plan.warmup < plan.steps / 10
    assert config.train.batch_size % (gpus * accumulate) == 0, (
        "each GPU has as many images in each micro-batch"
    )
    assert plan.steps % plan.eval_every == 0
    assert plan.eval_every % plan.save_every == 0, (
        "the best of the scored models is one that was saved"
    )


@each
def test_a_gpu_config_trains_on_data_of_its_layout(path, zygote, tmp_path):
    config = load_config(path)
    TREES[config.data.layout](tmp_path / config.data.root)
    process = zygote.start("train", path, *TINY, f"out={tmp_path / 'run'}", cwd=tmp_path)
    assert process.wait() == 0, process.output
    events = [
        json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()
    ]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    assert f"{CLASSES[config.data.layout]} classes, void 255 ignored" in process.output


@each
def test_the_page_has_each_gpu_config_with_its_figures(path):
    config = load_config(path)
    row = next(
        line
        for line in PAGE.read_text().splitlines()
        if f"configs/{path.name}" in line and line.startswith("|")
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[-2:] == [
        str(config.train.batch_size),
        f"{int(config.train.duration.removesuffix('st')):,}",
    ]
    height, width = config.data.crop
    assert f"{height}x{width}" in cells
