"""What a kernel has to do, in the few numbers its time depends on: the language that calibration and prediction share.

An op is one task or several: a convolution with a bias is a convolution and a broadcast addition. Calibration times
tasks of its own choosing; prediction asks for the time of those a model has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rooflight.ledger import DTYPE_BYTES, Op, Tensor


class Task(NamedTuple):
    """One piece of work: its family, the precision it runs in, and the numbers that the family names."""

    family: str
    """One of `rooflight.ops.kernel_task.FAMILIES`."""
    precision: str
    """Such as bf16; an op's own is `op.precision`."""
    numbers: tuple[int, ...]
    """In the order in which the family names them."""

    @classmethod
    def of(cls, family: str, precision: str, **numbers: int) -> Task:
        """A task with its numbers by their names: `Task.of("gemm", "bf16", m=64, n=512, k=16)`. No batch, no groups, no
        dilation, nothing transposed, no bias, no causal mask and not channels_last, unless told."""
        names = FAMILIES.get(family)
        if names is None:
            raise ValueError(f"no family of tasks is called {family!r}: there are {', '.join(FAMILIES)}")
        values = _UNLESS_TOLD | numbers
        if not set(numbers) <= set(names) <= set(values):
            raise ValueError(f"a task of {family} has the numbers {', '.join(names)}, not {', '.join(numbers)}")
        return cls(family, precision, tuple(values[name] for name in names))


_UNLESS_TOLD = {
    "batch": 1,
    "groups": 1,
    "dilation": 1,
    "a_transposed": 0,
    "b_transposed": 0,
    "bias": 0,
    "causal": 0,
    "channels_last": 0,
}

CONVOLUTION = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation", "groups", "channels_last")
OUTPUT = ("p", "q")
"""Height and width of the output: what a convolution has after its other numbers where strides or paddings differ by
side. Else they follow from these, and it is the same task as one that was timed or recorded."""
_ATTENTION = ("batch", "heads", "heads_kv", "length_q", "length_kv", "head_dim", "causal", "bias")
_DECODE = ("batch", "heads", "heads_kv", "length_kv", "head_dim", "bias")
_ELEMENTS = ("elements", "bytes_read", "bytes_written")
_ROWS = ("rows", "columns")
_CHANNELS = ("n", "c", "pixels", "channels_last")
_POOL = ("planes", "h", "w", "kernel", "stride", "out_pixels", "channels_last")
_REDUCTION = ("kept", "reduced", "innermost")
_RECURRENT = ("gates", "steps", "samples", "inputs", "hidden", "layers", "directions")
_LISTS = ("tensors", "elements", "bytes_read", "bytes_written")


def _both_ways(numbers: tuple[str, ...], *families: str) -> dict[str, tuple[str, ...]]:
    return {f"{family}-{way}": numbers for family in families for way in ("forward", "backward")}


FAMILIES: dict[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "n", "k", "a_transposed", "b_transposed", "bias"),
    **{f"{kind}-{way}": CONVOLUTION for kind in ("conv", "conv3d") for way in ("forward", "dgrad", "wgrad")},
    **_both_ways(_ATTENTION, "attention-cudnn", "attention-flash", "attention-efficient"),
    **{f"attention-{kernel}-decode": _DECODE for kernel in ("cudnn", "flash", "efficient")},
    **dict.fromkeys(("plain", "copy", "cast", "math", "broadcast", "mixed"), _ELEMENTS),
    "strided": (*_ELEMENTS, "run"),
    "dropout": _ELEMENTS,
    "cat": ("tensors", *_ELEMENTS, "largest", "contiguous", "run"),
    **dict.fromkeys(("reduce", "reduce-norm", "reduce-index"), _REDUCTION),
    "scan": _REDUCTION,
    **_both_ways(_ROWS, "softmax", "layer-norm", "group-norm"),
    "nll-forward": _ROWS,
    **{f"batch-norm-{kind}-{way}": _CHANNELS for kind in ("cudnn", "native") for way in ("train", "eval", "backward")},
    **dict.fromkeys(("embedding-forward", "index", "gather"), _ROWS),
    **dict.fromkeys(("embedding-backward", "index-put", "index-add", "scatter-add"), (*_ROWS, "vocabulary")),
    **_both_ways(_POOL, "max-pool", "avg-pool", "max-pool3d", "avg-pool3d"),
    **dict.fromkeys(("foreach", "fused-sgd", "fused-adam"), _LISTS),
    **_both_ways(_RECURRENT, "recurrent"),
}
"""What the numbers of each family mean, in their order. `run`: elements that lie side by side on both sides of a copy;
`innermost`: the reduced axis is the one whose elements lie side by side; `largest`: elements of the largest input;
`vocabulary`: rows of the table that rows are added to. Of `index`, `index-put` and `index-add` a place is that of a
whole row, of `gather` and `scatter-add` that of one element. `copy`: bytes as they lie, which the driver moves;
`mixed`: arithmetic on inputs of several widths. A volume is one of stacked slices: its height is that of all of them.
`reduce-index`: of which element the largest is, too; `scan`: running sums, along `reduced`."""


def convolves(family: str) -> bool:
    return family.startswith(("conv-", "conv3d-"))


_OF_FORWARD = [_ATTENTION.index(name) for name in _DECODE]
_LENGTH_Q = _ATTENTION.index("length_q")


def attention_task(kernel: str, precision: str, way: str, numbers: tuple[int, ...]) -> Task:
    """Of the numbers that a forward or backward has. One query for many keys, the next token against what came before,
    is work of its own: it reads the keys, and hardly computes."""
    if way == "forward" and numbers[_LENGTH_Q] == 1:
        return Task(f"attention-{kernel}-decode", precision, tuple(numbers[place] for place in _OF_FORWARD))
    return Task(f"attention-{kernel}-{way}", precision, numbers)


def decode_rows(family: str, rows: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Points of a family, and those among them that older calibrations have there but that are of one query."""
    if not (family.startswith("attention-") and family.endswith("-forward")):
        return rows, []
    several = [row for row in rows if row[_LENGTH_Q] != 1]
    one = [[*(row[place] for place in _OF_FORWARD), *row[-3:]] for row in rows if row[_LENGTH_Q] == 1]
    return several, one


Numbers = TypeVar("Numbers", np.int64, np.float64)


def rows_of(tasks: Sequence[Task], kind: type[Numbers]) -> npt.NDArray[Numbers]:
    """One row a task of a family. Where one convolution tells the sides of its output, all do."""
    return table_of([task.numbers for task in tasks], kind)


def table_of(numbers: Sequence[Sequence[int]], kind: type[Numbers]) -> npt.NDArray[Numbers]:
    """The same of their numbers alone."""
    lengths = np.array([len(row) for row in numbers])
    if len(set(lengths.tolist())) <= 1:
        return np.array(numbers, dtype=kind)
    table = np.empty((len(numbers), len(CONVOLUTION) + len(OUTPUT)), dtype=kind)
    for length in set(lengths.tolist()):
        places = np.flatnonzero(lengths == length)
        table[places] = with_output(np.array([numbers[place] for place in places.tolist()], dtype=kind))
    return table


def with_output(convolutions: npt.NDArray[Numbers]) -> npt.NDArray[Numbers]:
    """Rows of a convolution's numbers, all of them followed by the sides of the output."""
    if convolutions.shape[1] > len(CONVOLUTION):
        return convolutions
    _, _, h, w, _, r, s, stride, pad, dilation, _, _ = convolutions.T
    stride = np.maximum(stride, 1)
    p, q = (np.maximum(side_of(side, kernel, stride, pad, dilation), 1) for side, kernel in ((h, r), (w, s)))
    return np.column_stack([convolutions, p, q])


def side_of(side: Any, kernel: Any, stride: Any, pad: Any, dilation: Any) -> Any:
    """Of the output, from the same side of input and kernel; numbers or columns of them."""
    return (side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def way_of(op: Op) -> str:
    """The end of a family's name."""
    return "backward" if "backward" in op.packet else "forward"


def precision_of(dtype: str) -> str:
    """The precision that calibration knows memory-bound work of this dtype by: what counts is the width."""
    return "bf16" if DTYPE_BYTES[dtype] <= 2 else "fp32"


def itemsize(precision: str) -> int:
    """Return the bytes of one number in memory."""
    return 4 if precision == "tf32" else DTYPE_BYTES.get(precision, 1)


def plain_task(elements: int, bytes_read: int, bytes_written: int, dtype: str) -> Task:
    return Task("plain", precision_of(dtype), (max(1, elements), bytes_read, bytes_written))


def copy_task(nbytes: int) -> Task:
    """Bytes as they lie to another place: what they stand for does not matter, so they count as words of fp32."""
    return Task("copy", "fp32", (max(1, nbytes // 4), nbytes, nbytes))


def broadcast_task(tensor: Tensor) -> Task:
    """One value for every channel added to a tensor in place."""
    return Task("broadcast", precision_of(tensor.dtype), (max(1, tensor.numel), tensor.nbytes, tensor.nbytes))


def strided_task(elements: int, dtype: str, run: int) -> Task:
    nbytes = elements * DTYPE_BYTES[dtype]
    return Task("strided", precision_of(dtype), (max(1, elements), nbytes, nbytes, max(1, run)))


def reduce_task(dtype: str, *, kept: int, reduced: int, innermost: bool, family: str = "reduce") -> Task:
    return Task(family, precision_of(dtype), (kept, max(1, reduced), int(innermost)))


def row_sizes(tensor: Tensor, row: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor taken as rows of this shape."""
    columns = max(1, math.prod(row))
    return max(1, tensor.numel // columns), columns
