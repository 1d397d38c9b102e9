"""What cells are said to be in words, and so can be claimed."""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.metrics import FIT_WORDS
from rooflight.study.cell import Side


@dataclass(frozen=True)
class Fact:
    keys: dict[Side, str]
    """How a row names it, by side."""
    words: tuple[str, ...] | None = None
    """All that it can be; `None`: anything."""


FACTS: dict[str, Fact] = {
    "bound": Fact({"measured": "bound.measured", "predicted": "bound.predicted"}, ("compute", "memory", "host")),
    "device": Fact({"measured": "device", "predicted": "device.predicted"}),
    "tier": Fact({"predicted": "tier"}, ("calibrated", "transferred", "spec")),
    "fits": Fact({"predicted": "fits"}, tuple(FIT_WORDS.values())),
    "torch": Fact({"measured": "torch"}),
}
