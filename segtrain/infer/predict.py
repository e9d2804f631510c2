"""What does a trained model see in these images? Class-id masks as palette PNGs, and overlays with a legend."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from segtrain.data.labels import LabelSpace
from segtrain.errors import ConfigError, DataError
from segtrain.infer.load import load_run

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
MARK = "segtrain"  # PNG text key of the files written here: only those are ever replaced


@dataclass(frozen=True)
class Job:
    """One image and the files that are made of it."""

    image: Path
    mask: Path
    overlay: Path | None


def predict(
    run_dir: str | Path,
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    which: str = "best",
    overlay: bool = True,
    alpha: float = 0.55,
    device: str = "auto",
    say: Callable[[str], None] | None = None,
) -> list[Job]:
    """Predict images (files, and folders searched through) with a run's best weights; returns what was written.

    ``out/masks/NAME.png`` holds train ids as palette indices, at the image's own size: programs that read indices get the
    ids, viewers show the class colours. ``out/overlays/NAME.png`` shows the colours over the image, with a legend. Windows,
    scales and flip are those of the run's ``eval`` section.
    Raises DataError before any work where an output would replace a file that was not made here (inputs above all) or
    two images would share a name; and after all others are done where images cannot be read, naming each.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda, but torch sees no GPU: check the driver (nvidia-smi), or take --device cpu")
    jobs = plan(paths, Path(out), overlay)
    model, config, labels = load_run(run_dir, which)
    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    segment = _segmenter(model.to(where), config, where)
    done: list[Job] = []
    faults: list[str] = []
    for job, image in _images(jobs):
        if isinstance(image, DataError):
            faults.append(str(image))
            continue
        ids = segment(image)
        write_mask(job.mask, ids, labels)
        if job.overlay:
            write_overlay(job.overlay, image, ids, labels, alpha)
        done.append(job)
        if say:
            say(f"{job.image} -> {job.mask}")
    if faults:
        rest = f"; the other {len(done)} are in {out}" if done else ""
        raise DataError(f"{len(faults)} of {len(jobs)} images cannot be read{rest}: " + "; ".join(faults))
    return done


def plan(paths: Iterable[str | Path], out: Path, overlay: bool = True) -> list[Job]:
    """Which files become which; nothing is written. Raises DataError (see ``predict``).

    Images of a folder keep their place below it; files given one by one keep their name.
    """
    found: list[tuple[Path, Path]] = []  # image, name below out
    for path in map(Path, paths):
        if path.is_dir():
            made = [(out / kind).resolve() for kind in ("masks", "overlays")]  # by an earlier call with out below path
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            inside = [p for p in inside if not (any(m in p.resolve().parents for m in made) and _ours(p))]
            if not inside:
                raise DataError(f"{path}: no image in this folder ({', '.join(sorted(SUFFIXES))})")
            found += [(p, p.relative_to(path)) for p in inside]
        elif path.is_file():
            found.append((path, Path(path.name)))
        else:
            raise DataError(f"{path}: no such file or folder")
    if not found:
        raise DataError("no image to predict: name files or folders")
    inputs = {image.resolve() for image, _ in found}
    jobs: dict[Path, Job] = {}
    for image, name in found:
        mask = out / "masks" / name.with_suffix(".png")
        job = Job(image, mask, out / "overlays" / name.with_suffix(".png") if overlay else None)
        if mask in jobs:
            if jobs[mask].image.resolve() == image.resolve():
                continue  # named twice
            raise DataError(f"{jobs[mask].image} and {image} would both become {mask}: predict them into two folders")
        for target in filter(None, (job.mask, job.overlay)):
            if target.resolve() in inputs or not _ours(target):
                raise DataError(f"{target} exists and was not written by a prediction: choose another output folder")
        jobs[mask] = job
    return list(jobs.values())


def _ours(path: Path) -> bool:
    """Whether ``path`` is free to write: absent, or a PNG of an earlier prediction."""
    from PIL import Image, UnidentifiedImageError

    if not path.exists() and not path.is_symlink():
        return True
    try:
        with Image.open(path) as image:
            return MARK in image.info
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return False


def _images(jobs: list[Job]) -> Iterator[tuple[Job, np.ndarray | DataError]]:
    """Each job with its image uint8 (H, W, 3), or why it cannot be read; the next one is decoded meanwhile."""
    from segtrain.data.decode import decode_image

    with ThreadPoolExecutor(1, thread_name_prefix="decode") as pool:
        reading = pool.submit(decode_image, str(jobs[0].image))
        for job, following in zip(jobs, [*jobs[1:], None]):
            current = reading
            if following:
                reading = pool.submit(decode_image, str(following.image))
            try:
                yield job, current.result()
            except DataError as error:
                yield job, error


def _segmenter(model: torch.nn.Module, config: Any, device: torch.device) -> Callable[[np.ndarray], np.ndarray]:
    """Image uint8 (H, W, 3) to train ids uint8 (H, W), seen as the run's evaluation sees it."""
    from segtrain.data.loader import IMAGENET_MEAN, IMAGENET_STD, normalise
    from segtrain.infer.tiles import predict_ids

    settings, base = config.eval, config.data.base_scale
    scales = tuple(scale * base for scale in settings.scales)

    def segment(image: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            pixels = torch.from_numpy(np.ascontiguousarray(image))[None].to(device)
            inputs = normalise(pixels, IMAGENET_MEAN, IMAGENET_STD, False)
            view = {"tile": settings.tile, "overlap": settings.overlap, "scales": scales, "flip": settings.flip}
            return predict_ids(model, inputs, **view)[0].to(torch.uint8).cpu().numpy()

    return segment


def write_mask(path: Path, ids: np.ndarray, labels: LabelSpace) -> None:
    """Ids uint8 (H, W) as an 8-bit palette PNG: index = train id, colour = class colour, void and the rest black."""
    from PIL import Image, PngImagePlugin

    palette = labels.colourise(np.arange(256, dtype=np.uint8)[None])[0]
    picture = Image.fromarray(ids)
    picture.putpalette(palette.tobytes())
    info = PngImagePlugin.PngInfo()
    info.add_text(MARK, "class ids")
    _write(path, lambda file: picture.save(file, format="PNG", pnginfo=info))


def write_overlay(path: Path, image: np.ndarray, ids: np.ndarray, labels: LabelSpace, alpha: float = 0.55) -> None:
    """The class colours over the image (share ``alpha``) as PNG, and below it a legend of the classes that occur."""
    from PIL import Image, PngImagePlugin

    mixed = image * np.float32(1 - alpha) + labels.colourise(ids) * np.float32(alpha)
    pixels = np.concatenate([mixed.round().astype(np.uint8), legend(ids, labels, image.shape[1])])
    info = PngImagePlugin.PngInfo()
    info.add_text(MARK, "overlay")
    _write(path, lambda file: Image.fromarray(pixels).save(file, format="PNG", pnginfo=info, compress_level=1))


def legend(ids: np.ndarray, labels: LabelSpace, width: int) -> np.ndarray:
    """Colour, name and share of each class in ``ids``, largest first, as uint8 (height, width, 3); rows wrap."""
    from PIL import Image, ImageDraw, ImageFont

    counts = np.bincount(ids.ravel(), minlength=256)[: labels.num_classes]
    order = [int(index) for index in np.argsort(-counts, kind="stable") if counts[index]]
    font = ImageFont.load_default()
    line, box, gap = 18, 10, 6  # pixels
    entries, x, y = [], gap, 4
    for index in order:
        text = f"{labels.names[index]} {100 * counts[index] / ids.size:.1f}%".encode("latin-1", "replace").decode(
            "latin-1"
        )
        length = box + gap + round(font.getlength(text)) + 2 * gap
        if x + length > width and x > gap:
            x, y = gap, y + line
        entries.append((x, y, index, text))
        x += length
    picture = Image.new("RGB", (width, y + line), "white")
    draw = ImageDraw.Draw(picture)
    for x, y, index, text in entries:
        draw.rectangle((x, y, x + box, y + box), fill=tuple(labels.palette[index]), outline="black")
        draw.text((x + box + gap, y - 1), text, fill="black", font=font)
    return np.asarray(picture)


def _write(path: Path, save: Callable[[BinaryIO], Any]) -> None:
    """Write beside, then rename: a reader sees a whole file or none. Raises DataError; nothing half-written stays."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            save(file)
        os.replace(partial, path)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}: free space or choose another folder"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # its folder may be a file
            partial.unlink(missing_ok=True)
