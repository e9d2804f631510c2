"""Tests that each of a thousand faulty files is named, and that both policies hold, also on
resume.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from refusals import TINY, finish

from segtrain.config import Data
from segtrain.data.audit.audit import audit
from segtrain.data.datasets import open_dataset
from segtrain.data.index.subset import without
from segtrain.data.pixels import decode, native
from segtrain.errors import DataError

COUNT, SIZE = 2000, (40, 48)
CLASSES = "data.classes=[road,car,sky]"
SETTINGS = [*TINY, "data.root=set", "data.layout=folders", CLASSES]


def encoded(seed: int) -> tuple[bytes, bytes, bytes]:
    """A JPEG, a PNG of it, and a mask of ids 0 to 2."""
    rng = np.random.default_rng(seed)
    image = cv2.resize(rng.integers(0, 256, (5, 6, 3), np.uint8), SIZE[::-1])
    mask = cv2.resize(
        rng.integers(0, 3, (5, 6), np.uint8), SIZE[::-1], interpolation=cv2.INTER_NEAREST
    )
    jpeg, png, ids = (
        cv2.imencode(kind, array)[1].tobytes()
        for kind, array in ((".jpg", image), (".png", image), (".png", mask))
    )
    return jpeg, png, ids


def body_damage(jpeg: bytes, rng: np.random.Generator) -> bytes:
    """Flipped bits in the entropy-coded part, of the kind that a decoder can notice. (Others only
    give other pixels.)
    """
    import simplejpeg

    begin = decode.read_header(jpeg).scan + 16
    while True:
        damaged = bytearray(jpeg)
        for place in rng.integers(begin, len(jpeg) - 2, 3):
            damaged[place] ^= 1 << int(rng.integers(8))
        try:
            simplejpeg.decode_jpeg(bytes(damaged), "RGB")
        except ValueError as error:
            if "extraneous" not in str(error).lower():
                return bytes(damaged)


def png_crc(png: bytes) -> bytes:
    place = png.index(b"IDAT") + 20
    return png[:place] + bytes([png[place] ^ 4]) + png[place + 1 :]


def mask_png(value: int, size: tuple[int, int] = SIZE) -> bytes:
    mask = np.zeros(size, np.uint8)
    mask[3, 4] = value
    return cv2.imencode(".png", mask)[1].tobytes()


Damage = Callable[
    [bytes, bytes, bytes, np.random.Generator], "tuple[bytes, bytes]"
]  # jpeg, png, ids, rng -> image, mask
KINDS: dict[str, Damage] = {
    "truncated": lambda jpeg, png, ids, rng: (jpeg[: int(rng.integers(20, len(jpeg) - 4))], ids),
    "all zero": lambda jpeg, png, ids, rng: (bytes(len(jpeg)), ids),
    "random": lambda jpeg, png, ids, rng: (rng.bytes(400), ids),
    "mask of another size": lambda jpeg, png, ids, rng: (jpeg, mask_png(0, (SIZE[0] - 1, SIZE[1]))),
    "HTML": lambda jpeg, png, ids, rng: (
        b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        ids,
    ),
    "bits of a JPEG": lambda jpeg, png, ids, rng: (body_damage(jpeg, rng), ids),
    "checksum of a PNG": lambda jpeg, png, ids, rng: (png_crc(png), ids),
    "empty mask": lambda jpeg, png, ids, rng: (jpeg, b""),
    "unknown id": lambda jpeg, png, ids, rng: (jpeg, mask_png(77)),
    "truncated mask": lambda jpeg, png, ids, rng: (jpeg, ids[:-13]),
}


def make_set(root: Path, count: int = COUNT) -> dict[int, str]:
    """Every second sample of ``train`` is faulty, of each kind as many; of the others some have the
    wrong extension, which is no fault. ``val`` is whole. Returns kinds by index."""
    base = [encoded(seed) for seed in range(16)]
    rng = np.random.default_rng(0)
    broken = {}
    for split, number in (("train", count), ("val", 2)):
        for folder in ("images", "masks"):
            (root / folder / split).mkdir(parents=True)
        for index in range(number):
            jpeg, png, ids = base[index % len(base)] if split == "train" else encoded(100 + index)
            image, mask = (png if index % 20 == 2 else jpeg), ids
            if split == "train" and index % 2:
                kind = list(KINDS)[index // 2 % len(KINDS)]
                broken[index] = kind
                image, mask = KINDS[kind](jpeg, png, ids, rng)
            (root / f"images/{split}/n{index:04d}.jpg").write_bytes(image)
            (root / f"masks/{split}/n{index:04d}.png").write_bytes(mask)
    return broken


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    folder = tmp_path_factory.mktemp("thousand")
    return folder, make_set(folder / "set")


def named(text: str) -> set[int]:
    return {
        int(number) for number in re.findall(r"(?:images|masks)/train/n(\d{4})\.(?:jpg|png)", text)
    }


@pytest.mark.parametrize("path", ["native", "packages"])
def test_every_faulty_file_is_named_and_no_other(thousand, path, monkeypatch):
    folder, broken = thousand
    if path == "native" and not native.available():
        pytest.skip(native.describe())
    if path == "packages":
        monkeypatch.setattr(native, "available", lambda: False)
        monkeypatch.setattr(native, "_library", lambda: None)
    data = Data(layout="folders", root=str(folder / "set"), classes=("road", "car", "sky"))
    report = audit(open_dataset(data, "train"), 2, cache=False)
    missed = {broken[index] for index in set(broken) - set(report.bad.tolist())}
    assert report.bad.tolist() == sorted(broken), missed
    for file, message in report.faults:
        kind = broken[int(Path(file).stem[1:])]
        assert ("masks" in file) == ("mask" in kind or kind == "unknown id"), message
        assert Path(file).name in message
    assert len(report.faults) == len(broken)
    assert report.pixels.sum() == (COUNT - len(broken)) * SIZE[0] * SIZE[1]


def test_both_policies(zygote, thousand):
    folder, broken = thousand
    cache = {"SEGTRAIN_CACHE": str(folder / "cache")}
    process = zygote.start("train", *SETTINGS, cwd=folder, **cache)
    assert finish([process]) == [2]
    lines = process.output.splitlines()
    assert "1,000 faults in 1,000 of 2,000 samples" in lines[0]
    assert 20 <= len(named(process.output)) <= 60  # three files of each kind
    assert "data.faults=skip" in lines[-1]
    assert not (folder / "run").exists()

    process = zygote.start("train", *SETTINGS, "data.faults=skip", cwd=folder, **cache)
    assert finish([process]) == [0], process.output
    assert "1,000 of 2,000 images are faulty and left out" in process.output
    assert "1000 images to train" in process.output
    kept = [json.loads(line) for line in (folder / "run/faults.jsonl").read_text().splitlines()]
    assert {line["index"] for line in kept} == set(broken)
    assert all(line["faults"] for line in kept)
    events = [json.loads(line) for line in (folder / "run/journal.jsonl").read_text().splitlines()]
    assert [(e["role"], e["skipped"], e["images"]) for e in events if e["event"] == "faults"] == [
        ("train", 1000, 2000)
    ]


def test_a_run_keeps_its_list(zygote, tmp_path):
    broken = make_set(tmp_path / "set", 20)
    settings = [
        *SETTINGS,
        "data.faults=skip",
        "train.duration=6st",
        "checkpoint.every=2st",
        "log.every=1",
        "log.digest=true",
    ]
    environment = {"SEGTRAIN_CACHE": str(tmp_path / "cache")}

    def train(out: str, *more: str) -> Any:
        process = zygote.start("train", *settings, f"out={out}", *more, cwd=tmp_path, **environment)
        process.code = finish([process])[0]
        return process

    def digests(out: str) -> dict[int, Any]:
        events = [
            json.loads(line) for line in (tmp_path / out / "journal.jsonl").read_text().splitlines()
        ]
        return {e["step"]: e["loss"] for e in events if e["event"] == "step"}

    def back(out: str) -> None:
        """As if the run had ended after step 2 or 4."""
        newest = sorted((tmp_path / out / "checkpoints").glob("step-*"))[-1]
        newest.unlink()

    assert train("one").code == 0
    assert train("two").code == 0
    back("two")
    whole = (tmp_path / "set/images/train/n0000.jpg").read_bytes()
    first = next(iter(broken))  # truncated
    kept = (tmp_path / f"set/images/train/n{first:04d}.jpg").read_bytes()
    (tmp_path / f"set/images/train/n{first:04d}.jpg").write_bytes(whole)
    process = train("two")
    assert process.code == 0, process.output
    assert "1 images that the run left out are whole now: it goes on without them" in process.output
    assert "going on from step" in process.output
    assert digests("one") == digests("two")

    (tmp_path / f"set/images/train/n{first:04d}.jpg").write_bytes(kept)
    (tmp_path / "set/images/train/n0004.jpg").write_bytes(b"")
    back("two")
    process = train("two")
    assert process.code == 2
    assert "1 samples have become faulty since the run began" in process.output
    assert "n0004.jpg" in process.output

    (tmp_path / "set/images/train/n0004.jpg").unlink()
    (tmp_path / "set/masks/train/n0004.png").unlink()
    process = train("two")
    assert process.code == 2
    assert "lists other files than when the run began" in process.output


def test_the_rest_of_a_split(tmp_path):
    broken = make_set(tmp_path / "set", 20)
    data = Data(layout="folders", root=str(tmp_path / "set"), classes=("road", "car", "sky"))
    dataset = open_dataset(data, "train")
    rest = without(dataset, broken)
    places = [index for index in range(20) if index not in broken]
    assert len(rest) == 10
    assert [entry.image for entry in rest.entries] == [
        dataset.entries[index].image for index in places
    ]
    assert all(
        np.array_equal(rest.read(k)[0], dataset.read(index)[0]) for k, index in enumerate(places)
    )
    assert rest.record(3) == dataset.record(places[3])
    assert without(dataset, []) is dataset
    with pytest.raises(DataError, match="all 20 samples are faulty"):
        without(dataset, range(20))
    before = rest.fingerprint()
    for index in broken:
        (tmp_path / f"set/images/train/n{index:04d}.jpg").unlink()
        (tmp_path / f"set/masks/train/n{index:04d}.png").unlink()
    assert rest.fingerprint() == before == open_dataset(data, "train").fingerprint()
