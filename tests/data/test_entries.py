"""Tests of the index of file names: equal to a plain listing, shared by processes, rebuilt when
files change.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.index import entries as kept
from segtrain.data.index import listing, lists
from segtrain.data.index.entries import Entries, Entry, column_of
from segtrain.data.index.layouts import LAYOUTS
from segtrain.errors import DataError


@pytest.fixture
def small(monkeypatch):
    """Splits of a few files that are only just written are kept as well."""
    monkeypatch.setattr(listing, "_FEW", 0)
    monkeypatch.setattr(listing, "_CLOCK", -1)  # also in the same tick of the clock


@pytest.fixture
def counted(monkeypatch):
    """How often a folder was really listed."""
    calls = []
    for name in ("folders", "list", "voc"):
        layout = LAYOUTS[name]
        lister = lambda *given, plain=layout.lister: calls.append(1) or plain(*given)  # noqa: E731
        monkeypatch.setitem(LAYOUTS, name, replace(layout, lister=lister))
    return calls


def make(root: Path, names: list[str], ending: str = "") -> Data:
    for name in names:
        for path in (
            root / "images" / "train" / f"{name}.jpg",
            root / "masks" / "train" / f"{name}{ending}.png",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode(errors="surrogateescape"))
    return Data(layout="folders", root=str(root), classes=("a", "b"))


def plain(root: Path, ending: str = "") -> list[Entry]:
    """The pairs of a folder, found in the plainest way."""
    top = str(root / "images" / "train")
    keys = sorted(
        os.path.relpath(os.path.join(place, name), top)[:-4]
        for place, _, names in os.walk(top)
        for name in names
    )
    masks = str(root / "masks" / "train")
    return [Entry(f"{top}/{key}.jpg", f"{masks}/{key}{ending}.png", {"name": key}) for key in keys]


NAMES = [
    "b",
    "a",
    "a-b",
    "a/x",
    "a/b/c",
    "Z",
    "ä",
    "日/本",
    "with space",
    "two.dots",
    "\udcff",
    "x0",
    "x_0",
    "a.b/c",
]


@pytest.mark.parametrize("ending", ["", "-label"])
def test_entries_are_those_of_a_plain_listing(tmp_path, small, ending):
    data = make(tmp_path, NAMES, ending)
    found = open_dataset(data, "train").entries
    assert list(found) == plain(tmp_path, ending)
    assert found == plain(tmp_path, ending)
    again = open_dataset(data, "train").entries
    assert again.file
    assert found == again
    assert found[-1] == found[len(NAMES) - 1]
    assert list(found[2:5]) == list(found)[2:5]
    with pytest.raises(IndexError):
        found[len(NAMES)]
    assert pickle.loads(pickle.dumps(found)) == found
    assert pickle.loads(pickle.dumps(found.select([3, 1]))) == [found[3], found[1]]
    assert found != found.select([3, 1])


def test_metadata_of_rows_that_differ(tmp_path, small):
    rows = [
        {"image": "i/a.jpg", "mask": "a.png", "town": "x"},
        {
            "image": str(tmp_path / "b.tar.jpg"),
            "mask": str(tmp_path / "b.png"),
            "name": "own",
            "view": "",
        },
        {"image": "c", "mask": "c.png", "view": "\u2028 \ud800"},
    ]
    for row in rows:
        for key in ("image", "mask"):
            path = tmp_path / row[key]
            path.parent.mkdir(exist_ok=True)
            path.touch()
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = Data(layout="list", root=str(tmp_path), index="{split}.jsonl", classes=("a",))
    for _ in range(2):
        assert [entry.meta for entry in open_dataset(data, "train").entries] == [
            {"name": "i/a", "town": "x"},
            {"name": "own", "view": ""},
            {"name": "c", "view": "\u2028 \ud800"},
        ]
    found = open_dataset(data, "train").entries
    assert [(entry.image, entry.mask) for entry in found] == [
        (os.path.join(tmp_path, row["image"]), os.path.join(tmp_path, row["mask"])) for row in rows
    ]


def test_rows_before_the_first_with_a_split_are_of_none(tmp_path):
    for name in "abc":
        (tmp_path / name).touch()
    rows = [
        {"image": "a", "mask": "a"},
        {"image": "b", "mask": "b", "split": "train"},
        {"image": "c", "mask": "c"},
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = Data(layout="list", root=str(tmp_path), index="all.jsonl", classes=("a",))
    assert [entry.meta["name"] for entry in open_dataset(data, "train").entries] == ["b"]


def changes(root: Path) -> dict:
    images, masks = root / "images" / "train", root / "masks" / "train"

    def both(change):
        return lambda: [change(images, ".jpg"), change(masks, ".png")]

    return {
        "new": both(lambda folder, suffix: (folder / f"new{suffix}").touch()),
        "new below": both(lambda folder, suffix: (folder / "a" / f"new{suffix}").touch()),
        "deleted": both(lambda folder, suffix: (folder / f"b{suffix}").unlink()),
        "renamed": both(
            lambda folder, suffix: (folder / f"b{suffix}").rename(folder / f"q{suffix}")
        ),
        "folder moved": both(lambda folder, suffix: (folder / "a").rename(folder / "moved")),
        "another folder": both(
            lambda folder, suffix: folder.rename(f"{folder}2") and make(root, ["p", "q", "r"])
        ),
    }


@pytest.mark.parametrize("change", list(changes(Path())))
def test_a_changed_folder_is_listed_again(tmp_path, small, counted, change):
    data = make(tmp_path, ["a/x", "a/y", "b", "c"])
    for _ in range(3):
        assert list(open_dataset(data, "train").entries) == plain(tmp_path)
    assert len(counted) == 1
    (tmp_path / "images" / "train" / "b.jpg").write_bytes(b"other content")
    open_dataset(data, "train")
    assert len(counted) == 1
    changes(tmp_path)[change]()
    assert list(open_dataset(data, "train").entries) == plain(tmp_path)
    assert len(counted) == 2
    (tmp_path / "images" / "train" / "c.jpg").unlink(missing_ok=True)
    (tmp_path / "masks" / "train" / "other.png").touch()
    with refused("files-unpaired", images=0):
        open_dataset(data, "train")


def test_other_settings_are_another_listing(tmp_path, small, counted):
    data = make(tmp_path, NAMES)
    (tmp_path / "images" / "val").symlink_to(tmp_path / "images" / "train")
    (tmp_path / "masks" / "val").symlink_to(tmp_path / "masks" / "train")
    limited = data.model_copy(update={"limit": 5})
    for _ in range(2):
        assert len(open_dataset(data, "train")) == len(open_dataset(data, "val")) == len(NAMES)
        places = [place * len(NAMES) // 5 for place in range(5)]
        assert list(open_dataset(limited, "train").entries) == [
            plain(tmp_path)[place] for place in places
        ]
    assert len(counted) == 3


def test_a_folder_that_was_only_just_written_is_not_trusted(tmp_path, small, counted, monkeypatch):
    monkeypatch.setattr(listing, "_CLOCK", 3_600_000_000_000)
    data = make(tmp_path, ["a"])
    for _ in range(2):
        open_dataset(data, "train")
    assert len(counted) == 2


@pytest.mark.parametrize("ahead", [-86_400, 86_400])
def test_a_clock_that_differs_from_the_file_systems_changes_nothing(
    tmp_path, small, counted, monkeypatch, ahead
):
    """A folder is trusted, or not, and a kept listing stays, by the clock that stamps files."""
    clock, clock_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: clock() + 400 * ahead)
    monkeypatch.setattr(time, "time_ns", lambda: clock_ns() + 400 * ahead * 10**9)
    data = make(tmp_path / "first", ["a"])
    for _ in range(2):
        open_dataset(data, "train")
    assert len(counted) == 1
    monkeypatch.setattr(listing, "_CLOCK", 3_600_000_000_000)
    other = make(tmp_path / "other", ["a"])
    for _ in range(2):
        open_dataset(other, "train")
    assert len(counted) == 3
    assert len(open_dataset(data, "train")) == 1
    assert len(counted) == 3


def test_lists_are_read_again_when_they_or_their_folders_change(tmp_path, small, counted):
    make(tmp_path, ["a", "b"])
    text = "image,mask\nimages/train/a.jpg,masks/train/a.png\n"
    (tmp_path / "train.csv").write_text(text)
    data = Data(layout="list", root=str(tmp_path), classes=("a",))
    assert len(open_dataset(data, "train")) == len(open_dataset(data, "train")) == 1
    assert len(counted) == 1
    (tmp_path / "train.csv").write_text(text + "images/train/b.jpg,masks/train/b.png\n")
    assert len(open_dataset(data, "train")) == len(open_dataset(data, "train")) == 2
    assert len(counted) == 2
    (tmp_path / "masks" / "train" / "b.png").unlink()
    with refused("list-file-missing", count=1):
        open_dataset(data, "train")


@pytest.mark.parametrize("many", [1, 1000])
def test_files_that_a_list_names_in_vain(tmp_path, monkeypatch, many):
    monkeypatch.setattr(lists, "_MANY", many)
    make(tmp_path, [f"{part}/{name}" for part in "pq" for name in "abc"])
    rows = [
        f"images/train/{part}/{name}.jpg,masks/train/{part}/{name}.png"
        for name in "abcd"
        for part in "pqr"
    ]
    (tmp_path / "images" / "train" / "p" / "d.jpg").mkdir()  # no file
    (tmp_path / "train.csv").write_text("\n".join(["image,mask", *rows]))
    data = Data(layout="list", root=str(tmp_path), classes=("a",))
    with pytest.raises(DataError) as caught:
        open_dataset(data, "train")
    assert (caught.value.code, caught.value.values["count"]) == ("list-file-missing", 12)
    shown = str(caught.value).split("missing: ")[1].split(" and 7 more")[0].split(", ")
    expected = [*(f"r/{name}" for name in "abc"), "p/d", "q/d"]
    assert shown == [f"{tmp_path}/images/train/{name}.jpg" for name in expected]


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"entries": 5, "looked_at": {}}'])
@pytest.mark.parametrize("which", ["listing-*.json", f"*{kept.ENDING}"])
def test_a_kept_listing_of_no_use_is_made_again_and_said_once(
    tmp_path, small, counted, which, content
):
    data = make(tmp_path, ["a", "b"])
    open_dataset(data, "train")
    (place,) = Path(os.environ["SEGTRAIN_CACHE"]).glob(which)
    place.write_bytes(content)
    again = open_dataset(data, "train")
    assert len(again.notes) == 1
    assert "cannot be used" in again.notes[0]
    assert list(again.entries) == plain(tmp_path)
    last = open_dataset(data, "train")
    assert last.notes == ()
    assert list(last.entries) == plain(tmp_path)
    assert len(counted) == 2


def test_damaged_entries_never_pass_for_whole(tmp_path):
    images = column_of((f"k{number:04d}.jpg" for number in range(300)), "/x/")
    good = kept.save(Entries(images, images, {}), tmp_path)
    content, expected = Path(good.file).read_bytes(), list(good)
    chance = random.Random(0)
    for _ in range(300):
        at = chance.randrange(len(content))
        bad = content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
        Path(good.file).write_bytes(chance.choice([bad, content[:at], content + b"\0"]))
        try:
            assert len(kept.load(good.file)) == 300  # no other error
        except ValueError:
            pass
        try:
            assert kept.load(good.file, whole=True) == expected  # a byte between the blocks
        except ValueError:
            pass
    at = content.rindex(bytes(images.blob))
    Path(good.file).write_bytes(content[:at] + b"?" + content[at + 1 :])
    assert kept.save(Entries(images, images, {}), tmp_path) == expected


def test_without_a_cache_the_index_travels_whole(tmp_path, small, monkeypatch):
    data = make(tmp_path, ["a", "b"])
    (tmp_path / "file").touch()
    monkeypatch.setenv("SEGTRAIN_CACHE", str(tmp_path / "file" / "cache"))
    dataset = open_dataset(data, "train")
    assert "SEGTRAIN_CACHE" in dataset.notes[0]
    assert dataset.entries.file == ""
    assert list(pickle.loads(pickle.dumps(dataset)).entries) == plain(tmp_path)


def test_a_data_set_pickles_to_little(tmp_path, small):
    dataset = open_dataset(make(tmp_path, [f"{number:04d}" for number in range(300)]), "train")
    assert len(pickle.dumps(dataset)) < 1000
    assert len(pickle.dumps(open_dataset(Data(scenes=5000), "train"))) < 3000
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    content = pickle.dumps(dataset)
    os.unlink(dataset.entries.file)
    with refused("entries-unreadable"):
        pickle.loads(content)


def test_processes_that_start_together_list_once(tmp_path, small, monkeypatch):
    data, calls = make(tmp_path, ["a", "b"]), []
    layout = LAYOUTS["folders"]

    def slow(*given):
        calls.append(1)
        time.sleep(0.3)
        return layout.lister(*given)

    monkeypatch.setitem(LAYOUTS, "folders", replace(layout, lister=slow))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(open_dataset(data, "train"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(calls) == 1
    assert not list(Path(os.environ["SEGTRAIN_CACHE"]).glob("*.lock"))


def test_what_nobody_uses_is_removed(tmp_path, small):
    cache = Path(os.environ["SEGTRAIN_CACHE"])
    data = make(tmp_path, ["a", "b"])
    dataset = open_dataset(data, "train")
    old = [*cache.iterdir(), cache / "audit-1.json"]
    old[-1].touch()
    for path in old:
        os.utime(path, (0, 0))
    assert len(open_dataset(data, "train")) == 2  # a use
    open_dataset(make(tmp_path / "other", ["a"]), "train")
    assert all(path.exists() for path in old)
    for path in old:
        os.utime(path, (0, 0))
    open_dataset(make(tmp_path / "third", ["a"]), "train")
    assert [path.name for path in old if path.exists()] == ["audit-1.json"]
    assert list(dataset.entries) == plain(tmp_path)  # mapped: who has it keeps it


@pytest.mark.parametrize("slow", [1e-4, 0.0])
def test_fingerprint_and_stamps_are_the_plain_ones(tmp_path, monkeypatch, slow):
    monkeypatch.setattr(kept, "_SLOW", slow)
    root = tmp_path / "set"
    make(root, [f"{number:04d}" for number in range(600)])
    make(tmp_path / "beside", ["x"])
    for name in ("i.jpg", "i.png"):
        (root / name).write_bytes(b"123")
    rows = [f"images/train/{n:04d}.jpg,./masks//train/{n:04d}.png" for n in range(600)]
    rows += [
        "../beside/images/train/x.jpg,../set/../beside/masks/train/x.png",
        "i.jpg,i.png",
        "./i.png,i.png",
    ]
    (root / "train.csv").write_text("\n".join(["image,mask", *rows]))
    monkeypatch.chdir(tmp_path)
    for given in ("set", str(root), "./set/"):
        dataset = open_dataset(Data(layout="list", root=given, classes=("a",)), "train")
        digest = hashlib.sha256(dataset.labels.identity())
        for entry in dataset.entries:
            for path in (entry.image, entry.mask):
                digest.update(
                    f"{os.path.relpath(path, dataset.root)}\0{os.stat(path).st_size}\n".encode()
                )
        assert dataset.fingerprint() == digest.hexdigest()[:12]
        expected = [
            [(s := os.stat(p)).st_size, s.st_mtime_ns + s.st_ctime_ns]
            for e in dataset.entries
            for p in (e.image, e.mask)
        ]
        assert np.array_equal(dataset.stamps().reshape(-1, 2), expected)
    (root / "images" / "train" / "0500.jpg").unlink()
    with pytest.raises(DataError) as error:
        dataset.fingerprint()
    assert error.value.code == "file-unreadable"
    assert error.value.values["file"].endswith("0500.jpg")


def test_entries_are_mapped_and_not_copied(tmp_path):
    """All processes of a host share the pages of the file."""
    names = [f"part{number // 10000:03d}/frame_{number:012d}" for number in range(100_000)]
    images = column_of((f"{name}.jpg" for name in names), "/data/i/train/")
    file = kept.save(Entries(images, images, {"name": column_of(names)}), tmp_path).file
    tracemalloc.start()
    assert kept.load(file)[99_999].image == "/data/i/train/part009/frame_000000099999.jpg"
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < os.path.getsize(file) / 4
