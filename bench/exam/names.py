"""What the words of a publication mean: names of precisions, links, and networks, read
generously.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from segtrain.insight.plan.device import TRANSPOSED
from segtrain.machines import Gpu

# Bytes/s and seconds of a message of an all-reduce over PCIe: 16 GB/s of version 3 at most, through
# the host's memory.
PCIE = (8e9, 30e-6)
# Share of NVLink's rate in both directions that nccl-tests call bus bandwidth.
NVLINK_SHARE = 0.43
# Share of a network's rate that an all-reduce reaches.
SHARES = {"rdma": 0.85, "efa": 0.6, "tcp": 0.65}
_RDMA = re.compile(r"infiniband|\bib\b|roce|rdma|\bedr\b|\bhdr\b|\bndr\b|\bfdr\b")
_RATE = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*-?\s*g(?!b/s|bytes)")
_INFINIBAND = {"fdr": 56.0, "edr": 100.0, "hdr": 200.0, "ndr": 400.0}


@dataclass(frozen=True)
class Network:
    """Costs of one image of ``size`` pixels a side, or of one sequence of ``size`` tokens.

    ``kind``: "conv", "depthwise", "dense" (segmentation, detection), "transformer" (of images),
    "sequence", "volume", or "table" (recommendation). ``params``, ``flops`` (forward pass),
    ``activations``: numbers; None if not known. ``layers``: for the overhead of launching.
    """

    kind: str
    size: float
    params: float | None
    flops: float | None
    activations: float | None
    layers: int


# Where only the kind is known: flops for each activation (RN50 736, VGG-16 2282, ViT-B 2130, B0
# 114), and layers.
KINDS: dict[str, tuple[float, int]] = {
    "conv": (900, 80),
    "depthwise": (130, 90),
    "dense": (1100, 150),
    "transformer": (2000, 74),
    "sequence": (2000, 74),
    "volume": (2000, 40),
    "table": (200, 20),
}
_WORDS = {
    "volume": r"u\W*net\W*3d|3d\W*u\W*net|\bv\W?net|nnu",
    "dense": r"u\W*net|deeplab|pspnet|fcn|segformer|upernet|mask|faster|\bssd|retina|yolo|hrnet|segment|detect|\bgan",
    "table": r"dlrm|\bncf|recommend|wide\W*(and|&)?\W*deep|neumf|matrix\W*fact|vae\W*cf",
    "transformer": r"\bvit|deit|swin|beit|mixer|vision\W*transf",
    "sequence": r"bert|gpt|transformer|electra|\bt5|llama|gnmt|xlnet|wav2vec",
    "depthwise": r"efficientnet|mobilenet|mnasnet|xception|shufflenet|convnext|ghostnet",
}


def links_named(text: str, gpu: Gpu, year: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """(bytes/s, seconds of a message) inside a host, and between hosts."""
    low = text.lower()
    pcie = gpu.nvlink_gbs < 150 or ("pci" in low and "nvlink" not in low and "nvswitch" not in low)
    inside = PCIE if pcie else (NVLINK_SHARE * gpu.nvlink_gbs * 1e9, 8e-6)
    rates = [float(lanes or 1) * float(rate) for lanes, rate in _RATE.findall(low)]
    kind = "efa" if "efa" in low else "rdma" if _RDMA.search(low) else "tcp"
    usual = {
        "efa": 100.0 if gpu.arch <= "sm_70" else 400.0,
        "rdma": 100.0,
        "tcp": 10.0 if year < 2018 else 25.0,
    }[kind]
    named = [rate for word, rate in _INFINIBAND.items() if word in low]
    gbit = max([rate for rate in rates if rate > 0] or named or [usual])
    return inside, (SHARES[kind] * gbit * 1e9 / 8, 10e-6 if kind == "rdma" else 30e-6)


def transposed_passes(kind: str, framework: str, year: int, precision: str) -> tuple[float, bool]:
    """Passes over the activations for a layout that is not channels-last, and whether the text
    settles it.

    Without a word on the layout, half of them are taken.
    """
    low = framework.lower()
    products = kind in ("transformer", "sequence")
    if products or precision == "fp32":
        return 0.0, products or "pytorch" in low
    if any(
        word in low
        for word in ("nhwc", "channels_last", "channels-last", "channels last", "mlperf")
    ):
        return 0.0, True
    nvidia = "nvidia" in low or "deeplearningexamples" in low or "ngc" in low
    if nvidia and "mxnet" in low:
        return 0.0, True
    if nvidia and "torch" in low and precision != "tf32":
        # NVIDIA's page of ResNet-50 changed the layout
        return (0.0 if year >= 2021 else TRANSPOSED), True
    if "torch" in low and not nvidia and year <= 2022:
        return TRANSPOSED, "nchw" in low
    return TRANSPOSED / 2, nvidia and precision == "tf32"


def network_named(text: str) -> Network:
    """The network that a text names, or what is usual for its kind."""
    low = text.lower()
    squeezed = re.sub(r"[^a-z0-9+]", "", low).replace("+", "plus")
    for name in sorted(networks(), key=len, reverse=True):
        if name in squeezed and not re.match(
            r"\d", squeezed[squeezed.index(name) + len(name) :][:1]
        ):
            found = networks()[name]
            kind = kind_named(low)
            if kind == found.kind or kind == "conv":
                return found
    return Network(kind_named(low), 0, None, None, None, KINDS[kind_named(low)][1])


def kind_named(text: str) -> str:
    return next((kind for kind, words in _WORDS.items() if re.search(words, text.lower())), "conv")


@lru_cache
def networks() -> dict[str, Network]:
    """Known networks by name without separators."""
    lines = Path(__file__).with_name("networks.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {
        row["network"]: Network(
            row["kind"],
            float(row["size"]),
            *(
                1e6 * float(row["params_M"]),
                1e9 * float(row["flops_G"]),
                1e6 * float(row["activations_M"]),
            ),
            layers=int(row["layers"]),
        )
        for row in rows
    }
