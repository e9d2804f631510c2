"""Private parts of torch that the package uses. Checked with torch 2.4.0 and 2.15.0."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "BatchNorm",
    "NormBase",
    "TorchDispatchMode",
    "abort_process_group",
    "after_own_gradients",
    "ddp_times",
    "last_collectives",
    "nccl_options",
    "record_collectives",
    "uncompiled",
]


def after_own_gradients(loss: Tensor, call: Callable[[], None]) -> None:
    """Call ``call`` when ``backward`` has computed this rank's last gradient, before DDP and FSDP
    wait for the network.

    Callbacks at the end of a backward pass run in the order in which they were queued. A hook on
    the loss queues ``call`` first.
    """
    engine = torch.autograd.Variable._execution_engine
    loss.register_hook(lambda _: engine.queue_callback(call))


def ddp_times(model: nn.Module) -> tuple[float, float] | None:
    """Seconds of communication in DDP's last timed step, and how many overlap with computation.
    None if unknown.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None
    try:
        timed = model._get_ddp_logging_data()  # type: ignore[operator]
        return timed["backward_comm_time"] / 1e9, timed["backward_compute_comm_overlap_time"] / 1e9
    except (AttributeError, KeyError, RuntimeError):
        return None


def record_collectives() -> None:
    """Let torch's flight recorder keep the last collectives of the process groups that are made
    after this call.

    Newer versions do so anyway; the variable was renamed with the function that reads the records.
    """
    renamed = hasattr(_recorder(), "_dump_fr_trace_json")
    os.environ.setdefault(
        "TORCH_FR_BUFFER_SIZE" if renamed else "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"
    )


def last_collectives(most: int = 20) -> list[dict[str, Any]]:
    """The last collectives of this process as torch's flight recorder knows them, newest first; []
    if it cannot tell.

    The keys are the recorder's: profiling_name, state, retired (whether it has ended), input_sizes,
    collective_seq_id, time_created_ns (since 1970).
    """
    found: list[dict[str, Any]] = []
    for json_name, pickle_name in (
        ("_dump_nccl_trace_json", "_dump_nccl_trace"),
        ("_dump_fr_trace_json", ""),
    ):
        with contextlib.suppress(
            AttributeError, RuntimeError, ValueError, TypeError, pickle.UnpicklingError
        ):
            if hasattr(_recorder(), json_name):
                found += json.loads(getattr(_recorder(), json_name)()).get("entries", ())
            elif pickle_name:
                found += pickle.loads(getattr(_recorder(), pickle_name)()).get("entries", ())
    return sorted(found, key=lambda entry: -int(entry.get("time_created_ns", 0)))[:most]


def _recorder() -> Any:
    return getattr(torch._C, "_distributed_c10d", None)


def nccl_options(timeout: timedelta) -> Any:
    """Options of NCCL's process group: its kernels run on streams of high priority, before waiting
    kernels of the step.

    None for a torch that is built without NCCL.
    """
    if not dist.is_nccl_available():
        return None
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    # or torch warns that it differs from the one that init_process_group gets
    options._timeout = timeout
    return options


def abort_process_group() -> None:
    """Abort the process group without waiting for the other ranks. Does nothing if torch is older
    than 2.6.
    """
    getattr(dist.distributed_c10d, "_abort_process_group", lambda: None)()


@contextlib.contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run modules that were compiled in place (``nn.Module.compile``) uncompiled while the context
    lasts.
    """
    name = "_compiled_call_impl"
    calls = [(module, vars(module).pop(name)) for module in model.modules() if name in vars(module)]
    try:
        yield
    finally:
        for module, call in calls:
            setattr(module, name, call)
