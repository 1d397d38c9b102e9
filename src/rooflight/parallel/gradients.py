"""Gradients in the order in which backward makes them, and the buckets in which data parallel ranks send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.ledger import Ledger

FIRST_BUCKET_BYTES = 1 * 2**20
BUCKET_BYTES = 25 * 2**20
"""torch's own defaults (`dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`)."""


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient, and the op after which it is whole."""

    name: str
    nbytes: float
    ready: int


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together, and the op after which the last of them is whole."""

    nbytes: float
    ready: int


def gradients_of(ledger: Ledger, *, share: float = 1.0) -> list[Gradient]:
    """In the order in which they become ready. None where the step has no backward; frozen weights have none."""
    backward = [op for op in ledger.ops if op.phase == "backward"]
    if not backward:
        return []
    storages = {storage.id: storage for storage in ledger.storages if storage.category == "gradient"}
    ready: dict[int, int] = {id_: s.born for id_, s in storages.items() if s.born is not None}
    for op in backward:  # a tied weight, or a second micro-batch, adds to what is there
        for tensor in (*op.outputs, *(tensor for name in op.mutates for tensor in op.tensors(name))):
            if tensor.storage in storages:
                ready[tensor.storage] = max(op.index, ready.get(tensor.storage, 0))
    end = backward[-1].index
    gradients = [Gradient(s.name, s.nbytes * share, ready.get(id_, end)) for id_, s in storages.items()]
    return sorted(gradients, key=lambda gradient: gradient.ready)


def buckets(
    gradients: Sequence[Gradient], *, first_bytes: float = FIRST_BUCKET_BYTES, cap_bytes: float = BUCKET_BYTES
) -> list[Bucket]:
    """`gradients` in the order in which they become ready."""
    spans = bucket_spans([gradient.nbytes for gradient in gradients], first_bytes=first_bytes, cap_bytes=cap_bytes)
    return [Bucket(nbytes, max(gradient.ready for gradient in gradients[span])) for span, nbytes in spans]


def bucket_spans(sizes: Sequence[float], *, first_bytes: float, cap_bytes: float) -> list[tuple[slice, float]]:
    """Which of a row of gradients share a bucket, and its bytes. A bucket is closed by the gradient that fills it: it
    may hold more than its cap; only the last may hold less."""
    spans: list[tuple[slice, float]] = []
    begin, nbytes = 0, 0.0
    for place, size in enumerate(sizes, 1):
        nbytes += size
        if nbytes >= (cap_bytes if spans else first_bytes):
            spans.append((slice(begin, place), nbytes))
            begin, nbytes = place, 0.0
    if nbytes:
        spans.append((slice(begin, len(sizes)), nbytes))
    return spans
