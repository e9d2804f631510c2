"""Console output of a run: a banner of derived quantities, one aligned line per step, and a table
of classes.

On a terminal and in a notebook, the step line is redrawn in place. Elsewhere (a CI log, a file),
each step line is a new line.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from segtrain.base.terminal import columns, in_notebook, printable
from segtrain.base.units import duration
from segtrain.observe.journal import say_on_stderr

_WINDOW = 50  # logged steps over which the remaining time is estimated
_BAR = 24  # cells of a full bar
_MOST_CLASSES = 200


def count(number: float) -> str:
    """``950``, ``12.3k``, ``4.56M``: three figures and a unit."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= 0.9995 * size:
            return f"{number / size:#.3g}".rstrip(".") + unit
    return f"{number:.4g}"


def epochs_text(epochs: float) -> str:
    """``20``, ``33.33``, ``0.70``: whole, or with two decimals."""
    return f"{epochs:.2f}".removesuffix(".00")


def classes_note(scores: Mapping[str, Any]) -> str:
    """`` (1 of 2 classes)``: how many classes have pixels in the truth; empty if all of them have.
    ``scores``: of an evaluation, or a row of the table of runs.

    A mean over only some classes can mislead: with one class in the truth, a constant prediction
    gets 100 %.
    """
    present, classes = scores.get("classes_present"), scores.get("classes")
    return f" ({present} of {classes} classes)" if present not in (None, classes) else ""


def step_line(
    step: int,
    total_steps: int,
    epoch: float,
    epochs: float,
    loss: float,
    lr: float,
    images_per_s: float,
    wait: float,
    left: float,
    width: int | None = None,
) -> str:
    """One line of constant length. ``wait``: share of time waiting for data (0 to 1); ``left``:
    seconds to the end.

    Learning rate, epoch, and images/s are left out, in that order, if ``width`` columns are too
    few.
    """
    steps, digits = len(str(total_steps)), len(f"{int(epochs)}.00")
    parts = {
        "epoch": f"epoch {epoch:{digits}.2f}/{epochs_text(epochs)}",
        "step": f"step {step:{steps}d}/{total_steps}",
        "loss": f"loss {loss:8.4f}",
        "lr": f"lr {lr:.2e}",
        "speed": f"{images_per_s:7.1f} img/s",
        "wait": f"wait {100 * wait:3.0f}%",
        "left": f"ETA {duration(left):>7}",
    }
    for least in ("lr", "epoch", "speed"):
        if width is not None and len("  ".join(parts.values())) > width:
            del parts[least]
    return "  ".join(parts.values())[:width]


class Console:
    """Prints the progress of a run. On ranks other than 0, every method does nothing."""

    def __init__(
        self,
        total_steps: int,
        epochs: float,
        *,
        rank: int = 0,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps, self.epochs = total_steps, epochs
        self._stream = stream or sys.stdout
        self._quiet = rank != 0
        # Open MPI gives each rank a terminal of its own, whose lines it forwards to a log.
        terminal = self._stream.isatty() or in_notebook()
        self._live = terminal and "OMPI_COMM_WORLD_RANK" not in os.environ
        self._drawn = 0  # columns of the live line on the screen
        self._now = now
        # From the first line on: what is before it, the first step among it, is slower.
        self._seen: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def step(
        self, step: int, epoch: float, loss: float, lr: float, images_per_s: float, wait: float
    ) -> None:
        if self._quiet:
            return
        now = self._now()
        self._seen.append((now, step))
        (then, first), more = self._seen[0], self.total_steps - step
        left = (now - then) / (step - first) * more if step > first else math.nan if more else 0.0
        # A longer line would wrap, and a carriage return would not go back to its start.
        width = max(20, shutil.get_terminal_size().columns - 1) if self._live else None
        line = step_line(
            step, self.total_steps, epoch, self.epochs, loss, lr, images_per_s, wait, left, width
        )
        if self._live:
            self._print("\r" + line.ljust(self._drawn))
            self._drawn = len(line)
        else:
            self._print(line + "\n")

    def say(self, text: str) -> None:
        """Print lines that stay. The live line is erased, and drawn again at the next step."""
        if self._quiet:
            return
        wipe = "\r" + " " * self._drawn + "\r" if self._drawn else ""
        self._drawn = 0
        self._print(wipe + printable(text.rstrip("\n")) + "\n")

    def close(self) -> None:
        """Keep the live line, and continue on the next one."""
        if self._drawn:
            self._print("\n")
            self._drawn = 0

    def _print(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        # The reader is gone (`| head`): training continues silently.
        except (BrokenPipeError, ValueError):
            self._quiet = True
        except OSError as error:  # A log file on a full disk must not end the training.
            self._quiet = True
            if self._stream is sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            say_on_stderr(
                f"warning: nothing more can be printed ({error.strerror}): training continues "
                "silently"
            )


def banner(title: str, quantities: Mapping[str, Any]) -> str:
    """A title and one aligned line per quantity. Floats have four figures."""
    rows = [
        (key, f"{value:.4g}" if isinstance(value, float) else str(value))
        for key, value in quantities.items()
    ]
    return "\n".join([title, *(f"  {line}" for line in columns(rows))])


def bar(share: float) -> str:
    """A bar for a ``share`` from 0 to 1, in steps of 1/8 cell."""
    full, eighths = divmod(round(share * _BAR * 8), 8)
    return (
        "\u2588" * full
        + (" \u258f\u258e\u258d\u258c\u258b\u258a\u2589"[eighths] if eighths else "")
    ).ljust(_BAR)


def worst_classes(ious: Sequence[float | None]) -> list[int]:
    """The classes of a table that stays readable: all of up to 200, else the 200 with the lowest
    IoU, the lowest first.
    """
    if len(ious) <= _MOST_CLASSES:
        return [*range(len(ious))]
    known = {index: iou for index, iou in enumerate(ious) if iou is not None}
    return sorted(known, key=known.__getitem__)[:_MOST_CLASSES]


def class_table(names: Sequence[str], scores: Mapping[str, Any]) -> str:
    """A table with the IoU in percent, a bar, and the share of valid pixels per class; last, the
    mean IoU. ``scores``: of an evaluation, where None stands for a class in neither truth nor
    prediction. See ``worst_classes``.
    """
    total = max(1, sum(scores["pixels"]))
    width = max([len(name) for name in names] + [5])
    lines = [f"{'class':<{width}}    IoU  {'':<{_BAR}}  pixels"]
    for index in worst_classes(scores["iou"]):
        name, iou, pixels = names[index], scores["iou"][index], scores["pixels"][index]
        value = "absent" if iou is None else f"{100 * iou:5.1f}%"
        lines.append(f"{name:<{width}} {value}  {bar(iou or 0.0)}  {100 * pixels / total:5.1f}%")
    if hidden := len(names) + 1 - len(lines):
        lines.append(f"{hidden} more: `segtrain eval` lists all classes")
    if (mean := scores["miou"]) is not None:
        lines.append(f"{'mean':<{width}} {100 * mean:5.1f}%  {bar(mean)}{classes_note(scores)}")
    return "\n".join(line.rstrip() for line in lines)
