"""Tests that a checkpoint is complete or absent, whatever happens while it is written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import refused

from segtrain.base import files
from segtrain.config import make_config
from segtrain.data.labels.space import plain_space
from segtrain.errors import CheckpointError
from segtrain.evaluation.load import load_run
from segtrain.models import build_model
from segtrain.parallel.cluster import Cluster
from segtrain.runfolder import checkpoint
from segtrain.runfolder.writer import CheckpointWriter
from segtrain.training import rank
from segtrain.training.state import State


def state(value: float, best: int = 0) -> dict[str, Any]:
    kept = {"step": int(value), "best_step": best, "best_miou": best / 100 if best else -1.0}
    return {"model": {"w": torch.full((1000,), value)}, "ema": {}, "state": kept}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("background", [True, False])
def test_keeps_the_newest_and_the_best(run_dir, background):
    writer = CheckpointWriter(run_dir / "checkpoints", keep=2, background=background)
    for step in range(1, 7):
        writer.save(step, state(step, best=2 if step > 1 else 1))
    writer.wait()
    assert [p.name for p in checkpoint.checkpoints(run_dir)] == [
        f"step-{n:08d}.pt" for n in (2, 5, 6)
    ]
    assert float(checkpoint.load_weights(run_dir, "best")[0]["w"][0]) == 2
    assert float(checkpoint.load_weights(run_dir, "last")[0]["w"][0]) == 6


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "Read-only file system.*free space"),
        (MemoryError(), "MemoryError.*free memory"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_no_failure_of_a_write_goes_unheard(run_dir, monkeypatch, background, error, words):
    """Also where the torn file cannot be taken away, as on a disk that has become read-only."""
    writer = CheckpointWriter(run_dir / "checkpoints", keep=2, background=background)

    def fail(*args: Any, **settings: Any) -> None:
        raise error

    monkeypatch.setattr(torch, "save", fail)
    if isinstance(error, OSError):
        monkeypatch.setattr(Path, "unlink", fail)

    def save() -> None:
        writer.save(1, state(1))
        writer.wait()

    with pytest.raises(CheckpointError, match=rf"step-00000001\.pt: {words}"):
        save()


def test_a_small_file_on_a_disk_that_has_become_read_only_is_one_error(tmp_path, monkeypatch):
    def fail(*args: Any, **settings: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    with refused("file-not-written", file=str(tmp_path / "best.json")):
        files.write_atomically(tmp_path / "best.json", b"{}")


def test_a_failure_after_a_checkpoint_got_its_name_is_not_said_of_it(run_dir, monkeypatch):
    def fail(*args: Any, **settings: Any) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    writer = CheckpointWriter(run_dir / "checkpoints", keep=1, background=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)  # as of a folder without permission to read
        old = writer.save(1, state(1))
    monkeypatch.setattr(Path, "unlink", fail)
    with refused("checkpoint-not-removed", file=str(old), reason=os.strerror(errno.EACCES)):
        writer.save(2, state(2, best=2))
    assert checkpoint.newest(run_dir).path == run_dir / "checkpoints/step-00000002.pt"


def test_parts_of_a_killed_writer_are_swept(run_dir):
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints/.step-00000009.pt.part").write_bytes(b"torn")
    CheckpointWriter(run_dir / "checkpoints", keep=1, background=False)
    assert list((run_dir / "checkpoints").iterdir()) == []
    assert checkpoint.newest(run_dir) == checkpoint.NewestCheckpoint()


def test_code_in_a_checkpoint_is_not_run(run_dir):
    class Evil:
        def __reduce__(self) -> Any:
            return (os.system, ("touch " + str(run_dir / "owned"),))

    (run_dir / "checkpoints").mkdir(parents=True)
    path = run_dir / "checkpoints/step-00000001.pt"
    torch.save({"format": checkpoint.FORMAT, "model": Evil()}, path)
    with refused("checkpoint-damaged", file=str(path)):
        checkpoint.read(path)
    assert not (run_dir / "owned").exists()


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    path = tmp_path / "step-00000001.pt"
    torch.save({"format": checkpoint.FORMAT}, path)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(torch, "load", refuse)
    with refused("checkpoint-not-read", file=str(path)):
        checkpoint.read(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", None])
def test_a_file_that_is_no_checkpoint(run_dir, content):
    (run_dir / "checkpoints").mkdir(parents=True)
    path = run_dir / "checkpoints/step-00000001.pt"
    if content is None:
        torch.save({"someone": "else's"}, path)
    else:
        path.write_bytes(content)
    with refused("checkpoint-foreign" if content is None else "checkpoint-damaged", file=str(path)):
        checkpoint.read(path)


def test_no_checkpoint_at_all(run_dir):
    run_dir.mkdir()
    with refused("no-checkpoint", run=str(run_dir)):
        checkpoint.load_weights(run_dir)


def test_a_damaged_tensor_is_no_whole_checkpoint(run_dir):
    """As long as before, and readable for torch, which looks at no checksum."""
    writer = CheckpointWriter(run_dir / "checkpoints", keep=9, background=False)
    weights = torch.arange(5000.0)
    paths = [writer.save(step, {**state(step), "model": {"w": weights}}) for step in (1, 2)]
    content = bytearray(paths[1].read_bytes())
    place = content.index(weights.numpy().tobytes()[400:800])
    content[place : place + 40] = b"\x55" * 40
    paths[1].write_bytes(content)
    newest = checkpoint.newest(run_dir)
    assert newest.path == paths[0]
    assert "step-00000002.pt is incomplete or damaged" in newest.remarks[0]


def test_a_checkpoint_that_was_not_written_is_told_beside_another_error(tmp_path, monkeypatch):
    writer, said = CheckpointWriter(tmp_path / "checkpoints", 2, True), list[str]()

    def fail(session: Any, signals: list[int]) -> int:
        writer.save(7, {"state": lambda: "cannot be saved"})
        raise ValueError("diverged")

    monkeypatch.setattr(rank.loop, "run", fail)
    monkeypatch.setattr(rank, "try_parts", lambda session: None)
    output = SimpleNamespace(
        screen=SimpleNamespace(say=said.append),
        journal=SimpleNamespace(write=lambda *_, **__: None),
        trackers=SimpleNamespace(close=lambda status: None),
        close=lambda: None,
    )
    config = SimpleNamespace(run_dir=tmp_path, log=SimpleNamespace(profile_ms=0))
    strategy = SimpleNamespace(cluster=Cluster(1, 2, 1, 2))
    session: Any = SimpleNamespace(
        config=config,
        state=State(),
        output=output,
        plan=SimpleNamespace(steps=9),
        patience_ended=False,
        strategy=strategy,
        saver=SimpleNamespace(close=writer.settle),
    )
    with pytest.raises(ValueError, match="diverged"):
        rank._run(session, [])
    (line,) = said
    assert line.startswith(
        f"warning: cannot write the checkpoint {tmp_path / 'checkpoints/step-00000007.pt'}"
    )


def test_a_tensor_with_more_numbers_than_its_file_has_is_refused_by_its_shape(tmp_path):
    config = make_config({"model": {"arch": "pico"}})
    weights = build_model(config.model, 2).state_dict()
    weights["head.weight"] = torch.zeros(1).expand(10**12)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save(
        {"format": checkpoint.FORMAT, "model": weights, "ema": {}, "state": {}},
        folder / "step-00000001.pt",
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    (tmp_path / "labels.json").write_text(json.dumps(plain_space(("a", "b")).to_dict()))
    with refused("weights-unfit"):
        load_run(tmp_path, "last")
