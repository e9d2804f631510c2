"""The end of a run: done, or stopped by a signal with its state saved."""

from __future__ import annotations

import signal
from pathlib import Path
from shlex import quote

from segtrain.diagnose.live import closing_line
from segtrain.errors import EXIT_RESUMABLE
from segtrain.observe.console import class_table, of_classes
from segtrain.train.session import Session


def stop(session: Session, signals: list[int]) -> int:
    """Save the state after a signal. Returns the exit code."""
    state, output = session.state, session.output
    name = signal.Signals(signals[0]).name if signals else "a signal on another rank"
    output.journal.write("signal", signal=name, step=state.step)
    session.save("signal")
    if session.writer:
        session.writer.wait()
    write_end(session, "stopped")
    output.screen.say(
        f"stopped by {name} after step {state.step} of {session.plan.steps}: the state is saved, and the same command goes on "
        f"from there (exit code {EXIT_RESUMABLE})"
    )
    return EXIT_RESUMABLE


def finish(session: Session) -> int:
    """Write the table of classes and what to do next. Returns the exit code."""
    state, config, output, labels = session.state, session.config, session.output, session.validation.labels
    if session.writer:
        session.writer.wait()
    write_end(session, "done")
    pixels = state.scores["pixels"]
    output.screen.say(class_table(labels.names, state.scores["iou"], [n / max(1, sum(pixels)) for n in pixels]))
    speed = closing_line(config.run_dir) if session.strategy.rank == 0 else None
    output.screen.say(
        f"best mIoU {100 * state.best_miou:.2f}%{of_classes(pixels)}   {state.wall_s:.0f} s of training, "
        f"{state.cpu_s:.0f} CPU-s, evaluation left out\n"
        + "".join(f"warning: {text}\n" for text in output.caveats)
        + (f"{speed}\n" if speed else "")
        + (f"pictures  {config.run_dir}/pictures: val.png, worst.png, best.png\n" if config.log.pictures else "")
        + further(config.run_dir, config.log.tensorboard)
    )
    return 0


def write_end(session: Session, status: str) -> None:
    """Write the event ``run_end``, and close the trackers."""
    state = session.state
    scored = {"miou": state.best_miou} if status == "done" else {}
    session.output.journal.write(
        "run_end", status=status, step=state.step, seconds=state.wall_s, cpu_s=state.cpu_s, workers=session.pool.count, **scored
    )  # fmt: skip
    session.output.trackers.close(status)


def further(run_dir: Path, tensorboard: bool) -> str:
    """Commands that continue from a finished run, ready to paste."""
    run, curves = quote(str(run_dir)), quote(f"{run_dir}/tensorboard")
    return (
        (f"curves    tensorboard --logdir {curves}\n" if tensorboard else "") + f"report    segtrain report {run}\n"
        f"next      segtrain eval {run}   segtrain predict {run} IMAGES   segtrain export {run}"
    )
