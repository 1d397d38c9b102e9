"""torch's own registry of FLOP formulas, for custom operators that registered themselves there."""

from __future__ import annotations

import sys
from typing import Any

from rooflight.ledger import Arg, Cost, Op, Tensor


def torch_flops(op: Op, bytes_read: int, bytes_written: int) -> Cost | None:
    """The cost by `torch.utils.flop_counter.flop_registry`, or `None`. Work outside matrices stays unknown."""
    packet = _packet(op.packet)
    if packet is None:
        return None
    from torch.utils.flop_counter import flop_registry

    formula: Any = flop_registry.get(packet)
    if formula is None:
        return None
    arguments = {name: _shapes(value) for name, value in op.args.items()}
    outputs = [tensor.shape for tensor in op.outputs]
    try:
        flops = int(formula(*arguments.values(), out_val=outputs[0] if len(outputs) == 1 else outputs))
    except Exception:
        # A foreign formula that cannot cope is as good as none: the op is then listed as uncounted.
        return None
    return Cost("torch's flop_registry", flops // 2, flops, None, bytes_read, bytes_written, flops)


def _packet(name: str) -> Any:
    # A ledger can be read without torch; then there is no registry to ask.
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator, None)


def _shapes(value: Arg) -> Any:
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, list):
        return [_shapes(item) for item in value]
    return value
