"""How the ranks share one model: single, dp, ddp, fsdp or smddp, by one setting. The only room that calls torch.distributed."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from segtrain.config import Parallel
from segtrain.cores import cores
from segtrain.errors import ConfigError, SegtrainError
from segtrain.parallel import syncbn
from segtrain.parallel.board import at_work, await_rank_0
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.collective import all_reduce, broadcast_json
from segtrain.parallel.failure import elect_error_reporter, end_now
from segtrain.parallel.gpus import own_device, refuse_shared_gpus
from segtrain.parallel.meeting import not_met, reach_rank_0

SMDDP_IMAGES = (
    "AWS Deep Learning Containers for PyTorch training on SageMaker, 1.13.1 (SMDDP 1.7) to 2.5.1 (SMDDP 2.6), "
    "carry it; 2.6 and later do not, and it is not on the package index"
)

# torch 2.11 gave DistributedDataParallel's broadcast_buffers another name, and warns of the old one.
_KNOWN = inspect.signature(nn.parallel.DistributedDataParallel).parameters
_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"

_STARTS = itertools.count()  # of this process, the same on all ranks: a launcher's store outlives a group


@dataclass
class Strategy:
    """The way this job is distributed. ``world_size`` ranks, each with ``device``."""

    name: str
    cluster: Cluster
    device: torch.device
    settings: Parallel
    backend: str = ""
    store: Any = field(default=None, repr=False, compare=False)  # in which the ranks met; None: alone, or none is known
    begun: int = field(default=0, compare=False)  # calls of ``reduce``, the same on all ranks at the same place
    ended: int = field(default=0, compare=False)
    told: int = field(default=0, compare=False)  # objects of rank 0 so far
    # The device's event behind the last one: NCCL's calls return at once.
    _passed: Any = field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> int:
        return self.cluster.rank

    @property
    def world_size(self) -> int:
        return self.cluster.world_size

    @property
    def gradient_scale(self) -> int:
        """ddp, smddp and fsdp average gradients over ranks; our loss shares are to be summed: scale by this."""
        return self.world_size

    def reduce(self, value: Tensor) -> Tensor:
        """Sum over ranks, in place; returns ``value``. SUM alone: SMDDP refuses every other operation."""
        if self.world_size > 1:
            self.begun += 1
            all_reduce(value)
            if value.is_cuda:
                self._passed = self._passed or torch.cuda.Event()
                self._passed.record()
            self.ended += 1
        return value

    @property
    def summing(self) -> bool:
        """Whether the last ``reduce`` has begun and not ended, on the device too. May be asked for by another thread."""
        if self.begun != self.ended or self._passed is None:
            return self.begun != self.ended
        # A thread that has chosen no device would open a context on GPU 0, which takes memory there.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            return not self._passed.query()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model ready to train: on its device, batch norm converted where asked, gradients shared."""
        settings = self.settings
        if settings.sync_bn and self.world_size > 1:
            _refuse_odd_norms(model)
            model = (
                nn.SyncBatchNorm.convert_sync_batchnorm(model) if self.device.type == "cuda" else syncbn.convert(model)
            )
        model = model.to(self.device)
        if self.name == "dp":
            return nn.DataParallel(model)
        if self.name == "fsdp":
            return _fully_shard(model, self.device, self.world_size)
        if self.name not in ("ddp", "smddp"):
            return model
        wrapped = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=settings.bucket_mb,  # type: ignore[arg-type]
            gradient_as_bucket_view=settings.bucket_view,
            static_graph=settings.static_graph,
            **{_BUFFERS: settings.broadcast_buffers},  # type: ignore[arg-type]
        )
        _compress(wrapped, settings.compress)
        return wrapped

    @contextlib.contextmanager
    def sharing(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Gradients cross the network in the last micro-batch alone."""
        if self.name in ("ddp", "smddp") and not last:
            with model.no_sync():  # type: ignore[operator]
                yield
        elif self.name == "fsdp":
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        else:
            yield

    def barrier(self) -> None:
        if self.world_size > 1:
            self.reduce(torch.zeros(1, device=self.device))

    @property
    def _waits_in_store(self) -> bool:
        return self.store is not None and self.backend != "smddp"

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Where rank 0 works alone before ``broadcast_object``: the others know meanwhile that it lives."""
        alone = self.rank == 0 and self._waits_in_store
        return at_work(self.store, f"object/{self.told + 1}") if alone else contextlib.nullcontext()

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's JSON value on every rank.

        The others wait in the store for rank 0, which may have long work to do before (``at_work``), and then in the collective:
        that ends the job after parallel.timeout_s. SMDDP's ranks, which have no store, wait in the collective alone.
        """
        if self.world_size == 1:
            return value
        if self._waits_in_store:
            self.told += 1
            await_rank_0(self.store, f"object/{self.told}", self.rank, self.settings.timeout_s)
        return broadcast_json(self, 0, value)


def _refuse_odd_norms(model: nn.Module) -> None:
    """A subclass of BatchNorm may do more than normalize (timm's activates too): converting it would change the network."""
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    odd = {
        type(m).__name__
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and type(m) not in plain
    }
    if odd:
        raise ConfigError(
            f"parallel.sync_bn=true, but this network's {', '.join(sorted(odd))} cannot be synchronized: set it to false, or "
            "choose a model.encoder with plain batch norm"
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DataParallel, DistributedDataParallel or torch.compile."""
    while True:
        wrapped = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inner = getattr(model, "module", None) if wrapped else None
        inner = inner if inner is not None else getattr(model, "_orig_mod", None)
        if inner is None:
            return model
        model = inner


@contextlib.contextmanager
def start(settings: Parallel, cluster: Cluster, device: str = "auto") -> Iterator[Strategy]:
    """Join the other ranks, choose device and threads, yield the strategy, and leave the group again.

    Raises ConfigError where the setting does not fit what is there (no GPU, no library, one rank, ...).
    """
    name = settings.strategy
    if name == "auto":
        name = "ddp" if cluster.world_size > 1 else "single"
    if name in ("single", "dp") and cluster.world_size > 1:
        raise ConfigError(
            f"parallel.strategy={name} is one process, but {cluster.source} started {cluster.world_size}: "
            "use ddp, fsdp or smddp, or start one process"
        )
    place = own_device(device, cluster)
    if place.type == "cpu":
        threads = settings.threads
        torch.set_num_threads(max(1, cores() // cluster.local_world_size) if threads == "auto" else int(threads))
    backend = ""
    if name in ("ddp", "fsdp", "smddp"):
        backend = _join(name, settings, cluster, place)
    store = _store() if backend and cluster.world_size > 1 else None
    if store is not None:
        store = dist.PrefixStore(f"segtrain/{next(_STARTS)}", store)
    try:
        yield Strategy(name, cluster, place, settings, backend, store)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        failure: BaseException = error
        if store is not None and isinstance(error, (SegtrainError, RuntimeError)):
            failure = elect_error_reporter(error, store, cluster)
        if backend == "nccl" and cluster.world_size > 1:
            # To leave an NCCL group takes all ranks, and those that wait in a collective for this one will not come.
            end_now(failure, cluster, _abort)
        if failure is error:
            raise
        raise failure from error
    finally:
        if backend and dist.is_initialized():
            dist.destroy_process_group()


def _abort() -> None:
    """Let go of NCCL without the other ranks."""
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)  # torch 2.6
    if abort is not None:
        abort()


def _store() -> Any:
    """The key-value store through which the ranks met; None where torch keeps it elsewhere."""
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):
        return None


def _join(name: str, settings: Parallel, cluster: Cluster, device: torch.device) -> str:
    if name == "smddp":
        backend = "smddp"
        try:
            import smdistributed.dataparallel.torch.torch_smddp  # type: ignore[import-not-found]  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"parallel.strategy=smddp needs the package smdistributed.dataparallel ({error}): {SMDDP_IMAGES}; "
                "elsewhere use parallel.strategy=ddp"
            ) from None
    else:
        backend = settings.backend if settings.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
    if backend == "nccl" and device.type == "cpu":
        raise ConfigError("parallel.backend=nccl needs GPUs, and torch sees none: set parallel.backend=gloo or auto")
    if backend == "gloo" and settings.compress not in ("none", "fp16"):
        # bf16 is refused by gloo, PowerSGD aborts or hangs there as soon as there are two buckets.
        raise ConfigError(
            f"parallel.compress={settings.compress} does not work with gloo: use fp16 or none, or the nccl backend"
        )
    if settings.sync_bn and name == "smddp":
        raise ConfigError("parallel.sync_bn=true: the smddp backend has no SyncBatchNorm; set it to false")
    if cluster.world_size == 1 and "MASTER_ADDR" not in os.environ:
        from segtrain.parallel.cluster import free_port

        cluster = Cluster(master_port=free_port())
    os.environ.update(cluster.environment())
    if name != "smddp":
        reach_rank_0(cluster, settings.timeout_s)
    try:
        _enter(backend, cluster, device, settings.timeout_s)
    except RuntimeError as error:  # torch's own kinds are subclasses of it
        raise not_met(cluster, settings.timeout_s, error) from None
    return backend


def _enter(backend: str, cluster: Cluster, device: torch.device, timeout_s: float) -> None:
    limit = timedelta(seconds=timeout_s)
    if backend != "nccl" or cluster.world_size == 1:
        dist.init_process_group(backend, timeout=limit)
        return
    # The same meeting as init_process_group's own, but with a look at the GPUs before NCCL begins.
    store, _, _ = next(iter(rendezvous("env://", timeout=limit)))
    store.set_timeout(limit)
    store = dist.PrefixStore("default_pg", store)
    gpus = dist.PrefixStore(f"gpus/{next(_STARTS)}", store)
    refuse_shared_gpus(gpus, cluster, device, timeout_s)
    # With its device (torch 2.3) NCCL connects here, where a failure has a name, and not in the first collective.
    place: dict[str, Any] = (
        {"device_id": device} if "device_id" in inspect.signature(dist.init_process_group).parameters else {}
    )
    dist.init_process_group(
        backend, timeout=limit, store=store, rank=cluster.rank, world_size=cluster.world_size, **place
    )


def _compress(model: nn.parallel.DistributedDataParallel, kind: str) -> None:
    if kind == "none":
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    else:
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, 2, 100), powerSGD_hook.powerSGD_hook)  # type: ignore[arg-type]


def _fully_shard(model: nn.Module, device: torch.device, world_size: int) -> nn.Module:
    """FSDP2 on the encoder and on the rest: the two parts whose forward is called as a module."""
    try:
        from torch.distributed.fsdp import fully_shard  # torch 2.6
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import fully_shard  # type: ignore[no-redef]  # torch 2.4
        except ImportError:
            raise ConfigError(
                f"parallel.strategy=fsdp needs torch 2.4 or later (FSDP2); this is {torch.__version__}: use ddp"
            ) from None
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (world_size,))
    encoder = next((child for name, child in model.named_modules() if name.rpartition(".")[2] == "encoder"), None)
    if encoder is not None:
        fully_shard(encoder, mesh=mesh)
    fully_shard(model, mesh=mesh)  # in place
    return model
