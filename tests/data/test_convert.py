"""Tests of `segtrain data convert`: labels of JPEG masks, ambiguous pixels, no partial copies."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from annotated_sets import coco
from conftest import refused
from data_files import picture, sample_names
from PIL import Image

from segtrain.cli import main
from segtrain.config import load_config, parse_overrides
from segtrain.data.convert import convert_folder, ids_of
from segtrain.data.datasets import open_dataset
from segtrain.data.index.detect import detect
from segtrain.data.labels.space import LabelSpace, plain_space
from segtrain.data.merge import merged
from segtrain.errors import EXIT_ERROR

SIZE = (48, 64)
RULES = ("majority", "union", "intersection", "agreement")


def drawn(seed: int, classes: int = 2) -> np.ndarray:
    """Blocks of classes, uint8 (48, 64)."""
    return np.kron(
        np.random.default_rng(seed).integers(0, classes, (6, 8)), np.ones((8, 8), int)
    ).astype(np.uint8)


def jpeg(path: Path, values: np.ndarray, quality: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, quality=quality, subsampling=0)


def gray_set(root: Path, splits: tuple[str, ...] = ("",)) -> Path:
    for split in splits:
        for seed in range(3):
            picture(root / "image" / split / f"p{seed}_fram.jpg", SIZE, seed)
            jpeg(root / "label" / split / f"p{seed}_mask.jpg", drawn(seed) * np.uint8(255))
    return root


def test_the_command_that_check_prints_makes_a_set_that_passes(tmp_path, capsys):
    root = gray_set(tmp_path / "set")
    before = {path: path.read_bytes() for path in root.rglob("*.jpg")}
    assert main(["data", "check", str(root), "data.classes=[background, polyp]"]) == EXIT_ERROR
    printed = capsys.readouterr().out
    assert "3 faults in 3 of 3 images" in printed
    command = next(
        line for line in printed.splitlines() if line.startswith("  segtrain data convert ")
    )
    assert "data.label_map={0: 0, 255: 1}" in command
    assert main(shlex.split(command)[1:]) == 0
    told = capsys.readouterr().out
    assert "3 masks written and read again, 0 of 9,216 pixels (0.00%) were about halfway" in told
    words = shlex.split(told.rpartition("segtrain ")[2])
    assert words == ["data", "check", f"{root}-png"]
    dataset = open_dataset(detect(words[2])[0], "all")
    assert dataset.labels.names == ("background", "polyp")
    for seed, entry in enumerate(dataset.entries):
        assert np.array_equal(dataset.read_mask(seed), drawn(seed))
        assert Path(entry.image).read_bytes() == before[root / "image" / f"p{seed}_fram.jpg"]
    assert {path: path.read_bytes() for path in root.rglob("*.jpg")} == before
    assert main(words) == 0


def test_values_between_two_are_counted(tmp_path):
    values = np.zeros(SIZE, np.uint8)
    values[:, 32:] = 255
    values[:8, :8] = 120  # ambiguous, and nearer to 0
    values[40:, :8] = 60  # clear
    jpeg(tmp_path / "m.jpg", values, 100)
    labels = LabelSpace(("a", "b"), ((0, 0, 0), (1, 1, 1)), 255, {0: 0, 255: 1})
    ids, ambiguous = ids_of((tmp_path / "m.jpg").read_bytes(), "m", labels)
    assert np.array_equal(ids, (values > 127).astype(np.uint8))
    assert ambiguous == 64


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_colors_that_differ_in_one_channel_are_told_apart(tmp_path, channel):
    """Also from each other's neighbors in the code 0xRRGGBB, which differ by 1, 256, or 65,536."""
    low = np.array([40, 80, 120])
    high = low + 60 * (np.arange(3) == channel)
    classes = drawn(0)
    jpeg(tmp_path / "m.jpg", np.uint8([low, high])[classes], 100)
    colors = {int(color @ [1 << 16, 1 << 8, 1]): train for train, color in enumerate((low, high))}
    labels = LabelSpace(("a", "b"), ((0, 0, 0), (1, 1, 1)), 255, {0: 0, 1: 1}, colors)
    assert np.array_equal(ids_of((tmp_path / "m.jpg").read_bytes(), "m", labels)[0], classes)
    with refused("mask-rgb-without-colors"):
        ids_of((tmp_path / "m.jpg").read_bytes(), "m", plain_space(("a", "b")))


def test_a_gray_looking_mask_of_three_channels_is_read_by_color_if_classes_have_colors(tmp_path):
    """Black is void there, not the id 0; a mask of one channel holds ids, as in a PNG."""
    gray = drawn(0) * np.uint8(70)
    labels = LabelSpace(
        ("a", "b"), ((0, 0, 0), (1, 1, 1)), 255, {0: 0, 70: 1}, {0: 255, 0x464646: 0, 0xFF0000: 1}
    )
    jpeg(tmp_path / "rgb.jpg", np.dstack([gray] * 3), 100)
    jpeg(tmp_path / "gray.jpg", gray, 100)
    assert np.array_equal(
        ids_of((tmp_path / "rgb.jpg").read_bytes(), "m", labels)[0], np.where(drawn(0), 0, 255)
    )
    assert np.array_equal(ids_of((tmp_path / "gray.jpg").read_bytes(), "m", labels)[0], drawn(0))


def test_splits_lists_and_other_formats_are_kept(tmp_path, capsys):
    root = gray_set(tmp_path / "set", ("train", "val"))
    Image.fromarray(drawn(1) * np.uint8(255)).save(root / "label/val/p1_mask.png")
    (root / "label/val/p1_mask.jpg").unlink()
    rows = [
        {
            "image": f"image/val/p{n}_fram.jpg",
            "mask": f"label/val/p{n}_mask.{'png' if n == 1 else 'jpg'}",
        }
        for n in range(3)
    ]
    (root / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classes = ["data.classes=[a, b]", "data.label_map={0: 0, 255: 1}"]
    convert_folder(str(root), str(tmp_path / "one"), None, [*classes, "data.ignore_index=100"])
    assert "data.ignore_index=100" in capsys.readouterr().out
    convert_folder(
        str(root),
        str(tmp_path / "two"),
        ["val"],
        [*classes, "data.layout=list", "data.index={split}.jsonl"],
    )
    for folder, splits in (("one", ("train", "val")), ("two", ("val",))):
        data = load_config(None, ["data.layout=folders", f"data.root={tmp_path / folder}"]).data
        for split in splits:
            dataset = open_dataset(data, split)
            assert [dataset.read_mask(n).tolist() for n in range(3)] == [
                drawn(n).tolist() for n in range(3)
            ]


def test_nothing_is_written_where_something_is_wrong(tmp_path):
    root, out = gray_set(tmp_path / "set"), tmp_path / "out" / "new"
    with refused("samples-faulty", "the ids 0, 1, 255 are too close for a JPEG mask", faults=3):
        convert_folder(str(root), str(out), None, ["data.classes=[a, b]"])
    classes = ["data.classes=[a, b]", "data.label_map={0: 0, 255: 1}"]
    (root / "label/p1_mask.jpg").write_bytes(b"")
    with refused("samples-faulty", faults=1):
        convert_folder(str(root), str(out), None, classes)
    assert list((tmp_path / "out").iterdir()) == []
    said = list[str]()
    skipped = tmp_path / "skipped"
    convert_folder(str(root), str(skipped), None, [*classes, "data.faults=skip"], said.append)
    assert any("1 of 3 samples cannot be converted, and they are left out" in s for s in said)
    assert len([*skipped.rglob("masks/*.png")]) == 2
    out.mkdir()
    (out / "mine").write_text("x")
    with refused("folder-exists"):
        convert_folder(str(root), str(out), None, classes)


def test_near_values_of_lossless_masks_are_snapped_where_asked():
    labels = LabelSpace(("a", "b"), ((0, 0, 0), (255, 255, 255)), 255, {0: 0, 200: 1})
    values = np.full((4, 6), 198, np.uint8)
    values[0, :3] = (2, 90, 200)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    with refused("mask-ids-unknown"):
        ids_of(stream.getvalue(), "m", labels)
    ids, ambiguous = ids_of(stream.getvalue(), "m", labels, nearest=True)
    assert (ids[0].tolist(), ambiguous) == ([0, 0, 1, 1, 1, 1], 1)


@pytest.mark.parametrize("packed", ["", "keep", "raw"])
def test_what_is_not_files_is_converted_to_the_same_samples(tmp_path, packed):
    """Annotations, and shards packed from them, by a config file."""
    root = tmp_path / "set"
    coco(root, [[k % 3, "road", [k, 2, 12 + k, 2, 12, 9]] for k in range(6)], 3)
    settings = ["data.layout=coco", "data.images=images", "data.annotations=train.json"]
    settings = [f"data.root={root}", *settings, "data.split_by={val: 1}"]
    if packed:
        words = ["--image", packed]
        assert main(["data", "pack", str(root), str(tmp_path / "packed"), *words]) == 0
        settings = [f"data.root={tmp_path / 'packed'}", "data.layout=shards"]
    config = tmp_path / "mine.yaml"
    config.write_text(yaml.safe_dump({"data": parse_overrides(settings)["data"]}))
    splits = ["train", "val"][: 1 if packed else 2]
    words = [word for split in splits for word in ("--split", split)]
    assert main(["data", "convert", str(config), str(tmp_path / "out"), *words]) == 0
    for split in splits:
        source = open_dataset(load_config(config).data, split)
        made = open_dataset(
            load_config(None, [f"data.root={tmp_path / 'out'}", "data.layout=folders"]).data, split
        )
        assert sample_names(made) == sample_names(source)
        for index in range(len(source)):
            for mine, theirs in zip(made.read(index), source.read(index)):
                assert np.array_equal(mine, theirs)
        assert made.labels.names == source.labels.names


@pytest.mark.parametrize(
    "names",
    [
        ("road, wet", "a;b"),
        ("3 wheeler", "4 wheeler"),
        ("car #1", "#5 bus"),
        ("a\nb", "c"),
        ("no", "1 2 3 x"),
        ('q"q', "{b}"),
    ],
)
def test_the_names_of_the_classes_are_read_back(tmp_path, names):
    coco(tmp_path / "set", [[k, names[k % 2], [2, 2, 12, 2, 12, 9]] for k in range(4)], 4)
    convert_folder(str(tmp_path / "set"), str(tmp_path / "out"), None, [], [].append)
    dataset = open_dataset(detect(str(tmp_path / "out"))[0], "train")
    assert dataset.labels.names == ("background", *sorted(names))


# The classes of three annotators in a pixel, and what each rule makes of them; 9 is void.
MERGED = {
    (1, 1, 1): dict.fromkeys(RULES, 1),
    (1, 1, 0): {"majority": 1, "union": 1, "intersection": 0, "agreement": 9},
    (0, 1, 0): {"majority": 0, "union": 1, "intersection": 0, "agreement": 9},
    (0, 1, 2): {"majority": 9, "union": 9, "intersection": 0, "agreement": 9},
    (1, 1, 2): {"majority": 1, "union": 9, "intersection": 0, "agreement": 9},
    (9, 1, 1): {"majority": 1, "union": 1, "intersection": 9, "agreement": 9},
    (9, 9, 0): {"majority": 9, "union": 9, "intersection": 9, "agreement": 9},
}


@pytest.mark.parametrize("rule", RULES)
def test_masks_of_annotators_are_merged_by_the_rule(rule):
    ids = np.array([*MERGED], np.uint8).T[:, None]
    expected = [results[rule] for results in MERGED.values()]
    assert merged(ids, rule, 0, 9)[0].tolist() == expected
    # The background may have any id.
    other = np.array([2, 1, 0, 3, 4, 5, 6, 7, 8, 9], np.uint8)
    assert merged(other[ids], rule, 2, 9)[0].tolist() == other[expected].tolist()
    # More than 254 classes.
    many = (ids + np.uint16(300)) * (ids != 9) + np.uint16(65535) * (ids == 9)
    wanted = [65535 if value == 9 else value + 300 for value in expected]
    assert merged(many.astype(np.uint16), rule, 300, 65535)[0].tolist() == wanted


@pytest.mark.parametrize("form", ["folders", "endings", "numbers"])
def test_the_command_that_check_prints_merges_annotators(form, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    masks = {
        "folders": "set/masks{k}/p{n}.png",
        "endings": "set/p{n}_{o}HO.png",
        "numbers": "set/p{n}_{k}.png",
    }[form]
    for n in range(3):
        picture(tmp_path / ("set/images" if form == "folders" else "set") / f"p{n}.jpg", SIZE, n)
        for k in (1, 2, 3) if form == "numbers" else (1, 2):
            values = np.zeros(SIZE, np.uint8)
            values[8:40, 8 : 40 + min(k, 2)] = 1
            path = tmp_path / masks.format(k=k, n=n, o={1: "1st", 2: "2nd"}.get(k))
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(path)
    first_counts = form == "endings"  # 1stHO and 2ndHO
    assert main(["data", "check", "set"]) == (0 if first_counts else EXIT_ERROR)
    printed = "".join(capsys.readouterr())
    assert ("read are those of the first annotator" in printed) == first_counts
    (command,) = {line for line in printed.splitlines() if "  segtrain data convert" in line}
    assert command.count("--annotator") == (2 if form == "numbers" else 1)
    assert main([*shlex.split(command)[1:], "data.classes=[background, cell]"]) == 0
    assert main(["data", "check", "set-merged"]) == 0
    data, splits = detect("set-merged")
    for split in splits:
        dataset = open_dataset(data, split)
        for index in range(len(dataset)):
            mask = dataset.read_mask(index)
            assert (mask[8:40, 8:41] == 1).all()
            assert (mask[8:40, 41] == 255).all()
            assert (mask[:, 42:] == 0).all()


def test_annotators_of_other_images_are_refused(tmp_path):
    for n in range(3):
        picture(tmp_path / f"set/images/p{n}.png", SIZE, n)
        for k in range(1, 3 if n else 2):
            picture(tmp_path / f"set/m{k}/p{n}.png", SIZE, n)
    settings = ["data.layout=folders", "data.images=images", "data.masks=m1", "data.classes=[a, b]"]
    settings += ["data.absent_mask=leave-out"]
    words = [str(tmp_path / "set"), str(tmp_path / "out"), None, settings]
    with refused("annotators-differ", found=["p0"]):
        convert_folder(*words, merge="union", annotators=["data.masks=m2"])
    assert not (tmp_path / "out").exists()
    for half in ({"merge": "union"}, {"annotators": ["data.masks=m2"]}):
        with refused("annotator-missing"):
            convert_folder(*words, **half)
    with refused("annotator-repeated", found=str(tmp_path / "set/m1/p0.png")):
        convert_folder(*words, merge="union", annotators=["data.masks=m1"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_pictures_of_two_halves_are_cut(side, tmp_path, capsys):
    rng = np.random.default_rng(0)
    root, out = tmp_path / "set", tmp_path / "out"
    halves = {}
    for split in ("train", "val"):
        (root / split).mkdir(parents=True)
        for n in range(2):
            image = rng.integers(0, 256, (*SIZE, 3), np.uint8)
            mask = np.repeat(drawn(n)[..., None], 3, 2)
            halves[f"{split}/p{n}.png"] = image, drawn(n)
            both = (image, mask) if side == "right" else (mask, image)
            Image.fromarray(np.hstack(both)).save(root / split / f"p{n}.png")
    assert main(["data", "convert", str(root), str(out), "--side-by-side", side]) == 0
    assert shlex.split(capsys.readouterr().out.rpartition("segtrain ")[2])[:2] == ["data", "check"]
    for name, (image, mask) in halves.items():
        assert np.array_equal(np.asarray(Image.open(out / "images" / name)), image)
        assert np.array_equal(np.asarray(Image.open(out / "masks" / name)), mask)
    assert main(["data", "check", str(out), "data.classes=[a, b]"]) == 0
    with refused("setting-unused"):
        convert_folder(str(root), str(out), None, ["data.classes=[a, b]"], side_by_side=side)
    picture(root / "odd.png", (4, 5))
    with refused("picture-not-two-halves"):
        convert_folder(str(root), str(tmp_path / "new"), None, [], side_by_side=side)
    assert not (tmp_path / "new").exists()


def test_a_config_of_annotations_is_converted_with_its_test_split(tmp_path):
    coco(tmp_path / "set", [[0, "road", [2, 2, 12, 2, 12, 9]]])
    content = (tmp_path / "set/train.json").read_text()
    for split in ("val", "test"):
        (tmp_path / f"set/{split}.json").write_text(content)
    config = tmp_path / "mine.yaml"
    config.write_text(
        "data: {layout: coco, root: ROOT, images: images, annotations: '{split}.json'}".replace(
            "ROOT", str(tmp_path / "set")
        )
    )
    convert_folder(str(config), str(tmp_path / "out"), None, [])
    assert {path.name for path in (tmp_path / "out/masks").iterdir()} == {"train", "val", "test"}
