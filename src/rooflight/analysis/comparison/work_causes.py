"""Why the work of the same ops differs between two steps: what each pair of ops, each fused group and each op that only
one side has adds to which cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.analysis import flop_causes, time_causes, traffic_causes
from rooflight.analysis.cause import Explained
from rooflight.analysis.comparison import bridge as causes
from rooflight.analysis.comparison.align import family
from rooflight.analysis.comparison.bridge import Contribution
from rooflight.analysis.comparison.factors import (
    Factor,
    bytes_by_factor,
    common_tensors,
    has_other_precision,
    has_other_sizes,
    seconds_by_factor,
)
from rooflight.analysis.comparison.matched_work import MatchedWork, SideWork
from rooflight.formatting import whole_count
from rooflight.hardware.roofs import Roofs, demand_of
from rooflight.ledger import Header, Op
from rooflight.ops.kernel_names import role_of, short_name
from rooflight.summary.facts import Number, useful_flops_of

WorkQuantity = Literal["FLOPs", "DRAM bytes", "time"]
_FACTORS: dict[Factor, str] = {
    "sizes": causes.SIZES,
    "precision": causes.PRECISION,
    "peak": causes.PEAK,
    "bandwidth": causes.BANDWIDTH,
}
_BUCKETS: dict[str, str] = {
    flop_causes.PADDING: causes.PADDING,
    flop_causes.FAST: causes.ALGORITHM,
    flop_causes.STRIDES: causes.ALGORITHM,
    flop_causes.MASKED: causes.ALGORITHM,
    flop_causes.EMULATED: causes.PRECISION,
    flop_causes.RECOMPUTED: causes.RECOMPUTATION,
    flop_causes.NOT_COUNTED: flop_causes.NOT_COUNTED,
    traffic_causes.HITS: causes.CACHES,
    traffic_causes.LATER: causes.CACHES,
    traffic_causes.EARLIER: causes.CACHES,
    traffic_causes.REREAD: causes.CACHES,
    time_causes.CACHED: causes.CACHES,
    time_causes.TRAFFIC: causes.CACHES,
}
"""What the causes of one step are called between two; any other goes with the kernels, where these are others."""
_WITHIN: dict[str, float] = {"FLOPs": 0.02, "DRAM bytes": 0.3, "time": 0.3}
"""Part of what was measured of an op that its causes may leave open, or explain too much, to be taken here. Rules that
do not fit an op, as those of layouts that they were not learned on, would fill one cause and empty another."""
_BEYOND = "what kernels take beyond the least time of the roofs: caches, waves, starts of kernels, tiles"
_SPECIAL = frozenset({"winograd", "fft", "attention"})
"""Kernels of these roles do the same in another way."""


Place = tuple[str, str]
"""Phase and module."""


@dataclass(frozen=True)
class WorkContext:
    """What all works of a comparison share."""

    quantity: WorkQuantity
    value: Callable[[SideWork], Number]
    """Of the quantity."""
    headers: tuple[Header, Header]
    explained: tuple[Mapping[int, Explained], Mapping[int, Explained]]
    """Of ops by index, on each side."""
    roofs: tuple[Roofs, Roofs] | None = None
    """Of both devices, where they are known."""
    clocks_mhz: tuple[float, float] | None = None
    """Of the multiprocessors, where both are known and the device is the same."""
    knows_traffic: bool = True
    """Were the bytes of ops counted on both sides?"""
    other_attention: frozenset[Place] = frozenset()
    """Where both sides do attention in ops that the other does not have."""

    @property
    def is_one_device(self) -> bool:
        return self.roofs is None or self.roofs[0].device.name == self.roofs[1].device.name


def contributions(work: MatchedWork, context: WorkContext) -> Iterator[Contribution]:
    """What a work adds to which causes; what it leaves out stays unexplained."""
    change = context.value(work.b) - context.value(work.a)
    if work.kind == "same":
        yield from _of_same(work, change, context)
    elif work.kind == "fused":
        yield from _of_fused(work, change, context)
    elif work.kind == "no op":
        yield Contribution(causes.NO_OP, change, None, "kernels that nothing tells the op of", "observed")
    else:
        yield _of_one_side(work, change, context)


def _of_same(work: MatchedWork, change: Number, context: WorkContext) -> Iterator[Contribution]:
    if not change and not context.value(work.a):
        return
    a, b = work.a.op, work.b.op
    parts: list[Contribution] = []
    by_factor: dict[Factor, float] = {}
    if a is not None and b is not None:
        by_factor = _factors(a, b, context)
        parts += [
            Contribution(_FACTORS[name], amount, b, _factor_evidence(name, a, b, context))
            for name, amount in by_factor.items()
        ]
        if work.has_other_kernels or not context.is_one_device or _differ(a, b) or context.quantity == "DRAM bytes":
            parts += _causes(work, a, b, context)
        parts += _clock(work, a, b, context)
    left = math.fsum((change, *(-part.amount for part in parts)))
    name = _rest(work, context, knows_factors=bool(by_factor))
    if name is not None:
        parts.append(Contribution(name, left, work.op, _rest_evidence(name, work), "observed"))
    yield from (_with_names(part, work) for part in _added(parts))


def _with_names(part: Contribution, work: MatchedWork) -> Contribution:
    """Other kernels are shown by their names, before and after; what they do otherwise behind them."""
    if part.cause not in (causes.KERNELS, causes.ALGORITHM) or not work.has_other_kernels:
        return part
    names = _before_after(work)
    return replace(part, evidence=names if part.evidence == names else f"{names} ({part.evidence.partition(':')[0]})")


def _factors(a: Op, b: Op, context: WorkContext) -> dict[Factor, float]:
    if context.quantity == "FLOPs":
        return {"sizes": useful_flops_of(b) - useful_flops_of(a)}
    if context.quantity == "DRAM bytes":
        return bytes_by_factor(a, b)
    if context.roofs is None:
        return {}
    return seconds_by_factor(a, b, context.roofs)


def _factor_evidence(name: Factor, a: Op, b: Op, context: WorkContext) -> str:
    if name == "sizes":
        return f"by formula: {_shape(a)} → {_shape(b)}"
    if name == "precision":
        return f"by formula: {_other_types(a, b)}"
    assert context.roofs is not None
    one, other = context.roofs
    if name == "peak":
        demands = demand_of(a), demand_of(b)
        rates = [
            roofs.matrix(demand.precision).flops_per_s / 1e12 if demand is not None and demand.matrix_flops else None
            for roofs, demand in zip((one, other), demands, strict=True)
        ]
        if rates[0] and rates[1]:
            return f"data sheets, for {_type(b)}: {rates[0]:.4g} → {rates[1]:.4g} TFLOP/s"
        return "data sheets: FLOP/s of the units"
    speeds = [roofs.slope().bytes_per_s / 1e9 for roofs in (one, other)]
    return f"data sheets: {speeds[0]:,.0f} → {speeds[1]:,.0f} GB/s"


def _causes(work: MatchedWork, a: Op, b: Op, context: WorkContext) -> list[Contribution]:
    """What the causes of both sides differ by, where both are explained."""
    of_a, of_b = context.explained[0].get(a.index), context.explained[1].get(b.index)
    if of_a is None or of_b is None or not all(_fits(row, context) for row in (of_a, of_b)):
        return []
    found = []
    for sign, row in ((-1, of_a), (1, of_b)):
        for cause in row.computed:
            if cause.name in (time_causes.SUCH, time_causes.CLOCK):
                continue  # kernels that differ are named as that, and so is the clock, from what was measured
            if cause.name == time_causes.CACHED and not context.knows_traffic:
                continue  # of one side only
            name = _bucket(cause.name, work, context)
            told = cause.evidence if name == cause.name else f"{cause.name}: {cause.evidence}"
            found.append(Contribution(name, sign * cause.amount, b, told))
    return found


def _bucket(name: str, work: MatchedWork, context: WorkContext) -> str:
    a, b = work.a.ops[0], work.b.ops[0]
    if name in _BUCKETS:
        return _BUCKETS[name]
    if name == time_causes.SUSTAINED and context.is_one_device and _differ(a, b):
        return causes.PRECISION if has_other_precision(a, b) else causes.SIZES
    if name == flop_causes.POINTWISE and has_other_sizes(a, b):
        return causes.SIZES
    if work.has_other_kernels:
        return causes.KERNELS
    return {"FLOPs": causes.SIZES, "DRAM bytes": causes.CACHES, "time": causes.EFFICIENCY}[context.quantity]


def _fits(row: Explained, context: WorkContext) -> bool:
    return abs(row.left) <= _WITHIN[context.quantity] * row.measured


def _differ(a: Op, b: Op) -> bool:
    return has_other_sizes(a, b) or has_other_precision(a, b)


def _added(found: Sequence[Contribution]) -> list[Contribution]:
    """One of each cause: an op's before and after are no two causes. The evidence is that of the larger."""
    by_name: dict[str, list[Contribution]] = {}
    for part in found:
        by_name.setdefault(part.cause, []).append(part)
    added = []
    for held in by_name.values():
        amount = math.fsum(part.amount for part in held)
        most = max(held, key=lambda part: (part.amount * amount > 0, abs(part.amount)))
        added.append(replace(most, amount=amount))
    return added


def _clock(work: MatchedWork, a: Op, b: Op, context: WorkContext) -> Iterator[Contribution]:
    """Of kernels that are the same and wait for the units: their time goes with the clock."""
    if context.quantity != "time" or context.clocks_mhz is None or context.roofs is None:
        return
    demand = demand_of(b)
    if work.has_other_kernels or _differ(a, b) or demand is None:
        return
    if demand.compute_s(context.roofs[1]) < demand.memory_s(context.roofs[1]):
        return
    before, after = context.clocks_mhz
    ratio = before / after
    mean = (context.value(work.a) + context.value(work.b)) / 2
    yield Contribution(causes.CLOCK, mean * 2 * (ratio - 1) / (ratio + 1), b, f"{before:,.0f} → {after:,.0f} MHz")


def _rest(work: MatchedWork, context: WorkContext, *, knows_factors: bool) -> str | None:
    """What to call the difference of an op that nothing above makes; `None`: unexplained."""
    a, b = work.a.ops[0], work.b.ops[0]
    if work.has_other_kernels:
        return causes.ALGORITHM if _roles(work.a) != _roles(work.b) else causes.KERNELS
    sizes, precision = has_other_sizes(a, b), has_other_precision(a, b)
    if sizes and (not knows_factors or context.quantity == "FLOPs"):
        return causes.SIZES
    if precision and not knows_factors:
        return causes.PRECISION
    if context.quantity == "time" and (sizes or precision or not context.is_one_device):
        return causes.EFFICIENCY
    return None


def _rest_evidence(name: str, work: MatchedWork) -> str:
    if name in (causes.KERNELS, causes.ALGORITHM):
        return _before_after(work)
    a, b = work.a.ops[0], work.b.ops[0]
    if name == causes.SIZES:
        return f"{_shape(a)} → {_shape(b)}"
    if name == causes.PRECISION:
        return _other_types(a, b)
    return _BEYOND


def _before_after(work: MatchedWork) -> str:
    """The kernel that takes longest on each side, of those that the other side does not have."""
    names = [{kernel.name for kernel in side.kernels} for side in (work.a, work.b)]
    shown = [_main_kernel(work.a, names[1]), _main_kernel(work.b, names[0])]
    if shown[0] == shown[1]:  # they differ behind what is shown
        shown = [_main_kernel(work.a, names[1], None), _main_kernel(work.b, names[0], None)]
    return " → ".join(shown)


def _main_kernel(side: SideWork, apart_from: Collection[str] = (), width: int | None = 44) -> str:
    kernels = [kernel for kernel in side.kernels if kernel.name not in apart_from] or list(side.kernels)
    main = max(kernels, key=lambda kernel: kernel.time_s or 0.0)
    more = len(side.kernel_names) - 1
    return short_name(main.name, width) + (f" and {more} more" if more > 0 else "")


def _roles(side: SideWork) -> frozenset[str]:
    roles = (role_of(name) for name in side.kernel_names)
    return frozenset(role.role for role in roles if role is not None) & _SPECIAL


def _of_fused(work: MatchedWork, change: Number, context: WorkContext) -> Iterator[Contribution]:
    """What sizes and types would do without fusion, in proportion; the rest is fusion's."""
    known: list[Contribution] = []
    if context.quantity != "FLOPs":
        known = _in_proportion(work, context)
        yield from known
    left = math.fsum((change, *(-part.amount for part in known)))
    ops = max(len(work.a.ops), len(work.b.ops))
    if not (
        work.a.kernels and work.b.kernels
    ):  # a prediction says nothing of single kernels: what is fused is not told
        if not context.is_one_device:
            yield Contribution(causes.EFFICIENCY, left, work.op, _BEYOND, "observed", ops)
        return
    name = causes.FUSED_PASSES if context.quantity == "DRAM bytes" else causes.FUSION
    counts = [len(side.kernel_names) for side in (work.a, work.b)]
    evidence = f"{ops} ops: {counts[0]} kernels → {counts[1]}"
    fused = max((work.a, work.b), key=lambda side: max((len(kernel.ops) for kernel in side.kernels), default=0))
    evidence += f", as {_main_kernel(fused)}"
    yield Contribution(name, left, work.op, evidence, "observed", ops)


def _in_proportion(work: MatchedWork, context: WorkContext) -> list[Contribution]:
    by_key = {op.key[1:]: op for op in work.a.ops}
    pairs = [(by_key[op.key[1:]], op) for op in work.b.ops if op.key[1:] in by_key]
    sums: dict[Factor, float] = {}
    asked = 0.0
    for a, b in pairs:
        for name, amount in _factors(a, b, context).items():
            sums[name] = sums.get(name, 0.0) + amount
        asked += _asked(a, context, 0) + _asked(b, context, 1)
    if not asked:
        return []
    scale = (context.value(work.a) + context.value(work.b)) / asked
    evidence = "by formula, of ops that are fused, as they would change by themselves"
    return [
        Contribution(_FACTORS[name], scale * amount, work.op, evidence, ops=len(pairs))
        for name, amount in sums.items()
        if amount
    ]


def _asked(op: Op, context: WorkContext, side: int) -> float:
    demand = demand_of(op)
    if demand is None:
        return 0.0
    if context.quantity == "DRAM bytes":
        return demand.bytes
    if context.roofs is None:
        return 0.0
    return demand.roof_s(context.roofs[side])


def _of_one_side(work: MatchedWork, change: Number, context: WorkContext) -> Contribution:
    side = work.a if work.a.values else work.b
    op, here = work.op, "A" if work.a.values else "B"
    assert op is not None
    what = f"{op.name} only in {here}"
    name = causes.OTHER_OPS
    if work.kind == "gone":
        compiled = [header.is_compiled for header in context.headers]
        what = f"{op.name} has a kernel only in {here}"
        name = causes.FUSION if compiled[0] != compiled[1] else causes.OTHER_OPS
    elif op.recompute:
        name, what = causes.RECOMPUTATION, f"{what}: run again in the backward pass"
    elif _is_attention(op) and _place(op) in context.other_attention:
        name = causes.ALGORITHM
    elif family(op) == "copy" and _types(context.headers[0]) != _types(context.headers[1]):
        name, what = causes.PRECISION, f"{what}: a cast"
    return Contribution(name, change, op, what, "observed", max(len(side.ops), 1))


def other_attention(only_a: Iterable[Op], only_b: Iterable[Op]) -> frozenset[Place]:
    """Where both sides do attention, each in its own way: as one op, or as the products that it is made of. Where the
    other side does none, as in another model, these are other ops."""
    of_a, of_b = ({_place(op) for op in only if _is_attention(op)} for only in (only_a, only_b))
    return frozenset(of_a & of_b)


def _place(op: Op) -> Place:
    return op.phase, op.module


def _is_attention(op: Op) -> bool:
    return bool(op.attention) or "attention" in op.packet


def _types(header: Header) -> tuple[object, ...]:
    return header.dtype, header.autocast


def _shape(op: Op) -> str:
    tensors = [*op.outputs, *op.inputs]
    shape = "×".join(map(str, max((tensor.shape for tensor in tensors), key=math.prod, default=())))
    return f"{op.packet.removeprefix('aten::')} {shape}" if shape else f"{whole_count(useful_flops_of(op))} FLOPs"


def _type(op: Op) -> str:
    stored = next((tensor.dtype for tensor in (*op.outputs, *op.inputs)), "")
    return op.precision if not stored or stored == op.precision else f"{op.precision or stored} on {stored} values"


def _other_types(a: Op, b: Op) -> str:
    """Of the results; where these have the same, of the operand that has another."""
    if _type(a) != _type(b):
        return f"{_type(a)} → {_type(b)}"
    differing = (
        f"{of_a.dtype} → {of_b.dtype} operands" for of_a, of_b in common_tensors(a, b) if of_a.dtype != of_b.dtype
    )
    return next(differing, f"{a.precision} → {b.precision}")
