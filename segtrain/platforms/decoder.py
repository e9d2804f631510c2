"""Search for the native decoder in a container's image, then in the code bundle. If both lack it,
it is compiled.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from segtrain.data.pixels import native
from segtrain.data.pixels.native.build import build

NAME = "libsegtrain_data.so"
EFFECT = "reading an image takes several times the CPU"
FIX = (
    "launch from Linux on x86-64 where segtrain doctor finds the native decoder, or use an image "
    "made with docker/sagemaker/Dockerfile"
)


def prepare(folder: Path) -> str:
    """Make the native decoder available to this process and its children, if possible. Returns a
    line about it.

    Each rank of a host calls this function. The first rank compiles the decoder in ``folder`` if
    needed, and the other ranks wait until it is compiled.
    """
    if native.available() or os.environ.get("SEGTRAIN_NATIVE") == "0":
        return f"decoder: {native.describe()}"
    brought = Path(native.__file__).with_name(NAME)
    why = (
        native.describe().removeprefix("packages: ")
        if native.LIBRARY.exists()
        else "no library came with the code"
    )
    if brought != native.LIBRARY and brought.exists():
        # The image has another version of the library; the version in the bundle fits the code.
        native.use(brought)
        if native.available():
            return f"decoder: {native.describe()}, brought by the bundle, because {why}"
    try:
        problem = _compiled(folder)
    except OSError as error:  # a full or read-only disk
        problem = str(error)
    if not problem:
        native.use(folder / NAME)
        if native.available():
            return f"decoder: {native.describe()}, compiled here, because {why}"
        problem = native.describe()
    return (
        f"decoder: packages, because {why}, and none can be compiled here: {problem}. "
        f"{EFFECT}: {FIX}"
    )


def _compiled(folder: Path) -> str:
    """Compile once per host. Returns "" or the problem. Later ranks read the problem and do not
    compile again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library, problem = folder / NAME, folder / "problem.txt"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return ""
        if not problem.exists():
            problem.write_text(build(library))
        return problem.read_text()
