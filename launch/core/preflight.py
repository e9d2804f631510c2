"""Checks of the training config before a job is sent: that it loads, and fits the machines. Used by
all platforms.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.core.bundle import file_settings, settings_here
from launch.core.findings import Finding, error, note, warning
from launch.core.job import ROOT, Job, config_file
from segtrain.errors import ConfigError

if TYPE_CHECKING:
    from segtrain.config import Config

_SECRET_NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|(API|PRIVATE|ACCESS)_?KEY(?!_ID$)|(^|_)TOKEN$", re.IGNORECASE
)
# Secrets with a known format: AWS, private keys, Hugging Face, GitHub, GitLab, Slack, OpenAI and
# Anthropic, Google, PyPI, npm, and a password inside a URL.
SECRET_VALUE = re.compile(
    r"\bA(KIA|SIA)[0-9A-Z]{16}\b|BEGIN [A-Z ]*PRIVATE "
    r"KEY|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_\w{20,}|\bglpat-[\w-]{15,}|\bxox[abprs]-[\w-]{10,}|\bsk-[\w-]{20,}|\bAIza[\w-]{30,}"
    r"|\bpypi-[\w-]{30,}|\bnpm_[A-Za-z0-9]{30,}|://[^/\s:@]+:[^/\s:@]+@"
)


@dataclass(frozen=True)
class Machines:
    """The machines that train. ``gpus``: GPUs per host, None if unknown; ``gpu`` and ``arch``:
    model and compute capability, such as ``A10G`` and ``sm_86``. ``vcpus``: 0 if unknown.

    ``ranks``: ranks of all hosts together; ``local``: ranks per host.
    """

    type: str
    hosts: int
    ranks: int
    local: int = 1
    gpus: int | None = None
    vcpus: int = 0
    gpu: str = ""
    arch: str = ""


@dataclass(frozen=True)
class Read:
    """The config of a job as the machines will see it (None if it cannot be checked), and findings
    from reading it.
    """

    config: Config | None = None
    findings: list[Finding] = field(default_factory=list)
    # Sections of the config file, before any default.
    written: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def setting(self, section: str, key: str, default: Any = "") -> Any:
        """The value of a setting in the job's settings, else in the config file, else
        ``default``.
        """
        section_values = self.written.get(section)
        inner = section_values.get(key, default) if isinstance(section_values, dict) else default
        return self.settings.get(f"{section}.{key}", inner)

    @property
    def reads_files(self) -> bool:
        return bool(self.setting("data", "layout", "scenes") != "scenes")


def read_config(job: Job, data: str, unknown: str = "") -> Read:
    """Read a job's config as the machines would. ``data``: the place of the job's data there, which
    wins over data.root; "" if the job has none. ``unknown``: stands for data.root where nothing
    names one.
    """
    path = config_file(job).absolute()
    if job.config and not os.path.isfile(path):
        cure = "a file, such as configs/scenes.yaml"
        return Read(
            findings=[error("config", f"config={job.config!r}: there is no such file", cure)]
        )
    try:
        import yaml

        from segtrain.config import load_config, refuse_names
    except ImportError as missing:
        return Read(
            findings=[
                note(
                    "config-unchecked",
                    f"config {job.config} and its settings are not checked: this Python has no "
                    f"package {missing.name!r}",
                    "pip install . (or pip install pydantic pyyaml)",
                )
            ]
        )
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) if job.config else {}
        read = Read(written=raw if isinstance(raw, dict) else {}, settings=dict(job.settings))
        settings = {**job.settings, **settings_here(job), "parallel.strategy": job.strategy}
        if read.reads_files and (
            place := data or ("" if read.setting("data", "root") else unknown)
        ):
            settings["data.root"] = place
        with _inside():
            config = load_config(
                path if job.config else None,
                [f"{key}={json.dumps(value)}" for key, value in settings.items()],
            )
    except (ConfigError, yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
        lines = str(problem).replace(f"{path}", job.config).splitlines()
        return Read(
            findings=[
                error("config", line, "fix the config, or give section.key=value") for line in lines
            ]
        )
    try:
        refuse_names(config.model)
    except ConfigError as problem:
        wrong = error(
            "model-name", f"{job.config}: {problem}", "fix the config, or give section.key=value"
        )
        read.findings.append(wrong)
    return Read(config, read.findings, read.written, read.settings)


@contextmanager
def _inside() -> Iterator[None]:
    """Work in ROOT: paths in a config are relative to the folder of the code, both here and on
    the machines.
    """
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


def files_of_weights(config: Config) -> list[tuple[str, str]]:
    """Setting and path of each file or folder with weights that the run starts from."""
    from segtrain.config import is_file_name

    named = [("model.init", config.model.init)]
    weights = config.model.encoder_weights
    if weights and is_file_name(weights):
        named.append(("model.encoder_weights", weights))
    return [(key, place) for key, place in named if place]


def download(
    config: Config, level: Callable[..., Finding], where: str, cure: str
) -> Iterator[Finding]:
    """A finding of ``level`` for weights that each host downloads. ``where``: what stands against
    that.
    """
    weights = config.model.encoder_weights
    if weights and "model.encoder_weights" not in dict(files_of_weights(config)):
        yield level(
            "weights-download",
            f"model.encoder_weights={weights} is downloaded by each host: {where}",
            f"{cure}model.encoder_weights=FILE; docs/fine-tuning.md shows how to write it",
        )


def batch(config: Config, machines: Machines) -> Iterator[Finding]:
    world, train = machines.ranks, config.train
    images = train.batch_size // train.accumulate
    hint = f"{machines.hosts} x {machines.type} start {world} ranks"
    per_step = f"train.batch_size={train.batch_size}" + (
        f" in train.accumulate={train.accumulate} micro-batches" if train.accumulate > 1 else ""
    )
    if images < world:
        yield error(
            "batch-small",
            f"{per_step} leaves {images} images for {world} ranks ({hint})",
            f"train.batch_size={world * train.accumulate}, or fewer ranks",
        )
    elif images % world:
        yield warning(
            "batch-uneven",
            f"{per_step}: {images} images are not a multiple of {world} ranks ({hint}); each step "
            "waits for the ranks with one image more",
            f"train.batch_size={-(-images // world) * world * train.accumulate}",
        )


def hardware(config: Config, machines: Machines) -> Iterator[Finding]:
    """Checks that device, backend, precision, and workers fit the machines. None for machines with
    unknown GPUs.
    """
    if machines.gpus is None:
        return
    train, model = config.train, config.model
    if machines.gpus and model.arch == "auto" and not model.options and not model.init:
        yield note(
            "model-auto",
            "model.arch=auto: GPUs train a pretrained network, whose weights each host downloads; "
            "a rehearsal without GPUs trains pico",
            "model.arch=NAME; docs/models.md has the network for each GPU",
        )
    if machines.gpus and train.device == "cpu":
        yield warning(
            "device-cpu",
            f"train.device=cpu on {machines.type}: its {machines.gpus} GPUs would idle",
            "leave it out",
        )
    if not machines.gpus and train.device == "cuda":
        yield error(
            "device-cuda", f"train.device=cuda, but {machines.type} has no GPU", "train.device=auto"
        )
    if machines.gpus and config.parallel.backend == "gloo" and train.device != "cpu":
        yield warning(
            "backend-gloo",
            f"parallel.backend=gloo on {machines.type}: gradients of GPUs would travel through "
            "the CPUs",
            "parallel.backend=auto",
        )
    if train.precision == "tf32" and (not machines.gpus or machines.arch in ("sm_70", "sm_75")):
        yield error(
            "precision",
            f"train.precision=tf32 on {machines.type}, which has no units for it",
            "auto or fp32",
        )
    if train.precision == "bf16" and machines.arch in ("sm_70", "sm_75"):
        yield warning(
            "precision",
            f"train.precision=bf16 on {machines.gpu} ({machines.arch}), which computes it "
            "slowly, in software",
            "train.precision=auto, which is fp16 there",
            "CUDA C++ programming guide: bf16 from compute capability 8.0 on",
        )
    workers = config.data.workers
    if isinstance(workers, int) and 0 < 2 * machines.vcpus < workers * machines.local:
        yield warning(
            "workers-many",
            f"data.workers={workers} for each of {machines.local} ranks on {machines.vcpus} "
            f"vCPUs of {machines.type}",
            "data.workers=auto",
        )


def class_names(config: Config) -> Iterator[Finding]:
    """A warning if the names of the classes can only come from a file beside the data."""
    if config.data.layout in ("folders", "list") and not config.data.classes:
        yield warning(
            "classes-unknown",
            f"data.classes is empty, and data.layout={config.data.layout} has no class names: "
            "unless a classes.txt is at the top of the data, the job ends at its start",
            "data.classes=[background, road, ...], in the order of the ids",
        )


def data(job: Job, place: str, read: Read, cure: str) -> Iterator[Finding]:
    """Findings if the training reads nothing of ``place`` (the job's data), or has none to read."""
    if not read.reads_files:
        if place:
            yield warning(
                "data-unused",
                f"data.layout=scenes draws its own images: {place} would never be read",
                "set data.layout, or leave --data out",
            )
        return
    if not place and not read.setting("data", "root"):
        layout = read.setting("data", "layout")
        yield error(
            "data-missing",
            f"config {job.config}: data.layout={layout} reads files, but the job has no data",
            cure,
        )
    yield from data_twice(read, place)


def variables(job: Job) -> Iterator[Finding]:
    """An error for each variable of the job's environment that no shell and no container can
    have.
    """
    for key in job.environment:
        if not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
            yield error(
                "env-name",
                f"environment: {key!r} cannot be the name of a variable",
                "use letters, digits, and _",
            )


def data_twice(read: Read, data: str) -> Iterator[Finding]:
    """A warning if data.root is another place than ``data``, the place of the job's data on the
    machines.
    """
    root = str(read.setting("data", "root"))
    if root and data and root != data:
        words = f"data.root={root!r} of the config or the settings: --data wins, which is {data}"
        yield warning("data-twice", words, "say it once, with --data")


def looks_secret(name: str, text: str) -> bool:
    """Whether a variable or a setting looks like a secret, by its name or by its value."""
    return bool((_SECRET_NAME.search(name) and text) or SECRET_VALUE.search(text))


def trackers(job: Job, config: Config) -> Iterator[Finding]:
    """A tracker must be a server that the machines can reach: what is stored on a machine is lost
    when the job ends.
    """
    tracker = config.log.mlflow
    if re.match(r"https?://(localhost|127\.[\d.]+|0\.0\.0\.0|\[::1\])([:/]|$)", tracker):
        yield error(
            "mlflow-here",
            f"log.mlflow={tracker!r} is the job's own container",
            "a server that it can reach",
        )
    if tracker and not tracker.startswith(("https://", "http://", "arn:aws", "databricks")):
        yield warning(
            "mlflow-local",
            f"log.mlflow={tracker!r} is on the job's machine, and lost with it",
            "a server: https://...",
        )
    if config.log.wandb and not {"WANDB_API_KEY", "WANDB_MODE"} & set(job.environment):
        yield warning(
            "wandb-key",
            f"log.wandb={config.log.wandb!r}: the job's environment has no WANDB_API_KEY, without "
            "which wandb cannot start, and the job fails",
            "--env WANDB_API_KEY=... (anyone who may describe the job can read it), or --env "
            "WANDB_MODE=offline",
        )


def files(job: Job, bundled: Collection[str]) -> Iterator[Finding]:
    """An error for each file that a setting names but the bundle does not have under that name."""
    for key, text in file_settings(job).items() if bundled else ():
        path = re.sub(r"(:\w+)?(@[0-9a-f]{8})?$", "", text)
        if ":" in text and not path.endswith((".py", ".yaml", ".yml", ".json")):
            path = path.replace(".", "/") + ".py"  # package.module:attribute
        if os.path.normpath(path) not in bundled:
            yield error(
                "file-not-bundled",
                f"{key}={text!r}: {path} does not travel with the job",
                f"put it below the working directory, such as configs/{Path(path).name}, and "
                f"set {key} to that path",
            )
