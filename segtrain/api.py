"""Training from Python: ``segtrain.train`` and the run that it returns. docs/python.md shows it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.config import Config
from segtrain.errors import ConfigError, DataError, MissingExtra
from segtrain.evaluate.named_scores import NamedScores
from segtrain.observe.journal import curve, read_journal

if TYPE_CHECKING:
    from torch import nn

    from segtrain.losses.own import Mean
    from segtrain.observe.tracker import Tracker


@dataclass(frozen=True)
class Run:
    """A run folder. ``done`` is false if a signal stopped the training: the same call resumes it."""

    path: Path
    done: bool = True

    @property
    def scores(self) -> NamedScores:
        """The scores of the best evaluation so far. Read on the host of rank 0. Raises DataError if nothing was scored yet."""
        evals = [event for event in curve(self._events, "eval") if event["scores"]["miou"] is not None]
        if not evals:
            raise DataError(f"{self.path} has no evaluation with a score yet", code="no-scores", run=self.path)
        return NamedScores.of(max(evals, key=lambda event: event["scores"]["miou"])["scores"], self._classes)

    def plot(self) -> Any:
        """The loss and the mIoU over the steps, as a matplotlib figure. Raises MissingExtra without matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtra("matplotlib", "plot", "Run.plot()") from None
        steps, evals = curve(self._events), curve(self._events, "eval")
        figure = Figure(figsize=(9, 3.5), layout="constrained")
        loss, miou = figure.subplots(1, 2)
        loss.plot([event["step"] for event in steps], [event["loss"] for event in steps])
        loss.set(xlabel="step", ylabel="loss", title="training loss")
        miou.plot([event["step"] for event in evals], [event["scores"]["miou"] for event in evals], marker="o")
        miou.set(xlabel="step", ylabel="mIoU", title="validation mIoU")
        return figure

    @property
    def _events(self) -> list[dict[str, Any]]:
        return read_journal(self.path)

    @property
    def _classes(self) -> tuple[str, ...]:
        from segtrain.evaluate.load import read_description

        return read_description(self.path)[1].names


def train(
    config: Config,
    *,
    model: nn.Module | None = None,
    criterion: Mean | None = None,
    train_data: Any = None,
    val_data: Any = None,
    trackers: Sequence[Tracker] = (),
) -> Run:
    """Train a model, or resume its training, and return the run.

    Each part that is passed takes the place of what ``config`` describes:

    model: an ``nn.Module`` that returns logits (N, C, h, w) of any size for images float32 (N, 3, H, W); it is trained in place.
    criterion: a loss of ``segtrain.losses``, or a callable (logits (N, C, H, W), target int64 (N, H, W)) that returns a mean
    over the pixels whose target is not ``data.ignore_index``.
    train_data, val_data: map-style datasets with items (image uint8 (H, W, 3) RGB, mask of class ids (H, W), id).
    trackers: objects with the methods of ``segtrain.observe.tracker.Tracker``; rank 0 calls them.

    It trains in this process. Under torchrun every rank calls it. ``parallel.procs=N`` starts N processes, which works
    without parts of your own only. Raises SegtrainError.
    """
    from segtrain.parallel.cluster import discover
    from segtrain.train import early
    from segtrain.train.parts import Parts
    from segtrain.train.rank import train as train_rank

    parts = Parts(model, criterion, train_data, val_data, tuple(trackers))
    cluster = discover()
    alone = cluster.source == "none"
    ranks = _processes(config, parts != Parts()) if alone else cluster.world_size
    early.refuse(config, ranks, ranks if alone else cluster.local_world_size, alone, parts.names())
    if alone and ranks > 1:
        code = _train_in_processes(config, ranks)
    else:
        code = train_rank(config, cluster, parts=parts)
    return Run(config.run_dir, done=code == 0)


def _processes(config: Config, own_parts: bool) -> int:
    """One process, unless ``parallel.procs`` is a number."""
    if config.parallel.procs in ("auto", 1):
        return 1
    if own_parts:
        raise ConfigError(
            f"parallel.procs={config.parallel.procs} cannot start processes that have your model, loss, data or trackers: start "
            f"this script by torchrun --nproc-per-node {config.parallel.procs}, or leave parallel.procs at auto",
            code="procs-with-parts",
            procs=config.parallel.procs,
        )
    from segtrain.parallel import spawn

    return spawn.ranks_here(config, lambda text: print(text, file=sys.stderr))


def _train_in_processes(config: Config, ranks: int) -> int:
    from segtrain.parallel import spawn
    from segtrain.train.rank import train as train_rank

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(config.to_yaml(), encoding="utf-8")
        with spawn.children(ranks, ["train", str(file)]) as place:
            return train_rank(config, place)
