"""A step traced once for all of its batches: with a prime for a batch, in whose place others are put.

Ops that are alike at the prime are alike at every batch, so each kind of op is costed once a batch. Batch 1 is never
found in this way: some models skip a sum over the batch there.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rooflight.errors import BadInput, TraceFailed
from rooflight.estimation.api import estimate
from rooflight.estimation.costs import cost_of, signature
from rooflight.ledger import Ledger
from rooflight.prediction.batches import DoesNotScale, check_scales, ledger_at, prime_for
from rooflight.study.cell import Cell
from rooflight.study.commands import estimate_command
from rooflight.trace import TraceOptions, trace
from rooflight.trace.given import given_workload


class Traced:
    """The step of cells that differ in their batch alone."""

    def __init__(self, ledger: Ledger, prime: int) -> None:
        self._ledger, self._prime = ledger, prime
        sizes = {storage.id: storage.nbytes for storage in ledger.storages}
        known: dict[object, int] = {}
        self._kind_of = [known.setdefault(signature(op, sizes), len(known)) for op in ledger.ops]
        places = {kind: place for place, kind in reversed(list(enumerate(self._kind_of)))}
        self._firsts = [places[kind] for kind in range(len(known))]
        """The first op of every kind."""

    def at(self, cell: Cell) -> Ledger:
        """What `rooflight estimate` gives for the cell."""
        if cell.batch < 2:
            raise ValueError("a batch of 1 is traced for itself")
        found = ledger_at(self._ledger, self._prime, cell.batch, self._filled)
        return replace(found, header=replace(found.header, command=estimate_command(cell)))

    def _filled(self, ledger: Ledger) -> Ledger:
        sizes = {storage.id: storage.nbytes for storage in ledger.storages}
        costs = [cost_of(ledger.ops[first], sizes) for first in self._firsts]
        ops = tuple(replace(op, cost=costs[kind]) for op, kind in zip(ledger.ops, self._kind_of, strict=True))
        return replace(ledger, ops=ops)


def traced_once(cells: Sequence[Cell]) -> Traced:
    """One trace for all of these; raises `DoesNotScale` where that cannot be."""
    cell, prime = cells[0], prime_for([cell.batch for cell in cells])
    try:
        workload = given_workload(cell.model, (), None, batch=prime, device="meta", **cell.build)
        ledger = trace(workload, TraceOptions.of(cell))
    except (BadInput, TraceFailed):
        raise DoesNotScale(f"the model does not take a batch of {prime}") from None
    sizes = {size for parameter in workload.model.parameters() for size in (*parameter.shape, parameter.numel())}
    check_scales(ledger, prime, sizes)
    traced = Traced(ledger, prime)
    if ":" in cell.model:  # nobody has tried whether its ops stay the same whatever the batch
        largest = max(cells, key=lambda one: one.batch)
        if traced.at(largest) != estimated(largest):
            raise DoesNotScale(f"at a batch of {largest.batch} the model runs other ops")
    return traced


def estimated(cell: Cell, target: str = "cuda") -> Ledger:
    """One cell for itself."""
    return estimate(cell, target=target, command=estimate_command(cell))
