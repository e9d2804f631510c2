"""Recorded data sets: the check of odd masks, files, and splits, listings, packs, and copies."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import golden
import numpy as np
import pytest
import transcript
from data_files import ids, picture
from mask_sets import COLORS, by_table, make, one_bit, palette, rgb
from PIL import Image

from segtrain.cli import main
from segtrain.config.split_by import SplitBy
from segtrain.data.audit.check import settings_of
from segtrain.data.datasets import open_dataset
from segtrain.data.index.split_by import divide, proposal
from segtrain.data.shards import index
from segtrain.errors import SegtrainError

# What differs among machines and releases of libraries: times, sizes, fingerprints of files.
MEASURED = {
    r"#[0-9a-f]{12}": "#HASH",
    r"\"fingerprint\": \"[0-9a-f]+\"": '"fingerprint": "HASH"',
    r"[\d,.]+ (MB|ms|s)\b": r"N \1",
    r"[\d,]+ bytes": "N bytes",
    r"( +[\d.,]+){2} +\d+% +[\d.]+": "  SIZES",
}


def strays(values: dict[int, int], table: dict[int, int]) -> Callable[[np.ndarray, Path], None]:
    """As ``by_table``, with some pixels (value -> number) at the end of each mask."""

    def encode(mask: np.ndarray, path: Path) -> None:
        by_table(table)(mask, path)
        stored = cv2.imread(f"{path}.png", cv2.IMREAD_UNCHANGED)
        row = np.repeat(list(values), list(values.values()))
        stored[-1, : len(row)] = row
        cv2.imwrite(f"{path}.png", stored)

    return encode


def instances(mask: np.ndarray, path: Path) -> None:
    count = 2 + int(path.name[1:]) % 12
    stored = np.zeros_like(mask)
    stored[4:44] = np.repeat(np.arange(40) * count // 40 + 1, 64).reshape(40, 64)
    cv2.imwrite(f"{path}.png", stored)


def segments(mask: np.ndarray, path: Path) -> None:
    rgb(COLORS + np.uint8([[0], [1], [2]]) * np.uint8(int(path.name[1:]) % 3))(mask, path)


def clashing(mask: np.ndarray, path: Path) -> None:
    palette([0, 1, 2], COLORS if path.name < "n07" else COLORS[::-1])(mask, path)


def jpeg(mask: np.ndarray, path: Path) -> None:
    Image.fromarray(mask * 100).save(f"{path}.jpg", quality=98, subsampling=0)


def resized(mask: np.ndarray, path: Path) -> None:
    small = np.repeat(np.arange(12, dtype=np.uint8) % 3, 4)[None].repeat(32, 0) * 2
    cv2.imwrite(f"{path}.png", cv2.resize(small, (64, 48), interpolation=cv2.INTER_LINEAR))


def photos(mask: np.ndarray, path: Path) -> None:
    noise = np.random.default_rng(int(path.name[1:])).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(noise).save(f"{path}.png")


SETS: dict[str, tuple[Callable[[np.ndarray, Path], None], int, bool]] = {
    "plain": (by_table({}), 3, True),
    "zero-255": (by_table({1: 255}), 2, False),
    "from-one": (by_table({0: 1, 1: 2, 2: 3}), 3, True),
    "one-more": (by_table({3: 3}), 4, False),
    "only-1-and-2": (by_table({0: 1, 1: 2, 2: 1}), 3, False),
    "background-255": (by_table({0: 255}), 3, False),
    "large-ids": (by_table({0: 1000, 1: 24000, 2: 26000}, np.uint16), 3, False),
    "gray-levels": (by_table({1: 85, 2: 170, 3: 255}), 4, False),
    "strays": (strays({77: 3}, {}), 3, False),
    "rare-ids": (strays({77: 3, 78: 2}, {}), 3, True),
    "blurred": (strays({2: 9, 119: 10, 243: 9}, {1: 121, 2: 242}), 3, False),
    "instances": (instances, 2, False),
    "segments": (segments, 3, False),
    "one-bit": (one_bit, 2, False),
    "colors": (rgb(COLORS), 3, False),
    "palette": (palette([2, 0, 1], COLORS), 3, False),
    "clashing": (clashing, 3, False),
    "jpeg": (jpeg, 3, False),
    "resized": (resized, 3, False),
    "photos": (photos, 3, False),
}  # fmt: skip


def checked(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The exit code and the output of `segtrain data WORDS`."""
    code = main(["data", *words])
    output = capsys.readouterr()
    return golden.masked(
        f"{output.out}{output.err}exit code {code}".replace(os.getcwd(), "."), MEASURED
    )


@pytest.mark.parametrize("name", ["masks-1", "masks-2", "masks-3"])
def test_checks_of_masks(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def answer(words: list[str]) -> str:
        kind = words[0]
        if not Path(kind).exists():
            make(Path(kind), *SETS[kind])
        return checked(["check", *words], capsys)

    transcript.check(f"data/{name}.txt", answer)


def odd_files(root: Path) -> None:
    """Images and masks of which most have a fault or a peculiarity."""
    for name in ("train/a", "train/b", "train/deep/c", "val/v", "val/w"):
        picture(root / f"images/{name}.png", seed=zlib.crc32(name.encode()))
        ids(root / f"masks/{name}.png", (0, 1, 1))
    (root / "images/val/copy.png").write_bytes((root / "images/train/a.png").read_bytes())
    ids(root / "masks/val/copy.png", (1, 0))
    for name, mode in (("alpha", "RGBA"), ("gray", "LA"), ("bilevel", "1"), ("deep16", "I;16")):
        Image.new(mode, (16, 12)).save(root / f"images/train/{name}.png")
        ids(root / f"masks/train/{name}.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (16, 12)).save(root / "images/train/turned.jpg", exif=turned)
    ids(root / "masks/train/turned.png", (255,))
    wide = picture(root / "images/train/wide.png", (12, 20))
    ids(root / "masks/train/wide.png")
    for name, content in (("cut", wide.read_bytes()[:-30]), ("empty", b""), ("words", b"no image")):
        (root / f"images/train/{name}.png").write_bytes(content)
        ids(root / f"masks/train/{name}.png", size=(12, 20))
    ids(root / "masks/train/words.png", (0, 9))
    (root / "masks/train/b.png").write_bytes(b"no mask")


def pool(root: Path) -> None:
    for number in range(11):
        picture(root / f"images/p{number % 4}_{number}.png", (20 + number % 3, 16), number)
        ids(root / f"masks/p{number % 4}_{number}_mask.png", (0, 1, 1), (20 + number % 3, 16))


def dark(root: Path) -> None:
    for split, brightest in (("train", 900), ("val", 3900), ("test", 5)):
        ids(root / f"masks/{split}/a.png")
        (root / f"images/{split}").mkdir(parents=True)
        values = np.arange(192, dtype=np.uint16).reshape(12, 16) * (brightest // 191)
        cv2.imwrite(str(root / f"images/{split}/a.png"), values)


FOLDERS = {"odd": odd_files, "pool": pool, "dark": dark}


def test_checks_packs_and_copies(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, build in FOLDERS.items():
        build(Path(name))
    make(Path("jpeg"), *SETS["jpeg"])
    transcript.check("data/commands.txt", lambda words: checked(words, capsys))
    table = index.load("pool-shards/all.index")
    lines = [str(shard) for shard in table.description.shards]
    lines += [str(table.description.options), *(str(table.span(n)) for n in range(len(table)))]
    golden.check("data/index.txt", "\n".join(lines))


def listing(words: list[str]) -> str:
    """The settings and the entries of a folder of these (empty) files; FILE=TEXT has a content.
    Words that begin with data. are settings.
    """
    root = Path(f"s{zlib.crc32(' '.join(words).encode()):x}")
    for word in words:
        path, _, text = word.partition("=")
        for number in "12" if "#" in path else "1":
            if not word.startswith("data."):
                file = root / path.replace("#", number)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.replace("\\n", "\n").replace("\\t", "\t"))
    try:
        data, splits = settings_of(str(root), [word for word in words if word.startswith("data.")])
        lines = [str(data.model_dump(exclude_unset=True, exclude={"root"})), f"splits {splits}"]
        classes = {"classes": ("a", "b")} if data.layout in ("folders", "list") else {}
        for split in splits:
            dataset = open_dataset(data.model_copy(update=classes), split)
            lines += [
                f"  {split}: {entry.image} {entry.mask} {entry.meta}" for entry in dataset.entries
            ]
            lines += [f"  note: {note}" for note in dataset.notes]
            lines.append(f"  {dataset.labels.num_classes} classes: {dataset.labels.names[:3]}")
    except SegtrainError as error:
        lines = [f"{error.code}: {error}", str(error.values)]
    return "\n".join(lines).replace(f"{root.resolve()}", "ROOT").replace(f"{root}", "ROOT")


@pytest.mark.parametrize("name", ["folders", "layouts"])
def test_listings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    transcript.check(f"data/{name}.txt", listing)


def test_splits_by_name():
    lines, names = [], [f"town{n % 5}/f_{n:02d}" for n in range(23)]
    rules: list[dict[str, Any]] = [
        {"val": 0.2}, {"val": "30%", "test": 0.25, "seed": 3}, {"val": 4, "test": 3}, {"val": 5, "group": r"town\d"},
        {"val": 2, "test": "20%", "group": "f_(.)"}, {"val": 22, "test": 1}, {"val": "1%"}, {"val": 0.4, "group": "town([12])?"},
    ]  # fmt: skip
    for rule in rules:
        try:
            lines.append(f"{rule}: {''.join(map(str, divide(names, SplitBy(**rule))))}")
        except SegtrainError as error:
            lines.append(f"{rule}: {error.code}: {error} {error.values}")
    lines += [f"of {count}: {proposal(names[:count])}" for count in (1, 2, 3, 4, 23)]
    golden.check("data/splits.txt", "\n".join(lines))
