"""Data sets for all pipelines: images/train and masks/train (PNG, ids 0..18, 255 void), written
once per kind.

Large pictures are crops of real frames, upscaled, with sensor noise added: so that a file has the
entropy of a camera's picture, and a decoder its usual work. Without frames segtrain's generated
streets take their place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

# CamVid's id -> a Cityscapes train id: sky, building, pole, road, pavement, tree, sign, fence, car,
# pedestrian, bicyclist; 11 is void.
NINETEEN = np.full(256, 255, np.uint8)
NINETEEN[:11] = (10, 2, 5, 0, 1, 8, 7, 4, 13, 11, 18)
QUALITY = [
    cv2.IMWRITE_JPEG_QUALITY,
    95,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
]
MASK = [cv2.IMWRITE_PNG_COMPRESSION, 6]


NAMES = "road sidewalk building wall fence pole light sign vegetation terrain sky person rider car truck bus train motorcycle bicycle"


@dataclass(frozen=True)
class Kind:
    """A sort of data set: (height, width) of its pictures and of a crop; ``given``: the frames as
    they are.
    """

    size: tuple[int, int]
    crop: tuple[int, int]
    ending: str = ".jpg"
    given: bool = False


KINDS = {
    "cityscapes-jpeg": Kind((1024, 2048), (512, 1024)),
    "720p-jpeg": Kind((720, 1280), (512, 512)),
    "cityscapes-png": Kind((1024, 2048), (512, 1024), ".png"),
    "camvid": Kind((360, 480), (360, 360), given=True),
}


def make(kind: str, folder: Path, frames: str = "", count: int = 64) -> str:
    """Write a data set of ``count`` pairs into ``folder``, or take the one that is there. Returns
    one line that says what it is.

    ``frames``: CamVid's folder (train, trainannot); of these, kind 'camvid' takes all. Raises
    SystemExit where the folder is none.
    """
    what, made = KINDS[kind], folder / "made.json"
    source = f"frames of {Path(frames).name}" if frames else "generated streets"
    wanted = {"count": count, "source": source, "size": list(what.size), "version": 2}
    if made.exists() and json.loads(made.read_text())["wanted"] == wanted:
        return json.loads(made.read_text())["line"]
    # and other forms of it: see common.beside
    for old in (folder, *folder.parent.glob(f"{folder.name}+*")):
        shutil.rmtree(old, ignore_errors=True)
    for part in ("images", "masks"):
        (folder / part / "train").mkdir(parents=True)
    (folder / "classes.txt").write_text("\n".join(NAMES.split()) + "\n", encoding="utf-8")
    if frames and what.given:
        names = camvid_pairs(Path(frames))
        for image, mask in names:
            shutil.copy(image, folder / "images" / "train" / image.name)
            cv2.imwrite(
                str(folder / "masks" / "train" / mask.name),
                NINETEEN[cv2.imread(str(mask), cv2.IMREAD_UNCHANGED)],
            )
    else:
        draw = _from_frames(camvid_pairs(Path(frames)), what.size) if frames else _scenes(what.size)
        for index in range(count):
            image, mask = draw(index)
            name = f"{index:04d}"
            settings = QUALITY if what.ending == ".jpg" else []
            cv2.imwrite(
                str(folder / "images" / "train" / (name + what.ending)), image[..., ::-1], settings
            )
            cv2.imwrite(str(folder / "masks" / "train" / f"{name}.png"), mask, MASK)
    files = list((folder / "images" / "train").iterdir())
    mean = sum(f.stat().st_size for f in files) / len(files) / 1e6
    line = f"{len(files)} images {what.size[1]}x{what.size[0]} from {source}, {mean:.2f} MB a file; crop {what.crop[1]}x{what.crop[0]}"
    made.write_text(json.dumps({"wanted": wanted, "line": line}) + "\n", encoding="utf-8")
    return line


def camvid_pairs(source: Path) -> list[tuple[Path, Path]]:
    """Images of CamVid's training split, and their masks."""
    if not (source / "trainannot").is_dir():
        raise SystemExit(
            f"{source} has no folder trainannot: --frames takes the folder of CamVid, with train and trainannot"
        )
    images = sorted(p for p in (source / "train").iterdir() if p.suffix in (".png", ".jpg"))
    return [(image, source / "trainannot" / f"{image.stem}.png") for image in images]


def enlarge(
    image: np.ndarray, mask: np.ndarray, size: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A crop of a small frame, as large as the shape of ``size`` allows, upscaled to ``size``
    (height, width).

    Image uint8 (h, w, 3) by bicubic with what upscaling lacks: fine texture where the picture has
    some, and a sensor's noise, more in the dark. Mask uint8 by nearest, to 19 classes.
    """
    height, width = image.shape[:2]
    part = min(height / size[0], width / size[1])
    h, w = int(size[0] * part), int(size[1] * part)
    top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
    window = np.s_[top : top + h, left : left + w]
    large = cv2.resize(image[window], size[::-1], interpolation=cv2.INTER_CUBIC).astype(np.float32)
    gray = large.mean(axis=2)
    edges = cv2.GaussianBlur(np.abs(gray - cv2.GaussianBlur(gray, (0, 0), 4)), (0, 0), 6)
    # Both are gray and a little smooth, as demosaicing leaves them.
    grain = cv2.GaussianBlur(rng.standard_normal(size, np.float32), (0, 0), 0.6)
    large += (grain * (1.4 * edges + 3.0 + 3.0 * (1 - gray / 255)))[..., None]
    labels = cv2.resize(mask[window], size[::-1], interpolation=cv2.INTER_NEAREST)
    return np.clip(large, 0, 255).astype(np.uint8), NINETEEN[labels]


def _from_frames(
    names: list[tuple[Path, Path]], size: tuple[int, int]
) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    def draw(index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = names[index * 7 % len(names)]  # neighbors in the list are neighbors in time
        picture = cv2.cvtColor(cv2.imread(str(image)), cv2.COLOR_BGR2RGB)
        return enlarge(
            picture, cv2.imread(str(mask), cv2.IMREAD_UNCHANGED), size, np.random.default_rng(index)
        )

    return draw


def _scenes(size: tuple[int, int]) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    from segtrain.data.scenes.scene import scene

    return lambda index: scene(0, index, size)
