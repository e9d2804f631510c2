"""How do bytes of a picture become the numbers that a network reads?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Of ImageNet's training images, in shares of 255: what pretrained encoders were trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalise(
    images: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    channels_last: bool = False,
) -> torch.Tensor:
    """uint8 (n, H, W, 3) to float32 (n, 3, H, W), ``(x / 255 - mean) / std``, on the device of ``images``.

    ``channels_last`` is the memory format of the result; the values are equal to the bit.
    """
    shift = torch.tensor([255.0 * m for m in mean], device=images.device)
    scale = torch.tensor([1.0 / (255.0 * s) for s in std], device=images.device)
    n, height, width, channels = images.shape
    if channels_last:
        # One long inner axis: broadcasting over an axis of 3 would be slower by half.
        flat = images.reshape(n, height, width * channels).to(torch.float32)
        flat = flat.sub_(shift.repeat(width)).mul_(scale.repeat(width))
        return flat.view(n, height, width, channels).permute(0, 3, 1, 2)
    planes = torch.empty((n, channels, height, width), dtype=torch.float32, device=images.device)
    planes.copy_(images.permute(0, 3, 1, 2))
    return planes.sub_(shift[:, None, None]).mul_(scale[:, None, None])
