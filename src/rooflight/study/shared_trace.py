"""A step traced once for all of its batches, as `rooflight predict` does it. Batch 1 is never found in this way: some
models skip a sum over the batch there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rooflight.estimation.api import estimate
from rooflight.ledger import Ledger
from rooflight.prediction.traces import Traces
from rooflight.step.costed_step import PreparedTrace, ledger_of
from rooflight.step.other_batches import DoesNotScale, prime_for
from rooflight.study.cell import StudyCell
from rooflight.trace import TraceOptions


class SharedTrace:
    """The step of cells that differ in their batch alone."""

    def __init__(self, trace: PreparedTrace) -> None:
        self._trace = trace

    def at(self, cell: StudyCell) -> Ledger:
        """What `rooflight estimate` gives for the cell."""
        if cell.batch < 2:
            raise ValueError("a batch of 1 is traced for itself")
        ledger = ledger_of(self._trace.at(cell.batch))
        return replace(ledger, header=replace(ledger.header, command=cell.command("estimate")))


def traced_once(cells: Sequence[StudyCell]) -> SharedTrace:
    """One trace for all of these; raises `DoesNotScale` where that cannot be."""
    cell, prime = cells[0], prime_for([cell.batch for cell in cells])
    trace = Traces(cell.model, **cell.build).for_all_batches(TraceOptions.of(cell), prime)
    if isinstance(trace, DoesNotScale):
        raise trace
    traced = SharedTrace(trace)
    if ":" in cell.model:  # nobody has tried whether its ops stay the same whatever the batch
        largest = max(cells, key=lambda one: one.batch)
        if traced.at(largest) != estimated(largest):
            raise DoesNotScale(f"at a batch of {largest.batch} the model runs other ops")
    return traced


def estimated(cell: StudyCell, target: str = "cuda") -> Ledger:
    """One cell for itself."""
    return estimate(cell, target=target, command=cell.command("estimate"))
