"""The settings of the network, of the length of a run, and of how ranks share the work."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.section import Section, UserPath, durations


class Model(Section):
    """The network: ``pico`` (ours), an SMP architecture (``unet``, ``fpn``, ...) or ``torchvision/NAME``."""

    arch: str = Field("pico", description="pico, an SMP architecture, or torchvision/NAME")
    encoder: str = Field("resnet18", description="SMP encoder")
    encoder_weights: Union[UserPath, None] = Field(
        None, description="'imagenet' or another name that SMP knows, or a file of the encoder's weights; null: scratch"
    )
    init: UserPath = Field(
        "", description="begin with the weights of a run folder, an export, FILE.safetensors or FILE.pth; empty: none"
    )
    freeze: Literal["none", "encoder"] = Field(
        "none", description="encoder: keep it as it is (no gradients, and batch norm's statistics stand still)"
    )
    fast: bool = Field(True, description="use exact rewrites of slow layers (same weights, same gradients)")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the architecture's constructor")

    @model_validator(mode="after")
    def _frozen(self) -> Model:
        if self.freeze == "encoder" and not self.init and not self.encoder_weights:
            raise ValueError(
                "model.freeze=encoder would keep random numbers: give the encoder weights by model.encoder_weights or model.init"
            )
        return self


class Train(Section):
    """How long, how many at once, in which numbers."""

    duration: str = Field("20ep", description="'20ep' or '5000st'")
    batch_size: int = Field(16, ge=1, description="images in one optimizer step, over all ranks and micro-batches")
    accumulate: int = Field(1, ge=1, description="micro-batches in one optimizer step")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="numbers of forward and backward; weights stay fp32"
    )
    seed: int = Field(0, ge=0, lt=2**64, description="of weights, order and augmentation")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is a GPU")
    channels_last: Union[bool, Literal["auto"]] = Field(
        "auto", description="auto: on with CUDA and on CPUs with AVX512"
    )
    compile: bool = Field(False, description="torch.compile: slower to start, faster after")
    deterministic: bool = Field(False, description="refuse kernels whose result varies from run to run")
    progressive: tuple[tuple[float, float], ...] = Field(
        (), description="[[until share of steps, size factor], ...]: smaller crops at first"
    )

    _check_duration = field_validator("duration", mode="before")(durations("ep", "st"))

    @field_validator("progressive")
    @classmethod
    def _stages(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        ends = [end for end, _ in value]
        if ends != sorted(set(ends)) or any(not 0 < end <= 1 for end in ends) or any(not 0 < f <= 1 for _, f in value):
            raise ValueError("must be [[until, factor], ...] with rising 0 < until <= 1 and 0 < factor <= 1")
        return value


Processes = Annotated[int, Field(ge=1, le=4096)]


class Parallel(Section):
    """How the ranks share the work."""

    strategy: Literal["auto", "single", "dp", "ddp", "fsdp", "smddp"] = Field(
        "auto", description="auto: ddp where there are several ranks, else single"
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="auto: nccl with CUDA, else gloo")
    procs: Union[Processes, Literal["auto"]] = Field(
        "auto",
        description="ranks that `segtrain train` starts by itself; auto: one per GPU, on a CPU host one per core",
    )
    threads: Union[Processes, Literal["auto"]] = Field(
        "auto", description="compute threads of a rank; auto: cores / ranks"
    )
    sync_bn: bool = Field(False, description="batch norm statistics over all ranks")
    bucket_mb: float = Field(25.0, gt=0, le=65_536, description="ddp: MiB of gradients that travel together")
    bucket_view: bool = Field(True, description="ddp: gradients live in the buckets (saves memory)")
    static_graph: bool = Field(False, description="ddp: promise that every step uses the same layers")
    compress: Literal["none", "fp16", "bf16", "powersgd"] = Field("none", description="gradient compression (ddp)")
    broadcast_buffers: bool = Field(False, description="ddp: copy rank 0's batch-norm statistics before every forward")
    timeout_s: float = Field(600.0, gt=0, le=2_592_000, description="how long a collective may wait")
