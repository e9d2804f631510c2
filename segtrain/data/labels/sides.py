"""Classes of the left and the right side, which a horizontal flip exchanges."""

from __future__ import annotations

from dataclasses import replace

from segtrain.config import Data
from segtrain.data.labels.space import LabelSpace
from segtrain.errors import ConfigError


def with_sides(space: LabelSpace, data: Data) -> LabelSpace:
    """The label space with the exchange of ``data.flip_pairs``. Raises ConfigError for an unknown or repeated class."""
    mirror = list(range(space.num_classes))
    for pair in data.flip_pairs:
        for name, other in (pair, pair[::-1]):
            ids = [c if isinstance(c, int) else space.names.index(c) if c in space.names else -1 for c in (name, other)]
            if pair[0] == pair[1] or not all(0 <= index < len(mirror) for index in ids) or mirror[ids[0]] != ids[0]:
                says = f"data.flip_pairs: {list(pair)}: name two classes by name or train id, each in one pair; the "
                says += f"classes are {', '.join(space.names)}"
                raise ConfigError(says, code="flip-pair-invalid", found=pair)
            mirror[ids[0]] = ids[1]
    return replace(space, mirror=tuple(mirror)) if data.flip_pairs else space
