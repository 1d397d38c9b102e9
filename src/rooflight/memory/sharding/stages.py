"""A pipeline's stage, and micro-batches: what one rank holds of the model, and how often it holds its activations.

One forward, one backward (1F1B): stage i of p has p - i micro-batches on the way before the first comes back, and of
all but one only what backward needs. Gradients of the micro-batches are added up, so they are there from the first
on; each micro-batch's own is there for a moment beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rooflight.ledger import Ledger, is_inside
from rooflight.memory.sharding.draft import RankDraft
from rooflight.memory.sharding.tensor import parameter_of
from rooflight.memory.storage_lifetimes import WEIGHT_COPY, AddedStorage, copies_of_weights
from rooflight.parallel.blocks import Model

_STANDING = ("parameter", "buffer", "input")
_OF_WEIGHTS = ("parameter", "buffer", "gradient", "optimizer-state", "input")


def in_flight(stage: int, stages: int, micro_batches: int, *, interleave: int = 1) -> int:
    """Micro-batches whose activations a stage holds at once, its own included.

    Interleaved after Megatron-LM: 2 (p - i - 1) + (v - 1) p chunks are begun before the first backward, v to a stage.
    """
    begun = stages - stage
    if interleave > 1:
        begun = math.ceil((2 * (stages - stage - 1) + (interleave - 1) * stages + 1) / interleave)
    return min(begun, micro_batches)


def keep_stage(draft: RankDraft, model: Model, units: Sequence[int], micro_batches: int) -> None:
    """Leave what the rank of these units holds. A weight that units of two stages use lies on both of them."""
    ledger = draft.ledger
    ops = sorted(index for number in units for index in (*model.units[number].forward, *model.units[number].backward))
    first, last = _touched(ledger, ops)
    anywhere, _ = _touched(ledger, range(len(ledger.ops)))
    own = set(ops)
    owner = parameter_of(ledger)
    paths = [model.units[number].path for number in units]
    here = {
        number
        for number, one in enumerate(ledger.storages)
        if number in first or (number not in anywhere and any(is_inside(one.name, path) for path in paths))
    }
    weights = {number for number in here if ledger.storages[number].category == "parameter"}
    share = _share(ledger, weights)
    for number, storage in enumerate(ledger.storages):
        update = storage.born is not None and _is_update(ledger, storage.born)
        if number in owner or storage.category == "optimizer-state" or update:
            if number not in owner:
                draft.cut(number, share)
            elif owner[number] not in weights:
                draft.drop(number)
        elif storage.category in _STANDING or storage.born is None:
            if number not in here:
                draft.drop(number)
            elif storage.category == "input":
                draft.nbytes[number] *= micro_batches  # the batch comes whole, and is cut here
        elif storage.born not in own:
            _elsewhere(draft, number, first)
            if number in first:
                draft.dies[number] = last[number] + 1
    _own_gradients(draft, weights, own, first)
    for op in ledger.ops:
        if op.phase == "optimizer":
            draft.cut_moments(op.index, share)
        elif op.index not in own:
            draft.moments[op.index] = ()


def _touched(ledger: Ledger, ops: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last of these ops that see each storage."""
    place = {storage.id: number for number, storage in enumerate(ledger.storages)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index in ops:
        op = ledger.ops[index]
        if op.phase == "optimizer":
            continue
        for tensor in (*op.inputs, *op.outputs):
            number = place.get(tensor.storage)
            if number is not None:
                first.setdefault(number, index)
                last[number] = index
    return first, last


def _is_update(ledger: Ledger, op: int) -> bool:
    return op < len(ledger.ops) and ledger.ops[op].phase == "optimizer"


def _share(ledger: Ledger, weights: set[int]) -> float:
    total = sum(one.nbytes for one in ledger.storages if one.category == "parameter")
    return sum(ledger.storages[number].nbytes for number in weights) / total if total else 1.0


def _elsewhere(draft: RankDraft, number: int, first: dict[int, int]) -> None:
    """Made by another stage: sent here, if it is used here."""
    if number in first:
        draft.receive(number, first[number])
    else:
        draft.drop(number)


def _own_gradients(draft: RankDraft, weights: set[int], own: set[int], first: dict[int, int]) -> None:
    """Of a weight that two stages use, each has a gradient of its own: what it would have added to the sum."""
    ledger, owner = draft.ledger, parameter_of(draft.ledger)
    storages = ledger.storages
    place = {storage.id: number for number, storage in enumerate(storages)}
    for number, storage in enumerate(storages):
        if storage.category != "gradient" or owner.get(number) not in weights or storage.born is None:
            continue
        maker = ledger.ops[storage.born]
        parts = {
            place[one.storage]: storages[place[one.storage]].born
            for one in maker.inputs
            if maker.packet == "aten::add" and storages[place[one.storage]].category == "temporary"
        }
        mine = {part: born for part, born in parts.items() if born in own and born is not None}
        if mine and len(mine) < len(parts):
            for part in parts:
                draft.drop(part)
            draft.receive(number, min(mine.values()) + 1)
        elif storage.born not in own:
            draft.receive(number, first.get(number, max(own)))


def hold_micro_batches(draft: RankDraft, ops: Sequence[int], others: int) -> None:
    """Beside the micro-batch that is traced, what `others` keep for their backward; `ops`: those of the rank."""
    ledger = draft.ledger
    forward = [index for index in ops if ledger.ops[index].phase == "forward"]
    backward = [index for index in ops if ledger.ops[index].phase == "backward"]
    if not others or not forward or not backward:
        return
    (first, _), copies = _touched(ledger, ops), copies_of_weights(ledger)
    for number, storage in enumerate(ledger.storages):
        if storage.category in _OF_WEIGHTS or storage.host or not draft.holds(number) or number not in first:
            continue
        dies = draft.dies.get(number, storage.dies)
        # Saved for backward, or handed on: torch's own pipelines keep what they have sent until its gradient comes.
        if first[number] <= forward[-1] and (dies is None or dies > forward[-1] + 1):
            category = WEIGHT_COPY if number in copies else "activation"
            row = AddedStorage(category, "of other micro-batches", born=forward[0], dies=backward[-1] + 1)
            for _ in range(others):
                draft.add(row, draft.nbytes[number])


def add_up_gradients(draft: RankDraft, ops: Sequence[int], micro_batches: int) -> None:
    """Every gradient is there from the start, what a micro-batch makes of it until it has been added. `ops`: those of
    the rank."""
    ledger = draft.ledger
    if micro_batches == 1:
        return
    _, last = _touched(ledger, ops)
    for number, storage in enumerate(ledger.storages):
        if storage.category == "gradient" and not storage.host and draft.holds(number):
            draft.add(AddedStorage("gradient", storage.name, born=0), draft.nbytes[number])
            made = draft.made_at(number) or 0
            draft.dies[number] = max(last.get(number, made) + 1, made)
