"""Triton kernels of the fused loss: bilinear upsampling, softmax, and gradient in registers,
without atomics.

Arithmetic is float32, whatever the type of the logits. Shapes: low (N, C, h, w) and target (N, H,
W) are contiguous; maps of pixels are float32 (N, H, W). ``at_y``, ``mix_y``, and ``first_y`` (and
``_x``) are the tables of ``taps.AxisTaps``.
"""

import triton
import triton.language as tl


@triton.jit
def _corners(at_y, mix_y, at_x, mix_x, y, x, inside, w, H, W):
    """Places of the four low-resolution pixels around each pixel (y, x), in a plane of ``low``, and
    their weights.
    """
    up = tl.load(at_y + y, mask=inside, other=0) * w
    down = tl.load(at_y + H + y, mask=inside, other=0) * w
    left = tl.load(at_x + x, mask=inside, other=0)
    right = tl.load(at_x + W + x, mask=inside, other=0)
    top = tl.load(mix_y + y, mask=inside, other=0.0)
    bottom = tl.load(mix_y + H + y, mask=inside, other=0.0)
    near = tl.load(mix_x + x, mask=inside, other=0.0)
    far = tl.load(mix_x + W + x, mask=inside, other=0.0)
    return (
        up + left,
        up + right,
        down + left,
        down + right,
        top * near,
        top * far,
        bottom * near,
        bottom * far,
    )


@triton.jit
def _upsampled(low, p00, p01, p10, p11, m00, m01, m10, m11, mask):
    """Logits at pixels. ``low``: pointer or pointers that broadcast with the places p and the
    weights m.
    """
    v = m00 * tl.load(low + p00, mask=mask, other=0.0).to(tl.float32)
    v += m01 * tl.load(low + p01, mask=mask, other=0.0).to(tl.float32)
    v += m10 * tl.load(low + p10, mask=mask, other=0.0).to(tl.float32)
    v += m11 * tl.load(low + p11, mask=mask, other=0.0).to(tl.float32)
    return v


@triton.jit
def pixel_losses(
    low,
    at_y,
    mix_y,
    at_x,
    mix_x,
    C,
    h,
    w,
    H,
    W,
    target,
    void,
    lse,
    nll,
    BLOCK_C: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
):
    """lse: the log of the sum of exp(logits). nll: -log p of the label; of a void pixel, of class
    0; NaN if unknown.

    Grid: (tiles in a row, rows of tiles, N).
    """
    place = tl.arange(0, TILE_Y * TILE_X)
    y = tl.program_id(1) * TILE_Y + place // TILE_X
    x = tl.program_id(0) * TILE_X + place % TILE_X
    inside = (y < H) & (x < W)
    image = tl.program_id(2).to(tl.int64)
    low += image * (C * h * w)
    pixel = image * (H * W) + y * W + x
    p00, p01, p10, p11, m00, m01, m10, m11 = _corners(
        at_y, mix_y, at_x, mix_x, y, x, inside, w, H, W
    )

    most = tl.full([TILE_Y * TILE_X], -1e30, tl.float32)
    total = tl.zeros([TILE_Y * TILE_X], tl.float32)
    for first in range(0, C, BLOCK_C):
        k = first + tl.arange(0, BLOCK_C)
        mask = (k < C)[:, None] & inside[None, :]
        v = _upsampled(
            low + (k * (h * w))[:, None],
            p00[None, :],
            p01[None, :],
            p10[None, :],
            p11[None, :],
            m00[None, :],
            m01[None, :],
            m10[None, :],
            m11[None, :],
            mask,
        )
        v = tl.where(mask, v, -1e30)
        larger = tl.maximum(most, tl.max(v, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(v - larger[None, :]), 0)
        most = larger

    label = tl.load(target + pixel, mask=inside, other=0).to(tl.int32)
    label = tl.where(label == void, 0, label)
    known = (label >= 0) & (label < C)
    true = _upsampled(
        low + tl.where(known, label, 0) * (h * w), p00, p01, p10, p11, m00, m01, m10, m11, inside
    )
    log_total = tl.log(total)
    loss = most - true + log_total
    # Rounding may give -1e-7. NaN stays NaN.
    loss = tl.where(known, tl.where(loss < 0.0, 0.0, loss), float("nan"))
    tl.store(lse + pixel, most + log_total, mask=inside)
    tl.store(nll + pixel, loss, mask=inside)


@triton.jit
def pixel_sums(
    low,
    at_y,
    mix_y,
    at_x,
    mix_x,
    C,
    h,
    w,
    H,
    W,
    lse,
    factors,
    sums,
    LOG: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
):
    """sums: over the classes, of factor * p, or with LOG of factor * -log p. Grid: as for
    ``pixel_losses``.
    """
    place = tl.arange(0, TILE_Y * TILE_X)
    y = tl.program_id(1) * TILE_Y + place // TILE_X
    x = tl.program_id(0) * TILE_X + place % TILE_X
    inside = (y < H) & (x < W)
    image = tl.program_id(2).to(tl.int64)
    low += image * (C * h * w)
    pixel = image * (H * W) + y * W + x
    p00, p01, p10, p11, m00, m01, m10, m11 = _corners(
        at_y, mix_y, at_x, mix_x, y, x, inside, w, H, W
    )
    log_total = tl.load(lse + pixel, mask=inside, other=0.0)

    found = tl.zeros([TILE_Y * TILE_X], tl.float32)
    for first in range(0, C, BLOCK_C):
        k = first + tl.arange(0, BLOCK_C)
        mask = (k < C)[:, None] & inside[None, :]
        v = _upsampled(
            low + (k * (h * w))[:, None],
            p00[None, :],
            p01[None, :],
            p10[None, :],
            p11[None, :],
            m00[None, :],
            m01[None, :],
            m10[None, :],
            m11[None, :],
            mask,
        )
        factor = tl.load(factors + k, mask=k < C, other=0.0)[:, None]
        if LOG:
            found += tl.sum(factor * (log_total[None, :] - v), 0)
        else:
            # Logits of classes that are not there are 0, and may be far above the sum.
            found += tl.sum(factor * tl.where(mask, tl.exp(v - log_total[None, :]), 0.0), 0)
    tl.store(sums + pixel, found, mask=inside)


@triton.jit
def class_sums(
    low,
    at_y,
    mix_y,
    at_x,
    mix_x,
    C,
    h,
    w,
    H,
    W,
    target,
    void,
    lse,
    sums,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """sums (N, strips, 3, C): over the valid pixels of a strip of ROWS rows, p where it is the
    label's, p, and 1.

    Grid: (blocks of classes, strips, N).
    """
    k = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(2).to(tl.int64)
    low += image * (C * h * w)
    target += image * (H * W)
    lse += image * (H * W)
    inner = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
    mass = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
    pixels = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
    begin = tl.program_id(1) * ROWS
    for row in range(begin, tl.minimum(begin + ROWS, H)):
        for column in range(0, W, BLOCK_X):
            x = column + tl.arange(0, BLOCK_X)
            y = x * 0 + row
            inside = x < W
            p00, p01, p10, p11, m00, m01, m10, m11 = _corners(
                at_y, mix_y, at_x, mix_x, y, x, inside, w, H, W
            )
            mask = (k < C)[:, None] & inside[None, :]
            v = _upsampled(
                low + (k * (h * w))[:, None],
                p00[None, :],
                p01[None, :],
                p10[None, :],
                p11[None, :],
                m00[None, :],
                m01[None, :],
                m10[None, :],
                m11[None, :],
                mask,
            )
            label = tl.load(target + y * W + x, mask=inside, other=0).to(tl.int32)
            log_total = tl.load(lse + y * W + x, mask=inside, other=0.0)
            valid = inside & (label != void)
            p = tl.where(valid[None, :], tl.exp(v - log_total[None, :]), 0.0)
            hit = valid[None, :] & (label[None, :] == k[:, None])
            mass += p
            inner += tl.where(hit, p, 0.0)
            pixels += tl.where(hit, 1.0, 0.0)
    sums += (image * tl.num_programs(1) + tl.program_id(1)) * (3 * C) + k
    tl.store(sums, tl.sum(inner, 1), mask=k < C)
    tl.store(sums + C, tl.sum(mass, 1), mask=k < C)
    tl.store(sums + 2 * C, tl.sum(pixels, 1), mask=k < C)


@triton.jit
def _slope(
    v,
    x,
    on,
    k,
    target,
    lse,
    slope_p,
    slope_nll,
    slope_sum_p,
    slope_sum_nll,
    factor,
    weight,
    NLL: tl.constexpr,
    SUM_P: tl.constexpr,
    SUM_NLL: tl.constexpr,
):
    """The gradient of the logits ``v``, of classes k at pixels x of a row."""
    p = tl.exp(v - tl.load(lse + x, mask=on, other=0.0)[None, :])
    of_p = tl.load(slope_p + x, mask=on, other=0.0)[None, :]
    if SUM_P:
        of_p = of_p + tl.load(slope_sum_p + x, mask=on, other=0.0)[None, :] * factor[:, None]
    slope = p * of_p
    if NLL:
        label = tl.load(target + x, mask=on, other=0).to(tl.int32)
        of_nll = tl.load(slope_nll + x, mask=on, other=0.0)
        slope -= tl.where(label[None, :] == k[:, None], of_nll[None, :], 0.0)
    if SUM_NLL:
        slope -= tl.load(slope_sum_nll + x, mask=on, other=0.0)[None, :] * weight[:, None]
    return slope


@triton.jit
def gradient(
    low,
    first_y,
    mix_y,
    first_x,
    mix_x,
    C,
    h,
    w,
    H,
    W,
    target,
    lse,
    slope_p,
    slope_nll,
    slope_sum_p,
    factors,
    slope_sum_nll,
    weights,
    blocks,
    out,
    NLL: tl.constexpr,
    SUM_P: tl.constexpr,
    SUM_NLL: tl.constexpr,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """out (N, C, h, w): the gradient of ``low``, collected for each of its pixels from the pixels
    around it.

    A program walks down a strip of ROWS rows of ``low``, from one row of cells (the pixels between
    two of its rows) to the next. A lane has a column: it reads the pixels in the cells on its left
    and on its right, at most MOST in a row. Grid: (blocks of classes, blocks of columns * strips,
    N).
    """
    k = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    i = (tl.program_id(1) % blocks) * BLOCK_X + tl.arange(0, BLOCK_X)
    begin = (tl.program_id(1) // blocks) * ROWS
    image = tl.program_id(2).to(tl.int64)
    low += image * (C * h * w)
    out += image * (C * h * w)
    pixels = image * (H * W)
    plane = (k * (h * w))[:, None]
    mask = (k < C)[:, None] & (i < w)[None, :]
    west = tl.maximum(i - 1, 0)[None, :]
    here = i[None, :]
    east = tl.minimum(i + 1, w - 1)[None, :]
    start = tl.load(first_x + i, mask=i < w, other=0)
    middle = tl.load(first_x + i + 1, mask=i < w, other=0)
    end = tl.load(first_x + i + 2, mask=i < w, other=0)
    factor = tl.load(factors + k, mask=(k < C) & SUM_P, other=0.0)
    weight = tl.load(weights + k, mask=(k < C) & SUM_NLL, other=0.0)

    from_above = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
    for j in range(begin - 1, tl.minimum(begin + ROWS, h)):
        up = low + plane + tl.maximum(j, 0) * w
        down = low + plane + tl.minimum(j + 1, h - 1) * w
        a0 = tl.load(up + west, mask=mask, other=0.0).to(tl.float32)
        a1 = tl.load(up + here, mask=mask, other=0.0).to(tl.float32)
        a2 = tl.load(up + east, mask=mask, other=0.0).to(tl.float32)
        b0 = tl.load(down + west, mask=mask, other=0.0).to(tl.float32)
        b1 = tl.load(down + here, mask=mask, other=0.0).to(tl.float32)
        b2 = tl.load(down + east, mask=mask, other=0.0).to(tl.float32)
        for_up = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
        for_down = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
        for y in range(tl.load(first_y + j + 1), tl.load(first_y + j + 2)):
            top = tl.load(mix_y + y)
            bottom = tl.load(mix_y + H + y)
            v0 = top * a0 + bottom * b0
            v1 = top * a1 + bottom * b1
            v2 = top * a2 + bottom * b2
            row = pixels + y * W
            slope = tl.zeros([BLOCK_C, BLOCK_X], tl.float32)
            for step in range(MOST):
                x = start + step
                on = x < middle
                near = tl.load(mix_x + x, mask=on, other=0.0)[None, :]
                far = tl.load(mix_x + W + x, mask=on, other=0.0)[None, :]
                slope += far * _slope(
                    near * v0 + far * v1,
                    x,
                    on,
                    k,
                    target + row,
                    lse + row,
                    slope_p + row,
                    slope_nll + row,
                    slope_sum_p + row,
                    slope_sum_nll + row,
                    factor,
                    weight,
                    NLL,
                    SUM_P,
                    SUM_NLL,
                )
            for step in range(MOST):
                x = middle + step
                on = x < end
                near = tl.load(mix_x + x, mask=on, other=0.0)[None, :]
                far = tl.load(mix_x + W + x, mask=on, other=0.0)[None, :]
                slope += near * _slope(
                    near * v1 + far * v2,
                    x,
                    on,
                    k,
                    target + row,
                    lse + row,
                    slope_p + row,
                    slope_nll + row,
                    slope_sum_p + row,
                    slope_sum_nll + row,
                    factor,
                    weight,
                    NLL,
                    SUM_P,
                    SUM_NLL,
                )
            for_up += top * slope
            for_down += bottom * slope
        if j >= begin:
            tl.store(out + plane + j * w + here, from_above + for_up, mask=mask)
        from_above = for_down
