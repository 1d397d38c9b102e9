"""A row of somebody's table, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rooflight.claims.amounts import Stated
from rooflight.claims.names import Named

StepName = Literal["forward", "backward", "optimizer", "training", "inference"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one row says. Empty text and `None`: the row does not say."""

    row: int
    """As a spreadsheet counts: the header is row 1."""
    layer: str
    quantity: str
    value: str
    named: Named | None
    """`None`: no quantity by that name, and `trouble` says so."""
    stated: Stated | None
    trouble: str = ""
    unreadable: bool = False
    """A cell of it says nothing that can be used; `trouble` says which."""
    batch: int | None = None
    step: StepName | None = None
    precision: str = ""
    device: str = ""
    model: str = ""
    note: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Columns that nobody asked for."""

    @property
    def where(self) -> str:
        """`row 3 (conv2, flops)`."""
        subject = self.layer or self.model or self.device or "total"
        return f"row {self.row} ({subject}, {self.quantity})"
