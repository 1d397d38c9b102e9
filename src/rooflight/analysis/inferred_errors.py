"""How far inferred FLOPs and bytes were from the counters of recorded steps, as `benchmarks/inferred.py` found."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

_FILE = Path(__file__).parent / "counted" / "inferred_errors.json"


class ErrorSpread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of whole steps, without signs, as parts of what was counted."""

    median: float
    p90: float
    worst: float


class InferredErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Over recorded steps whose counters were taken out."""

    device: str
    steps: int
    flops: ErrorSpread
    dram_bytes: ErrorSpread

    @cached_property
    def text(self) -> str:
        flops, moved = self.flops, self.dram_bytes
        return (
            f"of {self.steps} steps of other models with counters on {self.device}, FLOPs were {flops.median:.2%} off "
            f"in the median ({flops.worst:.1%} at most), DRAM bytes {moved.median:.0%} ({moved.worst:.0%} at most)"
        )

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


INFERRED_ERRORS = msgspec.json.decode(_FILE.read_bytes(), type=InferredErrors)
