"""The steps to be predicted: one trace where one is enough, whatever the number of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from torch import nn

from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import Ledger
from rooflight.models.workload import Workload
from rooflight.prediction.batches import DoesNotScale, check_scales, prime_for
from rooflight.prediction.prepared import PreparedTrace, Step
from rooflight.trace import TraceOptions, trace
from rooflight.trace.given import given_workload

_FEW = 2
"""Up to so many batches are traced each for itself."""


def steps_of(model: str | nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None,
             batches: Sequence[int], options: TraceOptions, *, scaled: bool = False,
             **which: Any) -> tuple[list[Step], tuple[str, ...]]:  # fmt: skip
    """The step at every batch, and what must be said about how they were found. A live module has the batch of its
    inputs. `scaled`: more batches will be asked for, so one trace for all is worth it."""
    if not isinstance(model, str):
        workload = given_workload(model, inputs, kwargs, batch=batches[0] if batches else None, device="meta", **which)
        return [PreparedTrace(trace(workload, options), None).at(None)], ()

    def traced(batch: int) -> tuple[Ledger, Workload]:
        workload = given_workload(model, (), None, batch=batch, device="meta", **which)
        return trace(workload, options), workload

    @cache
    def at(batch: int) -> Step:
        return replace(PreparedTrace(traced(batch)[0], None).at(None), larger=at)

    if scaled or len(set(batches)) > _FEW:
        try:
            return _from_one(traced, batches)
        except DoesNotScale as found:
            note = f"every batch was traced for itself: {found}"
            return [at(batch) for batch in batches], (note,)
    return [at(batch) for batch in batches], ()


def _from_one(traced: Any, batches: Sequence[int]) -> tuple[list[Step], tuple[str, ...]]:
    prime = prime_for(batches)
    try:
        ledger, workload = traced(prime)
    except (BadInput, TraceFailed):
        # As a model that takes its batch in pairs. What is wrong with any batch will be said of the one that was asked.
        raise DoesNotScale(f"the model does not take a batch of {prime}") from None
    sizes = {size for parameter in workload.model.parameters() for size in (*parameter.shape, parameter.numel())}
    check_scales(ledger, prime, sizes)
    prepared = PreparedTrace(ledger, prime)
    note = "batch 1 is taken as any other: some models skip a sum over the batch there" if 1 in batches else ""
    return [prepared.at(batch) for batch in batches], (note,) if note else ()
