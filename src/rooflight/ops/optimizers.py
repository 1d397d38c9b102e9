"""Ops over lists of tensors (`_foreach_*`) and whole optimizer steps in one op (`_fused_*_`): n sums over the list."""

from __future__ import annotations

from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task, precision_of
from rooflight.ops.pointwise import PER_ELEMENT, PER_ELEMENT_OUT_OF_PLACE, constant_is_one, times
from rooflight.ops.registry import Formula, Work, formula
from rooflight.ops.tensor_layout import distinct_bytes

_POINTWISE = """
    abs acos asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log log10 log1p
    log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
""".split()


def _all(op: Op, name: str = "self") -> int:
    return sum(tensor.numel for tensor in op.tensors(name))


def _bytes(op: Op, *names: str) -> int:
    return sum(tensor.nbytes for name in names for tensor in op.tensors(name))


def _each(count: int) -> Formula:
    def per_element(op: Op) -> Work:
        # A list of exponents for one base has no `self` list.
        n = _all(op) or _all(op, "exponent")
        return Work(other=times(count, "n"), where={"n": n})

    return per_element


for _name in _POINTWISE:
    _count = (PER_ELEMENT | PER_ELEMENT_OUT_OF_PLACE)[_name]
    formula(f"aten::_foreach_{_name}", f"aten::_foreach_{_name}_")(_each(_count))


# self + alpha * other
@formula("aten::_foreach_add", "aten::_foreach_add_", "aten::_foreach_sub", "aten::_foreach_sub_")
def foreach_add(op: Op) -> Work:
    return Work(other=times(1 if constant_is_one(op, "alpha") else 2, "n"), where={"n": _all(op)})


# self + value * tensor1 * tensor2; a list of values counts as values that are not 1.
@formula("aten::_foreach_addcmul", "aten::_foreach_addcmul_", "aten::_foreach_addcdiv", "aten::_foreach_addcdiv_")
def foreach_addcmul(op: Op) -> Work:
    scaled = op.has("scalars") or not constant_is_one(op, "value")
    return Work(other=f"{3 if scaled else 2} * n", where={"n": _all(op)})


def _step(op: Op, count: int, states: tuple[str, ...], *, fresh: bool = False) -> Work:
    """A fused step: reads parameters, gradients and states, writes parameters and states.

    The schema says gradients are written too; they are only when it also undoes the loss scale. `fresh`: the states
    are made by this step, not read.
    """
    unscales = op.has("grad_scale")
    count += unscales + bool(op.args.get("maximize"))
    where = {"n": _all(op), "p": _bytes(op, "self"), "g": _bytes(op, "grads"), "s": _bytes(op, *states)}
    reads = "p + g" if fresh else "p + g + s"
    writes = "p + g + s" if unscales else "p + s"
    return Work(other=f"{count} * n", reads=reads, writes=writes, where=where, note="p, g, s: bytes of each kind")


# Weight decay g + wd * p: 2. Momentum m * buf + (1 - damping) * g: 2, with damping 3; in the first step a copy.
# Nesterov g + m * buf: 2. p - lr * g: 2.
@formula("aten::_fused_sgd_")
def fused_sgd(op: Op) -> Work:
    momentum, first = bool(op.args.get("momentum")), bool(op.args.get("is_first_step"))
    count = 2 + 2 * bool(op.args.get("weight_decay"))
    if momentum:
        count += 0 if first else 2 + bool(op.args.get("dampening"))
        count += 2 * bool(op.args.get("nesterov"))
    return _step(op, count, ("momentum_buffer_list",), fresh=first)


# Weight decay g + wd * p: 2, or decoupled (AdamW) p * (1 - lr * wd): 1. First moment m + (1 - b1) * (g - m): 3.
# Second moment b2 * v + (1 - b2) * g * g: 4. AMSGrad's maximum: 1. sqrt(v) / c2 + eps: 3. p - c1 * m / that: 3.
# 13 without decay; c1 and c2 are one number a step.
@formula("aten::_fused_adam_", "aten::_fused_adamw_")
def fused_adam(op: Op) -> Work:
    count = 13 + bool(op.args.get("amsgrad"))
    if op.args.get("weight_decay"):
        count += 1 if op.packet == "aten::_fused_adamw_" else 2
    return _step(op, count, ("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"))


# Weight decay: 2. sum + g * g: 2. p - lr * g / (sqrt(sum) + eps): sqrt, add, multiply, divide, subtract.
@formula("aten::_fused_adagrad_")
def fused_adagrad(op: Op) -> Work:
    return _step(op, 7 + 2 * bool(op.args.get("weight_decay")), ("state_sums",))


# Is it finite, and multiplied by the inverse scale.
@formula("aten::_amp_foreach_non_finite_check_and_unscale_")
def amp_unscale(op: Op) -> Work:
    return Work(other="2 * n", where={"n": _all(op)})


# One number: grown or backed off, its counter moved and compared.
@formula("aten::_amp_update_scale_")
def amp_update_scale(op: Op) -> Work:
    return Work(other=3)


# --- kernel tasks


def is_over_lists(op: Op) -> bool:
    """All of these ops, those without a formula too."""
    _, _, name = op.packet.partition("::")
    return name.startswith(("_foreach_", "_fused_")) and any(isinstance(value, list) for value in op.args.values())


def list_tasks(op: Op) -> list[Task]:
    """Lists of tensors, read and written once each. A fused optimizer changes gradients only to unscale them, whatever
    its schema says; the numbers that count its steps weigh nothing."""
    _, _, name = op.packet.partition("::")
    fused = name.startswith("_fused_")
    ignored = {"state_steps"} if fused else set()
    untouched = ignored | ({"grads"} if fused and not op.has("grad_scale") else set())
    lists = [
        op.tensors(argument)
        for argument, value in op.args.items()
        if argument not in ignored and isinstance(value, list) and op.tensors(argument)
    ]
    if not lists:
        return []
    main = lists[0]
    reads = distinct_bytes([tensor for tensors in lists for tensor in tensors])
    changed = [tensor for argument in op.mutates if argument not in untouched for tensor in op.tensors(argument)]
    writes = sum(tensor.nbytes for tensor in [*op.outputs, *changed])
    elements = max(1, sum(tensor.numel for tensor in main))
    family = "fused-sgd" if name.startswith("_fused_sgd") else "fused-adam" if fused else "foreach"
    return [Task(family, precision_of(main[0].dtype), (len(main), elements, reads, writes or reads))]
