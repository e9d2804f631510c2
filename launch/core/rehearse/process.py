"""Runs a rehearsal in a folder and a process of its own, with its own namespaces if the kernel
allows that.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launch.core.findings import Say
from launch.core.job import PACKAGE, ROOT
from launch.core.rehearse import network
from launch.core.rehearse.cluster import read_fault
from launch.core.rehearse.guard import MARK, RehearsalGuard, left
from launch.core.rehearse.report import Report, load, save, show
from segtrain.errors import EXIT_ERROR, ConfigError, SegtrainError

SPEC, REPORT, PROBLEM = "rehearsal.json", "report.json", "error.txt"
# Folders that a rehearsal fills: storage, files of the hosts, their logs, and generated data.
FILLED = ("gcs", "hosts", "logs", "sample")


@dataclass(frozen=True)
class RehearsalSpec:
    """A rehearsal, as it is passed to the process inside the namespaces, in JSON. A user chooses
    the first fields.
    """

    bundle: str  # the file with the code
    folder: str
    sample: str = ""  # a local folder that is used as the data; "": none is given
    hosts: int | None = None  # None: as in the request, within limits
    procs: int | None = None  # ranks per host
    plant: str = ""
    # changed settings of segtrain, for this rehearsal only
    settings: Mapping[str, Any] = field(default_factory=dict)
    namespaces: bool = True  # False: do without them, as on a kernel that gives none
    grace_s: float | None = None  # between SIGTERM and SIGKILL; None: as in the cloud
    request: Mapping[str, Any] = field(default_factory=dict)
    data_uri: str = ""  # the bucket's address of the data, which gets the sample (Vertex AI)
    said: tuple[str, ...] = ()  # differences from the cloud, one sentence each
    # in the environment of all processes of this rehearsal, so that they can be found and killed
    mark: str = ""
    scratch: str = ""  # a folder for the temporary files of these processes


@contextlib.contextmanager
def stage(
    spec: RehearsalSpec, plants: Sequence[str], without: str, say: Say
) -> Iterator[tuple[RehearsalSpec, list[str] | None]]:
    """The folder of a rehearsal, without the files of an earlier one, and the guard that ends its
    processes.

    ``without``: what differs if there are no namespaces. Returns the spec of the prepared
    rehearsal, and the command prefix that gives its namespaces. Tells at the end what is left on
    the disk. Raises ConfigError.
    """
    read_fault(spec.plant, plants)
    sample = Path(spec.sample).resolve() if spec.sample else None
    if sample is not None and not sample.is_dir():
        raise ConfigError(
            f"--sample {spec.sample}: there is no such folder",
            code="sample-missing",
            file=spec.sample,
        )
    folder = Path(spec.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder, sample)
    with signals_end_it(), RehearsalGuard(folder) as guard:
        try:
            prefix, how = (
                network.namespaces() if spec.namespaces else (None, "they are switched off")
            )
            yield (
                replace(
                    spec,
                    folder=str(folder),
                    sample=str(sample or ""),
                    bundle=str(Path(spec.bundle).resolve()),
                    namespaces=prefix is not None,
                    said=(network.said(prefix, how, without),),
                    mark=guard.mark,
                    scratch=str(guard.scratch),
                ),
                prefix,
            )
        finally:
            with contextlib.suppress(OSError):  # the terminal may be gone
                say(f"  on disk: {left(folder)}")


def _clear(folder: Path, sample: Path | None) -> None:
    """Remove what an earlier rehearsal has left. Raises ConfigError if something else has made
    these folders.
    """
    old = [folder / name for name in FILLED if (folder / name).exists()]
    old = [path for path in old if sample is None or not sample.is_relative_to(path)]
    mark = folder / SPEC
    if old and not mark.is_file():
        raise ConfigError(
            f"--folder {folder} holds {old[0].name}, which is not of a rehearsal: give a "
            "new folder",
            code="rehearsal-folder",
            found=str(old[0]),
        )
    mark.touch()
    for path in old:
        shutil.rmtree(path)


@contextlib.contextmanager
def signals_end_it() -> Iterator[None]:
    """While inside, SIGTERM and SIGHUP (a closed terminal) end a rehearsal as Ctrl-C does: its
    processes are ended, and the user is told which files remain.
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


def perform(module: str, spec: RehearsalSpec, prefix: list[str] | None, say: Say) -> Report:
    """Call ``play(spec, say)`` of a module in a process of its own, and return its report, which is
    shown. All processes that it starts end with it.

    ``prefix``: from ``stage``. Raises ConfigError and SegtrainError.
    """
    for line in spec.said:
        say(f"note: {line}")
    _play(module, spec, prefix, say)
    report = load(Path(spec.folder, REPORT))
    say("")
    for line in show(report).splitlines():
        say(line)
    return report


def _play(module: str, spec: RehearsalSpec, prefix: list[str] | None, say: Say) -> None:
    file, done, wrong = (Path(spec.folder, name) for name in (SPEC, REPORT, PROBLEM))
    for old in (done, wrong, Path(spec.folder, "failure.now")):
        old.unlink(missing_ok=True)
    file.write_text(json.dumps(asdict(spec)))
    command = [
        *(prefix or []),
        sys.executable,
        "-m",
        "launch.core.rehearse.process",
        module,
        str(file),
    ]
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{PACKAGE.parent}",
        "PATH": network.search_path(),
    }
    env[MARK] = spec.mark
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
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


def main(module: str, path: Path) -> int:
    """The child's side of ``perform``: read the spec from a file, play it, and save its report next
    to the file. Returns an exit code.
    """
    play = importlib.import_module(module).play
    try:
        report = play(
            RehearsalSpec(**json.loads(path.read_text())), lambda text: print(text, flush=True)
        )
    except SegtrainError as error:
        path.with_name(PROBLEM).write_text(str(error))
        return EXIT_ERROR
    save(report, path.with_name(REPORT))
    return 0


def _end(process: subprocess.Popen[str], alone: bool) -> None:
    """End the child process. ``alone``: it has its own namespaces, so all its processes end with
    it; otherwise it first gets SIGINT and 10 s to end them itself.
    """
    if not alone:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    process.kill()
    process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
