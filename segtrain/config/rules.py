"""Rules between settings: what does not go together, and the settings that fix it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from segtrain.config.section import SettingError, outlasts

if TYPE_CHECKING:
    from segtrain.config.data import Data
    from segtrain.config.run import Config

# Layouts of one mask file for each image.
_MASK_FILES = ("camvid", "cityscapes", "ade20k", "voc", "folders", "list")
# Layouts that list their files.
LISTED_FILES = ("list", "voc", "shards")
Rule = tuple[bool, str, dict[str, Any]]


def check_data(data: Data) -> Data:
    """Raises SettingError for settings of the data that do not go together."""
    for check in (_root, _divided, _helped, _policies, _normalized, _stored):
        check(data)
    return data


def _root(data: Data) -> None:
    if data.layout != "scenes" and not data.root:
        raise SettingError(
            f"data.root is empty, but layout {data.layout!r} reads files: set data.root=FOLDER"
        )
    if data.layout == "scenes" and data.root:
        raise SettingError(
            "data.layout=scenes reads no files, but data.root is set: set data.layout. `segtrain "
            f"data check {shlex.quote(data.root)} --write mine.yaml` detects the layout and writes "
            "a config"
        )


def _divided(data: Data) -> None:
    if not data.split_by.on:
        return
    if data.layout == "scenes":
        raise SettingError(
            "data.split_by: layout 'scenes' generates its splits: remove data.split_by"
        )
    if not data.split_by.of and data.own_splits:
        keys = {
            "folders": " ({split} in data.images or data.masks)",
            "list": " ({split} in data.index)",
        }
        why = f"layout {data.layout!r} has its own splits{keys.get(data.layout, '')}"
        unsplit = (
            "; if the shards have no splits, {of: all, val: 20%}" if data.layout == "shards" else ""
        )
        fix = f"name the split to divide, such as data.split_by={{of: train, val: 20%}}{unsplit}"
        raise SettingError(f"data.split_by: {why}: {fix}")
    if data.train_split in ("val", "test"):
        why = (
            f"data.train_split={data.train_split}: data.split_by makes this split: set it to train"
        )
        raise SettingError(why, advice={"data.train_split": "train"})


def _helped(data: Data) -> None:
    if data.helpers == "none":
        return
    if data.workers == 0:
        raise SettingError(
            f"data.workers=0: data.helpers={data.helpers} needs a local worker, for what "
            "helpers leave: use 1",
            advice={"data.workers": 1},
        )
    if data.helpers == "ray-data" and data.worker_kind == "process":
        raise SettingError(
            "data.worker_kind=process: data.helpers=ray-data needs threads, which copy: set "
            "it to auto",
            advice={"data.worker_kind": "auto"},
        )
    if data.cache == "ram":
        why = "data.cache=ram keeps images in this host's memory, where no helper is: set it to off"
        raise SettingError(why, advice={"data.cache": "off"})


def _policies(data: Data) -> None:
    listed = data.layout in LISTED_FILES
    if data.absent_mask == "background" and listed:
        why = (
            f"data.absent_mask=background: layout {data.layout!r} lists masks: set it to leave-out"
        )
        raise SettingError(why, advice={"data.absent_mask": "leave-out"})
    if data.leave_out and listed and data.layout != "voc":
        why = f"data.leave_out: layout {data.layout!r} has lists of its files: shorten these"
        raise SettingError(why, advice={"data.leave_out": []})
    if data.worker_kind == "process" and data.cache == "ram":
        why = (
            "each process would keep its own copy of data.cache=ram: set data.cache=off, or "
            "use thread"
        )
        raise SettingError(
            f"data.worker_kind=process: {why}", "cache-with-processes", {"data.cache": "off"}
        )
    if data.faults == "skip" and data.check == "off":
        why = "data.faults=skip needs the check that finds faulty files: set data.check=full"
        raise SettingError(why, advice={"data.check": "full"})
    if data.mask_code != "none" and data.layout not in _MASK_FILES:
        why = f"data.mask_code={data.mask_code}: layout {data.layout!r} does not read masks of ids"
        raise SettingError(f"{why}: use none", advice={"data.mask_code": "none"})
    if data.color_jitter_on == "device" and (data.transforms or data.rotate):
        key = "transforms" if data.transforms else "rotate"
        why = (
            f"data.color_jitter_on=device: data.{key} runs after color jitter, on the CPU: use auto"
        )
        raise SettingError(why, advice={"data.color_jitter_on": "auto"})
    if data.transforms and data.transforms_mode == "replace" and data.class_balanced_crop_prob > 0:
        why = (
            "data.class_balanced_crop_prob must be 0 with data.transforms_mode=replace: set it to 0"
        )
        raise SettingError(why, advice={"data.class_balanced_crop_prob": 0})


def _normalized(data: Data) -> None:
    for key, values in (("mean", data.mean), ("std", data.std)):
        if values is None:
            continue
        if len(values) != data.channels:
            why = f"has {len(values)} numbers: give {data.channels}, one for each of data.channels"
        elif not data.stored and not all(0 <= value <= 1 for value in values):
            why = "is not from 0 to 1: divide by 255, or set data.values=stored"
        else:
            continue
        raise SettingError(f"data.{key} {why}")


def _stored(data: Data) -> None:
    """What goes with 8-bit RGB only."""
    if not data.stored:
        if data.channels != 3:
            why = f"data.values=8-bit makes 3 bands, but data.channels={data.channels}"
            raise SettingError(f"{why}: set data.values=stored", advice={"data.values": "stored"})
        if data.files:
            why = "data.files names files of an image, whose bands are stored values"
            raise SettingError(f"{why}: set data.values=stored", advice={"data.values": "stored"})
        return
    for key, neutral in (
        ("hue", 0.0),
        ("bits", "auto"),
        ("extra_bands", "error"),
        ("transforms", ""),
        ("helpers", "none"),
    ):
        if getattr(data, key) != neutral:
            why = f"data.channels={data.channels} and data.values={data.values} keep stored values"
            raise SettingError(
                f"data.{key} is for 8-bit RGB, but {why}: leave it out",
                advice={f"data.{key}": neutral},
            )


def rules_of_training(config: Config) -> list[Rule]:
    """Rules: whether the settings break it, what to say, and the settings that fix it."""
    train, parallel, loss, cpu = (
        config.train,
        config.parallel,
        config.loss,
        config.train.device == "cpu",
    )
    micro, timeout = train.accumulate, f"{parallel.timeout_s:g}"
    weights, classes = loss.class_weights, config.data.classes
    named = isinstance(weights, tuple) and isinstance(classes, tuple)
    numbers = (f"{len(weights)} numbers for {len(classes)} classes") if named else ""  # type: ignore[arg-type]
    hang_s = config.log.hang_s
    return [
        (
            bool(train.batch_size % micro),
            f"train.batch_size={train.batch_size} does not divide into equal micro-batches: make "
            f"it a multiple of train.accumulate={micro}",
            {"train.batch_size": micro * -(-train.batch_size // micro)},
        ),
        *(
            (
                outlasts(part, train.duration),
                f"optim.{key}={part} must be shorter than train.duration={train.duration}",
                {},
            )
            for key, part in (
                ("warmup", config.optim.warmup),
                ("encoder_start", config.optim.encoder_start),
            )
        ),
        (
            hang_s != "auto" and hang_s >= parallel.timeout_s,
            (
                f"log.hang_s={hang_s} is too long: set it below parallel.timeout_s={timeout}, "
                "or to auto"
            ),
            {"log.hang_s": "auto"},
        ),
        (
            bool(
                train.progressive
                and config.data.transforms
                and config.data.transforms_mode == "replace"
            ),
            "train.progressive and data.transforms_mode=replace both set the crop: use only one",
            {},
        ),
        (
            cpu and train.precision in ("fp16", "tf32"),
            (
                f"train.precision={train.precision} needs a GPU: use fp32, or bf16 on a CPU with "
                "bf16 units"
            ),
            {"train.precision": "fp32"},
        ),
        (
            cpu and loss.upsample == "fused",
            "loss.upsample=fused needs a GPU: use auto",
            {"loss.upsample": "auto"},
        ),
        (
            named and len(weights) != len(classes),  # type: ignore[arg-type]
            f"loss.class_weights has {numbers}: give one number per class",
            {},
        ),
    ]


def rules_of_strategy(config: Config) -> list[Rule]:
    """Rules of the parallel strategy, the backend, and the compiler, as ``rules_of_training``."""
    train, parallel, strategy = config.train, config.parallel, config.parallel.strategy
    cpu, micro, ray_data = (
        train.device == "cpu",
        train.accumulate > 1,
        config.data.helpers == "ray-data",
    )
    rows: list[Rule] = [
        (
            strategy == "smddp" and cpu,
            "parallel.strategy=smddp needs GPUs: use ddp on a CPU",
            {"parallel.strategy": "ddp"},
        ),
        (
            cpu and parallel.backend == "nccl",
            "parallel.backend=nccl needs GPUs: set parallel.backend=gloo or auto",
            {"parallel.backend": "auto"},
        ),
        (
            ray_data and train.deterministic,
            "train.deterministic=true: data.helpers=ray-data has no fixed order: use ray",
            {"data.helpers": "ray"},
        ),
        (
            ray_data and bool(train.progressive),
            "train.progressive: data.helpers=ray-data makes crops of one size: use ray",
            {"data.helpers": "ray"},
        ),
        (
            config.optim.name == "muon" and strategy == "fsdp",
            (
                "optim.name=muon needs whole weight matrices, but fsdp shards them: use ddp, or "
                "optim.name=adamw"
            ),
            {"parallel.strategy": "ddp"},
        ),
        (
            train.channels_last is True and strategy == "fsdp",
            (
                "train.channels_last=true: fsdp shards contiguous weights only: use "
                "train.channels_last=auto"
            ),
            {"train.channels_last": "auto"},
        ),
        (
            train.compile == "reduce-overhead" and micro,
            "train.compile=reduce-overhead: with train.accumulate>1, each micro-batch would "
            "overwrite the last gradients: use true or regions",
            {"train.compile": True},
        ),
        (
            isinstance(train.compile, str) and strategy in ("dp", "fsdp"),
            (
                f"train.compile={train.compile}: parallel.strategy={strategy} takes only the whole "
                "network: use true"
            ),
            {"train.compile": True},
        ),
        (
            parallel.compress != "none" and strategy in ("single", "dp", "fsdp"),
            (
                f"parallel.compress={parallel.compress}: parallel.strategy={strategy} does not "
                "compress: use none"
            ),
            {"parallel.compress": "none"},
        ),
    ]
    exact = f"parallel.exact={parallel.exact}"
    no_power = bool(parallel.exact & (parallel.exact - 1))
    rows += [
        (
            no_power,
            f"{exact} must be a power of two, because sums are balanced trees",
            {"parallel.exact": 1 << parallel.exact.bit_length()},
        ),
        *(
            (
                parallel.exact > 0 and conflict and not no_power,
                f"{exact} does not go with {rival}: set one of them back",
                {"parallel.exact": 0},
            )
            for rival, conflict in {
                f"parallel.strategy={strategy}, which sums in an order of its own": strategy
                not in ("auto", "single", "ddp"),
                "train.accumulate>1, which adds gradients in sequence": micro,
                "train.compile, which merges kernels": bool(train.compile),
                "train.kernels, which sum in an order of their own": bool(train.kernels),
                "train.cuda_graph, which draws dropout for the whole batch": train.cuda_graph
                is True,
                f"parallel.compress={parallel.compress}": parallel.compress != "none",
                f"parallel.threads={parallel.threads}, because kernels divide their work among "
                "threads": parallel.threads not in ("auto", 1),
                f"train.batch_size={train.batch_size}, which is not a multiple of it": bool(
                    train.batch_size % max(1, parallel.exact)
                ),
            }.items()
        ),
    ]
    for rival in rivals_of_graphs(config) if train.cuda_graph is True else ():
        text = f"train.cuda_graph=true does not go with {rival}: set one of them back"
        rows.append((True, text, {"train.cuda_graph": False}))
    for rival, conflict in {
        "train.device=cpu": cpu,
        "train.channels_last=false": train.channels_last is False,
        "train.compile": bool(train.compile),
        "parallel.strategy=dp": strategy == "dp",
    }.items():
        text = f"train.kernels does not go with {rival}: set one of them back"
        rows.append((bool(train.kernels) and conflict, text, {"train.kernels": ()}))
    return rows


def rivals_of_graphs(config: Config) -> list[str]:
    """The settings that do not go with CUDA graphs of a step, each with its reason."""
    strategy = config.parallel.strategy
    rivals = {
        "train.device=cpu, which has no CUDA graphs": config.train.device == "cpu",
        "train.accumulate>1, which draws dropout for each micro-batch": config.train.accumulate > 1,
        "loss.stride>1, which reads other pixels in each step": config.loss.stride > 1,
        "train.compile=reduce-overhead, which has its own CUDA graphs": config.train.compile
        == "reduce-overhead",
        f"parallel.strategy={strategy}, which is not one process on one GPU": strategy
        not in ("auto", "single"),
    }
    return [rival for rival, conflict in rivals.items() if conflict]
