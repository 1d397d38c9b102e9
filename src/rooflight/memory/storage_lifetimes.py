"""Which storages a step makes and loses at each op, and which are there all the time: the order of events, no sizes.

It is read from a trace once, and holds for every batch of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.ledger import Category, Ledger, Op, Storage

_BEFORE: tuple[Category, ...] = ("parameter", "buffer")
_LAST_FIRST = frozenset({"aten::native_dropout"})
"""Ops that make their last result first: a mask before what it is put on."""


@dataclass(frozen=True)
class AddedStorage:
    """Something that no op of the step makes and that takes memory beside it: gathered weights, a bucket."""

    category: str
    name: str
    born: int | None = None
    """The op before which it is there; `None`: it is made before the first step, and stays."""
    dies: int | None = None
    """As of a storage; a gradient that outlives the step goes when the next begins."""


@dataclass(frozen=True)
class StorageLifetimes:
    """Storages are named by their place in the ledger. Those in the host's memory are left out."""

    model: tuple[int, ...]
    """Parameters and buffers, in the order in which the modules are made."""
    optimizer_state: tuple[int, ...]
    """Made by the first step, there before every other."""
    inputs: tuple[int, ...]
    results: tuple[tuple[int, ...], ...]
    """Of every op: the storages it makes, in the order of its results."""
    freed: tuple[tuple[int, ...], ...]
    """Before every op: the storages that nobody holds any more."""
    gradients: tuple[int, ...]
    """Outlive the step, and go when the next begins."""
    left: tuple[int, ...]
    """Whatever else is there when the step ends: its outputs, which go with it."""
    first_optimizer_op: int | None
    rows: tuple[AddedStorage, ...] = ()
    """What is there beside the storages of the ledger, numbered behind them."""

    def changed(
        self,
        *,
        storages: int,
        gone: Collection[int] = (),
        born: Mapping[int, int] | None = None,
        dies: Mapping[int, int] | None = None,
        rows: Sequence[AddedStorage] = (),
    ) -> StorageLifetimes:
        """Without those that are `gone`; some there only from another op on (made elsewhere), some freed earlier, and
        `rows` beside them. `storages`: how many the ledger has."""
        born = {number: op for number, op in (born or {}).items() if number not in gone}
        dies = {number: op for number, op in (dies or {}).items() if number not in gone}
        results = [[one for one in some if one not in gone and one not in born] for some in self.results]
        freed = [[one for one in some if one not in gone and one not in dies] for some in self.freed]
        gradients, left = (
            [one for one in some if one not in gone and one not in dies] for some in (self.gradients, self.left)
        )
        inputs = [one for one in self.inputs if one not in gone]
        added = [(number, row) for number, row in enumerate(rows, storages)]
        for number, op in [*born.items(), *((number, row.born) for number, row in added if row.born is not None)]:
            results[max(op - 1, 0)].append(number)  # behind the results of the op before, whose moments count those
        for number, op in [*dies.items(), *((number, row.dies) for number, row in added if row.dies is not None)]:
            freed[min(op, len(freed) - 1)].append(number)
        for number, row in added:
            if row.born is None:
                inputs.append(number)
            elif row.dies is None:
                (gradients if row.category == "gradient" else left).append(number)
        return replace(
            self,
            model=tuple(one for one in self.model if one not in gone),
            inputs=tuple(inputs),
            optimizer_state=tuple(one for one in self.optimizer_state if one not in gone),
            results=tuple(map(tuple, results)),
            freed=tuple(map(tuple, freed)),
            gradients=tuple(gradients),
            left=tuple(left),
            rows=tuple(rows),
        )

    def alive(self, op: int) -> list[int]:
        """Everything that is there when this op is done, the optimizer's state included; in ascending order."""
        found = {*self.model, *self.optimizer_state, *self.inputs}
        for freed, results in zip(self.freed[: op + 1], self.results[: op + 1], strict=False):
            found.difference_update(freed)
            found.update(results)
        return sorted(found)


def lifetimes_of(ledger: Ledger) -> StorageLifetimes:
    storages = ledger.storages
    place = {storage.id: number for number, storage in enumerate(storages)}
    results: list[list[int]] = [[] for _ in ledger.ops]
    freed: list[list[int]] = [[] for _ in range(len(ledger.ops) + 1)]
    order = _order_of_results(ledger.ops, place)
    standing: dict[str, list[int]] = {"model": [], "optimizer-state": [], "input": []}
    gradients: list[int] = []
    left: list[int] = []
    for number, storage in enumerate(storages):
        if storage.host:
            continue
        if storage.born is None:
            standing[_kept_as(storage)].append(number)
        else:
            results[min(storage.born, len(results) - 1)].append(number)
        if storage.dies is not None:
            freed[min(storage.dies, len(ledger.ops))].append(number)
        elif storage.born is not None:
            (gradients if storage.category == "gradient" else left).append(number)
    for some in results:
        some.sort(key=lambda number: order.get(number, 0))
    named = {storage.name: number for number, storage in enumerate(storages) if storage.category == "parameter"}
    gradients.sort(key=lambda number: named.get(storages[number].name, len(storages)))  # as `zero_grad` meets them
    return StorageLifetimes(
        model=_as_built(ledger, standing["model"]),
        optimizer_state=tuple(standing["optimizer-state"]),
        inputs=tuple(standing["input"]),
        results=tuple(map(tuple, results)),
        freed=tuple(map(tuple, freed)),
        gradients=tuple(gradients),
        left=tuple(left),
        first_optimizer_op=next((op.index for op in ledger.ops if op.phase == "optimizer"), None),
    )


def _kept_as(storage: Storage) -> str:
    if storage.category in _BEFORE:
        return "model"
    return "optimizer-state" if storage.category == "optimizer-state" else "input"


def _order_of_results(ops: Sequence[Op], place: dict[int, int]) -> dict[int, int]:
    order: dict[int, int] = {}
    for op in ops:
        sign = -1 if op.packet in _LAST_FIRST else 1
        for position, tensor in enumerate(op.outputs):
            number = place.get(tensor.storage)
            if number is not None:
                order.setdefault(number, sign * position)
    return order


def _as_built(ledger: Ledger, model: Sequence[int]) -> tuple[int, ...]:
    """Module by module, a module's buffers after its parameters, as constructors make them."""
    modules = {module.path: number for number, module in enumerate(ledger.modules)}

    def key(number: int) -> tuple[int, int, int]:
        storage = ledger.storages[number]
        return modules.get(storage.name.rpartition(".")[0], len(modules)), int(storage.category == "buffer"), number

    return tuple(sorted(model, key=key))


WEIGHT_COPY = "weight-copy"
"""In what memory is split into. They are saved for backward as activations are, but do not grow with the batch."""


def copies_of_weights(ledger: Ledger) -> set[int]:
    """The numbers of the storages that weights are cast into: autocast keeps them until forward is over, autograd until
    backward has used them."""
    if ledger.header.autocast is None:
        return set()
    weights = {one.id for one in ledger.storages if one.category == "parameter"}
    number = {one.id: place for place, one in enumerate(ledger.storages)}
    return {
        number[made.storage]
        for op in ledger.ops
        if op.packet == "aten::_to_copy" and any(one.storage in weights for one in op.inputs)
        for made in op.outputs
        if made.storage in number
    }
