"""Counts over the ops and modules of a ledger that answers, conventions and mistakes are all made of.

A row may be of another batch than the ledger. Matrix work and what a layer gets and gives are proportional to the
batch, parameters do not depend on it. What is neither is not scaled: it is traced anew, or left unanswered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from rooflight.analysis.claims.ledger_query import ClaimScope
from rooflight.analysis.claims.result import CannotTell
from rooflight.analysis.finding import Number
from rooflight.estimation.costs import work_of
from rooflight.ledger import Module, Op
from rooflight.ops.registry import Work


def whole(value: Number) -> Number:
    """A fraction that is a whole number, as one."""
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def said(value: Number) -> str:
    """For sentences."""
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.6g}"


# Work and bytes of ops.


def macs(scope: ClaimScope) -> Number:
    return whole(scope.totals.macs * scope.scale)


def flops(scope: ClaimScope) -> Number:
    return 2 * macs(scope)


def other_flops(scope: ClaimScope) -> int:
    at_its_own_batch(scope, "arithmetic outside matrix work")
    return scope.totals.other_flops


def moved(scope: ClaimScope, *names: str) -> int:
    """Compulsory bytes: all, or those that are read or written."""
    at_its_own_batch(scope, "traffic")
    return sum(getattr(scope.totals, name) for name in names or ("bytes",))


def every_output(scope: ClaimScope) -> int:
    """Bytes of what all ops give, functional ones too; what is changed in place is no new output."""
    at_its_own_batch(scope, "what all ops give")
    ops = (op for op in scope.whole().ops if op.phase == "forward" and not op.mutates)
    return sum(tensor.nbytes for op in ops for tensor in op.outputs[:1])


def matrix_ops(ops: Iterable[Op]) -> list[Op]:
    return [op for op in ops if op.cost is not None and op.cost.macs]


def work(op: Op) -> Work | None:
    return work_of(op)


def at_its_own_batch(scope: ClaimScope, what: str) -> None:
    if scope.scale != 1:
        own = scope.ledger.header.batch
        raise CannotTell(
            f"{what} is not proportional to the batch: the ledger is of batch {own}, the row of {scope.batch}",
            scope.book.command(batch=scope.batch),
        )


# Figures of modules.


def params(scope: ClaimScope) -> int:
    return sum(module.params for module in scope.part.modules)


def param_bytes(scope: ClaimScope) -> int:
    return sum(module.param_bytes for module in scope.part.modules)


def buffer_bytes(scope: ClaimScope) -> int:
    return sum(module.buffer_bytes for module in scope.part.modules)


def trainable_params(scope: ClaimScope) -> int:
    return sum(module.trainable_params for module in scope.part.modules)


def bias_elements(scope: ClaimScope) -> int:
    """Parameters that are added: one for each output of a matrix product or convolution."""
    biases = ((op, "bias" if op.has("bias") else "self" if op.packet == "aten::addmm" else "") for op in scope.ops)
    return sum(op.tensor(name).numel for op, name in biases if name and op.cost is not None and op.cost.macs)


def output_elements(scope: ClaimScope) -> Number:
    return whole(sum(math.prod(shape) for shape in module_of(scope).outputs) * scope.scale)


def output_bytes(scope: ClaimScope) -> Number:
    return whole(module_of(scope).output_bytes * scope.scale)


def input_bytes(scope: ClaimScope) -> Number:
    shapes = module_of(scope).inputs
    return whole(sum(math.prod(shape) for shape in shapes[:1]) * scope.book.dtype_bytes * scope.scale)


def module_of(scope: ClaimScope) -> Module:
    module = scope.part.module
    if module is None and scope.part.kind == "total":
        module = next((module for module in scope.ledger.modules if not module.path), None)
    if module is None or not module.outputs:
        raise CannotTell(f"{scope.part.name} is no single layer that gives something", "name one layer by its path")
    return module
