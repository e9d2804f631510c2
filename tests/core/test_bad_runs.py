"""Tests that mistakes around run folders, checkpoints, and ranks give one error, and leave nothing
behind.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import (
    FOLDERS,
    NOISE,
    PATIENCE,
    SCENES,
    assert_nothing_left,
    assert_refused,
    finish,
    make_set,
    refuse,
    snapshot,
)

from segtrain.errors import EXIT_RANK_LOST

STEP = "run/checkpoints/step-00000004.pt"


@pytest.fixture(scope="module")
def trained(zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:  # type: ignore[no-untyped-def]
    """A folder with the data set ``set`` and the finished run ``run``."""
    folder = tmp_path_factory.mktemp("trained")
    make_set(folder / "set")
    process = zygote.start("train", *FOLDERS, cwd=folder)
    assert finish([process]) == [0], process.output
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "place"))


def foreign(path: Path, **parts: Any) -> None:
    torch.save({"format": 2, **parts}, path)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def another_class_count(folder: Path) -> None:
    shutil.rmtree(folder / "set")
    make_set(folder / "set", ("road", "car", "sky", "tree"))


TRAIN: dict[str, tuple[Callable[[Path], Any], list[str], tuple[str, ...]]] = {
    "holds another run": (
        lambda d: None,
        ["optim.lr=0.5"],
        ("run holds a run", "optim.lr: 0.001 there, 0.5 here", "out=FOLDER"),
    ),
    "holds a run, and none is to be resumed": (
        lambda d: None,
        ["checkpoint.resume=false"],
        ("checkpoint.resume=false", "run already contains a run", "out=FOLDER"),
    ),
    "its config is torn": (
        lambda d: (d / "run/config.yaml").write_text("data: [1"),
        [],
        ("run/config.yaml", "not valid YAML", "out=FOLDER"),
    ),
    "is a file": (
        lambda d: (shutil.rmtree(d / "run"), (d / "run").write_text("x")),
        [],
        ("run folder run", "is a file", "out=FOLDER"),
    ),
    "checkpoint of another network": (
        lambda d: torch.save(
            {**torch.load(d / STEP, weights_only=True), "model": {"w": torch.ones(2)}}, d / STEP
        ),
        [],
        ("run", "stem", "is missing", "move it out of checkpoints"),
    ),
}


@pytest.mark.parametrize("case", TRAIN)
def test_a_run_folder_that_will_not_do(zygote, place, case):  # type: ignore[no-untyped-def]
    damage, settings, words = TRAIN[case]
    damage(place)
    made = ("run/",) if "checkpoint " in case else ()
    refuse(zygote, place, ["train", *FOLDERS, *settings], *words, made=made)


def test_a_torn_checkpoint_is_said_and_an_older_one_taken(zygote, place):  # type: ignore[no-untyped-def]
    tear(place / STEP)
    process = zygote.start("train", *FOLDERS, cwd=place)
    assert finish([process]) == [0], process.output
    assert f"skipped: {STEP}" in process.output
    assert "going on from step 2 of 4" in process.output


VERBS: dict[str, tuple[Callable[[Path], Any], list[str], tuple[str, ...]]] = {
    "eval of no run": (lambda d: None, ["eval", "set"], ("set is not a run folder", "config.yaml", "segtrain runs")),
    "eval on another class count": (another_class_count, ["eval", "run"], ("set has 4 classes", "trained on 3", "same classes")),
    "eval with a broken image": (lambda d: tear(d / "set/images/val/a0.png"), ["eval", "run"], ("set/images/val/a0.png", "ends early", "again")),
    "torn checkpoint": (lambda d: tear(d / STEP), ["eval", "run"], (STEP, "is incomplete or damaged", "another checkpoint")),
    "checkpoint without weights": (lambda d: foreign(d / STEP, optimizer={}), ["eval", "run"], ("run", "no weights", "take another")),
    "best checkpoint that is gone": (lambda d: (d / STEP).unlink(), ["eval", "run"], ("step-00000004.pt", "is not there", "--which last")),
    "best.json that is torn, and no checkpoint": (
        lambda d: ((d / "run/best.json").write_text('{"check'), shutil.rmtree(d / "run/checkpoints")),
        ["eval", "run"], ("run holds no checkpoint", "train it first"),
    ),
    "predict over the inputs": (
        lambda d: shutil.copytree(d / "set/images/val", d / "masks"), ["predict", "run", "masks", "--out", "."], ("masks/a0.png", "another output folder"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VERBS)
def test_a_run_that_cannot_be_used(zygote, place, case):  # type: ignore[no-untyped-def]
    damage, arguments, words = VERBS[case]
    damage(place)
    refuse(zygote, place, list(arguments), *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_prediction_on_a_gpu_that_is_not_there(zygote, place):  # type: ignore[no-untyped-def]
    refuse(
        zygote,
        place,
        ["predict", "run", "set/images/val", "--device", "cuda"],
        "device cuda",
        "no GPU",
        "device cpu",
    )
    refuse(
        zygote,
        place,
        ["eval", "run", "train.device=cuda"],
        "train.device=cuda",
        "no GPU",
        "train.device=cpu",
    )


def test_images_that_cannot_be_read_stop_no_other(zygote, place):  # type: ignore[no-untyped-def]
    tear(place / "set/images/val/a0.png")
    made = ("out/masks/a1.png", "out/overlays/a1.png")
    refuse(
        zygote,
        place,
        ["predict", "run", "set/images/val", "--out", "out"],
        "1 of 2",
        "a0.png",
        "the other 1 are in out",
        made=made,
    )
    assert (place / "out/masks/a1.png").exists()


# ---- disks and rights
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB: two checkpoints of the runs below fit, nine do not."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", folder], capture_output=True
    ).returncode:
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(("ranks", "background"), [(0, "false"), (2, "true")])
def test_a_full_disk_at_a_checkpoint(zygote, small_disk, background, ranks):  # type: ignore[no-untyped-def]
    settings = [
        "train",
        *SCENES,
        f"checkpoint.background={background}",
        "checkpoint.every=1st",
        "checkpoint.keep=9",
        "eval.every=9st",  # its files must not be the first that do not fit
        "train.duration=9st",
        "train.batch_size=4",
    ]
    refuse(
        zygote,
        small_disk,
        [*settings],
        "run/checkpoints/step-",
        "No space left",
        "free space",
        "same command",
        made=("run/",),
        ranks=ranks,
    )
    left = sorted(small_disk.rglob("*.pt"))
    assert left
    for path in left:
        torch.load(path, weights_only=True)


def limited(size: int, *arguments: object) -> str:
    """Code that runs segtrain where no file may grow beyond ``size`` bytes."""
    return (
        f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        f"from segtrain.cli import main\nraise SystemExit(main({list(map(str, arguments))!r}))\n"
    )


def test_a_checkpoint_that_cannot_be_written_whole(zygote, tmp_path):  # type: ignore[no-untyped-def]
    process = zygote.start(code=limited(60_000, "train", *SCENES), cwd=tmp_path)
    assert_refused(
        [process],
        "run/checkpoints/step-00000002.pt",
        "File too large",
        "free space",
        "same command",
    )
    assert_nothing_left(tmp_path, {}, ("run/",))
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["predict", "run", "set/images/val", "--out", "out"], "out/"),
        (["export", "run", "--out", "out", "--formats", "safetensors"], "out"),
    ],
)
def test_results_that_cannot_be_written_whole(zygote, place, arguments, word):  # type: ignore[no-untyped-def]
    before = snapshot(place)
    process = zygote.start(code=limited(200, *arguments), cwd=place)
    assert_refused([process], word, "File too large", "another folder")
    assert_nothing_left(place, before)


def seal(folder: Path) -> None:
    """No user but root may write there or below, not even the owner, who may run the tests."""
    for place in (folder, *folder.rglob("*")):
        if place.is_dir():
            place.chmod(0o555)


def test_a_run_folder_without_the_right_to_write(zygote, public, ordinary):  # type: ignore[no-untyped-def]
    (public / "run").mkdir()
    seal(public)
    for out in ("run", "elsewhere/run"):
        process = zygote.start(code=ordinary("train", *SCENES, f"out={out}"), cwd=public)
        assert_refused([process], f"run folder {out}", "no permission to write", "out=FOLDER")
    assert snapshot(public) == {}


# ---- ranks
# ---------------------------------------------------------------------------------------------------------------

RANKS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "wrong config": (["optim.lrr=1"], ("optim.lrr", "optim.lr")),
    "run folder": (["out=occupied"], ("occupied", "is a file", "out=FOLDER")),
}


@pytest.mark.parametrize("case", RANKS)
def test_one_rank_speaks_for_all(zygote, tmp_path, case):  # type: ignore[no-untyped-def]
    settings, words = RANKS[case]
    (tmp_path / "occupied").write_text("")
    refuse(zygote, tmp_path, ["train", *SCENES, *settings], *words, ranks=2)
    assert not (tmp_path / "run").exists()


def test_a_fault_of_the_data_is_said_once(zygote, tmp_path):  # type: ignore[no-untyped-def]
    root = make_set(tmp_path / "set")
    tear(root / "images/train/a0.png")
    refuse(zygote, tmp_path, ["train", *FOLDERS], "set/images/train/a0.png", "ends early", ranks=2)
    assert not (tmp_path / "run").exists()


def test_kernels_that_do_not_run_here_are_said_once(zygote, tmp_path):  # type: ignore[no-untyped-def]
    settings = ["train.kernels=[linear]", "train.duration=1st", "train.batch_size=4"]
    ranks = zygote.start_ranks(2, "train", *SCENES, *settings, cwd=tmp_path)
    assert [rank.wait() for rank in ranks] == [0, 0]
    said = [rank.output.count("train.kernels has no effect") for rank in ranks]
    assert said == [1, 0]


@pytest.mark.parametrize("where", ["train", "val"])
def test_a_file_that_one_rank_alone_meets(zygote, tmp_path, where):  # type: ignore[no-untyped-def]
    """The rank that reads it says so; the other one ends as well, and adds nothing."""
    root = make_set(tmp_path / "set")
    tear(root / f"images/{where}/a1.png")
    refuse(
        zygote,
        tmp_path,
        ["train", *FOLDERS, "data.check=off", "train.batch_size=4"],
        f"images/{where}/a1.png",
        "ends early",
        ranks=2,
        made=("run/",),
    )
    if where == "val":
        refuse(
            zygote,
            tmp_path,
            ["eval", "run"],
            f"images/{where}/a1.png",
            "ends early",
            ranks=2,
            made=("run/",),
        )


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_missed(zygote, tmp_path, killed):  # type: ignore[no-untyped-def]
    """The rank that is left says that it lost one, in words, and ends.

    Rank 0, with whom all talk, has an error to tell.
    """
    settings = [
        *SCENES,
        "train.batch_size=4",
        "train.duration=99999st",
        "eval.every=99999st",
        "checkpoint.every=99999st",
    ]
    ranks = zygote.start_ranks(2, "train", *settings, cwd=tmp_path)
    journal, end = tmp_path / "run/journal.jsonl", time.monotonic() + PATIENCE
    while not (journal.exists() and '"step"' in journal.read_text()) and time.monotonic() < end:
        time.sleep(0.01)
    ranks[killed].signal(signal.SIGKILL)
    left = ranks[1 - killed]
    assert finish(ranks) == [
        EXIT_RANK_LOST if rank is left else -signal.SIGKILL for rank in ranks
    ], left.output
    for word in (
        f"rank {1 - killed} has lost another rank",
        "killed",
        "the same command continues",
    ):
        assert word in left.output
    for noise in NOISE:
        assert noise not in left.output, left.output
