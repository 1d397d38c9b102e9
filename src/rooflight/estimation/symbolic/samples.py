"""The traces that a closed form is found from: sums by module, phase and quantity at a few batches and sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, get_args

from rooflight.errors import BadInput, TraceFailed
from rooflight.estimation.symbolic.polynomial import Point, SamplingGrid
from rooflight.ledger import Ledger, Op, Phase

LedgerAt = Callable[[int, int | None], Ledger]
"""The ledger of one step with this batch and this sequence (`None`: the model has none)."""

Quantity = Literal[
    "macs", "flops", "flops_causal", "other_flops", "recompute_flops", "bytes_read", "bytes_written", "bytes"
]
COSTS: tuple[Quantity, ...] = get_args(Quantity)
_SUMMED = COSTS[:-1]

TOTAL = "<total>"
Key = tuple[str, Phase | Literal["model"], Quantity | Literal["params", "activations"]]
"""Module path, phase, quantity. Parameters and activations belong to no phase."""

# Multiples of 32 first: attention kernels pad rows of 16 and 32, and on multiples the padding is nothing. A model
# with few positions gets shorter sequences.
_STEPS = (32, 8, 2)
_BATCHES = (2, 3)
"""Not 1: an axis of one element is squeezed or broadcast by some models."""


class Samples:
    """Traces at the points asked for, each made once."""

    def __init__(self, ledger_at: LedgerAt, step: int | None) -> None:
        self._ledger_at = ledger_at
        self.step = step
        """Every sequence of the grid is a multiple of it; `None`: the model has no sequence."""
        self._ledgers: dict[Point, Ledger] = {}
        self._sums: dict[Point, Counter[Key]] = {}
        self._ops: dict[Point, dict[tuple[str, str], dict[object, Op]]] = {}

    @cached_property
    def grid(self) -> SamplingGrid:
        """Powers up to B¹ and S²."""
        return SamplingGrid(_BATCHES, self._lengths(1, 2, 3))

    @cached_property
    def check(self) -> Point:
        return 5, self._length(5)

    @cached_property
    def wide_grid(self) -> SamplingGrid:
        """Powers up to B² and S³, for a second attempt."""
        return SamplingGrid((*_BATCHES, 5), self._lengths(1, 2, 3, 5))

    @cached_property
    def wide_check(self) -> Point:
        return 7, self._length(7)

    @cached_property
    def base(self) -> Ledger:
        return self.ledger(self.grid.points[0])

    def _length(self, count: int) -> int | None:
        return None if self.step is None else count * self.step

    def _lengths(self, *counts: int) -> tuple[int, ...]:
        return () if self.step is None else tuple(count * self.step for count in counts)

    def off_step(self) -> int | None:
        """A sequence that is a multiple of nothing much."""
        return None if self.step is None else self.step + self.step // 4 + 1

    @property
    def traced(self) -> int:
        return len(self._ledgers)

    def ledger(self, point: Point) -> Ledger:
        if point not in self._ledgers:
            self._ledgers[point] = self._ledger_at(*point)
        return self._ledgers[point]

    def has(self, point: Point) -> bool:
        """Can the model be traced there? It may have too few positions."""
        try:
            self.ledger(point)
        except (BadInput, TraceFailed):
            return False
        return True

    def sums(self, point: Point) -> Counter[Key]:
        if point not in self._sums:
            self._sums[point] = _sums(self.ledger(point))
        return self._sums[point]

    def ops(self, point: Point, path: str = TOTAL, phase: str | None = None) -> dict[object, Op]:
        """The point's ops by key, views left out; all, or those of one module or phase."""
        if point not in self._ops:
            places = self._ops[point] = {}
            for op in self.ledger(point).ops:
                if op.kind != "view":
                    places.setdefault((op.module, op.phase), {})[op.key] = op
        if path != TOTAL and phase is not None:
            return self._ops[point].get((path, phase), {})
        return {
            key: op
            for (module, own_phase), ops in self._ops[point].items()
            if path in (module, TOTAL) and phase in (own_phase, None)
            for key, op in ops.items()
        }


def sample(ledger_at: LedgerAt, *, sequence: bool | None) -> Samples:
    """Traces for a model, once it is known whether it has a sequence and how long it may be.

    `sequence`: it has one, it has none, or (`None`) see whether it takes one and says so.
    """
    failure: Exception | None = None
    for step in _STEPS if sequence is not False else ():
        samples = Samples(ledger_at, step)
        try:
            header = samples.ledger(samples.check).header
        except (BadInput, TraceFailed) as error:
            failure = error
            continue
        if sequence or samples.check[1] in (header.sequence, header.past):
            return samples
        break
    if sequence and failure is not None:
        raise failure
    return Samples(ledger_at, None)


def _sums(ledger: Ledger) -> Counter[Key]:
    sums: Counter[Key] = Counter()
    for op in ledger.ops:
        cost = op.cost
        if cost is None or op.kind == "view":
            continue
        for quantity in _SUMMED:
            if value := getattr(cost, quantity):
                sums[op.module, op.phase, quantity] += value
                if quantity in ("bytes_read", "bytes_written"):
                    sums[op.module, op.phase, "bytes"] += value
    for path, value in _activations(ledger):
        sums[path, "model", "activations"] += value
    for module in ledger.modules:
        sums[module.path, "model", "params"] += module.params
    total: Counter[Key] = Counter()
    for key, value in sums.items():
        total[TOTAL, key[1], key[2]] += value
    sums.update(total)
    return sums


def _activations(ledger: Ledger) -> Iterator[tuple[str, int]]:
    """Bytes by module: what a training step keeps for backward, or else what the leaf modules put out."""
    if ledger.header.step == "train":
        # Micro-batches of an accumulated step follow one another: the first one's is what is kept at a time.
        first_backward = next((op.index for op in ledger.ops if op.phase == "backward"), len(ledger.ops))
        for storage in ledger.storages:
            if storage.category == "activation" and storage.born is not None and storage.born < first_backward:
                yield ledger.ops[storage.born].module, storage.nbytes
        return
    parents = {module.path.rpartition(".")[0] for module in ledger.modules if module.path}
    for module in ledger.modules:
        if module.path and module.path not in parents:
            yield module.path, module.pass_output_bytes()
