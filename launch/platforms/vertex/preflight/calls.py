"""Read-only calls to Google."""

from __future__ import annotations

from launch.core.calls import CallResult, ReadOnlyCalls
from launch.platforms.vertex.cloud import GoogleClients
from segtrain.errors import SegtrainError


class GoogleReadOnlyCalls(ReadOnlyCalls[GoogleClients]):
    def meaning(self, error: Exception) -> CallResult | str:
        from segtrain.platforms.vertex.google_api import NotFound

        if isinstance(error, NotFound):
            return CallResult(absent=True)
        if isinstance(error, SegtrainError):
            return str(error)
        raise error
