"""Fills a ledger's rows with what the mathematics says they cost."""

from __future__ import annotations

import sys
from typing import Any

from msgspec.structs import replace

from rooflight.ledger import Arg, Cost, Ledger, Op, Tensor
from rooflight.ops.expressions import evaluate
from rooflight.ops.registry import FORMULAS, Work, applied, formula_of

_VIEW = Cost("a view moves nothing", 0, 0, 0, 0, 0, 0)
_HOST = Cost("runs on the host, not on the target", 0, 0, 0, 0, 0, 0)


def fill_costs(ledger: Ledger) -> Ledger:
    """The same ledger with a cost on every op that has a formula.

    Most rows of a deep model repeat: work is computed once for each distinct set of shapes and options.
    """
    costs: dict[object, Cost | None] = {}
    sizes = {storage.id: storage.nbytes for storage in ledger.storages}
    ops = []
    for op in ledger.ops:
        key = signature(op, sizes)
        if key not in costs:
            costs[key] = cost_of(op, sizes)
        ops.append(replace(op, cost=costs[key]))
    return replace(ledger, ops=tuple(ops))


def cost_of(op: Op, storage_bytes: dict[int, int]) -> Cost | None:
    """The cost of one op, or `None` when nobody knows a formula."""
    if op.kind == "view":
        return _VIEW
    if op.kind == "host":
        return _HOST
    work = work_of(op)
    if work is None:
        return _registered_cost(op, bytes_read(op, storage_bytes), bytes_written(op))
    return _cost(op, work, storage_bytes)


def work_of(op: Op) -> Work | None:
    """What its formula says, or `None` when nobody knows one."""
    formula = formula_of(op)
    return None if formula is None else applied("formula", formula, op)


def _cost(op: Op, work: Work, storage_bytes: dict[int, int]) -> Cost:
    where = work.where
    macs = evaluate(work.macs, where)
    causal = macs if work.causal_macs is None else evaluate(work.causal_macs, where)
    again = evaluate(work.recompute_macs, where)
    if op.recompute:
        # Work of a checkpointed forward done a second time is not useful a second time.
        macs, causal, again = 0, 0, again + macs
    return Cost(
        origin=f"formula {FORMULAS.name_of(op)}",
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
    written_only = op.mutates if overload.endswith("out") or overload in ("grad_input", "values") else ()
    for name in op.args.keys() - set(written_only):
        for tensor in op.tensors(name):
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
    return sum(tensor.nbytes for tensor in outputs)


def signature(op: Op, storage_bytes: dict[int, int]) -> object:
    """What a cost depends on: storages by their order of appearance and their size, not by number."""
    order: dict[int, int] = {}

    def plain(value: object) -> object:
        if isinstance(value, Tensor):
            place = order.setdefault(value.storage, len(order))
            size = 0 if value.strides is None else storage_bytes.get(value.storage)
            return (place, size, value.shape, value.dtype, value.strides, value.offset)
        if isinstance(value, list):
            return tuple(map(plain, value))
        return (type(value), value)

    arguments = tuple([(name, plain(value)) for name, value in op.args.items()])
    return op.name, op.kind, op.recompute, arguments, tuple(map(plain, op.outputs))


# --- torch's own registry of FLOP formulas, for custom operators that registered themselves there --------------------


def _registered_cost(op: Op, bytes_read: int, bytes_written: int) -> Cost | None:
    """The cost by `torch.utils.flop_counter.flop_registry`, or `None`. Work outside matrices stays unknown."""
    packet = _torch_packet(op)
    if packet is None:
        return None
    from torch.utils.flop_counter import flop_registry

    formula: Any = flop_registry.get(packet)
    if formula is None:
        return None
    args, kwargs = _call_arguments(op, getattr(packet, op.name.partition(".")[2] or "default"))
    outputs = [tensor.shape for tensor in op.outputs]
    try:
        flops = int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else outputs))
    except Exception:
        # A foreign formula that cannot cope is as good as none: the op is then listed as uncounted.
        return None
    useful, again = (0, flops) if op.recompute else (flops, 0)
    return Cost("torch's flop_registry", useful // 2, useful, None, bytes_read, bytes_written, useful, again)


def _torch_packet(op: Op) -> Any:
    # A ledger can be read without torch; then there is no registry to ask.
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    namespace, _, operator = op.packet.partition("::")
    return getattr(getattr(torch.ops, namespace), operator, None)


def _call_arguments(op: Op, overload: Any) -> tuple[list[Any], dict[str, Any]]:
    """As the operator was called: absent arguments back in their places, tensors as shapes."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        default = argument.default_value if argument.has_default_value() else None
        value = _shapes(op.args[argument.name]) if argument.name in op.args else default
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _shapes(value: Arg) -> Any:
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, list):
        return [_shapes(item) for item in value]
    return value
