"""Tests of `segtrain prove`: it passes on a sound trainer, and fails when any guarantee is broken
on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import segtrain.prove as proving
from segtrain.config import load_config
from segtrain.errors import SegtrainError
from segtrain.prove.ranks import own_gpu
from segtrain.prove.short import Survey, shortened
from segtrain.prove.table import FAIL, PASS, SKIPPED, ProofRow, row

SMALL = [
    "data.scenes=9",
    "data.scene_size=[40,48]",
    "data.crop=[32,32]",
    "train.batch_size=4",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
]

ONE = """
import json, os, pathlib
import numpy as np
import torch
from segtrain.config import load_config
from segtrain.prove import counts, gradient, plant, resume
from segtrain.prove.short import changed, shortened
gpus = 0
{broken}
folder = pathlib.Path(os.environ["FOLDER"])
full = load_config(None, {settings})
config, _ = shortened(full, None, gpus, 2)
rows = list({proof})
print("ROWS", json.dumps([vars(found) for found in rows]))
"""

PROOFS = {
    "gradient": "gradient.prove_gradient(folder, config, [1, 2])",
    "resume": "resume.prove_resume(folder, config, [1])",
    "extension": "resume.prove_extension(folder, config)",
    "evaluation": "[*counts.prove_evaluation(folder, config, [1, 2]), "
    "*counts.prove_patience(folder, config, [1, 2])]",
    "workers": "counts.prove_workers(folder, config, full)",
    "labels": "plant.prove_planted(folder, changed(config, data__limit=0))",
}


def verdicts(
    zygote: Any, tmp_path: Path, proof: str, broken: str = "", settings: list[str] = SMALL
) -> list[dict[str, str]]:
    """The rows of one proof, with a part of segtrain broken in all its processes."""
    process = zygote.start(
        code=ONE.format(broken=broken, proof=PROOFS[proof], settings=settings), FOLDER=str(tmp_path)
    )
    assert process.wait() == 0, process.output
    line = next(line for line in process.output.splitlines() if line.startswith("ROWS "))
    return list(json.loads(line.removeprefix("ROWS ")))


def failures(rows: list[dict[str, str]]) -> list[str]:
    return [found["compared"] for found in rows if found["verdict"] == FAIL]


def test_all_promises_are_kept(zygote, tmp_path):  # type: ignore[no-untyped-def]
    process = zygote.start("prove", *SMALL, "--ranks", "1,2", cwd=tmp_path)
    assert process.wait() == 0, process.output
    text = process.output
    assert FAIL not in text
    # a fast run may be over before its signal
    assert "\n15 PASS" in text or "\n14 PASS, 1 SKIPPED" in text, text
    for promise in ("1 world size", "2 resume", "3 evaluation", "4 workers", "5 labels"):
        assert text.count(f"\n{promise}") >= 1
    assert not list(tmp_path.iterdir())


GRADIENT_OF_A_MEAN = """
from segtrain.parallel.strategy import Strategy
Strategy.gradient_scale = property(lambda self: 1)
"""
TOTALS_OF_A_MICRO_BATCH = """
from segtrain.training import step
plain = step._label_totals
step._label_totals = lambda criterion, micros, *more: plain(criterion, micros[:1], *more)
"""


def test_a_gradient_averaged_over_ranks_is_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "gradient", GRADIENT_OF_A_MEAN)
    assert any("on 2 ranks compared with 1" in text for text in failures(rows)), rows


def test_a_loss_of_each_micro_batch_is_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "gradient", TOTALS_OF_A_MICRO_BATCH)
    assert [text for text in failures(rows) if "micro-batches" in text] == failures(rows) != []


FROM_THE_BEGINNING = """
from segtrain.training import loop
class Forgetful(loop.TrainLoader):
    def __init__(self, *args, first_step, last_step, **rest):
        super().__init__(*args, first_step=0, last_step=last_step - first_step, **rest)
loop.TrainLoader = Forgetful
"""
NO_MOMENTS = """
from segtrain.training import learner
plain = learner.load_full_state
learner.load_full_state = lambda model, optimizer, weights, moments: plain(model, optimizer, weights, {})
"""


def test_an_order_that_begins_again_is_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "resume", FROM_THE_BEGINNING)
    assert any("SIGTERM" in text or "SIGKILL" in text for text in failures(rows)), rows
    assert any(not found["measured"].startswith("0 of") for found in rows)


def test_moments_that_are_lost_are_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "resume", NO_MOMENTS)
    assert failures(rows), rows
    assert all(
        found["measured"].startswith("0 of 12 steps differ")
        for found in rows
        if found["verdict"] == FAIL
    )


# The steps that extend a run follow an order of their own.
REPLANNED = """
from segtrain.training import loop
class Replanned(loop.TrainLoader):
    def __init__(self, *args, seed, first_step, **rest):
        super().__init__(*args, seed=seed + first_step, first_step=first_step, **rest)
loop.TrainLoader = Replanned
"""


def test_an_extension_of_its_own_order_is_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "extension", REPLANNED)
    assert [found["measured"][:9] for found in rows if found["verdict"] == FAIL] == [
        "8 of 12 s"
    ] * 2


# Rank 1 counts twice, the loss of several ranks differs, and a run is too patient.
RANKS_COUNT = """
from segtrain.evaluation import evaluation, tally
from segtrain.training.session import Session
plain, mean = tally.confusions, evaluation.mean_loss
tally.confusions = lambda *args: plain(*args) * (2 if os.environ.get("RANK") == "1" else 1)
evaluation.mean_loss = lambda *args: mean(*args) + len(os.environ.get("RANK", ""))
Session.patience_ended = property(lambda self: self.state.stale > 2)
"""


def test_a_score_that_knows_the_ranks_is_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "evaluation", RANKS_COUNT)
    assert [text.split()[0] for text in failures(rows)] == ["confusion", "validation", "end"]


# One GPU, whose work the CPU does.
ONE_GPU = """
from segtrain.parallel import strategy
strategy.gpus_in_sight = lambda wanted, cluster: []
gpus = 1
"""


def test_a_gpu_is_shared_by_ranks_and_its_runs_are_repeated(zygote, tmp_path):  # type: ignore[no-untyped-def]
    rows = verdicts(zygote, tmp_path, "gradient", ONE_GPU)
    assert [found["verdict"] for found in rows] == [PASS, SKIPPED, PASS], rows
    assert "NCCL takes one rank per GPU" in rows[1]["remark"]
    rows = verdicts(zygote, tmp_path, "resume", ONE_GPU)
    assert "a second time" in rows[0]["compared"]
    assert rows[0]["verdict"] == PASS, rows
    assert not failures(rows), rows


def test_a_gpu_that_is_not_deterministic_is_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    noise = """
from segtrain.training import step
plain = step._share
step._share = lambda *args: plain(*args) * (1 + 1e-6 * int.from_bytes(os.urandom(1), "big"))
"""
    rows = verdicts(zygote, tmp_path, "resume", ONE_GPU + noise)
    assert "a second time" in failures(rows)[0], rows


def test_what_is_proved_on_a_gpu_and_what_is_not():
    config = load_config(None, ["train.precision=bf16"])
    short, _ = shortened(config, None, 1, 2)
    assert (short.train.device, short.train.precision, short.train.deterministic) == (
        "cuda",
        "bf16",
        True,
    )
    assert short.parallel.backend == "gloo"
    short, remarks = shortened(config, None, 2, 2)
    assert short.parallel.backend == "auto"
    assert not any("gloo" in text for text in remarks)
    assert [own_gpu(rank, 2, "") for rank in range(3)] == ["0", "1", "0"]
    assert [own_gpu(rank, 2, "GPU-b, GPU-a") for rank in range(2)] == ["GPU-b", "GPU-a"]


DRAWN_ANEW = """
from segtrain.data import sample
sample.rng_for = lambda *key: np.random.default_rng()
"""


def test_pixels_that_differ_are_found(zygote, tmp_path):  # type: ignore[no-untyped-def]
    assert failures(verdicts(zygote, tmp_path, "workers", DRAWN_ANEW))


NO_CHECK = """
from segtrain.data.audit.audit import audit
from segtrain.training.start import faults
faults.check_before_training = lambda split, **settings: audit(split)
faults.refuse = lambda *found: None
"""


def test_faults_found_while_training_are_found_too_late(zygote, tmp_path):  # type: ignore[no-untyped-def]
    assert len(failures(verdicts(zygote, tmp_path, "labels", NO_CHECK))) == 3


def folders(root: Path, masks: list[np.ndarray]) -> Path:
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        for k, mask in enumerate(masks):
            for part in ("images", "masks"):
                (root / part / split).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(
                str(root / f"images/{split}/{k}.jpg"),
                draw.integers(0, 255, (*mask.shape[:2], 3), dtype=np.uint8),
            )
            cv2.imwrite(str(root / f"masks/{split}/{k}.png"), mask)
    return root


def test_a_fault_of_the_users_data_fails_and_the_rest_is_skipped(zygote, tmp_path):  # type: ignore[no-untyped-def]
    mask = np.zeros((24, 32), np.uint8)
    mask[3, :5] = 9
    root = folders(tmp_path / "data", [np.zeros((24, 32), np.uint8), mask])
    process = zygote.start(
        "prove", "data.layout=folders", f"data.root={root}", "data.classes=[a, b]"
    )
    assert process.wait() == 1, process.output
    assert "masks/train/1.png: unknown ids 9 (5 pixels)" in process.output
    assert "1 FAIL, 4 SKIPPED" in process.output


@pytest.mark.parametrize("kind", ["16-bit ids", "RGB masks"])
def test_faults_are_planted_in_masks_of_any_kind(zygote, tmp_path, kind):  # type: ignore[no-untyped-def]
    settings = [*SMALL, "data.layout=folders", f"data.root={tmp_path / 'data'}"]
    if kind == "RGB masks":
        mask = np.zeros((24, 32, 3), np.uint8)
        mask[4:9] = (30, 20, 10)  # blue, green, red
        (tmp_path / "classes.txt").write_text("0 0 0 road\n10 20 30 car\n1 2 3 void\n")
        settings.append(f"data.classes={tmp_path / 'classes.txt'}")
    else:
        mask = np.full((24, 32), 1000, np.uint16)
        mask[4:9] = 7
        settings += ["data.classes=[road, car]", "data.label_map={1000: 0, 7: 1, 8: -1}"]
    folders(tmp_path / "data", [mask, mask])
    (tmp_path / "data/masks/train/2.png").write_bytes(b"left out")
    settings += ["data.faults=skip", "data.leave_out=[masks/train/2.png]"]
    rows = verdicts(zygote, tmp_path, "labels", settings=settings)
    assert [found["verdict"] for found in rows] == [PASS] * 3, rows


def test_a_proof_that_does_not_finish_fails(monkeypatch):
    """A rank that dies keeps no guarantee: exit code 1, and not SKIPPED."""
    seen = Survey("planted", {"train": 5}, (), (), (1,) * 10, (40, 48))
    monkeypatch.setattr(proving, "on_ranks", lambda *_: [seen])
    for module, name in (
        (proving.plant, "prove_planted"),
        (proving.counts, "prove_workers"),
        (proving.counts, "prove_evaluation"),
        (proving.resume, "prove_resume"),
    ):
        monkeypatch.setattr(module, name, lambda *_: [row("x", "y", holds=True)])
    rows: list[str] = []
    monkeypatch.setattr(proving.gradient, "prove_gradient", lambda *_: [row("x", "y", holds=True)])
    assert proving.prove(None, SMALL, [1, 2], say=rows.append) == 0

    def dies(*_: Any) -> Iterator[ProofRow]:
        yield row(proving.gradient.NAME, "y", holds=True)
        raise SegtrainError("rank 1 died", code="prove-rank-failed")

    monkeypatch.setattr(proving.gradient, "prove_gradient", dies)
    rows.clear()
    assert proving.prove(None, SMALL, [1, 2], say=rows.append) == 1
    failed = [line for line in rows if line.startswith(FAIL)]
    assert len(failed) == 1
    assert proving.gradient.NAME in failed[0]
    assert "rank 1 died" in failed[0]


def test_wrong_use_is_an_error_and_no_verdict(zygote, tmp_path):  # type: ignore[no-untyped-def]
    for arguments, said in (
        (("data.layout=camvid", f"data.root={tmp_path}/none"), "no such folder"),
        *([] if torch.cuda.is_available() else [(("--device", "cuda"), "sees no GPU")]),
    ):
        process = zygote.start("prove", *SMALL[:1], *arguments)
        assert process.wait() == 2, process.output
        assert said in process.output
        assert "Traceback" not in process.output
