"""Triton kernels that make normalized images, with color jitter if requested, from levels of 0 to
255.

Shapes: images uint8 (n, H, W, 3), contiguous. Arithmetic is float32.
"""

import triton
import triton.language as tl


@triton.jit
def level_sums(images, sums, pixels, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """sums int32 (n, 3, PARTS): the levels of each channel, added up over a part of the pixels.
    Grid: (PARTS, n).
    """
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    images += image * (3 * pixels)
    size = tl.cdiv(tl.cdiv(pixels, PARTS), BLOCK) * BLOCK
    red = tl.zeros([BLOCK], tl.int32)
    green = tl.zeros([BLOCK], tl.int32)
    blue = tl.zeros([BLOCK], tl.int32)
    for first in range(part * size, tl.minimum(part * size + size, pixels), BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < pixels
        red += tl.load(images + 3 * at, mask=inside, other=0).to(tl.int32)
        green += tl.load(images + 3 * at + 1, mask=inside, other=0).to(tl.int32)
        blue += tl.load(images + 3 * at + 2, mask=inside, other=0).to(tl.int32)
    sums += image * (3 * PARTS) + part
    tl.store(sums, tl.sum(red, 0))
    tl.store(sums + PARTS, tl.sum(green, 0))
    tl.store(sums + 2 * PARTS, tl.sum(blue, 0))


@triton.jit
def normalized(
    images,
    out,
    H,
    W,
    constants,
    colors,
    color_stride,
    covered,
    covered_stride,
    sums,
    COLORED: tl.constexpr,
    COVERED: tl.constexpr,
    LAST: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out (n, H, W, 3) if LAST, otherwise (n, 3, H, W): normalized images; see ``normalize``.

    constants: float32 (4, 3): what is subtracted from a level, what the difference is multiplied
    by, the level of padding, and the share of the channel in gray. colors, covered: read if
    COLORED, and COVERED; their
    strides are those of an image. sums: of ``level_sums``. Grid: (blocks of BLOCK numbers, n).
    """
    image = tl.program_id(1).to(tl.int64)
    pixels = H * W
    images += image * (3 * pixels)
    out += image * (3 * pixels)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < 3 * pixels
    if LAST:
        channel = at % 3
        pixel = at // 3
    else:
        channel = at // pixels
        pixel = at % pixels
    shift = tl.load(constants + channel, mask=inside, other=0.0)
    scale = tl.load(constants + 3 + channel, mask=inside, other=0.0)
    if COLORED:
        colors += image * color_stride
        covered += image * covered_stride
        area = (pixels + 0).to(tl.float32)
        if COVERED:
            top = tl.load(covered)
            left = tl.load(covered + 1)
            bottom = tl.load(covered + 2)
            right = tl.load(covered + 3)
            area = ((bottom - top) * (right - left)).to(tl.float32)
        padding = pixels - area
        gray = 0.0
        parts = tl.arange(0, PARTS)
        for k in tl.static_range(3):
            total = tl.sum(
                tl.load(sums + image * (3 * PARTS) + k * PARTS + parts).to(tl.int64), 0
            ).to(tl.float32)
            gray += (total - padding * tl.load(constants + 6 + k)) * tl.load(constants + 9 + k)
        added = tl.load(colors + 9) * gray / area
        level = tl.zeros([BLOCK], tl.float32) + added
        for k in tl.static_range(3):
            tap = tl.load(colors + 3 * channel + k, mask=inside, other=0.0)
            level += tap * tl.load(images + 3 * pixel + k, mask=inside, other=0).to(tl.float32)
        level = tl.minimum(tl.maximum(level, 0.0), 255.0)
        if COVERED:
            y = pixel // W
            x = pixel % W
            shows = (y >= top) & (y < bottom) & (x >= left) & (x < right)
            level = tl.where(shows, level, tl.load(constants + 6 + channel, mask=inside, other=0.0))
    else:
        level = tl.load(images + 3 * pixel + channel, mask=inside, other=0).to(tl.float32)
    tl.store(out + at, ((level - shift) * scale).to(out.dtype.element_ty), mask=inside)
