"""What every test shares: one compute thread, a cache of its own, and a way to start real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Ranks and xdist workers share the cores: more threads only wait for each other. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "segtrain-cache"))
    for name in LAUNCHER_VARIABLES:  # a rendezvous of one test must not reach the next
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def camvid() -> Path:
    """The CamVid folder: SEGTRAIN_CAMVID, or ../shared/data/camvid beside the repository."""
    folder = Path(os.environ.get("SEGTRAIN_CAMVID", ROOT.parent / "shared/data/camvid"))
    if not (folder / "train").is_dir():
        pytest.skip("CamVid is not here: set SEGTRAIN_CAMVID to its folder")
    return folder


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[str]]:
    """``run_ranks(code, world)`` runs Python code on ``world`` gloo ranks; returns what each printed on stdout."""

    def run(code: str, world: int, *, timeout: float = 120, path: str = "") -> list[str]:
        from segtrain.parallel.cluster import Cluster, free_port

        port = free_port()
        script = tmp_path / f"ranks{world}.py"
        script.write_text(code)
        processes = [
            subprocess.Popen(
                [sys.executable, str(script)],
                env={
                    **os.environ,
                    **Cluster(rank, world, rank, world, "127.0.0.1", port).environment(),
                    "PYTHONPATH": os.pathsep.join([*([path] if path else []), str(ROOT), str(ROOT / "tests")]),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        printed = []
        try:
            for process in processes:
                out, err = process.communicate(timeout=timeout)
                assert process.returncode == 0, err[-3000:]
                printed.append(out)
        finally:
            for process in processes:
                process.kill()
        return printed

    return run


@pytest.fixture
def segtrain(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``segtrain("train", "key=value", ...)`` as a user's process in ``tmp_path``; output captured."""

    def call(*arguments: object, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "segtrain", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return call
