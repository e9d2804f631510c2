"""What does an hour of a training instance cost in us-east-1, and who says so?"""

from __future__ import annotations

PRICES_DATED = "2026-11"

# type: ($/h of an on-demand training job in us-east-1, where it is from)
PRICES: dict[str, tuple[float, str]] = {}
