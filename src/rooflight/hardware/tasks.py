"""What a kernel has to do, in the few numbers its time depends on: the language that calibration and prediction share.

An op is one task or several: a convolution with a bias is a convolution and a broadcast addition. Calibration times
tasks of its own choosing; prediction asks for the time of those a model has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt


class Task(NamedTuple):
    """One piece of work: its family, the precision it runs in, and the numbers that the family names."""

    family: str
    precision: str
    numbers: tuple[int, ...]


CONVOLUTION = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation", "groups", "channels_last")
OUTPUT = ("p", "q")
"""Height and width of the output: what a convolution has after its other numbers where strides or paddings differ by
side. Else they follow from these, and it is the same task as one that was timed or recorded."""
_ATTENTION = ("batch", "heads", "heads_kv", "length_q", "length_kv", "head_dim", "causal", "bias")
_ELEMENTS = ("elements", "bytes_read", "bytes_written")
_ROWS = ("rows", "columns")
_CHANNELS = ("n", "c", "pixels", "channels_last")
_POOL = ("planes", "h", "w", "kernel", "stride", "out_pixels", "channels_last")
_LISTS = ("tensors", "elements", "bytes_read", "bytes_written")

FAMILIES: dict[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "n", "k", "a_transposed", "b_transposed", "bias"),
    "conv-forward": CONVOLUTION,
    "conv-dgrad": CONVOLUTION,
    "conv-wgrad": CONVOLUTION,
    **{f"attention-{kernel}-{way}": _ATTENTION for kernel in ("cudnn", "flash", "efficient")
       for way in ("forward", "backward")},
    "plain": _ELEMENTS,
    "cast": _ELEMENTS,
    "math": _ELEMENTS,
    "broadcast": _ELEMENTS,
    "strided": (*_ELEMENTS, "run"),
    "dropout": _ELEMENTS,
    "cat": ("tensors", *_ELEMENTS, "largest", "contiguous", "run"),
    "reduce": ("kept", "reduced", "innermost"),
    "softmax-forward": _ROWS,
    "softmax-backward": _ROWS,
    "layer-norm-forward": _ROWS,
    "layer-norm-backward": _ROWS,
    "group-norm-forward": ("rows", "columns"),
    "group-norm-backward": ("rows", "columns"),
    **{f"batch-norm-{kind}-{way}": _CHANNELS for kind in ("cudnn", "native") for way in ("train", "eval", "backward")},
    "embedding-forward": _ROWS,
    "embedding-backward": ("rows", "columns", "vocabulary"),
    "max-pool-forward": _POOL,
    "max-pool-backward": _POOL,
    "avg-pool-forward": _POOL,
    "avg-pool-backward": _POOL,
    "foreach": _LISTS,
    "fused-sgd": _LISTS,
    "fused-adam": _LISTS,
}  # fmt: skip
"""What the numbers of each family mean, in their order. `run`: elements that lie side by side on both sides of a copy;
`innermost`: the reduced axis is the one whose elements lie side by side; `largest`: elements of the largest input."""

Numbers = TypeVar("Numbers", np.int64, np.float64)


def rows_of(tasks: Sequence[Task], kind: type[Numbers]) -> npt.NDArray[Numbers]:
    """One row a task of a family. Where one convolution tells the sides of its output, all do."""
    if len({len(task.numbers) for task in tasks}) <= 1:
        return np.array([task.numbers for task in tasks], dtype=kind)
    return np.concatenate([with_output(np.array([task.numbers], dtype=kind)) for task in tasks])


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
