"""Tensor parallelism: weights and what lies between their matmuls in parts, everything else whole on each rank.

What a column's matmul makes is cut, and so is all that is made from it, up to the row's matmul, whose result every rank
has whole; in backward the other way round (Korthikanti et al. 2022, section 4). With sequence parallelism the rest is
cut, too, and is whole only while a matmul that needs it runs. A cache of keys and values is cut by heads: if ranks are
more than these, every one of them has a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflight.ledger import PASSES, Ledger, Op, Scalar, Tensor
from rooflight.memory.sharding.draft import RankDraft
from rooflight.memory.storage_lifetimes import numbers_in, numbers_of, places_of
from rooflight.parallel.blocks import Model, is_attention
from rooflight.parallel.tensor_split import TensorCut, tensor_cut_of

_PASSES = 4
"""The optimizer's ops are gone through as often at most: state is first seen alone, later beside a gradient."""


def parameter_of(ledger: Ledger) -> dict[int, int]:
    """By place in the ledger. What no op of the optimizer brings together with a parameter is left out."""
    storages, places = ledger.storages, places_of(ledger)
    named = {storages[number].name: number for number in numbers_in("parameter", ledger)}
    owners = {number: number for number in named.values()}
    for number in numbers_in("gradient", ledger):
        if storages[number].name in named:
            owners[number] = named[storages[number].name]
    lanes = [lane for op in ledger.ops if op.phase == "optimizer" for lane in _lanes(op, places)]
    for _ in range(_PASSES):
        before = len(owners)
        for lane in lanes:
            owner = next((owners[number] for number in lane if number in owners), None)
            if owner is not None:
                for number in lane:
                    owners.setdefault(number, owner)
        if len(owners) == before:
            break
    return owners


def _lanes(op: Op, places: dict[int, int]) -> Iterator[list[int]]:
    """Storages that the op treats together: of lists, those at the same position; else all it takes and makes."""
    given = [value for value in op.args.values() if isinstance(value, list)]
    lists = [value for value in given if any(isinstance(item, Tensor) for item in value)]
    if not lists:
        yield numbers_of((tensor for tensor in (*op.inputs, *op.outputs) if tensor.numel > 1), places)
        return
    length = max(map(len, lists))
    columns: list[Sequence[Tensor | Scalar]] = [value for value in (*lists, op.outputs) if len(value) == length]
    for row in zip(*columns, strict=True):
        yield numbers_of((item for item in row if isinstance(item, Tensor)), places)


_MADE = ("activation", "temporary", "output")
_BY_HEADS = ("cat", "bmm", "baddbmm", "copy", "index_copy", "index_put", "slice_scatter")


def divide(draft: RankDraft, model: Model, ranks: int, *, sequence: bool) -> None:
    if ranks == 1:
        return
    ledger = draft.ledger
    parts, owner = tensor_cut_of(ledger, model), parameter_of(ledger)
    weights = {number for number in numbers_in("parameter", ledger) if ledger.storages[number].id in parts.weights}
    made, of_weights = _cut_results(ledger, parts, weights)
    cached = _cut_caches(ledger, parts, made, ranks)
    average = parts.held_share(ranks)
    along = set()
    for number, storage in enumerate(ledger.storages):
        if number in owner:
            draft.cut(number, 1 / ranks if owner[number] in weights else 1.0)
        elif draft.is_of_update(number):
            draft.cut(number, average)
        elif number in cached:
            draft.cut(number, cached[number])
        elif number in made:
            draft.cut(number, 1 / ranks)
        elif sequence and storage.category in _MADE and storage.born is not None and number not in of_weights:
            along.add(number)
    draft.cut_update_moments(average)
    for op in ledger.ops:
        if op.phase in PASSES and (op.index in parts.inside or sequence):
            draft.cut_moments(op.index, 1 / ranks)
    if along:
        _along_the_sequence(draft, parts, along, ranks)


def _cut_results(ledger: Ledger, parts: TensorCut, weights: set[int]) -> tuple[set[int], set[int]]:
    """Storages of which a rank makes a part only; and those that are copies of weights, as autocast makes them."""
    places = places_of(ledger)
    cut, copies = set(weights), set(numbers_in("parameter", ledger))
    for op in ledger.ops:
        if op.phase not in PASSES:
            continue
        inputs = set(numbers_of(op.inputs, places))
        results = set(numbers_of(op.outputs, places)) - inputs
        if inputs and inputs <= copies:
            copies |= results
            if inputs <= cut:
                cut |= results
        elif _is_cut(op, parts, bool((inputs - copies) & cut)):
            cut |= results
    return cut - weights, copies


def _cut_caches(ledger: Ledger, parts: TensorCut, made: set[int], ranks: int) -> dict[int, float]:
    """Inputs that hold keys or values of the heads, and what they grow into: the part that a rank has. They are added
    to by a rank's own keys and values, or multiplied with its queries; a mask is neither."""
    places, inputs = places_of(ledger), set(numbers_in("input", ledger))
    caches: dict[int, float] = {}
    for op in ledger.ops:
        if op.index not in parts.inside or op.index in parts.axis:
            continue
        seen = {places[tensor.storage]: tensor.shape for tensor in _of_heads(op) if tensor.storage in places}
        if not seen.keys() & made:
            continue
        for number, shape in seen.items():
            if number in inputs:
                caches[number] = 1 / min(ranks, shape[1] if len(shape) == 4 else ranks)
        if op.packet == "aten::cat" and (shares := [caches[number] for number in seen if number in caches]):
            caches |= dict.fromkeys(numbers_of(op.outputs, places), max(shares))
    return caches


def _of_heads(op: Op) -> list[Tensor]:
    """Those of its inputs of which every rank has the part of its heads."""
    if is_attention(op):
        return [op.tensor(name) for name in ("query", "key", "value") if op.has(name)]
    return list(op.inputs) if op.packet.removeprefix("aten::").rstrip("_") in _BY_HEADS else []


def _is_cut(op: Op, parts: TensorCut, from_a_part: bool) -> bool:
    if op.index not in parts.inside:
        return False
    axis = parts.axis.get(op.index)
    # A product whose inner dimension is cut is a sum over the ranks: whole on each.
    return axis != "k" if axis is not None else from_a_part or "embedding" in op.name


def _along_the_sequence(draft: RankDraft, parts: TensorCut, along: set[int], ranks: int) -> None:
    uncut = {number: draft.nbytes[number] for number in along}
    for number in along:
        draft.cut(number, 1 / ranks)
    for index in parts.axis:
        op = draft.ledger.ops[index]
        seen = set(numbers_of((*op.inputs, *op.outputs), draft.places))
        gathered = tuple(uncut[number] for number in sorted(seen & along))
        if gathered:
            draft.borrow(index, gathered)
