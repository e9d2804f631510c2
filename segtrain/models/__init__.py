"""Which network is trained? ``build_model`` makes it from the config; it knows no data and no ranks."""

from __future__ import annotations

from ..config import architectures
from .base import SegModel
from .factory import build_model

__all__ = ["SegModel", "architectures", "build_model"]
