"""What every test of a platform shares: a disk that is not full."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _enough_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much room the machine of the tests has is no finding about a job."""
    monkeypatch.setattr(
        "launch.platforms.slurm.preflight.folders.free_mb", lambda folder: 1_000_000
    )
