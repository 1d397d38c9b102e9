"""What cells are said to be in words, and so can be claimed."""

from __future__ import annotations

FACTS: dict[str, tuple[str, ...] | None] = {
    "bound": ("compute", "memory", "host"),
    "tier": ("calibrated", "transferred", "spec"),
    "device": None,
}
"""By name: the words it can be, or `None` for any."""
