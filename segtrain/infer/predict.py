"""`segtrain predict`: class-id masks of images as palette PNGs, overlays with a legend, and probabilities."""

from __future__ import annotations

import contextlib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from segtrain.data.index.names import SUFFIXES
from segtrain.data.labels.space import LabelSpace, is_background
from segtrain.data.pixels.decode import Reading
from segtrain.errors import DataError, some_of
from segtrain.files import writing
from segtrain.infer.predictor import Picture, load, read_picture

# Marks the files written here: the name of a text in PNG files, and of an array in NPZ files. Only files with this mark
# are replaced.
MARK = "segtrain"
ALPHA = 0.55  # share of the class colors in an overlay


@dataclass(frozen=True)
class PredictTask:
    """One image and the files that are made of it."""

    image: Path
    mask: Path
    overlay: Path | None
    probabilities: Path | None = None


def predict(
    run_dir: str | Path,
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    which: str = "best",
    overlay: bool = True,
    probabilities: bool = False,
    device: str = "auto",
    overrides: Iterable[str] = (),
    say: Callable[[str], None] | None = None,
) -> list[PredictTask]:
    """Predict image files and the images in folders with the weights of a run; returns what was written.

    ``out/masks/NAME.png`` holds train ids as palette indices, at the size of the image and upright by its EXIF
    orientation. ``out/overlays/NAME.png`` shows the class colors over the image, with a legend.
    ``out/probabilities/NAME.npz`` holds ``probabilities``, float16 (C, H, W), and ``classes``, the C names. Windows,
    scales, and flip are those of the run's ``eval`` section, unless ``overrides`` change them
    (``eval.tile=[512,512]``). An image that does not fit into memory is predicted in windows, with a remark.

    Raises DataError before any work if an output would replace a file that no prediction wrote, or if two images would
    get the same name. If images cannot be read, raises DataError at the end, with all their names.
    """
    jobs = plan(paths, Path(out), overlay, say, probabilities)
    predictor = load(run_dir, *overrides, which=which, device=device, say=say or (lambda text: None))
    labels = predictor.labels
    done: list[PredictTask] = []
    faults: list[str] = []
    for number, (job, picture) in enumerate(_images(jobs, Reading.of(predictor.config.data)), 1):
        if isinstance(picture, DataError):
            faults.append(str(picture))
            continue
        image = picture.pixels
        ids, scores = predictor.segment(image, str(job.image), job.probabilities is not None)
        write_mask(job.mask, ids, labels)
        if job.overlay:
            write_overlay(job.overlay, image, ids, labels)
        if job.probabilities and scores is not None:
            write_probabilities(job.probabilities, scores, labels)
        done.append(job)
        if say:
            progress = f"{number}/{len(jobs)}  " if len(jobs) > 1 else ""
            say(f"{progress}{job.image} -> {job.mask}" + (f" ({picture.note})" if picture.note else ""))
    if faults:
        rest = f"; the other {len(done)} are in {out}" if done else ""
        why = f"{len(faults)} of {len(jobs)} images cannot be read{rest}: {'; '.join(faults)}"
        raise DataError(why, code="images-unreadable", found=len(faults), images=len(jobs), faults=faults)
    return done


def plan(
    paths: Iterable[str | Path],
    out: Path,
    overlay: bool = True,
    say: Callable[[str], None] | None = None,
    probabilities: bool = False,
) -> list[PredictTask]:
    """The tasks for ``paths``; nothing is written. Raises DataError (see ``predict``).

    Images of a folder keep their path below it. If the names of images differ only in the extension, the names of the
    outputs keep it: ``a.jpg.png``.
    ``say`` reports files that are left out.
    """
    found = [pair for path in map(Path, paths) for pair in _below(path, out, say)]
    if not found:
        raise DataError("no image to predict: name files or folders", code="no-images")
    inputs = {image.resolve() for image, _ in found}
    jobs: dict[Path, PredictTask] = {}
    stems = Counter(name.with_suffix("") for image, name in {(image.resolve(), name) for image, name in found})
    for image, name in found:
        made_as = name.with_suffix(".png") if stems[name.with_suffix("")] == 1 else name.with_name(f"{name.name}.png")
        mask = out / "masks" / made_as
        soft = out / "probabilities" / made_as.with_suffix(".npz") if probabilities else None
        job = PredictTask(image, mask, out / "overlays" / made_as if overlay else None, soft)
        if mask in jobs:
            if jobs[mask].image.resolve() == image.resolve():
                continue  # named twice
            why = f"{jobs[mask].image} and {image} would both become {mask}: predict them into two folders"
            raise DataError(why, code="same-mask-name")
        for target in filter(None, (job.mask, job.overlay, job.probabilities)):
            if target.resolve() in inputs or not _ours(target):
                why = f"{target} exists and was not written by a prediction: choose another output folder"
                raise DataError(why, code="output-exists", file=str(target))
        jobs[mask] = job
    return list(jobs.values())


def _below(path: Path, out: Path, say: Callable[[str], None] | None) -> list[tuple[Path, Path]]:
    """(image, its name below ``out``) for a file, or for each image in a folder."""
    if path.is_file():
        return [(path, Path(path.name))]
    if not path.is_dir():
        problem = "is neither a file nor a folder" if path.exists() else "no such file or folder"
        raise DataError(f"{path}: {problem}", code="image-missing", file=str(path))
    # Outputs of an earlier call may lie below ``path``.
    made = [(out / kind).resolve() for kind in ("masks", "overlays", "probabilities")]
    files = sorted(file for file in path.rglob("*") if not file.is_dir())
    files = [file for file in files if not (file.suffix == ".npz" and made[2] in file.resolve().parents)]
    images = [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]
    inside = [file for file in images if not (any(m in file.resolve().parents for m in made) and _ours(file))]
    if not inside:
        endings = ", ".join(sorted(SUFFIXES))
        raise DataError(f"{path}: no image in this folder ({endings})", code="no-images", folder=str(path))
    # These do not end like an image file, or are not regular files (a FIFO, a device, a broken link).
    others = [str(f.relative_to(path)) for f in sorted({*files} - {*images}) if f.name[0] != "."]
    if say and others:
        say(f"{path}: {len(others)} files left out, which are not image files: {some_of(others)}")
    return [(file, file.relative_to(path)) for file in inside]


def _ours(path: Path) -> bool:
    """Whether ``path`` is free to write: absent, or a PNG or an array of an earlier prediction."""
    from PIL import Image, UnidentifiedImageError

    if not path.exists() and not path.is_symlink():
        return True
    if path.suffix == ".npz":
        with contextlib.suppress(OSError, EOFError, ValueError, zipfile.BadZipFile), np.load(path) as arrays:
            return MARK in arrays.files
        return False
    try:
        with Image.open(path) as image:
            return MARK in image.info
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return False


def _images(jobs: list[PredictTask], reading: Reading) -> Iterator[tuple[PredictTask, Picture | DataError]]:
    """Each job with its image, or with the error of reading it. A thread already decodes the next image."""
    with ThreadPoolExecutor(1, thread_name_prefix="decode") as pool:
        waiting = pool.submit(read_picture, str(jobs[0].image), reading)
        for job, following in zip(jobs, [*jobs[1:], None]):
            current = waiting
            if following:
                waiting = pool.submit(read_picture, str(following.image), reading)
            try:
                yield job, current.result()
            except DataError as error:
                yield job, error


def write_mask(path: Path, ids: np.ndarray, labels: LabelSpace) -> None:
    """Ids uint8 (H, W) as an 8-bit palette PNG: index = train id, color = class color, void and the rest black."""
    from PIL import Image

    picture = Image.fromarray(ids)
    picture.putpalette(labels.colorize(np.arange(256, dtype=np.uint8)[None])[0].tobytes())
    _write_png(path, picture, "class ids")


def write_probabilities(path: Path, probabilities: np.ndarray, labels: LabelSpace) -> None:
    """``probabilities`` float16 (C, H, W), ``classes`` (C,), and the mark of a prediction as one .npz file."""
    marked: dict[str, Any] = {MARK: np.array("probabilities")}
    classes = np.array(labels.names)
    _write(path, lambda file: np.savez(file, probabilities=probabilities, classes=classes, **marked))


def write_overlay(path: Path, image: np.ndarray, ids: np.ndarray, labels: LabelSpace) -> None:
    """The class colors over the image (share ``ALPHA``) as PNG, and below it a legend of the classes that occur.

    If class 0 is named background, its pixels keep the image's own colors.
    """
    from PIL import Image

    mixed = image * np.float32(1 - ALPHA) + labels.colorize(ids) * np.float32(ALPHA)
    if is_background(labels.names, 0):
        mixed = np.where((ids == 0)[:, :, None], image, mixed)
    pixels = np.concatenate([mixed.round().astype(np.uint8), legend(ids, labels, image.shape[1])])
    _write_png(path, Image.fromarray(pixels), "overlay", compress_level=1)


def legend(ids: np.ndarray, labels: LabelSpace, width: int) -> np.ndarray:
    """Color, name and share of each class in ``ids``, largest first, as uint8 (height, width, 3); rows wrap."""
    from PIL import Image, ImageDraw, ImageFont

    counts = np.bincount(ids.ravel(), minlength=256)[: labels.num_classes]
    order = [int(index) for index in np.argsort(-counts, kind="stable") if counts[index]]
    font = ImageFont.load_default()
    line, box, gap = 18, 10, 6  # pixels
    entries, x, y = [], gap, 4
    for index in order:
        plain = ", not tinted" if is_background(labels.names, index) else ""
        text = f"{labels.names[index]} {100 * counts[index] / ids.size:.1f}%{plain}"
        text = text.encode("latin-1", "replace").decode("latin-1")  # the font has no other characters
        length = box + gap + round(font.getlength(text)) + 2 * gap
        if x + length > width and x > gap:
            x, y = gap, y + line
        entries.append((x, y, index, text))
        x += length
    picture = Image.new("RGB", (width, y + line), "white")
    draw = ImageDraw.Draw(picture)
    for x, y, index, text in entries:
        fill = "white" if is_background(labels.names, index) else tuple(labels.palette[index])
        draw.rectangle((x, y, x + box, y + box), fill=fill, outline="black")
        draw.text((x + box + gap, y - 1), text, fill="black", font=font)
    return np.asarray(picture)


def _write_png(path: Path, picture: Any, kind: str, **options: Any) -> None:
    from PIL import PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_text(MARK, kind)
    _write(path, lambda file: picture.save(file, format="PNG", pnginfo=info, **options))


def _write(path: Path, save: Callable[[BinaryIO], Any]) -> None:
    """Write a file atomically. Raises DataError, and leaves no partial file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            save(file)
    except OSError as error:
        why = f"cannot write {path}: {error.strerror or error}: free space or choose another folder"
        raise DataError(why, code="prediction-unwritable") from None
