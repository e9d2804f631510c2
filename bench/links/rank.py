"""A rank of bench/plan_links.py: real DistributedDataParallel over gloo, on a device that takes a fixed time.

    python bench/links/rank.py HOST HOSTS SETTINGS.json LINK RESULTS.json

Each layer's gradient is ready after its share of the step's time, which the rank sleeps, so that the cores stay free
for the network. Host 0 sets the links, and writes the results.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from links.hub import Link, address, space  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torchvision import models  # noqa: E402

from segtrain.config import Parallel  # noqa: E402
from segtrain.parallel.model import wrap  # noqa: E402

# Networks of 5, 9, and 47 MB.
NETWORKS = {"squeezenet": "squeezenet1_1", "shufflenet": "shufflenet_v2_x1_0", "resnet18": "resnet18"}


def shapes(name: str) -> list[torch.Size]:
    """The shapes of a network's parameters, in forward order."""
    with torch.device("meta"):
        return [parameter.shape for parameter in models.get_model(NETWORKS[name], weights=None).parameters()]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.seconds, ctx.shape = backward_s, weight.shape
        time.sleep(forward_s)
        return x + 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradients[0], torch.ones(ctx.shape), None, None


class Sleeper(nn.Module):
    """The parameters of a network, and layers that take the same time each: a third forward, two thirds backward."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes(name))
        self.layers = sum(len(weight.shape) > 1 for weight in self.weights)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            share = self.seconds / 3 / self.layers if len(weight.shape) > 1 else 0.0
            x = _Layer.apply(x, weight, share, 2 * share)
        return x


def gradients(shapes: list[torch.Size]) -> list[tuple[float, float]]:
    """(bytes, share of the backward pass after which it is ready) of each, in the order in which they are made."""
    made, layers, found = 0, sum(len(shape) > 1 for shape in shapes), []
    for shape in reversed(shapes):
        made += len(shape) > 1
        found.append((4.0 * shape.numel(), made / layers))
    return found


def _steps(model: nn.Module, count: int) -> float:
    """The median seconds of a step; the first two do not count, because DDP rebuilds its buckets after the first."""
    x, times = torch.zeros(1, requires_grad=True), []
    for _ in range(count + 2):
        begin = time.perf_counter()
        model(x).sum().backward()
        times.append(time.perf_counter() - begin)
    return median(times[2:])


def measured(setting: dict[str, Any], host: int, hosts: int, link: Link) -> dict[str, float]:
    """Seconds of a step without and with the network, and of an all-reduce of 4 bytes on links without a delay."""
    mtu = 65000 if setting["gbit"] > 0.8 else 9000
    subprocess.run(["ip", "link", "set", space(host), "mtu", str(mtu)], check=True)
    if host == 0:
        link.set(1e9, 0.0)
    dist.barrier()
    small, times = torch.zeros(1), []
    for _ in range(30):
        begin = time.perf_counter()
        dist.all_reduce(small)
        times.append(time.perf_counter() - begin)
    if host == 0:
        link.set(setting["gbit"] * 1e9 / 8, setting["latency_ms"] / 1e3)
    dist.barrier()
    alone = Sleeper(setting["network"], setting["device_ms"] / 1e3)
    device = _steps(alone, 5)
    message = median(times) / (2 * (hosts - 1))
    model = wrap(alone, "ddp", Parallel(bucket_mb=setting["bucket_mb"]), torch.device("cpu"), hosts)
    return {"message": message, "device": device, "step": _steps(model, 5)}


def main() -> None:
    host, hosts = int(sys.argv[1]), int(sys.argv[2])
    settings, link = json.loads(Path(sys.argv[3]).read_text()), Link(Path(sys.argv[4]))
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"tcp://{address(0)}:29400", rank=host, world_size=hosts, timeout=limit)
    results = []
    for setting in settings:
        results.append({**setting, **measured(setting, host, hosts, link)})
        if host == 0:
            print(json.dumps(results[-1]), flush=True)
    if host == 0:
        Path(sys.argv[5]).write_text(json.dumps(results))
    dist.barrier()


if __name__ == "__main__":
    main()
