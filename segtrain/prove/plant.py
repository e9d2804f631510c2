"""Guarantee 5: bad labels are found before training, in the user's data and in deliberately damaged
copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from segtrain.base.terminal import counted
from segtrain.config import Config
from segtrain.data.dataset import Dataset
from segtrain.data.datasets import open_dataset
from segtrain.data.labels.space import LabelSpace
from segtrain.data.pixels.bands import BandImage
from segtrain.data.pixels.crop import Stored
from segtrain.data.pixels.decode import decode_mask
from segtrain.errors import SegtrainError, one_line
from segtrain.observe.journal import read_journal
from segtrain.parallel.cluster import Cluster
from segtrain.prove.ranks import on_ranks
from segtrain.prove.short import Survey, changed
from segtrain.prove.table import ProofRow, row
from segtrain.training.rank import train

NAME = "5 labels"
PIXELS = 7  # pixels that get the unknown value


def prove_audit(survey: Survey) -> ProofRow:
    images = " + ".join(f"{count} {split}" for split, count in survey.images.items())
    remark = f"warnings of the audit: {'; '.join(survey.warnings)}" if survey.warnings else ""
    if survey.faults:
        remark = f"first fault: {survey.faults[0]}; `segtrain data check` lists all"
    compared = f"audit of {survey.name}: {images} images and masks"
    return row(NAME, compared, remark, not survey.faults, counted(len(survey.faults), "fault"), "0")


def prove_planted(folder: Path, config: Config) -> Iterator[ProofRow]:
    """Training must refuse each planted fault before its first step, and name the file and the
    problem.
    """
    yield from on_ranks(folder, 1, plant_all, config, folder)[0]


def _judge(kind: str, named: tuple[str, ...], message: str, started: bool) -> ProofRow:
    """``message``: of the refusal, which must contain the texts ``named``. ``started``: whether
    training began.
    """
    refused = not started and all(
        re.search(rf"(?<![\w.]){re.escape(text)}(?!\w)", message) for text in named
    )
    why = f"the message must contain {', '.join(named)}: {message or '(none)'}"
    missing = "" if refused else f"{kind}: {'training began anyway' if started else why}"
    measured = "found before training" if refused else "not found"
    return row(
        NAME, f"planted {kind} is found, by file and value", missing, refused, measured, "found"
    )


def plant_all(cluster: Cluster, config: Config, folder: Path) -> list[ProofRow]:
    """For each kind of fault: copy two samples, damage one of them, and start training."""
    dataset = open_dataset(config.data, config.data.train_split)
    rows = []
    kinds = {
        "unknown id": _unknown_id,
        "mask of another size": _other_size,
        "truncated file": _truncated,
    }
    for kind, damage in kinds.items():
        root = folder / kind.replace(" ", "-")
        image, mask, colored = _copy(dataset, root)
        named = damage(image, mask, dataset.labels)
        out, message = root / "run", ""
        try:
            train(
                changed(config, out=str(out), **_settings(dataset.labels, root, colored)), cluster
            )
        except SegtrainError as error:
            message = one_line(error)
        journal = read_journal(out, say=lambda _: None) if (out / "journal.jsonl").is_file() else []
        rows.append(
            _judge(kind, named, message, any(event["event"] == "run_start" for event in journal))
        )
    return rows


def _copy(dataset: Dataset, root: Path) -> tuple[Path, Path, bool]:
    """Copy two samples to ``images/train`` and ``masks/train``.

    Returns the image and the mask file of the second sample, and whether the masks are RGB.
    """
    for part in ("images", "masks"):
        (root / part / "train").mkdir(parents=True)
    colored = False
    for index in range(min(2, len(dataset))):
        entry = dataset.entries[index]
        image, mask = (root / part / "train" / f"sample{index}.png" for part in ("images", "masks"))
        if not dataset.stored:
            pixels, ids = dataset.read(index)
            _save(pixels, image)
            _save(_raw(ids, dataset.labels), mask)
        else:
            record = dataset.record(index)
            image = _written(record.image, image.with_suffix(Path(entry.image).suffix))
            mask = _written(record.mask, mask.with_suffix(Path(str(entry.mask)).suffix))
            colored = decode_mask(mask).ndim == 3
    return image, mask, colored


def _written(stored: Stored | None, path: Path) -> Path:
    """Write an image or mask to a file: stored bytes as they are, an array of pixels as PNG.
    Returns the path.
    """
    if isinstance(stored, np.ndarray):
        path = path.with_suffix(".png")
        _save(stored, path)
    elif isinstance(stored, BandImage):
        path = path.with_suffix(".npy")
        np.save(path, stored.values())
    else:
        path.write_bytes(stored or b"")
    return path


def _raw(ids: np.ndarray, labels: LabelSpace) -> np.ndarray:
    """Convert class ids to the values of mask files. If several values mean the same class, the
    smallest is used.
    """
    table = np.zeros(labels.mask_values, labels.mask_dtype)
    for raw, train_id in sorted(labels.raw_to_train.items(), reverse=True):
        if 0 <= raw < len(table):
            table[train_id] = raw
    return table[ids]


def _settings(labels: LabelSpace, root: Path, colored: bool) -> dict[str, object]:
    """Settings that read the copies as layout 'folders', with the user's classes."""
    ignore = labels.ignore_index
    classes: object = list(labels.names)
    if colored and labels.colors:
        lines = [
            (
                f"{code >> 16} {code >> 8 & 255} {code & 255} "
                f"{'void' if train_id == ignore else labels.names[train_id]}"
            )
            for code, train_id in sorted(
                labels.colors.items(), key=lambda item: (item[1] == ignore, item[1])
            )
        ]
        (root / "classes.txt").write_text("\n".join(lines), encoding="utf-8")
        classes = str(root / "classes.txt")
    table = {
        raw: -1 if train_id == ignore else train_id for raw, train_id in labels.raw_to_train.items()
    }
    return {
        "data__layout": "folders",
        "data__root": str(root),
        "data__images": "images/{split}",
        "data__masks": "masks/{split}",
        "data__pair": None,
        "data__files": (),
        "data__train_split": "train",
        "data__split": "train",
        "data__classes": classes,
        "data__label_map": {} if colored else table,
        "data__split_by": {},
        "data__leave_out": (),
        "data__faults": "error",
        "data__overlap": "accept",
        "data__limit": 0,
        "train__duration": "1st",
        "optim__warmup": "0st",
        "optim__encoder_start": "0st",
        "loss__class_weights": "none",
    }


def _unknown_id(image: Path, mask: Path, labels: LabelSpace) -> tuple[str, ...]:
    raw = decode_mask(mask)
    if raw.ndim == 3 and labels.colors:
        code = next(c for c in range(1 << 24) if c not in labels.colors)
        value: object = tuple(int(part) for part in code.to_bytes(3, "big"))
        raw = raw.copy()
        raw[0, :PIXELS] = value
        _save(raw, mask)
        return mask.name, str(value).strip("()"), f"{PIXELS} pixels"
    raw = raw[..., 0] if raw.ndim == 3 else raw  # All three channels contain the same id.
    unknown = next(value for value in range(1 << 16) if value not in labels.raw_to_train)
    raw = raw.astype(np.uint8 if max(unknown, int(raw.max())) < 256 else np.uint16)
    raw[0, :PIXELS] = unknown
    _save(raw, mask)
    return mask.name, str(unknown), f"{PIXELS} pixels"


def _other_size(image: Path, mask: Path, labels: LabelSpace) -> tuple[str, ...]:
    raw = decode_mask(mask)[:-1]
    _save(raw if raw.dtype in (np.uint8, np.uint16) else raw.astype(np.uint16), mask)
    return mask.name, f"{raw.shape[0]} x {raw.shape[1]}"


def _truncated(image: Path, mask: Path, labels: LabelSpace) -> tuple[str, ...]:
    content = image.read_bytes()
    image.write_bytes(content[: len(content) // 2])
    return image.name, f"{len(content) // 2:,} bytes"


def _save(pixels: np.ndarray, file: Path) -> None:
    """Write as PNG, even if the extension is another one. The decoder chooses the format by the
    content.
    """
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="PNG")
