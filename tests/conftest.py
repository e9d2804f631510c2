"""What every test shares: one compute thread, a cache of its own, and a way to start real ranks."""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from segtrain.errors import SegtrainError

if TYPE_CHECKING:
    from cloud.bucket import BucketServer

# Ranks and xdist workers share the cores: more threads only wait for each other, and must not spin
# while they wait (see segtrain/cli.py). Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

ROOT = Path(__file__).parents[1]
PARTS = ("", "kit", "core", "data", "insight", "platforms", "project")
# as in pyproject.toml, for processes that tests start
PATHS = [ROOT, *(ROOT / "tests" / name for name in PARTS)]
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@contextmanager
def refused(code: str, *texts: str, **values: Any) -> Iterator[pytest.ExceptionInfo[SegtrainError]]:
    """The body must raise a SegtrainError with this code, these texts in its message, and these
    values among its own.
    """
    with pytest.raises(SegtrainError) as info:
        yield info
    error = info.value
    assert error.code == code, f"{error.code!r}: {error}"
    assert all(text in str(error) for text in texts), str(error)
    assert {name: error.values.get(name) for name in values} == values, str(error)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Almost all objects that collecting tests makes stay: the garbage collector would go through
    them for seconds.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


_NUMBERS = itertools.count()


@pytest.fixture
def enough_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The free disk space of the machine that runs the tests must not become a finding."""
    monkeypatch.setattr(
        "launch.platforms.slurm.preflight.folders.free_mb", lambda folder: 1_000_000
    )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in tmp_path: thousands of tests need none, and each one makes the next one slower.
    monkeypatch.setenv(
        "SEGTRAIN_CACHE", str(tmp_path_factory.getbasetemp() / f"caches/{next(_NUMBERS)}")
    )
    for name in LAUNCHER_VARIABLES:  # a rendezvous of one test must not reach the next
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A server with the empty bucket ``bkt``, which gets all requests."""
    from cloud.bucket import BucketServer

    (tmp_path / "store/bkt").mkdir(parents=True)
    started = BucketServer(tmp_path / "store")
    for key, value in started.environment().items():
        monkeypatch.setenv(key, value)
    yield started
    started.close()


@pytest.fixture
def no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is sent a second time because its answer is late, which on a busy machine any may
    be.
    """
    monkeypatch.setattr(
        "segtrain.data.bucket.readahead_window.ReadAheadWindow.may_repeat", lambda self: False
    )


@pytest.fixture
def camvid() -> Path:
    """The CamVid folder: SEGTRAIN_CAMVID, or ../shared/data/camvid beside the repository."""
    folder = Path(os.environ.get("SEGTRAIN_CAMVID", ROOT.parent / "shared/data/camvid"))
    if not (folder / "train").is_dir():
        pytest.skip("CamVid is not here: set SEGTRAIN_CAMVID to its folder")
    return folder


class Process:
    """A forked child of the zygote."""

    def __init__(self, zygote: Zygote, pid: int, out: Path) -> None:
        self._zygote, self.pid, self._out = zygote, pid, out

    def wait(self) -> int:
        """The exit code; minus the signal's number if one ended it."""
        return int(self._zygote.ask({"wait": self.pid})["code"])

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def output(self) -> str:
        return self._out.read_text()


class Zygote:
    """Starts segtrain's command line, or Python code, in a fork of a process that has imported
    torch already.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/kit/zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert json.loads(self._read())["ready"]

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._read()))

    def start(self, *args: object, code: str = "", cwd: Path | None = None, **env: str) -> Process:
        self._count += 1
        out = self._folder / f"output-{self._count}.txt"
        out.touch()  # the child may get a core only after its output is asked for
        what = {"code": code} if code else {"args": [str(arg) for arg in args]}
        env = {"SEGTRAIN_CACHE": str(self._folder / "cache"), **env}
        return Process(
            self,
            self.ask({**what, "env": env, "cwd": str(cwd or self._folder), "out": str(out)})["pid"],
            out,
        )

    def start_ranks(
        self, world: int, *args: object, code: str = "", cwd: Path | None = None, **env: str
    ) -> list[Process]:
        from segtrain.parallel.cluster import Cluster, free_port

        port = free_port()
        places = [Cluster(rank, world, rank, world, "127.0.0.1", port) for rank in range(world)]
        return [
            self.start(*args, code=code, cwd=cwd, **{**place.environment(), **env})
            for place in places
        ]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        # it holds nothing to put away, and how long it would take to leave depends on the load
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


@pytest.fixture
def run_ranks(zygote: Zygote) -> Callable[..., list[str]]:
    """``run_ranks(code, world)`` runs Python code on ``world`` gloo ranks; returns what each
    printed.
    """

    def run(code: str, world: int, **env: str) -> list[str]:
        processes = zygote.start_ranks(world, code=code, **env)
        codes = [process.wait() for process in processes]
        outputs = [process.output for process in processes]
        assert codes == [0] * world, "\n".join(outputs)[-3000:]
        return outputs

    return run


@pytest.fixture
def segtrain(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``segtrain("train", "key=value", ...)`` as a user's process in ``tmp_path``; output
    captured.
    """

    def call(
        *arguments: object, timeout: float = 240, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "segtrain", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return call


def need_setuptools() -> None:
    """Skip without the setuptools that builds the wheel.

    Asked without importing it: that fails beside an imported distutils.
    """
    try:
        found = tuple(int(part) for part in metadata.version("setuptools").split(".")[:2])
    except metadata.PackageNotFoundError:
        found = (0, 0)
    if found < (70, 1):
        pytest.skip("setuptools 70.1 or newer builds the wheel")


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of the machine may enter and write to (pytest's own are private)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.fixture
def ordinary() -> Callable[..., str]:
    """``ordinary("train", ...)``: Python code that runs segtrain as a user whom file rights bind,
    which root is not.
    """

    def code(*arguments: object) -> str:
        words = [str(argument) for argument in arguments]
        become = "import os\nif os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        return f"{become}from segtrain.cli import main\nraise SystemExit(main({words!r}))\n"

    return code
