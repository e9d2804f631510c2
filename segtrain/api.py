"""Training and evaluation from Python: ``segtrain.train``, the run that it returns, and
``segtrain.evaluate``.
"""

from __future__ import annotations

import html
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.base.terminal import in_notebook
from segtrain.config import Config
from segtrain.errors import ConfigError, DataError, MissingExtra, SegtrainError, refuse_windows
from segtrain.evaluation.named_scores import NamedScores
from segtrain.observe.console import class_table
from segtrain.observe.journal import (
    FILE,
    best_evaluation,
    curve,
    last_status,
    read_journal,
)

if TYPE_CHECKING:
    from torch import nn

    from segtrain.losses.criterion import Mean
    from segtrain.observe.tracker import Tracker
    from segtrain.parallel.cluster import Cluster


@dataclass(frozen=True)
class Run:
    """A run folder. ``done`` is false if the training did not end, as after a signal: ``train``
    then resumes it.
    """

    path: Path
    done: bool = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """``Run(folder)`` reads ``done`` from the journal. Raises ConfigError if the folder holds
        no run.
        """
        object.__setattr__(self, "path", Path(self.path))
        if self.done is None:
            if not (self.path / FILE).is_file():
                text = (
                    f"{self.path} is not a run folder: it has no {FILE} (segtrain runs DIR "
                    "lists runs)"
                )
                raise ConfigError(text, code="not-a-run-folder", folder=str(self.path))
            object.__setattr__(self, "done", last_status(self.path) == "done")

    def __repr__(self) -> str:
        try:
            score = f"miou={self.scores.miou:.4f}"
        except SegtrainError:
            score = "no scores"
        return f"Run({str(self.path)!r}, done={self.done}, {score})"

    def _repr_html_(self) -> str:
        """For notebooks: the best scores, with a bar for each class."""
        text = repr(self)
        with suppress(SegtrainError):
            scores = self.scores
            text += f"\n\n{class_table([*scores.per_class], scores.values)}"
        return f'<pre style="font-family:monospace">{html.escape(text)}</pre>'

    @property
    def scores(self) -> NamedScores:
        """The best scores so far. Read them on the host of rank 0. Raises DataError if nothing was
        scored yet.
        """
        from segtrain.evaluation.load import read_description

        best = best_evaluation(curve(read_journal(self.path), "eval"))
        if not best:
            raise DataError(
                f"{self.path} has no evaluation with a score yet", code="no-scores", run=self.path
            )
        return NamedScores.of(best["scores"], read_description(self.path)[1].names)

    def plot(self) -> Any:
        """The loss and the mIoU over the steps, as a matplotlib figure. Raises MissingExtra without
        matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtra("matplotlib", "plot", "Run.plot()") from None
        events = read_journal(self.path)
        steps, evals = curve(events), curve(events, "eval")

        class NotebookFigure(Figure):
            """A figure that notebooks show also if pyplot has drawn nothing yet."""

            def _repr_png_(self) -> bytes:
                stream = io.BytesIO()
                self.savefig(stream, format="png")
                return stream.getvalue()

        figure = NotebookFigure(figsize=(9, 3.5), layout="constrained")
        loss, miou = figure.subplots(1, 2)
        loss.plot([event["step"] for event in steps], [event["loss"] for event in steps])
        losses = [event["scores"].get("loss", math.nan) for event in evals]
        loss.plot([event["step"] for event in evals], losses, marker="o")
        loss.set(xlabel="step", ylabel="loss", title="training loss, validation loss (dots)")
        miou.plot(
            [event["step"] for event in evals],
            [event["scores"]["miou"] for event in evals],
            marker="o",
        )
        miou.set(xlabel="step", ylabel="mIoU", title="validation mIoU")
        return figure


class _Curves:
    """A tracker that shows the curves of a run in a notebook, redrawn after each evaluation."""

    name = "the plot in the notebook"

    def __init__(self, path: Path) -> None:
        self._run = Run(path, done=False)
        self._shown: Any = None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if "val/seconds" not in values:
            return
        if self._shown:
            self._shown.update(self._run.plot())
        else:
            self._shown = import_module("IPython.display").display(
                self._run.plot(), display_id=True
            )

    def image(self, tag: str, image: Any, step: int) -> None: ...

    def text(self, tag: str, text: str) -> None: ...

    def close(self, status: str) -> None: ...


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

    model: an ``nn.Module`` that returns logits (N, C, h, w) for images float32 (N, 3, H, W); it is
    trained in place. criterion: a loss of ``segtrain.losses``, or a callable (logits (N, C, H, W),
    target int64 (N, H, W)) that returns the mean over the pixels whose target is not
    ``data.ignore_index``.
    train_data, val_data: map-style datasets with items (image uint8 (H, W, 3) RGB, mask of class
    ids (H, W), id). trackers: objects with the methods of ``segtrain.observe.tracker.Tracker``;
    rank 0 calls them.

    Training runs in this process. Under torchrun, every rank must call this function. With
    ``parallel.procs=N``, N processes train; then you cannot pass a model, criterion, data, or
    trackers. Raises SegtrainError.
    """
    refuse_windows()
    from segtrain.installed import discover, provided
    from segtrain.training.rank import train as train_rank
    from segtrain.training.start import early_checks as early
    from segtrain.training.start.automatic import settled
    from segtrain.training.start.user_objects import UserObjects, refuse_parts

    if not isinstance(config, Config):
        text = (
            f"segtrain.train takes a Config, not {config!r:.80}: pass "
            "segtrain.Config.load('FILE.yaml')"
        )
        raise ConfigError(text, code="not-a-config", found=type(config).__name__)
    own_trackers = tuple(trackers) if isinstance(trackers, list) else trackers
    objects = UserObjects(model, criterion, train_data, val_data, own_trackers)
    refuse_parts(objects)
    cluster = discover()
    config = settled(config, own_model=model is not None, quiet=cluster.rank > 0)
    ranks = _processes(config, objects != UserObjects()) if cluster.alone else cluster.world_size
    early.refuse(config, cluster, ranks, objects.names())
    if in_notebook():
        objects = replace(objects, trackers=(*own_trackers, _Curves(config.run_dir)))
    with (
        _kept(),
        _other_ranks(config, cluster, ranks)
        if cluster.alone and ranks > 1
        else nullcontext(cluster) as member,
    ):
        code = train_rank(config, member, objects=objects, provided=provided())
    # A limit (train.deadline) ends a run with 0. Only the host of rank 0 has a journal; its last
    # event may still come.
    at_limit = (
        code == 0 and (config.run_dir / FILE).is_file() and last_status(config.run_dir) == "stopped"
    )
    return Run(config.run_dir, done=code == 0 and not at_limit)


def evaluate(
    run: str | Path,
    *overrides: str,
    data: Any = None,
    which: str = "best",
    model: nn.Module | None = None,
    images: str | Path | None = None,
    confusion: str | Path | None = None,
    quiet: bool = True,
) -> NamedScores:
    """Score a run on a split, as ``segtrain eval`` does. Under torchrun every rank calls it and
    gets the same scores.

    overrides: settings of the sections data and eval, such as ``"data.split=test"`` or
    ``"eval.flip=true"``. data: the folder of the data, if not that of the run, or a map-style
    dataset of (image, mask, id).
    which: the ``best`` or the ``last`` checkpoint. model: as for ``segtrain.load``.
    images: a folder for the scores of all images and for pictures of the worst and the best ones.
    confusion: a .csv or .json file for the confusion matrix. quiet: print no table. Raises
    SegtrainError.
    """
    from segtrain.installed import discover
    from segtrain.training.evaluate_run import score

    folder = [f"data.root={json.dumps(str(data))}"] if isinstance(data, (str, Path)) else []
    items = None if folder else data
    settings = [*folder, *overrides]
    image_file, matrix_file = (
        Path(path) if path is not None else None for path in (images, confusion)
    )
    values = score(
        Path(run),
        settings,
        which,
        discover(),
        quiet,
        image_file,
        matrix_file,
        items=items,
        module=model,
    )
    return NamedScores.of(values, values["class_names"])


@contextmanager
def _kept() -> Iterator[None]:
    """Restore torch's generators and switches, the numbers of threads, and the environment at the
    end.
    """
    import cv2
    import torch

    from segtrain.base.precision import tf32

    environment = dict(os.environ)  # A later training would take this one's RANK for a launcher's.
    threads, of_torch, cudnn = cv2.getNumThreads(), torch.get_num_threads(), torch.backends.cudnn
    deterministic, benchmark = torch.get_deterministic_debug_mode(), cudnn.benchmark
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices), tf32(cudnn.allow_tf32):
            yield
    finally:
        cv2.setNumThreads(threads)
        torch.set_num_threads(of_torch)
        torch.set_deterministic_debug_mode(deterministic)
        cudnn.benchmark = benchmark
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def _processes(config: Config, own_parts: bool) -> int:
    """The number of processes to train with: 1, unless ``parallel.procs`` is a number."""
    procs = config.parallel.procs
    if procs in ("auto", 1):
        return 1
    if own_parts:
        raise ConfigError(
            f"parallel.procs={procs} cannot start processes that have your model, loss, data, or "
            f"trackers: start this script with torchrun --nproc-per-node {procs}, or leave "
            "parallel.procs at auto",
            code="procs-with-parts",
        )
    from segtrain.parallel import spawn

    return spawn.ranks_to_start(config, lambda text: print(text, file=sys.stderr))


@contextmanager
def _other_ranks(config: Config, cluster: Cluster, ranks: int) -> Iterator[Cluster]:
    """Start processes that train the same config, as ranks 1 to ``ranks - 1``. Yields the
    ``Cluster`` for rank 0.
    """
    from segtrain.parallel import spawn

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(config.to_yaml(), encoding="utf-8")
        with spawn.children(cluster, ranks, ["train", str(file)], lasting=True) as rank_0:
            yield rank_0
