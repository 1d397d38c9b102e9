"""The ops between the events of a published time: what of a traced step they timed (tests/data/published_steps.json)."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from pathlib import Path

import msgspec

import rooflight
from rooflight.ledger import LOSS, Ledger, Op, StepKind, Storage

ROOT = Path(__file__).parents[1]


@cache
def traced(spec: str, settings: tuple[tuple[str, str], ...], batch: int, seq: int, step: StepKind) -> Ledger:
    """The ops between the events: for training the second of two micro-batches, whose backward adds to gradients."""
    ledger = rooflight.estimate(
        str(ROOT / spec), batch=batch, seq=seq, step=step, dtype="fp32", tf32=False, overrides=dict(settings),
        optimizer="sgd" if step == "train" else None, accumulate=2 if step == "train" else 1,
    )  # fmt: skip
    return only(ledger, timed_ops(ledger))


def timed_ops(ledger: Ledger) -> list[Op]:
    """Forward and backward of the last micro-batch, without the forward of the loss and without the optimizer."""
    backward = [op.index for op in ledger.ops if op.phase == "backward"]
    again = (op.index for op in ledger.ops if op.phase == "forward" and backward and op.index > backward[0])
    start = next(again, 0)
    return [
        op
        for op in ledger.ops
        if op.index >= start and op.phase != "optimizer" and not (op.module == LOSS and op.phase == "forward")
    ]


def only(ledger: Ledger, ops: list[Op]) -> Ledger:
    """The ledger with these ops alone, numbered anew, and with what they leave of the storages' lives."""
    old = [op.index for op in ops]
    end = len(ledger.ops)

    def lives(storage: Storage) -> Storage:
        born = None if storage.born is None or storage.born < old[0] else bisect_left(old, storage.born)
        dies = None if storage.dies is None or storage.dies >= end else bisect_left(old, storage.dies)
        return msgspec.structs.replace(storage, born=born, dies=dies)

    return msgspec.structs.replace(
        ledger,
        ops=tuple(msgspec.structs.replace(op, index=index) for index, op in enumerate(ops)),
        storages=tuple(lives(storage) for storage in ledger.storages if storage.dies is None or storage.dies > old[0]),
    )
