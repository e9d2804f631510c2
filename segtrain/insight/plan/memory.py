"""Memory that a rank needs on its GPU, and the largest batch that fits."""

from __future__ import annotations

from dataclasses import dataclass

from segtrain.config import Config
from segtrain.insight.plan.dry import Dry, DryModel

GIB = 2**30
# Bytes that no pass can see: CUDA's context and kernels with the workspaces of cuDNN and cuBLAS,
# and with several ranks the buffers of NCCL.
ALLOWED = {"cuda": 0.6 * GIB, "nccl": 0.4 * GIB}
FRAGMENTS = 1.08  # of activations: what the allocator cannot use
_FLOAT = 4  # bytes of a weight, a gradient, or a moment


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of one rank. ``fixed``: parameters, buffers, optimizer, and moving averages.
    ``gradients``: as they are kept between ranks. ``activations``: the peak of a step, with the
    gradients of one rank. ``loss``: of its full-size logits. ``allowed``: see ALLOWED.
    """

    fixed: float
    gradients: float
    activations: float
    loss: float
    allowed: float

    @property
    def total(self) -> float:
        return (
            self.fixed + self.gradients + FRAGMENTS * (self.activations + self.loss) + self.allowed
        )


def need(config: Config, dry: Dry, ranks: int, strategy: str = "ddp") -> MemoryNeed:
    """The memory of a rank whose micro-batch is the one of ``dry``. ``strategy``: "ddp", "smddp",
    or "fsdp".
    """
    everything, trained = (float(_FLOAT * number) for number in dry.parameters)
    state = trained * moments(config) + (everything + dry.buffers if config.optim.ema else 0.0)
    fixed = everything + dry.buffers + state
    gradients = trained if ranks > 1 else 0.0
    if strategy == "fsdp" and ranks > 1:
        # The encoder and the rest are gathered for a step, so only what lies between steps is
        # shared.
        fixed = everything + dry.buffers + (everything + state) / ranks
        gradients = trained / ranks
    return MemoryNeed(
        fixed=fixed,
        gradients=gradients,
        activations=dry.peak,
        loss=dry.loss,
        allowed=ALLOWED["cuda"] + (ALLOWED["nccl"] if ranks > 1 else 0.0),
    )


def moments(config: Config) -> int:
    """Numbers that the optimizer keeps for each weight. Muon keeps one for filters, which are
    nearly all of them.
    """
    if config.optim.name == "sgd":
        return 1 if config.optim.momentum else 0
    return 1 if config.optim.name == "muon" else 2


def refusal(config: Config, model: DryModel, images: int, ranks: int, room_gb: float) -> str:
    """Why a micro-batch of ``images`` does not fit a GPU with ``room_gb`` GiB; "" if it fits."""
    wants = need(config, model.step(images), ranks).total
    room = room_gb * GIB
    if wants <= room:
        return ""
    most = largest(config, model, images, ranks, room)
    fix = f"batch {most} fits" if most else "2 do not fit"
    return f"needs {wants / GIB:.3g} GiB at {images} images per GPU, has {room_gb:g}: {fix}"


def largest(config: Config, model: DryModel, images: int, ranks: int, room: float) -> int:
    """The largest number of images from 2 to below ``images`` that fits ``room`` bytes; 0 if there
    is none.
    """
    few, many = (need(config, model.step(count), ranks).total for count in (2, images))
    if few > room or images <= 2:
        return 0
    return min(images - 1, 2 + int((images - 2) * (room - few) / (many - few)))
