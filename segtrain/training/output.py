"""Output of a run: terminal, journal, and trackers, and the texts at its start and at its end."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from segtrain.base.units import duration
from segtrain.config import read_parts
from segtrain.errors import EXIT_RESUMABLE, DataError
from segtrain.insight.diagnose.live import closing_line
from segtrain.insight.report.quality import judged
from segtrain.insight.runs.folder import read_folder, silent
from segtrain.observe import console
from segtrain.observe.journal import Journal
from segtrain.observe.trackers import Trackers

if TYPE_CHECKING:
    from segtrain.training.session import Session

NEXT = "\n" + 16 * " "  # what stands before the second of several remedies


@dataclass(frozen=True)
class Output:
    """Where a rank writes what happens; ranks other than 0 write nothing."""

    screen: console.Console
    journal: Journal
    trackers: Trackers
    caveats: tuple[str, ...]  # warnings that apply to every score of this run

    def close(self) -> None:
        self.screen.close()
        self.journal.close()


def stop(session: Session, signals: list[int], signaled: bool) -> int:
    """Save the state after a signal, or at a limit if no rank was ``signaled``. Returns the exit
    code.

    That of a limit is 0: a scheduler that starts a run again after EXIT_RESUMABLE must not do so.
    """
    if not signaled:
        return _stop_at_limit(session)
    state, output = session.state, session.output
    name = signal.Signals(signals[0]).name if signals else "a signal on another rank"
    output.journal.write("signal", signal=name, step=state.step)
    session.save("signal")
    session.saver.wait()
    write_end(session, "stopped")
    output.screen.say(
        f"stopped by {name} after step {state.step} of {session.plan.steps}: the state is saved, "
        f"and the same command goes on from there (exit code {EXIT_RESUMABLE})"
    )
    return EXIT_RESUMABLE


def _stop_at_limit(session: Session) -> int:
    guard = session.guard
    session.save("limit")
    session.saver.wait()
    write_end(session, "stopped")
    # the other ranks go on when that is written: segtrain.train reads it
    session.strategy.broadcast_object(None)
    if guard:
        seconds, dollars = guard.took()
        limit = guard.limit.name
        spent = duration(seconds) + ("" if dollars is None else f" and ${dollars:,.2f}")
        session.output.screen.say(
            f"stopped by {limit} after step {session.state.step:,} of "
            f"{session.plan.steps:,}, {spent}: the state is saved, and the same command with a "
            f"larger {limit.partition('=')[0]} goes on from there"
        )
    return 0


def finish(session: Session) -> int:
    """Write the table of classes and what to do next. Returns the exit code."""
    state = session.state
    config = session.config
    output = session.output
    session.saver.wait()
    write_end(session, "done")
    if early := ended_early(session):
        output.screen.say(early)
    output.screen.say(f"\nlast evaluation, at step {state.step}")
    output.screen.say(console.class_table(session.val.labels.names, state.scores))
    speed, classes = None, []
    if session.strategy.rank == 0:
        speed = closing_line(config.run_dir)
        with suppress(DataError, OSError):
            classes = judged(read_folder(config.run_dir, silent))
    epochs = session.plan.epoch(state.step)
    output.screen.say(
        "".join(f"{what:<16}{text}\n".replace("; ", NEXT) for what, text in classes)
        + f"best {state.best.text(state.scores)} at step {state.best.step}   "
        f"{state.wall_s:.0f} s of training, {state.wall_s / epochs:.3g} s per epoch, "
        f"{state.cpu_s:.0f} CPU-s, evaluation left out\n"
        + "".join(f"warning: {text}\n" for text in output.caveats)
        + (f"{speed}\n" if speed else "")
        + (
            f"pictures  {config.run_dir}/pictures: val.png, worst.png, best.png\n"
            if config.log.pictures
            else ""
        )
        + further(config.run_dir, config.log.tensorboard, read_parts(config.run_dir))
    )
    return 0


def write_end(session: Session, status: str) -> None:
    """Write the event ``run_end``, and close the trackers."""
    state, counts = session.state, session.pool.made()
    fields: dict[str, Any] = {}
    if status == "done":
        early, score = ended_early(session), state.best
        fields = {score.by: score.value} | ({"text": early} if early else {})
    if counts is not None:
        text = counts.line("samples" if session.strategy.world_size == 1 else "samples of rank 0")
        session.output.screen.say(text)
        fields["samples"] = {**counts.to_dict(), "text": text}
    session.output.journal.write(
        "run_end",
        status=status,
        step=state.step,
        seconds=state.wall_s,
        cpu_s=state.cpu_s,
        workers=session.pool.count,
        **fields,
    )
    session.output.trackers.close(status)


def ended_early(session: Session) -> str:
    """Why a run is done before its last step; "" if it is not."""
    state, config = session.state, session.config
    if not session.patience_ended or state.step >= session.plan.steps:
        return ""
    return (
        f"ended by train.patience={config.train.patience} after step {state.step:,} of "
        f"{session.plan.steps:,}: no evaluation was better than that of step {state.best.step:,} "
        f"({state.best.text({})}); a larger train.patience goes on from there"
    )


def further(run_dir: Path, tensorboard: bool, parts: Mapping[str, str]) -> str:
    """Commands that continue from a finished run, ready to paste.

    Where a command needs one of ``parts`` (which was passed in from Python), a Python call stands
    in its place.
    """
    run = quote(str(run_dir))
    curves = quote(f"{run_dir}/tensorboard")
    text = repr(str(run_dir))
    model, data = (
        f", {name}={parts[role].rpartition('.')[2]}(...)" if role in parts else ""
        for name, role in (("model", "model"), ("data", "val_data"))
    )
    score = f"segtrain.evaluate({text}{data}{model})" if data or model else f"segtrain eval {run}"
    predict = (
        f"segtrain.load({text}{model}).predict(images)"
        if model
        else f"segtrain predict {run} IMAGES"
    )
    export = f"segtrain.export({text}, 'exported'{model})" if model else f"segtrain export {run}"
    return (
        f"curves    tensorboard --logdir {curves}\n" if tensorboard else ""
    ) + f"report    segtrain report {run}\nnext      {score}   {predict}   {export}"
