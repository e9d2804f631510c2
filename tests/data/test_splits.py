"""Tests of overlaps between splits, and of ``data.split_by``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from conftest import refused
from data_files import run_check, sample_names
from refusals import TINY

from segtrain.bucket.faults import outage
from segtrain.cli import main
from segtrain.config import Data, load_config
from segtrain.config.paste import words
from segtrain.config.split_by import SplitBy
from segtrain.data.audit import overlap as overlaps
from segtrain.data.audit.audit import audit
from segtrain.data.audit.overlap import overlap, overlap_finding
from segtrain.data.datasets import open_dataset
from segtrain.data.file_dataset import FileDataset
from segtrain.data.index.split_by import TRAIN, VAL, divide
from segtrain.data.shards.pack import pack_folder
from segtrain.errors import ConfigError, DataError
from segtrain.training.start.agree import _sizes

CLASSES = "data.classes=[background, cell]"
PLAIN = ["data.layout=folders", "data.images=images", "data.masks=masks", CLASSES]


def write(root: Path, names: list[str], split: str = "") -> None:
    """Noise of its own for each name beside a mask of a square."""
    for name in names:
        for part in ("images", "masks"):
            (root / part / split / name).parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(zlib.crc32(f"{split}/{name}".encode()))
        mask = np.zeros((32, 40), np.uint8)
        mask[5:20, 5:20] = 1
        cv2.imwrite(
            str(root / "images" / split / f"{name}.png"),
            rng.integers(0, 255, (32, 40, 3), np.uint8),
        )
        cv2.imwrite(str(root / "masks" / split / f"{name}.png"), mask)


def split_set(root: Path) -> Data:
    write(root, [f"t{n}" for n in range(6)], "train")
    write(root, [f"v{n}" for n in range(3)], "val")
    return Data(layout="folders", root=str(root), classes=("background", "cell"))


def both(data: Data) -> tuple[Any, Any]:
    return open_dataset(data, "train"), open_dataset(data, "val")


def test_the_same_files_under_two_names_are_refused(tmp_path):
    write(tmp_path, [f"n{n:02d}" for n in range(30)])
    reports = run_check(tmp_path, *PLAIN).reports
    (found,) = [finding for report in reports for finding in report.findings]
    assert found.fatal
    assert "train and val are the same 30 images (images/n00.png, ...)" in found.message
    assert words(found.settings) == ["data.split_by={val: 20%}"]
    again = run_check(tmp_path, *PLAIN, *words(found.settings)).reports
    assert not any(report.failed for report in again)
    assert [report.split for report in again] == ["train", "val"]
    assert sum(report.images for report in again) == 30
    accepted = run_check(tmp_path, *PLAIN, *words(found.others[0][1])).reports
    assert not any(report.failed for report in accepted)
    assert "the same 30 images" in accepted[1].table()


def test_copies_are_found_by_content(tmp_path):
    data = split_set(tmp_path)
    train, val = both(data)
    assert overlap(train, val).count == 0
    for source, target in (("val/v0", "train/copy"), ("val/v2", "train/deep/er")):
        for part in ("images", "masks"):
            (tmp_path / part / target).parent.mkdir(exist_ok=True)
            shutil.copy(tmp_path / part / f"{source}.png", tmp_path / part / f"{target}.png")
    train, val = both(data)
    found = overlap(train, val)
    assert found.count == 2
    assert found.pairs == (
        ("images/train/copy.png", "images/val/v0.png"),
        ("images/train/deep/er.png", "images/val/v2.png"),
    )
    finding = overlap_finding(data, train, val)
    assert finding is not None
    assert finding.fatal
    assert (
        "2 of 3 images of val are training images: images/val/v0.png is images/train/copy.png"
        in finding.message
    )
    accepted = overlap_finding(data.model_copy(update={"overlap": "accept"}), train, val)
    assert accepted is not None
    assert not accepted.fatal
    checked = run_check(tmp_path, CLASSES, "data.layout=folders")
    assert {report.split: report.failed for report in checked.reports} == {
        "train": False,
        "val": True,
    }
    # Settings that are proposed leave the copies out.
    checked = run_check(tmp_path, CLASSES)
    copies = [
        f"{part}/train/{name}.png" for part in ("images", "masks") for name in ("copy", "deep/er")
    ]
    assert (checked.failed, checked.data.leave_out) == (False, tuple(copies))


def test_links_and_pictures_that_only_look_alike(tmp_path):
    data = split_set(tmp_path)
    os.unlink(tmp_path / "images/train/t1.png")
    (tmp_path / "images/train/t1.png").symlink_to(tmp_path / "images/val/v1.png")
    assert overlap(*both(data)).count == 1
    rng = np.random.default_rng(0)
    content = bytearray(rng.bytes(1 << 15))
    # one size, one middle, one end
    for split, name, first in (("train", "t2", 1), ("val", "v2", 2)):
        content[40] = first
        (tmp_path / f"images/{split}/{name}.png").write_bytes(bytes(content))
    found = overlap(*both(data))
    assert found.pairs == (("images/train/t1.png", "images/val/v1.png"),)


def test_the_result_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    data = split_set(tmp_path)
    shutil.copy(tmp_path / "images/val/v0.png", tmp_path / "images/train/t0.png")
    first = overlap(*both(data))
    assert first.count == 1
    with monkeypatch.context() as patch:
        patch.setattr(overlaps, "_by_content", lambda *_: pytest.fail("read again"))
        assert overlap(*both(data)) == first
    write(tmp_path, ["t0"], "train")
    os.utime(tmp_path / "images/train/t0.png", ns=(1, 1))
    assert overlap(*both(data)).count == 0


def test_an_overlap_is_not_kept_while_a_file_cannot_be_read(tmp_path, monkeypatch):
    data = split_set(tmp_path)
    shutil.copy(tmp_path / "images/val/v0.png", tmp_path / "images/train/t0.png")

    def failing(error: DataError) -> Callable[..., bytes]:
        def image_bytes(*_: object) -> bytes:
            raise error

        return image_bytes

    with monkeypatch.context() as patch:
        patch.setattr(FileDataset, "image_bytes", failing(DataError("gone", code="object-missing")))
        assert overlap(*both(data)).count == 0
        patch.setattr(
            FileDataset, "image_bytes", failing(outage("s3://b/k", "timeout", 1, 1.0, 1.0))
        )
        with refused("bucket-unreachable"):
            overlap(*both(data))
    assert overlap(*both(data)).count == 1


def test_generated_scenes_of_one_split(tmp_path):
    data = Data(scenes=8, scene_size=(32, 40))
    assert overlap(*both(data)).count == 0
    one = data.model_copy(update={"split": "train"})
    finding = overlap_finding(one, open_dataset(one, "train"), open_dataset(one, "train"))
    assert finding is not None
    assert finding.fatal


def test_shards_are_compared_too(tmp_path):
    data = split_set(tmp_path / "set")
    for part in ("images", "masks"):
        shutil.copy(tmp_path / f"set/{part}/val/v1.png", tmp_path / f"set/{part}/train/zz.png")
    pack_folder(
        str(tmp_path / "set"), str(tmp_path / "shards"), None, [CLASSES], say=lambda text: None
    )
    found = overlap(*both(Data(layout="shards", root=str(tmp_path / "shards"))))
    assert found.count == 1
    assert found.pairs[0][1].endswith("v1.png")
    assert found.pairs[0][0].endswith("zz.png")
    assert len(both(data)[0]) == 7


NAMES = [f"scene{n % 25}/frame{n:04d}" for n in range(500)]


def test_groups_stay_together():
    for group in (r"scene\d+", r"(scene\d+)/"):
        found = divide(NAMES, SplitBy(val="30%", group=group))
        of = {name.split("/")[0]: set() for name in NAMES}
        for name, part in zip(NAMES, found.tolist()):
            of[name.split("/")[0]].add(part)
        assert all(len(parts) == 1 for parts in of.values())
        assert set(found.tolist()) == {TRAIN, VAL}
    with refused("split-group-missing", matches=0, names=500):
        divide(NAMES, SplitBy(val="30%", group=r"drive(\d+)"))
    with refused("split-group-missing", matches=20):
        divide(NAMES, SplitBy(val="30%", group="scene7/"))
    with refused("split-empty", images=500, groups=1):
        divide(NAMES, SplitBy(val="30%", group="(scene)"))


def test_layouts_with_splits_say_which_one_is_divided(tmp_path):
    for layout in ("camvid", "cityscapes", "ade20k", "voc", "shards", "folders", "list"):
        with pytest.raises(ConfigError, match=rf"{layout}.*of: train"):
            load_config(None, ["data.root=x", f"data.layout={layout}", "data.split_by=20%"])
    with pytest.raises(ConfigError, match="scenes"):
        load_config(None, ["data.split_by=20%"])
    with pytest.raises(ConfigError, match=r"data.train_split=val"):
        load_config(None, ["data.root=x", *PLAIN, "data.split_by=20%", "data.train_split=val"])
    assert (
        load_config(
            None, ["data.root=x", *PLAIN, "data.split_by=20%", "data.split_by=null"]
        ).data.split_by
        == SplitBy()
    )


def test_every_layout_is_divided_alike(tmp_path):
    """Folders without splits, one list, one split of folders, and shards of it: the same images are
    val.
    """
    names = [f"s{n % 6}/i{n:02d}" for n in range(30)]
    write(tmp_path / "a", names)
    write(tmp_path / "b", names, "train")
    (tmp_path / "a/all.csv").write_text(
        "image,mask,name\n" + "".join(f"images/{n}.png,masks/{n}.png,{n}\n" for n in names)
    )
    pack_folder(str(tmp_path / "b"), str(tmp_path / "c"), None, [CLASSES], say=lambda text: None)
    rule = {"val": "30%", "test": 4, "group": r"s\d"}
    common = {"classes": ("background", "cell")}
    settings = (
        Data(
            layout="folders",
            root=str(tmp_path / "a"),
            images="images",
            masks="masks",
            split_by=rule,
            **common,
        ),
        Data(layout="list", root=str(tmp_path / "a"), index="all.csv", split_by=rule, **common),
        Data(
            layout="folders", root=str(tmp_path / "b"), split_by={**rule, "of": "train"}, **common
        ),
        Data(layout="shards", root=str(tmp_path / "c"), split_by={**rule, "of": "train"}),
    )
    divisions = []
    for data in settings:
        parts = {split: open_dataset(data, split) for split in ("train", "val", "test")}
        divisions.append(
            {split: sorted(e.meta["name"] for e in part.entries) for split, part in parts.items()}
        )
        assert sum(map(len, parts.values())) == 30
        assert "divided by data.split_by" in parts["val"].notes[-1]
        assert parts["val"].read(0)[1].max() == 1
        assert _sizes(parts["val"]).shape == (len(parts["val"]), 2, 2)
    assert all(found == divisions[0] for found in divisions)
    limited = settings[0].model_copy(update={"limit": 4})
    assert len(open_dataset(limited, "train")) == 4
    with pytest.raises(
        DataError, match=r"makes the splits train, val, but not 'test'.*data.split_by.test"
    ):
        open_dataset(settings[0].model_copy(update={"split_by": SplitBy(val="30%")}), "test")


def test_folders_below_a_split_are_no_splits(tmp_path):
    write(tmp_path, ["city1/a", "city2/b", "city2/c"], "train")
    for names, splits in (([], ["train"]), (["city3/d"], ["train", "val"])):
        write(tmp_path, names, "val")
        reports = run_check(tmp_path, CLASSES).reports
        assert [report.split for report in reports] == splits
        assert reports[0].images == 3


PLACES = "{split}.csv", "splits/{split}.txt", "lions/ImageSets/Segmentation/{split}.txt"


@pytest.mark.parametrize("place", PLACES)
def test_lists_that_may_divide_a_set_are_named(place, tmp_path):
    """Lists of pairs beside the folders stop the detection; others are named."""
    write(tmp_path, ["a", "b", "c", "d"])
    for split, names in (("train", "abc"), ("val", "d")):
        file = tmp_path / place.format(split=split)
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("".join(f"images/{name}.png,masks/{name}.png\n" for name in names))
    if place == "{split}.csv":
        with refused("layouts-ambiguous", found=["folders", "list"]):
            run_check(tmp_path, CLASSES)
    else:
        findings = run_check(tmp_path, CLASSES).reports[0].findings
        assert f"data.index={place}" in findings[-1].message
    settings = [CLASSES, "data.layout=list", f"data.index={place}"]
    reports = run_check(tmp_path, *settings).reports
    assert [report.images for report in reports] == [3, 1]
    assert not any(report.findings for report in reports)


def test_what_was_found_with_other_settings_is_not_taken_for_a_divided_set(tmp_path):
    """The cure that an error names must reach the images again, also where the set is divided."""
    write(tmp_path, [f"n{n}" for n in range(4)])
    for path in (tmp_path / "images").glob("*.png"):
        cv2.imwrite(str(path), np.full((32, 40, 3), 5000, np.uint16))

    def faults(bits: int) -> tuple[Any, ...]:
        words = [*PLAIN, f"data.root={tmp_path}", "data.split_by={val: 2}", f"data.bits={bits}"]
        return audit(open_dataset(load_config(None, words).data, "train")).faults

    assert "does not fit data.bits=12: set data.bits=13" in faults(12)[0][1]
    assert faults(13) == ()


def test_a_run_writes_its_division_down_and_is_scored_on_it(zygote, tmp_path):
    write(tmp_path / "set", [f"p{n % 10}_{n:02d}" for n in range(30)])
    settings = [*TINY, f"data.root={tmp_path}/set", *PLAIN, "log.profile_ms=0"]
    refused = zygote.start("train", *settings, "out=run", cwd=tmp_path)
    assert refused.wait() == 2
    assert "{val: 20%, group: '^(.*)[_\\-. ]'}" in refused.output
    rule = {"val": 6, "test": 3, "group": r"p\d+"}
    trained = zygote.start("train", *settings, *words({"data.split_by": rule}), cwd=tmp_path)
    assert trained.wait() == 0, trained.output
    listed = {path.stem: path.read_text().split() for path in (tmp_path / "run/splits").iterdir()}
    assert {split: len(names) for split, names in listed.items()} == {
        "train": 21,
        "val": 6,
        "test": 3,
    }
    assert not {name[:2] for name in listed["train"]} & {
        name[:2] for name in listed["val"] + listed["test"]
    }
    events = [
        json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()
    ]
    (division,) = [event for event in events if event["event"] == "split"]
    assert division["rule"] == {**rule, "seed": 0, "of": ""}
    assert division["images"] == {"train": 21, "val": 6}
    scored = zygote.start("eval", "run", "data.split=test", "--json", cwd=tmp_path)
    assert scored.wait() == 0, scored.output
    assert json.loads(scored.output)["protocol"]["images"] == 3
    other = zygote.start(
        "train", *settings, *words({"data.split_by": {**rule, "seed": 1}}), cwd=tmp_path
    )
    assert other.wait() == 2  # another division is another run
    assert "data.split_by.seed" in other.output


def pasted(out: str) -> Data:
    """The settings of the command that was printed."""
    return load_config(
        None, shlex.split(out.partition("segtrain train ")[2].partition("\n")[0])
    ).data


def trainable(data: Data) -> list[int]:
    """Images of both splits of settings that can be trained with."""
    train, val = (open_dataset(data, split) for split in (data.train_split, data.split))
    assert overlap_finding(data, train, val) is None
    return [len(train), len(val)]


# splits on the disk -> settings of the division
LACKING: dict[tuple[str, ...], dict[str, str] | None] = {
    ("train",): {"of": "train"},
    ("Valid",): {"of": "Valid"},
    ("",): {},
    ("training", "testing"): None,
}


@pytest.mark.parametrize("splits", LACKING, ids="-".join)
def test_the_command_that_is_printed_trains(tmp_path, splits, capsys):
    for split in splits:
        write(tmp_path / "set", [f"{split}{n}" for n in range(9)], split)
    assert main(["data", "check", str(tmp_path / "set"), CLASSES]) == 0
    out = capsys.readouterr().out
    rule = LACKING[splits]
    data = pasted(out)
    assert sum(trainable(data)) == (9 if rule is not None else 18)
    if rule is None:
        assert out.count("warning: ") == 1
        assert "warning: 'testing' is the validation split" in out
        assert (data.train_split, data.split) == splits
    else:
        assert data.split_by.of == rule.get("of", "")


def test_shards_that_were_packed_without_splits_are_divided(tmp_path, capsys):
    write(tmp_path / "set", [f"i{n:02d}" for n in range(12)])
    shards = str(tmp_path / "shards")
    pack_folder(str(tmp_path / "set"), shards, None, [CLASSES], say=lambda text: None)
    assert main(["data", "check", shards]) == 0
    out = capsys.readouterr().out
    assert sum(trainable(pasted(out))) == 12
    settings = ["data.layout=shards", f"data.root={shards}"]
    with pytest.raises(DataError, match=r"no shards of split 'train'.*to divide them: ") as caught:
        open_dataset(load_config(None, settings).data, "train")
    cure = shlex.split(str(caught.value).partition("to divide them: ")[2])
    assert sum(trainable(load_config(None, [*settings, *cure]).data)) == 12


def test_pack_writes_the_divided_splits(tmp_path):
    write(tmp_path / "set", [f"i{n:02d}" for n in range(12)])
    rule = ["data.split_by={val: 4}"]
    pack_folder(
        str(tmp_path / "set"), str(tmp_path / "out"), None, [CLASSES, *rule], say=lambda text: None
    )
    packed = Data(layout="shards", root=str(tmp_path / "out"))
    plain = load_config(None, [f"data.root={tmp_path}/set", *PLAIN, *rule]).data
    for split, count in (("train", 8), ("val", 4)):
        names = [sample_names(open_dataset(data, split)) for data in (packed, plain)]
        assert names[0] == names[1]
        assert len(names[0]) == count
