"""Which parameter a gradient, a piece of optimizer state, or a temporary of the update belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflight.ledger import Ledger, Op, Scalar, Tensor

_PASSES = 4
"""The optimizer's ops are gone through as often at most: state is first seen alone, later beside a gradient."""


def parameter_of(ledger: Ledger) -> dict[int, int]:
    """By place in the ledger. What no op of the optimizer brings together with a parameter is left out."""
    place = {storage.id: number for number, storage in enumerate(ledger.storages)}
    named = {one.name: number for number, one in enumerate(ledger.storages) if one.category == "parameter"}
    found = {number: number for number in named.values()}
    for number, storage in enumerate(ledger.storages):
        if storage.category == "gradient" and storage.name in named:
            found[number] = named[storage.name]
    lanes = [lane for op in ledger.ops if op.phase == "optimizer" for lane in _lanes(op, place)]
    for _ in range(_PASSES):
        before = len(found)
        for lane in lanes:
            owner = next((found[number] for number in lane if number in found), None)
            if owner is not None:
                for number in lane:
                    found.setdefault(number, owner)
        if len(found) == before:
            break
    return found


def _lanes(op: Op, place: dict[int, int]) -> Iterator[list[int]]:
    """Storages that the op treats together: of lists, those at the same position; else all it takes and makes."""
    given = [value for value in op.args.values() if isinstance(value, list)]
    lists = [value for value in given if any(isinstance(one, Tensor) for one in value)]
    if not lists:
        yield [place[one.storage] for one in (*op.inputs, *op.outputs) if one.numel > 1 and one.storage in place]
        return
    length = max(map(len, lists))
    columns: list[Sequence[Tensor | Scalar]] = [value for value in (*lists, op.outputs) if len(value) == length]
    for some in zip(*columns, strict=True):
        yield [place[one.storage] for one in some if isinstance(one, Tensor) and one.storage in place]


def cut_weights(ledger: Ledger, modules: set[str]) -> set[int]:
    """Parameters that tensor parallelism cuts, as the time of a step has it: matrices of the modules that are cut."""
    matrices = {tensor.storage for op in ledger.ops for tensor in op.inputs if len(tensor.shape) >= 2}
    return {
        number
        for number, one in enumerate(ledger.storages)
        if one.category == "parameter" and one.name.rpartition(".")[0] in modules and one.id in matrices
    }
