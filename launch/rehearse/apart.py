"""Runs a rehearsal in a folder and a process of its own, with its own namespaces if the kernel allows that."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from launch.job import PACKAGE, ROOT
from launch.rehearse import network
from launch.rehearse.guard import MARK, Guard, left
from segtrain.errors import EXIT_ERROR, ConfigError, SegtrainError

T = TypeVar("T")
R = TypeVar("R")
ORDERS, REPORT, PROBLEM = "orders.json", "report.json", "error.txt"
# Folders that a rehearsal fills: storage, files of the hosts, their logs, and generated data.
FILLED = ("gcs", "hosts", "logs", "sample")


@dataclass(frozen=True)
class Orders:
    """The input of a rehearsal: all that the process inside the namespaces needs to know. It is passed as JSON."""

    request: Mapping[str, Any]
    bundle: str
    sample: str
    folder: str
    hosts: int | None
    settings: Mapping[str, Any]  # changed settings of segtrain, for this rehearsal only
    plant: str
    isolated: bool
    grace_s: float
    said: tuple[str, ...]
    mark: str  # in the environment of all processes of this rehearsal, so that they can be found and killed
    scratch: str  # a folder for the temporary files of these processes


@contextlib.contextmanager
def stage(folder: Path, sample: Path | None, say: Callable[[str], None]) -> Iterator[Guard]:
    """The folder of a rehearsal, without the files of an earlier one, and the guard that ends its processes.

    ``sample``: the user's data, which may be in the folder. Tells at the end what is left on the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder, sample.resolve() if sample else None)
    with signals_end_it(), Guard(folder) as guard:
        try:
            yield guard
        finally:
            with contextlib.suppress(OSError):  # the terminal may be gone
                say(f"  on disk: {left(folder)}")


def _clear(folder: Path, sample: Path | None) -> None:
    """Remove what an earlier rehearsal has left. Raises ConfigError if something else has made these folders."""
    old = [folder / name for name in FILLED if (folder / name).exists()]
    old = [path for path in old if sample is None or not sample.is_relative_to(path)]
    mark = folder / ORDERS
    if old and not mark.is_file():
        raise ConfigError(
            f"--folder {folder} holds {old[0].name}, which is not of a rehearsal: give a new folder",
            code="rehearsal-folder", found=str(old[0]),
        )  # fmt: skip
    mark.touch()
    for path in old:
        shutil.rmtree(path)


@contextlib.contextmanager
def signals_end_it() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP (a closed terminal) end a rehearsal as Ctrl-C does: its processes are ended, and
    the user is told which files remain.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def perform(
    module: str,
    orders: Orders,
    prefix: list[str] | None,
    say: Callable[[str], None],
    load: Callable[[Path], R],
    show: Callable[[R], str],
) -> R:
    """Run ``python -m MODULE FILE`` with the orders in FILE, and return its report, which is shown. All processes that
    it starts end with it.

    ``prefix``: from ``network.namespaces``. Raises ConfigError and SegtrainError.
    """
    for line in orders.said:
        say(f"note: {line}")
    _play(module, orders, prefix, say)
    report = load(Path(orders.folder, REPORT))
    say("")
    for line in show(report).splitlines():
        say(line)
    return report


def _play(module: str, orders: Orders, prefix: list[str] | None, say: Callable[[str], None]) -> None:
    told, done, wrong = (Path(orders.folder, name) for name in (ORDERS, REPORT, PROBLEM))
    for old in (done, wrong, Path(orders.folder, "failure.now")):
        old.unlink(missing_ok=True)
    told.write_text(json.dumps(asdict(orders)))
    command = [*(prefix or []), sys.executable, "-m", module, str(told)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PACKAGE.parent}", "PATH": network.search_path()}
    env[MARK] = orders.mark
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    last = ""
    try:
        for line in process.stdout:
            last = line.rstrip("\n") or last
            say(line.rstrip("\n"))
        code = process.wait()
    except BaseException:
        _end(process, alone=bool(prefix))
        raise
    finally:
        process.stdout.close()
    if wrong.is_file():
        raise ConfigError(wrong.read_text(), code="rehearsal-refused")
    if not done.is_file():
        text = f"the rehearsal itself broke down with code {code}: {last}"
        raise SegtrainError(text, code="rehearsal-broke-down")


def played(
    path: Path, kind: Callable[..., T], act: Callable[[T, Callable[[str], None]], R], save: Callable[[R, Path], None]
) -> int:
    """The child's side of ``perform``: read orders (of class ``kind``) from a file, call ``act``, and save its report
    next to the file. Returns an exit code.
    """
    try:
        report = act(kind(**json.loads(path.read_text())), lambda text: print(text, flush=True))
    except SegtrainError as error:
        path.with_name(PROBLEM).write_text(str(error))
        return EXIT_ERROR
    save(report, path.with_name(REPORT))
    return 0


def _end(process: subprocess.Popen[str], alone: bool) -> None:
    """End the child process. ``alone``: it has its own namespaces, so all its processes end with it; otherwise it first
    gets SIGINT and 10 s to end them itself.
    """
    if not alone:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    process.kill()
    process.wait()
