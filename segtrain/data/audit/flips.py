"""A warning about flips of classes whose names differ by left and right."""

from __future__ import annotations

import re
from collections.abc import Sequence

from segtrain.data.audit.finding import SplitFinding
from segtrain.data.labels.space import LabelSpace

# The word, or its first letter alone, as in l_eye.
_LEFT = re.compile(r"left|(?<![a-z])l(?![a-z])")


def flip_finding(flips: str, labels: LabelSpace) -> list[SplitFinding]:
    """The finding about classes of two sides, which ``flips`` (a setting; "": none) mirrors without
    exchanging them.
    """
    named = [
        [labels.names[index], labels.names[mirrored]]
        for index, mirrored in enumerate(labels.mirror)
        if index < mirrored
    ]
    taken = {name for pair in named for name in pair}
    pairs = [pair for pair in sides(labels.names) if flips and not taken & {*pair}]
    if not pairs:
        return []
    message = (
        f"{flips} mirrors images, and the mask of a mirrored {pairs[0][0]!r} still says "
        f"{pairs[0][0]!r}, though it "
    )
    return [
        SplitFinding(
            f"{message}looks like {pairs[0][1]!r}. Name the pairs, or set {flips}=0",
            False,
            {"data.flip_pairs": named + pairs},
        )
    ]


def sides(names: Sequence[str]) -> list[list[str]]:
    """Pairs of names that differ only by left and right, or by l and r as a word of their own."""
    original = {name.lower(): name for name in names}
    swapped = {
        low: _LEFT.sub(lambda match: "right" if len(match[0]) > 1 else "r", low) for low in original
    }
    return [
        [original[low], original[other]]
        for low, other in swapped.items()
        if low != other and other in original
    ]
