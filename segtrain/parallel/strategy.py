"""Strategies for training one model on several ranks, chosen by parallel.strategy: single, dp, ddp,
fsdp, or smddp.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from segtrain.base import stopping
from segtrain.base.compat import abort_process_group, nccl_options, record_collectives
from segtrain.base.cores import cores
from segtrain.config import Parallel
from segtrain.errors import ConfigError, SegtrainError
from segtrain.parallel.board import at_work, await_rank_0
from segtrain.parallel.cluster import Cluster, free_port
from segtrain.parallel.collective import all_reduce, broadcast_json
from segtrain.parallel.exact import BucketSums, Slices, sum_over_ranks
from segtrain.parallel.failure import elect_error_reporter, end_now, reach_rank_0, rendezvous_error
from segtrain.parallel.gpus import gpus_in_sight, own_gpu
from segtrain.parallel.model import wrap
from segtrain.parallel.places import RankPlace, answered, exchange, host_id, placed

SMDDP_IMAGES = (
    "AWS Deep Learning Containers for PyTorch training on SageMaker, 2.4.1 (SMDDP 2.5) to 2.5.1 "
    "(SMDDP 2.6), carry it; 2.6 and later do not, and it is not on the package index"
)

# Makes keys in the store unique, because a launcher's store may outlive a process group. Equal on
# all ranks.
_STARTS = itertools.count()
SPARE_S = 2.0  # torch's own limits, which say more, come first


@dataclass
class Strategy:
    """How this job is distributed over ``world_size`` ranks. ``device``: the device of this
    rank.
    """

    name: str
    cluster: Cluster
    device: torch.device
    settings: Parallel
    backend: str = ""
    # store of the rendezvous; None for a single rank
    store: Any = field(default=None, repr=False, compare=False)
    # calls of ``reduce`` so far, equal on all ranks at the same point
    begun: int = field(default=0, compare=False)
    ended: int = field(default=0, compare=False)
    objects: int = field(default=0, compare=False)  # broadcasts of ``broadcast_object`` so far
    # CUDA event recorded after the last ``reduce``, because NCCL's calls return before the sum is
    # done.
    _passed: Any = field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> int:
        return self.cluster.rank

    @property
    def world_size(self) -> int:
        return self.cluster.world_size

    @property
    def gradient_scale(self) -> int:
        """Factor of the loss: ddp, smddp, and fsdp average gradients over ranks, but our loss
        shares must be summed. parallel.exact sums them.
        """
        return 1 if self.exact else self.world_size

    @property
    def exact(self) -> bool:
        return self.settings.exact > 0

    @property
    def slices(self) -> int:
        """Slices of this rank's batch whose numbers are summed as a tree; without parallel.exact,
        its whole batch.
        """
        return self.settings.exact // self.world_size if self.exact else 1

    def reduce(self, value: Tensor) -> Tensor:
        """Sum over ranks, in place; returns ``value``. Only sums, because SMDDP refuses all other
        operations.
        """
        if self.world_size > 1:
            self.begun += 1
            if self.exact and value.is_floating_point():
                value.copy_(sum_over_ranks(value))
            else:
                all_reduce(value)
            if value.is_cuda:
                self._passed = self._passed or torch.cuda.Event()
                self._passed.record()
            self.ended += 1
        return value

    @property
    def summing(self) -> bool:
        """Whether the last ``reduce`` is still running, on the host or on the device. Any thread
        may read it.
        """
        if self.begun != self.ended or self._passed is None:
            return self.begun != self.ended
        # The calling thread may have set no device. It would then create a CUDA context on GPU 0,
        # which takes memory.
        with (
            torch.cuda.device(self.device)
            if self.device.type == "cuda"
            else contextlib.nullcontext()
        ):
            return not self._passed.query()

    def wrap(
        self, model: nn.Module, compiled: Callable[[nn.Module], nn.Module] = lambda module: module
    ) -> nn.Module:
        """The model ready to train: on its device, wrapped for the strategy, with synchronized
        batch norm if set.

        ``compiled`` is applied inside DDP and SMDDP, and outside of dp and fsdp.
        """
        settings = self.settings
        if self.exact:
            # batch norm spans all slices, and so all ranks
            settings = settings.model_copy(update={"sync_bn": False})
            total = sum_over_ranks if self.world_size > 1 else (lambda value: value)
            first = self.rank * self.slices
            model.exact = Slices(self.slices, first, self.world_size, total)  # type: ignore[assignment]
        model = wrap(model, self.name, settings, self.device, self.world_size, compiled)
        if self.exact and self.name == "ddp":
            sums = BucketSums(self.device)
            model.register_comm_hook(None, lambda _, bucket: sums(bucket.buffer()))  # type: ignore[operator]
        return model

    @contextlib.contextmanager
    def sharing(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Context for a micro-batch. Ranks exchange gradients only in the last micro-batch of a
        step.
        """
        if self.name in ("ddp", "smddp") and not last:
            with model.no_sync():  # type: ignore[operator]
                yield
        elif self.name == "fsdp":
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        else:
            yield

    @property
    def _waits_in_store(self) -> bool:
        return self.store is not None and self.backend != "smddp"

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Give signs of life to the other ranks while rank 0 works alone before
        ``broadcast_object``.
        """
        alone = self.rank == 0 and self._waits_in_store
        return (
            at_work(self.store, f"object/{self.objects + 1}") if alone else contextlib.nullcontext()
        )

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank.

        The other ranks first wait in the store for rank 0, which may work for long before
        (``at_work``). Then all ranks enter a collective, which ends the job if it takes longer than
        parallel.timeout_s. SMDDP's ranks do not wait in the store, only in the collective.
        """
        if self.world_size == 1:
            return value
        if self._waits_in_store:
            self.objects += 1
            await_rank_0(self.store, f"object/{self.objects}", self.rank, self.settings.timeout_s)
        return broadcast_json(self, 0, value)


@contextlib.contextmanager
def start(
    settings: Parallel,
    cluster: Cluster,
    device: str = "auto",
    report: Callable[[Exception], int] | None = None,
) -> Iterator[Strategy]:
    """Join the other ranks, choose device and threads, yield the strategy, and leave the group
    again.

    ``report``: see ``end_now``.

    Raises ConfigError if the settings do not fit this machine or job (no GPU, a missing library,
    too many ranks, ...).
    """
    name = settings.strategy
    if name == "auto":
        name = "ddp" if cluster.world_size > 1 else "single"
    if name in ("single", "dp") and cluster.world_size > 1:
        raise ConfigError(
            f"parallel.strategy={name} runs in one process, but {cluster.source.name} started "
            f"{cluster.world_size}: use ddp, fsdp or smddp, or start one process",
            code="strategy-is-one-process",
            strategy=name,
            world_size=cluster.world_size,
        )
    if settings.exact:
        _refuse_inexact(name, settings.exact, cluster.world_size)
    gpus = gpus_in_sight(device, cluster)
    backend = ""
    store = None
    gpu = 0
    if name in ("ddp", "fsdp", "smddp"):
        backend = _backend(name, settings, bool(gpus))
        cluster, gpu, store = _join(backend, settings.timeout_s, cluster, gpus)
    if name == "dp" and len(gpus) < 2:
        warnings.warn(
            "parallel.strategy=dp divides batches among GPUs: with fewer than two, it is single",
            stacklevel=3,
        )
    own = torch.device("cuda", gpu) if gpus else torch.device("cpu")
    if not gpus:
        # The kernels of a CPU divide their work among threads, so their bits depend on the number.
        threads = 1 if settings.exact else settings.threads
        torch.set_num_threads(
            max(1, cores() // cluster.local_world_size) if threads == "auto" else int(threads)
        )
    stopping.connected.set()
    try:
        yield Strategy(name, cluster, own, settings, backend, store)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        failure: BaseException = error
        if store is not None and isinstance(error, (SegtrainError, RuntimeError)):
            failure = elect_error_reporter(error, store, cluster)
        if backend == "nccl" and cluster.world_size > 1:
            # All ranks must leave an NCCL group together, but ranks that wait for this one in a
            # collective cannot.
            end_now(failure, cluster, abort_process_group, report)
        if failure is error:
            raise
        raise failure from error
    finally:
        if backend and dist.is_initialized():
            dist.destroy_process_group()


def _refuse_inexact(name: str, slices: int, world_size: int) -> None:
    if name not in ("single", "ddp"):
        raise ConfigError(
            f"parallel.exact={slices}: parallel.strategy={name} sums in an order of its own: "
            "use auto or ddp",
            code="strategy-not-exact",
            strategy=name,
        )
    if slices % world_size:
        raise ConfigError(
            f"parallel.exact={slices}: {world_size} ranks cannot hold equally many slices: start "
            f"1, 2, 4, ... or {slices} ranks, or set parallel.exact to a power of two that "
            f"{world_size} divides",
            code="ranks-do-not-divide-slices",
            found=world_size,
            expected=slices,
        )


def _backend(name: str, settings: Parallel, on_gpu: bool) -> str:
    if name == "smddp":
        try:
            import smdistributed.dataparallel.torch.torch_smddp  # type: ignore[import-not-found]  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"parallel.strategy=smddp needs the package smdistributed.dataparallel ({error}): "
                f"{SMDDP_IMAGES}; elsewhere use parallel.strategy=ddp",
                code="missing-package",
                package="smdistributed.dataparallel",
            ) from None
        return name
    backend = settings.backend if settings.backend != "auto" else ("nccl" if on_gpu else "gloo")
    if backend == "nccl" and not on_gpu:
        raise ConfigError(
            "parallel.backend=nccl needs GPUs, and torch sees none: set "
            "parallel.backend=gloo or auto",
            code="no-gpu",
            key="parallel.backend",
        )
    if backend == "gloo" and settings.compress not in ("none", "fp16"):
        # Gloo refuses bf16, and PowerSGD aborts or hangs with gloo as soon as there are two
        # buckets.
        raise ConfigError(
            f"parallel.compress={settings.compress} does not work with gloo: use fp16 or "
            "none, or the nccl backend",
            code="conflicting-settings",
            key="parallel.compress",
        )
    return backend


def _join(
    backend: str, timeout_s: float, cluster: Cluster, gpus: list[str]
) -> tuple[Cluster, int, Any]:
    """Join the process group, with ``env://``.

    Returns this rank's place, the index of its GPU, and a store for messages of segtrain, with its
    own prefix in the store of the rendezvous (None if there is only one rank).
    """
    if cluster.world_size == 1 and "MASTER_ADDR" not in os.environ:
        cluster = replace(cluster, master_port=free_port())
    os.environ.update(cluster.environment())
    if cluster.interface:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, cluster.interface)
    if backend != "smddp":
        reach_rank_0(cluster, timeout_s)
    limit, wait_s = timedelta(seconds=timeout_s), timeout_s + SPARE_S
    record_collectives()
    gpu, options = 0, dict[str, Any]()
    try:
        store, _, _ = answered(lambda: next(iter(rendezvous("env://", timeout=limit))), wait_s)
        store.set_timeout(limit)
        row = RankPlace(host_id(), cluster.local_rank if cluster.local_world_size else None, gpus)
        own = dist.PrefixStore(f"places/{next(_STARTS)}", store)
        rows = answered(partial(exchange, own, cluster, row), wait_s)
        cluster = placed(cluster, rows)
        os.environ.update(cluster.environment())
        if gpus:
            gpu = own_gpu(rows, cluster, backend)
            torch.cuda.set_device(gpu)
            if len(gpus) > cluster.local_world_size and cluster.local_rank == 0:
                text = (
                    f"{len(gpus)} GPUs are here, but {cluster.local_world_size} of this job's "
                    "processes: start"
                )
                warnings.warn(
                    f"{text} torchrun --nproc-per-node {len(gpus)} on each host to use all",
                    stacklevel=4,
                )
        if backend == "nccl":
            options["pg_options"] = nccl_options(limit)
            # With ``device_id``, NCCL connects here, where its failure is reported as such, instead
            # of in the first collective.
            if cluster.world_size > 1:
                options["device_id"] = torch.device("cuda", gpu)
        group = partial(
            dist.init_process_group,
            backend,
            timeout=limit,
            store=dist.PrefixStore("default_pg", store),
            rank=cluster.rank,
            world_size=cluster.world_size,
            **options,
        )
        group() if backend == "smddp" else answered(group, wait_s)
    # The errors of torch are subclasses of RuntimeError.
    except (RuntimeError, TimeoutError) as error:
        raise rendezvous_error(cluster, timeout_s, error) from None
    return (
        cluster,
        gpu,
        dist.PrefixStore(f"segtrain/{next(_STARTS)}", store) if cluster.world_size > 1 else None,
    )
