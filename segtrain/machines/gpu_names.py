"""GPUs of the table by the names that publications, drivers, and clusters give them."""

from __future__ import annotations

import re
from functools import lru_cache

from segtrain.machines import Gpu, gpus

_PART = re.compile(r"mig|\d+g\.\d+gb")  # of a GPU that is divided


def gpu_named(text: str) -> Gpu | None:
    """The GPU that a text names, such as "V100-SXM2-32GB", "Tesla T4", "RTX 2080Ti", or
    "nvidia_a100-sxm4-80gb".

    A name that fits several GPUs, such as a100, is that of the one with the least memory. None if
    the table does not have it, or for a part of a GPU.
    """
    low, known = text.lower(), gpus()
    if _PART.search(low):
        return None
    if re.search(r"v100(?![\ds])", low):
        return known["V100-PCIe" if "pci" in low else "V100-32GB" if "32" in low else "V100"]
    if re.search(r"a100(?!\d)", low):
        return known[f"A100{'-PCIe' if 'pci' in low else ''}-{80 if '80' in low else 40}GB"]
    if found := re.search(r"(?:gh200|h100|p100).*(pci|nvl)", low):
        series = low[found.start() : found.start() + 4].upper()
        name = f"{series}-{'PCIe' if found[1] == 'pci' else 'NVL'}"
        if name in known:
            return known[name]
    for name in sorted(known, key=len, reverse=True):
        if re.search(_pattern(name), low):
            return known[name]
    return None


@lru_cache
def _pattern(name: str) -> str:
    """The table's name with any separators; the words before a number may be missing."""
    parts = re.findall(r"[a-z]+\d+[a-z]*|[a-z]+|\d+[a-z]*", name.lower())
    brand = (
        len(parts) > 1
        and parts[0] in ("rtx", "gtx", "quadro")
        and any(char.isdigit() for char in parts[1])
    )
    first = (
        rf"(?:{parts[0]}[ _-]*)?" if brand else rf"{parts[0]}[ _-]*" if len(parts) > 1 else parts[0]
    )
    return r"(?<![a-z0-9])(?:rtx|gtx|tesla)?" + first + r"[ _-]*".join(parts[1:]) + r"(?![a-z0-9])"
