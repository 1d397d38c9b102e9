"""The optimizer of a step that was run or traced for a CPU, as a GPU runs it.

Torch goes through its tensors one by one on a CPU, and takes all at once on a GPU, where it is left the choice; counts
of steps lie on the host there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from rooflight.estimation.costs import cost_of, work_of
from rooflight.estimation.fused_optimizer import doing_nothing
from rooflight.ledger import Ledger, Op, Storage, Tensor

_TORCHS = frozenset("adadelta adagrad adam adamax adamw asgd momentum nadam radam rmsprop rprop sgd".split())
"""That take all tensors at once; anybody's own is what it is."""
_COUNTS = ("step", "mu_product", "eta", "mu")
"""States of one number."""


def with_optimizer_of_gpus(ledger: Ledger) -> Ledger:
    """Rows keep their places: the last tensor's do the work of all, and those of the others nothing."""
    if not takes_all_at_once(ledger):
        return ledger
    ledger = _counting_on_the_host(ledger)
    for loops in _alike(_loops(op for op in ledger.ops if op.phase == "optimizer" and op.kind == "compute")):
        ledger = _at_once(ledger, loops)
    return ledger


def takes_all_at_once(ledger: Ledger) -> bool:
    """Would its optimizers, on a GPU?"""
    names = (ledger.header.optimizer or "").lower().split(" + ")
    return _TORCHS.issuperset(names) and ledger.header.foreach is not False


def _counting_on_the_host(ledger: Ledger) -> Ledger:
    counts = {row.id for row in ledger.storages if row.category == "optimizer-state" and row.name in _COUNTS}

    def as_there(op: Op) -> Op:
        on_host = op.phase == "optimizer" and bool(touched := _touched(op)) and touched <= counts
        return replace(op, kind="host", cost=cost_of(replace(op, kind="host"), {}), line="") if on_host else op

    storages = (replace(row, host=True) if row.id in counts else row for row in ledger.storages)
    return replace(ledger, ops=tuple(map(as_there, ledger.ops)), storages=tuple(storages))


def _loops(ops: Iterable[Op]) -> list[list[Op]]:
    """The ops of each parameter: those that have a tensor in common, by way of others too."""
    loop_of: dict[int, list[Op]] = {}
    for op in ops:
        before = {id(loop): loop for storage in _touched(op) if (loop := loop_of.get(storage)) is not None}
        joined = [*(one for loop in before.values() for one in loop), op]
        loop_of.update((storage, joined) for one in joined for storage in _touched(one))
    loops = {id(loop): sorted(loop, key=lambda op: op.index) for loop in loop_of.values()}
    return sorted(loops.values(), key=lambda loop: loop[0].index)


def _touched(op: Op) -> set[int]:
    return {tensor.storage for tensor in (*op.inputs, *op.outputs)}


def _alike(loops: Sequence[Sequence[Op]]) -> Iterator[list[Sequence[Op]]]:
    """Those that do the same with the same numbers: the parameters of a group."""
    groups = defaultdict(list)
    for loop in loops:
        groups[str([(op.name, *_said(op)) for op in loop])].append(loop)
    return (group for group in groups.values() if len(group) > 1)


def _said(op: Op) -> Iterator[str]:
    yield from (tensor.dtype for tensor in (*op.inputs, *op.outputs))
    yield from (f"{key}={value}" for key, value in op.args.items() if not isinstance(value, Tensor))


def _at_once(ledger: Ledger, loops: Sequence[Sequence[Op]]) -> Ledger:
    joined = {ops[-1].index: _over_lists(ops) for ops in zip(*loops, strict=True)}
    if not all(map(work_of, joined.values())):
        return ledger  # torch has no such op over lists
    idle = {op.index for loop in loops for op in loop}
    sizes = {storage.id: storage.nbytes for storage in ledger.storages}
    places = {op.index: there for loop in loops for op, there in zip(loop, joined, strict=True)}
    used = {storage: places[op.index] for loop in loops for op in loop for storage in _touched(op)}

    def changed(op: Op) -> Op:
        if op.index in joined:
            return replace(joined[op.index], cost=cost_of(joined[op.index], sizes))
        return doing_nothing(op) if op.index in idle else op

    def living(storage: Storage) -> Storage:
        if storage.born not in places:
            return storage
        # What a result takes the place of, as a root that is divided, lists are written into.
        last = used[storage.id]
        dies = None if storage.dies is None else last + bool(joined[last].mutates)
        return replace(storage, born=places[storage.born], dies=dies)

    return replace(ledger, ops=tuple(map(changed, ledger.ops)), storages=tuple(map(living, ledger.storages)))


def _over_lists(ops: Sequence[Op]) -> Op:
    """One op for those of all tensors, in the place of the last."""
    last = ops[-1]
    return replace(
        last,
        name=f"aten::_foreach_{last.packet.removeprefix('aten::')}",
        args={key: [op.args[key] for op in ops] if isinstance(arg, Tensor) else arg for key, arg in last.args.items()},
        outputs=() if last.mutates else tuple(output for op in ops for output in op.outputs),
    )
