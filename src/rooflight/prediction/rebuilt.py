"""The step of a ledger, built once more by its model's name, for what the ledger alone cannot tell: other batches, many
GPUs, another precision.

A ledger is data: only models that come with rooflight or with a known library are built again, and only where that
gives the very same step. Nobody's own code is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rooflight.errors import BadInput, RooflightError
from rooflight.ledger import Header, Ledger, Module, Op, total
from rooflight.models import builtin_names
from rooflight.prediction.prepared import PreparedTrace, Step, TracedIn, ledger_of
from rooflight.prediction.steps import Traces
from rooflight.prediction.what_fits import Asked
from rooflight.spec import StepSpec
from rooflight.trace import TraceOptions

_OF_LIBRARIES = re.compile(r"(?:torchvision|timm|hf):([A-Za-z][\w.-]*)")
"""Names of architectures; a folder of that name is none."""


@dataclass(frozen=True)
class Rebuilt:
    """What was traced of it serves all questions."""

    asked: Asked
    step: Step
    """As a GPU would run it."""
    scaled: bool
    """Does one trace serve its own batch and all others?"""

    @cached_property
    def ledger(self) -> Ledger:
        """Its estimate."""
        return ledger_of(self.step)


def rebuilt(ledger: Ledger) -> Rebuilt | str:
    """The ledger's step, built again; or why it cannot be."""
    try:
        return _built(ledger)
    except RooflightError as error:
        return error.on_command_line


def _built(ledger: Ledger) -> Rebuilt:
    header = ledger.header
    if header.batch is None or not _is_known(header.model):
        raise BadInput(f"{header.model} is not built again for a report")
    traces, options = _traces(header)
    (step,), notes = traces.steps([header.batch], options, scaled=_several(header))
    if _recomputed(step.ops_with_cost) != _recomputed(ledger.ops) or not _is_same(step, ledger):
        raise BadInput(f"{header.model} as it is built now is not what this ledger was made from (other sizes or "
                       "options)")  # fmt: skip
    return Rebuilt(Asked(traces, options), step, scaled=_several(header) and not notes)


def step_of(ledger: Ledger) -> Step:
    """The ledger's own step, that can be traced in another precision where its model can be built."""
    step, header = PreparedTrace(ledger, None).at(None), ledger.header
    if header.batch is None or not _is_known(header.model):
        return step
    return replace(step, traced_in=_traced_in(ledger, header.batch))


def _traced_in(ledger: Ledger, batch: int) -> TracedIn:
    def traced(dtype: str, target: str) -> Step | None:
        traces, options = _traces(ledger.header)
        found = traces.traced_in(batch, options, scaled=_several(ledger.header))(dtype, target)
        return found if found is not None and _is_same(found, ledger) else None

    return traced


def _traces(header: Header) -> tuple[Traces, TraceOptions]:
    spec = StepSpec.of(header)
    return Traces(spec.model, **spec.build), TraceOptions.of(spec)


def _several(header: Header) -> bool:
    """The trace that other batches need serves this one, too. A batch of 1 is apart: some models skip a sum over it."""
    return header.batch is not None and header.batch > 1


def _is_known(model: str) -> bool:
    if model in builtin_names():
        return True
    found = _OF_LIBRARIES.fullmatch(model)
    return found is not None and not Path(found[1]).exists()


def _is_same(step: Step, ledger: Ledger) -> bool:
    """Whatever its precision: the same modules and the same work."""
    return _identity(step.ledger.modules, step.ops_with_cost) == _identity(ledger.modules, ledger.ops)


def _identity(modules: Sequence[Module], ops: Sequence[Op]) -> tuple[Any, ...]:
    return [(module.path, module.type, module.params) for module in modules], total(ops).flops


def _recomputed(ops: Sequence[Op]) -> float | None:
    """By kernels of attention that not every precision has."""
    return total(ops).recompute_flops
