"""Segmentation networks: ``build_model`` makes one from the config. They do not depend on the data
or the ranks.
"""

from __future__ import annotations

from segtrain.models.factory import build_model

__all__ = ["build_model"]
