"""Data parallel replicas: gradients are summed in buckets while backward still runs.

As torch's DistributedDataParallel does it: gradients fill buckets in the order in which backward makes them, the first
of 1 MiB, the others of 25 MiB; a full bucket is all-reduced on a stream of its own, one after the other; the optimizer
waits for the last. What backward does not cover is exposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.ledger import Ledger
from rooflight.prediction.parallel.communication import Transfer, all_reduce
from rooflight.prediction.parallel.fabric import Fabric, Group
from rooflight.prediction.parallel.step import Clocks, Outcome, TimedStep, exchange, steady_s

MIB = 2**20
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB
"""torch's own defaults (`dist._DEFAULT_FIRST_BUCKET_BYTES`, `bucket_cap_mb`)."""


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient, and the op after which it is whole."""

    name: str
    nbytes: float
    ready: int


@dataclass(frozen=True)
class Bucket:
    nbytes: float
    ready: int


def gradients(ledger: Ledger, *, share: float = 1.0) -> list[Gradient]:
    """In the order in which they become ready. None where the step has no backward."""
    backward = [op for op in ledger.ops if op.phase == "backward"]
    if not backward:
        return []
    found = {storage.id: storage for storage in ledger.storages if storage.category == "gradient"}
    written: dict[int, int] = {id_: s.born for id_, s in found.items() if s.born is not None}
    for op in backward:  # a tied weight, or a second micro-batch, adds to what is there
        for tensor in (*op.outputs, *(tensor for name in op.mutates for tensor in op.tensors(name))):
            if tensor.storage in found:
                written[tensor.storage] = max(op.index, written.get(tensor.storage, 0))
    if found and len(written) == len(found):
        made = [Gradient(found[id_].name, found[id_].nbytes * share, ready) for id_, ready in written.items()]
        return sorted(made, key=lambda gradient: gradient.ready)
    return _in_reverse(ledger, share)


def _in_reverse(ledger: Ledger, share: float) -> list[Gradient]:
    """Without gradients in the ledger: parameters backwards, each ready after its module's last op of backward."""
    last: dict[str, int] = {}
    for op in ledger.ops:
        if op.phase == "backward":
            last[op.module] = op.index
    end = max(last.values())
    parameters = [storage for storage in ledger.storages if storage.category == "parameter"]
    made, ready = [], 0
    for storage in reversed(parameters):
        ready = max(ready, last.get(storage.name.rpartition(".")[0], end))
        made.append(Gradient(storage.name, storage.nbytes * share, ready))
    return made


def buckets(found: Iterable[Gradient], *, first_bytes: float = FIRST_BUCKET_BYTES,
            cap_bytes: float = BUCKET_BYTES) -> list[Bucket]:  # fmt: skip
    """A bucket is closed by the gradient that fills it: it may hold more than its cap; only the last may hold less."""
    made: list[Bucket] = []
    nbytes, ready = 0.0, 0
    for gradient in found:
        nbytes += gradient.nbytes
        ready = max(ready, gradient.ready)
        if nbytes >= (first_bytes if not made else cap_bytes):
            made.append(Bucket(nbytes, ready))
            nbytes = 0.0
    if nbytes:
        made.append(Bucket(nbytes, ready))
    return made


def sent(found: Sequence[Bucket], transfers: Sequence[Transfer], ends: dict[int, float], *, after_s: float) -> float:
    """When the last bucket has arrived: each starts when it is ready and the one before is done, after `after_s`."""
    free = after_s
    for bucket, transfer in zip(found, transfers, strict=True):
        free = max(free, ends[bucket.ready]) + transfer.time_s
    return free


def ddp(step: TimedStep, group: Group, fabric: Fabric, *, overlap: bool = True, share: float = 1.0, passes: int = 1,
        first_bytes: float = FIRST_BUCKET_BYTES, cap_bytes: float = BUCKET_BYTES) -> Outcome:  # fmt: skip
    """The step of one replica among `group.ranks`. `share`: the part of every gradient that this rank has. `passes`:
    micro-batches that follow one another; gradients are sent in the last."""
    found = buckets(gradients(step.ledger, share=share), first_bytes=first_bytes, cap_bytes=cap_bytes)
    transfers = [all_reduce(bucket.nbytes, group, fabric) for bucket in found]
    clocks = Clocks(step)

    def one_step() -> None:
        for _ in range(passes):
            clocks.run((*step.phases["forward"], *step.phases["backward"]))
        clocks.wait_for(sent(found, transfers, clocks.ends, after_s=0.0 if overlap else clocks.gpu_s))
        clocks.run(step.phases["optimizer"])

    time_s = steady_s(clocks, one_step)
    rows = exchange("gradients, all-reduce", [bucket.nbytes for bucket in found], transfers)
    words = bucket_words(found, group, overlap=overlap, first_bytes=first_bytes, cap_bytes=cap_bytes)
    return Outcome(time_s, rows, words)


def bucket_words(found: Sequence[Bucket], group: Group, *, overlap: bool, first_bytes: float,
                 cap_bytes: float) -> tuple[str, ...]:  # fmt: skip
    """The assumptions of summing gradients in buckets."""
    if not found or group.ranks == 1:
        return ()
    when = "on a stream of their own while backward runs" if overlap else "after backward"
    sizes = f"{first_bytes / MIB:g} MiB first, then {cap_bytes / MIB:g} MiB"
    filled = "one message" if len(found) == 1 else f"{len(found)} buckets in the order backward makes them, {sizes}"
    return (
        f"gradients: {filled}, {when}",
        *(("communication does not slow the kernels it runs beside",) if overlap else ()),
    )
