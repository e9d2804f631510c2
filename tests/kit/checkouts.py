"""Another folder in place of the checkout from which the launcher takes code and configs."""

from __future__ import annotations

from pathlib import Path

import pytest


def use_checkout(patch: pytest.MonkeyPatch, root: Path) -> None:
    for name in ("bundle", "job", "native", "preflight"):
        patch.setattr(f"launch.core.{name}.ROOT", root)
