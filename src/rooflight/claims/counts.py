"""Counts over the ops and modules of a ledger that answers, conventions and mistakes are all made of.

A row may be of another batch than the ledger. Matrix work and what a layer gets and gives are proportional to the
batch, parameters do not depend on it. What is neither is not scaled: it is traced anew, or left unanswered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from rooflight.claims.book import Scope
from rooflight.claims.result import CannotTell, Number
from rooflight.estimation import formulas as _formulas  # noqa: F401  (registers them)
from rooflight.estimation.costs import work_of
from rooflight.estimation.registry import Work, find
from rooflight.ledger import Module, Op


def whole(value: Number) -> Number:
    """A fraction that is a whole number, as one."""
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def said(value: Number) -> str:
    """For sentences."""
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.6g}"


def macs(scope: Scope) -> Number:
    return whole(sum(known(op, "macs") for op in scope.ops) * scope.scale)


def flops(scope: Scope) -> Number:
    return 2 * macs(scope)


def other_flops(scope: Scope) -> Number:
    at_its_own_batch(scope, "arithmetic outside matrix work")
    return sum(known(op, "other_flops") for op in scope.ops)


def ops(scope: Scope) -> Number:
    """Matrix work, or the rest of a layer that has none."""
    matrix = flops(scope)
    return matrix if matrix else other_flops(scope)


def moved(scope: Scope, names: tuple[str, ...] = ("bytes_read", "bytes_written")) -> Number:
    """Compulsory bytes."""
    at_its_own_batch(scope, "traffic")
    return sum(known(op, name) for op in scope.ops for name in names)


def params(scope: Scope) -> int:
    return sum(module.params for module in scope.place.modules)


def param_bytes(scope: Scope) -> int:
    return sum(module.param_bytes for module in scope.place.modules)


def bias_elements(scope: Scope) -> int:
    """Parameters that are added: one for each output of a matrix product or convolution."""
    found = 0
    for op in matrix_ops(scope.ops):
        name = "bias" if op.has("bias") else "self" if op.packet == "aten::addmm" else ""
        found += op.tensor(name).numel if name else 0
    return found


def output_elements(scope: Scope) -> Number:
    return whole(sum(math.prod(shape) for shape in module_of(scope).outputs) * scope.scale)


def output_bytes(scope: Scope) -> Number:
    return whole(module_of(scope).output_bytes * scope.scale)


def input_bytes(scope: Scope) -> Number:
    shapes = module_of(scope).inputs
    return whole(sum(math.prod(shape) for shape in shapes[:1]) * scope.book.dtype_bytes * scope.scale)


def matrix_ops(found: Iterable[Op]) -> list[Op]:
    return [op for op in found if op.cost is not None and op.cost.macs]


def work(op: Op) -> Work | None:
    formula = find(op)
    return None if formula is None else work_of(op, formula)


def every_output(scope: Scope) -> Number:
    """Bytes of what all ops give, functional ones too; what is changed in place is no new output."""
    at_its_own_batch(scope, "what all ops give")
    made = (
        tensor.nbytes
        for op in scope.whole().ops
        if op.phase == "forward" and not op.mutates
        for tensor in op.outputs[:1]
    )
    return sum(made)


def known(op: Op, name: str) -> int:
    return (getattr(op.cost, name) or 0) if op.cost is not None else 0


def module_of(scope: Scope) -> Module:
    module = scope.place.module
    if module is None and scope.place.kind == "total":
        module = next((module for module in scope.ledger.modules if not module.path), None)
    if module is None or not module.outputs:
        raise CannotTell(f"{scope.place.name} is no single layer that gives something", "name one layer by its path")
    return module


def at_its_own_batch(scope: Scope, what: str) -> None:
    if scope.scale != 1:
        own = scope.ledger.header.batch
        raise CannotTell(
            f"{what} is not proportional to the batch: the ledger is of batch {own}, the row of {scope.batch}",
            scope.book.command(batch=scope.batch),
        )


def intensity(scope: Scope) -> Number:
    work_ = flops(scope) + other_flops(scope)
    return Fraction(work_) / Fraction(moved(scope))
