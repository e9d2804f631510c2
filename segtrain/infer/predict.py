"""`segtrain predict`: class-id masks of images as palette PNGs, overlays with a legend, and
probabilities.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from segtrain.base.cores import cores
from segtrain.base.terminal import counted
from segtrain.data.index.names import IMAGE_ARRAYS, SUFFIXES
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels.bands import georeference, visible
from segtrain.data.pixels.decode import PLAIN, Reading
from segtrain.data.storage import system_folder
from segtrain.errors import DataError, some_of
from segtrain.infer import polygons as shapes
from segtrain.infer.outputs import (
    MARK,
    is_untouched_json,
    raw_ids,
    refuse_loss,
    write_geotiff,
    write_json,
    write_mask,
    write_overlay,
    write_probabilities,
    write_raw,
)
from segtrain.infer.predictor import Picture, load, read_picture
from segtrain.infer.stream import Item, segmented
from segtrain.observe.journal import Say

_SOFTWARE = 305  # the TIFF tag that names the program


@dataclass(frozen=True)
class PredictTask:
    """One image and the files that are made of it."""

    image: Path
    mask: Path
    overlay: Path | None
    probabilities: Path | None = None
    polygons: Path | None = None  # of COCO: the file of all images
    name: str = ""  # of the image, below the folder that was passed
    # the tags of a GeoTIFF, if the mask becomes one: see ``bands.georeference``
    place: dict[int, tuple[Any, ...]] | None = None


def predict(
    run_dir: str | Path,
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    which: str = "best",
    overlay: bool = True,
    probabilities: bool = False,
    ids: str = "train",
    polygons: str = "",
    device: str = "auto",
    overrides: Iterable[str] = (),
    batch_size: int = 0,
    say: Say = lambda text: None,
) -> list[PredictTask]:
    """Predict image files and the images in folders with the weights of a run; returns what was
    written.

    ``out/masks/NAME.png`` holds train ids as palette indices, at the size of the image and upright
    by its EXIF orientation; ``NAME.tif`` for a GeoTIFF whose stored values are kept.
    ``out/overlays/NAME.png`` shows the class colors over the image, with a legend.
    ``out/probabilities/NAME.npz`` holds ``probabilities``, float16 (C, H, W), and
    ``classes``, the C names. With ``ids="raw"``, masks hold the ids of the data set's own masks, as
    gray values: see ``outputs.raw_ids``. ``polygons``: labelme, coco, or geojson, into
    ``out/polygons``. Windows, scales, and flip are those of the run's ``eval`` section,
    unless ``overrides`` change them (``eval.tile=[512,512]``). An image that does not fit into
    memory is predicted in windows, with a remark.

    ``batch_size``: images of one size that are predicted together; 0: 1 on a CPU, as many as fit on
    a GPU. Threads read and write files. The messages of ``say`` and the result have the order of
    the images.

    Raises DataError before any work if an output would replace a file that no prediction wrote, or
    if two images would get the same name. If images cannot be read, raises DataError at the end,
    with all their names.
    """
    predictor = load(run_dir, *overrides, which=which, device=device, say=say)
    reading = Reading.from_data(predictor.config.data)
    raw = raw_ids(predictor.labels) if ids == "raw" else None
    jobs = plan(paths, Path(out), overlay, say, probabilities, reading, raw is not None, polygons)
    threads = min(8, cores()) if predictor.asynchronous else 1
    with _threads("decode", threads) as readers, _threads("write", threads) as writers:
        form = Form(predictor.labels, raw, polygons)
        outputs = _Outputs(jobs, form, writers, 2 * threads, say)
        items = outputs.readable(_images(jobs, reading, readers, 2 * threads))
        for item, (mask, scores) in segmented(predictor, items, batch_size, probabilities):
            outputs.write(item, mask, scores)
        outputs.report(wait=True)
    file = jobs[0].polygons
    if file and polygons == "coco":
        write_json(file, shapes.coco(outputs.of_images, predictor.labels))
    faults = outputs.faults
    if faults:
        rest = f"; the other {len(outputs.done)} are in {out}" if outputs.done else ""
        raise DataError(
            f"{len(faults)} of {len(jobs)} images cannot be read{rest}: {'; '.join(faults)}",
            code="images-unreadable",
            found=len(faults),
            images=len(jobs),
            faults=faults,
        )
    return outputs.done


@dataclass(frozen=True)
class Form:
    """How predictions are written. raw: the raw id of each train id, if masks hold raw ids.
    polygons: their format, or "".
    """

    labels: LabelSpace
    raw: np.ndarray | None
    polygons: str


@contextlib.contextmanager
def _threads(name: str, count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that finish all their work; after Ctrl-C only what they are at, so that files are
    whole.
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(cancel_futures=not isinstance(error, Exception))
        raise
    pool.shutdown()


class _Outputs:
    """Writes what is found in threads, and reports it in the order of the images."""

    def __init__(
        self,
        jobs: list[PredictTask],
        form: Form,
        writers: ThreadPoolExecutor,
        most: int,
        say: Say,
    ) -> None:
        self.done: list[PredictTask] = []
        self.faults: list[str] = []
        self.of_images: list[shapes.CocoImage] = []
        self._jobs = jobs
        self._form = form
        self._writers = writers
        self._say = say
        self._free = BoundedSemaphore(most)  # images that are being written, or wait for it
        # by number, from ``_next`` on
        self._outcomes: dict[int, DataError | tuple[str, Future[shapes.CocoImage | None]]] = {}
        self._next = 0

    def readable(self, pictures: Iterable[Picture | DataError]) -> Iterator[Item]:
        """The pictures that could be read."""
        for number, picture in enumerate(pictures):
            if isinstance(picture, DataError):
                self._outcomes[number] = picture
            else:
                name = str(self._jobs[number].image)
                yield Item(picture.pixels, name, (number, picture.note), picture.void)

    def write(self, item: Item, ids: np.ndarray, scores: np.ndarray | None) -> None:
        number, note = item.key
        self._free.acquire()
        future = self._writers.submit(
            _write_all, self._jobs[number], item.pixels, ids, scores, self._form
        )
        future.add_done_callback(lambda _: self._free.release())
        self._outcomes[number] = note, future
        self.report()

    def report(self, wait: bool = False) -> None:
        """Report the images up to the first that is not written. Raises the DataError of one that
        cannot be written.
        """
        while outcome := self._outcomes.get(self._next):
            if isinstance(outcome, DataError):
                self.faults.append(str(outcome))
            elif wait or outcome[1].done():
                of_image = outcome[1].result()
                self.of_images += [of_image] if of_image else []
                job = self._jobs[self._next]
                self.done.append(job)
                progress = f"{self._next + 1}/{len(self._jobs)}  " if len(self._jobs) > 1 else ""
                self._say(
                    f"{progress}{job.image} -> {job.mask}"
                    + (f" ({outcome[0]})" if outcome[0] else "")
                )
            else:
                return
            del self._outcomes[self._next]
            self._next += 1


def _write_all(
    job: PredictTask,
    image: np.ndarray,
    ids: np.ndarray,
    scores: np.ndarray | None,
    form: Form,
) -> shapes.CocoImage | None:
    """Write the files of an image. Returns what it adds to a file of COCO."""
    labels = form.labels
    if job.place:
        write_geotiff(job.mask, ids, labels, job.place, form.raw)
    elif form.raw is not None:
        write_raw(job.mask, form.raw[ids])
    else:
        write_mask(job.mask, ids, labels)
    if job.overlay:
        write_overlay(job.overlay, visible(image), ids, labels)
    if job.probabilities and scores is not None:
        write_probabilities(job.probabilities, scores, labels)
    if form.polygons == "coco":
        return shapes.coco_image(job.name, ids, labels)
    if job.polygons and form.polygons == "labelme":
        write_json(job.polygons, shapes.labelme(job.image, job.polygons, ids, labels))
    elif job.polygons:
        write_json(job.polygons, shapes.geojson(ids, labels, shapes.place_of(job.image)))
    return None


def plan(
    paths: Iterable[str | Path],
    out: Path,
    overlay: bool = True,
    say: Say = lambda text: None,
    probabilities: bool = False,
    reading: Reading = PLAIN,
    raw: bool = False,
    polygons: str = "",
) -> list[PredictTask]:
    """The tasks for ``paths``; nothing is written. Raises DataError (see ``predict``). If
    ``reading`` keeps stored values, .npy files are images, and masks of GeoTIFFs are GeoTIFFs.
    ``raw``: masks of Cityscapes get the names of its own masks. ``polygons``: as in ``predict``.

    Images of a folder keep their path below it. If the names of images differ only in the
    extension, the names of the outputs keep it: ``a.jpg.png``.
    ``say`` reports files that are left out.
    """
    pairs = [pair for path in map(Path, paths) for pair in _below(path, say, reading)]
    if not pairs:
        raise DataError("no image to predict: name files or folders", code="no-images")
    inputs = {image.resolve() for image, _ in pairs}
    jobs: dict[Path, PredictTask] = {}
    stems = Counter(
        name.with_suffix("") for image, name in {(image.resolve(), name) for image, name in pairs}
    )
    for image, name in pairs:
        made_as = (
            name.with_suffix(".png")
            if stems[name.with_suffix("")] == 1
            else name.with_name(f"{name.name}.png")
        )
        place = georeference(str(image)) if reading.pixels.stored else None
        mask = out / "masks" / (made_as.with_suffix(".tif") if place else made_as)
        if raw:
            mask = mask.with_name(mask.name.replace("_leftImg8bit.", "_gtFine_labelIds."))
        soft = out / "probabilities" / made_as.with_suffix(".npz") if probabilities else None
        picture = out / "overlays" / made_as if overlay else None
        polygon_name = (
            "annotations.json"
            if polygons == "coco"
            else made_as.with_suffix(".geojson" if polygons == "geojson" else ".json")
        )
        drawn = out / "polygons" / polygon_name if polygons else None
        job = PredictTask(image, mask, picture, soft, drawn, name.as_posix(), place)
        if mask in jobs:
            if jobs[mask].image.resolve() == image.resolve():
                continue  # named twice
            raise DataError(
                f"{jobs[mask].image} and {image} would both become {mask}: predict them into "
                "two folders",
                code="same-mask-name",
            )
        for target in filter(None, (job.mask, job.overlay, job.probabilities, job.polygons)):
            if target.resolve() in inputs or not _ours(target):
                raise DataError(
                    f"{target} exists and was not written by a prediction, or was edited: choose "
                    "another output folder",
                    code="output-exists",
                    file=str(target),
                )
        jobs[mask] = job
    if polygons == "coco" and drawn and drawn.exists():
        refuse_loss(drawn, {job.name for job in jobs.values()})
    return list(jobs.values())


def _below(path: Path, say: Say, reading: Reading) -> list[tuple[Path, Path]]:
    """(image, its name in the output) for a file, or for each image in a folder, without the
    outputs of earlier calls.
    """
    if path.is_file():
        return [(path, Path(path.name))]
    if not path.is_dir():
        problem = "is neither a file nor a folder" if path.exists() else "no such file or folder"
        raise DataError(f"{path}: {problem}", code="image-missing", file=str(path))
    files = sorted(file for file in path.rglob("*") if not file.is_dir())
    hidden = {
        file: None for file in files if system_folder(file.relative_to(path).parent.as_posix())
    }
    if hidden:
        text = (
            f"{counted(len(hidden), 'file')} left out, because folders of the system hold no "
            f"data: {some_of([*hidden])}"
        )
        say(f"{path}: {text}")
    outputs = {"masks", "overlays", "probabilities", "polygons"}
    files = [
        file
        for file in files
        if file not in hidden
        and not (outputs & {*file.relative_to(path).parts[:-1]} and file.is_file() and _ours(file))
    ]
    suffixes = SUFFIXES | IMAGE_ARRAYS if reading.pixels.stored else SUFFIXES
    images = [file for file in files if file.suffix.lower() in suffixes and file.is_file()]
    images = [file for file in images if reading.files_of(str(file))]
    files = images if reading.files else files
    if not images:
        endings = ", ".join(reading.files or sorted(suffixes))
        raise DataError(
            f"{path}: no image in this folder ({endings})", code="no-images", folder=str(path)
        )
    # These do not end like an image file, or are not regular files (a FIFO, a device, a broken
    # link).
    others = [str(f.relative_to(path)) for f in sorted({*files} - {*images}) if f.name[0] != "."]
    if others:
        left = counted(len(others), "file")
        say(f"{path}: {left} left out, by their names no images: {some_of(others)}")
    return [(file, file.relative_to(path)) for file in images]


def _ours(path: Path) -> bool:
    """Whether ``path`` is free to write: absent, or a file of an earlier prediction."""
    from PIL import Image, UnidentifiedImageError

    if not path.exists() and not path.is_symlink():
        return True
    if path.suffix == ".npz":
        with (
            contextlib.suppress(OSError, EOFError, ValueError, zipfile.BadZipFile),
            np.load(path) as arrays,
        ):
            return MARK in arrays.files
        return False
    if path.suffix in (".json", ".geojson"):
        with contextlib.suppress(OSError):
            return is_untouched_json(path)
        return False
    try:
        with Image.open(path) as image:
            return MARK in image.info or getattr(image, "tag_v2", {}).get(_SOFTWARE) == MARK
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return False


def _images(
    jobs: list[PredictTask], reading: Reading, readers: ThreadPoolExecutor, ahead: int
) -> Iterator[Picture | DataError]:
    """The image of each job, or the error of reading it. Threads decode up to ``ahead`` of the next
    images.
    """
    rest = iter(jobs)
    waiting = deque(
        readers.submit(read_picture, str(job.image), reading) for job in islice(rest, ahead)
    )
    while waiting:
        try:
            picture: Picture | DataError = waiting.popleft().result()
        except DataError as error:
            picture = error
        waiting.extend(
            readers.submit(read_picture, str(job.image), reading) for job in islice(rest, 1)
        )
        yield picture
