"""Tests of the detection of layouts, of patterns for names, and of the table of layouts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from data_files import ids, picture, run_check, sample_names, tree
from PIL import Image

from segtrain.config import Data, load_config
from segtrain.data.datasets import open_dataset
from segtrain.data.index import listing
from segtrain.data.index.detect import detect
from segtrain.data.index.detect_pairs import pair_of_folders
from segtrain.data.index.names import propose
from segtrain.data.pixels.decode import decode_mask
from segtrain.data.storage import LOCAL
from segtrain.errors import ConfigError

CHECKED = ["data.classes=[a, b]", "data.label_map={0: 0, 1: 1}", "data.overlap=accept"]


def warnings(root: Path, *settings: str) -> list[str]:
    """Of all splits of ``data check`` about images that are left out."""
    checked = run_check(root, *CHECKED, *settings)
    texts = [finding.message for report in checked.reports for finding in report.findings]
    return [text for text in dict.fromkeys(texts) if " not read: " in text or " left out" in text]


# pairs of a data set -> its folders that are not read, each with the number of its images
UNREAD = {
    "no masks": (
        ["images/train/#.png masks/train/#.png", "images/test/deep/t#.png masks/other/t#.png"],
        ["images/test/deep/ (2", "masks/other/ (2"],
    ),
    "camvid": (["train/#.png trainannot/#.png", "val/v#.png old/v#.png"], ["old/ (2", "val/ (2"]),
    "one folder": (["train/#.jpg train/#_mask.png", "new/n#.jpg new/n#_mask.png"], ["new/ (4"]),
    "towns": (["images/train/ulm/#.png masks/train/ulm/#.png"], []),
    "drawn for people": (
        ["images/train/#.png masks/train/#.png", "overlay/#.png preview/#.png"],
        [],
    ),
}


@pytest.mark.parametrize("case", UNREAD)
def test_folders_that_are_left_out_are_named(tmp_path, case):
    pairs, unread = UNREAD[case]
    named = [
        part.removesuffix(" image files)")
        for text in warnings(tree(tmp_path, *pairs))
        for part in text.partition(" not read: ")[2].partition(". ")[0].split(", ")
    ]
    assert named == unread


# images and masks that lie higher than those of the splits -> images that are left out, by folder
FLAT = {
    "both": (["images/f#.png masks/f#.png"], {"images": 2, "masks": 2}),
    "images": (["images/f#.png x_overlay/f#.png"], {"images": 2}),
    "masks": (["x_overlay/f#.png masks/f#.png"], {"masks": 2}),
    "root": (["f#.png images/train/town/t#.png", "f#.png masks/train/town/t#.png"], {"": 2}),
}


@pytest.mark.parametrize("case", FLAT)
@pytest.mark.parametrize("base", ["", "set/"])
def test_images_above_the_folders_of_splits_are_left_out_aloud(tmp_path, case, base, monkeypatch):
    pairs, left = FLAT[case]
    splits = [f"images/{s}/{s}#.png masks/{s}/{s}#.png" for s in ("train", "val/town")]
    root = tree(tmp_path / "data" / base, *pairs, *splits)
    (text,) = warnings(tmp_path / "data")
    for folder, count in left.items():
        assert f" {count} in {(root / folder).as_posix()}" in text
    assert text.startswith(f"{sum(left.values())} image files left out")
    # Training reads the settings of a file, and detects nothing.
    data = Data(layout="folders", root=str(root), classes=("a", "b"))
    assert open_dataset(data, "train").notes == (f"warning: {text}",)
    monkeypatch.setattr(listing, "_FEW", 1)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, (1, 1))
    assert open_dataset(data, "val").notes == (f"warning: {text}",)
    picture(root / "images/later.png")
    assert open_dataset(data, "val").notes != (f"warning: {text}",)  # the list is not outdated


@pytest.mark.parametrize(
    ("pair", "split"),
    [
        ("images/#.png masks/#.png", "val"),
        ("set/images/#.png set/masks/#_gt.png", "train"),
        ("images/x#_rgb.png masks/x#_lab.png", "dev"),
        ("#.jpg #_mask.png", "val"),
    ],
)
def test_two_readings_of_mixed_depth_are_proposed_and_either_one_works(tmp_path, pair, split):
    nested = " ".join(
        str(Path(part).parent / split / f"n{Path(part).name}") for part in pair.split()
    )
    root = tree(tmp_path, pair, nested)
    with refused("folders-ambiguous", folder=str(root)) as caught:
        run_check(root, *CHECKED)
    counts = []
    for proposal in str(caught.value).splitlines()[1:]:
        checked = run_check(root, *shlex.split(proposal)[4:])
        counts.append([(report.split, report.images) for report in checked.reports])
        assert not any(report.failed for report in checked.reports)
    assert counts == [[("all", 4)], [(split, 2)]]


def test_masks_that_are_no_pictures_are_named(tmp_path):
    picture(tmp_path / "images" / "train" / "a.png")
    (tmp_path / "labels" / "train").mkdir(parents=True)
    # boxes, as YOLO has them
    (tmp_path / "labels" / "train" / "a.txt").write_text("0 0.1 0.2 0.3 0.4")
    assert detect(str(tmp_path))[0].layout == "yolo"
    data = Data(layout="folders", root=str(tmp_path), masks="labels/{split}", classes=("a", "b"))
    with refused(
        "files-unpaired", "labels/train/ holds 1 .txt file, which is not read", images=1, masks=0
    ):
        open_dataset(data, "train")


def voc(
    root: Path,
    names: tuple[str, ...] = ("a", "b"),
    values: tuple[int, ...] = (0, 1, 2, 255),
    ending: str = "jpg",
) -> Path:
    for name in names:
        picture(root / "JPEGImages" / f"{name}.{ending}")
        ids(root / "SegmentationClass" / f"{name}.png", values)
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "train.txt").write_text("\n".join(names))
    return root


@pytest.mark.parametrize("place", ["VOC2007", "VOCdevkit/VOC2010", "."])
def test_voc_of_any_year(tmp_path, place):
    voc(tmp_path / place)
    data, splits = detect(str(tmp_path))
    assert (data.layout, splits) == ("voc", ("train",))
    dataset = open_dataset(data, "train")
    assert sample_names(dataset) == ["a", "b"]
    assert dataset.labels.names[:2] == ("background", "aeroplane")


def test_the_newest_year_is_taken(tmp_path):
    for year, name in (("VOC2007", "old"), ("VOC2012", "new")):
        voc(tmp_path / "VOCdevkit" / year, (name,))
    assert open_dataset(detect(str(tmp_path))[0], "train").entries[0].meta["name"] == "new"


def test_voc_folders_with_own_classes(tmp_path):
    voc(tmp_path)
    labels = open_dataset(
        Data(layout="voc", root=str(tmp_path), classes=("rock", "pore", "clay")), "train"
    ).labels
    assert labels.names == ("rock", "pore", "clay")
    assert labels.raw_to_train == {0: 0, 1: 1, 2: 2, 255: 255}
    painted = np.zeros((12, 16, 3), np.uint8)
    painted[:4], painted[4:6], painted[6:8] = (
        (128, 0, 0),
        (0, 128, 0),
        (224, 224, 192),
    )  # VOC's colors 1, 2, and its borders
    Image.fromarray(painted).save(tmp_path / "SegmentationClass" / "a.png")
    dataset = open_dataset(
        Data(layout="voc", root=str(tmp_path), classes=("rock", "pore", "clay")), "train"
    )
    assert [int(dataset.read_mask(0)[row, 0]) for row in (0, 4, 6, 8)] == [1, 2, 255, 0]


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("classes.txt", "rock\npore\nclay\n", ("rock", "pore", "clay")),
        ("class_names.txt", "_background_\npore\nclay\n", ("_background_", "pore", "clay")),
        (
            "labelmap.txt",
            "# label:color_rgb:parts:actions\nrock:0,0,0::\npore:9,9,9::\nclay:1,2,3::\n",
            ("rock", "pore", "clay"),
        ),
    ],
)
def test_a_file_of_classes_beside_voc_folders(tmp_path, file, text, names):
    voc(tmp_path, ending="png")
    (tmp_path / file).write_text(text)
    dataset = open_dataset(detect(str(tmp_path))[0], "train")
    assert dataset.labels.names == names
    assert sorted(np.unique(dataset.read(0)[1])) == [0, 1, 2, 255]
    if file == "labelmap.txt":
        assert dataset.labels.colors == {0: 0, 0x090909: 1, 0x010203: 2}


def test_patterns_pair_and_say_what_stands_alone(tmp_path):
    root = tree(tmp_path, "x#.jpg x#_mask.png", "town/x#.jpg town/x#_mask.png")
    data = Data(
        layout="folders",
        root=str(root),
        images=".",
        masks=".",
        pair=("{name}.jpg", "{name}_mask.png"),
        classes=("a", "b"),
    )
    names = ["town/x1", "town/x2", "x1", "x2"]
    dataset = open_dataset(data, "all")
    assert sample_names(dataset) == names
    assert [Path(entry.mask).relative_to(root).as_posix() for entry in dataset.entries] == [
        f"{name}_mask.png" for name in names
    ]
    loose = data.model_copy(update={"pair": ("{name}", "{name}_mask")})  # a mask fits both
    assert [entry.image for entry in open_dataset(loose, "all").entries] == [
        entry.image for entry in dataset.entries
    ]
    (root / "x2_mask.png").unlink()
    with refused("files-unpaired", images=1, masks=0):
        open_dataset(data, "all")
    rest = open_dataset(data.model_copy(update={"absent_mask": "leave-out"}), "all")
    assert sample_names(rest) == names[:-1]
    assert "1 image without a mask left out" in rest.notes[0]
    with refused("pattern-matches-nothing", pattern="{name}_gt.png"):
        open_dataset(data.model_copy(update={"pair": ("{name}.jpg", "{name}_gt.png")}), "all")
    picture(root / "x1.png")
    with refused("name-repeated"):
        open_dataset(loose, "all")
    with refused("masks-among-images", folder=str(root)) as caught:
        open_dataset(data.model_copy(update={"pair": None}), "all")
    assert "{name}.jpg, " in str(caught.value).replace("'", "")
    for wrong in (
        "[a, '{name}']",
        "['{name}', '{name}']",
        "['x/{name}', '{name}_m']",
        "['*/{name}/x', '{name}']",
    ):
        with pytest.raises(ConfigError, match=r"data\.pair"):
            load_config(None, ["data.layout=folders", "data.root=x", f"data.pair={wrong}"])


@pytest.mark.parametrize(
    ("images", "masks", "wanted"),
    [
        (["a10_x", "a20_x"], ["a10_m", "a20_m"], ("{name}_x", "{name}_m")),
        (["t/a_leftImg8bit"], ["t/a_gtFine"], ("{name}_leftImg8bit", "{name}_gtFine")),
        (["a", "b", "stray"], ["a-seg", "b-seg"], ("{name}", "{name}-seg")),
        (["a", "b"], ["c", "d"], None),
    ],
)
def test_patterns_are_proposed_from_the_names(images, masks, wanted):
    found = propose(images, masks)
    assert (None if found is None else found.patterns) == wanted


@pytest.mark.parametrize(
    ("name", "mark"),
    [("train.txt", " "), ("train.csv", ","), ("train.tsv", "\t"), ("train.txt", ", ")],
)
def test_lists_without_a_header(tmp_path, name, mark):
    root = tree(tmp_path, "i/#.jpg m/#.png")
    (root / name).write_text("".join(f"i/{n}.jpg{mark}m/{n}.png\n" for n in (1, 2)))
    if name == "train.txt":
        (root / "m").rename(root / "odd")  # no pair of folders that is known: the list says it
        (root / name).write_text((root / name).read_text().replace("m/", "odd/"))
        (root / "i").rename(root / "j")
        (root / name).write_text((root / name).read_text().replace("i/", "j/"))
    data = Data(
        layout="list", root=str(root), index="{split}" + Path(name).suffix, classes=("a", "b")
    )
    assert len(open_dataset(data, "train")) == 2
    assert detect(str(root))[0].index == data.index
    with (root / name).open("a") as file:
        file.write("and a comment\n")
    with refused("list-line-invalid", line=3):
        open_dataset(data, "train")


def test_masks_without_class_names_are_told_with_their_values(tmp_path):
    root = tree(tmp_path, "image/#.png label/#.png")
    ids(root / "label/1.png", (0, 255))
    data = run_check(root).data
    assert (data.classes, data.label_map) == (("class_0", "class_1"), {})
    with refused("class-name-missing"):
        run_check(root, "data.classes=['?0', '?1']")
    ids(root / "label/1.png", (3, 4))
    checked = run_check(root)
    assert (checked.unnamed, checked.data.label_map) == (True, {0: 0, 1: 1, 3: 2, 4: 3})
    for mask in (root / "label").iterdir():
        Image.new("RGB", (16, 12), (9, 0, 255)).save(mask)
    checked = run_check(root)
    assert (checked.unnamed, checked.data.classes) == (True, {"?0": (9, 0, 255)})
    for mask in (root / "label").iterdir():
        picture(mask)
    with refused("classes-missing") as caught:
        run_check(root)
    assert "the masks have 192 colors: " in str(caught.value)
    for mask in (root / "label").iterdir():
        Image.new("L", (16, 12)).save(mask, "jpeg")
    with refused("classes-missing", "2 masks: ", "JPEG changes the labels"):
        run_check(root)


# Names of folders in public data sets, with a split of each name that they use.
NAMES = (
    ("images", "masks", "train"), ("image", "mask", "training"), ("imgs", "labels", "val"),
    ("img", "label", "valid"), ("JPEGImages", "annotations", "validation"), ("frame", "annotation", "dev"),
    ("photo", "annots", "test"), ("inputs", "annot", "testing"), ("input", "SegmentationClassPNG", "trainval"),
    ("rgb", "SegmentationClass", "train"), ("PNGImages", "segmentations", "val"), ("images", "segmentation", "test"),
    ("JPEGImage", "groundtruths", "train"), ("imgs", "gt", "val"), ("frames", "gts", "train"),
    ("inputs", "targets", "val"), ("input", "target", "test"),
)  # fmt: skip


@pytest.mark.parametrize(("images", "masks", "split"), NAMES)
def test_folders_are_recognized_by_their_names(images, masks, split, tmp_path):
    for folder in (images, masks):
        (tmp_path / folder / split).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / folder / split / "a.png")
    settings, splits = pair_of_folders(str(tmp_path), LOCAL)
    assert settings == {"images": f"{images}/{{split}}", "masks": f"{masks}/{{split}}"}
    assert splits == [split]


@pytest.mark.parametrize(
    ("images", "masks", "pair"),
    [
        ("REAL/#.png", "TRUTH/#.png", None),
        ("./#.png", "masks/#.png", None),
        ("scan/a_#.png", "scan/seen/a_#_t.png", ("{name}", "{name}_t")),
        ("base/#.jpg", "base/#.png", ("{name}.jpg", "{name}.png")),
        ("./#.bmp", "./#_anno.bmp", ("{name}.bmp", "{name}_anno.bmp")),
    ],
)
def test_folders_are_recognized_by_their_files(images, masks, pair, tmp_path):
    root = tree(tmp_path, f"{images} {masks}")
    (root / "grades.csv").write_text("name,grade\n1,benign\n")
    folders = [text.rpartition("/")[0] for text in (images, masks)]
    checked = run_check(root, "data.classes=[a, b]")
    assert [checked.data.images, checked.data.masks, checked.data.pair] == [*folders, pair]
    assert sum(report.images for report in checked.reports) == 2


def test_folders_that_are_recognized_by_their_files_may_be_ambiguous(tmp_path):
    root = tree(tmp_path, "REAL/#.png TRUTH/#.png", "INFRARED/#.png TRUTH/#.png")
    chosen = ["data.images=REAL", "data.masks=TRUTH"]
    (root / "all.csv").write_text("image_path,mask_path\na,b\n")  # a list that has pairs
    with refused("list-column-missing", near="image_path"):
        run_check(root)
    (root / "all.csv").unlink()
    with refused("folders-ambiguous", " ".join(chosen)):
        run_check(root)
    assert not run_check(root, "data.classes=[a, b]", *chosen).failed


def test_a_mask_of_many_bands_is_named(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((5, 8, 9), np.uint8), planarconfig="separate")
    with refused("mask-bands", found=5):
        decode_mask(str(tmp_path / "a.tif"))
