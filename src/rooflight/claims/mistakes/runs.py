"""Mistakes about a run: whose time it is, which units were counted, how much an instruction is worth."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rooflight.claims import ran
from rooflight.claims.case import Case, Trial
from rooflight.claims.result import Candidate, Number
from rooflight.ledger import Value
from rooflight.metrics import CUDA_FLOPS, TENSOR_FLOPS

_FMA = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def _scopes(case: Case) -> Iterator[Candidate]:
    if case.name not in ran.SCOPES:
        return
    for found in ran.scopes_of_time(case.scope):
        if found.code != case.name.replace("_", "-"):
            yield Candidate("time-scopes-mixed", f"that is {found.text}, not {ran.SCOPES[case.name]}", found.value)


def _per_sample(case: Case) -> Iterator[Candidate]:
    own = case.scope.ledger.header.batch
    if case.name in ran.SCOPES and own is not None and own > 1:
        value = _number(case.answer.value)
        yield Candidate("batch-missing", f"of one sample, and the row is of a step of {own}", Fraction(value) / own)
    if case.name == "throughput" and own is not None and own > 1:
        value = _number(case.answer.value)
        yield Candidate("batch-missing", f"steps a second, not samples: a step has {own}", Fraction(value) / own)


def _units(case: Case) -> Iterator[Candidate]:
    """Counters of one kind of unit for all."""
    if case.name != "executed_flops":
        return
    part = ran.Part(case.scope)
    cuda, tensor = part.several(CUDA_FLOPS), part.several(TENSOR_FLOPS)
    if cuda is not None and tensor is not None and tensor.value:
        share = _number(cuda.value) / _number(case.answer.value)
        text = (
            f"only fadd + fmul + 2 x ffma: the tensor cores executed {_number(tensor.value):,} more, which these "
            f"counters do not see; it is {100 * float(share):.3g}% of the work"
        )
        yield Candidate("tensor-work-not-counted", text, cuda.value)
        yield Candidate("cuda-work-not-counted", "the tensor cores alone", tensor.value)
    known = {name: part.value(_FMA.format(name)) for name in ("fadd", "fmul", "ffma")}
    if all(value is not None for value in known.values()):
        counts = [value.value for value in known.values() if isinstance(value, Value)]
        text = "fadd + fmul + ffma: a fused multiply-add counted as 1"
        yield Candidate("fma-counted-once", text, sum(counts))


def _number(value: object) -> Number:
    assert isinstance(value, (int, float, Fraction))
    return value


LIKELY: tuple[Trial, ...] = (_scopes, _per_sample, _units)
