"""A full disk: mounts a tmpfs as a host's folder, and fills it with a file."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

ROOM_MB = 64  # for the code, the model and the logs of a healthy start
BALLAST = "output/.ballast"


def mount(base: Path, data_bytes: int) -> None:
    base.mkdir(parents=True, exist_ok=True)
    size = data_bytes + (ROOM_MB << 20)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "disk", str(base)], check=True)


def fill(base: Path) -> None:
    """Fill the disk, so that no space is left."""
    with contextlib.suppress(OSError), open(base / BALLAST, "ab", buffering=0) as file:
        block = bytes(1 << 20)
        while len(block) >= 512:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]
