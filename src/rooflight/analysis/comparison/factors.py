"""How much of a change comes from each of several things that changed at once: sizes, precision, peaks, bandwidth.

A quantity by formula is worked out for every mixture of the two sides, and each factor gets its mean effect over all
orders in which the factors can change (Shapley's value): the effects add up to the whole change, none comes first, and
those from B to A are those from A to B with the other sign.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal

from rooflight.errors import BadInput
from rooflight.hardware.roofs import Demand, Roofs, demand_of
from rooflight.ledger import Op, Tensor, tensors_in

Factor = Literal["sizes", "precision", "peak", "bandwidth"]
Mixture = tuple[bool, ...]
"""Of every factor: is it as on side B?"""


def effects(value: Callable[[Mixture], float], factors: int) -> list[float]:
    """Of each factor. `value` is that of a mixture."""
    values = {mixture: value(mixture) for mixture in itertools.product((False, True), repeat=factors)}
    parts = []
    for factor in range(factors):
        terms = []
        for mixture in values:
            if mixture[factor]:
                continue
            others = sum(mixture)
            changed = tuple(on or place == factor for place, on in enumerate(mixture))
            weight = math.factorial(others) * math.factorial(factors - others - 1) / math.factorial(factors)
            terms.append(weight * (values[changed] - values[mixture]))
        parts.append(math.fsum(terms))
    return parts


def bytes_by_factor(a: Op, b: Op) -> dict[Factor, float]:
    """Of compulsory bytes."""
    demands = demand_of(a), demand_of(b)
    if demands[0] is None or demands[1] is None:
        return {}
    mixed = _mixed(demands[0], demands[1], _density(a), _density(b))
    sizes, precision = effects(lambda mixture: mixed(*mixture).bytes, 2)
    return _told_apart(a, b, {"sizes": sizes, "precision": precision})


def seconds_by_factor(a: Op, b: Op, roofs: tuple[Roofs, Roofs]) -> dict[Factor, float]:
    """Of the least time that the roofs of the data sheets allow."""
    demands = demand_of(a), demand_of(b)
    if demands[0] is None or demands[1] is None:
        return {}
    mixed = _mixed(demands[0], demands[1], _density(a), _density(b))

    def least_s(mixture: Mixture) -> float:
        sizes, precision, peak, bandwidth = mixture
        demand = mixed(sizes, precision)
        return max(demand.compute_s(roofs[peak]), demand.memory_s(roofs[bandwidth]))

    try:
        sizes, precision, peak, bandwidth = effects(least_s, 4)
    except BadInput:  # a precision that one of the devices has no units for
        return {}
    return _told_apart(a, b, {"sizes": sizes, "precision": precision, "peak": peak, "bandwidth": bandwidth})


def _told_apart(a: Op, b: Op, by_factor: dict[Factor, float]) -> dict[Factor, float]:
    """Values of different types in one op are not all of another type on the other side: where only one of sizes and
    types differs, all is due to it; where neither does, ops give other results beside the first, which is no factor."""
    sizes, precision = has_other_sizes(a, b), has_other_precision(a, b)
    both = by_factor["sizes"] + by_factor["precision"]
    if not (sizes and precision):
        by_factor |= {"sizes": both if sizes else 0.0, "precision": both if precision else 0.0}
    return by_factor


def _mixed(a: Demand, b: Demand, density_a: float, density_b: float) -> Callable[[bool, bool], Demand]:
    """The work of one side in the precision of either."""

    def demand(sizes: bool, precision: bool) -> Demand:
        of, as_in = (b if sizes else a), (b if precision else a)
        if of is as_in:
            return of
        wider = (density_b / density_a) if precision else (density_a / density_b)
        return Demand(
            matrix_flops=of.matrix_flops,
            other_flops=of.other_flops,
            bytes_read=round(of.bytes_read * wider),
            bytes_written=round(of.bytes_written * wider),
            precision=as_in.precision,
        )

    return demand


def _density(op: Op) -> float:
    """Bytes of a value, over all its tensors; 1 where it has none, so that ratios stay 1."""
    tensors = [*op.inputs, *op.outputs]
    values = sum(tensor.numel for tensor in tensors)
    return sum(tensor.numel * tensor.itemsize for tensor in tensors) / values if values else 1.0


def has_other_sizes(a: Op, b: Op) -> bool:
    """Does a tensor that both have differ in shape?"""
    return any(of_a.shape != of_b.shape for of_a, of_b in common_tensors(a, b))


def has_other_precision(a: Op, b: Op) -> bool:
    """Of the arithmetic, or of a tensor that both have."""
    return a.precision != b.precision or any(of_a.dtype != of_b.dtype for of_a, of_b in common_tensors(a, b))


def common_tensors(a: Op, b: Op) -> Iterator[tuple[Tensor, Tensor]]:
    """Arguments of the same name, and the first results: ops that stand for each other may give other ones beside."""
    for name, value in a.args.items():
        yield from zip(tensors_in([value]), tensors_in([b.args.get(name)]), strict=False)
    yield from zip(a.outputs[:1], b.outputs[:1], strict=False)
