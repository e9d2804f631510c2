"""Which network is trained? ``build_model`` makes it from the config; it knows no data and no ranks."""

from __future__ import annotations

from segtrain.config import architectures
from segtrain.models.base import SegModel
from segtrain.models.factory import build_model

__all__ = ["SegModel", "architectures", "build_model"]
