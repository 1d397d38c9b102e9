"""What a prediction says. Times in seconds; every one of them comes with an interval and with how it was found."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rooflight.ledger import Header

Bound = Literal["compute", "memory", "host"]


class Interval(msgspec.Struct, frozen=True):
    """Nine times out of ten between these, if errors are as they are among the calibrated points."""

    low: float
    high: float

    @classmethod
    def around(cls, value: float, deviation: float) -> Interval:
        return cls(max(0.0, value - 1.645 * deviation), value + 1.645 * deviation)


class CostlyOp(msgspec.Struct, frozen=True, kw_only=True):
    """Ops that are alike (same shapes, same work), together."""

    name: str
    calls: int
    time_s: float
    share: float
    """Of the device's time in the step."""
    module: str
    """Of the first of them."""
    shapes: str
    precision: str
    bound: Bound
    percent_of_roof: float | None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and what the same prediction says of the step with it."""

    change: str
    time_s: float
    throughput: float | None
    gain: float
    """Throughput with it over throughput without, less 1."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    device: str
    tier: str
    source: str
    """Which calibration, or which constant."""
    batch: int | None
    time_s: float
    """Of one step among many, by a watch: the later of host and device."""
    time_interval_s: Interval
    gpu_time_s: float
    """In which the device works."""
    gpu_time_interval_s: Interval
    host_time_s: float | None = None
    """In which the host works; `None`: the tier knows no host."""
    throughput: float | None
    """Samples a second."""
    tokens_per_s: float | None = None
    flops: int = 0
    mfu: float | None = None
    """Useful matrix FLOPs over what the units they run on could do in the step's time."""
    bound: Bound
    percent_of_roof: float
    """The least time that the roofs allow for all ops, over the device's time."""
    inside: float | None = None
    """Part of the device's time in ops whose shapes lie among the calibrated ones."""
    kernels: int | None = None
    phases: dict[str, float] = {}
    """The device's time by phase."""
    ops: tuple[CostlyOp, ...] = ()
    """The ten costliest kinds of ops."""
    advice: tuple[Advice, ...] = ()
    op_times_s: tuple[float, ...] = ()
    """Of every op of the step, in its order."""


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction for every device and batch."""

    header: Header
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.predictions)

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, place: int) -> Prediction:
        return self.predictions[place]

    def at(self, device: str, batch: int | None = None) -> Prediction:
        """The prediction for a device, at a batch where there are several."""
        for one in self.predictions:
            if one.device == device and batch in (None, one.batch):
                return one
        raise KeyError(f"no prediction for {device} at batch {batch}")
