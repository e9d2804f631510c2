"""The numbers and times that the plan command takes, read from text."""

from __future__ import annotations

from math import inf

from segtrain.config import limits
from segtrain.errors import ConfigError


def seconds_of(text: str) -> float:
    """Seconds of a time such as "90m", "2h", or "1d"; 0 for "". Raises ConfigError for anything else."""
    found = limits.seconds_of(text)
    if text and found is None:
        raise ConfigError(f"--deadline={text}: not a time: write 90m, 2h, or 1d", code="bad-time", found=text)
    return found or 0.0


def budget_of(dollars: float | None) -> float:
    """Dollars; None: no budget, which is 0 here. Raises ConfigError for other numbers that are no amount."""
    if dollars is None:
        return 0.0
    if not 0 < dollars < inf:
        text = f"--budget={dollars:g}: not an amount of dollars: write a positive number, such as 80"
        raise ConfigError(text, code="bad-budget", found=dollars)
    return dollars


def described_of(images: int, size: str) -> tuple[int, tuple[int, int]] | None:
    """Number and (height, width) of the images of a data set that is not here; None: it is. Raises ConfigError."""
    sides = [int(side) for side in size.lower().split("x") if side.isdecimal()]
    if images > 0 and len(sides) == 2 and all(sides):
        return images, (sides[0], sides[1])
    if images or size:
        text = f"--images={images} --image-size={size}: write both, such as --images 2975 --image-size 1024x2048"
        raise ConfigError(text, code="bad-description", images=images, size=size)
    return None


def hosts_of(text: str) -> tuple[int, ...]:
    """Numbers of machines such as "1,2,4", each at least 1. Raises ConfigError for anything else."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        says = f"--hosts={text}: not a list of numbers of machines: write 1,2,4"
        raise ConfigError(says, code="bad-hosts", found=text)
    return tuple(sorted({int(word) for word in words}))
