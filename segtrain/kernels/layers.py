"""Triton kernels of layers in training: batch norm with addition and ReLU, layer norm, and
depthwise 3x3 convolutions.

Images are in channels_last memory: contiguous arrays (M, C) of M = N * H * W pixels. Arithmetic is
float32, whatever their type; so are tables of numbers by channel (C,). A sum over pixels is written
as one partial sum per program, without atomics.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(row, c, M, C):
    """Places of these rows and columns in an array (M, C), and whether they are in it."""
    return row.to(tl.int64)[:, None] * C + c[None, :], (row < M)[:, None] & (c < C)[None, :]


@triton.jit
def channel_sums(
    x,
    out,
    slope,
    center,
    sums,
    M,
    C,
    BACKWARD: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """sums (programs, 2, C), over pixels: d and d * d, where d = x - center; with BACKWARD, g and g
    * d, where g is the slope, with RELU only where ``out`` is positive.

    Grid: (programs, blocks of channels).
    """
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    middle = tl.load(center + c, mask=c < C, other=0.0)[None, :]
    first = tl.zeros([ROWS, COLS], tl.float32)
    second = tl.zeros([ROWS, COLS], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        at, mask = _tile(row, c, M, C)
        d = tl.where(mask, tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - middle, 0.0)
        g = d
        if BACKWARD:
            g = tl.load(slope + at, mask=mask, other=0.0).to(tl.float32)
            if RELU:
                g = tl.where(tl.load(out + at, mask=mask, other=0.0) <= 0.0, 0.0, g)
        first += g
        second += g * d
    sums += tl.program_id(0) * (2 * C) + c
    tl.store(sums, tl.sum(first, 0), mask=c < C)
    tl.store(sums + C, tl.sum(second, 0), mask=c < C)


@triton.jit
def normalized(
    x,
    residual,
    center,
    scale,
    bias,
    out,
    M,
    C,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """out: (x - center) * scale + bias, plus the residual, then ReLU. Grid: (blocks of pixels,
    blocks of channels).
    """
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, mask = _tile(row, c, M, C)
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    v -= tl.load(center + c, mask=c < C, other=0.0)[None, :]
    v *= tl.load(scale + c, mask=c < C, other=0.0)[None, :]
    v += tl.load(bias + c, mask=c < C, other=0.0)[None, :]
    if RESIDUAL:
        v += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        v = tl.where(v < 0.0, 0.0, v)  # NaN stays NaN.
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)


@triton.jit
def normalized_slopes(
    x,
    out,
    slope,
    center,
    scale,
    mean,
    factor,
    gradient,
    residual,
    M,
    C,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """gradient: scale * (g - mean - (x - center) * factor); residual: g, as in ``channel_sums``.
    Grid: as for ``normalized``.
    """
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, mask = _tile(row, c, M, C)
    g = tl.load(slope + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(out + at, mask=mask, other=0.0) <= 0.0, 0.0, g)
    if RESIDUAL:
        tl.store(residual + at, g.to(residual.dtype.element_ty), mask=mask)
    d = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    d -= tl.load(center + c, mask=c < C, other=0.0)[None, :]
    g -= tl.load(mean + c, mask=c < C, other=0.0)[None, :]
    g -= d * tl.load(factor + c, mask=c < C, other=0.0)[None, :]
    g *= tl.load(scale + c, mask=c < C, other=0.0)[None, :]
    tl.store(gradient + at, g.to(gradient.dtype.element_ty), mask=mask)


@triton.jit
def depthwise(
    x,
    weight,
    out,
    H,
    W,
    C,
    dilation,
    FLIPPED: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """out: the convolution of each channel with its 3x3 weights (10, C), plus row 9, the bias;
    with FLIPPED, the gradient of x of this convolution, without row 9.

    Grid: (blocks of pixels, blocks of channels, N).
    """
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(2).to(tl.int64) * H * W * C
    inside = (pixel < H * W)[:, None] & (c < C)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    if not FLIPPED:
        total += tl.load(weight + 9 * C + c, mask=c < C, other=0.0)[None, :]
    for tap in tl.static_range(9):
        y = pixel // W + (tap // 3 - 1) * dilation
        column = pixel % W + (tap % 3 - 1) * dilation
        mask = inside & ((y >= 0) & (y < H) & (column >= 0) & (column < W))[:, None]
        source = start + (y * W + column)[:, None] * C + c[None, :]
        v = tl.load(x + source, mask=mask, other=0.0).to(tl.float32)
        number = 8 - tap if FLIPPED else tap
        total += v * tl.load(weight + number * C + c, mask=c < C, other=0.0)[None, :]
    at = start + pixel[:, None] * C + c[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def depthwise_weights(
    x,
    slope,
    sums,
    N,
    H,
    W,
    C,
    dilation,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """sums (programs, 16, C): the gradients of the weights of ``depthwise``, in rows 0 to 9. Grid:
    (programs, blocks of channels).
    """
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    taps = tl.arange(0, 16)[:, None]
    total = tl.zeros([16, COLS], tl.float32)
    blocks = tl.cdiv(H * W, ROWS)
    for block in range(tl.program_id(0), N * blocks, tl.num_programs(0)):
        pixel = (block % blocks) * ROWS + tl.arange(0, ROWS)
        start = (block // blocks).to(tl.int64) * H * W * C
        inside = (pixel < H * W)[:, None] & (c < C)[None, :]
        at = start + pixel[:, None] * C + c[None, :]
        g = tl.load(slope + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(taps == 9, tl.sum(g, 0)[None, :], 0.0)
        for tap in tl.static_range(9):
            y = pixel // W + (tap // 3 - 1) * dilation
            column = pixel % W + (tap % 3 - 1) * dilation
            mask = inside & ((y >= 0) & (y < H) & (column >= 0) & (column < W))[:, None]
            source = start + (y * W + column)[:, None] * C + c[None, :]
            v = tl.load(x + source, mask=mask, other=0.0).to(tl.float32)
            total += tl.where(taps == tap, tl.sum(g * v, 0)[None, :], 0.0)
    at = (tl.program_id(0) * 16 + taps) * C + c[None, :]
    tl.store(sums + at, total, mask=(c < C)[None, :] & (taps < 10))


@triton.jit
def rows_normalized(
    x,
    weight,
    bias,
    out,
    statistics,
    M,
    C,
    eps,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """out: each row (C,), normalized, times weight, plus bias. statistics (2, M): mean and 1 /
    deviation of each row. COLS >= C. Grid: (blocks of rows,).
    """
    c = tl.arange(0, COLS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, mask = _tile(row, c, M, C)
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(v, 1) / C
    v = tl.where(mask, v - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(v * v, 1) / C + eps)
    v *= inverse[:, None] * tl.load(weight + c, mask=c < C, other=0.0)[None, :]
    v += tl.load(bias + c, mask=c < C, other=0.0)[None, :]
    tl.store(out + at, v.to(out.dtype.element_ty), mask=mask)
    tl.store(statistics + row, mean, mask=row < M)
    tl.store(statistics + M + row, inverse, mask=row < M)


@triton.jit
def rows_normalized_slopes(
    x,
    slope,
    weight,
    statistics,
    gradient,
    sums,
    M,
    C,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """gradient: of ``x`` of ``rows_normalized``. sums (programs, 2, C): of weight and bias. Grid:
    (programs,).
    """
    c = tl.arange(0, COLS)
    scale = tl.load(weight + c, mask=c < C, other=0.0)[None, :]
    of_weight = tl.zeros([ROWS, COLS], tl.float32)
    of_bias = tl.zeros([ROWS, COLS], tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        at, mask = _tile(row, c, M, C)
        mean = tl.load(statistics + row, mask=row < M, other=0.0)[:, None]
        inverse = tl.load(statistics + M + row, mask=row < M, other=0.0)[:, None]
        v = tl.where(mask, tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - mean, 0.0)
        v *= inverse
        g = tl.load(slope + at, mask=mask, other=0.0).to(tl.float32)
        of_weight += g * v
        of_bias += g
        g *= scale
        g -= (tl.sum(g, 1)[:, None] + v * tl.sum(g * v, 1)[:, None]) / C
        g *= inverse
        tl.store(gradient + at, g.to(gradient.dtype.element_ty), mask=mask)
    sums += tl.program_id(0) * (2 * C) + c
    tl.store(sums, tl.sum(of_weight, 0), mask=c < C)
    tl.store(sums + C, tl.sum(of_bias, 0), mask=c < C)
