"""Fuzz test of the reader of shards and indexes. The only exceptions it may raise are segtrain's own.

    python tests/fuzz/fuzz_shards.py --seconds 60 [--library /tmp/libsanitized.so] [--seed 0]

Each round copies a small set of shards, written by segtrain or by other tools, with JPEG, PNG, or arrays. It damages
the tar or the index, and usually repairs the checksums, so that the damage gets past them. Then it reads every sample
and every whole picture. The result must be a sample or an error of segtrain. A set for which it is not is kept in a folder named
after its seed, which reproduces it. README.md says how to run this under sanitizers.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import zlib
from pathlib import Path

import cv2
import numpy as np

from segtrain.config import Data
from segtrain.data import storage
from segtrain.data.datasets import open_dataset
from segtrain.data.pixels import native
from segtrain.data.sample import SampleMaker, Task
from segtrain.data.shards import index as shard_index
from segtrain.data.shards import png_strips
from segtrain.data.shards.pack import pack
from segtrain.data.shards.pack_sample import Packing
from segtrain.errors import SegtrainError

CLASSES = ("a", "b", "c")
CROP = (24, 32)


def pictures(count: int, size: tuple[int, int] = (40, 56)) -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0)
    ids = [
        np.kron(draw.integers(0, 3, (size[0] // 8, size[1] // 8), np.uint8), np.ones((8, 8), np.uint8))
        for _ in range(count)
    ]
    return [(cv2.GaussianBlur(draw.integers(0, 256, (*size, 3), np.uint8), (0, 0), 2), mask) for mask in ids]


def foreign(folder: Path, image: str) -> None:
    """Write a split like other tools do, without an index."""
    folder.mkdir(parents=True)
    with tarfile.open(folder / "train-000000.tar", "w") as out:
        for number, (picture, mask) in enumerate(pictures(4)):
            npy = io.BytesIO()
            np.save(npy, picture)
            content = npy.getvalue() if image == "npy" else cv2.imencode(f".{image}", picture)[1].tobytes()
            for name, body in (
                (f"{number:03d}.{image}", content),
                (f"{number:03d}.mask.png", png_strips.encode(mask, 16)),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(body)
                out.addfile(info, io.BytesIO(body))


def packed(folder: Path, image: str) -> None:
    source = folder.parent / f"{folder.name}-files"
    for kind in ("images", "masks"):
        (source / kind / "train").mkdir(parents=True)
    for number, (picture, mask) in enumerate(pictures(4)):
        cv2.imwrite(str(source / "images/train" / f"{number}.jpg"), picture)
        cv2.imwrite(str(source / "masks/train" / f"{number}.png"), mask)
    data = Data(layout="folders", root=str(source), classes=CLASSES, crop=CROP)
    pack(open_dataset(data, "train"), str(folder), Packing(image), say=lambda line: None)


def harmed(content: bytes, dice: random.Random) -> bytes:
    """Change, move, or remove some bytes, or cut off the end."""
    body = bytearray(content)
    for _ in range(dice.randint(1, 6)):
        place, length = dice.randrange(len(body)), dice.choice((1, 1, 2, 4, 8, 64, 512))
        what = dice.randrange(6)
        if what <= 1:
            body[place : place + 1] = bytes([body[place] ^ 1 << dice.randrange(8)])
        elif what == 2:
            number = dice.choice((0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, len(body), 1 << 63))
            body[place : place + 8] = struct.pack("<Q", number)
        elif what == 3:
            body[place : place + length] = body[(other := dice.randrange(len(body))) : other + length]
        elif what == 4 and len(body) > 600:
            del body[place : place + length]
        elif dice.random() < 0.3:
            del body[max(1, place) :]
    return bytes(body)


def with_sums(tar: bytes) -> bytes:
    """Repair the checksum of every block that looks like a tar header."""
    body = bytearray(tar)
    for at in range(0, len(body) - 511, 512):
        if body[at + 257 : at + 262] == b"ustar":
            body[at + 148 : at + 156] = b" " * 8
            body[at + 148 : at + 156] = b"%06o\0 " % sum(body[at : at + 512])
    return bytes(body)


def with_crc(index: bytes) -> bytes:
    """Repair the CRC in the header of an index."""
    magic, length, _ = struct.unpack_from("<24sII", index) if len(index) >= 32 else (b"", 0, 0)
    return struct.pack("<24sII", magic, length, zlib.crc32(index[32 : 32 + length])) + index[32:] if magic else index


def use(folder: Path) -> int:
    """Read a split like training and evaluation do. Returns the number of successful reads."""
    data, made = Data(layout="shards", root=str(folder), classes=CLASSES, crop=CROP, workers=0), 0
    try:
        source = open_dataset(data, "train")
        source.fingerprint()
        sampler = SampleMaker(source, data, 0)
    except SegtrainError:
        return 0
    image, mask = np.empty((*CROP, 3), np.uint8), np.empty(CROP, np.uint8)
    for index in range(min(8, len(source))):
        for action in (lambda i: sampler(Task(i, 0, CROP, (0.2, 2.0)), image, mask), source.read, source.size):
            try:
                action(index)
                made += 1
            except SegtrainError:
                continue
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", type=Path, help="native decoder built with sanitizers")
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    args = parser.parse_args()
    if args.library:
        native.LIBRARY = args.library
    print(native.describe(), flush=True)
    work = Path(tempfile.mkdtemp())
    os.environ["SEGTRAIN_CACHE"] = str(work / "cache")
    for image in ("jpg", "png", "npy"):
        foreign(work / f"foreign-{image}", image)
    for image in ("keep", "png", "raw"):
        packed(work / f"packed-{image}", image)
    sets = sorted(
        path
        for path in work.iterdir()
        if path.name.startswith(("foreign", "packed")) and not path.name.endswith("files")
    )
    rounds = whole = found = 0
    begin = time.monotonic()
    while time.monotonic() - begin < args.seconds:
        seed = args.seed + rounds
        dice = random.Random(seed)
        target = work / f"now-{seed}"
        shutil.copytree(dice.choice(sets), target)
        victim = dice.choice(sorted(path for path in target.rglob("*") if path.is_file()))
        content = harmed(victim.read_bytes(), dice)
        if dice.random() < 0.8:
            content = with_crc(content) if victim.suffix == shard_index.ENDING else with_sums(content)
        victim.write_bytes(content)
        if dice.random() < 0.5:  # give the tar the size that the index expects
            for index in target.glob(f"*{shard_index.ENDING}"):
                for tar in target.rglob("*.tar"):
                    size = tar.stat().st_size
                    old = shard_index.load(str(index)).description.shards[0].size if victim != index else size
                    tar.write_bytes(tar.read_bytes()[:old] + bytes(max(0, old - size)))
        try:
            whole += use(target)
        except Exception:
            found += 1
            traceback.print_exc()
            shutil.copytree(target, args.findings / f"seed-{seed}", dirs_exist_ok=True)
        storage._mapped.cache_clear()  # close the memory maps of the folder before it is removed
        shutil.rmtree(target)
        shutil.rmtree(work / "cache", ignore_errors=True)
        rounds += 1
    print(
        f"{rounds} rounds in {time.monotonic() - begin:.0f} s, {whole} successful reads, {found} findings in {args.findings}"
    )
    shutil.rmtree(work)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
