"""Tests that a run resumes only on its own data, and that differing files are named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from conftest import refused
from data_files import files, packed, quiet
from refusals import FOLDERS, finish, make_set, refuse, snapshot

from segtrain.config import Config, load_config
from segtrain.data.audit import audit as audit_module
from segtrain.data.audit.audit import audit
from segtrain.data.datasets import open_dataset
from segtrain.data.index.subset import select, without
from segtrain.data.shards.pack_sample import Packing
from segtrain.errors import DataError
from segtrain.observe.journal import read_journal
from segtrain.parallel.cluster import Cluster
from segtrain.parallel.strategy import start
from segtrain.runfolder import checkpoint
from segtrain.runfolder.lock import RunLock
from segtrain.training.evaluate_run import score, trained_on
from segtrain.training.session import open_session
from segtrain.training.start.same_data import (
    check,
    differences,
    keep_list,
    list_file,
    split_of,
    write_list,
)
from segtrain.training.start.stages import Findings, prepare

STEP = "run/checkpoints/step-00000004.pt"


@pytest.fixture(scope="module")
def trained(zygote: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set ``set`` and the run ``run``, which has been trained on it up to
    step 2 of 4.
    """
    folder = tmp_path_factory.mktemp("trained")
    make_set(folder / "set")
    process = zygote.start("train", *FOLDERS, cwd=folder)
    assert finish([process]) == [0], process.output
    (folder / STEP).rename(folder / "whole.pt")
    (folder / "run/best.json").unlink()
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be changed; the working folder."""
    monkeypatch.chdir(shutil.copytree(trained, tmp_path / "place"))
    return tmp_path / "place"


def again(*settings: str) -> Findings:
    """What rank 0 does before the run goes on."""
    config: Config = load_config(None, [*FOLDERS, *settings])
    train, val = (
        open_dataset(config.data, split) for split in (config.data.train_split, config.data.split)
    )
    with RunLock(config.run_dir) as lock:
        return prepare(config, lock, train, val, {})[0]


def paint(path: Path, before: int, after: int) -> None:
    mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    mask[mask == before] = after
    cv2.imwrite(str(path), mask)


def shorter(path: Path) -> None:
    cv2.imwrite(str(path), np.zeros((40, 48, 3), np.uint8))


def swap(path: Path) -> None:
    """Another picture of the same size in bytes, under the same modification time, where an audit
    has seen this one.
    """
    picture = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    path.write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    again()  # the audit keeps what it has seen
    before = path.stat()
    moves = ((down, right) for down in range(1, 40) for right in range(48))
    others = (cv2.imencode(".png", np.roll(picture, move, (0, 1)))[1].tobytes() for move in moves)
    path.write_bytes(next(one for one in others if len(one) == before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def one_more(folder: Path, split: str) -> None:
    for kind in ("images", "masks"):
        shutil.copy(folder / f"set/{kind}/{split}/a1.png", folder / f"set/{kind}/{split}/a9.png")
    shorter(folder / f"set/images/{split}/a9.png")  # no copy of another one


def renamed(folder: Path) -> None:
    for kind in ("images", "masks"):
        (folder / f"set/{kind}/train/a1.png").rename(folder / f"set/{kind}/train/b.png")


CHANGES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "an image more": (
        lambda d: one_more(d, "train"),
        ("train: it lists other samples (4, it was 3): 1 added (a9)",),
    ),
    "another name": (
        renamed,
        ("train: it lists other samples (3, it was 3): 1 added (b); 1 removed (a1)",),
    ),
    "a mask with other labels": (
        lambda d: paint(d / "set/masks/train/a2.png", 0, 1),
        ("train: masks have other labels: 1 changed (a2)",),
    ),
    "another image": (
        lambda d: shorter(d / "set/images/train/a0.png"),
        ("train: images have another size in bytes: 1 changed (a0)",),
    ),
    "another image of the same size": (
        lambda d: swap(d / "set/images/val/a1.png"),
        ("val: images have other content",),
    ),
    "another mask of the same size": (
        lambda d: swap(d / "set/masks/train/a1.png"),
        ("train: masks have other labels: 1 changed (a1)",),
    ),
    "classes": (
        lambda d: (d / "set/classes.txt").write_text("road\ncar\ntree\n"),
        ("train: the classes differ", "val: the classes"),
    ),
    "no list": (
        lambda d: (one_more(d, "train"), (d / "run/data/train.tsv.gz").write_bytes(b"torn")),
        ("(4, it was 3)", "run/data/train.tsv.gz cannot be read"),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_data_is_refused_and_named(place, case):
    change, words = CHANGES[case]
    change(place)
    before = snapshot(place)
    with pytest.raises(DataError) as refused:
        again()
    for word in (*words, "restore the files", "out=FOLDER", "checkpoint.data_changed=accept"):
        assert word in str(refused.value)
    assert snapshot(place) == before


@pytest.mark.parametrize("setting", ["data.check=full", "data.check=off", "data.workers=3"])
def test_the_same_data_is_let_in(place, setting):
    findings = again(setting)
    assert findings.changed == ""
    assert not [remark for remark in findings.remarks if "trained" in remark]
    assert findings.records["train"]["masks"]  # known from the checkpoint where nothing was read


@pytest.mark.parametrize("change", ["an image more", "another image", "classes"])
def test_a_run_without_a_check_of_its_data_notices_names_and_sizes(place, change):
    CHANGES[change][0](place)
    with refused("data-changed"):
        again("data.check=off")


def test_a_set_that_was_copied_or_touched_is_the_same(place):
    shutil.copytree(place / "set", place / "copy", copy_function=shutil.copyfile)
    shutil.rmtree(place / "set")
    (place / "copy").rename(place / "set")
    assert again().changed == ""


def test_a_resume_that_has_lost_the_cache_reads_no_mask_again(place, monkeypatch):
    scanned: list[str] = []
    again()

    def scan(dataset: Any, *more: Any) -> Any:
        scanned.append(dataset.split)
        return real(dataset, *more)

    real = audit_module._scan
    monkeypatch.setattr(audit_module, "_scan", scan)
    monkeypatch.setenv("SEGTRAIN_CACHE", str(place / "another cache"))
    assert again().changed == ""
    assert scanned == []
    swap(place / "set/masks/train/a1.png")
    with refused("data-changed"):
        again()
    assert set(scanned) == {"train"}


def test_a_moved_set_is_the_same(place):
    shutil.move(place / "set", place / "elsewhere")
    assert again("data.root=elsewhere").changed == ""
    assert "elsewhere" in (place / "run/config.yaml").read_text()


def test_another_run_that_was_here_while_the_data_was_read_is_not_overwritten(place):
    """The folder was not there when the settings were compared; then another process began and
    ended in it.
    """
    before = snapshot(place / "run")
    with refused("run-settings-changed"):
        again("optim.lr=0.5")
    assert snapshot(place / "run") == before


def test_accepted_it_says_what_no_longer_holds_and_is_known_from_then_on(zygote, place):
    one_more(place, "train")
    refuse(
        zygote, place, ["train", *FOLDERS], "run was trained on other data", "1 added (a9)", ranks=2
    )
    process = zygote.start(
        "train", *FOLDERS, "checkpoint.data_changed=accept", "train.duration=4st", cwd=place
    )
    assert finish([process]) == [0], process.output
    assert "the samples from here on are not those that it would have had" in process.output
    assert "1 added (a9)" in process.output
    assert "going on from step 2 of 4" in process.output
    told = [event for event in read_journal(place / "run") if event["event"] == "data_changed"]
    assert [event["step"] for event in told] == [2]
    assert "1 added (a9)" in told[0]["text"]
    assert again().changed == ""  # the new checkpoint holds the new data
    paint(place / "set/masks/train/a9.png", 0, 1)
    with pytest.raises(DataError, match=r"masks have other labels: 1 changed \(a9\)"):
        again()


@pytest.mark.parametrize("record", [None, {"train": {"split": "train"}, "val": []}])
def test_a_checkpoint_without_a_record_counts_as_changed(place, record):
    path = checkpoint.checkpoints(place / "run")[-1]
    state = torch.load(path, weights_only=True)
    torch.save({**state, "data": record}, path)
    with refused("data-changed") as told:
        again()
    assert len(told.value.values["changes"]) == 2


# ---- shards
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("form", ["keep", "restart", "png", "raw"])
def test_packed_without_loss_the_samples_are_the_same(tmp_path, form, divided):
    dataset = files(tmp_path / "set")
    if divided:  # as data.split_by does
        dataset = select(dataset, np.arange(0, len(dataset), 2), dataset.split, ())
    quiet(dataset, tmp_path / "shards", Packing(image=form))  # type: ignore[arg-type]
    shards = packed(tmp_path / "shards")
    then, now = (split_of(each, audit(each)).record for each in (dataset, shards))
    assert differences(then, now) == differences(now, then) == []


def test_packed_with_loss_they_are_not(tmp_path):
    dataset = files(tmp_path / "set")
    quiet(dataset, tmp_path / "shards", Packing(image="recompress", quality=60))
    shards = packed(tmp_path / "shards")
    then, now = (split_of(each, audit(each)).record for each in (dataset, shards))
    assert differences(then, now) == ["images have another size in bytes"]


def test_a_run_on_files_goes_on_with_their_shards(zygote, place):
    settings = ["data.root=shards", "data.layout=shards"]
    process = zygote.start("data", "pack", "set", "shards", "data.layout=folders", cwd=place)
    assert finish([process]) == [0], process.output
    process = zygote.start("train", *FOLDERS, *settings, cwd=place)
    assert finish([process]) == [0], process.output
    assert (
        "data.layout was folders, now it is shards: the samples and their labels are the same"
        in process.output
    )
    assert "going on from step 2 of 4" in process.output
    mine, whole = (
        torch.load(path, weights_only=True) for path in (place / STEP, place / "whole.pt")
    )
    for name, value in whole["model"].items():
        assert torch.equal(mine["model"][name], value), name


def test_a_file_in_the_place_of_the_lists_is_named(place):
    shutil.rmtree(place / "run/data")
    (place / "run/data").write_text("mine")
    with refused("folder-not-made", file="run/data"):
        again()


# ---- a run that is scored, or goes on from what it did not write
# ---------------------------------------------------------


def warnings_of(*overrides: str) -> list[str]:
    found = score(Path("run"), list(overrides), "last", Cluster(), quiet=True)
    assert found is not None
    return [text for text in found["warnings"] if "trained on" in text]


def test_a_score_on_images_that_were_trained_on_says_so(place):
    assert warnings_of() == []
    (text,) = warnings_of("data.split=train")
    assert "the run was trained on these images" in text
    shutil.copytree("set", "elsewhere")
    one_more(place, "train")
    (text,) = warnings_of("data.split=train")
    assert "at least 3 of these 4 images" in text
    # the same files in another folder
    (text,) = warnings_of("data.split=train", "data.root=elsewhere")
    assert "on these images" in text
    for path in Path("elsewhere/images/train").iterdir():  # other files of the same names
        shorter(path)
    assert warnings_of("data.split=train", "data.root=elsewhere") == []
    shutil.rmtree("run/data")
    assert warnings_of("data.split=train") == []


@pytest.mark.parametrize(("sizes", "expected"), [("their own", 7), ("all alike", 0)])
def test_samples_of_another_split_count_where_their_sizes_tell_them_apart(
    tmp_path, sizes, expected
):
    dataset = files(tmp_path / "set", 7)
    rows = list(split_of(dataset, audit(dataset)).rows())
    if sizes == "all alike":
        for entry in dataset.entries:  # as files of pixels that are not compressed have them
            Path(entry.image).write_bytes(bytes(3000))
        rows = [(name, 3000, mask, crc) for name, _, mask, crc in rows]
    write_list(list_file(tmp_path, "train"), rows)
    assert trained_on(tmp_path, dataset, same_split=False) == expected
    assert trained_on(tmp_path, dataset, same_split=True) == 7


def test_a_checkpoint_that_another_run_wrote_is_said(place, capsys):
    path = checkpoint.checkpoints(place / "run")[-1]
    torch.save({**torch.load(path, weights_only=True), "config_hash": "0badf00d"}, path)
    config = load_config(None, FOLDERS)
    with start(config.parallel, Cluster(), "cpu") as strategy, RunLock(config.run_dir) as lock:
        session = open_session(config, strategy, lock)
    session.output.close()
    told = [line for line in capsys.readouterr().out.splitlines() if "#0badf00d" in line]
    assert len(told) == 1
    assert f"written by run #0badf00d, but this run is #{config.hash}" in told[0]
    assert "choose another out" in told[0]


def test_a_run_that_has_lost_its_checkpoints_begins_again_with_a_remark(place):
    def remarks() -> list[str]:
        return [remark for remark in again().remarks if "no checkpoint that loads" in remark]

    for path in checkpoint.checkpoints(place / "run"):
        path.write_bytes(b"torn")
    assert remarks() == []  # nothing was scored yet: an interrupted beginning
    (place / "run/best.json").write_text(
        '{"checkpoint": "step-00000002.pt", "step": 2, "miou": 0.1}'
    )
    (told,) = remarks()
    assert told.startswith("warning: run holds the journal of a run")
    assert "begins again at step 0" in told


# ---- records
# -------------------------------------------------------------------------------------------------------------


def test_samples_that_are_left_out_do_not_count(tmp_path):
    """The report of the whole set and that of the rest say the same of the rest."""
    dataset = files(tmp_path / "set")
    rest = without(dataset, [1, 4])
    of_all, of_rest = split_of(rest, audit(dataset)).record, split_of(rest, audit(rest)).record
    assert of_all == of_rest
    assert differences(of_all, split_of(dataset, audit(dataset)).record) == [
        "it lists other samples (7, it was 5)"
    ]


def test_the_order_counts(tmp_path):
    """Sample ids are places in it."""
    dataset = files(tmp_path / "set", 3)
    turned = replace(dataset, entries=[dataset.entries[place] for place in (0, 2, 1)])
    splits = [split_of(each, audit(each)) for each in (dataset, turned)]
    assert differences(splits[0].record, splits[1].record) == [
        "it lists other samples (3, it was 3)"
    ]
    keep_list(tmp_path, {"train": splits[0]}, rewrite=True)
    config = load_config(None, [f"out={tmp_path}"])
    with pytest.raises(DataError, match="the same samples in another order"):
        check(config, {"train": asdict(splits[0].record)}, {"train": splits[1]})
