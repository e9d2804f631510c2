"""Settings of the network, the training, the parallel strategy, the checkpoints, and the log."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.evaluation import AUTO
from segtrain.config.facts import setting
from segtrain.config.limits import dollars_of, limit, seconds_of
from segtrain.config.section import AnyPlace, LocalPath, Section, SettingError, durations

FEW_IMAGES = 500  # to train a pretrained encoder with
FEW_STEPS = 400  # fewer are too few for a network of new weights to predict rare classes


class Model(Section):
    """The network: `pico` (ours), an SMP architecture (`unet`, `fpn`, ...), or
    `torchvision/NAME`.
    """

    arch: str = Field(
        "auto",
        description="'pico' (small, for CPUs), one of SMP (unet, fpn, ...), or torchvision/NAME. "
        "auto: on a GPU a pretrained network that fits it, with its recipe; on a CPU pico",
    )
    encoder: str = Field(
        "resnet18", description="encoder of an SMP architecture; tu-NAME is an encoder of timm"
    )
    encoder_weights: Union[LocalPath, None] = setting(
        ["speed_neutral", "plan_neutral"],
        None,
        description="weights of the encoder: 'imagenet', another name that SMP knows, or a file; "
        "null: random",
    )
    init: LocalPath = setting(
        ["plan_neutral"],
        "",
        description="initial weights: a run folder, an export, FILE.safetensors, or FILE.pth",
    )
    freeze: Literal["none", "encoder", "auto"] = Field(
        "none",
        description="'encoder': its weights and batch norms stay fixed. auto: encoder if it is "
        f"pretrained and there are fewer than {FEW_IMAGES} training images, else none",
    )
    fast: bool = Field(
        True, description="replace slow layers by faster ones with the same weights and gradients"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="extra arguments of the network's constructor"
    )

    @model_validator(mode="after")
    def _frozen(self) -> Model:
        if self.freeze == "encoder" and not self.init and not self.encoder_weights:
            fix = "set model.encoder_weights or model.init"
            raise SettingError(f"model.freeze={self.freeze} would freeze random weights: {fix}")
        return self

    def frozen_with(self, images: int) -> Literal["none", "encoder"]:
        """The part that ``freeze`` means with this number of training images."""
        if self.freeze != "auto":
            return self.freeze
        pretrained = self.init or self.encoder_weights
        return "encoder" if pretrained and images < FEW_IMAGES else "none"


class Train(Section):
    """Length, batch size, precision, and device."""

    duration: str = setting(
        ["speed_neutral", "plan_neutral"],
        "20ep",
        description="length of the run: '20ep' (epochs) or '5000st' (optimizer steps)",
    )
    batch_size: int = setting(
        ["plan_neutral"],
        16,
        ge=1,
        description="images per optimizer step, over all ranks and micro-batches",
    )
    accumulate: int = setting(
        ["untrained", "plan_neutral"],
        1,
        ge=1,
        description="micro-batches per optimizer step (gradient accumulation)",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = setting(
        ["eval"],
        "fp32",
        description="arithmetic; weights stay fp32. auto: bf16 or fp16 if the device has units "
        "for it, else fp32",
    )
    seed: int = setting(
        ["speed_neutral", "plan_neutral"],
        0,
        ge=0,
        lt=2**64,
        description="seed of initial weights, sample order, and augmentation",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        ["untrained", "eval", "plan_neutral"],
        "auto",
        description="auto: cuda if there is a GPU, otherwise cpu",
    )

    @field_validator("device", mode="before")
    @classmethod
    def _no_mps(cls, device: Any) -> Any:
        if device == "mps":
            raise SettingError(
                "train.device=mps: Apple's GPU is not supported: use cpu", "unknown-choice"
            )
        return device

    channels_last: Union[bool, Literal["auto"]] = setting(
        ["untrained"],
        "auto",
        description="channels_last memory format. auto: on with CUDA, and on CPUs with AVX-512",
    )
    compile: Union[bool, Literal["regions", "reduce-overhead"]] = setting(
        ["untrained"],
        False,
        description="use torch.compile: a slower start, then faster steps. true: the whole "
        "network; regions: each of its repeated blocks; reduce-overhead: the whole network, "
        "replayed as CUDA graphs",
    )
    cuda_graph: Union[bool, Literal["auto"]] = setting(
        ["untrained"],
        False,
        description="on one GPU, replay forward, loss, and backward of a step as CUDA graphs: for "
        "networks so small that the host is the limit. auto: if measured to be faster",
    )
    kernels: tuple[Literal["batch_norm", "layer_norm", "depthwise", "linear"], ...] = setting(
        ["untrained"],
        (),
        description="layers that train in kernels of segtrain on an NVIDIA GPU: batch_norm (with "
        "addition and ReLU), layer_norm (in 16 bits), depthwise (3x3 convolutions), linear (their "
        "biases). Not measured yet",
    )
    deterministic: bool = Field(
        False, description="refuse kernels whose results vary from run to run"
    )
    progressive: tuple[tuple[float, float], ...] = Field(
        (),
        description="`[[until, factor], ...]`: until that fraction of the run, multiply the crop "
        "size by factor",
    )

    deadline: str = setting(
        ["untrained", "plan_neutral"],
        "",
        description="stop with a checkpoint before the run has taken this long: '90m', '2h'; "
        "empty: no limit",
    )
    budget: str = setting(
        ["untrained", "plan_neutral"],
        "",
        description="stop with a checkpoint before the run's machines have cost this much: "
        "'20$'; empty: no limit",
    )
    patience: int = setting(
        ["untrained", "speed_neutral", "plan_neutral"],
        0,
        ge=0,
        description="end the run after this many evaluations without a better best; 0: never",
    )
    extend: str = setting(
        ["untrained", "speed_neutral", "plan_neutral"],
        "0st",
        description="steps or epochs after those of train.duration: continues a finished run",
    )
    price: Union[float, None] = setting(
        ["untrained", "plan_neutral"],
        None,
        gt=0,
        le=100_000,
        description="dollars per hour of one machine. null: SageMaker's on-demand price",
    )

    _check_duration = field_validator("duration", mode="before")(durations("ep", "st"))
    _check_extend = field_validator("extend", mode="before")(durations("ep", "st", zero=True))
    _check_deadline = field_validator("deadline", mode="before")(
        limit(seconds_of, "a time such as '90m' or '2h'")
    )
    _check_budget = field_validator("budget", mode="before")(
        limit(dollars_of, "dollars, such as '20$'")
    )

    @field_validator("progressive")
    @classmethod
    def _stages(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        ends = [end for end, _ in value]
        if (
            ends != sorted(set(ends))
            or any(not 0 < end <= 1 for end in ends)
            or any(not 0 < f <= 1 for _, f in value)
        ):
            raise ValueError(
                "must be [[until, factor], ...] with increasing 0 < until <= 1 and 0 < factor <= 1"
            )
        return value


Count = Annotated[int, Field(ge=1, le=4096)]


class Parallel(Section):
    """How the ranks share the work."""

    strategy: Literal["auto", "single", "dp", "ddp", "fsdp", "smddp"] = Field(
        "auto", description="auto: ddp with several ranks, otherwise single"
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="auto: nccl with CUDA, otherwise gloo"
    )
    procs: Union[Count, Literal["auto"]] = setting(
        ["per_host"],
        "auto",
        description=(
            "ranks that `segtrain train` starts. auto: one per GPU; without a GPU, one per CPU core"
        ),
    )
    threads: Union[Count, Literal["auto"]] = setting(
        ["per_host"], "auto", description="compute threads per rank. auto: cores / ranks"
    )
    sync_bn: bool = Field(
        False, description="compute batch norm statistics over all ranks (SyncBatchNorm)"
    )
    exact: int = Field(
        0,
        ge=0,
        le=65_536,
        description="V: the weights have the same bits on 1, 2, 4, ..., V ranks, because a batch "
        "is computed in V slices, whose sums are balanced trees. 0: off",
    )
    bucket_mb: float = Field(
        25.0, gt=0, le=65_536, description="ddp: size of a gradient bucket in MiB (bucket_cap_mb)"
    )
    bucket_view: bool = Field(
        True, description="ddp: gradients are views into the buckets (gradient_as_bucket_view)"
    )
    static_graph: bool = Field(
        False, description="ddp: assume that every step uses the same layers (static_graph)"
    )
    compress: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        "none",
        description="compression of gradients on their way between ranks (ddp and smddp). fp16 and "
        "bf16 send half the bytes; powersgd sends much less, changes the result, and cannot resume",
    )
    broadcast_buffers: bool = Field(
        False, description="ddp: copy rank 0's batch norm statistics before each forward"
    )
    timeout_s: float = setting(
        ["speed_neutral"],
        600.0,
        gt=0,
        le=2_592_000,
        description="seconds that a collective waits for other ranks",
    )


class Checkpoint(Section):
    """What is saved, and when."""

    every: str = Field(
        "auto", description=f"'1ep' or '500st'; {AUTO}. SIGTERM and Ctrl-C also save"
    )
    keep: int = setting(
        ["speed_neutral"],
        2,
        ge=1,
        description="number of recent checkpoints to keep; the best one is also kept",
    )
    background: bool = Field(
        True, description="write checkpoints in a thread while training continues"
    )
    resume: bool = setting(
        ["speed_neutral"],
        True,
        description="continue from the newest complete checkpoint in the run folder",
    )
    data_changed: Literal["refuse", "accept"] = Field(
        "refuse",
        description="if the data changed since the run began: an error, or a warning of what no "
        "longer holds",
    )

    _check_duration = field_validator("every", mode="before")(durations("ep", "st", auto=True))


class Log(Section):
    """What is recorded during training."""

    every: int = Field(10, ge=1, description="optimizer steps between two log lines")
    tensorboard: bool = Field(True, description="write scalars and pictures to RUN/tensorboard")
    mlflow: AnyPlace = setting(["per_host"], "", description="MLflow tracking URI; empty: off")
    wandb: str = setting(["per_host"], "", description="Weights & Biases project; empty: off")
    vertex: str = setting(
        ["per_host"],
        "",
        description="Vertex AI experiment: NAME or PROJECT/REGION/NAME; empty: off",
    )
    vertex_tensorboard: str = setting(
        ["per_host"],
        "",
        description="Vertex TensorBoard for log.vertex, by its id or full name; none: no time "
        "series; empty: that of the job or the experiment, or the region's default",
    )
    pictures: int = setting(
        ["eval"],
        8,
        ge=0,
        description=(
            "validation images to draw; at the end, also half as many of the worst and best"
        ),
    )
    digest: bool = Field(
        False, description="write a checksum of the samples and pixels of each step to the journal"
    )
    spans: bool = Field(
        True, description="record the time of each phase, by rank and worker, in RUN/spans"
    )
    sentinel: int = Field(
        500, ge=0, description="steps between checks that all ranks hold the same weights; 0: off"
    )
    hang_s: Union[Annotated[float, Field(ge=0)], Literal["auto"]] = setting(
        ["speed_neutral"],
        "auto",
        description="seconds without progress before ranks report what they wait for; 0: never. "
        "auto: timeout_s / 2",
    )
    profile_ms: int = setting(
        ["per_host"],
        500,
        ge=0,
        le=60_000,
        description=(
            "milliseconds between system samples, at least 100; 0: off until `segtrain profile on`"
        ),
    )

    @field_validator("profile_ms")
    @classmethod
    def _legal(cls, ms: int) -> int:
        if 0 < ms < 100:
            raise ValueError("must be from 100 to 60000, or 0 to start without a profile")
        return ms
