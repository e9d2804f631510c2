"""What a sample that a helper has made costs the host that receives it, and when helpers pay."""

from __future__ import annotations

# CPU seconds to receive a sample over a direct connection: for each sample, and for each byte of
# it. Measured with 0.2 MB (0.3 ms) and 2.1 MB (2.9 ms) on two hosts joined by 1 Gbit/s;
# docs/helpers.md.
RECEIVE_S, RECEIVE_S_PER_BYTE = 0.03e-3, 1.37e-9
# Helpers pay only if receiving a sample costs less than this share of making it.
WORTH = 0.5


def receive_seconds(height: int, width: int) -> float:
    """CPU seconds to receive a crop of this size, with 4 bytes for each pixel and its label."""
    return RECEIVE_S + RECEIVE_S_PER_BYTE * 4 * height * width
