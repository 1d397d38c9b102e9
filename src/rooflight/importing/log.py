"""What every reader of a log gives: launches with their metrics in base units, before anything is made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from rooflight.ledger import KernelKind, Value

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Reading:
    """A metric of one launch in its base unit. `low` and `high`: least and greatest launch of those it averages."""

    value: int | float
    unit: str
    low: int | float | None = None
    high: int | float | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel, copy or fill. `metrics` go by the profiler's own names."""

    name: str
    kind: KernelKind = "kernel"
    grid: Dim3 | None = None
    block: Dim3 | None = None
    stream: int | None = None
    start_s: float | None = None
    time_s: float | None = None
    label: str = ""
    metrics: dict[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Log:
    """A whole log. `about` says in a few words what it is: `ncu CSV, raw page`."""

    tool: str
    about: str
    launches: tuple[Launch, ...]
    time_origin: str
    """Where the launches' times come from."""
    device: str | None = None
    capability: str | None = None
    """Compute capability, as `9.0`."""
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    totals: dict[str, Value] = field(default_factory=dict)
    """What the log tells of the whole and no launch can."""
    notes: tuple[str, ...] = ()


def exact(value: Decimal) -> int | float:
    """A whole number stays exact."""
    return int(value) if value == value.to_integral_value() else float(value)
