"""The figures of the four accounts that segtrain grows from, beside what the planner's model makes
of their inputs.

    python bench/accounts.py            # a second; prints a table

An input is *stated* by the account or by its public repository, or *open*: then it has a range, and
a prediction has the interval that holds 80 % of 4000 draws from the ranges. Each row is one of four
kinds. *predicted*: the model's own figure, with a bound that its error must keep. *arithmetic*:
follows from stated figures without a model. *given*: an input of other rows. *not determined*: the
account leaves open what it depends on; the range over the open inputs holds the figure, and no more
is claimed. Nothing is fitted to the figure that it
predicts.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from segtrain.insight.diagnose.model import Stages
from segtrain.insight.diagnose.remedies import receive_seconds, with_helpers
from segtrain.insight.plan import model

DRAWS = 4000
# Name -> (least, most, why). Drawn evenly on a logarithmic scale.
Ranges = dict[str, tuple[float, float, str]]

# 4. Vertex AI: 50,000 images, batches of 32 per GPU, ResNet-50 in fp32, SyncBN, 4 T4 in one
#    machine.
IMAGES, BATCH, GPUS, WORKERS = 50_000, 32, 4, 2
LOCAL_S = 489.0  # given
GRADIENTS = 25.56e6 * 4  # parameters of torchvision's ResNet-50, fp32
NORMS = (
    # batch norms of ResNet-50. Each has a collective in the forward and one in the backward pass
    # (SyncBatchNorm)
    53
)
T4_BOX: Ranges = {
    "bus": (
        3e9,
        9e9,
        "bytes/s of an all-reduce over PCIe 3.0 x16 (at most 15.8e9 each way) without NVLink",
    ),
    "latency": (20e-6, 100e-6, "s of a message between GPUs without peer access"),
    "spread": (0.01, 0.04, "standard deviation of a step as a share of it"),
}
MOUNT: Ranges = {
    "workers": (2, 8, "loader workers of a process; the flags of the printed runs are not stated"),
    "latency": (0.02, 0.13, "s of a file through gcsfuse"),
    "most": (100, 300, "files/s that the mount serves at most"),
}
REPEATED: Ranges = {
    "repeat": (0.87, 1.15, "factor of time between two runs that read through the same mount")
}
# 1. SageMaker: ml.p3.16xlarge, 8 V100 each, 25 Gbit/s. Model, batch, and step are not stated.
SAGEMAKER: Ranges = {
    "step": (0.05, 0.6, "s of a step of one GPU"),
    "gradients": (20e6, 250e6, "bytes of gradients"),
    "used": (0.5, 0.9, "share of 25 Gbit/s that TCP carries"),
    "spread": (0.01, 0.04, "standard deviation of a step as a share of it"),
}
# 2. Ray: 4 and 16 vCPUs, batch 64, ten blurs. CPU time of a sample and the GPU's step are not
#    stated.
RAY: Ranges = {
    "cost": (0.04, 0.16, "s of CPU for a sample on one vCPU"),
    "device": (0.2, 1.5, "s of a GPU's step"),
}
PRICES = 1.408, 0.816


@dataclass(frozen=True)
class Row:
    """``found``: (low, value, high), or None. ``bound``: largest error in percent of a
    prediction.
    """

    account: str
    figure: str
    said: float
    unit: str
    kind: str
    inputs: str
    found: tuple[float, float, float] | None = None
    bound: float = 0.0
    said_most: float | None = None  # where the account gives a range

    @property
    def error(self) -> float | None:
        """Percent; 0 within a range of the account."""
        if self.found is None or self.kind in ("given", "not determined"):
            return None
        nearest = min(max(self.found[1], self.said), self.said_most or self.said)
        return 100 * (self.found[1] / nearest - 1)

    @property
    def passed(self) -> bool:
        if self.kind == "not determined":
            assert self.found is not None
            return self.found[0] <= self.said <= self.found[2]
        return self.error is None or abs(self.error) <= self.bound


def data_parallel(step: float, parameters: float, gpus: int, bandwidth: float) -> float:
    """Seconds of a step of torch's DataParallel. ``step``: of one GPU with its share of the batch.

    In each step, the first GPU sends the parameters to all others, and receives their gradients,
    through one link and without overlap (torch.nn.parallel, replicate and parallel_apply).
    """
    return step + 2 * (gpus - 1) * parameters / bandwidth


def over(
    ranges: Ranges, of: Callable[..., float], whole: bool = False
) -> tuple[float, float, float]:
    """10 %, 50 %, and 90 % of ``of`` over draws from the ranges; with ``whole``, the least and the
    most.
    """
    rng = random.Random(1)
    drawn = sorted(
        of(
            **{
                name: least * (most / least) ** rng.random()
                for name, (least, most, _) in ranges.items()
            }
        )
        for _ in range(DRAWS)
    )
    low, high = (0, DRAWS - 1) if whole else (DRAWS // 10, DRAWS - DRAWS // 10)
    return drawn[low], drawn[DRAWS // 2], drawn[high]


def epoch(step: float, gpus: int) -> float:
    return IMAGES / (BATCH * gpus) * step


STEP = LOCAL_S / (IMAGES / BATCH)


def ddp(bus: float, latency: float, spread: float) -> float:
    """Seconds of an epoch: gradients in buckets, and the collectives of SyncBN, which nothing
    hides.
    """
    buckets = [model.ring(size, GPUS, bus, latency) for size in model.bucket_sizes(GRADIENTS)]
    norms = 2 * NORMS * model.ring(8.0 * 1024, GPUS, bus, latency)
    step = STEP + model.exposed(model.BACKWARD * STEP, buckets) + norms
    return epoch(step * model.slowest(GPUS, spread), GPUS)


def dp(bus: float, latency: float, spread: float) -> float:
    return epoch(data_parallel(STEP, GRADIENTS, GPUS, bus) * model.slowest(GPUS, spread), GPUS)


def mount_of(first: tuple[int, float], second: tuple[int, float]) -> tuple[float, float]:
    """Latency and limit with which ``model.reads`` gives both (workers, files/s); the limit is
    searched by halves.
    """
    few, rate = first
    low, high = second[1], 1e6
    for _ in range(100):
        most = (low * high) ** 0.5
        slow, fast = 1 / most, few / rate * 2
        for _ in range(100):
            latency = (slow + fast) / 2
            slow, fast = (
                (latency, fast) if model.reads(few, latency, most) > rate else (slow, latency)
            )
        low, high = (
            (most, high) if model.reads(second[0], latency, most) < second[1] else (low, most)
        )
    return latency, most


def scaling(step: float, gradients: float, used: float, spread: float) -> float:
    """Percent of 64 times one GPU, on 8 hosts of 8 GPUs."""
    inside, between = (100e9, 8e-6), (used * 25e9 / 8, 30e-6)
    buckets = [
        model.hosts_and_gpus(size, 8, 8, inside, between) for size in model.bucket_sizes(gradients)
    ]
    return (
        100
        * step
        / ((step + model.exposed(model.BACKWARD * step, buckets)) * model.slowest(64, spread))
    )


def helped(cost: float, device: float) -> float:
    now = Stages(device, 0.0, 64, cost, cost, 4, 0.0, 4)
    return now.step / with_helpers(now, 16, receive_seconds(224, 224))


def rows() -> list[Row]:
    local = f"{LOCAL_S:g} s given; 4 GPUs, ResNet-50 stated; T4, batch 32, fp32, SyncBN from its repository; links, spread open"
    few, many = (WORKERS, IMAGES / 804), (GPUS * WORKERS, IMAGES / 432)
    latency, most = mount_of(few, many)
    own = max(IMAGES / model.reads(WORKERS, latency, most), dp(5e9, 50e-6, 0.02))
    both = (PRICES[0] + PRICES[1]) / PRICES[0]
    no_figure = "no figure given; workers, latency, and limit of the mount open"

    def mounted(processes: int, gpus: int) -> Callable[..., float]:
        return lambda workers, latency, most: max(
            IMAGES / model.reads(processes * round(workers), latency, most), epoch(STEP, gpus)
        )

    return [
        Row("SageMaker", "57 minutes on one machine", 57, "min", "given", ""),
        Row(
            "SageMaker",
            "on 5 machines, loader fixed",
            6,
            "min",
            "arithmetic",
            "57 min, 2x of the loader, 5 machines stated",
            (57 / 10,) * 3,
            10,
        ),
        Row(
            "SageMaker",
            "scaling to 64 GPUs",
            93,
            "%",
            "not determined",
            "8 x 8 V100, 25 Gbit/s stated; step, gradients, share of the network, spread open",
            over(SAGEMAKER, scaling, whole=True),
        ),
        Row(
            "Ray",
            "work per dollar",
            23,
            "%",
            "arithmetic",
            "prices stated, a speed-up of 1.94 given",
            (100 * (1.94 / both - 1),) * 3,
            5,
        ),
        Row(
            "Ray",
            "speed-up by 16 vCPUs",
            1.94,
            "x",
            "not determined",
            "4 and 16 vCPUs, batch 64 stated; cost of a sample, step open",
            over(RAY, helped, whole=True),
        ),
        Row("ParallelCluster", "epoch on one GPU", 60, "s", "given", ""),
        Row(
            "ParallelCluster",
            "epoch on 4 GPUs",
            15,
            "s",
            "arithmetic",
            "60 s, 4 GPUs stated",
            (60 / 4,) * 3,
            10,
            20,
        ),
        Row("Vertex AI", "one GPU, local files", LOCAL_S, "s", "given", ""),
        Row("Vertex AI", "dp, local files", 157, "s", "predicted", local, over(T4_BOX, dp), 20),
        Row("Vertex AI", "ddp, local files", 134, "s", "predicted", local, over(T4_BOX, ddp), 10),
        Row("Vertex AI", "ddp, local shards", 131, "s", "predicted", local, over(T4_BOX, ddp), 10),
        Row(
            "Vertex AI",
            "ddp, shards from the bucket",
            133,
            "s",
            "predicted",
            local,
            over(T4_BOX, ddp),
            10,
        ),
        Row("Vertex AI", "one GPU, mounted bucket", 804, "s", "given", ""),
        Row("Vertex AI", "ddp, mounted bucket", 432, "s", "given", ""),
        Row(
            "Vertex AI",
            "dp, mounted bucket",
            738,
            "s",
            "predicted",
            f"804 and 432 s given; 2 workers per process from its repository, so {1000 * latency:.0f} ms a file and at most "
            f"{most:.0f} files/s; repeat open",
            over(REPEATED, lambda repeat: repeat * own),
            15,
        ),
        Row(
            "Vertex AI",
            "one GPU, mounted bucket",
            804,
            "s",
            "not determined",
            no_figure,
            over(MOUNT, mounted(1, 1), whole=True),
        ),
        Row(
            "Vertex AI",
            "dp, mounted bucket",
            738,
            "s",
            "not determined",
            no_figure,
            over(MOUNT, mounted(1, GPUS), whole=True),
        ),
        Row(
            "Vertex AI",
            "ddp, mounted bucket",
            432,
            "s",
            "not determined",
            no_figure,
            over(MOUNT, mounted(GPUS, GPUS), whole=True),
        ),
    ]


def text(row: Row) -> str:
    said = f"{row.said:g}" + (f" to {row.said_most:g}" if row.said_most else "") + f" {row.unit}"
    found = ""
    if row.found is not None:
        low, value, high = row.found
        found = f"{value:.3g}" if low == high else f"{value:.3g} ({low:.3g} to {high:.3g})"
        found = f"{low:.3g} to {high:.3g}" if row.kind == "not determined" else found
    error = "" if row.error is None else f"{row.error:+.1f} % of {row.bound:g}"
    kind = row.kind if row.passed else f"**{row.kind}: failed**"
    return f"| {row.account} | {row.figure} | {said} | {found} | {error} | {kind} | {row.inputs} |"


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    table = rows()
    print(
        "| account | figure | account's | model's (80 % interval) | error, bound | kind | inputs |"
    )
    print("|---" * 7 + "|")
    print("\n".join(map(text, table)))
    print("\nOpen inputs:\n")
    named = (
        ("4 T4", T4_BOX),
        ("mount", MOUNT),
        ("mount", REPEATED),
        ("SageMaker", SAGEMAKER),
        ("Ray", RAY),
    )
    for name, ranges in named:
        for key, (least, most, why) in ranges.items():
            print(f"- {name}, {key}: {least:g} to {most:g} {why}")
    counts = [
        sum(row.kind == kind and row.passed for row in table)
        for kind in ("predicted", "arithmetic", "not determined")
    ]
    failed = sum(not row.passed for row in table)
    print(
        "\n{} predicted within bounds, {} arithmetic, {} not determined, {} failed".format(
            *counts, failed
        )
    )


if __name__ == "__main__":
    main()
