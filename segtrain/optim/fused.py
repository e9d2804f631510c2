"""torch's optimizers with fused kernels, where they work."""

from __future__ import annotations

from typing import Any

import torch


def fused(kind: Any, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """An optimizer of this kind, with fused kernels if this torch has them for the device."""
    # Not every device has fused kernels, and fused SGD takes no sharded parameters, so one step is
    # tried. The foreach form computes the same, a little slower.
    probe = torch.zeros_like(groups[0]["params"][0], requires_grad=True)
    probe.grad = torch.zeros_like(probe)
    try:
        kind([probe], fused=True, **settings).step()
    except (TypeError, RuntimeError):
        return kind(groups, foreach=True, **settings)  # type: ignore[no-any-return]
    return kind(groups, fused=True, **settings)  # type: ignore[no-any-return]
