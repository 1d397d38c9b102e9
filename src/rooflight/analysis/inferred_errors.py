"""How far inferred FLOPs and bytes were from the counters of recorded steps, as `benchmarks/inferred.py` found."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

_FILE = Path(__file__).parent / "counted" / "inferred_errors.json"


class InferredSpread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of whole steps, without signs, as parts of what was counted."""

    median: float
    p90: float
    worst: float


class InferredErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Over recorded steps whose counters were taken out: what is shown of a step against its counters."""

    device: str
    steps: int
    told: int
    """Of them, with all matrix work told: the errors of FLOPs are theirs. Of the others the sum is a least one."""
    flops: InferredSpread
    least: float
    """The smallest part of the counted FLOPs that a least sum had."""
    dram_bytes: InferredSpread

    @cached_property
    def text(self) -> str:
        flops, moved = self.flops, self.dram_bytes
        return (
            f"of {self.steps} steps of other models with counters on {self.device}, FLOPs were {flops.median:.2%} off "
            f"in the median ({flops.worst:.1%} at most) in the {self.told} whose matrix work was all told, and down to "
            f"{self.least:.0%} of what was counted in the others; DRAM bytes {moved.median:.0%} off in the median "
            f"({moved.worst:.0%} at most)"
        )

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


INFERRED_ERRORS = msgspec.json.decode(_FILE.read_bytes(), type=InferredErrors)
