"""Tensor parallelism: weights and what lies between their matmuls in parts, everything else whole on each rank.

What a column's matmul makes is cut, and so is all that is made from it, up to the row's matmul, whose result every rank
has whole; in backward the other way round (Korthikanti et al. 2022, section 4). With sequence parallelism the rest is
cut, too, and is whole only while a matmul that needs it runs. A cache of keys and values is cut by heads: if ranks are
more than these, every one of them has a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflight.ledger import Ledger, Op, Scalar, Tensor
from rooflight.memory.sharding.draft import RankDraft
from rooflight.parallel.blocks import Model, is_attention
from rooflight.parallel.tensor_split import TensorCut, tensor_cut_of

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


_MADE = ("activation", "temporary", "output")
_BY_HEADS = ("cat", "bmm", "baddbmm", "copy", "index_copy", "index_put", "slice_scatter")


def divide(draft: RankDraft, model: Model, ranks: int, *, sequence: bool) -> None:
    if ranks == 1:
        return
    ledger = draft.ledger
    parts, owner = tensor_cut_of(ledger, model), parameter_of(ledger)
    weights = cut_weights(ledger, parts.modules)
    made, of_weights = _cut_results(ledger, parts, weights)
    cached = _cut_caches(ledger, parts, made, ranks)
    average = _average(ledger, weights, ranks)
    along = set()
    for number, storage in enumerate(ledger.storages):
        updated = storage.category == "optimizer-state" or _phase(ledger, storage.born) == "optimizer"
        if number in owner or updated:
            share = average if number not in owner else 1 / ranks if owner[number] in weights else 1.0
            draft.cut(number, share)
        elif number in cached:
            draft.cut(number, cached[number])
        elif number in made:
            draft.cut(number, 1 / ranks)
        elif sequence and storage.category in _MADE and storage.born is not None and number not in of_weights:
            along.add(number)
    _cut_moments(draft, parts, ranks, average, sequence=sequence)
    if along:
        _along_the_sequence(draft, parts, along, ranks)


def _phase(ledger: Ledger, op: int | None) -> str:
    return "" if op is None or op >= len(ledger.ops) else ledger.ops[op].phase


def _average(ledger: Ledger, weights: set[int], ranks: int) -> float:
    """Of all weights, the part that a rank holds."""
    sizes = {number: one.nbytes for number, one in enumerate(ledger.storages) if one.category == "parameter"}
    total = sum(sizes.values())
    return 1 - sum(sizes[number] for number in weights) * (1 - 1 / ranks) / total if total else 1.0


def _cut_results(ledger: Ledger, parts: TensorCut, weights: set[int]) -> tuple[set[int], set[int]]:
    """Storages of which a rank makes a part only; and those that are copies of weights, as autocast makes them."""
    place = {storage.id: number for number, storage in enumerate(ledger.storages)}
    cut, copies = set(weights), {number for number, one in enumerate(ledger.storages) if one.category == "parameter"}
    for op in ledger.ops:
        if op.phase == "optimizer":
            break
        inputs = {place[one.storage] for one in op.inputs if one.storage in place}
        results = {place[one.storage] for one in op.outputs if one.storage in place} - inputs
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
    place = {storage.id: number for number, storage in enumerate(ledger.storages)}
    inputs = {number for number, one in enumerate(ledger.storages) if one.category == "input"}
    found: dict[int, float] = {}
    for op in ledger.ops:
        if op.index not in parts.inside or op.index in parts.axis:
            continue
        seen = {number: one for one in _of_heads(op) if (number := place.get(one.storage)) is not None}
        if not seen.keys() & made:
            continue
        for number, one in seen.items():
            if number in inputs:
                found[number] = 1 / min(ranks, one.shape[1] if len(one.shape) == 4 else ranks)
        if op.packet == "aten::cat" and (shares := [found[number] for number in seen if number in found]):
            found |= {place[one.storage]: max(shares) for one in op.outputs if one.storage in place}
    return found


def _of_heads(op: Op) -> list[Tensor]:
    """Those of its inputs of which every rank has the part of its heads."""
    if is_attention(op):
        return [one for name, one in op.args.items() if isinstance(one, Tensor) and name in ("query", "key", "value")]
    return list(op.inputs) if op.packet.removeprefix("aten::").rstrip("_") in _BY_HEADS else []


def _is_cut(op: Op, parts: TensorCut, from_a_part: bool) -> bool:
    if op.index not in parts.inside:
        return False
    axis = parts.axis.get(op.index)
    # A product whose inner dimension is cut is a sum over the ranks: whole on each.
    return axis != "k" if axis is not None else from_a_part or "embedding" in op.name


def _cut_moments(draft: RankDraft, parts: TensorCut, ranks: int, average: float, *, sequence: bool) -> None:
    for op in draft.ledger.ops:
        if draft.moments[op.index]:
            if op.phase == "optimizer":
                draft.cut_moments(op.index, average)
            elif op.index in parts.inside or sequence:
                draft.cut_moments(op.index, 1 / ranks)


def _along_the_sequence(draft: RankDraft, parts: TensorCut, along: set[int], ranks: int) -> None:
    whole = {number: draft.nbytes[number] for number in along}
    for number in along:
        draft.cut(number, 1 / ranks)
    place = {storage.id: number for number, storage in enumerate(draft.ledger.storages)}
    for index in parts.axis:
        op = draft.ledger.ops[index]
        seen = {place[one.storage] for one in (*op.inputs, *op.outputs) if one.storage in place}
        gathered = tuple(whole[number] for number in sorted(seen & along))
        if gathered:
            draft.borrow(index, gathered)
