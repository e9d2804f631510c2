"""Forward, loss, and backward of a step as CUDA graphs, which the host launches instead of each of
their kernels.

A graph repeats the same kernels on the same memory, so batches are copied to where it reads them.
What the host decides in each step (learning rate, seed of dropout, votes, the update) stays
outside.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from segtrain.config import Config, Size, rivals_of_graphs
from segtrain.data.sample import COLOR_BYTES
from segtrain.data.train_loader import Batch
from segtrain.errors import ConfigError, SegtrainError
from segtrain.models.base import channels_of
from segtrain.observe.clock import Clock
from segtrain.parallel.exact import seed_generators
from segtrain.parallel.strategy import Strategy
from segtrain.training.learner import Learner
from segtrain.training.step import gradients, restored_buffers, seed_of

WARM = 3  # passes before a capture: they choose kernels, compile them, and create constants
TRIALS, PASSES = 5, 3  # timings of each way, and steps of each
GAIN = 0.97  # of the time of a step: graphs that save less are not worth their memory


@dataclass(frozen=True)
class _Captured:
    batch: Batch  # what the graphs read
    forward: torch.cuda.CUDAGraph  # normalization, network, and loss
    backward: torch.cuda.CUDAGraph
    share: Tensor
    grads: list[Tensor | None]


class StepGraphs:
    """``step.gradients`` for one micro-batch on one GPU, with a pair of CUDA graphs for each crop
    size.

    All graphs share one pool of memory, because they never run at the same time. It stays reserved
    for the whole run.
    """

    def __init__(self, learner: Learner, strategy: Strategy, aux_weight: float) -> None:
        self._learner = learner
        self._strategy = strategy
        self._aux_weight = aux_weight
        # Warm-up and capture use one stream, because autograd remembers on which one a gradient is
        # accumulated.
        self._stream = torch.cuda.Stream(strategy.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[Size, _Captured] = {}
        self._parameters = learner.parameters

    def capture(self, images: int, size: Size, colors: bool) -> None:
        """Capture the graphs for ``images`` images of ``size`` (height, width), by passes over
        noise without effect.

        ``colors``: with color jitter. Raises ConfigError if something in the step cannot be
        captured.
        """
        current = torch.cuda.current_stream(self._strategy.device)
        with restored_buffers(self._learner.plain):
            batch = noise(self._learner, images, size, self._strategy.device, colors)
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    for number in range(WARM):
                        # What waits is refused here: a capture that fails leaves torch's
                        # generators in it.
                        with _waits_refused() if number else contextlib.nullcontext():
                            self._pass(batch, Tensor.backward)
                        self._drop()
                    # As torch.cuda.graph does. A graph takes new memory, and cannot use what the
                    # passes before it left.
                    torch.cuda.synchronize()
                    gc.collect()
                    torch.cuda.empty_cache()
                    self._captured[size] = self._capture(batch)
            except (SegtrainError, torch.cuda.OutOfMemoryError):
                raise
            except RuntimeError as error:
                raise ConfigError(
                    "train.cuda_graph: a step of this network and loss cannot be captured as "
                    f"a CUDA graph ({str(error).splitlines()[0]}): set it to false",
                    code="cuda-graph-impossible",
                    key="train.cuda_graph",
                    found=str(error),
                ) from error
            current.wait_stream(self._stream)
            self._drop()

    def _capture(self, batch: Batch) -> _Captured:
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        running = forward
        # Other threads may use CUDA meanwhile, for example to page-lock memory.
        forward.capture_begin(pool=self._pool, capture_error_mode="thread_local")

        def turn(loss: Tensor) -> None:
            nonlocal running
            forward.capture_end()
            running = backward
            backward.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            loss.backward()
            backward.capture_end()

        try:
            share = self._pass(batch, turn)
        except BaseException:
            # no call of CUDA works before the capture has ended
            with contextlib.suppress(RuntimeError):
                running.capture_end()
            raise
        return _Captured(batch, forward, backward, share, [p.grad for p in self._parameters])

    def milliseconds(self, colors: bool) -> tuple[float, float]:
        """Time of forward and backward pass launched by the host, and of the graphs: the least of a
        few trials in turns, summed over the sizes. Without effect.
        """
        device = self._strategy.device
        sums = [0.0, 0.0]
        with restored_buffers(self._learner.plain):
            for size, captured in self._captured.items():
                batch = noise(self._learner, len(captured.batch.masks), size, device, colors)
                took: list[list[float]] = [[], []]
                for trial in range(2 * TRIALS):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    for _ in range(PASSES):
                        self._drop()
                        if trial % 2:
                            self.gradients(batch, seed=0, votes=captured.share, clock=Clock())
                        else:
                            self._pass(batch, Tensor.backward)
                    torch.cuda.synchronize()
                    took[trial % 2].append(1000 * (time.perf_counter() - begin) / PASSES)
                sums = [sum_ + min(each) for sum_, each in zip(sums, took)]
        self._drop()
        return sums[0], sums[1]

    def _pass(self, batch: Batch, backward: Callable[[Tensor], None]) -> Tensor:
        """Gradients of a batch as in ``step.gradients``; returns the share of the loss."""
        learner, strategy = self._learner, self._strategy
        votes = torch.zeros(1, dtype=torch.float64, device=strategy.device)
        share, _ = gradients(
            learner.model,
            [learner.micro(batch)],
            learner.criterion,
            strategy,
            learner.precision,
            seed=0,
            votes=votes,
            aux_weight=self._aux_weight,
            loss_scale=learner.scaler.factor,
            clock=Clock(),
            backward=backward,
        )
        return share

    def _drop(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def gradients(
        self, batch: Batch, *, seed: int, votes: Tensor, clock: Clock
    ) -> tuple[Tensor, Tensor]:
        """As ``step.gradients``. The share of the loss and the gradients are valid until the next
        call.
        """
        captured = self._captured[(batch.masks.shape[1], batch.masks.shape[2])]
        with clock("device"):
            for name in ("images", "masks", "looks"):
                if (tensor := getattr(batch, name)) is not None:
                    getattr(captured.batch, name).copy_(tensor, non_blocking=True)
        seed_generators(seed_of(seed, self._strategy.rank, 0))
        with clock("forward"):
            captured.forward.replay()
        with clock("backward"):
            captured.backward.replay()
        for parameter, grad in zip(self._parameters, captured.grads):
            parameter.grad = grad
        return captured.share, votes


def noise(
    learner: Learner, images: int, size: Size, device: torch.device, colors: bool = False
) -> Batch:
    """A batch of random pixels and labels on the device."""
    bands = channels_of(learner.plain)
    levels = torch.randint(256, (images, *size, bands), dtype=learner.pixel_dtype, device=device)
    criterion = learner.criterion
    small = max(criterion.num_classes, criterion.ignore_index) < 256
    dtype = torch.uint8 if small else torch.int32
    masks = torch.randint(criterion.num_classes, (images, *size), dtype=dtype, device=device)
    looks = torch.zeros((images, COLOR_BYTES), dtype=torch.uint8, device=device) if colors else None
    none = torch.zeros(0).long().numpy()
    return Batch(levels, masks, none, none, looks)


@contextlib.contextmanager
def _waits_refused() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def unfit(config: Config, strategy: Strategy, own_criterion: bool) -> str:
    """Why ``train.cuda_graph`` cannot work, or "". The same on every rank."""
    if strategy.device.type != "cuda":
        return "it needs a GPU"
    if strategy.name != "single":
        return (
            f"it needs one process, not {strategy.name} on {strategy.world_size} "
            "(train.compile takes several)"
        )
    if own_criterion:
        return "a loss that was passed to segtrain.train waits for the GPU in each step"
    if config.parallel.exact:
        return "parallel.exact draws dropout for each slice of a batch"
    return "".join(f"it does not go with {rival}" for rival in rivals_of_graphs(config)[:1])


def refuse_graphs(config: Config, strategy: Strategy, own_criterion: bool) -> None:
    """Raise ConfigError where ``train.cuda_graph=true`` cannot work."""
    why = unfit(config, strategy, own_criterion) if config.train.cuda_graph is True else ""
    if why:
        raise ConfigError(
            f"train.cuda_graph=true: {why}: set it to false",
            code="cuda-graph-unfit",
            key="train.cuda_graph",
            found=why,
        )
