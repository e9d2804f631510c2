"""Gallery of a report: the worst and the best images, and the pictures that a run wrote, small
enough for a page.
"""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from segtrain.base.files import open_file
from segtrain.base.units import percent
from segtrain.errors import DataError
from segtrain.insight.report import charts
from segtrain.insight.report.html import esc, table
from segtrain.insight.runs.folder import RunFolder
from segtrain.observe import image_table
from segtrain.observe.image_table import ImageRow

_MOST_BYTES = 500_000  # of all pictures together
# Width in pixels and JPEG quality, tried in this order until a picture is small enough. The first
# width suits a laptop with a high-density screen (two pixels per point).
_FORMS = ((1360, 82), (1360, 68), (1080, 68), (820, 62))
# The worst and the best images are listed by name, up to this many of each: as many as a run draws.
_LISTED = 4
_SHEETS = {
    "worst": (
        "Worst predictions",
        "the images of the validation split with the lowest mIoU of their own, the worst first",
    ),
    "best": ("Best predictions", "the images with the highest mIoU of their own, the best first"),
    "val": ("Predictions", "images spread evenly over the validation split"),
}
_ALT = "image, truth, prediction and errors side by side, each with its own mIoU"


def gallery(drawn: charts.Charts, run: RunFolder) -> str:
    """HTML of the scores of the images, then of the sheets of pictures in ``pictures/``.

    Files that cannot be read or are too large are named.
    """
    rows, when = _table(run)
    return _scores(drawn, rows, when) + _sheets(run.folder / "pictures")


def _scores(drawn: charts.Charts, rows: list[ImageRow], when: str) -> str:
    scored = [row for row in rows if row.miou is not None]
    if not scored:
        return ""
    void = len(rows) - len(scored)
    note = f"{len(scored)} images, {when}" + (
        f"; {void} more are all void and have no score" if void else ""
    )
    worst = scored[: min(_LISTED, (len(scored) + 1) // 2)]
    best = scored[::-1][: min(_LISTED, len(scored) // 2)]
    shares = [row.miou for row in scored if row.miou is not None]
    chart = charts.image_scores(drawn, shares, note)
    return chart + (
        "<div "
        f'class="side">{_names("The worst images", worst)}{_names("The best images", best)}</div>'
    )


def _table(run: RunFolder) -> tuple[list[ImageRow], str]:
    """Scores of the images in one evaluation, and a text that says which evaluation that is.

    It is the last one if its table can be read, because the images of the last evaluation are
    drawn. Else it is the best one, because a run that has not ended has only this table. Empty if
    neither table can be read.
    """
    for file, event, which in (
        (image_table.LAST, run.evals[-1] if run.evals else {}, "last"),
        (image_table.BEST, run.best, "best"),
    ):
        with contextlib.suppress(DataError):  # missing or torn
            rows = image_table.read(run.folder / file)
            step = f" (step {event['step']})" if event else ""
            return rows, f"the {which} evaluation{step}, all in {file}"
    return [], ""


def _names(caption: str, rows: Sequence[ImageRow]) -> str:
    if not rows:
        return ""
    names = image_table.short_names([row.image for row in rows])
    cells = [
        (
            name,
            percent(row.miou),
            percent(row.accuracy),
            f"{row.worst_class} {percent(row.worst_iou)}",
        )
        for name, row in zip(names, rows)
    ]
    return table(
        ("image", "mIoU", "pixel accuracy", "its worst class, IoU"),
        cells,
        left=(0, 3),
        caption=caption,
    )


def _sheets(folder: Path) -> str:
    order = [*_SHEETS]
    paths = sorted(
        folder.glob("*.png"),
        key=lambda p: (order.index(p.stem) if p.stem in order else len(order), p.name),
    )
    return "".join(_figure(path, _small(path, _MOST_BYTES // len(paths))) for path in paths)


def _figure(path: Path, drawn: tuple[bytes, tuple[int, int]] | str) -> str:
    if isinstance(drawn, str):
        return f"<p class=quiet>{esc(drawn)}</p>"
    data, size = drawn
    title, subtitle = _SHEETS.get(path.stem, (path.stem, ""))
    return (
        f'<figure class="picture"><figcaption><b>{esc(title)}</b> '
        f"<span>{esc(subtitle)}</span></figcaption>"
        f"{image(data, size, f'{title}: {_ALT}')}</figure>"
    )


def image(data: bytes, size: tuple[int, int], alt: str) -> str:
    """An element with the bytes of a JPEG of ``size`` (width, height)."""
    text = base64.b64encode(data).decode("ascii")
    return (
        f'<img src="data:image/jpeg;base64,{text}" width="{size[0]}" height="{size[1]}" '
        f'alt="{esc(alt)}">'
    )


def _small(path: Path, share: int) -> tuple[bytes, tuple[int, int]] | str:
    """A picture as JPEG of at most ``share`` bytes with its width and height, or why it is
    missing.
    """
    try:
        with open_file(path) as file, Image.open(file) as sheet:
            picture = sheet.convert("RGB")
    except UnidentifiedImageError:
        return f"{path.name} cannot be read as a picture"
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be read: {error}"
    return (
        fitted(picture, _FORMS, share)
        or f"{path.name} is left out, it would make the page heavy: see {path}"
    )


def fitted(
    picture: Image.Image, forms: Sequence[tuple[int, int]], most: int
) -> tuple[bytes, tuple[int, int]] | None:
    """A picture as JPEG, with its width and height, in the first form (width, quality) that takes
    at most ``most`` bytes.
    """
    return next((form for size in forms if len((form := _jpeg(picture, *size))[0]) <= most), None)


def _jpeg(picture: Image.Image, width: int, quality: int) -> tuple[bytes, tuple[int, int]]:
    if picture.width > width:
        picture = picture.resize(
            (width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS
        )
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality, optimize=True, progressive=True)
    return out.getvalue(), picture.size
