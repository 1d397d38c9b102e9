"""torch's own registry of FLOP formulas, for custom operators that registered themselves there."""

from __future__ import annotations

import sys
from typing import Any

from rooflight.ledger import Arg, Cost, Op, Tensor


def torch_cost(op: Op, bytes_read: int, bytes_written: int) -> Cost | None:
    """The cost by `torch.utils.flop_counter.flop_registry`, or `None`. Work outside matrices stays unknown."""
    packet = _packet(op)
    if packet is None:
        return None
    from torch.utils.flop_counter import flop_registry

    formula: Any = flop_registry.get(packet)
    if formula is None:
        return None
    args, kwargs = _arguments(op, getattr(packet, op.name.partition(".")[2] or "default"))
    outputs = [tensor.shape for tensor in op.outputs]
    try:
        flops = int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else outputs))
    except Exception:
        # A foreign formula that cannot cope is as good as none: the op is then listed as uncounted.
        return None
    useful, again = (0, flops) if op.recompute else (flops, 0)
    return Cost("torch's flop_registry", useful // 2, useful, None, bytes_read, bytes_written, useful, again)


def _packet(op: Op) -> Any:
    # A ledger can be read without torch; then there is no registry to ask.
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    namespace, _, operator = op.packet.partition("::")
    return getattr(getattr(torch.ops, namespace), operator, None)


def _arguments(op: Op, overload: Any) -> tuple[list[Any], dict[str, Any]]:
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
