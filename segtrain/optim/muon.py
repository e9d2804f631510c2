"""Muon: steps along orthogonalized momentum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from segtrain.base.precision import tf32
from segtrain.optim.fused import fused
from segtrain.optim.scaler import unless


def orthogonalize(matrix: Tensor, bf16: bool = False, rounds: int = 5) -> Tensor:
    """A nearly semi-orthogonal matrix close to ``matrix`` (rows, cols): its singular values are
    about 0.7 to 1.2.

    ``matrix`` may also be a stack (n, rows, cols) of matrices. The result has its dtype.

    Newton-Schulz iteration with the quintic of Jordan et al. (Muon, 2024). Each round multiplies by
    a polynomial in the Gram matrix. Such polynomials commute, so all rounds run on small square
    matrices, and the wide matrix is multiplied only once, at the end. For 3x3 filters (cols = 9 *
    rows), this is 2.5 times cheaper. ``bf16``: compute in bfloat16, as Jordan et al. do. The Gram
    matrix of later rounds would then be too inexact, so each round computes it again.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall, stacked = matrix.shape[-2] > matrix.shape[-1], matrix.dim() == 3
    x = matrix.mT if tall else matrix
    x = x / ((x.norm(dim=(1, 2), keepdim=True) if stacked else x.norm()) + 1e-7)
    add_product = torch.baddbmm if stacked else torch.addmm
    if bf16:
        x = x.bfloat16()
        for _ in range(rounds):
            gram = x @ x.mT
            x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return (x.mT if tall else x).to(matrix.dtype)
    gram = x @ x.mT
    product: Tensor | None = None
    for number in range(rounds):
        p = add_product(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        product = p if product is None else p @ product
        if number + 1 < rounds:
            gram = p @ (gram @ p)
    x = product @ x  # type: ignore[operator]
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for groups with ``muon: True``, AdamW for the others.

    A convolution weight is treated as the matrix (out, in * kh * kw). Its step is the
    orthogonalized Nesterov momentum, scaled to a root mean square of 0.2, as is usual for steps of
    AdamW (Liu et al. 2025), with decoupled weight decay. Every rank must have the whole gradient
    (strategies single, dp, ddp, smddp), and computes the same step.

    On a GPU, weights of equal shape are updated together, because each matrix alone would cost 40
    kernel launches. ``bf16``: see ``orthogonalize``.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        bf16: bool = False,
    ) -> None:
        self._bf16 = bf16
        super().__init__(
            groups,
            {"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": 0.0, "muon": False},
        )
        others = [group for group in self.param_groups if not group["muon"]]
        self._adamw = fused(torch.optim.AdamW, others, lr=lr, betas=betas) if others else None
        if self._adamw is not None:
            # AdamW shares our groups and state, so code that sets learning rates or saves moments
            # sees one optimizer.
            self.param_groups = [
                group for group in self.param_groups if group["muon"]
            ] + self._adamw.param_groups
            self._adamw.state = self.state

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a step can be skipped on the device: ``found_inf`` (as for torch.amp.GradScaler)
        is then 1.
        """
        return self._adamw is None or getattr(self._adamw, "_step_supports_amp_scaling", False)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        skipped = None if found_inf is None else found_inf.bool()
        with tf32(False):
            for group in self.param_groups:
                if group["muon"]:
                    for parameters in self._together(group["params"]):
                        self._step(parameters, group, skipped)
        if self._adamw is not None:
            self._adamw.grad_scale, self._adamw.found_inf = None, found_inf  # type: ignore[attr-defined]
            self._adamw.step()

    @staticmethod
    def _together(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The parameters with a gradient: on a GPU by shape, on a CPU each alone."""
        found: dict[Any, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                key = parameter.shape if parameter.is_cuda else id(parameter)
                found.setdefault(key, []).append(parameter)
        return list(found.values())

    def _step(
        self, parameters: list[nn.Parameter], group: dict[str, Any], skipped: Tensor | None
    ) -> None:
        """Update parameters of one shape, except with ``skipped``, a boolean scalar on their
        device.
        """
        momenta = [self._momentum(parameter) for parameter in parameters]
        grads: list[Tensor] = [parameter.grad for parameter in parameters]  # type: ignore[misc]
        # the momentum in place of the gradient leaves the momentum as it is
        if skipped is not None:
            grads = unless(skipped, grads, momenta)
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        directions = torch._foreach_lerp(grads, momenta, group["momentum"])
        rows = len(parameters[0])
        if len(parameters) > 1:
            steps = orthogonalize(
                torch.stack(directions).reshape(len(parameters), rows, -1), self._bf16
            )
        else:
            steps = orthogonalize(directions[0].reshape(rows, -1), self._bf16)
        weights = [parameter.detach() for parameter in parameters]
        rate, kept = (
            -group["lr"] * 0.2 * max(steps.shape[-2:]) ** 0.5,
            1 - group["lr"] * group["weight_decay"],
        )
        if skipped is None:
            torch._foreach_mul_(weights, kept)
        else:
            steps = steps.masked_fill(skipped, 0)
            factor = torch.full((), kept, dtype=steps.dtype, device=steps.device)
            torch._foreach_mul_(weights, factor.masked_fill(skipped, 1))
        torch._foreach_add_(weights, _as_weights(steps, weights), alpha=rate)

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]  # type: ignore[no-any-return]


def _as_weights(steps: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """The matrices in the shape of their weights; those of a stack also in the memory layout, for
    foreach kernels.
    """
    laid_out = steps.view(len(weights), *weights[0].shape)
    if (
        len(weights) > 1
        and laid_out.dim() == 5
        and weights[0].is_contiguous(memory_format=torch.channels_last)
    ):
        laid_out = laid_out.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    return list(laid_out.unbind())
