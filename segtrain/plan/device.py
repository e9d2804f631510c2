"""The time of a training step on one GPU from data sheets: a roofline whose two parts add up, with launch overheads.

    step = images x (arithmetic + memory traffic) x software + layers + optimizer

Arithmetic is three forward passes (backward: for the inputs and for the weights) at a share of the peak rate. Memory
traffic is what layers without much arithmetic (norms, activations, additions) read and write again: a number of passes
over all activations at a share of the memory's rate. Both parts add up, because kernels run one after the other; the
share of arithmetic thus falls with the arithmetic intensity (flops for each byte of activations). FITTED has the four
numbers that are fitted, by bench/plan_exam.py; all others are stated here with their reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from segtrain.machines import Gpu

# Share of the data sheet's memory rate that streaming kernels reach.
MEMORY = 0.8
# Seconds of a layer in a step that do not shrink with the batch: starting, filling, and draining its kernels. NVIDIA's
# page of ResNet-50 v1.5, inference: 4 ms for 54 layers beyond a time that is linear in the batch. A step has three
# passes.
LAYER = 2e-4
# Seconds in which the host launches a layer's kernels in a step, in eager mode. The same page: 10 ms for a forward pass
# of batch 1; the backward pass is launched by C++ and takes about as long, and so does the optimizer.
LAUNCH = 5e-4
# Bytes that the optimizer reads and writes for each parameter: weight, gradient, and one or two moments in fp32.
OPTIMIZER = 24.0
# Year of an architecture's first GPUs, and the factor of time of convolutions until the end of that year, while
# libraries are not yet tuned. The page's A100 with the container of June 2020 is 1.2 to 1.3 times slower than the rest
# of the page says; because it is one case, half of that is taken.
FIRST = {"sm_60": 2016, "sm_70": 2017, "sm_75": 2018, "sm_80": 2020, "sm_86": 2020, "sm_89": 2022, "sm_90": 2022}
EARLY = 1.13
Z80 = 1.2816  # standard deviations to either side that 80 % of a normal distribution lie within
# Standard deviations of the logarithm of (measured / predicted) seconds. The first four are parts of those that
# bench/plan_exam.py finds on figures whose family of networks (0.32), generation of GPUs (0.28), or software (0.21) the
# fit has not seen, and on figures of which it has seen all three (0.13). The last is about that of the figures with a
# neighbor on another GPU.
SD = {
    "specs": 0.13,  # from the data sheet alone
    "family": 0.29,  # more, for networks of another family than the fit has seen
    "generation": 0.25,  # more, for GPUs of another generation
    "software": 0.16,  # more, where the software is not settled
    "kind": 0.25,  # more, for networks other than convolutional ones: no figure is known, assumed
    "gpu": 0.17,  # by a measured step on another GPU
}


@dataclass(frozen=True)
class Fit:
    """Shares of peak rates and the software's factor, fitted on published figures.

    ``tensor``, ``plain``: share of the peak rate of tensor cores and plain cores. ``passes``: over all activations.
    ``planar``: factor of time of convolutions on tensor cores where activations are not channels-last. ``dense``: that
    of segmentation and detection: more than one head, large maps, losses at full size, dilated convolutions.
    ``seen``: families of networks and architectures of GPUs with at least three of the figures.
    """

    tensor: float = 0.631
    plain: float = 0.894
    passes: float = 17.9
    planar: float = 1.43
    dense: float = 1.57
    seen: tuple[str, ...] = ("resnet", "segmentation", "sm_70", "sm_80")


FITTED = Fit()


@dataclass(frozen=True)
class Work:
    """Training costs of one sample. ``layers``: of the network. ``kind``, ``family``: see names.py."""

    kind: str
    params: float
    flops: float
    activations: float
    layers: int
    family: str = ""


def step(
    work: Work, batch: float, gpu: Gpu, precision: tuple[str, float, int], software: float, fit: Fit = FITTED
) -> float:
    """Seconds of a step of ``batch`` samples. ``precision``: name, peak FLOP/s, bytes of an activation.

    ``software``: factor of the time of convolutions and other kernels beyond the fastest known software, see
    ``software_factor``. The host launches ahead of the device, so the longer of both decides, smoothly.
    """
    name, peak, width = precision
    share = fit.plain if name == "fp32" or (gpu.fp32 and peak <= 1.3e12 * gpu.fp32 and name != "tf32") else fit.tensor
    rate = MEMORY * gpu.memory_gbs * 1e9
    image = 3 * work.flops / (share * peak) + fit.passes * width * work.activations / rate
    if work.kind == "dense":
        image *= fit.dense
    device = batch * image * software + LAYER * work.layers + OPTIMIZER * work.params / rate
    return float((device**4 + (LAUNCH * work.layers) ** 4) ** 0.25)


def early(kind: str, gpu: Gpu, year: int) -> float:
    """Factor of time in the first year of a GPU's architecture."""
    return EARLY if year <= FIRST.get(gpu.arch, 0) and kind not in ("transformer", "sequence") else 1.0


def software_factor(kind: str, framework: str, year: int, precision: str, fit: Fit = FITTED) -> tuple[float, bool]:
    """Factor of time beyond the fastest known software, and whether the text settles it.

    On tensor cores, channels-last convolutions are faster by ``fit.planar``: the same page of NVIDIA before and after
    the change. Without a word on the layout, its square root is taken, which is wrong by the same factor either way.
    """
    low = framework.lower()
    products = kind in ("transformer", "sequence")
    if products or precision == "fp32":
        return 1.0, products or "pytorch" in low
    if any(word in low for word in ("nhwc", "channels_last", "channels-last", "channels last", "mlperf")):
        return 1.0, True
    nvidia = "nvidia" in low or "deeplearningexamples" in low or "ngc" in low
    if precision == "tf32":
        return fit.planar**0.75, nvidia
    if nvidia and "mxnet" in low:
        return 1.0, True
    if nvidia and "torch" in low:
        return (1.0 if year >= 2021 else fit.planar), True
    if "torch" in low and not nvidia and year <= 2022:
        return fit.planar, "nchw" in low
    return fit.planar**0.5, False


def deviation(work: Work, gpu: Gpu | None, settled: bool, fit: Fit = FITTED) -> float:
    """Standard deviation of the logarithm of the seconds of ``step``. ``settled``: whether the software is."""
    more = {
        "family": work.family not in fit.seen,
        "generation": gpu is not None and gpu.arch not in fit.seen,
        "software": not settled,
        "kind": work.kind not in ("conv", "dense"),
    }
    return sqrt(SD["specs"] ** 2 + sum(SD[name] ** 2 for name, applies in more.items() if applies))
