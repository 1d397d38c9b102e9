"""A pipeline's stage, and micro-batches: what one rank holds of the model, and how often it holds its activations.

One forward, one backward (1F1B): stage i of p has p - i micro-batches on the way before the first comes back, and of
all but one only what backward needs. Gradients of the micro-batches are added up, so they are there from the first
on; each micro-batch's own is there for a moment beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rooflight.ledger import PASSES, is_inside
from rooflight.memory.sharding.draft import RankDraft
from rooflight.memory.sharding.tensor import parameter_of
from rooflight.memory.storage_lifetimes import (
    WEIGHT_COPY,
    AddedStorage,
    bytes_of,
    copies_of_weights,
    numbers_in,
    numbers_of,
)

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


def keep_stage(draft: RankDraft, ops: Sequence[int], paths: Sequence[str], micro_batches: int) -> None:
    """Leave what the rank of these units holds: their ops, and the paths of their modules. A weight that units of two
    stages use lies on both of them."""
    ledger = draft.ledger
    first, last = draft.touched(ops)
    anywhere, _ = draft.touched(range(len(ledger.ops)))
    in_stage = set(ops)
    owner = parameter_of(ledger)
    here = {
        number
        for number, storage in enumerate(ledger.storages)
        if number in first or (number not in anywhere and any(is_inside(storage.name, path) for path in paths))
    }
    parameters = numbers_in("parameter", ledger)
    weights = here.intersection(parameters)
    total = bytes_of(parameters, ledger)
    share = bytes_of(weights, ledger) / total if total else 1.0
    for number, storage in enumerate(ledger.storages):
        if number in owner:
            if owner[number] not in weights:
                draft.drop(number)
        elif draft.is_of_update(number):
            draft.cut(number, share)
        elif storage.category in _STANDING or storage.born is None:
            if number not in here:
                draft.drop(number)
            elif storage.category == "input":
                draft.nbytes[number] *= micro_batches  # the batch comes whole, and is cut here
        elif storage.born not in in_stage:  # made by another stage: sent here, if it is used here
            if number in first:
                draft.receive(number, first[number])
                draft.dies[number] = last[number] + 1
            else:
                draft.drop(number)
    _sum_gradients_of_stage(draft, {number for number in owner if owner[number] in weights}, in_stage, first)
    draft.cut_update_moments(share)
    for op in ledger.ops:
        if op.phase in PASSES and op.index not in in_stage:
            draft.moments[op.index] = ()


def _sum_gradients_of_stage(draft: RankDraft, held: set[int], in_stage: set[int], first: dict[int, int]) -> None:
    """Of a weight that two stages use, each has a gradient of its own: what it would have added to the sum. `held`:
    the storages of the stage's weights."""
    storages = draft.ledger.storages
    for number in sorted(held.intersection(numbers_in("gradient", draft.ledger))):
        born = storages[number].born
        if born is None:
            continue
        maker = draft.ledger.ops[born]
        summed = numbers_of(maker.inputs, draft.places) if maker.packet == "aten::add" else ()
        parts = {part: storages[part].born for part in summed if storages[part].category == "temporary"}
        in_sum = [made for made in parts.values() if made is not None and made in in_stage]
        if in_sum and len(in_sum) < len(parts):
            for part in parts:
                draft.drop(part)
            draft.receive(number, min(in_sum) + 1)
        elif born not in in_stage:
            draft.receive(number, first.get(number, max(in_stage)))


def hold_micro_batches(draft: RankDraft, ops: Sequence[int], others: int) -> None:
    """Beside the micro-batch that is traced, what `others` keep for their backward; `ops`: those of the rank."""
    ledger = draft.ledger
    forward = [index for index in ops if ledger.ops[index].phase == "forward"]
    backward = [index for index in ops if ledger.ops[index].phase == "backward"]
    if not others or not forward or not backward:
        return
    (first, _), copies = draft.touched(ops), copies_of_weights(ledger)
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
    if micro_batches == 1:
        return
    _, last = draft.touched(ops)
    for number in filter(draft.holds, draft.gradients()):
        name = draft.ledger.storages[number].name
        draft.add(AddedStorage("gradient", name, born=0), draft.nbytes[number])
        made = draft.made_at(number) or 0
        draft.dies[number] = max(last.get(number, made) + 1, made)
