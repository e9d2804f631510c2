"""Logits of full size that are never in memory: what losses read of them, and the gradient of the
low-resolution ones.

The kernels (``segtrain.kernels.loss``, in Triton) interpolate each logit in registers whenever they
need it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segtrain import kernels
from segtrain.losses.taps import AxisTaps

# Sizes of blocks with which no kernel spills registers (tests/core/test_kernels.py).
CLASSES = 4  # at a time
TILE = (4, 64)  # pixels of a program
STRIP = (16, 128)  # rows of pixels of a program, and columns at a time
CELLS = (4, 64)  # low-resolution rows and columns of a program
WARPS, CELL_WARPS = 4, 2


class LowLogits:
    """Logits (N, C, H, W) that are the upsampled ``low`` (N, C, h, w), for terms whose ``fused`` is
    true.

    low: float32, bfloat16, or float16, computed in float32. target: integers (N, H, W). axes:
    tables of the upsampling along the rows and along the columns.

    ``nll``, ``sum_p``, and ``sum_nll`` return float32 (N, H, W); ``gradient`` returns the gradient
    of ``low`` for a value that was computed from them.
    """

    def __init__(
        self, low: Tensor, target: Tensor, ignore_index: int, axes: tuple[AxisTaps, AxisTaps]
    ) -> None:
        self._low, self._target, self._void = (
            low.detach().contiguous(),
            target.contiguous(),
            ignore_index,
        )
        self._rows, self._columns = axes
        self._tables = self._rows.at, self._rows.mix, self._columns.at, self._columns.mix
        self._sizes = (*low.shape[1:], *target.shape[1:])
        self._lse, self._nll = self._map(), self._map()
        self._over_pixels("pixel_losses", self._target, self._void, self._lse, self._nll)
        self._nll.requires_grad_()
        self._of_p: list[tuple[Tensor, Tensor]] = []  # results of sum_p, with their factors
        self._of_nll: list[tuple[Tensor, Tensor]] = []  # and of sum_nll

    def nll(self) -> Tensor:
        """-log p of the label: of a void pixel for class 0, and NaN for an id that is not a
        class.
        """
        return self._nll

    def sum_p(self, factors: Tensor) -> Tensor:
        """The sum over the classes of factor * p. factors: (C,)."""
        return self._pixel_sums(self._of_p, factors, LOG=False)

    def sum_nll(self, factors: Tensor) -> Tensor:
        """The sum over the classes of factor * -log p. factors: (C,)."""
        return self._pixel_sums(self._of_nll, factors, LOG=True)

    def class_sums(self) -> Tensor:
        """float64 (3, C), over the valid pixels: the sum of p where it is the label's, the sum of
        p, and the number.
        """
        images, classes = self._low.shape[:2]
        strips = -(-self._sizes[3] // STRIP[0])
        sums = torch.empty(images, strips, 3, classes, device=self._low.device)
        grid = (-(-classes // CLASSES), strips, images)
        self._launch(
            "class_sums",
            grid,
            WARPS,
            self._low,
            *self._tables,
            *self._sizes,
            self._target,
            self._void,
            self._lse,
            sums,
            ROWS=STRIP[0],
            BLOCK_C=CLASSES,
            BLOCK_X=STRIP[1],
        )
        return sums.sum((0, 1), dtype=torch.float64)

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of ``value`` for ``low``: float32 (N, C, h, w)."""
        leaves = [self._nll, *(found for found, _ in (*self._of_p, *self._of_nll))]
        given = torch.autograd.grad(value, leaves, allow_unused=True)
        slopes = [
            torch.zeros_like(leaf) if slope is None else slope.contiguous()
            for leaf, slope in zip(leaves, given)
        ]
        of_p = [(slope, factors) for slope, (_, factors) in zip(slopes[1:], self._of_p)]
        of_nll = [
            (slope, factors) for slope, (_, factors) in zip(slopes[1 + len(of_p) :], self._of_nll)
        ]
        # The slope for the logit of a class is p - [it is the label] of nll, p * (factor - sum) of
        # sum_p, and p * (sum of the factors) - factor of sum_nll. ``whole`` is what only p is
        # multiplied by.
        whole = slopes[0].clone()
        for slope, (found, _) in zip(slopes[1:], self._of_p):
            whole -= slope * found.detach()
        for slope, factors in of_nll:
            whole += slope * factors.sum()
        total = self._collect(whole, slopes[0], of_p[:1], of_nll[:1])
        for index in range(1, max(len(of_p), len(of_nll))):
            total += self._collect(
                torch.zeros_like(whole), None, of_p[index:][:1], of_nll[index:][:1]
            )
        return total

    def _collect(
        self, whole: Tensor, nll: Tensor | None, of_p: list[Any], of_nll: list[Any]
    ) -> Tensor:
        """One pass of the kernel ``gradient``: with the slopes of nll, of one sum_p, and of one
        sum_nll.
        """
        out = torch.empty(self._low.shape, device=self._low.device)
        (sum_p, factors), (sum_nll, weights) = (
            some[0] if some else (whole, whole) for some in (of_p, of_nll)
        )
        images, classes, height, width = self._low.shape
        blocks, strips = -(-width // CELLS[1]), -(-height // CELLS[0])
        self._launch(
            "gradient",
            (-(-classes // CLASSES), blocks * strips, images),
            CELL_WARPS,
            self._low,
            self._rows.first,
            self._rows.mix,
            self._columns.first,
            self._columns.mix,
            *self._sizes,
            self._target,
            self._lse,
            whole,
            whole if nll is None else nll,
            sum_p,
            factors,
            sum_nll,
            weights,
            blocks,
            out,
            NLL=nll is not None,
            SUM_P=bool(of_p),
            SUM_NLL=bool(of_nll),
            MOST=self._columns.most,
            ROWS=CELLS[0],
            BLOCK_C=CLASSES,
            BLOCK_X=CELLS[1],
        )
        return out

    def _pixel_sums(self, kept: list[tuple[Tensor, Tensor]], factors: Tensor, LOG: bool) -> Tensor:
        found, factors = self._map(), factors.detach().float().contiguous()
        self._over_pixels("pixel_sums", self._lse, factors, found, LOG=LOG)
        kept.append((found.requires_grad_(), factors))
        return found

    def _over_pixels(self, kernel: str, *arguments: Any, **flags: Any) -> None:
        """Run a kernel whose programs have a tile of pixels each."""
        images, (height, width) = len(self._low), self._sizes[3:]
        grid = -(-width // TILE[1]), -(-height // TILE[0]), images
        sizes = {"BLOCK_C": CLASSES, "TILE_Y": TILE[0], "TILE_X": TILE[1]}
        self._launch(
            kernel,
            grid,
            WARPS,
            self._low,
            *self._tables,
            *self._sizes,
            *arguments,
            **sizes,
            **flags,
        )

    def _map(self) -> Tensor:
        return torch.empty(self._target.shape, device=self._low.device)

    def _launch(
        self, kernel: str, grid: tuple[int, int, int], warps: int, *arguments: Any, **flags: Any
    ) -> None:
        kernels.launch(f"loss.{kernel}", self._low.device, grid, warps, *arguments, **flags)
