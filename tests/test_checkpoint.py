"""Is a checkpoint whole or not there, whatever happens while it is written?"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from segtrain.errors import CheckpointError
from segtrain.train import checkpoint


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((1000,), value)}, "ema": {}, "state": {"step": int(value)}}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("background", [True, False])
def test_keeps_the_newest_and_the_best(run_dir: Path, background: bool) -> None:
    writer = checkpoint.Writer(run_dir / "checkpoints", keep=2, background=background)
    for step in range(1, 7):
        writer.save(step, state(step))
        if step == 2:
            writer.mark_best(2, 0.5)
    writer.wait()
    assert [p.name for p in checkpoint.checkpoints(run_dir)] == [f"step-{n:08d}.pt" for n in (2, 5, 6)]
    assert float(checkpoint.load_weights(run_dir, "best")["w"][0]) == 2
    assert float(checkpoint.load_weights(run_dir, "last")["w"][0]) == 6


def test_a_torn_newest_is_skipped_and_said(run_dir: Path) -> None:
    writer = checkpoint.Writer(run_dir / "checkpoints", keep=5, background=False)
    paths = [writer.save(step, state(step)) for step in (1, 2)]
    paths[1].write_bytes(paths[1].read_bytes()[:700])
    found, remarks = checkpoint.newest(run_dir)
    assert found is not None
    assert found["state"]["step"] == 1
    assert len(remarks) == 1
    assert "step-00000002.pt" in remarks[0]


def test_a_full_disk_leaves_no_part_and_says_so(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = checkpoint.Writer(run_dir / "checkpoints", keep=2, background=True)
    writer.save(1, state(1))
    writer.wait()

    def full(state: Any, file: Any) -> None:
        file.write(b"part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    writer.save(2, state(2))
    with pytest.raises(CheckpointError, match=r"step-00000002\.pt: No space left.*free space"):
        writer.wait()
    assert [p.name for p in (run_dir / "checkpoints").iterdir()] == ["step-00000001.pt"]


def test_parts_of_a_killed_writer_are_swept(run_dir: Path) -> None:
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints/.step-00000009.pt.part").write_bytes(b"torn")
    checkpoint.Writer(run_dir / "checkpoints", keep=1, background=False)
    assert list((run_dir / "checkpoints").iterdir()) == []
    assert checkpoint.newest(run_dir) == (None, [])


def test_code_in_a_checkpoint_is_not_run(run_dir: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.system, ("touch " + str(run_dir / "owned"),))

    (run_dir / "checkpoints").mkdir(parents=True)
    path = run_dir / "checkpoints/step-00000001.pt"
    torch.save({"format": 1, "model": Evil()}, path)
    with pytest.raises(CheckpointError, match="step-00000001"):
        checkpoint.read(path)
    assert not (run_dir / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", None])
def test_a_file_that_is_no_checkpoint(run_dir: Path, content: bytes | None) -> None:
    (run_dir / "checkpoints").mkdir(parents=True)
    path = run_dir / "checkpoints/step-00000001.pt"
    if content is None:
        torch.save({"someone": "else's"}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match="step-00000001"):
        checkpoint.read(path)


def test_no_checkpoint_at_all(run_dir: Path) -> None:
    run_dir.mkdir()
    with pytest.raises(CheckpointError, match="train it first"):
        checkpoint.load_weights(run_dir)
