"""Which of the two ways of decoding does this process use: the native part, or packages?"""

from __future__ import annotations

from segtrain.data.pixels import native

NATIVE, PACKAGES = "native", "packages"


def path() -> tuple[str, str]:
    """Its name, and one line that says why."""
    return NATIVE if native.available() else PACKAGES, native.describe()
