"""What did the model see, and where was it wrong? The pictures a run wrote, small enough for a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from segtrain.report.html import esc
from segtrain.report.run import Run

_WIDTH = 1360  # pixels: two a point of a laptop's column
_QUALITY = 82
_MOST_BYTES = 500_000  # of all pictures together


def gallery(run: Run) -> str:
    """The contact sheets under ``pictures/``; what cannot be read, or would make the page heavy, is named instead."""
    found, left = [], _MOST_BYTES
    for path in sorted((run.folder / "pictures").glob("*.png")):
        try:
            data, size = _small(path)
        except (OSError, ValueError) as error:
            found.append(f"<p class=quiet>{esc(path.name)} cannot be read: {esc(error)}</p>")
            continue
        if len(data) > left:
            found.append(
                f"<p class=quiet>{esc(path.name)} is left out, it would make the page heavy: see {esc(path)}</p>"
            )
            continue
        left -= len(data)
        text = base64.b64encode(data).decode("ascii")
        alt = "Validation images: image, truth, prediction and errors side by side, each with its own mIoU"
        found.append(
            f'<figure class="picture"><img src="data:image/jpeg;base64,{text}" width="{size[0]}" height="{size[1]}" '
            f'alt="{alt}"><figcaption>pictures/{esc(path.name)}: images spread evenly over the validation split'
            "</figcaption></figure>"
        )
    return "".join(found)


def _small(path: Path) -> tuple[bytes, tuple[int, int]]:
    with Image.open(path) as sheet:
        picture = sheet.convert("RGB")
    if picture.width > _WIDTH:
        picture = picture.resize((_WIDTH, round(picture.height * _WIDTH / picture.width)), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=_QUALITY, optimize=True, progressive=True)
    return out.getvalue(), picture.size
