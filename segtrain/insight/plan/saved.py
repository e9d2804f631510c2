"""The file ``plan.json`` in a run folder: what was predicted for the run, before it began."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segtrain import __version__
from segtrain.base.files import write_atomically
from segtrain.base.json_text import read_json
from segtrain.bucket import is_bucket
from segtrain.config import PLAN
from segtrain.errors import ConfigError, file_error
from segtrain.insight.diagnose.differences import decisive
from segtrain.insight.plan.offers import Offer, Offers
from segtrain.observe.journal import FILE as JOURNAL

FILE = PLAN
FORMAT = 1


def save(plan: Offers, settings: Mapping[str, Any], place: str, machine: str = "") -> Path:
    """Write a plan into the run folder ``place``, and return the file. Raises ConfigError, and
    DataError.

    ``settings``: of the run that is planned. ``machine``: the type of the run that the plan is
    from.
    """
    if is_bucket(place):
        raise ConfigError(
            f"--save={place}: a plan is kept in a folder of this machine: name one, such as "
            "runs/NAME",
            code="save-not-local",
            found=place,
        )
    if (Path(place) / JOURNAL).is_file():
        raise ConfigError(
            f"--save={place}: this run has begun, and a plan is of a run to come: name its "
            "folder, such as runs/NEXT",
            code="save-too-late",
            found=place,
        )
    return write(content(plan, settings, machine), Path(place))


def write(text: bytes, run: Path) -> Path:
    """Write a plan's file into a run folder, and return it. Raises DataError."""
    file = run / FILE
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
    except OSError as error:
        raise file_error(
            str(file),
            f"the plan cannot be written: {error.strerror or error}: choose another folder",
            code="plan-unwritable",
        ) from None
    return file


def content(plan: Offers, settings: Mapping[str, Any], machine: str = "") -> bytes:
    """The file. Arguments as of ``save``."""
    whole = {
        "format": FORMAT,
        "made": time.time(),
        "version": __version__,
        "machine": machine,
        "settings": decisive(settings),
        "total": plan.terms.total,
        "offers": [_row(offer) for offer in plan.offers],
    }
    return json.dumps(whole, indent=1).encode()


def read(file: Path) -> dict[str, Any]:
    """The plan in a file; empty if it is none that this version can read."""
    content = read_json(file)
    valid = content.get("format") == FORMAT and isinstance(content.get("offers"), list)
    return content if valid else {}


def _row(offer: Offer) -> dict[str, Any]:
    return {
        "machine": offer.machine.name,
        "hosts": offer.hosts,
        "batch": offer.batch,
        "rate": offer.rate,
        "seconds": offer.trained,
    }
