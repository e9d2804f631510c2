"""Tests that a pack gives the pixels of the files, continues after a kill, refuses faults, and
prints its cost.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import refused
from data_files import SIZE, batches, blocks, files, packed, quiet, sample_names, smooth
from PIL import Image

from segtrain.cli import main
from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.shards import pack_shard
from segtrain.data.shards.pack_estimate import estimate
from segtrain.data.shards.pack_sample import Packing

FORMS = ["keep", "recompress", "png", "raw"]


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("form", FORMS)
def test_the_pixels_and_the_batches_are_those_of_the_files(tmp_path, form, suffix):
    source = files(tmp_path / "files", suffix=suffix)
    done = quiet(source, tmp_path / "shards", Packing(form), shard_mb=0.01, workers=2)
    dataset = packed(tmp_path / "shards")
    assert (done.samples, done.masks, len(dataset)) == (7, "raw", 7)
    assert done.shards > 1
    assert dataset.labels.names == source.labels.names
    assert sample_names(dataset) == sample_names(source)
    for index in range(7):
        (image, mask), (seen, ids) = source.read(index), dataset.read(index)
        assert np.array_equal(mask, ids)
        assert np.array_equal(image, seen) or (
            form == "recompress" and np.abs(image.astype(int) - seen).mean() < 6
        )
        assert dataset.size(index) == source.size(index)
    if form != "recompress":
        assert batches(dataset) == batches(source)
        assert batches(dataset, workers=2) == batches(source)
    if (form, suffix) == ("keep", "jpg"):
        assert batches(dataset, 2, "process") == batches(source)
        assert bytes(dataset.record(1).image) == Path(source.entries[1].image).read_bytes()
    if form == "raw":
        assert isinstance(dataset.record(1).image, np.ndarray)
    assert dataset.verify() == ()


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of webdataset
def test_any_tar_and_webdataset_read_it(tmp_path):
    source = files(tmp_path / "files", 3)
    quiet(source, tmp_path / "shards")
    path = tmp_path / "shards" / "train-000000.tar"
    keys = ["s0%2Ex", "s2%2Ex", "town/a1"]
    with tarfile.open(path) as found:
        assert found.getnames() == [
            f"{key}.{ending}" for key in keys for ending in ("jpg", "mask.png")
        ]
        picture = found.extractfile("town/a1.mask.png")
        assert picture is not None
        assert np.array_equal(np.array(Image.open(io.BytesIO(picture.read()))), blocks(1))
        assert {(member.mtime, member.uid, member.mode) for member in found} == {(0, 0, 0o644)}
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    found = list(webdataset.WebDataset(str(path), shardshuffle=False).decode("rgb8"))
    assert [sample["__key__"] for sample in found] == keys
    assert np.array_equal(found[2]["mask.png"][..., 0], blocks(1))
    assert found[0]["jpg"].shape == (*SIZE, 3)


def test_a_cap_shrinks_image_and_mask_together(tmp_path):
    source = files(tmp_path / "files", 3)
    for form in ("keep", "png", "raw"):
        quiet(source, tmp_path / form, Packing(form, cap=28))
        image, mask = packed(tmp_path / form).read(0)
        assert image.shape == (20, 28, 3)
        plain = cv2.resize(source.read(0)[0], (28, 20), interpolation=cv2.INTER_AREA)
        assert np.abs(image.astype(int) - plain).mean() < (9 if form == "keep" else 0.001)
        assert np.array_equal(mask, source.read(0)[1][1::2, 1::2]) or np.array_equal(
            mask, source.read(0)[1][::2, ::2]
        )


@pytest.mark.parametrize("kind", ["colors", "ids above 255"])
def test_masks_of_every_kind(tmp_path, kind):
    for folder in ("images", "masks"):
        (tmp_path / "files" / folder).mkdir(parents=True)
    mask = blocks(0, (0, 1, 2))
    Image.fromarray(smooth(0)).save(tmp_path / "files/images/a.png")
    place = tmp_path / "files/masks/a.png"
    settings: dict[str, object] = {"classes": ("x", "y", "z")}
    if kind == "colors":
        (tmp_path / "files/classes.txt").write_text("9 9 9 x\n50 0 0 y\n0 60 0 z\n0 0 0 void\n")
        Image.fromarray(np.array([[9, 9, 9], [50, 0, 0], [0, 60, 0]], np.uint8)[mask]).save(place)
        settings = {}
    else:
        cv2.imwrite(str(place), mask.astype(np.uint16) * 300)
        settings["label_map"] = {k * 300: k for k in range(3)}
    data = Data(
        layout="folders", root=str(tmp_path / "files"), images="images", masks="masks", **settings
    )
    source = open_dataset(data, "all")
    done = quiet(source, tmp_path / "shards")
    assert done.masks == "train"
    found = packed(tmp_path / "shards", "all")
    assert np.array_equal(found.read_mask(0), mask)
    assert np.array_equal(source.read_mask(0), mask)
    assert found.labels.names == ("x", "y", "z")


def test_shards_can_be_packed_again_and_drawn_scenes_too(tmp_path):
    source = files(tmp_path / "files", 4)
    quiet(source, tmp_path / "raw", Packing("raw"))
    quiet(packed(tmp_path / "raw"), tmp_path / "png", Packing("png"))
    assert batches(packed(tmp_path / "png")) == batches(source)
    scenes = open_dataset(Data(scenes=4, scene_size=(48, 64)), "train")
    quiet(scenes, tmp_path / "scenes")
    assert np.array_equal(packed(tmp_path / "scenes").read(2)[1], scenes.read(2)[1])
    assert np.array_equal(packed(tmp_path / "scenes").read(2)[0], scenes.read(2)[0])


_KILLED = """
import os, signal
from segtrain.config import Data
from segtrain.data.shards import pack
from segtrain.data.shards import pack_shard
from segtrain.data.datasets import open_dataset
from segtrain.data.shards.pack_sample import Packing
made, count = pack_shard.pack_sample, 0
def dying(*arguments):
    global count
    count += 1
    if count == 5:  # in the middle of the third shard
        os.kill(os.getpid(), signal.SIGKILL)
    return made(*arguments)
pack_shard.pack_sample = dying
pack.pack(open_dataset(Data(layout="camvid", root="files"), "train"), "shards", Packing(), shard_mb=0.009)
"""


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


@pytest.fixture
def killed(tmp_path, zygote):
    """A pack that was killed with -9 while it wrote its third shard."""
    source = files(tmp_path / "files", 9)
    process = zygote.start(code=_KILLED, cwd=tmp_path, SEGTRAIN_CACHE=str(tmp_path / "cache"))
    assert process.wait() == -signal.SIGKILL, process.output
    return source


def test_a_killed_pack_goes_on(tmp_path, killed):
    folder = tmp_path / "shards"
    there = digests(folder)
    assert sorted(there) == ["train-000000.tar", "train-000001.tar"]
    assert any(name.endswith(".part") for name in os.listdir(folder / ".packing-train"))
    with refused("no-shards", split="val"):
        packed(folder, "val")
    with refused("pack-unfinished", split="train"):
        packed(folder)
    done = quiet(killed, folder, shard_mb=0.009)
    assert done.kept == 2
    quiet(killed, tmp_path / "whole", shard_mb=0.009, workers=2)
    assert digests(folder) == digests(tmp_path / "whole")
    assert os.listdir(folder) == os.listdir(tmp_path / "whole") or sorted(
        os.listdir(folder)
    ) == sorted(digests(folder))
    assert batches(packed(folder)) == batches(killed)
    assert quiet(killed, folder, shard_mb=0.009).kept == done.shards  # nothing is left to do


def test_a_kept_shard_that_is_damaged_is_written_again(tmp_path, killed):
    path = tmp_path / "shards" / "train-000001.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    assert quiet(killed, tmp_path / "shards", shard_mb=0.009).kept == 1
    assert packed(tmp_path / "shards").verify() == ()


def test_other_options_or_inputs_do_not_go_on(tmp_path, killed):
    folder = tmp_path / "shards"
    with refused("pack-differs") as error:
        quiet(killed, folder, Packing("raw"), shard_mb=1)
    assert error.value.values["file"] == str(folder / ".packing-train")
    assert "image='keep', now 'raw'" in error.value.values["found"]
    assert "pack into another folder" in str(error.value)
    os.utime(killed.entries[3].image, (1, 1))
    with refused("pack-differs", found=["other files, labels, or times of files"]):
        quiet(killed, folder, shard_mb=0.009)
    done = quiet(killed, tmp_path / "other")
    with refused("pack-differs", found=["cap=0, now 9"]):
        quiet(killed, tmp_path / "other", Packing(cap=9))
    assert done.kept == 0


def test_faults_are_all_named_and_nothing_is_written(tmp_path):
    source = files(tmp_path / "files", 6)
    Path(source.entries[1].image).write_bytes(Path(source.entries[1].image).read_bytes()[:200])
    Image.fromarray(blocks(4, (0, 77))).save(source.entries[4].mask)
    with refused(
        "pack-faults",
        "unknown ids 77",
        "--skip-faults",
        files=[source.entries[1].image, source.entries[4].mask],
    ):
        quiet(source, tmp_path / "shards")
    assert not (tmp_path / "shards").exists()
    done = quiet(source, tmp_path / "shards", skip_faults=True)
    assert (done.samples, done.skipped) == (4, 2)
    assert "2 faulty samples left out" in done.text()
    found = packed(tmp_path / "shards")
    assert found.table.description.skipped == 2
    assert sample_names(found) == [source.entries[k].meta["name"] for k in (0, 2, 3, 5)]


def test_what_the_disk_gives_back_is_compared(tmp_path, monkeypatch):
    source = files(tmp_path / "files", 3)
    made = pack_shard.pack_sample

    def wrong(*arguments):
        sample = made(*arguments)
        return type(sample)(sample.image, sample.mask, sample.size, sample.pixels, "0" * 32)

    with monkeypatch.context() as patched:
        patched.setattr(pack_shard, "pack_sample", wrong)
        with refused("packed-pixels-differ"):
            quiet(source, tmp_path / "shards")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: os.pwrite(handle, b"\xff", 700))
        with refused("disk-changes-bytes"):
            quiet(source, tmp_path / "shards")
    assert os.listdir(tmp_path / "shards") == [".packing-train"]
    assert not [name for name in os.listdir(tmp_path / "shards/.packing-train") if ".part" in name]
    assert quiet(source, tmp_path / "shards").samples == 3


def test_packs_that_cannot_be(tmp_path, monkeypatch):
    source = files(tmp_path / "files", 3)
    for folder in ("files", "files/train", "files/trainannot/town"):
        with refused("pack-into-source"):
            quiet(source, tmp_path / folder)
    quiet(source, tmp_path / "tars/train")
    (tmp_path / "tars/train/train.index").unlink()
    tars = {path: path.read_bytes() for path in (tmp_path / "tars/train").iterdir()}
    with refused("pack-into-source"):
        quiet(
            packed(tmp_path / "tars", classes=tuple("abcdefghijk")),
            tmp_path / "tars/train",
            Packing("png"),
        )
    assert {path: path.read_bytes() for path in (tmp_path / "tars/train").iterdir()} == tars
    for name in ("b.jpg", "b.png"):
        Image.fromarray(smooth(1)).save(tmp_path / name)
    Image.fromarray(blocks(1)).save(tmp_path / "m.png")
    (tmp_path / "train.csv").write_text("image,mask\nb.jpg,m.png\nb.png,m.png\n")
    double = open_dataset(
        Data(layout="list", root=str(tmp_path), classes=tuple("abcdefghijkl")), "train"
    )
    with refused("pack-same-name"):
        quiet(double, tmp_path / "shards")
    monkeypatch.setattr(
        "shutil.disk_usage",
        lambda place: os.terminal_size((1, 1)) and type("Usage", (), {"free": 10}),
    )
    with refused("disk-too-small"):
        quiet(source, tmp_path / "full")


def test_an_estimate_names_each_choice(tmp_path):
    source = files(tmp_path / "files", 5)
    found = estimate(source, Data(crop=(24, 32)), Packing())
    assert [row.name for row in found.rows] == ["files", *FORMS]
    rows = {row.name: row for row in found.rows}
    assert rows["files"].whole == sum(
        os.path.getsize(path) for e in source.entries for path in (e.image, e.mask)
    )
    assert rows["raw"].sample > 4 * SIZE[0] * SIZE[1]
    assert all(row.ms > 0 for row in found.rows)


def test_the_command(tmp_path, capsys):
    files(tmp_path / "files", 3)
    files(tmp_path / "files", 2, split="val")
    where = [str(tmp_path / "files"), str(tmp_path / "shards")]
    assert main(["data", "pack", *where, "--estimate", "--json", "data.crop=[24,32]"]) == 0
    assert not (tmp_path / "shards").exists()
    assert set(json.loads(capsys.readouterr().out)) == {"train", "val"}
    assert (
        main(["data", "pack", *where, "--image", "png", "--split", "val", "data.crop=[24,32]"]) == 0
    )
    assert "val: 2 samples in 1 shard" in capsys.readouterr().out
    (tmp_path / "files" / "backup").mkdir()
    # tars beside a known layout change nothing
    (tmp_path / "files" / "backup" / "train.tar").write_bytes(b"-")
    assert main(["data", "check", where[0]]) == 0
    shard = tmp_path / "shards" / "val-000000.tar"
    content = bytearray(shard.read_bytes())
    content[-2000] ^= 1  # padding: no picture is hurt
    shard.write_bytes(content)
    assert main(["data", "check", where[1]]) == 2
    assert "checksum differs" in capsys.readouterr().out
    assert main(["data", "pack", *where, "--quality", "0"]) == 2
