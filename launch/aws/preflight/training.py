"""Will the training config load in the container, find its data there, and spread its batch over the ranks?"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.aws.bundle import file_settings
from launch.aws.instances import INSTANCES
from launch.aws.preflight.levels import error, note, warning
from launch.aws.preflight.machines import ranks
from launch.findings import Finding
from launch.job import Job, config_file
from segtrain.errors import ConfigError

if TYPE_CHECKING:
    from segtrain.config import Config

CHANNELS = "/opt/ml/input/data"


def training(job: Job, root: Path, bundled: Collection[str]) -> Iterator[Finding]:
    """``bundled``: the names of the files that travel with the job; empty where that is not known."""
    path = config_file(job, root)
    if job.config and not path.is_file():
        there = [f"configs/{found.name}" for found in sorted((root / "configs").glob("*.yaml"))]
        near = difflib.get_close_matches(job.config, there, n=1)
        cure = f"--config {near[0]}" if near else "--config FILE, as configs/scenes.yaml"
        yield error("config", f"config={job.config!r}: there is no such file", cure)
        return
    try:
        import yaml

        from segtrain.config import load_config, refuse_names
    except ImportError as missing:
        yield note(
            "config-unchecked",
            f"config {job.config} and its settings are not checked: this Python has no package {missing.name!r}",
            "pip install . (or pip install pydantic pyyaml)",
        )
        return
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) if job.config else {}
        told = _Told(raw if isinstance(raw, dict) else {}, job)
        with _inside(root):
            config = load_config(path.resolve() if job.config else None, told.overrides(job))
    except (ConfigError, yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
        for line in str(problem).replace(f"{path.resolve()}", job.config).splitlines():
            yield error("config", line, "mend the config, or give section.key=value")
        return
    try:
        refuse_names(config.model)
    except ConfigError as problem:
        yield error("model-name", f"{job.config}: {problem}", "mend the config, or give section.key=value")
    yield from _data(job, config, told)
    yield from _weights(job, config)
    yield from _batch(job, config)
    yield from _hardware(job, config)
    yield from _kept(job, config)
    yield from _files(job, root, bundled)


class _Told:
    """What the config file and the settings say themselves, before any default."""

    def __init__(self, raw: dict[str, Any], job: Job) -> None:
        self._raw, self._settings = raw, job.settings

    def get(self, section: str, key: str, default: Any = "") -> Any:
        found = self._raw.get(section)
        inner = found.get(key, default) if isinstance(found, dict) else default
        return self._settings.get(f"{section}.{key}", inner)

    @property
    def reads_files(self) -> bool:
        return bool(self.get("data", "layout", "scenes") != "scenes")

    def overrides(self, job: Job) -> list[str]:
        """The settings as in the container, where the data's root is a channel."""
        given = {**job.settings, "parallel.strategy": job.strategy}
        if self.reads_files and not self.get("data", "root"):
            given["data.root"] = f"{CHANNELS}/{_channel(job) or 'train'}"
        return [f"{key}={json.dumps(value)}" for key, value in given.items()]


def _channel(job: Job) -> str:
    """The channel that the container takes as the data's root: train, or the only one."""
    names = [channel.name for channel in job.data]
    return "train" if "train" in names else names[0] if len(names) == 1 else ""


@contextmanager
def _inside(root: Path) -> Iterator[None]:
    """Files in a config are named as seen from the code's folder, in the container as here."""
    before = os.getcwd()
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(before)


def _data(job: Job, config: Config, told: _Told) -> Iterator[Finding]:
    layout, root = config.data.layout, told.get("data", "root")
    if not told.reads_files:
        held = [place for _, place in files_of_weights(config)]
        idle = [one.name for one in job.data if not any(_lies_in(place, one.name) for place in held)]
        if idle:
            from segtrain.data.index.layouts import LAYOUTS

            yield warning(
                "data-unused",
                f"data.layout=scenes draws its own images: data.{idle[0]} would be mounted and never read",
                f"set data.layout={' or '.join(LAYOUTS)}, or leave --data out",
            )
        return
    if not job.data:
        yield error(
            "data-missing",
            f"config {job.config}: data.layout={layout} reads files, but the job has no data channel",
            "--data s3://BUCKET/PREFIX/, or --fsx fs-...:/MOUNTNAME/FOLDER",
        )
    elif root and not any(f"{root}/".startswith(f"{CHANNELS}/{channel.name}/") for channel in job.data):
        yield error(
            "data-root",
            f"data.root={root!r} is no folder of the container: channel {job.data[0].name!r} lies at "
            f"{CHANNELS}/{job.data[0].name}",
            "leave data.root out",
        )
    elif not root and not _channel(job):
        names = ", ".join(channel.name for channel in job.data)
        yield error(
            "channel-train",
            f"data: none of the channels {names} is called 'train', so which holds the data set is not clear",
            f"--data train=s3://..., or data.root={CHANNELS}/{job.data[0].name}",
        )
    if layout in ("folders", "list") and not config.data.classes and job.data:
        yield warning(
            "classes-unknown",
            f"data.classes is empty, and data.layout={layout} has no names of its own: unless a classes.txt lies at the top of the "
            "data, the job ends at its start",
            "data.classes=[background, road, ...], in the order of the ids",
        )
    for channel in job.data:
        if channel.mode == "FastFile" and not channel.is_file_system and layout != "shards":
            yield warning(
                "fastfile-small-files",
                f"data.{channel.name} with mode=FastFile and data.layout={layout}: each small file is a request to S3 of its "
                "own, again in every epoch",
                "--mode File, or pack shards: segtrain data pack",
                "SageMaker developer guide, model-access-training-data (FastFile for files of 50 MB and more)",
            )


def files_of_weights(config: Config) -> list[tuple[str, str]]:
    """Setting and place of each file or folder that the run begins with."""
    from segtrain.config import is_file_name

    named = [("model.init", config.model.init)]
    weights = config.model.encoder_weights
    if weights and is_file_name(weights):
        named.append(("model.encoder_weights", weights))
    return [(key, place) for key, place in named if place]


def _lies_in(place: str, channel: str) -> bool:
    return f"{os.path.normpath(place)}/".startswith(f"{CHANNELS}/{channel}/")


def _weights(job: Job, config: Config) -> Iterator[Finding]:
    """Weights come as a channel: the bundle holds code alone, and this machine's folders are not the container's."""
    for key, place in files_of_weights(config):
        if any(_lies_in(place, channel.name) for channel in job.data):
            continue
        own = bool(job.image) and os.path.isabs(place) and not place.startswith("/opt/ml/")
        level, where = (warning, f"unless {job.image} holds it") if own else (error, "the container has no such file")
        copy = "aws s3 cp --recursive" if os.path.isdir(place) or not Path(place).suffix else "aws s3 cp"
        inside = "" if copy.endswith("recursive") else f"/{Path(place).name}"
        yield level(
            "weights-missing",
            f"{key}={place!r}: weights do not travel with the code, and {where}",
            f"{copy} {shlex.quote(place)} s3://BUCKET/weights/, then --data weights=s3://BUCKET/weights/ (beside --data train=...) and "
            f"{key}={CHANNELS}/weights{inside}",
        )


def _batch(job: Job, config: Config) -> Iterator[Finding]:
    world, train = ranks(job), config.train
    images = train.batch_size // train.accumulate
    hint = f"{job.training_hosts} x {job.training_type} start {world} ranks"
    per_step = f"train.batch_size={train.batch_size}" + (
        f" in train.accumulate={train.accumulate} micro-batches" if train.accumulate > 1 else ""
    )
    if images < world:
        yield error(
            "batch-small",
            f"{per_step} leaves {images} images for {world} ranks ({hint})",
            f"train.batch_size={world * train.accumulate}, or fewer machines",
        )
    elif images % world:
        yield warning(
            "batch-uneven",
            f"{per_step}: {images} images do not divide by {world} ranks ({hint}); each step waits for those with one more",
            f"train.batch_size={-(-images // world) * world * train.accumulate}",
        )


def _hardware(job: Job, config: Config) -> Iterator[Finding]:
    instance = INSTANCES.get(job.training_type)
    if instance is None:
        return
    train = config.train
    if instance.gpus and train.device == "cpu":
        yield warning(
            "device-cpu", f"train.device=cpu on {instance.name}: its {instance.gpus} GPUs would idle", "leave it out"
        )
    if not instance.gpus and train.device == "cuda":
        yield error("device-cuda", f"train.device=cuda, but {instance.name} has no GPU", "train.device=auto")
    if instance.gpus and config.parallel.backend == "gloo" and train.device != "cpu":
        yield warning(
            "backend-gloo",
            f"parallel.backend=gloo on {instance.name}: gradients of GPUs would travel through the CPUs",
            "parallel.backend=auto",
        )
    if train.precision == "bf16" and instance.arch in ("sm_70", "sm_75"):
        yield warning(
            "precision",
            f"train.precision=bf16 on {instance.gpu} ({instance.arch}), which computes it slowly, in software",
            "train.precision=fp16",
            "CUDA C++ programming guide: bf16 from compute capability 8.0 on",
        )
    workers, local = config.data.workers, max(1, instance.gpus if job.strategy not in ("single", "dp") else 1)
    if isinstance(workers, int) and workers * local > 2 * instance.vcpus:
        yield warning(
            "workers-many",
            f"data.workers={workers} for each of {local} ranks on {instance.vcpus} vCPUs of {instance.name}",
            "data.workers=auto",
        )


def _kept(job: Job, config: Config) -> Iterator[Finding]:
    """What is written outside of the folders that SageMaker saves is gone with the machine."""
    if config.out and not config.out.startswith("/opt/ml/"):
        yield warning(
            "out",
            f"out={config.out!r}: in the container only /opt/ml/checkpoints, /opt/ml/model and /opt/ml/output are kept",
            "leave out= out of the settings",
        )
    tracker = config.log.mlflow
    if re.match(r"https?://(localhost|127\.[\d.]+|0\.0\.0\.0|\[::1\])([:/]|$)", tracker):
        yield error("mlflow-here", f"log.mlflow={tracker!r} is the container itself there", "a server that it reaches")
    if tracker and not tracker.startswith(("https://", "http://", "arn:aws", "databricks")):
        yield warning(
            "mlflow-local", f"log.mlflow={tracker!r} is a place on the machine, gone with it", "a server: https://..."
        )
    if config.log.wandb and not {"WANDB_API_KEY", "WANDB_MODE"} & set(job.environment):
        yield warning(
            "wandb-key",
            f"log.wandb={config.log.wandb!r}: the job's environment has no WANDB_API_KEY, without which wandb cannot start, and the job fails",
            "--env WANDB_API_KEY=... (whoever may describe the job can read it), or --env WANDB_MODE=offline",
        )
    if not config.checkpoint.resume and (job.spot or job.retries):
        why = "spot=true" if job.spot else f"retries={job.retries}"
        yield error(
            "resume-off",
            f"checkpoint.resume=false with {why}: every restart would begin the training again",
            "leave checkpoint.resume out",
        )
    if config.model.encoder_weights and "model.encoder_weights" not in dict(files_of_weights(config)) and job.subnets:
        yield note(
            "weights-download",
            f"model.encoder_weights={config.model.encoder_weights} is downloaded by each host: in a VPC that needs a NAT gateway",
        )


def _files(job: Job, root: Path, bundled: Collection[str]) -> Iterator[Finding]:
    """Files that settings name must lie in the bundle, under that name."""
    for key, text in file_settings(job, root).items() if bundled else ():
        path = re.sub(r"(:\w+)?(@[0-9a-f]{8})?$", "", text)
        if ":" in text and not path.endswith((".py", ".yaml", ".yml", ".json")):
            path = path.replace(".", "/") + ".py"  # package.module:attribute
        if os.path.normpath(path) not in bundled:
            yield error(
                "file-not-bundled",
                f"{key}={text!r}: {path} does not travel with the job",
                f"put it below the working directory, as configs/{Path(path).name}, and name it so",
            )
