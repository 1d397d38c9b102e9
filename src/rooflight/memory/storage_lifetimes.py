"""Which storages a step makes and loses at each op, and which are there all the time: the order of events, no sizes.

It is read from a trace once, and holds for every batch of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflight.ledger import Ledger, Op, Tensor

_LAST_FIRST = frozenset({"aten::native_dropout"})
"""Ops that make their last result first: a mask before what it is put on."""


def places_of(ledger: Ledger) -> dict[int, int]:
    """By the id of a storage: its place in the ledger, which is its number here."""
    return {storage.id: number for number, storage in enumerate(ledger.storages)}


def numbers_in(category: str, ledger: Ledger) -> list[int]:
    return [number for number, storage in enumerate(ledger.storages) if storage.category == category]


def bytes_of(numbers: Iterable[int], ledger: Ledger) -> int:
    return sum(ledger.storages[number].nbytes for number in numbers)


def numbers_of(tensors: Iterable[Tensor], places: Mapping[int, int]) -> list[int]:
    """The storages that tensors lie in, but for those that the ledger does not have."""
    return [places[tensor.storage] for tensor in tensors if tensor.storage in places]


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
        gone: Collection[int],
        born: Mapping[int, int],
        dies: Mapping[int, int],
        rows: Sequence[AddedStorage],
    ) -> StorageLifetimes:
        """Without those that are `gone`; some there only from another op on (made elsewhere), some freed earlier, and
        `rows` beside them. `storages`: how many the ledger has."""

        def without(numbers: Iterable[int], moved: Collection[int] = ()) -> list[int]:
            return [number for number in numbers if number not in gone and number not in moved]

        results = [without(numbers, born) for numbers in self.results]
        freed = [without(numbers, dies) for numbers in self.freed]
        gradients, left, inputs = without(self.gradients, dies), without(self.left, dies), without(self.inputs)
        born = {number: op for number, op in born.items() if number not in gone}
        dies = {number: op for number, op in dies.items() if number not in gone}
        for number, row in enumerate(rows, storages):
            if row.born is not None:
                born[number] = row.born
            else:
                inputs.append(number)
            if row.dies is not None:
                dies[number] = row.dies
            elif row.born is not None:
                (gradients if row.category == "gradient" else left).append(number)
        for number, op in born.items():
            results[max(op - 1, 0)].append(number)  # behind the results of the op before, whose moments count those
        for number, op in dies.items():
            freed[min(op, len(freed) - 1)].append(number)
        return replace(
            self,
            model=tuple(without(self.model)),
            inputs=tuple(inputs),
            optimizer_state=tuple(without(self.optimizer_state)),
            results=tuple(map(tuple, results)),
            freed=tuple(map(tuple, freed)),
            gradients=tuple(gradients),
            left=tuple(left),
            rows=tuple(rows),
        )

    def alive(self, op: int) -> list[int]:
        """Everything that is there when this op is done, the optimizer's state included; in ascending order."""
        alive = {*self.model, *self.optimizer_state, *self.inputs}
        for freed, results in zip(self.freed[: op + 1], self.results[: op + 1], strict=False):
            alive.difference_update(freed)
            alive.update(results)
        return sorted(alive)


def lifetimes_of(ledger: Ledger) -> StorageLifetimes:
    storages = ledger.storages
    results: list[list[int]] = [[] for _ in ledger.ops]
    freed: list[list[int]] = [[] for _ in range(len(ledger.ops) + 1)]
    order = _order_of_results(ledger.ops, places_of(ledger))
    model: list[int] = []
    optimizer_state: list[int] = []
    inputs: list[int] = []
    standing = {"parameter": model, "buffer": model, "optimizer-state": optimizer_state}
    gradients: list[int] = []
    left: list[int] = []
    for number, storage in enumerate(storages):
        if storage.host:
            continue
        if storage.born is None:
            standing.get(storage.category, inputs).append(number)
        else:
            results[min(storage.born, len(results) - 1)].append(number)
        if storage.dies is not None:
            freed[min(storage.dies, len(ledger.ops))].append(number)
        elif storage.born is not None:
            (gradients if storage.category == "gradient" else left).append(number)
    for numbers in results:
        numbers.sort(key=lambda number: order.get(number, 0))
    named = {storages[number].name: number for number in numbers_in("parameter", ledger)}
    gradients.sort(key=lambda number: named.get(storages[number].name, len(storages)))  # as `zero_grad` meets them
    return StorageLifetimes(
        model=_as_built(ledger, model),
        optimizer_state=tuple(optimizer_state),
        inputs=tuple(inputs),
        results=tuple(map(tuple, results)),
        freed=tuple(map(tuple, freed)),
        gradients=tuple(gradients),
        left=tuple(left),
        first_optimizer_op=next((op.index for op in ledger.ops if op.phase == "optimizer"), None),
    )


def _order_of_results(ops: Sequence[Op], places: Mapping[int, int]) -> dict[int, int]:
    order: dict[int, int] = {}
    for op in ops:
        sign = -1 if op.packet in _LAST_FIRST else 1
        for position, tensor in enumerate(op.outputs):
            if tensor.storage in places:
                order.setdefault(places[tensor.storage], sign * position)
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
    weights, places = set(numbers_in("parameter", ledger)), places_of(ledger)
    copies: set[int] = set()
    for op in ledger.ops:
        if op.packet == "aten::_to_copy" and not weights.isdisjoint(numbers_of(op.inputs, places)):
            copies.update(numbers_of(op.outputs, places))
    return copies
