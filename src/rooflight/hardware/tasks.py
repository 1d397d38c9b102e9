"""What a kernel has to do, in the few numbers its time depends on: the language that calibration and prediction share.

An op is one task or several: a convolution with a bias is a convolution and a broadcast addition. Calibration times
tasks of its own choosing; prediction asks for the time of those a model has.
"""

from __future__ import annotations

from typing import NamedTuple


class Task(NamedTuple):
    """One piece of work: its family, the precision it runs in, and the numbers that the family names."""

    family: str
    precision: str
    numbers: tuple[int, ...]


CONVOLUTION = ("n", "c", "h", "w", "k", "r", "s", "stride", "pad", "dilation", "groups", "channels_last")
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
