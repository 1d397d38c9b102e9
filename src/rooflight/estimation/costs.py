"""Fills a ledger's rows with what the mathematics says they cost."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from rooflight.errors import RooflightError
from rooflight.estimation import formulas as _formulas  # noqa: F401  (registers them)
from rooflight.estimation.expressions import evaluate
from rooflight.estimation.fallback import torch_cost
from rooflight.estimation.registry import Formula, Work, find, origin
from rooflight.ledger import Cost, Ledger, Op, Tensor

_VIEW = Cost("a view moves nothing", 0, 0, 0, 0, 0, 0)
_HOST = Cost("runs on the host, not on the target", 0, 0, 0, 0, 0, 0)


def fill_costs(ledger: Ledger) -> Ledger:
    """The same ledger with a cost on every op that has a formula.

    Most rows of a deep model repeat: work is computed once for each distinct set of shapes and options.
    """
    known: dict[object, Cost | None] = {}
    sizes = {storage.id: storage.nbytes for storage in ledger.storages}
    ops = []
    for op in ledger.ops:
        key = signature(op, sizes)
        if key not in known:
            known[key] = cost_of(op, sizes)
        ops.append(replace(op, cost=known[key]))
    return replace(ledger, ops=tuple(ops))


def cost_of(op: Op, storage_bytes: dict[int, int]) -> Cost | None:
    """The cost of one op, or `None` when nobody knows a formula."""
    if op.kind == "view":
        return _VIEW
    if op.kind == "host":
        return _HOST
    found = find(op)
    if found is None:
        return torch_cost(op, bytes_read(op, storage_bytes), bytes_written(op))
    return _cost(op, work_of(op, found), storage_bytes)


def work_of(op: Op, formula: Formula) -> Work:
    """Run a formula; one that trips over an op is a bug in the formula, and says which."""
    try:
        return formula(op)
    except Exception as error:
        raise RooflightError(
            f"the formula {formula.__qualname__} for {op.name} fails on {[t.shape for t in op.inputs]}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _cost(op: Op, work: Work, storage_bytes: dict[int, int]) -> Cost:
    where = work.where
    macs = evaluate(work.macs, where)
    causal = macs if work.causal_macs is None else evaluate(work.causal_macs, where)
    again = evaluate(work.recompute_macs, where)
    if op.recompute:
        # Work of a checkpointed forward done a second time is not useful a second time.
        macs, causal, again = 0, 0, again + macs
    return Cost(
        origin=origin(op),
        macs=macs,
        flops=2 * macs,
        other_flops=evaluate(work.other, where),
        bytes_read=bytes_read(op, storage_bytes) if work.reads is None else evaluate(work.reads, where),
        bytes_written=bytes_written(op) if work.writes is None else evaluate(work.writes, where),
        flops_causal=2 * causal,
        recompute_flops=2 * again,
    )


def bytes_read(op: Op, storage_bytes: dict[int, int]) -> int:
    """Compulsory reads: every distinct input once, and never more of a storage than it holds."""
    per_storage: dict[int, set[Tensor]] = {}
    # An overload such as `add.out` only writes what it mutates; `add_` reads it too.
    overload = op.name.partition(".")[2]
    into = op.mutates if overload.endswith("out") or overload in ("grad_input", "values") else ()
    written_only = {id(tensor) for name in into for tensor in op.tensors(name)}
    for tensor in op.inputs:
        if id(tensor) not in written_only:
            per_storage.setdefault(tensor.storage, set()).add(tensor)
    return sum(
        min(sum(tensor.nbytes for tensor in tensors), storage_bytes.get(number, 1 << 62))
        for number, tensors in per_storage.items()
    )


def bytes_written(op: Op) -> int:
    """Compulsory writes: every new output once, and what is changed in place."""
    outputs = set(op.outputs)
    for name in op.mutates:
        outputs.update(op.tensors(name))
    return _distinct_bytes(outputs)


def _distinct_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in set(tensors))


def signature(op: Op, storage_bytes: dict[int, int]) -> object:
    """What a cost depends on: storages by their order of appearance and their size, not by number."""
    order: dict[int, int] = {}

    def plain(value: object) -> object:
        if isinstance(value, Tensor):
            place = order.setdefault(value.storage, len(order))
            size = 0 if value.strides is None else storage_bytes.get(value.storage)
            return (place, size, value.shape, value.dtype, value.strides, value.offset)
        if isinstance(value, list):
            return tuple(plain(item) for item in value)
        return (type(value), value)

    arguments = tuple((name, plain(value)) for name, value in op.args.items())
    return op.name, op.kind, op.recompute, arguments, tuple(plain(tensor) for tensor in op.outputs)
