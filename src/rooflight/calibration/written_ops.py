"""The works that people write into a table: `gemm` with its sizes, `conv2d` with shapes, `softmax`, `add`, `attention`;
or a family of `rooflight.ops.kernel_task.FAMILIES` with its own numbers, which is the most direct form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rooflight.errors import suggest
from rooflight.ops.convolution import Geometry, convolution_numbers
from rooflight.ops.kernel_task import (
    FAMILIES,
    Task,
    attention_task,
    convolves,
    copy_task,
    itemsize,
    precision_of,
    side_of,
)

Shape = tuple[int, ...]
_DEFAULTS = {
    "batch": 1, "groups": 1, "dilation": 1, "a_transposed": 0, "b_transposed": 0, "bias": 0, "causal": 0,
    "channels_last": 0, "stride": 1, "pad": 0,
}  # fmt: skip


class NotAWork(ValueError):
    """A row that tells no work; its text says the column and what is wrong with it."""


@dataclass(frozen=True)
class WrittenOp:
    """One row: the op, its type, shapes where it has some, and its numbers by the names of their columns."""

    op: str
    dtype: str
    shapes: tuple[Shape, ...]
    numbers: Mapping[str, int]
    capability: int | None = None
    """Of the device that it ran on."""

    def __getitem__(self, column: str) -> int:
        value = self.numbers.get(column, _DEFAULTS.get(column))
        if value is None:
            raise NotAWork(f"column {column}: {self.op} needs a number here")
        return value

    def shaped(self, count: int, form: str) -> tuple[Shape, ...]:
        if len(self.shapes) != count:
            raise NotAWork(f"column shape: {self.op} has {len(self.shapes)} shapes here and needs {form}")
        return self.shapes


def task_of(row: WrittenOp) -> Task:
    """The work of a row; `NotAWork` where it tells none."""
    if row.op not in _OPS and row.op not in FAMILIES:
        raise NotAWork(f"column op: there is no op {row.op!r}: {suggest(row.op, [*_OPS, *FAMILIES], otherwise=_KNOWN)}")
    own = FAMILIES.get(row.op, ())
    by_family = row.op not in _OPS or (own and not row.shapes and set(own) <= row.numbers.keys())  # a copy is both
    made, beside = (_of_family, own) if by_family else _OPS[row.op]
    sizes = () if row.shapes else _SIZES.get(row.op, ())
    for name in row.numbers:
        if name not in (*beside, *sizes):
            twice = " beside its shapes" if row.shapes else ""
            raise NotAWork(f"column {name}: {row.op} takes no such number{twice}: leave it empty")
    task = made(row)
    small = [name for name, value in zip(FAMILIES[task.family], task.numbers, strict=False) if value < _least(name)]
    if small:
        raise NotAWork(f"column {small[0]}: {row.op} needs at least {_least(small[0])} here")
    return task


def _least(number: str) -> int:
    zero = ("pad", "bytes_read", "a_transposed", "b_transposed", "bias", "causal", "channels_last", "contiguous")
    return 0 if number in (*zero, "innermost") else 1


def _precision(family: str, dtype: str) -> str:
    """That of matrix work is the unit's, that of all else a width."""
    if convolves(family) or family.startswith(("gemm", "attention-", "recurrent-")):
        return dtype
    return precision_of("fp32" if dtype == "tf32" else dtype)


def _of_family(row: WrittenOp) -> Task:
    if row.shapes:
        raise NotAWork(f"column shape: the family {row.op} is given by its numbers: {', '.join(FAMILIES[row.op])}")
    return Task(row.op, _precision(row.op, row.dtype), tuple(row[name] for name in FAMILIES[row.op]))


def _gemm(row: WrittenOp, *, weights: bool = False) -> Task:
    """`m`, `n`, `k`, or the shapes of both factors; a linear layer's weight is n x k, as torch keeps it."""
    batch, turned = row["batch"], row.numbers.get("b_transposed", int(weights))
    if row.shapes:
        a, b = row.shaped(2, "two, as 512x1024 1024x4096")
        if len(a) < 2 or len(b) < 2 or (weights and len(b) != 2):
            raise NotAWork(f"column shape: {row.op} multiplies matrices, with two sides or more")
        batch = math.prod(a[:-2]) if len(b) > 2 else 1
        m, k = (a[-2], a[-1]) if len(b) > 2 else (math.prod(a[:-1]), a[-1])
        inner, n = (b[1], b[0]) if weights else (b[-2], b[-1])
        if inner != k or (len(b) > 2 and a[:-2] != b[:-2]):
            raise NotAWork(f"column shape: {_text(a)} and {_text(b)} cannot be multiplied")
    else:
        m, n, k = row["m"], row["n"], row["k"]
    return Task("gemm", row.dtype, (batch, m, n, k, row["a_transposed"], turned, row["bias"]))


def _linear(row: WrittenOp) -> Task:
    return _gemm(row, weights=True)


_SIDES = {1: "L", 2: "H x W", 3: "D x H x W"}
_EXAMPLES = {
    1: "input 16x64x1000, weight 128x64x3",
    2: "input 16x64x56x56, weight 128x64x3x3",
    3: "input 4x64x16x56x56, weight 128x64x3x3x3",
}


def _convolution(way: str, sides: int) -> Callable[[WrittenOp], Task]:
    family = f"{'conv3d' if sides == 3 else 'conv'}-{way}"

    def made(row: WrittenOp) -> Task:
        if not row.shapes and sides == 2:
            return _of_family(WrittenOp(family, row.dtype, (), row.numbers))
        x, weight = row.shaped(2, f"two: {_EXAMPLES[sides]}")
        if len(x) != sides + 2 or len(weight) != sides + 2:
            raise NotAWork(
                f"column shape: {row.op} has an input N x C x {_SIDES[sides]} and a weight, as {_EXAMPLES[sides]}"
            )
        (n, c, *image), (k, inner, *kernel), groups = x, weight, row["groups"]
        if inner * groups != c or k % groups:
            raise NotAWork(f"column shape: {_text(weight)} is no weight for {c} channels in {groups} groups")
        stride, pad, dilation = row["stride"], row["pad"], row["dilation"]
        out = [0] if stride < 1 else [side_of(*two, stride, pad, dilation) for two in zip(image, kernel, strict=True)]
        if min(out) < 1:
            raise NotAWork("column shape: no pixel of output is left: check shapes, stride and padding")
        geometry = Geometry([stride], [pad], [dilation], groups)
        last = bool(row["channels_last"])
        return Task(family, row.dtype, convolution_numbers(x, kernel, (n, k, *out), geometry, channels_last=last))

    return made


def _rows(family: str) -> Callable[[WrittenOp], Task]:
    """Rows of the last side."""

    def made(row: WrittenOp) -> Task:
        if not row.shapes:
            return _of_family(WrittenOp(family, row.dtype, (), row.numbers))
        (shape,) = row.shaped(1, "one")
        return Task(family, _precision(family, row.dtype), (math.prod(shape[:-1]), shape[-1]))

    return made


def _elementwise(family: str, inputs: int) -> Callable[[WrittenOp], Task]:
    """So many tensors read and one written, all of one shape; of two that are given, one may be broadcast."""

    def made(row: WrittenOp) -> Task:
        size, precision = itemsize(row.dtype), _precision(family, row.dtype)
        if len(row.shapes) == 2 and inputs == 2:
            elements, read = _broadcast(*row.shapes), sum(map(math.prod, row.shapes))
            # One value beside a tensor is no tensor to read, as torch's own ops tell.
            like = "broadcast" if any(1 < math.prod(shape) < elements for shape in row.shapes) else family
            return Task(like, precision, (elements, read * size, elements * size))
        form = "one, or one an input" if inputs == 2 else "one"
        nbytes = size * (elements := math.prod(row.shaped(1, form)[0]) if row.shapes else row["elements"])
        if family == "copy":
            return copy_task(nbytes)
        return Task(family, precision, (elements, inputs * nbytes, nbytes))

    return made


def _broadcast(one: Shape, other: Shape) -> int:
    """Elements of what comes out of the two."""
    sides = list(zip_longest(reversed(one), reversed(other), fillvalue=1))
    if any(a != b and 1 not in (a, b) for a, b in sides):
        raise NotAWork(
            f"column shape: {_text(one)} and {_text(other)} are not alike, and none is broadcast to the other"
        )
    return math.prod(max(pair) for pair in sides)


def _attention(row: WrittenOp) -> Task:
    """In the kernel that torch takes on the device."""
    length = row.numbers.get("length")
    queries = row.numbers.get("length_q", length)
    if queries is None:
        raise NotAWork("column length: attention needs a number here")
    keys = row.numbers.get("length_kv", length if length is not None else queries)
    heads = row["heads"]
    kernel = "efficient"
    if itemsize(row.dtype) == 2 and (row.capability or 90) >= 80:
        kernel = "cudnn" if (row.capability or 90) >= 90 else "flash"
    sizes = (row["batch"], heads, row.numbers.get("heads_kv", heads), queries, keys, row["head_dim"])
    dtype = "fp32" if row.dtype == "tf32" else row.dtype
    return attention_task(kernel, dtype, "forward", (*sizes, row["causal"], row["bias"]))


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


_FACTORS = ("a_transposed", "b_transposed", "bias")
_WINDOW = ("stride", "pad", "dilation", "groups", "channels_last")
_HEADS = ("batch", "heads", "heads_kv", "length", "length_q", "length_kv", "head_dim", "causal", "bias")
_PRODUCTS = ("gemm", "matmul", "mm", "bmm", "linear")
_CONVOLUTIONS = {
    f"conv{sides}d{end}": (way, sides)
    for sides in (1, 2, 3)
    for end, way in (("", "forward"), ("-dgrad", "dgrad"), ("-wgrad", "wgrad"))
}
_OF_ROWS = {"softmax": "softmax-forward", "layer-norm": "layer-norm-forward"}
_OF_ELEMENTS = {
    "relu": ("plain", 1),
    "copy": ("copy", 1),
    **dict.fromkeys(("add", "sub", "mul", "div"), ("plain", 2)),
    **dict.fromkeys(("gelu", "silu", "sigmoid", "tanh", "exp", "log"), ("math", 1)),
}
_OPS: dict[str, tuple[Callable[[WrittenOp], Task], tuple[str, ...]]] = {
    **{op: (_linear if op == "linear" else _gemm, _FACTORS) for op in _PRODUCTS},
    **{op: (_convolution(*how), _WINDOW) for op, how in _CONVOLUTIONS.items()},
    **{op: (_rows(family), ()) for op, family in _OF_ROWS.items()},
    **{op: (_elementwise(*how), ()) for op, how in _OF_ELEMENTS.items()},
    "attention": (_attention, _HEADS),
}
"""What makes the task of an op, and the numbers that it takes beside shapes."""
_SIZES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_PRODUCTS, ("batch", "m", "n", "k")),
    **{op: ("n", "c", "h", "w", "k", "r", "s") for op, (_, sides) in _CONVOLUTIONS.items() if sides == 2},
    **dict.fromkeys(_OF_ROWS, ("rows", "columns")),
    **dict.fromkeys(_OF_ELEMENTS, ("elements",)),
}
"""The numbers that stand for shapes."""
_KNOWN = f"write {', '.join(_OPS)}, or a family with its numbers (docs/calibrating.md)"
