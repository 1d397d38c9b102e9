"""What data parallel ranks allocate: DDP's buckets, ZeRO's stages 1 and 2, FSDP and ZeRO stage 3.

DDP keeps its buckets beside the gradients, as large as all of them (`gradient_as_bucket_view=False`, torch's default).
ZeRO copies gradients into a bucket when backward has made as many as fill it; it is gone when the next one is full. A
gradient that fills a bucket alone is sent from where it lies.

FSDP has everything in parts, and the weights of a unit whole while it computes, as torch's `fully_shard` does it, in
the order in which the host asks for memory. A unit's weights are gathered into one flat buffer and copied out of it. In
forward the buffer goes when the next unit's is there; in backward at once, but the next unit's is gathered while one
computes. A unit's gradients are copied into a flat buffer when its backward is over, which goes when the next unit's
is; the rank's part of their sum stays. Weights around the units are gathered first and stay until backward is over;
their gradients are scattered last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rooflight.ledger import LOSS
from rooflight.memory.sharding.draft import RankDraft
from rooflight.memory.storage_lifetimes import AddedStorage, numbers_in
from rooflight.parallel.blocks import Model, fsdp_units
from rooflight.parallel.gradients import bucket_spans, gradients_of

_BUCKET = "bucket of gradients"


@dataclass(frozen=True)
class _FilledBucket:
    """Gradients that travel together, by their storages, and the op after which the last of them is there."""

    numbers: tuple[int, ...]
    nbytes: int
    ready: int


def _buckets(draft: RankDraft, first_bytes: float, cap_bytes: float) -> list[_FilledBucket]:
    """As the time of a step has them, of the gradients that the rank holds."""
    held = sorted((ready, number) for number, ready in _ready(draft).items() if draft.holds(number))
    sizes = [draft.nbytes[number] for _, number in held]
    return [
        _FilledBucket(tuple(number for _, number in held[span]), sum(sizes[span]), held[span][-1][0])
        for span, _ in bucket_spans(sizes, first_bytes=first_bytes, cap_bytes=cap_bytes)
    ]


def _ready(draft: RankDraft) -> dict[int, int]:
    """By gradient: the op after which it is there."""
    ready = {gradient.name: gradient.ready for gradient in gradients_of(draft.ledger)}
    storages = draft.ledger.storages
    return {
        number: max(ready.get(storages[number].name, 0), storages[number].born or 0) for number in draft.gradients()
    }


def replicate(draft: RankDraft, ranks: int, *, first_bytes: float, cap_bytes: float) -> None:
    """DDP."""
    if ranks == 1:
        return
    for bucket in _buckets(draft, first_bytes, cap_bytes):
        draft.add(AddedStorage("bucket", _BUCKET), bucket.nbytes)


def zero(draft: RankDraft, stage: int, ranks: int, *, first_bytes: float, cap_bytes: float) -> None:
    """Stages 1 and 2."""
    if ranks == 1:
        return
    cut_update(draft, ranks)
    filled = _buckets(draft, first_bytes, cap_bytes)
    if not filled:
        return  # nothing is trained
    ops = draft.ledger.ops
    first_update = next((op.index for op in ops if op.phase == "optimizer"), len(ops))
    ends = [*(bucket.ready for bucket in filled[1:]), first_update]
    for bucket, end in zip(filled, ends, strict=True):
        sent = max(end, bucket.ready + 1)
        copied = len(bucket.numbers) > 1
        if copied:
            draft.add(AddedStorage("bucket", _BUCKET, born=bucket.ready + 1, dies=sent), bucket.nbytes)
        if stage == 2:
            for number in bucket.numbers:
                draft.dies[number] = bucket.ready + 1 if copied else sent
            draft.add(AddedStorage("gradient", "part of gradients", born=bucket.ready + 1), -(-bucket.nbytes // ranks))


def cut_update(draft: RankDraft, ranks: int) -> None:
    """Optimizer state, and what the update itself makes and borrows."""
    for number in range(len(draft.ledger.storages)):
        if draft.is_of_update(number):
            draft.cut(number, 1 / ranks)
    draft.cut_update_moments(1 / ranks)


_WEIGHTS, _BUFFER, _SCATTERED = "weights of a unit", "buffer of gathered weights", "gradients being scattered"


@dataclass(frozen=True)
class _GatheredUnit:
    forward: tuple[int, int]
    """First and last op."""
    backward: tuple[int, int] | None
    weight_bytes: int
    gradients: tuple[int, ...]


def shard(draft: RankDraft, model: Model, ranks: int) -> None:
    if ranks == 1:
        return
    ledger = draft.ledger
    units, around_bytes, around = _units(draft, model)
    cut_update(draft, ranks)
    for number in numbers_in("parameter", ledger):
        draft.cut(number, 1 / ranks)
    backward = [op.index for op in ledger.ops if op.phase == "backward"]
    end = backward[-1] + 1 if backward else None
    _gather_in_forward(draft, units, around_bytes, end)
    if not backward or end is None:
        return
    order = sorted((unit for unit in units if unit.backward is not None), key=lambda unit: unit.backward or (0, 0))
    _gather_in_backward(draft, order)
    _scatter(draft, order, around, end, ranks)


def _units(draft: RankDraft, model: Model) -> tuple[list[_GatheredUnit], int, tuple[int, ...]]:
    """The units; bytes of the weights around them, and their gradients."""
    gathered, around_bytes = fsdp_units(draft.ledger, model)
    ready = _ready(draft)
    units = []
    for unit in gathered:
        inside = f"{unit.path}."
        gradients = tuple(number for number in ready if draft.ledger.storages[number].name.startswith(inside))
        last = max([*unit.backward[-1:], *(ready[number] for number in gradients)], default=0)
        span = (unit.backward[0], last) if unit.backward else None
        units.append(_GatheredUnit((unit.forward[0], unit.forward[-1]), span, unit.parameter_bytes, gradients))
    taken = {number for unit in units for number in unit.gradients}
    return units, around_bytes, tuple(number for number in ready if number not in taken)


def _life(first: int, dies: int | None) -> dict[str, int | None]:
    """Made as this op runs, when what the last unit had is gone; there for a moment at least."""
    return {"born": first + 1, "dies": dies if dies is None else max(dies, first + 1)}


def _gather_in_forward(draft: RankDraft, units: list[_GatheredUnit], around_bytes: int, end: int | None) -> None:
    model = [op.index for op in draft.ledger.ops if op.phase == "forward" and op.module != LOSS]
    over = model[-1] + 1 if model else 0
    until = [unit.forward[0] for unit in units] + [over]  # a buffer goes when the next one is full
    around = _life(0, None if end is None else end - 1)
    draft.add(AddedStorage("gathered", "weights around the units", **around), around_bytes)
    draft.add(AddedStorage("gathered", _BUFFER, **_life(0, until[0])), around_bytes)
    for unit, next_copied in zip(units, until[1:], strict=True):
        first, last = unit.forward
        draft.add(AddedStorage("gathered", _WEIGHTS, **_life(first, last + 1)), unit.weight_bytes)
        draft.add(AddedStorage("gathered", _BUFFER, **_life(first, next_copied)), unit.weight_bytes)


def _gather_in_backward(draft: RankDraft, order: list[_GatheredUnit]) -> None:
    # The first is asked for when the gradient of the model's output is there: the loss needs no weights.
    asked_at = next((op.index for op in draft.ledger.ops if op.phase == "backward" and op.module != LOSS), 0)
    for unit in order:
        assert unit.backward is not None
        first, last = unit.backward
        if asked_at < first:
            draft.add(AddedStorage("gathered", _BUFFER, **_life(asked_at, first)), unit.weight_bytes)
        draft.add(AddedStorage("gathered", _WEIGHTS, **_life(first, last + 1)), unit.weight_bytes)
        asked_at = first


def _scatter(draft: RankDraft, order: list[_GatheredUnit], around: tuple[int, ...], end: int, ranks: int) -> None:
    groups = sorted(((unit.backward[1] + 1, unit.gradients) for unit in order if unit.backward), key=lambda row: row[0])
    for (over, numbers), (freed, _) in pairwise([*groups, (end - 1, ())]):
        # The unit's weights are freed first, so that its gradients and their copy weigh less than what was before.
        _scatter_one(draft, numbers, at=min(over, end - 1), freed=freed, gone=over, ranks=ranks)
    # Around the units it is the other way: their weights are gone, gradients and copy are all there is.
    _scatter_one(draft, around, at=end - 1, freed=end, gone=end, ranks=ranks)


def _scatter_one(draft: RankDraft, numbers: tuple[int, ...], *, at: int, freed: int, gone: int, ranks: int) -> None:
    nbytes = sum(draft.nbytes[number] for number in numbers)
    draft.add(AddedStorage("bucket", _SCATTERED, **_life(at, freed)), nbytes)
    draft.add(AddedStorage("gradient", "part of gradients", **_life(at, None)), -(-nbytes // ranks))
    for number in numbers:
        draft.dies[number] = gone
