"""Settings of the network, the length of a run, and the parallel strategy."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.section import Section, SettingError, UserPath, durations


class Model(Section):
    """The network: `pico` (ours), an SMP architecture (`unet`, `fpn`, ...), or `torchvision/NAME`."""

    arch: str = Field(
        "pico", description="'pico' (small, for CPUs), one of segmentation-models-pytorch (SMP), or torchvision/NAME"
    )
    encoder: str = Field("resnet18", description="encoder of an SMP architecture; tu-NAME is an encoder of timm")
    encoder_weights: Union[UserPath, None] = Field(
        None, description="weights of the encoder: 'imagenet', another name that SMP knows, or a file; null: random"
    )
    init: UserPath = Field(
        "", description="initial weights of the network: a run folder, an export, FILE.safetensors, or FILE.pth"
    )
    freeze: Literal["none", "encoder"] = Field(
        "none", description="'encoder': no gradients for the encoder, and fixed batch norm statistics"
    )
    fast: bool = Field(True, description="replace slow layers by faster ones with the same weights and gradients")
    options: dict[str, Any] = Field(
        default_factory=dict, description="extra arguments of the architecture's constructor"
    )

    @model_validator(mode="after")
    def _frozen(self) -> Model:
        if self.freeze == "encoder" and not self.init and not self.encoder_weights:
            raise SettingError(
                "model.freeze=encoder would freeze random weights: set model.encoder_weights or model.init"
            )
        return self


class Train(Section):
    """Length, batch size, precision, and device."""

    duration: str = Field("20ep", description="length of the run: '20ep' (epochs) or '5000st' (optimizer steps)")
    batch_size: int = Field(16, ge=1, description="images per optimizer step, over all ranks and micro-batches")
    accumulate: int = Field(1, ge=1, description="micro-batches per optimizer step (gradient accumulation)")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="autocast dtype; weights stay fp32")
    seed: int = Field(0, ge=0, lt=2**64, description="seed of initial weights, sample order, and augmentation")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if there is a GPU, otherwise cpu")
    channels_last: Union[bool, Literal["auto"]] = Field(
        "auto", description="channels_last memory format. auto: on with CUDA, and on CPUs with AVX-512"
    )
    compile: bool = Field(False, description="use torch.compile: a slower start, then faster steps")
    deterministic: bool = Field(False, description="refuse kernels whose results vary from run to run")
    progressive: tuple[tuple[float, float], ...] = Field(
        (),
        description="smaller crops early in the run: `[[until, factor], ...]`, where until is a fraction of the run. "
        "`[[0.5, 0.5]]` trains the first half with crops of half the size",
    )

    _check_duration = field_validator("duration", mode="before")(durations("ep", "st"))

    @field_validator("progressive")
    @classmethod
    def _stages(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        ends = [end for end, _ in value]
        if ends != sorted(set(ends)) or any(not 0 < end <= 1 for end in ends) or any(not 0 < f <= 1 for _, f in value):
            raise ValueError("must be [[until, factor], ...] with increasing 0 < until <= 1 and 0 < factor <= 1")
        return value


Count = Annotated[int, Field(ge=1, le=4096)]


class Parallel(Section):
    """How the ranks share the work."""

    strategy: Literal["auto", "single", "dp", "ddp", "fsdp", "smddp"] = Field(
        "auto", description="auto: ddp with several ranks, otherwise single"
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="communication backend. auto: nccl with CUDA, otherwise gloo"
    )
    procs: Union[Count, Literal["auto"]] = Field(
        "auto", description="ranks that `segtrain train` starts. auto: one per GPU; without a GPU, one per CPU core"
    )
    threads: Union[Count, Literal["auto"]] = Field("auto", description="compute threads per rank. auto: cores / ranks")
    sync_bn: bool = Field(False, description="compute batch norm statistics over all ranks (SyncBatchNorm)")
    bucket_mb: float = Field(25.0, gt=0, le=65_536, description="ddp: size of a gradient bucket in MiB (bucket_cap_mb)")
    bucket_view: bool = Field(
        True, description="ddp: gradients are views into the buckets, which saves memory (gradient_as_bucket_view)"
    )
    static_graph: bool = Field(False, description="ddp: assume that every step uses the same layers (static_graph)")
    compress: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none", description="compression of gradients on their way between ranks (ddp and smddp)"
    )
    broadcast_buffers: bool = Field(
        False, description="ddp: copy the batch norm statistics of rank 0 to the other ranks before every forward"
    )
    timeout_s: float = Field(600.0, gt=0, le=2_592_000, description="longest wait of a collective, in seconds")
