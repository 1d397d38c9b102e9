"""What bounds work on a device: a roof for every precision and unit, a slope for every level of memory.

A roof belongs to the precision that the work really runs in: TF32 work has the tensor cores' TF32 roof, fp32 work that
of the CUDA cores. The slope is the device's own memory, never a link between devices. Theoretical figures come from the
device's file, measured ones from whoever measured them; both carry their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec

from rooflight.errors import BadInput
from rooflight.hardware.device import Device, Figure
from rooflight.ledger import Op
from rooflight.metrics import Side

Unit = Literal["core", "tensor"]
Level = Literal["dram", "l2"]

_UNIT_NAMES: Mapping[str, dict[Unit, str]] = {
    "cpu": {"core": "vector units", "tensor": "matrix units"},
    "nvidia": {"core": "CUDA cores", "tensor": "tensor cores"},
    "": {"core": "shader cores", "tensor": "matrix cores"},
}


@dataclass(frozen=True)
class Roof:
    """The most FLOP/s of one unit in one precision."""

    precision: str
    unit: Unit
    flops_per_s: float
    source: str
    measured: bool = False

    @property
    def kind(self) -> tuple[Unit, str]:
        """What a theoretical and a measured one share."""
        return self.unit, self.precision


@dataclass(frozen=True)
class Slope:
    """The most bytes/s of one level of memory."""

    level: Level
    bytes_per_s: float
    source: str
    measured: bool = False


@dataclass(frozen=True)
class Ceilings:
    """What a device was measured to sustain. `flops_per_s` is of matrix work, by precision."""

    source: str
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    dram_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Position:
    """Where a point lies: which side of the ridge, and how high the roof is above it."""

    intensity: float
    ridge: float
    attainable_flops_per_s: float

    @property
    def side(self) -> Side:
        return "compute" if self.intensity >= self.ridge else "memory"


@dataclass(frozen=True)
class Roofs:
    """All roofs and slopes of a device."""

    device: Device
    compute: tuple[Roof, ...]
    memory: tuple[Slope, ...]

    def matrix(self, precision: str, *, measured: bool = False) -> Roof:
        """The roof of matrix work. A precision that the device lacks is an error: no other roof may stand for it."""
        key = ("matrix", precision, measured)
        if key not in self._asked:
            self._asked[key] = self._roof(*_matrix_unit(self.device, precision), measured)
        return self._asked[key]

    def other(self, precision: str, *, measured: bool = False) -> Roof:
        """The roof of work outside matrices: always the CUDA cores, which take 16 bits and less as fp32."""
        key = ("other", precision, measured)
        if key not in self._asked:
            name = "fp64" if precision == "fp64" and "fp64" in self.device.core_flops_per_s else "fp32"
            self._asked[key] = self._roof("core", name, measured)
        return self._asked[key]

    def slope(self, level: Level = "dram", *, measured: bool = False) -> Slope:
        """A level of memory; the theoretical figure stands in where the measured one is not known."""
        key = (level, measured)
        if key not in self._slopes:
            slopes = [slope for slope in self.memory if slope.level == level and slope.measured <= measured]
            if not slopes:
                raise BadInput(
                    "unknown-bandwidth",
                    f"the bandwidth of the {level.upper()} of {self.device.title} is not known: calibrate it",
                )
            self._slopes[key] = max(slopes, key=lambda slope: slope.measured)
        return self._slopes[key]

    @cached_property
    def theoretical(self) -> dict[tuple[Unit, str], Roof]:
        """By unit and precision."""
        return {roof.kind: roof for roof in self.compute if not roof.measured}

    @cached_property
    def _asked(self) -> dict[tuple[str, str, bool], Roof]:
        """Every op asks for a roof, and there are few."""
        return {}

    @cached_property
    def _slopes(self) -> dict[tuple[Level, bool], Slope]:
        """And for a slope."""
        return {}

    def _roof(self, unit: Unit, precision: str, measured: bool) -> Roof:
        of_unit = [roof for roof in self.compute if (roof.unit, roof.precision) == (unit, precision)]
        roofs = [roof for roof in of_unit if roof.measured <= measured]
        if not roofs:
            raise BadInput(
                "unknown-peak", f"{self.device.title} has no peak for {precision} on its {unit_name(self.device, unit)}"
            )
        return max(roofs, key=lambda roof: roof.measured)


def roofs_of(device: Device, ceilings: Ceilings | None = None) -> Roofs:
    """The device's own figures, and beside them what was measured."""
    compute = [_roof(figure, precision, "core") for precision, figure in device.core_flops_per_s.items()]
    compute += [_roof(figure, precision, "tensor") for precision, figure in device.tensor_flops_per_s.items()]
    bandwidth = device.bandwidth_bytes_per_s
    memory = [Slope("dram", bandwidth.value, bandwidth.source)]
    if ceilings is not None:
        for precision, flops_per_s in ceilings.flops_per_s.items():
            unit, name = _matrix_unit(device, precision)
            compute.append(Roof(name, unit, flops_per_s, ceilings.source, measured=True))
        levels: tuple[tuple[Level, float | None], ...] = (
            ("dram", ceilings.dram_bytes_per_s),
            ("l2", ceilings.l2_bytes_per_s),
        )
        memory += [Slope(level, value, ceilings.source, measured=True) for level, value in levels if value is not None]
    return Roofs(device, tuple(compute), tuple(memory))


def _roof(figure: Figure, precision: str, unit: Unit) -> Roof:
    return Roof(precision, unit, figure.value, figure.source)


def _matrix_unit(device: Device, precision: str) -> tuple[Unit, str]:
    """Which unit does matrix work of that precision, and as what: a device without TF32 does it in fp32."""
    for candidate in (precision, "fp32") if precision == "tf32" else (precision,):
        if candidate in device.tensor_flops_per_s:
            return "tensor", candidate
        if candidate in device.core_flops_per_s:
            return "core", candidate
    has = sorted({*device.tensor_flops_per_s, *device.core_flops_per_s})
    raise BadInput(
        "no-matrix-units", f"{device.title} has no units for {precision} matrix work: it has {', '.join(has)}"
    )


def ridge(roof: Roof, slope: Slope) -> float:
    """FLOPs per byte from which on the unit, and not the memory, is the limit."""
    return roof.flops_per_s / slope.bytes_per_s


def attainable(intensity: float, roof: Roof, slope: Slope) -> float:
    """FLOP/s: the memory's line goes through the origin, up to the roof."""
    return min(roof.flops_per_s, intensity * slope.bytes_per_s)


def place(intensity: float, roof: Roof, slope: Slope) -> Position:
    return Position(intensity, ridge(roof, slope), attainable(intensity, roof, slope))


def unit_name(device: Device, unit: Unit) -> str:
    """What its vendor calls the unit."""
    kind = "cpu" if device.kind == "cpu" else device.vendor.lower()
    return _UNIT_NAMES.get(kind, _UNIT_NAMES[""])[unit]


class Demand(msgspec.Struct, frozen=True):
    """What one op asks of a device, by formula; recomputation is work too."""

    matrix_flops: int
    other_flops: int
    bytes_read: int
    bytes_written: int
    precision: str

    @property
    def flops(self) -> int:
        return self.matrix_flops + self.other_flops

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def compute_s(self, roofs: Roofs, *, measured: bool = False) -> float:
        """At the full speed of the units. Matrix work and the rest may run side by side: the longer of them counts."""
        matrix = other = 0.0
        if self.matrix_flops:
            matrix = self.matrix_flops / roofs.matrix(self.precision, measured=measured).flops_per_s
        if self.other_flops:
            other = self.other_flops / roofs.other(self.precision, measured=measured).flops_per_s
        return max(matrix, other)

    def memory_s(self, roofs: Roofs, *, measured: bool = False) -> float:
        return self.bytes / roofs.slope(measured=measured).bytes_per_s

    def roof_s(self, roofs: Roofs, *, measured: bool = False) -> float:
        """The least time that the roofs allow."""
        return max(self.compute_s(roofs, measured=measured), self.memory_s(roofs, measured=measured))


def demand_of(op: Op) -> Demand | None:
    """`None` for views, for what the host does, and for an op without a formula (`is_unknown`)."""
    cost = op.cost
    if op.kind != "compute" or cost is None:
        return None
    return Demand(
        # The half that a causal mask leaves out need not be computed: the roof is a lower bound.
        matrix_flops=(cost.flops_causal or cost.flops or 0) + (cost.recompute_flops or 0),
        other_flops=cost.other_flops or 0,
        bytes_read=cost.bytes_read or 0,
        bytes_written=cost.bytes_written or 0,
        precision=op.precision,
    )


def is_unknown(op: Op) -> bool:
    """Does the op compute something that no formula, or only a part of one, accounts for?"""
    if op.kind != "compute":
        return False
    cost = op.cost
    return cost is None or None in (cost.flops, cost.other_flops, cost.bytes_read, cost.bytes_written)
