"""A closed form's rows as one reads them: rolled up to a depth, like layers put together, ranked by growth."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from rooflight.estimation.symbolic.fits import PolynomialFit
from rooflight.estimation.symbolic.form import ClosedForm, ClosedFormRow, Costs
from rooflight.estimation.symbolic.growth import Growth, growth_of_terms
from rooflight.estimation.symbolic.polynomial import ZERO, Polynomial
from rooflight.estimation.symbolic.samples import COSTS
from rooflight.ledger import OUTSIDE, PHASES, Phase


@dataclass(frozen=True)
class LikeLayers:
    """Rows with the same closed form whose paths differ only in their numbers."""

    label: str
    rows: tuple[ClosedFormRow, ...]

    @property
    def row(self) -> ClosedFormRow:
        """What each of them is."""
        return self.rows[0]

    @property
    def count(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class RankedLayers:
    """A line of the ranking: layers that are alike, their growth, and all their FLOPs together."""

    layers: LikeLayers
    growth: Growth | None
    work: Polynomial | None


def at_depth(form: ClosedForm, depth: int) -> tuple[ClosedFormRow, ...]:
    """The rows with everything deeper than `depth` added to the module it belongs to; 0 is the model itself."""
    groups: dict[str, list[ClosedFormRow]] = {}
    for row in form.rows:
        parent = row.path if row.path in OUTSIDE else ".".join(row.path.split(".")[:depth])
        groups.setdefault(parent, []).append(row)
    return tuple(_rolled(path, rows) for path, rows in groups.items())


def _rolled(path: str, rows: Sequence[ClosedFormRow]) -> ClosedFormRow:
    if len(rows) == 1 and rows[0].path == path:
        return rows[0]
    phases: dict[Phase, Costs] = {}
    growth: dict[Phase, Growth] = {}
    for phase in (phase for phase in PHASES if any(phase in row.phases for row in rows)):
        parts = [row.phases[phase] for row in rows if phase in row.phases]
        phases[phase] = {quantity: _sum([part[quantity] for part in parts]) for quantity in COSTS}
        grown = [row.growth[phase] for row in rows if phase in row.growth]
        terms = [term for each in grown if each.basis == "flops" for term in each.terms]
        if rolled := growth_of_terms(terms) or (grown[0] if grown else None):
            growth[phase] = rolled
    return ClosedFormRow(
        path=path,
        type=next((row.type for row in rows if row.path == path), ""),
        ops=sum(row.ops for row in rows),
        phases=phases,
        params=_sum([row.params for row in rows]),
        activations=_sum([row.activations for row in rows]),
        growth=growth,
        uncounted=tuple(dict.fromkeys(name for row in rows for name in row.uncounted)),
    )


def _sum(fits: Sequence[PolynomialFit]) -> PolynomialFit:
    total = ZERO
    for fit in fits:
        if fit.polynomial is None:
            return fit
        total += fit.polynomial
    return PolynomialFit(total, holds=tuple(dict.fromkeys(condition for fit in fits for condition in fit.holds)))


def alike(rows: Iterable[ClosedFormRow]) -> list[LikeLayers]:
    """Rows in their order, those that are alike at the place of the first."""
    groups: dict[object, list[ClosedFormRow]] = {}
    for row in rows:
        groups.setdefault((re.sub(r"\d+", "#", row.path), _content(row)), []).append(row)
    return [LikeLayers(_label([row.path for row in group]), tuple(group)) for group in groups.values()]


def _content(row: ClosedFormRow) -> object:
    """All of a row but where it is."""
    phases = tuple((phase, *costs.values()) for phase, costs in row.phases.items())
    return row.type, row.ops, phases, row.params, row.activations, tuple(row.growth.items()), row.uncounted


def _label(paths: Sequence[str]) -> str:
    """`h.{0…11}.attn` for h.0.attn to h.11.attn."""
    columns = [
        list(dict.fromkeys(column)) for column in zip(*(re.split(r"(\d+)", path) for path in paths), strict=True)
    ]
    if prod(len(column) for column in columns) != len(paths):
        return f"{paths[0]} … {paths[-1]}"
    return "".join(column[0] if len(column) == 1 else "{" + _range(column) + "}" for column in columns)


def _range(numbers: Sequence[str]) -> str:
    values = [int(number) for number in numbers]
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}…{values[-1]}"
    return ",".join(numbers)


def ranking(form: ClosedForm) -> list[RankedLayers]:
    """The layers, costliest first by how they grow: the sequence counts before the batch, a logarithm breaks ties, and
    then the coefficient decides."""
    ranked = []
    for layers in alike(row for row in form.rows if row.phases):
        each = layers.row.work()
        growth = next((layers.row.growth[phase] for phase in PHASES if phase in layers.row.growth), None)
        ranked.append(RankedLayers(layers, growth, None if each is None else each.scaled(layers.count)))
    return sorted(ranked, key=_growth_rank, reverse=True)


def _growth_rank(line: RankedLayers) -> tuple[bool, tuple[int, int], int, Fraction]:
    if line.growth is None or line.growth.basis == "bytes":
        return False, (0, 0), 0, Fraction(0)
    powers, logs = max(((term.powers[1], term.powers[0]), len(term.factors)) for term in line.growth.terms)
    return True, powers, logs, Fraction(0) if line.work is None else line.work.coefficient(powers[1], powers[0])


def describe_symbols(form: ClosedForm) -> Mapping[str, str]:
    """What B and S stand for."""
    if not form.has_sequence:
        return {"B": "batch"}
    return {"B": "batch", "S": "tokens in the KV cache" if form.step == "decode" else "sequence length"}
