"""TensorBoard as a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segtrain.observe.tracker import TrackedRun

if TYPE_CHECKING:
    import numpy as np


class TensorBoard:
    """Event files in RUN/tensorboard; those of a resumed run hide the steps that it repeats."""

    name = "TensorBoard"

    def __init__(self, on: bool, run: TrackedRun) -> None:
        self._folder = run.folder / "tensorboard"
        self._purge_step = None if run.resume_step is None else run.resume_step + 1
        self._writer: Any = None

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step, flush_secs=15)
        return self._writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self._open().add_scalar(tag, value, step)

    def image(self, tag: str, image: np.ndarray, step: int) -> None:
        self._open().add_image(tag, image, step, dataformats="HWC")

    def text(self, tag: str, text: str) -> None:
        # Markdown shows indented text unchanged.
        self._open().add_text(tag, "    " + text.replace("\n", "\n    "))

    def close(self, status: str) -> None:
        if self._writer is not None:
            self._writer.close()
