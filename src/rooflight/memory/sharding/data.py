"""Data parallel ranks: DDP's buckets, and ZeRO's stages 1 and 2, which cut optimizer state and gradients.

DDP keeps its buckets beside the gradients, as large as all of them (`gradient_as_bucket_view=False`, torch's default).
ZeRO copies gradients into a bucket when backward has made as many as fill it; it is gone when the next one is full. A
gradient that fills a bucket alone is sent from where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.memory.lives import Row
from rooflight.memory.sharding.draft import Draft
from rooflight.prediction.parallel.ddp import gradients

_BUCKET = "bucket of gradients"


@dataclass(frozen=True)
class _Filled:
    """Gradients that travel together, and the op after which the last of them is there."""

    numbers: tuple[int, ...]
    nbytes: int
    ready: int


def _buckets(draft: Draft, first_bytes: float, cap_bytes: float) -> list[_Filled]:
    """As the time of a step has them: a bucket is closed by the gradient that fills it."""
    ledger = draft.ledger
    ready = {gradient.name: gradient.ready for gradient in gradients(ledger)}
    held = [(max(ready.get(one.name, 0), one.born or 0), number) for number, one in enumerate(ledger.storages)
            if one.category == "gradient" and not one.host and draft.holds(number)]  # fmt: skip
    made: list[_Filled] = []
    numbers: list[int] = []
    for place, (op, number) in enumerate(sorted(held), 1):
        numbers.append(number)
        nbytes = sum(draft.nbytes[one] for one in numbers)
        if place == len(held) or nbytes >= (cap_bytes if made else first_bytes):
            made.append(_Filled(tuple(numbers), nbytes, op))
            numbers = []
    return made


def replicate(draft: Draft, ranks: int, *, first_bytes: float, cap_bytes: float) -> None:
    """DDP."""
    if ranks == 1:
        return
    for bucket in _buckets(draft, first_bytes, cap_bytes):
        draft.add(Row("bucket", _BUCKET), bucket.nbytes)


def zero(draft: Draft, stage: int, ranks: int, *, first_bytes: float, cap_bytes: float) -> None:
    """Stages 1 and 2."""
    if ranks == 1:
        return
    cut_update(draft, ranks)
    found = _buckets(draft, first_bytes, cap_bytes)
    if not found:
        return  # nothing is trained
    ends = [bucket.ready for bucket in found[1:]] + [_first_update(draft)]
    for bucket, end in zip(found, ends, strict=True):
        sent = max(end, bucket.ready + 1)
        copied = len(bucket.numbers) > 1
        if copied:
            draft.add(Row("bucket", _BUCKET, born=bucket.ready + 1, dies=sent), bucket.nbytes)
        if stage == 2:
            for number in bucket.numbers:
                draft.dies[number] = bucket.ready + 1 if copied else sent
            draft.add(Row("gradient", "part of gradients", born=bucket.ready + 1), -(-bucket.nbytes // ranks))


def cut_update(draft: Draft, ranks: int) -> None:
    """Optimizer state, and what the update itself makes and borrows."""
    ops = draft.ledger.ops
    for number, storage in enumerate(draft.ledger.storages):
        update = storage.born is not None and storage.born < len(ops) and ops[storage.born].phase == "optimizer"
        if storage.category == "optimizer-state" or update:
            draft.cut(number, 1 / ranks)
    for op in ops:
        if op.phase == "optimizer":
            draft.cut_moments(op.index, 1 / ranks)


def _first_update(draft: Draft) -> int:
    ops = draft.ledger.ops
    return next((op.index for op in ops if op.phase == "optimizer"), len(ops))
