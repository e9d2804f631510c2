"""Tests that the layout of a bucket is that of its folder, found with few requests, and that large
ones are listed whole.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from annotated_sets import cvat, supervisely, yolo
from cloud.bucket import BucketServer
from conftest import refused
from data_files import blocks, files, quiet, sample_names, smooth

from segtrain.bucket.client import client_of
from segtrain.bucket.listing import _divided, page, side_by_side
from segtrain.config import Data
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect
from segtrain.data.labels.classes import label_space

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'segtrain[buckets]'")

CLASSES = ["data.classes=[a, b, c]"]
SHAPE = "1 0 0 0.5 0 0.5 0.5"


def write(
    root: Path, images: str, masks: str, splits: tuple[str, ...] = ("train", "val"), count: int = 3
) -> None:
    """Pairs ``NAME`` of images and masks in the folders of the patterns."""
    for number, split in enumerate(splits):
        for index in range(count):
            name = f"{split}_{index}"
            for pattern, picture in (
                (images, smooth(index + 50 * number)),
                (masks, blocks(index, (0, 1, 2))),
            ):
                path = root / pattern.format(split=split, name=name, n=index)
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imencode(path.suffix, picture[..., ::-1] if picture.ndim == 3 else picture)[
                    1
                ].tofile(path)


def voc(root: Path) -> None:
    write(
        root,
        "VOCdevkit/VOC2012/JPEGImages/{name}.jpg",
        "VOCdevkit/VOC2012/SegmentationClass/{name}.png",
    )
    for split in ("train", "val"):
        path = root / f"VOCdevkit/VOC2012/ImageSets/Segmentation/{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{split}_{index}\n" for index in range(3)))


def lists(root: Path) -> None:
    write(root, "x/{name}.jpg", "x/{name}_m.png")
    for split in ("train", "val"):
        rows = [f"x/{split}_{index}.jpg,x/{split}_{index}_m.png" for index in range(3)]
        (root / f"{split}.csv").write_text("\n".join(["image,mask", *rows]))


def shards(root: Path) -> None:
    for split in ("train", "val"):
        source = files(root.parent / f"source-{split}", 3, split=split)
        quiet(source, root)
        (root / f"{split}.index").unlink() if root.name == "foreign" else None


FORMS: dict[str, Any] = {
    "camvid": lambda root: write(root, "{split}/{name}.png", "{split}annot/{name}.png"),
    "cityscapes": lambda root: write(
        root,
        "leftImg8bit/{split}/city{n}/{name}_leftImg8bit.png",
        "gtFine/{split}/city{n}/{name}_gtFine_labelIds.png",
    ),
    "ade20k": lambda root: [
        write(root, f"images/{folder}/{{name}}.jpg", f"annotations/{folder}/{{name}}.png", (split,))
        for split, folder in (("train", "training"), ("val", "validation"))
    ],
    "voc": voc,
    "list": lists,
    "shards": shards,
    "foreign": shards,
    "folders": lambda root: write(root, "images/{split}/{name}.jpg", "masks/{split}/{name}.png"),
    "together": lambda root: write(root, "{split}/{name}.jpg", "{split}/{name}_mask.png"),
    "cvat": lambda root: cvat(root, '><polygon label="b" points="0,0;9,0;9,9"/>'),
    "yolo": lambda root: yolo(root, {"train/a": SHAPE, "val/b": SHAPE}, "names: [a, b, c]"),
    "supervisely": lambda root: supervisely(
        root, "ds", "rectangle", classTitle="b", points={"exterior": [[6, 5], [2, 3]]}
    ),
    "pool": lambda root: write(root, "data/imgs/{name}.jpg", "data/labels/{name}.png"),
}


def test_paths_in_a_list_are_relative_or_absolute(server):
    root = server.folder / "bkt/set"
    write(root, "x/{name}.jpg", "x/{name}_m.png", ("train",))
    data = Data(layout="list", root="s3://bkt/set", index="{split}.csv", classes=("a", "b", "c"))
    read = []
    for folder in ("x", "./x", "../set/x", "s3://bkt/set/x"):
        rows = [f"{folder}/train_{index}.jpg,{folder}/train_{index}_m.png" for index in range(3)]
        (root / "train.csv").write_text("\n".join(["image,mask", *rows]))
        dataset = open_dataset(data, "train")
        read.append([dataset.read(index) for index in range(3)])
    for images in read[1:]:
        assert all(
            (a == b).all() for one, other in zip(images, read[0]) for a, b in zip(one, other)
        )
    (root / "train.csv").write_text("image,mask\ns3://other/1.jpg,s3://other/1.png")
    with refused("list-file-missing"):  # one bucket has all files
        open_dataset(data, "train")


@pytest.mark.parametrize(
    ("form", "place"), [*((form, "set") for form in FORMS), ("voc", ""), ("foreign", "")]
)
def test_the_layout_of_a_bucket_is_that_of_its_folder(server, form, place):
    root = server.folder / ("bkt/set" if place else form)
    root.mkdir(exist_ok=True)
    FORMS[form](root / "foreign" if form == "foreign" and place else root)
    root = root / "foreign" if form == "foreign" and place else root
    url = f"s3://{root.relative_to(server.folder).as_posix()}"
    ours, theirs = detect(str(root)), detect(url)
    assert theirs[1] == ours[1]
    assert theirs[0].model_dump(exclude={"root"}) == ours[0].model_dump(exclude={"root"})
    assert server.requests["list"] + server.requests["GET"] <= 6
    more = (
        {}
        if theirs[0].layout in ("camvid", "cityscapes", "ade20k", "voc")
        else {"classes": ("a", "b", "c")}
    )
    if form in ("shards", "foreign"):
        more = {"classes": ("a", "b", "c", *map(str, range(9)))} if form == "foreign" else {}
    for split in ours[1]:
        here, there = (
            open_dataset(data.model_copy(update=more), split) for data in (ours[0], theirs[0])
        )
        assert there.fingerprint() == here.fingerprint()
        assert sample_names(there) == sample_names(here)
        image, mask = there.read(0)
        assert np.array_equal(image, here.read(0)[0])
        assert np.array_equal(mask, here.read(0)[1])


def test_a_large_folder_costs_few_requests_to_detect(server, monkeypatch):
    # As large as a folder of ten million to a page of the clouds.
    monkeypatch.setattr("segtrain.data.index.walk.PAGE", 20)
    monkeypatch.setattr("segtrain.bucket.listing.PAGE", 20)
    monkeypatch.setattr("segtrain.data.index.walk.NAMES", 20)
    root, server.page = server.folder / "bkt/set", 20
    write(root, "images/{split}/{name}.jpg", "masks/{split}/{name}.png", count=300)
    for number in range(200):
        (root / f"images/val/town{number}").mkdir()
        shutil.copy(root / "images/val/val_1.jpg", root / f"images/val/town{number}/a.jpg")
    data, splits = detect("s3://bkt/set")
    assert (data.layout, data.images, data.masks, data.pair) == (
        "folders",
        "images/{split}",
        "masks/{split}",
        None,
    )
    assert splits == ("train", "val")
    assert server.requests["list"] <= 16


def test_what_no_layout_fits_is_refused_with_what_there_is(server):
    write(server.folder / "bkt/set", "photos/{name}.jpg", "x/{name}.png", ("train",))
    with refused("layout-unknown", found=["photos/", "x/"]):
        detect("s3://bkt/set")
    FORMS["camvid"](server.folder / "bkt/deep/inner")
    with refused("layout-unknown", near="s3://bkt/deep/inner"):
        detect("s3://bkt/deep")
    with refused("folder-missing", near="set"):
        detect("s3://bkt/sets")
    with refused("folder-missing", near=None):
        open_dataset(Data(layout="voc", root="s3://bkt/set"), "train")
    with refused("bucket-missing"):
        detect("s3://no-such-bucket")


def names(server: BucketServer, count: int, kind: str) -> set[str]:
    for number in range(count):
        key = {"flat": f"set/im_{number:07d}.png", "folders": f"set/{number % 37}/ü{number}.png"}[
            kind
        ]
        path = server.folder / "bkt" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return {
        p.relative_to(server.folder / "bkt").as_posix()
        for p in (server.folder / "bkt").rglob("*.png")
    }


@pytest.mark.parametrize("kind", ["flat", "folders"])
def test_a_large_listing_is_whole_and_side_by_side(server, monkeypatch, kind):
    monkeypatch.setattr("segtrain.bucket.listing.PAGE", 20)
    expected, server.page, server.fault = names(server, 1500, kind), 20, 0.05
    server.gather(5, "list-type", skip=2)  # the first two pages are needed to know how to go on
    client = client_of("s3://bkt")
    found = [item["path"] for page in side_by_side(client, "set", 60) for item in page]
    assert sorted(found) == sorted(expected)
    assert server.gathered
    assert server.requests["list"] < 2 * 1500 / 20 + 40
    if kind == "flat":
        # A store that ignores where a listing is to begin is listed page after page.
        first = next(side_by_side(client, "set", 60))
        monkeypatch.setattr(
            "segtrain.bucket.listing.page", lambda client, prefix, after, outage_s: first
        )
        assert len([item for page in side_by_side(client, "set", 60) for item in page]) == 1500


def test_a_listing_whose_later_pages_are_in_disorder_is_refused(server, monkeypatch):
    monkeypatch.setattr("segtrain.bucket.listing.PAGE", 20)
    names(server, 300, "flat")
    client, asked = client_of("s3://bkt"), []

    def disordered(client: Any, prefix: str, after: str, outage_s: float) -> list[Any]:
        asked.append(after)
        found = page(client, prefix, after, outage_s)
        return found[::-1] if len(asked) > 2 else found

    monkeypatch.setattr("segtrain.bucket.listing.page", disordered)
    with refused("listing-disordered", folder="set"):
        list(side_by_side(client, "set", 60))


@pytest.mark.parametrize(
    ("keys", "last", "cuts"),
    [
        (["f_0000", "f_0099"], "", "f_1 f_2 f_3 f_4 f_5 f_6 f_7 f_8 f_9"),
        (["f_72370", "f_72389"], "f_75", "f_73 f_74"),
        (["b/x", "e/z"], "", "f"),
        (["x-é", "x-ü"], "", ""),
        # The marker of a folder, and a name that another one begins with.
        (["d/images", "d/images/000000.jpg", "d/images/000998.jpg"], "", ""),
        (["x/00", "x/000"], "", "x/1 x/2 x/3 x/4 x/5 x/6 x/7 x/8 x/9"),
    ],
)
def test_where_a_range_of_keys_is_divided(keys, last, cuts):
    assert _divided(keys, last) == list(itertools.pairwise([keys[-1], *cuts.split(), last]))


def test_a_yaml_file_of_class_names_is_read_as_yaml(server):
    (server.folder / "bkt/set").mkdir()
    (server.folder / "bkt/set/classes.yaml").write_text("- road\n- sky\n")
    data = Data(layout="folders", root="s3://bkt/set", classes="classes.yaml")
    assert label_space(data).names == ("road", "sky")


def test_an_image_that_a_list_in_a_bucket_names_twice_keeps_its_url(server):
    root = server.folder / "bkt/set"
    root.mkdir()
    lists(root)
    with (root / "train.csv").open("a") as file:
        file.write("\nx/../x/train_0.jpg,x/train_0_m.png\n")
    with refused("list-file-repeated", found=["s3://bkt/set/x/train_0.jpg"]):
        open_dataset(
            Data(layout="list", root="s3://bkt/set", classes=("a", "b", "c"), index="{split}.csv"),
            "train",
        )
    (root / "train.csv").write_bytes(b"image,mask\nx/\xff.jpg,x/a_m.png\n")
    with refused("list-unreadable", file="s3://bkt/set/train.csv"):
        open_dataset(
            Data(layout="list", root="s3://bkt/set", classes=("a", "b", "c"), index="{split}.csv"),
            "train",
        )
