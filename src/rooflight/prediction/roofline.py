"""The roofline of a step: every op and the whole of it as points under the roofs of a device. What a report draws.

A point's FLOPs are by formula (useful ones and recomputation), its bytes the compulsory ones and, where they were
counted, those of the DRAM; its time is measured or predicted, or not known. It is held against the roof of the
precision that it runs in, and a point of several ops against the mix of theirs: FLOPs over the time their units need. A
verdict says the side of the ridge *and* the distance to the roof. Ops without FLOPs are no points: they are listed by
time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rooflight import formatting, metrics
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Ceilings, Demand, Roofs, Unit, demand_of, is_unknown, ridge, roofs_of
from rooflight.ledger import Ledger
from rooflight.metrics import DRAM_BYTES, HOST_BOUND, Bound, Side, intensity, percent_of_roof, ratio
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_step import busy_s, dram_bytes, wall_s

NO_OP = "<no op>"

CONVENTIONS = (
    "1 multiply-add = 2 FLOP, as peaks count it; FLOPs are by formula, recomputation included",
    "compulsory bytes: every input read once and every output written once, op by op; DRAM bytes: counted",
    "each op is held against the roof of the precision and unit it runs in, dense; TF32 work never against fp32's",
    "the memory roof is the device's own memory, not a link between devices",
    f"host-bound: the GPU is busy for less than {HOST_BOUND:.0%} of the wall time",
)


@dataclass(frozen=True)
class RooflineTimes:
    """How long ops took or will take, by the set of ops that a time is of, and where that is known from."""

    origin: str
    ops: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    dram_bytes: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    gpu_busy_s: float | None = None
    wall_s: float | None = None
    step_dram_bytes: float | None = None

    @classmethod
    def of_ops(
        cls,
        origin: str,
        op_times_s: Mapping[int, float],
        *,
        gpu_busy_s: float | None = None,
        wall_s: float | None = None,
    ) -> RooflineTimes:
        """One time for each op, by its index: what a prediction gives."""
        busy = sum(op_times_s.values()) if gpu_busy_s is None else gpu_busy_s
        return cls(origin, {(index,): time for index, time in op_times_s.items()}, gpu_busy_s=busy, wall_s=wall_s)

    @classmethod
    def of_measured(cls, ledger: Ledger) -> RooflineTimes:
        """What was measured of a step, by one process."""
        measured = Measured(ledger)
        if len(measured.ranks) > 1:
            raise BadInput(
                "several-ranks",
                f"this ledger holds {len(measured.ranks)} ranks, and a roofline is of one device: give one's",
            )
        times: dict[tuple[int, ...], float] = defaultdict(float)
        moved: dict[tuple[int, ...], float] = defaultdict(float)
        for fact in measured.facts:
            time = fact.values.get("kernel_time_s", fact.values.get("host_time_s"))
            if time is not None:
                times[fact.ops] += time
            # Reads without writes would look like all of the traffic.
            if all(name in fact.values for name in DRAM_BYTES):
                moved[fact.ops] += sum(fact.values[name] for name in DRAM_BYTES)
        on_cpu = ledger.header.target == "cpu"
        return cls(
            measured.origin,
            dict(times),
            dict(moved),
            gpu_busy_s=None if on_cpu else busy_s(measured),
            wall_s=wall_s(measured),
            step_dram_bytes=dram_bytes(measured),
        )


@dataclass(frozen=True)
class RooflinePoint:
    """One op, several that ran as one, or the whole step, under its roof."""

    name: str
    module: str
    phase: str
    ops: tuple[int, ...]
    """Empty for the whole step."""
    precision: str
    """That most of its time at the roof goes to ..."""
    unit: Unit
    """... and the unit."""
    flops: int
    bytes: int
    intensity: float | None
    """FLOPs per compulsory byte; `None` where there are no bytes."""
    ridge: float
    """Of its own roof and the device's memory."""
    side: Side
    attainable_flops_per_s: float
    roof_time_s: float
    """The least time the roofs allow: of the units or of the memory, whichever is longer."""
    time_s: float | None = None
    flops_per_s: float | None = None
    percent_of_roof: float | None = None
    """Of what is attainable at its intensity; above 100 where bytes came from a cache or work was saved."""
    dram_bytes: float | None = None
    dram_intensity: float | None = None
    percent_of_dram_roof: float | None = None
    """The same with the bytes that were counted."""
    sustained_time_s: float | None = None
    """The least time by measured ceilings, where there are some."""
    percent_of_sustained: float | None = None

    @property
    def verdict(self) -> str:
        """The side of the ridge and the distance to the roof, in one sentence."""
        return verdict(self.intensity, self.ridge, self.attainable_flops_per_s, self.percent_of_roof)


def verdict(intensity: float | None, ridge_: float, attainable_: float, percent: float | None) -> str:
    """`memory side: 1.20 FLOP/byte is left of the ridge at 100; 4.5% of the attainable 1.87 TFLOP/s`."""
    if intensity is None:
        where = "compute side: no bytes are known"
    else:
        side, hand = ("compute", "right") if intensity >= ridge_ else ("memory", "left")
        numbers = formatting.ratio(intensity), formatting.ratio(ridge_)
        where = f"{side} side: {numbers[0]} FLOP/byte is {hand} of the ridge at {numbers[1]}"
    roof = f"the attainable {formatting.count(attainable_)}FLOP/s"
    if percent is None:
        return f"{where}; {roof} is the roof, no time is known"
    above = " (above it: bytes came from a cache, or fused ops did not move theirs)" if percent > 100 else ""
    return f"{where}; {metrics.percent_text(percent)} of {roof}{above}"


@dataclass(frozen=True)
class IdleTime:
    """An op without FLOPs, or of which nothing is known: copies, casts, indexing, initialisation."""

    name: str
    module: str
    phase: str
    ops: tuple[int, ...]
    bytes: int | None
    """`None`: no formula tells."""
    time_s: float | None
    roof_time_s: float | None
    percent_of_bandwidth: float | None


@dataclass(frozen=True)
class RooflineStep:
    """The whole step: its point, and which limit its time goes to."""

    bound: Bound
    gpu_busy_s: float | None
    wall_s: float | None
    busy_share: float | None
    op_roofs_time_s: float
    """Every op at its own roof, one after the other: the plain roofline's prediction."""
    percent_of_op_roofs: float | None
    memory_share: float
    """Of the ops' time (at the roof where no other is known): that of ops on the memory side, or without FLOPs."""
    unknown: tuple[str, ...]
    """Names of ops that no formula, or only a part of one, accounts for."""
    point: RooflinePoint

    @property
    def verdict(self) -> str:
        sides = f"{self.memory_share:.0%} of the ops' time is on the memory side; as a whole {self.point.verdict}"
        if self.bound == "host" and self.busy_share is not None:
            return f"host-bound: the GPU is busy {self.busy_share:.0%} of the wall time; while it is, {sides}"
        return f"{self.bound}-bound: {sides}"


@dataclass(frozen=True)
class Roofline:
    """Roofs, ridges and points: all that a plot needs."""

    roofs: Roofs
    origin: str
    """Where the times are from."""
    ops: tuple[RooflinePoint, ...]
    zero_flop_ops: tuple[IdleTime, ...]
    """The slowest first."""
    step: RooflineStep

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `None` is unknown."""
        return {
            "device": self.roofs.device.name,
            "times": self.origin,
            "roofs": [asdict(roof) for roof in self.roofs.compute],
            "memory": [asdict(slope) for slope in self.roofs.memory],
            "ridges": ridges(self.roofs),
            "step": {**asdict(self.step), "verdict": self.step.verdict},
            "ops": [asdict(point) for point in self.ops],
            "zero_flop_ops": [asdict(row) for row in self.zero_flop_ops],
            "conventions": list(CONVENTIONS),
        }


def ridges(roofs: Roofs) -> list[dict[str, Any]]:
    """Of every roof with every slope of its kind: theoretical with theoretical, measured with measured."""
    return [
        {
            "precision": roof.precision,
            "unit": roof.unit,
            "level": slope.level,
            "measured": roof.measured,
            "flops_per_byte": ridge(roof, slope),
        }
        for roof in roofs.compute
        for slope in roofs.memory
        if roof.measured == slope.measured
    ]


def roofline(
    ledger: Ledger, device: Device, *, times: RooflineTimes | None = None, ceilings: Ceilings | None = None
) -> Roofline:
    """A step under the roofs of a device. Without `times`, what the ledger itself measured, if it did."""
    if times is None and is_measured(ledger):
        times = RooflineTimes.of_measured(ledger)
    times = times or RooflineTimes("none: only what the roofs allow")
    roofs = roofs_of(device, ceilings)
    points, idle = [], []
    for group, time, moved in _groups(ledger, times):
        demands = [demand for index in group if (demand := demand_of(ledger.ops[index])) is not None]
        if sum(demand.flops for demand in demands):
            points.append(_point(_names(ledger, group), group, demands, roofs, time_s=time, dram=moved))
        elif time or any(ledger.ops[index].kind == "compute" for index in group) or not group:
            idle.append(_idle(ledger, group, demands, roofs, time))
    idle.sort(key=lambda row: row.time_s if row.time_s is not None else row.roof_time_s or 0, reverse=True)
    return Roofline(roofs, times.origin, tuple(points), tuple(idle), _step(ledger, roofs, times, points, idle))


def plain_roofline_s(ledger: Ledger, device: Device, *, ceilings: Ceilings | None = None) -> float:
    """Every op at its roof, one after the other: the model that any other has to beat. GPU-busy time."""
    roofs = roofs_of(device, ceilings)
    demands = (demand for op in ledger.ops if (demand := demand_of(op)) is not None)
    return sum(demand.roof_s(roofs, measured=ceilings is not None) for demand in demands)


def _groups(ledger: Ledger, times: RooflineTimes) -> Iterable[tuple[tuple[int, ...], float | None, float | None]]:
    """Sets of ops with their time and bytes, every op in exactly one: sets that share an op are joined."""
    parent = list(range(len(ledger.ops)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for ops in (*times.ops, *times.dram_bytes):
        for index in ops[1:]:
            parent[root(index)] = root(ops[0])
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(len(ledger.ops)):
        members[root(index)].append(index)
    time_of: dict[int, float] = defaultdict(float)
    moved_of: dict[int, float] = defaultdict(float)
    for sums, given in ((time_of, times.ops), (moved_of, times.dram_bytes)):
        for ops, value in given.items():
            sums[root(ops[0]) if ops else -1] += value
    for first, group in members.items():
        yield tuple(group), time_of.get(first), moved_of.get(first)
    if -1 in time_of:
        yield (), time_of[-1], moved_of.get(-1)


def _names(ledger: Ledger, group: Sequence[int]) -> tuple[str, str, str]:
    """Name, module and phase: all that differ, joined."""
    ops = [ledger.ops[index] for index in group]
    kinds = ([op.packet for op in ops], [op.module for op in ops], [op.phase for op in ops])
    name, module, phase = (" + ".join(dict.fromkeys(values)) for values in kinds)
    return name or NO_OP, module, phase


def _point(
    names: tuple[str, str, str],
    ops: tuple[int, ...],
    demands: Sequence[Demand],
    roofs: Roofs,
    *,
    time_s: float | None,
    dram: float | None,
) -> RooflinePoint:
    flops, moved = sum(demand.flops for demand in demands), sum(demand.bytes for demand in demands)
    compute_s = sum(demand.compute_s(roofs) for demand in demands)
    slope = roofs.slope()
    peak = flops / compute_s
    roof_s = sum(demand.roof_s(roofs) for demand in demands)
    main = max(demands, key=lambda demand: demand.compute_s(roofs))
    roof = roofs.matrix(main.precision) if main.matrix_flops else roofs.other(main.precision)
    sustained = None
    if any(roof.measured for roof in roofs.compute):
        units_s = sum(demand.compute_s(roofs, measured=True) for demand in demands)
        sustained = max(units_s, moved / roofs.slope(measured=True).bytes_per_s)
    return RooflinePoint(
        *names,
        ops=ops,
        precision=roof.precision,
        unit=roof.unit,
        flops=flops,
        bytes=moved,
        intensity=intensity(flops, moved),
        ridge=peak / slope.bytes_per_s,
        side=metrics.side(compute_s, moved / slope.bytes_per_s),
        attainable_flops_per_s=flops / roof_s,
        roof_time_s=roof_s,
        time_s=time_s,
        flops_per_s=ratio(flops, time_s),
        percent_of_roof=percent_of_roof(roof_s, time_s),
        dram_bytes=dram,
        dram_intensity=flops / dram if dram else None,
        percent_of_dram_roof=percent_of_roof(max(compute_s, dram / slope.bytes_per_s), time_s) if dram else None,
        sustained_time_s=sustained,
        percent_of_sustained=percent_of_roof(sustained, time_s),
    )


def _idle(
    ledger: Ledger, group: tuple[int, ...], demands: Sequence[Demand], roofs: Roofs, time_s: float | None
) -> IdleTime:
    has_formula = bool(demands) and not any(is_unknown(ledger.ops[index]) for index in group)
    moved = sum(demand.bytes for demand in demands) if has_formula else None
    roof_s = None if moved is None else moved / roofs.slope().bytes_per_s
    return IdleTime(*_names(ledger, group), group, moved, time_s, roof_s, percent_of_roof(roof_s, time_s))


def _step(
    ledger: Ledger, roofs: Roofs, times: RooflineTimes, points: Sequence[RooflinePoint], idle: Sequence[IdleTime]
) -> RooflineStep:
    if not points:
        raise BadInput("no-flops", f"no op of {ledger.header.model} has FLOPs: there is nothing to put under a roof")
    demands = [demand for op in ledger.ops if (demand := demand_of(op)) is not None]
    busy = times.gpu_busy_s
    time = times.wall_s if busy is None else busy
    point = _point((ledger.header.model, "", ""), (), demands, roofs, time_s=time, dram=times.step_dram_bytes)
    op_roofs_s = sum(row.roof_time_s for row in points) + sum(row.roof_time_s or 0 for row in idle)
    compute = sum(_time(row) for row in points if row.side == "compute")
    memory = sum(_time(row) for row in points if row.side == "memory")
    memory += sum(_time(row) for row in idle if row.roof_time_s)  # what nothing is known of lies under neither
    share = metrics.busy_share(busy, times.wall_s)
    return RooflineStep(
        point=point,
        bound=metrics.bound(compute, memory, host_bound=metrics.is_host_bound(busy, times.wall_s)),
        gpu_busy_s=busy,
        wall_s=times.wall_s,
        busy_share=share,
        op_roofs_time_s=op_roofs_s,
        percent_of_op_roofs=percent_of_roof(op_roofs_s, time),
        memory_share=ratio(memory, memory + compute) or 0.0,
        unknown=tuple(sorted({op.name for op in ledger.ops if is_unknown(op)})),
    )


def _time(row: RooflinePoint | IdleTime) -> float:
    return row.time_s if row.time_s is not None else row.roof_time_s or 0
