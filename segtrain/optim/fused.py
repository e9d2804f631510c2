"""torch's optimizers with fused kernels, where they work."""

from __future__ import annotations

from typing import Any

import torch


def fused(kind: Any, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """An optimizer of this kind, with fused kernels if this torch has them for the device."""
    # Torch has fused SGD since 2.3, and fused kernels for the CPU since 2.4. Some releases in between accept
    # ``fused=True`` and fail in the first step, and fused SGD takes no sharded parameters, so one step is tried.
    # The foreach form computes the same, a little slower.
    probe = torch.zeros_like(groups[0]["params"][0], requires_grad=True)
    probe.grad = torch.zeros_like(probe)
    # The gradient of a 1x1 kernel in channels_last may come in other strides, which torch refuses before 2.2.
    kernel = torch.zeros(4, 4, 1, 1, device=probe.device).to(memory_format=torch.channels_last).requires_grad_()
    kernel.grad = torch.zeros(4, 4, 1, 1, device=probe.device)
    try:
        for tried in (probe, kernel):
            kind([tried], fused=True, **settings).step()
    except (TypeError, RuntimeError):
        return kind(groups, foreach=True, **settings)  # type: ignore[no-any-return]
    return kind(groups, fused=True, **settings)  # type: ignore[no-any-return]
