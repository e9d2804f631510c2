"""What a config says of its job, and measurements on this machine: the cost of a sample, and a step
on its GPU.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence

from segtrain.config import Config, pretrained
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.index.layouts import LAYOUTS
from segtrain.data.labels.classes import label_space
from segtrain.data.storage import Range
from segtrain.errors import ConfigError, DataError
from segtrain.insight.plan.candidates import machines_of
from segtrain.insight.plan.described import (
    ConfigPlan,
    DescribedJob,
    SampleSeconds,
    Scored,
    Step,
    StoredSize,
    plan_config,
)
from segtrain.insight.plan.dry import DryModel
from segtrain.insight.plan.offers import HOSTS
from segtrain.machines import Machine
from segtrain.machines.gpu_names import gpu_named
from segtrain.observe.journal import Say

SAMPLES = 12  # whose cost is measured
SIZED = 200  # whose bytes are looked up
STEPS, WARM = 5, 3
# Without a measurement: CPU seconds per million pixels of an image, to decode it, and of a crop, to
# augment it.
DECODE_S, CROP_S = 5e-3, 8e-3
ASSUMED_SPREAD = (0.4, 2.5)
# Other processors than this machine's.
MEASURED_SPREAD = (0.7, 1.4)


def plan(
    config: Config,
    *,
    where: str = "aws",
    hosts: Sequence[int] = HOSTS,
    probe: bool = False,
    described: tuple[int, tuple[int, int]] | None = None,
    say: Say = lambda text: None,
) -> ConfigPlan:
    """Predict speed, time, and cost of training ``config`` on each machine type and number of
    hosts.

    ``where``: "aws", "gcp", "slurm:PARTITION", or types with commas. ``probe``: measure what
    samples cost here, and a step if there is a GPU. ``described``: number and (height, width) of
    the training images, in place of the data set. ``say``: told what is being done. ``best``,
    ``offers``, and ``left_out`` of the result hold
    the answer; seconds, dollars, and images/s are (10 %, 50 %, 90 %) of the cases. Raises
    SegtrainError.
    """
    kinds = machines_of(where)
    config = _with_network(config, kinds, say)
    job = job_without_data(config, *described) if described else job_of(config, probe, say)
    return plan_config(job, kinds, hosts)


def _with_network(config: Config, kinds: list[Machine], say: Say) -> Config:
    """The config with the network that ``model.arch=auto`` means on the smallest GPU of
    ``kinds``.
    """
    model = config.model
    memory = min((kind.gpu_memory_gb for kind in kinds if kind.gpu), default=0)
    if model.arch != "auto" or model.options or model.init or not memory:
        return config
    config = pretrained(config, memory)
    say(
        f"model.arch=auto: planned with {config.model.encoder}, which GPUs of {memory} GB train; "
        "for others, name them in --where"
    )
    return config


def job_without_data(config: Config, images: int, size: tuple[int, int]) -> DescribedJob:
    """The job of a config, for ``images`` training images of ``size`` (height, width) in place of
    its data set.

    Evaluations, and the bytes of the files, are not known. Raises SegtrainError.
    """
    layout = LAYOUTS[config.data.layout]
    labels = label_space(config.data, layout.labels, layout.other_classes)
    network = DryModel(
        config, labels.num_classes, config.train.batch_size // config.train.accumulate, images
    )
    return DescribedJob(config, StoredSize(images, 0.0, 0), network, assumed_sample(config, size))


def job_of(config: Config, probe: bool, say: Say = lambda text: None) -> DescribedJob:
    """The job of a config. ``probe``: measure a sample, and a step if there is a GPU. Raises
    SegtrainError.
    """
    train = config.train
    say("reading the listing of the data set")
    try:
        dataset = open_dataset(config.data, config.data.train_split)
    except DataError as error:
        if error.code != "folder-missing":
            raise
        raise DataError(
            f"{error}. Or describe the data: --images 2975 --image-size 1024x2048 (height x width)",
            code=error.code,
            **error.values,
        ) from None
    if not len(dataset):
        raise ConfigError(
            f"split {config.data.train_split} has no images: plan needs their number",
            code="no-samples",
            found=config.data.train_split,
        )
    say("computing FLOPs and memory")
    network = DryModel(
        config, dataset.labels.num_classes, train.batch_size // train.accumulate, len(dataset)
    )
    sample, step = assumed_sample(config, dataset.size(0)), None
    if probe:
        say("measuring samples")
        sample = measured_sample(config, dataset)
        step = measured_step(config, dataset.labels.num_classes)
    return DescribedJob(config, stored(config, dataset), network, sample, step, scored(config))


def scored(config: Config) -> Scored | None:
    """What an evaluation predicts; None without images."""
    dataset = open_dataset(config.data, config.data.split)
    return Scored(len(dataset), dataset.size(0)) if len(dataset) else None


def stored(config: Config, dataset: Dataset) -> StoredSize:
    """Mean bytes of a sample, from some of the files."""
    if config.data.layout == "scenes":
        return StoredSize(len(dataset), 0.0, 0)
    count = min(SIZED, len(dataset))
    spread = [index * len(dataset) // count for index in range(count)]
    ranges = (dataset.ranges(index) for index in spread)
    sizes = [sum(_length(dataset, span) for span in spans) for spans in ranges]
    return StoredSize(
        len(dataset), statistics.fmean(sizes), 1 if config.data.layout == "shards" else 2
    )


def _length(dataset: Dataset, part: Range) -> int:
    return part.length if part.length >= 0 else dataset.store.stat(part.path).size


def assumed_sample(config: Config, size: tuple[int, int]) -> SampleSeconds:
    """The cost of a sample by the size (height, width) of an image, and of the crop."""
    height, width = size
    crop = config.data.crop[0] * config.data.crop[1]
    decode, augment = DECODE_S * height * width / 1e6, CROP_S * crop / 1e6
    source = (
        f"{1000 * DECODE_S:g} ms of CPU per million pixels of an image, and {1000 * CROP_S:g} "
        "of a crop"
    )
    cached = config.data.cache == "ram"
    cost = augment + (0.0 if cached else decode)
    return SampleSeconds(
        cost, cost, ASSUMED_SPREAD, source, measured=False, first=cached * (decode + augment)
    )


def measured_sample(config: Config, dataset: Dataset) -> SampleSeconds:
    """The cost of a sample on one core of this machine, with the decoder of this installation.

    With data.cache=ram, a sample is read and decoded once.
    """
    from segtrain.insight.bench.child import child

    uncached = config.model_copy(update={"data": config.data.model_copy(update={"cache": "off"})})
    with tempfile.TemporaryDirectory(prefix="segtrain-plan-") as scratch:
        request = {"samples": min(SAMPLES, len(dataset)), "scratch": scratch, "packed": False}
        measured = child("stages", {"config": uncached.model_dump(mode="json"), **request})
    whole, cached = measured["stages"]["whole"], config.data.cache == "ram"
    cpu = whole["cpu_mean_ms"] / 1000
    wall = whole["wall_ms"] / 1000
    left = 1.0
    if cached:
        once = sum(measured["stages"][stage]["wall_mean_ms"] for stage in ("read", "decode"))
        left = 1 - once / whole["wall_mean_ms"]
    source = f"{measured['samples']} samples on one core of this machine ({measured['path_says']})"
    first = cpu if cached else 0.0
    return SampleSeconds(
        left * cpu, left * max(cpu, wall), MEASURED_SPREAD, source, measured=True, first=first
    )


def measured_step(config: Config, classes: int) -> Step | None:
    """A step of the config on this machine's GPU, with as many images as fit; None without a GPU of
    the table.
    """
    import torch

    if not torch.cuda.is_available() or config.train.device == "cpu":
        return None
    gpu = gpu_named(torch.cuda.get_device_name(0))
    if gpu is None:
        return None
    images = config.train.batch_size // config.train.accumulate
    while images >= 2:
        try:
            return Step(gpu.name, images, _step_seconds(config, classes, images))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            images //= 2
    return None


def _step_seconds(config: Config, classes: int, images: int) -> float:
    """Median seconds of forward pass, loss, and backward pass on random pictures."""
    import torch

    from segtrain.base.precision import allow_tf32, autocast, fitting
    from segtrain.losses import build_criterion, low_res_loss, low_res_totals
    from segtrain.models import build_model

    device = torch.device("cuda")
    name = fitting(device)[0] if config.train.precision == "auto" else config.train.precision
    allow_tf32(name == "tf32")
    settings = config.model.model_copy(update={"encoder_weights": None, "init": ""})
    bands = config.data.channels
    network = build_model(settings, classes, bands).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    criterion = build_criterion(config.loss.model_copy(update={"class_weights": "none"}), classes)
    pictures = torch.randn(images, bands, *config.data.crop, device=device).to(
        memory_format=torch.channels_last
    )
    target = torch.randint(0, classes, (images, *config.data.crop), device=device)
    times, mode = [], config.loss.upsample
    for _ in range(WARM + STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with autocast("cuda", name):
            low = network(pictures, low=True)[0]
        totals = low_res_totals(criterion, low.detach(), target, network.upsample, mode)
        low_res_loss(criterion, low, target, totals, network.upsample, mode).backward()
        network.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM:])
