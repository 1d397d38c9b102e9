"""Work under the roofs of a device: what was executed unit by unit, or by formula where nobody counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from rooflight import metrics
from rooflight.errors import BadInput
from rooflight.hardware.roofs import Demand, Roof, Roofs, unit_name
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS, Side
from rooflight.prediction.calibrated.baseline import LAUNCH_S
from rooflight.summary.facts import Number

Basis = Literal["executed", "useful", "DRAM", "compulsory"]
SHORT_S = 2 * LAUNCH_S
"""Of a kernel shorter than this, half or more is its own start."""


class UnitWork(msgspec.Struct, frozen=True):
    """What one unit did in one precision, and the least time it needs for that."""

    unit: str
    precision: str
    flops: Number
    peak_flops_per_s: float

    @property
    def seconds(self) -> float:
        return self.flops / self.peak_flops_per_s


class RooflineWork(msgspec.Struct, frozen=True):
    """FLOPs and bytes, and the least time that units and memory need for them."""

    flops: Number
    flops_basis: Basis
    bytes: Number
    bytes_basis: Basis
    compulsory_bytes: int | None
    units: tuple[UnitWork, ...]
    compute_s: float
    """The units one after the other, each at its own peak. By formula, the units of an op side by side."""
    memory_s: float
    roof_s: float
    """The longer of the two; of several ops by formula, op by op and added up."""
    bandwidth_bytes_per_s: float
    plain_peak_flops_per_s: float
    """Of the cores in fp32: what work without FLOPs is held against."""

    @property
    def side(self) -> Side:
        return metrics.side(self.compute_s, self.memory_s)

    @property
    def intensity(self) -> float | None:
        return metrics.intensity(self.flops, self.bytes)

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on the units are the limit: those of this mix of units."""
        peak = self.flops / self.compute_s if self.compute_s else self.plain_peak_flops_per_s
        return peak / self.bandwidth_bytes_per_s

    @property
    def attainable_flops_per_s(self) -> float:
        return self.flops / self.roof_s if self.roof_s else 0.0


class Unknown(Exception):
    """Nothing can be said of the work, and why."""


def work_of(
    values: Mapping[str, Number], demands: Sequence[Demand], roofs: Roofs, *, flops_counted: bool, bytes_counted: bool
) -> RooflineWork:
    """Counted where all of it was counted, else by formula, which gives the demands; `Unknown` where there is
    neither."""
    executed = _executed(values, roofs) if flops_counted else None
    dram = [values[name] for name in DRAM_BYTES if name in values] if bytes_counted else []
    if not demands and (executed is None or not dram):
        some = any(values.get(name) is not None for name in (*TENSOR_FLOPS, *CUDA_FLOPS))
        what = "not every unit was counted" if some else "what it executed and moved was not counted"
        raise Unknown(f"{what}, and no formula tells the rest")
    units, compute_s = executed if executed is not None else _by_formula(demands, roofs)
    compulsory = sum(demand.bytes for demand in demands)
    moved = sum(dram) if dram else compulsory
    if not moved and not compute_s:
        raise Unknown("it computed nothing and moved too few bytes to tell")
    bandwidth = roofs.slope().bytes_per_s
    memory_s = moved / bandwidth
    roof_s = max(compute_s, memory_s) if executed is not None or dram else sum(one.roof_s(roofs) for one in demands)
    return RooflineWork(
        flops=sum(one.flops for one in units),
        flops_basis="executed" if executed is not None else "useful",
        bytes=moved,
        bytes_basis="DRAM" if dram else "compulsory",
        compulsory_bytes=compulsory if demands else None,
        units=units,
        compute_s=compute_s,
        memory_s=memory_s,
        roof_s=roof_s,
        bandwidth_bytes_per_s=bandwidth,
        plain_peak_flops_per_s=roofs.other("fp32").flops_per_s,
    )


def _executed(values: Mapping[str, Number], roofs: Roofs) -> tuple[tuple[UnitWork, ...], float] | None:
    """By unit; TF32 work stands under the TF32 roof and never under another."""
    counted = [name for name in (*TENSOR_FLOPS, *CUDA_FLOPS) if name in values]
    if not counted:
        return None
    units = []
    for name in counted:
        if not values[name]:
            continue
        kind, _, precision = name.partition("_flops_")
        roof = roofs.theoretical.get(("tensor" if kind == "tensor" else "core", precision))
        if roof is None:
            raise Unknown(f"{roofs.device.title} has no known peak for the work it did: {name}")
        units.append(_unit(roof, values[name], roofs))
    return tuple(units), sum(unit.seconds for unit in units)


def _by_formula(demands: Iterable[Demand], roofs: Roofs) -> tuple[tuple[UnitWork, ...], float]:
    flops: dict[Roof, Number] = defaultdict(int)
    compute_s = 0.0
    try:
        for demand in demands:
            compute_s += demand.compute_s(roofs)
            if demand.matrix_flops:
                flops[roofs.matrix(demand.precision)] += demand.matrix_flops
            if demand.other_flops:
                flops[roofs.other(demand.precision)] += demand.other_flops
    except BadInput as error:
        raise Unknown(str(error)) from None
    return tuple(_unit(roof, done, roofs) for roof, done in flops.items()), compute_s


def _unit(roof: Roof, flops: Number, roofs: Roofs) -> UnitWork:
    return UnitWork(unit_name(roofs.device, roof.unit), roof.precision, flops, roof.flops_per_s)
