"""Pointwise arithmetic, comparisons and logic: so many operations for every element of the result.

What counts as one: an arithmetic, logical or bitwise result, a comparison, and one call of an elementary function as a
maths library offers it (exp, log, sin, tanh, erf, sqrt, rsqrt, pow, a rounding). All else is composed of these. A
multiplication by a constant 1 (`alpha`, `value`) is not there. Where the data chooses a branch, the longer one counts.
Choosing between ready values (`where`) is indexing and counts nothing.

A complex element is two real results; a complex product is 4 multiplications and 2 additions, a modulus 2 squares, an
addition and a root.
"""

from __future__ import annotations

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, precision_of
from rooflight.ops.registry import Formula, Work, aten, formula, task
from rooflight.ops.tensor_layout import bytes_of_elements, contiguous_run, distinct_bytes, has_gaps, memory_order

# One operation per element, with an in-place form (`abs_`).
_ONE = """
    abs neg sign sgn ceil floor round trunc reciprocal
    sqrt rsqrt exp exp2 expm1 log log2 log10 log1p erf erfc erfinv lgamma digamma polygamma i0
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
    mul div floor_divide fmod remainder pow atan2 hypot copysign nextafter gcd lcm heaviside deg2rad rad2deg
    eq ne lt le gt ge logical_and logical_or logical_xor logical_not
    bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift
    clamp_min clamp_max igamma igammac
""".split()

# The same without an in-place form.
_ONE_OUT_OF_PLACE = """
    maximum minimum fmax fmin isnan isinf isposinf isneginf signbit angle
    special_i0e special_i1 special_i1e special_ndtri special_log_ndtr special_erfcx
    __lshift__ __rshift__ __ilshift__ __irshift__
""".split()

PER_ELEMENT: dict[str, int] = dict.fromkeys(_ONE, 1) | {
    "frac": 2,  # x - trunc(x)
    "lerp": 3,  # start + weight * (end - start)
    "ldexp": 2,  # x * 2^k
    "nan_to_num": 3,  # is it NaN, +inf, -inf?
    "sigmoid": 4,  # 1 / (1 + exp(-x)): negate, exp, add, divide
    "sinc": 3,  # sin(pi x) / (pi x)
    "xlogy": 3,  # x == 0, then x * log(y)
}

PER_ELEMENT_OUT_OF_PLACE: dict[str, int] = dict.fromkeys(_ONE_OUT_OF_PLACE, 1) | {
    "logaddexp": 7,  # max(a, b) + log1p(exp(-|a - b|)): max, subtract, abs, negate, exp, log1p, add
    "logaddexp2": 7,
    "special_entr": 4,  # x > 0, then -x * log(x)
    "special_xlog1py": 3,
    "polar": 4,  # r * cos(a), r * sin(a)
}

COMPLEX_MUL, COMPLEX_ABS = 6, 4


def is_complex(op: Op) -> bool:
    return any(tensor.dtype.startswith("complex") for tensor in (*op.inputs, *op.outputs))


def elements(op: Op) -> int:
    """How many elements the op makes. An op that returns nothing makes those of `self`, in place."""
    return op.outputs[0].numel if op.outputs else sum(tensor.numel for tensor in op.tensors("self"))


def times(count: int, what: str) -> str | int:
    """`count * what` as one would write it."""
    return what if count == 1 else f"{count} * {what}" if count else 0


def each(count: int) -> Formula:
    """A formula of `count` operations per element of the result."""

    def per_element(op: Op) -> Work:
        real_and_imaginary = 2 if is_complex(op) else 1
        return Work(other=times(count * real_and_imaginary, "n"), where={"n": elements(op)})

    return per_element


def constant_is_one(op: Op, *names: str) -> bool:
    """Are these scalar arguments absent, or 1? Then multiplying by them is no operation."""
    return all(op.args.get(name, 1) == 1 for name in names)


for _name, _count in PER_ELEMENT.items():
    if _name not in ("mul", "abs"):
        formula(f"aten::{_name}", f"aten::{_name}_")(each(_count))
for _name, _count in PER_ELEMENT_OUT_OF_PLACE.items():
    if _name != "polar":
        formula(f"aten::{_name}")(each(_count))


@formula("aten::mul", "aten::mul_")
def mul(op: Op) -> Work:
    tensors = [tensor.dtype.startswith("complex") for tensor in op.inputs]
    # A complex by a real one scales both parts.
    count = COMPLEX_MUL if all(tensors) and len(tensors) > 1 else 2 if any(tensors) else 1
    return Work(other=times(count, "n"), where={"n": elements(op)})


@formula("aten::abs", "aten::abs_")
def absolute(op: Op) -> Work:
    return Work(other=times(COMPLEX_ABS if is_complex(op) else 1, "n"), where={"n": elements(op)})


@formula("aten::polar")
def polar(op: Op) -> Work:
    return Work(other=f"{PER_ELEMENT_OUT_OF_PLACE['polar']} * n", where={"n": elements(op)})


# self + alpha * other: with alpha = 1 one operation, else two.
@formula("aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::rsub")
def add(op: Op) -> Work:
    count = 1 if constant_is_one(op, "alpha") else 2
    return Work(other=times(count * (2 if is_complex(op) else 1), "n"), where={"n": elements(op)})


@formula("aten::_add_relu", "aten::_add_relu_")
def add_relu(op: Op) -> Work:
    return Work(other=f"{2 if constant_is_one(op, 'alpha') else 3} * n", where={"n": elements(op)})


# self + value * tensor1 * tensor2 (or tensor1 / tensor2): with value = 1 two operations, else three.
@formula("aten::addcmul", "aten::addcmul_", "aten::addcdiv", "aten::addcdiv_")
def addcmul(op: Op) -> Work:
    return Work(other=f"{2 if constant_is_one(op, 'value') else 3} * n", where={"n": elements(op)})


# One comparison for each bound that is given.
@formula("aten::clamp", "aten::clamp_")
def clamp(op: Op) -> Work:
    return Work(other=times(op.has("min") + op.has("max"), "n"), where={"n": elements(op)})


# log(x / (1 - x)): subtract, divide, log; `eps` clamps x from both sides first.
@formula("aten::logit", "aten::logit_")
def logit(op: Op) -> Work:
    return Work(other=f"{5 if op.has('eps') else 3} * n", where={"n": elements(op)})


# dy / (x * (1 - x)): subtract, multiply, divide; with `eps` x is compared with both bounds.
@formula("aten::logit_backward")
def logit_backward(op: Op) -> Work:
    return Work(other=f"{5 if op.has('eps') else 3} * n", where={"n": elements(op)})


# Chooses between ready values. `where(condition)` alone is nonzero.
@formula("aten::where")
def where(op: Op) -> Work:
    return Work()


# Compares pairs, then asks whether all were equal.
@formula("aten::equal")
def equal(op: Op) -> Work:
    return Work(other="2 * n - 1", where={"n": op.tensor("self").numel})


# --- kernel tasks


_FLOATS = ("bf16", "fp16", "fp32", "fp64")


def elementwise_tasks(op: Op) -> list[Task]:
    """Any op that reads its inputs and writes its outputs once: what ops without tasks of their own are taken for."""
    sizes = _streamed(op)
    if sizes is None:
        return []
    inputs, main, numbers = sizes
    most, precision = numbers[0], precision_of(main.dtype)
    if len({tensor.itemsize for tensor in inputs if tensor.numel > 1 and tensor.dtype in _FLOATS}) > 1:
        return [Task("mixed", precision, numbers)]
    large = [tensor for tensor in inputs if tensor.numel == most]
    if any(tensor.nbytes < bytes_of_elements(tensor) for tensor in large):
        return [Task("broadcast", precision, numbers)]
    alike = [tensor for tensor in large if tensor.shape == main.shape]
    if any(memory_order(tensor) != memory_order(main) or has_gaps(tensor) for tensor in alike):
        return [Task("strided", precision, (*numbers, min(contiguous_run(tensor) for tensor in [*large, main])))]
    if any(1 < tensor.numel < most for tensor in inputs):
        return [Task("broadcast", precision, numbers)]
    mixed = any(tensor.itemsize != main.itemsize for tensor in large)
    return [Task("cast" if mixed else "plain", precision, numbers)]


def math_tasks(op: Op) -> list[Task]:
    """An elementwise op whose arithmetic takes longer than its bytes."""
    sizes = _streamed(op)
    return [] if sizes is None else [Task("math", precision_of(sizes[1].dtype), sizes[2])]


def fill_tasks(op: Op) -> list[Task]:
    """An op that looks at a tensor's shape, not at its elements."""
    sizes = _streamed(op, reads=False)
    return [] if sizes is None else [Task("plain", precision_of(sizes[1].dtype), sizes[2])]


def _streamed(op: Op, *, reads: bool = True) -> tuple[list[Tensor], Tensor, tuple[int, int, int]] | None:
    """Inputs, the largest tensor written, and elements, bytes read and bytes written; `None`: all are empty."""
    inputs = [tensor for tensor in op.inputs if tensor.numel] if reads else []
    written = list(op.outputs) or [tensor for name in op.mutates for tensor in op.tensors(name)]
    written = [tensor for tensor in written if tensor.numel]
    if not written and not inputs:
        return None
    main = max(written or inputs, key=lambda tensor: tensor.numel)
    most = max(tensor.numel for tensor in (main, *inputs))
    return inputs, main, (most, distinct_bytes(inputs), distinct_bytes(written))


task(*aten("tanh tanh_ sigmoid sigmoid_ exp exp_ log log_ erf pow sin cos atan acos asin expm1 log1p log2 exp2"))(
    math_tasks
)
