"""Recorded results of plain functions of the data: scenes, crops, orders, headers, labels, buckets."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from typing import Any

import golden
import numpy as np
import pytest
from PIL import Image
from pngs import palette, wrap

from segtrain.config import Data
from segtrain.data.augment.geometry import class_center, color_terms, draw
from segtrain.data.labels import presets
from segtrain.data.labels.space import LabelSpace, class_palette, plain_space, voc_colored
from segtrain.data.order import eval_groups, permutation, rank_slice, rng_for, samples
from segtrain.data.pixels.header import check_whole, read_header
from segtrain.data.scenes.canvas import Canvas
from segtrain.data.scenes.scene import scene
from segtrain.data.shards import png_strips
from segtrain.errors import SegtrainError

SCENES = [(1, 0, (144, 192)), (1, 3, (144, 192)), (2, 7, (96, 200)), (2**63 + 7, 8, (300, 200))]


def crc(*parts: Any) -> str:
    return f"{zlib.crc32(b''.join(np.ascontiguousarray(part).tobytes() for part in parts)):08x}"


def shapes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes that scenes paint from now on: label, points in 1/16 pixel, and color."""
    painted: list[Any] = []
    paint = Canvas._paint

    def record(canvas: Canvas, points: np.ndarray, color: Any, label: int | None) -> None:
        painted.append((-1 if label is None else label, np.round(points * 16).astype(int), color))
        paint(canvas, points, color, label)

    monkeypatch.setattr(Canvas, "_paint", record)
    return painted


def test_scenes(monkeypatch):
    painted, lines = shapes(monkeypatch), []
    for seed, index, size in SCENES:
        painted.clear()
        image, mask = scene(seed, index, size)
        names = [*presets.SCENES.names, "void"]
        counts = np.bincount(np.minimum(mask, len(names) - 1).ravel(), minlength=len(names))
        lines.append(
            f"scene {seed, index, size}: mask {crc(mask)}, {dict(zip(names, counts.tolist()))}"
        )
        for label, group in itertools.groupby(
            sorted(painted, key=lambda shape: shape[0]), lambda shape: shape[0]
        ):
            parts = list(group)
            digest = crc(*(points for _, points, _ in parts), [color for *_, color in parts])
            lines.append(f"  label {label}: {len(parts)} shapes {digest}")
        height, width = size
        blocks = image.reshape(6, height // 6, 4, width // 4, 3).mean(axis=(1, 3)).round()
        spread = (
            image.reshape(6, height // 6, 4, width // 4, 3).std(axis=(1, 3)).mean(axis=2).round()
        )
        lines += [
            f"  {row.astype(int).tolist()} {wide.astype(int).tolist()}"
            for row, wide in zip(blocks, spread)
        ]
    golden.check("data/scenes.txt", "\n".join(lines))


CROPS: list[dict[str, Any]] = [
    {},
    {"scale": (0.25, 4.0), "scale_sampling": "log", "flip": 0.9, "rotate": 15.0},
    {"base_scale": 0.3, "jitter": (0.2, 0.3, 0.9), "hue": 0.1, "color_jitter_prob": 0.5},
]


def test_crops_and_orders():
    lines = []
    for settings, (seed, epoch, index) in itertools.product(
        CROPS, ((3, 0, 7), (3, 5, 7), (11, 2, 40))
    ):
        data = Data(**settings)
        for size, center, scale in (
            ((360, 480), None, None),
            ((90, 700), (80, 13), None),
            ((200, 300), None, (1.1, 1.3)),
        ):
            crop = draw(rng_for(seed, epoch, index), size, (128, 160), data, center, scale)
            values = [round(value, 6) for value in (*crop.colors, crop.angle)]
            lines.append(
                f"{size} {crop.scaled} {crop.top, crop.left} {crop.flip} {values} {crop.covered((128, 160))}"
            )
    terms = [
        color_terms(colors)
        for colors in ((1, 1, 1, 0), (1.2, 0.7, 1.4, 0.08), (0.5, 1.5, 0, -0.25))
    ]
    lines += [f"colors {np.round(row.astype(float), 4).tolist()}" for row in terms]
    mask = np.full((7, 9), 255, np.uint8)
    lines.append(f"center {class_center(mask, np.array([0.5, 0.5]), 3)}")
    mask[2:5, 3:8], mask[6] = 2, 0
    lines.append(f"center {[class_center(mask, rng_for(5, 1, k).random(2), 3) for k in range(6)]}")
    lines += [
        f"epoch {seed, epoch}: {permutation(seed, 13, epoch).tolist()}"
        for seed in (0, 4)
        for epoch in (0, 3)
    ]
    lines += [
        f"samples {first}: {[part.tolist() for part in samples(9, 7, first, 9)]}"
        for first in (0, 5, 7000)
    ]
    lines += [
        f"slices of 23 {world, micros}: "
        + str(
            [
                [
                    (part.start, part.stop)
                    for part in (
                        rank_slice(23, world, rank, micros, micro) for micro in range(micros)
                    )
                ]
                for rank in range(world)
            ]
        )
        for world, micros in ((1, 3), (3, 1), (4, 2))
    ]
    lines.append(
        f"groups {eval_groups([(3, 4), (5, 6), (3, 4), (4, 3), (5, 6), (3, 4), (3, 4)], 3)}"
    )
    golden.check("data/crops.txt", "\n".join(lines))


def picture(kind: str, mode: str, size: tuple[int, int] = (5, 3), **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, kind, **options)
    return stream.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def tiff(order: str, *tags: tuple[int, int, int], big: bool = False, after: bytes = b"") -> bytes:
    """A TIFF of one directory of (tag, kind, value). after: what follows the directory's entries."""
    count, wide = ("Q", "Q") if big else ("H", "I")
    body = struct.pack(order + count, len(tags))
    for tag, kind, value in tags:
        packed = struct.pack(order + {3: "H", 4: "I", 16: "Q"}[kind], value)
        body += struct.pack(f"{order}HH{wide}", tag, kind, 1) + packed.ljust(8 if big else 4, b"\0")
    begin = struct.pack(order + "HHHQ", 43, 8, 0, 16) if big else struct.pack(order + "HI", 42, 8)
    return (b"II" if order == "<" else b"MM") + begin + body + (after or bytes(8 if big else 4))


BANDS = ((256, 3, 640), (257, 4, 480), (277, 3, 7), (258, 3, 16), (339, 3, 3))
JPEG = picture("jpeg", "RGB", exif=exif(6))
PNG = wrap(b"pixels", (5, 3, 4, 3), palette(13))
FILES = {
    "gray jpeg": picture("jpeg", "L"),
    "cmyk jpeg": picture("jpeg", "CMYK"),
    "progressive jpeg": picture("jpeg", "RGB", (40, 30), progressive=True),
    "turned jpeg": JPEG,
    "jpeg with an orientation that is none": picture("jpeg", "RGB", exif=exif(9)),
    "jpeg with fill bytes": JPEG[:2] + b"\xff\xff" + JPEG[2:],
    "jpeg without an end": JPEG[:-2],
    "jpeg cut in its header": JPEG[:60],
    "jpeg with a trailer": JPEG + bytes(70_000),
    "palette png": PNG,
    "1-bit png": picture("png", "1"),
    "gray and alpha png": picture("png", "LA"),
    "rgba png": picture("png", "RGBA"),
    "16-bit png": picture("png", "I;16"),
    "turned png": picture("png", "RGB", exif=exif(3)),
    "png of an unknown color type": wrap(b"", (5, 3, 8, 5)),
    "png without pixels": wrap(b"", (0, 3, 8, 2)),
    "large png": wrap(b"", (16385, 16384, 8, 2)),
    "png cut in a chunk": PNG[:-20],
    "png without its end": PNG[:-12],
    "bmp": picture("bmp", "RGB"),
    "gif": picture("gif", "P"),
    "webp": picture("webp", "RGBA"),
    "ppm": b"P6 5 3 255\n" + bytes(45),
    "16-bit ppm with comments": b"P6\n# a\n5 # b\n3\n65535\n" + bytes(90),
    "12-bit ppm": b"P6 5 3 4095\n" + bytes(90),
    "16-bit pgm": b"P5 5 3 65535\n" + bytes(30),
    "float tiff": picture("tiff", "F"),
    "rgb tiff": picture("tiff", "RGB"),
    "16-bit tiff": picture("tiff", "I;16"),
    "7 bands": tiff("<", *BANDS),
    "7 bands, big-endian": tiff(">", *BANDS),
    "7 bands, BigTIFF": tiff("<", *BANDS[:1], (257, 16, 480), *BANDS[2:], big=True),
    "7 bands, turned": tiff("<", *BANDS[:2], (0x0112, 3, 6), *BANDS[2:]),
    "3 bands of 16 bits": tiff(">", *BANDS[:2], (277, 3, 3), (258, 3, 16)),
    "7 bands, a loop of directories": tiff("<", *BANDS, after=struct.pack("<I", 8)),
    "empty": b"",
    "text": b"no picture at all, only words",
}


def test_headers():
    lines = []
    for name, content in FILES.items():
        try:
            header = read_header(content, "FILE")
            defaults = {"color_type": -1, "orientation": 1, "floating": False, "pages": 1}
            more = {
                key: getattr(header, key)
                for key, value in defaults.items()
                if getattr(header, key) != value
            }
            lines.append(
                f"{name}: {header.format} {header.height} x {header.width}, {header.form} {more or ''}".rstrip()
            )
            scan = header.scan and header.scan - content.find(b"\xff\xda")
            lines.append(
                f"    {header.channels} bands, palette {crc(list(header.palette))}, scan {scan}"
            )
            check_whole(content, "FILE")
        except SegtrainError as error:
            lines.append(f"{name}: {error.code}: {error} {error.values}")
    sizes = {r"(after|'found':) \d+": r"\1 N"}
    golden.check("data/headers.txt", golden.masked("\n".join(lines), sizes))


def strips(pixels: np.ndarray, rows: int) -> list[str]:
    """The chunks of a PNG in strips; of its pixels the filters and the filtered bytes."""
    content, at, lines = png_strips.encode(pixels, rows), 8, []
    unpack = zlib.decompressobj()
    while at < len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + length]
        assert content[at + 8 + length : at + 12 + length] == struct.pack(
            ">I", zlib.crc32(kind + body)
        )
        at += 12 + length
        if kind == b"IDAT":
            raw = np.frombuffer(unpack.decompress(body), np.uint8).reshape(-1, 1 + pixels[0].size)
            lines.append(f"  IDAT {len(raw)} rows, filters {raw[:, 0].tolist()}, {crc(raw)}")
        else:
            starts = len(body) // 4 - 1 if kind == b"stRP" else body.hex()
            lines.append(f"  {kind.decode()} {int.from_bytes(body[:4], 'big')} {starts}")
    assert unpack.eof
    return lines


def test_strips_of_pngs():
    rng, lines = np.random.default_rng(4), []
    ramp = np.add.outer(np.arange(17) * 5, np.arange(40) * 3).astype(np.uint8)
    kinds = {
        "two rows in turn": np.tile(rng.integers(0, 256, (2, 40), np.uint8), (9, 1))[:17],
        "slope": np.add.outer(np.arange(17) * 7, rng.integers(0, 99, 40)).astype(np.uint8),
        "ramp": np.stack([ramp, ramp.T.reshape(17, 40), 255 - ramp], axis=2),
        "noise in color": rng.integers(0, 256, (17, 40, 3), np.uint8),
        "stripes": np.repeat(np.arange(17, dtype=np.uint8) % 4 * 80, 120).reshape(17, 40, 3),
    }
    for name, pixels in kinds.items():
        lines += [name, *strips(pixels, 7)]
    golden.check("data/strips.txt", "\n".join(lines))


def test_labels():
    lines = []
    for name in ("CAMVID11", "CITYSCAPES19", "ADE20K150", "VOC21", "SCENES"):
        space: LabelSpace = getattr(presets, name)
        content = space.to_dict()
        lines.append(
            f"{name}: ignore {space.ignore_index}, {space.counted}, identity {crc(np.frombuffer(space.identity(), np.uint8))}"
        )
        raw = {
            train: [r for r, t in space.raw_to_train.items() if t == train]
            for train in range(space.num_classes)
        }
        lines += [f"  {i} {n} {space.palette[i]} {raw[i]}" for i, n in enumerate(space.names)]
        lines.append(
            f"  ignored {[r for r, t in space.raw_to_train.items() if t == 255]} colors {len(content['colors'])}"
        )
    mine = plain_space(("other", *(f"c{n}" for n in range(30))), 250)
    lines += [
        f"palette {class_palette(('a', 'b'))} {mine.palette}",
        f"full {mine.full_map([77, 3])}",
    ]
    assert LabelSpace.from_dict(mine.to_dict()) == mine
    small = voc_colored(plain_space(("bg", "x", "y")))
    lines += [
        str(small.to_dict()),
        str(small.colorize(np.array([[0, 1, 2, 3, 255]], np.uint8)).tolist()),
    ]
    rare = np.zeros((20, 20), np.uint8)
    rare[0, :9] = range(3, 12)
    rgb = np.zeros((4, 5, 3), np.uint8)
    rgb[1, 1:4] = [[9, 8, 7], [9, 8, 7], [1, 2, 3]]
    cases = [
        (small, rare), (small, np.array([[0, 7], [7, 9]], np.int32)), (small, rgb), (mine, rgb[..., :1].repeat(3, 2)),
        (plain_space(("a", "b")), rgb[..., :1].repeat(3, 2)), (mine, rgb), (mine, np.zeros((2, 2), float)), (presets.CITYSCAPES19, np.array([[7, 40], [33, -1]], np.int16)),
        (small, np.array([[0, 1], [2, 255]], np.uint16)),
    ]  # fmt: skip
    for space, raw_mask in cases:
        try:
            lines.append(str(space.remap(raw_mask, "m.png").tolist()))
        except SegtrainError as error:
            lines.append(f"{error.code}: {error} {error.values}")
    golden.check("data/labels.txt", "\n".join(lines))
