"""The time of a training step on one GPU from data sheets: a roofline whose two parts add up, with
launch overheads.

    step = images x (arithmetic + memory traffic) + layers + optimizer

Arithmetic is three forward passes (backward: for the inputs and for the weights) at a share of the
peak rate. Memory traffic is what layers without much arithmetic (norms, activations, additions)
read and write again: a number of passes over all activations at a share of the memory's rate. Both
parts add up, because kernels run one after the other; the share of arithmetic thus falls with the
arithmetic intensity (flops for each byte of activations). The numbers are counted or stated below
with their reason. Only DENSE is fitted, by bench/plan_exam.py, over several sources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from segtrain.machines import Gpu

# Shares of the data sheet's peak that convolutions and large matrix products reach: on tensor
# cores, and on plain cores, where Winograd's algorithm saves multiplications.
TENSOR, PLAIN = 0.6, 0.9
# Share of the data sheet's memory rate that streaming kernels reach.
MEMORY = 0.8
# Passes over an activation in a step, counted for convolution, batch norm, and ReLU. Forward, 7:
# the convolution writes, the statistics read, the normalization and the ReLU each read and write,
# the next convolution reads. Backward, 12: the ReLU reads two and writes, the norm's sums read two,
# its gradient reads two and writes, and the convolution reads the gradient twice and the input, and
# writes.
PASSES = 19.0
# More where activations are not channels-last on tensor cores: each of a convolution's three
# products transposes two tensors, and each transposition reads and writes.
TRANSPOSED = 12.0
# Seconds of a layer in a step that do not shrink with the batch: starting, filling, and draining
# its kernels. NVIDIA's page of ResNet-50 v1.5, inference: 4 ms for 54 layers beyond a time that is
# linear in the batch. A step has three passes.
LAYER = 2e-4
# Seconds in which the host launches a layer's kernels in a step, in eager mode. The same page: 10
# ms for a forward pass of batch 1; the backward pass is launched by C++ and takes about as long,
# and so does the optimizer.
LAUNCH = 5e-4
# Bytes that the optimizer reads and writes for each parameter: weight, gradient, and one or two
# moments in fp32.
OPTIMIZER = 24.0
# Factor of the time of an image in segmentation and detection: more than one head, large maps,
# losses at full size, dilated convolutions. bench/plan_exam.py fits it on published figures, each
# source counted once.
DENSE = 1.58
Z80 = 1.2816  # standard deviations to either side that 80 % of a normal distribution lie within
# Standard deviations of the logarithm of (measured / predicted) seconds, by bench/plan_exam.py:
# from the data sheet alone, for sources that the fit has not seen, and by a measured step on
# another GPU.
SPECS, OTHER_GPU = 0.2, 0.17


@dataclass(frozen=True)
class ModelCost:
    """Training costs of one sample. ``layers``: of the network. ``kind``: "dense" for segmentation.

    bench/exam/names.py has the other kinds.
    """

    kind: str
    params: float
    flops: float
    activations: float
    layers: int


def step(
    work: ModelCost,
    batch: float,
    gpu: Gpu,
    precision: tuple[str, float, int],
    transposed: float,
    dense: float = DENSE,
) -> float:
    """Seconds of a step of ``batch`` samples. ``precision``: name, peak FLOP/s, bytes of an
    activation.

    ``transposed``: more passes over the activations, see TRANSPOSED. The host launches ahead of the
    device,
    so the longer of both decides, smoothly.
    """
    name, peak, width = precision
    plain = name == "fp32" or (gpu.fp32 and peak <= 1.3e12 * gpu.fp32 and name != "tf32")
    rate = MEMORY * gpu.memory_gbs * 1e9
    arithmetic = 3 * work.flops / ((PLAIN if plain else TENSOR) * peak)
    image = arithmetic + (PASSES + transposed) * width * work.activations / rate
    if work.kind == "dense":
        image *= dense
    device = batch * image + LAYER * work.layers + OPTIMIZER * work.params / rate
    return float((device**4 + (LAUNCH * work.layers) ** 4) ** 0.25)


def precision_named(text: str, gpu: Gpu, year: int) -> tuple[str, float, int]:
    """Name, peak FLOP/s, and bytes of an activation. On GPUs with TF32, fp32 uses it unless the
    text says otherwise.

    torch has let convolutions use TF32 since 1.7 (2020). A GPU without a unit for a precision
    computes in fp32.
    """
    low = text.lower()
    plain = gpu.fp32 or gpu.mixed
    if re.search(r"bf16|bfloat|fp8", low):
        return "bf16", 1e12 * (gpu.bf16 or plain), 2
    if re.search(r"amp|mixed|fp16|half|float16|16", low):
        fast = gpu.fp16 or gpu.bf16 or plain
        return "fp16", 1e12 * fast, 2
    if (
        gpu.tf32
        and not re.search(r"no tf32|without tf32|strict", low)
        and ("tf32" in low or year >= 2020)
    ):
        return "tf32", 1e12 * gpu.tf32, 4
    return "fp32", 1e12 * plain, 4
