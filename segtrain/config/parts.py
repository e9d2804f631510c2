"""Names of the parts of a run that were passed in from Python, as its folder keeps them."""

from __future__ import annotations

import json
from pathlib import Path

from segtrain.errors import ConfigError

PARTS = "parts.json"


def read_parts(run_dir: Path) -> dict[str, str]:
    """Role (model, criterion, train_data, val_data) -> qualified name; empty if the config described all of them."""
    try:
        return dict(json.loads((run_dir / PARTS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"cannot read {run_dir / PARTS} ({error}): choose another out=FOLDER", code="parts-unreadable"
        ) from None
