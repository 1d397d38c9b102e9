"""The closed form: what a model costs as exact polynomials in the batch B and the sequence S, by layer and in total.

A few small traces determine the polynomials, another one verifies them, and further ones find out where they hold
(for a batch of 1, for a sequence that is no multiple of 32). Where none fits, the row says so and names the ops.

    >>> form = closed_form("gpt2")
    >>> print(form.total.forward["macs"].polynomial)
    18,432·B·S² + 123,532,032·B·S
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, Unpack

from msgspec.structs import replace as changed
from torch import nn

from rooflight.errors import BadInput
from rooflight.estimation.api import estimate
from rooflight.estimation.symbolic.fits import FitCondition, PolynomialFit, PolynomialFits, fit_all
from rooflight.estimation.symbolic.growth import Growth, GrowthTerm, growth_of_bytes, growth_of_terms, width_of
from rooflight.estimation.symbolic.op_growth import limits_of, terms_of
from rooflight.estimation.symbolic.polynomial import ZERO, Point, Polynomial, SamplingGrid
from rooflight.estimation.symbolic.samples import COSTS, TOTAL, LedgerAt, Quantity, Samples, sample
from rooflight.ledger import LOSS, OPTIMIZER, PHASES, Ledger, Note, Op, Phase, StepKind, total
from rooflight.spec import StepKeywords, StepSpec

_T = TypeVar("_T")
Costs = Mapping[Quantity, PolynomialFit]
WORK: tuple[Quantity, ...] = ("flops", "recompute_flops", "other_flops")


@dataclass(frozen=True)
class ClosedFormRow:
    """A module by what runs in it itself, not in its children; or the loss, the optimizer, the total."""

    path: str
    type: str
    ops: int
    """How many ops that are no views, at the first traced point."""
    phases: Mapping[Phase, Costs]
    """The phases it has work in, each with every quantity of a cost; bytes are compulsory bytes."""
    params: PolynomialFit
    activations: PolynomialFit
    """Bytes: kept for backward, in a training step; otherwise the output of a leaf module, once for each call."""
    growth: Mapping[Phase, Growth] = field(default_factory=dict)
    """The Big-O of each phase's work."""
    uncounted: tuple[str, ...] = ()
    """Ops of unknown cost, which the polynomials do not cover."""

    @property
    def forward(self) -> Costs:
        return self.phases["forward"]

    @property
    def backward(self) -> Costs:
        return self.phases["backward"]

    def work(self) -> Polynomial | None:
        """All FLOPs, matrix and other and recomputed; `None` where one of them has no closed form."""
        parts = [costs[quantity].polynomial for costs in self.phases.values() for quantity in WORK]
        terms = [part for part in parts if part is not None]
        return sum(terms, start=ZERO) if len(terms) == len(parts) else None


@dataclass(frozen=True)
class ClosedForm:
    """The closed form of one step of a model, and how it was fitted."""

    model: str
    step: StepKind
    dtype: str
    has_sequence: bool
    total: ClosedFormRow
    rows: tuple[ClosedFormRow, ...]
    """In the order of the model, then the loss and the optimizer; the rows add up to the total."""
    fitted: tuple[Point, ...]
    verified: tuple[Point, ...]
    traces: int
    notes: tuple[Note, ...] = ()

    def row(self, path: str) -> ClosedFormRow:
        """The row of one module."""
        for row in self.rows:
            if row.path == path:
                return row
        raise BadInput(
            "unknown-layer", f"{self.model} has no layer {path!r} with ops of its own; see the rows of its closed form"
        )


def closed_form(
    model: str | StepSpec | LedgerAt,
    *,
    sequence: bool | None = None,
    also: Sequence[Point] = (),
    target: str = "cuda",
    **step: Unpack[StepKeywords],
) -> ClosedForm:
    """The closed form of a model by name, or of whatever a function of batch and sequence traces.

    A function gets (batch, sequence) and gives the filled ledger of that step; the options are then its own affair.
    `sequence` says whether there is one: by default a function has one, and a model by name is asked. When decoding,
    the sequence is the number of tokens in the cache. `also` are further points to verify the polynomials at, such as
    the one that will be run.

        >>> closed_form(lambda batch, _: estimate(my_model, torch.randn(batch, 3, 32, 32)), sequence=False)
    """
    if isinstance(model, nn.Module):
        raise BadInput(
            "needs-a-model-name",
            "a closed form needs the step at every batch: give the model by name, or a function that "
            "estimates it at (batch, sequence)",
        )
    if callable(model):
        return _closed_form(sample(model, sequence=True if sequence is None else sequence), also)

    spec = StepSpec.given(model, step, verb="estimate")

    def ledger_at(batch: int, length: int | None) -> Ledger:
        return estimate(changed(spec, batch=batch, seq=length, past=None), target=target)

    return _closed_form(sample(ledger_at, sequence=sequence), also)


def _closed_form(samples: Samples, also: Sequence[Point]) -> ClosedForm:
    # A point without a length says nothing about a model that has one.
    fitted = fit_all(samples, [point for point in also if (point[1] is None) == (samples.step is None)])
    header = samples.base.header
    terms, limits = _terms_and_limits(samples, fitted.grid, fitted.check)
    ops: dict[str, list[Op]] = {}
    for op in samples.ops(samples.grid.points[0]).values():
        ops.setdefault(op.module, []).append(op)
    types = {module.path: module.type for module in samples.base.modules}
    types |= {LOSS: header.loss or "", OPTIMIZER: header.optimizer or ""}
    rows = [_row(fitted, path, types.get(path, ""), ops.get(path, []), terms, limits) for path in (types | ops)]
    matrix = (term for group in terms.values() for term in group if term.matrix)
    # One token against a cache meets each of S keys once; a whole sequence meets itself.
    width = width_of(matrix, least_power=1 if header.past is not None else 2)
    everything = [op for group in ops.values() for op in group]
    assert header.step is not None and header.dtype is not None  # a trace tells both
    return ClosedForm(
        model=header.model,
        step=header.step,
        dtype=header.dtype,
        has_sequence=samples.step is not None,
        total=_row(fitted, TOTAL, "", everything, _totalled(terms), _totalled(limits), width=width),
        rows=tuple(
            row for row in rows if row.ops or any(fit.polynomial != ZERO for fit in (row.params, row.activations))
        ),
        fitted=fitted.grid.points,
        verified=fitted.verified,
        traces=samples.traced,
        notes=header.notes,
    )


Place = tuple[str, Phase]


def _terms_and_limits(
    samples: Samples, grid: SamplingGrid, check: Point
) -> tuple[dict[Place, list[GrowthTerm]], dict[Place, list[FitCondition]]]:
    """By module and phase the terms of every op, and the limits of its bytes. Equal ops are looked at once."""
    tables = [samples.ops(point) for point in (*grid.points, check)]
    by_shapes: dict[object, tuple[tuple[GrowthTerm, ...], tuple[FitCondition, ...]]] = {}
    terms: dict[Place, list[GrowthTerm]] = {}
    limits: dict[Place, list[FitCondition]] = {}
    for key, op in tables[0].items():
        ops = [match for table in tables if (match := table.get(key)) is not None]
        if op.kind == "host" or len(ops) != len(tables):
            continue
        shapes = tuple(
            (tuple(tensor.shape for tensor in sampled.inputs), sampled.cost) for sampled in (ops[0], ops[-1])
        )
        if (op.name, shapes) not in by_shapes:
            last = (check, ops[-1])
            by_shapes[op.name, shapes] = terms_of(ops[:-1], grid, last), limits_of(ops[:-1], grid, last)
        own_terms, own_limits = by_shapes[op.name, shapes]
        terms.setdefault((op.module, op.phase), []).extend(own_terms)
        limits.setdefault((op.module, op.phase), []).extend(own_limits)
    return terms, limits


def _totalled(groups: Mapping[Place, list[_T]]) -> dict[Place, list[_T]]:
    sums: dict[Place, list[_T]] = {}
    for (_, phase), items in groups.items():
        sums.setdefault((TOTAL, phase), []).extend(items)
    return sums


def _row(
    fitted: PolynomialFits,
    path: str,
    kind: str,
    ops: Sequence[Op],
    terms: Mapping[Place, list[GrowthTerm]],
    limits: Mapping[Place, list[FitCondition]],
    *,
    width: GrowthTerm | None = None,
) -> ClosedFormRow:
    nothing = PolynomialFit(ZERO)
    phases: dict[Phase, Costs] = {}
    growth: dict[Phase, Growth] = {}
    for phase in (phase for phase in PHASES if any(op.phase == phase for op in ops)):
        costs = {quantity: fitted.fits.get((path, phase, quantity), nothing) for quantity in COSTS}
        if own_limits := tuple(dict.fromkeys(limits.get((path, phase), []))):
            for quantity in ("bytes_read", "bytes"):
                costs[quantity] = _limited(costs[quantity], own_limits)
        phases[phase] = costs
        own_terms = terms.get((path, phase), [])
        # A layer's backward is told in the symbols of its forward.
        grown = growth_of_terms(own_terms, named_as=terms.get((path, "forward"), []), width=width)
        grown = grown or growth_of_bytes(costs["bytes"].polynomial)
        if grown is not None:
            growth[phase] = grown
    return ClosedFormRow(
        path=path,
        type=kind,
        ops=len(ops),
        phases=phases,
        params=fitted.fits.get((path, "model", "params"), nothing),
        activations=fitted.fits.get((path, "model", "activations"), nothing),
        growth=growth,
        uncounted=tuple(row.op for row in total(ops).uncounted),
    )


def _limited(fit: PolynomialFit, limits: tuple[FitCondition, ...]) -> PolynomialFit:
    """A fit with the limits of its ops; a point that they exclude need not be excluded by itself."""
    explained = [
        condition
        for condition in fit.holds
        if condition.excluded is not None and not all(limit.admits(condition.excluded) for limit in limits)
    ]
    return replace(fit, holds=(*(condition for condition in fit.holds if condition not in explained), *limits))
