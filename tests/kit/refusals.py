"""What every refusal of bad input has in common: the checks that the tests of bad input share, and
a small data set to damage.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segtrain.errors import EXIT_ERROR, EXIT_RANK_LOST

PATIENCE = 300  # seconds after which a process counts as hung; the slowest refusal takes a few
NOISE = (
    "Traceback",
    "libpng",
    "Premature end",
    "Corrupt JPEG",
    "[ WARN",
    "Warning:",
    "terminate called",
    "gloo/",
    "recvValue",
    "frame #0",
)
CLASSES = ("road", "car", "sky")
MODEL = "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}"
TINY = [
    "data.crop=[32,32]",
    "data.workers=1",
    "data.prefetch=2",
    MODEL,
    "train.batch_size=2",
    "train.duration=4st",
    "eval.every=4st",
    "checkpoint.every=2st",
    "log.every=1",
    "log.tensorboard=false",
    "log.pictures=0",
    "parallel.procs=1",
    "out=run",
]
SCENES = [*TINY, "data.scenes=4", "data.scene_size=[40,48]"]
FOLDERS = [*TINY, "data.root=set", "data.layout=folders"]


def make_set(root: Path, classes: tuple[str, ...] = CLASSES) -> Path:
    """``images/SPLIT/a0.png`` beside ``masks/SPLIT/a0.png``: 3 and 2 pairs of 40 x 48 pixels, and
    classes.txt.
    """
    noise = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 2)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for index in range(count):
            mask = (
                np.repeat(np.arange(40) * len(classes) // 40, 48).reshape(40, 48).astype(np.uint8)
            )
            cv2.imwrite(
                str(root / f"images/{split}/a{index}.png"),
                noise.integers(0, 255, (40, 48, 3), np.uint8),
            )
            cv2.imwrite(str(root / f"masks/{split}/a{index}.png"), mask)
    (root / "classes.txt").write_text("\n".join(classes) + "\n")
    return root


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below ``folder`` with the checksum of its content; what cannot be read (rights)
    with its size.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".log"):
            readable = os.access(path, os.R_OK)
            found[str(path.relative_to(folder))] = (
                hashlib.sha256(path.read_bytes()).hexdigest()
                if readable
                else str(path.stat().st_size)
            )
    return found


def finish(processes: list[Any]) -> list[int]:
    """Exit codes; processes that hang are killed, and so fail the test."""

    def kill() -> None:
        for process in processes:
            process.signal(signal.SIGKILL)

    guard = threading.Timer(PATIENCE, kill)
    guard.start()
    try:
        return [process.wait() for process in processes]
    finally:
        guard.cancel()


def assert_refused(processes: list[Any], *words: str, code: int = EXIT_ERROR) -> str:
    """All ended with an error, one with ``code``; only one of them said why, in one message that
    holds ``words``.

    A rank that ends because another one did says so by its code.
    """
    codes = finish(processes)
    output = "\n".join(process.output for process in processes)
    assert code in codes, f"{codes}\n{output[-3000:]}"
    assert set(codes) <= {EXIT_ERROR, EXIT_RANK_LOST}, f"{codes}\n{output[-3000:]}"
    for noise in NOISE:
        assert noise not in output, output[-3000:]
    told = [
        line
        for line in output.splitlines()
        if line.startswith(("error:", "segtrain: error:", "fault:"))
    ]
    assert len([line for line in told if "error:" in line]) == 1, output[-3000:]
    message = output[output.index("error:") :]
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    return message


def assert_nothing_left(folder: Path, before: dict[str, str], made: tuple[str, ...] = ()) -> None:
    """No file changed, went or came, but those whose path begins with one of ``made``; none of them
    half-written.
    """
    after = snapshot(folder)
    assert {name: after.get(name) for name in before} == before
    new = sorted(set(after) - set(before))
    assert [name for name in new if not name.startswith(made or ("\0",))] == []
    assert [name for name in new if ".part" in name or ".probe" in name] == []


def refuse(
    zygote: Any,
    folder: Path,
    arguments: list[object],
    *words: str,
    ranks: int = 0,
    made: tuple[str, ...] = (),
) -> str:
    """Run segtrain with ``arguments`` in ``folder``: refused with one message that holds ``words``,
    and nothing left behind.
    """
    before = snapshot(folder)
    cache = {"SEGTRAIN_CACHE": str(folder.parent / f"{folder.name}-cache")}
    if ranks:
        processes = zygote.start_ranks(ranks, *arguments, cwd=folder, **cache)
    else:
        processes = [zygote.start(*arguments, cwd=folder, **cache)]
    message = assert_refused(processes, *words)
    assert_nothing_left(folder, before, made)
    return message
