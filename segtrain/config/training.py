"""Which settings say what is trained, by which loss and steps, and how ranks share the work?"""

from __future__ import annotations

from typing import Any, Literal, Union

from pydantic import Field, field_validator

from segtrain.config.section import Section, check_duration


class Model(Section):
    """The network: ``pico`` (ours), an SMP architecture (``unet``, ``fpn``, ...) or ``torchvision/NAME``."""

    arch: str = Field("pico", description="pico, an SMP architecture, or torchvision/NAME")
    encoder: str = Field("resnet18", description="SMP encoder")
    encoder_weights: Union[str, None] = Field(
        None, description="'imagenet' or another name that SMP knows; null: scratch"
    )
    fast: bool = Field(True, description="use exact rewrites of slow layers (same weights, same gradients)")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the architecture's constructor")


class LossTerm(Section):
    """One term of the loss: its name, its weight in the sum, and the settings of that name."""

    name: Literal["ce", "ohem", "focal", "dice", "jaccard", "lovasz", "tversky"] = Field("ce", description="which loss")
    weight: float = Field(1.0, gt=0, description="its factor in the sum")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="ce")
    keep: float = Field(0.25, gt=0, le=1, description="ohem: least share of valid pixels kept")
    threshold: float = Field(0.7, gt=0, le=1, description="ohem: pixels below this probability are always kept")
    gamma: float = Field(2.0, ge=0, description="focal")
    alpha: float = Field(0.5, ge=0, description="tversky: weight of false positives")
    beta: float = Field(0.5, ge=0, description="tversky: weight of false negatives")


class Loss(Section):
    """A weighted sum of terms over the valid pixels of the global batch."""

    terms: tuple[LossTerm, ...] = Field((LossTerm(),), min_length=1, description="what is added up; see below")
    class_weights: Union[Literal["none", "auto"], tuple[float, ...]] = Field(
        "none", description="'auto': from the training masks; or one number a class"
    )
    class_weight_power: float = Field(0.5, ge=0, le=1, description="auto: (median share / share) ** power")
    aux_weight: float = Field(0.4, ge=0, description="weight of auxiliary heads, where the model has them")
    stride: int = Field(
        1, ge=1, le=8, description="count every n-th pixel in each direction, from a corner drawn for each step; 1: all"
    )
    full_logits: bool = Field(False, description="hold full-size logits of the whole batch (the plain way)")

    @field_validator("terms", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """``ce`` and ``[ce, dice]`` are short for terms of weight 1."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            return value
        return [{"name": item} if isinstance(item, str) else item for item in value]


class Optim(Section):
    """Optimizer, schedule and what is done to the gradient."""

    name: Literal["sgd", "adamw", "muon"] = Field("adamw", description="optimizer")
    lr: float = Field(1e-3, gt=0, description="learning rate, before the schedule")
    encoder_lr: float = Field(1.0, ge=0, description="multiplier of lr for the encoder")
    weight_decay: float = Field(1e-2, ge=0, description="not applied to biases and norms")
    muon_lr: float = Field(2e-2, gt=0, description="muon: learning rate of the convolution filters; lr is for the rest")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd and muon")
    betas: tuple[float, float] = Field((0.9, 0.999), description="adamw")
    schedule: Literal["constant", "poly", "cosine", "onecycle", "linear"] = Field(
        "poly", description="learning rate over the run; after the warm-up it falls to 0 (but constant)"
    )
    poly_power: float = Field(0.9, gt=0, description="poly: (1 - step / steps) ** power")
    warmup: str = Field("0st", description="linear warm-up (onecycle: its rise): '1ep', '500st' or '15%'")
    clip: float = Field(0.0, ge=0, description="global gradient norm; 0: off")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the moving average of the weights; 0: off")

    _check_duration = field_validator("warmup", mode="before")(check_duration)


class Train(Section):
    """How long, how many at once, in which numbers."""

    duration: str = Field("20ep", description="'20ep' or '5000st'")
    batch_size: int = Field(16, ge=1, description="images in one optimizer step, over all ranks and micro-batches")
    accumulate: int = Field(1, ge=1, description="micro-batches in one optimizer step")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="numbers of forward and backward; weights stay fp32"
    )
    seed: int = Field(0, ge=0, description="of weights, order and augmentation")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is a GPU")
    channels_last: Union[bool, Literal["auto"]] = Field(
        "auto", description="auto: on with CUDA and on CPUs with AVX512"
    )
    compile: bool = Field(False, description="torch.compile: slower to start, faster after")
    deterministic: bool = Field(False, description="refuse kernels whose result varies from run to run")
    progressive: tuple[tuple[float, float], ...] = Field(
        (), description="[[until share of steps, size factor], ...]: smaller crops at first"
    )

    _check_duration = field_validator("duration", mode="before")(check_duration)

    @field_validator("progressive")
    @classmethod
    def _stages(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        ends = [end for end, _ in value]
        if ends != sorted(set(ends)) or any(not 0 < end <= 1 for end in ends) or any(not 0 < f <= 1 for _, f in value):
            raise ValueError("must be [[until, factor], ...] with rising 0 < until <= 1 and 0 < factor <= 1")
        return value


class Parallel(Section):
    """How the ranks share the work."""

    strategy: Literal["auto", "single", "dp", "ddp", "fsdp", "smddp"] = Field(
        "auto", description="auto: ddp where there are several ranks, else single"
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="auto: nccl with CUDA, else gloo")
    procs: Union[int, Literal["auto"]] = Field(
        "auto", description="ranks that `segtrain train` starts by itself on a CPU host; auto: one a core"
    )
    threads: Union[int, Literal["auto"]] = Field("auto", description="compute threads of a rank; auto: cores / ranks")
    sync_bn: bool = Field(False, description="batch norm statistics over all ranks")
    bucket_mb: float = Field(25.0, gt=0, description="ddp: MiB of gradients that travel together")
    bucket_view: bool = Field(True, description="ddp: gradients live in the buckets (saves memory)")
    static_graph: bool = Field(False, description="ddp: promise that every step uses the same layers")
    compress: Literal["none", "fp16", "bf16", "powersgd"] = Field("none", description="gradient compression (ddp)")
    broadcast_buffers: bool = Field(False, description="ddp: copy rank 0's batch-norm statistics before every forward")
    timeout_s: float = Field(600.0, gt=0, description="how long a collective may wait")
