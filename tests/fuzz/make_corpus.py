"""Writer of the seeds: small files with which fuzzing of the native decoders starts.

    python tests/fuzz/make_corpus.py

Writes tests/fuzz/corpus/{png,sample}/. Each file is a few bytes that choose what is done (see
fuzz_*.cpp), then a picture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "kit"))

from pngs import KINDS, MIXED, PALETTE, chunk, label_map, palette, picture, write  # noqa: E402

from segtrain.data.shards import png_strips  # noqa: E402

LARGE = bytes([0, 0, 0, 0, 255, 255, 255, 255])
INNER = bytes([0, 9, 0, 5, 0, 3, 0, 4])


def pngs() -> dict[str, bytes]:
    files = {}
    for color, bits in KINDS:
        extra = palette(1 << bits) if color == PALETTE else b""
        files[f"color{color}-{bits}"] = write(
            picture(11, 13, color, bits), color, bits, MIXED, extra, piece=100
        )
    files["tables"] = write(
        picture(4, 5, 0, 8), 0, 8, 2, chunk(b"tRNS", b"\0\1") + chunk(b"tEXt", b"Title\0street")
    )
    files["stored"] = write(picture(9, 9, 2, 8), 2, 8, 1, level=0)
    # large enough to be inflated in part
    files["long"] = write(label_map(700, 150)[..., None], 0, 8, 4)
    files["strips-mask"] = png_strips.encode(label_map(40, 33), 8)
    files["strips-rgb"] = png_strips.encode(picture(20, 9, 2, 8).astype(np.uint8), 6)
    return files


def jpegs() -> dict[str, bytes]:
    image = picture(70, 90, 2, 8).astype(np.uint8)
    smooth = cv2.GaussianBlur(image, (0, 0), 4)
    flags = {
        "420": [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420],
        "444": [
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
            cv2.IMWRITE_JPEG_OPTIMIZE,
            1,
        ],
        "422-restarts": [
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
            cv2.IMWRITE_JPEG_RST_INTERVAL,
            3,
        ],
        "progressive": [cv2.IMWRITE_JPEG_PROGRESSIVE, 1],
    }
    files = {
        name: cv2.imencode(".jpg", smooth, [cv2.IMWRITE_JPEG_QUALITY, 60, *more])[1].tobytes()
        for name, more in flags.items()
    }
    files["gray"] = cv2.imencode(".jpg", smooth[..., 0], [cv2.IMWRITE_JPEG_QUALITY, 60])[
        1
    ].tobytes()
    return files


def write_seeds(target: str, seeds: dict[str, bytes]) -> None:
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    regions = {1: INNER, 3: LARGE}
    write_seeds(
        "png",
        {
            f"{name}-{n}": bytes([n >> 1]) + region + content
            for name, content in pngs().items()
            for n, region in regions.items()
        },
    )
    pictures = jpegs()
    geometries = {  # scale, crop, corner, colors
        "inside": bytes([3, 0, 30, 0, 40, 0, 20, 0, 30, 0, 0x90, 1, 0x95, 1, 3, 70, 60, 50, 5, 9, 0, 0, 0, 0]),
        "beyond": bytes([7, 0, 180, 0, 200, 0, 90, 0, 100, 0, 0xA0, 1, 0x80, 1, 2, 70, 60, 50, 5, 9, 200, 1, 3, 0]),
    }  # fmt: skip
    pictures |= {
        name: content
        for name, content in pngs().items()
        if name in ("strips-rgb", "strips-mask", "long")
    }
    write_seeds(
        "sample",
        {
            f"{name}-{k}": head + content
            for name, content in pictures.items()
            for k, head in geometries.items()
        },
    )
