"""A GPU that is not there: segtrain runs on fake ``cuda:0`` tensors (shapes, types and devices
without values), without a GPU or driver.

What it finds: tensors on a wrong device, types that do not fit, and each place where the host waits
for the GPU. What it cannot find: wrong numbers, errors of real kernels, speed.
``libraries(folder)`` compiles what must be loaded before torch is;
``tests/kit/fake_cuda_cases.py`` runs in a process that was started with it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "segtrain"

# Autograd's engine asks the CUDA runtime how many devices there are before it starts a backward
# pass on one.
SHIM = """
static int count = 0;
extern "C" void shim_set_count(int n) { count = n; }
namespace c10 { namespace cuda {
bool hasPrimaryContext(signed char) { return true; }
signed char device_count() noexcept { return (signed char)count; }
} }
"""
STUB = """
extern "C" {
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { if (flags) *flags = 0; if (active) *active = 1; return 0; }
int cuInit(unsigned) { return 100; }
int cuGetErrorString(int, const char** text) { *text = "stub"; return 0; }
}
"""


def libraries(folder: Path) -> dict[str, str]:
    """Compile the stand-ins into ``folder``; returns the environment of a process that has them.
    Needs g++.
    """
    (folder / "shim.cpp").write_text(SHIM)
    (folder / "stub.cpp").write_text(STUB)
    build = ["g++", "-shared", "-fPIC", "-O0"]
    subprocess.run([*build, "-o", "shim.so", "shim.cpp"], cwd=folder, check=True)
    subprocess.run(
        [*build, "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "stub.cpp"],
        cwd=folder,
        check=True,
    )
    return {"LD_PRELOAD": str(folder / "shim.so"), "LD_LIBRARY_PATH": str(folder)}


class FakeGpu:
    """``with gpu.on():`` makes tensors fake and ``gpu.waits`` counts (kind, file, function, line)
    of each wait for the GPU.

    Raises whatever torch raises where it cannot be made (another torch than those that have these
    inner parts).
    """

    def __init__(self) -> None:
        import torch
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
        from torch.utils._python_dispatch import TorchDispatchMode

        self.torch, self.fake_type, self.real = torch, FakeTensor, unset_fake_temporarily
        self.waits: Counter[tuple[str, str, str, int]] = Counter()
        self.ops: Counter[str] = Counter()  # names of all operators that ran
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.device = torch.device("cuda", 0)
        self._shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._count = 0
        # storages of page-locked memory, kept so that no number is used twice
        self._pinned: dict[int, Any] = {}
        self.pinned_bytes: list[tuple[int, int]] = []  # addresses of the loader's blocks
        with FakeTensorMode():
            torch.zeros(1, device="cuda:0") * 2  # registers a device guard that does nothing
        gpu = self

        class Spy(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return gpu._operator(func, args, kwargs or {})

        self._spy = Spy
        self._patch()
        with self.on():
            probe = torch.ones(2, device=self.device, requires_grad=True)
            (probe * 2).sum().backward()
        self.waits.clear()

    def set_count(self, devices: int) -> int:
        before, self._count = self._count, devices
        self._shim.shim_set_count(devices)
        return before

    @contextmanager
    def on(self) -> Iterator[None]:
        with self.mode, self._spy():
            yield

    def note(self, kind: str) -> None:
        """A wait, at the innermost line of segtrain."""
        for frame in reversed(traceback.extract_stack()):
            path = Path(frame.filename)
            # a comprehension is part of its function
            if PACKAGE in path.parents and not frame.name.startswith("<"):
                self.waits[
                    kind, str(path.relative_to(PACKAGE.parent)), frame.name, frame.lineno or 0
                ] += 1
                return
        self.waits[kind, "?", "?", 0] += 1

    def to_fake(self, network: Any) -> Any:
        """The network, built on the CPU, with fake parameters and buffers on the GPU, in
        channels_last.
        """
        torch, made = self.torch, {}
        with self.mode:
            for module in network.modules():
                for store in (module._parameters, module._buffers):
                    for name, value in store.items():
                        if value is None:
                            continue
                        if id(value) not in made:
                            fake = torch.zeros(value.shape, dtype=value.dtype, device=self.device)
                            if fake.dim() == 4:
                                fake = fake.to(memory_format=torch.channels_last)
                            if isinstance(value, torch.nn.Parameter):
                                fake = torch.nn.Parameter(fake, requires_grad=value.requires_grad)
                            made[id(value)] = fake
                        store[name] = made[id(value)]
        return network.train()

    # What follows knows torch's operators.

    def _on_gpu(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor) and value.device.type == "cuda"

    def _is_pinned(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def _copy(self, source: Any, to: str, non_blocking: bool, target: Any = None) -> None:
        """A copy between host and GPU waits for the stream unless it is asked not to and the host's
        memory is page-locked.
        """
        host = source if to == "cuda" else target
        direction = f"{source.device.type} to {to}"
        if not non_blocking or host is None or not self._is_pinned(host):
            self.note(f"copy {direction}")

    def _operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        name, torch = func.name(), self.torch
        self.ops[name] += 1
        first = args[0] if args else None
        if name.startswith("aten::_local_scalar_dense") and isinstance(first, self.fake_type):
            if self._on_gpu(first):
                self.note("item")
            return (
                0.0 if first.dtype.is_floating_point else False if first.dtype == torch.bool else 0
            )
        if name.startswith("aten::bincount") and isinstance(first, self.fake_type):
            if self._on_gpu(first):
                self.note("bincount")
            return torch.zeros(
                args[2] if len(args) > 2 else kwargs.get("minlength", 0),
                dtype=torch.int64,
                device=first.device,
            )
        if name == "aten::nonzero" and self._on_gpu(first):
            self.note("nonzero")
            return torch.zeros(3, first.dim(), dtype=torch.int64, device=self.device)
        if name == "aten::record_stream":
            return None
        if name == "aten::_to_copy" and kwargs.get("device") is not None:
            target = torch.device(kwargs["device"]).type
            if first.device.type != target:
                self._copy(first, target, bool(kwargs.get("non_blocking")))
                if target == "cpu":  # values are asked for next: zeros serve
                    with self.real():
                        return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
        if name == "aten::copy_" and args[0].device.type != args[1].device.type:
            self._copy(
                args[1], args[0].device.type, bool(args[2]) if len(args) > 2 else False, args[0]
            )
        pinned = kwargs.pop("pin_memory", None) if name.startswith("aten::empty") else None
        before = self.set_count(0)
        try:
            result = func(*args, **kwargs)
        finally:
            self.set_count(before)
        if pinned:
            self._pinned[result.untyped_storage()._cdata] = result
        return result

    def launch_nothing(self) -> None:
        """Kernels in Triton are there, and do nothing: Triton takes no tensors that are not
        real.
        """
        from segtrain import kernels

        kernels.no_triton = lambda: ""
        kernels.launch = lambda name, *_, **__: self.ops.update([f"triton::{name}"])

    def _patch(self) -> None:
        """What of torch does not come by as an operator."""
        torch, fake, gpu = self.torch, self.fake_type, self
        import numpy as np
        import torch.autograd as autograd
        import torch.autograd.graph as graph

        engine, tensor, from_array = graph._engine_run_backward, torch.tensor, torch.from_numpy

        def run(*args: Any, **kwargs: Any) -> Any:
            before = gpu.set_count(100)
            try:
                return engine(*args, **kwargs)
            finally:
                gpu.set_count(before)

        def from_numbers(data: Any, *args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is None or torch.device(device).type != "cuda":
                return tensor(data, *args, **kwargs)
            gpu.note("tensor")
            here = tensor(data, *args, **{**kwargs, "device": "cpu"})
            return torch.zeros(here.shape, dtype=here.dtype, device=device)

        def from_numpy(array: Any) -> Any:
            made = from_array(array)
            if any(first <= array.ctypes.data < last for first, last in gpu.pinned_bytes):
                gpu._pinned[made.untyped_storage()._cdata] = made
            return made

        def to_list(self: Any) -> Any:
            if gpu._on_gpu(self):
                gpu.note("tolist")
            return _zeros(tuple(self.shape))

        graph._engine_run_backward = autograd._engine_run_backward = run
        torch.tensor, torch.from_numpy, fake.tolist = from_numbers, from_numpy, to_list
        fake.numpy = lambda self, **_: np.zeros(
            tuple(self.shape), str(self.dtype).rpartition(".")[2]
        )
        fake.data_ptr = lambda self: 0  # parallel.collective.digest looks at the alignment
        fake.record_stream = lambda self, stream: None
        torch.cuda.amp.common.amp_definitely_not_available = lambda: False
        torch.cuda.is_bf16_supported = lambda *_, **__: True
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.Event = lambda **_: Event(gpu)
        torch.cuda.Stream = lambda *_, **__: Stream(gpu)
        torch.cuda.stream = lambda stream: stream
        torch.cuda.current_stream = lambda *_: Stream(gpu)
        torch.cuda.synchronize = lambda *_: None
        torch.cuda.set_sync_debug_mode = lambda _: None
        torch.cuda.CUDAGraph = lambda: Graph(gpu)
        torch.inference_mode = lambda mode=True: torch.no_grad() if mode else torch.enable_grad()


def _zeros(shape: tuple[int, ...]) -> Any:
    return [_zeros(shape[1:]) for _ in range(shape[0])] if shape else 0


class Event:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def record(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0

    def synchronize(self) -> None:
        self._gpu.note("event")


class Stream:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...

    def record_event(self) -> Event:
        return Event(self._gpu)


class Graph:
    """While it is captured, operators run as usual, but nothing may wait for the GPU. A replay is
    counted and does nothing.
    """

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self._whole = gpu, False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._waits = self._gpu.waits.copy()

    def capture_end(self) -> None:
        more = self._gpu.waits - self._waits
        assert not more, f"waits for the GPU in a capture: {more}"
        self._whole = True

    def pool(self) -> tuple[int, int]:
        if not self._whole:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return 0, 1

    def replay(self) -> None:
        self._gpu.ops["graph"] += 1
