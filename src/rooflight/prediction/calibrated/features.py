"""Where a task lies among those of its family: the coordinates that efficiency is interpolated over.

Sizes count by their doublings. A property that a task has or has not moves it by a fixed distance: tasks with and
without it still learn from one another, but less than from their own kind.
"""

from __future__ import annotations

import numpy as np

from rooflight.hardware.tasks import FAMILIES
from rooflight.prediction.calibrated.baseline import (
    Array,
    columns,
    convolution_product,
    convolution_sides,
    itemsize,
)


def _log(values: Array) -> Array:
    return np.log2(np.maximum(values, 1.0))


def _alignment(values: Array, most: int = 8) -> Array:
    """How often a size halves evenly: kernels load 16 bytes at a time only where rows begin at multiples of 16."""
    found = np.zeros(len(values))
    for power in (2, 4, 8, 16, 32, 64):
        if power <= most:
            found += (values % power) == 0
    return found


def _gemm(c: dict[str, Array]) -> list[Array]:
    a_row, b_row = np.where(c["a_transposed"] > 0, c["m"], c["k"]), np.where(c["b_transposed"] > 0, c["k"], c["n"])
    return [
        _log(c["m"]), _log(c["n"]), _log(c["k"]), _log(c["batch"]),
        1.0 * c["a_transposed"], 1.0 * c["b_transposed"], 0.7 * c["bias"],
        2.0 * _alignment(np.minimum(_even(a_row), _even(b_row))), 2.0 * _alignment(c["n"]),
        np.where(c["batch"] > 1, 2.0, 0.0),
    ]  # fmt: skip


def _even(values: Array) -> Array:
    """The largest power of two up to 8 that divides each."""
    return 2.0 ** _alignment(values, 8)


def _convolution(family: str, c: dict[str, Array], precision: str) -> list[Array]:
    m, n, k = convolution_product(family, c)
    high, wide = convolution_sides(c)
    pixels = 4 if itemsize(precision) == 4 else 8  # of 16 bytes
    depthwise = (c["groups"] > 1) & (c["groups"] >= c["c"])
    return [
        0.7 * _log(m), _log(n), _log(k), 0.7 * _log(c["groups"]),
        1.2 * _log(c["r"] * c["s"]) / 2, 1.5 * _log(c["stride"]), 0.4 * _log(high),
        3.0 * depthwise, 2.0 * ((c["groups"] > 1) & ~depthwise), 1.5 * (c["c"] < 8),
        0.3 * _alignment(c["c"], 64), 0.3 * _alignment(c["k"], 64), 0.5 * (c["r"] != c["s"]),
        1.5 * (c["c"] % pixels == 0), 1.5 * (c["k"] % pixels == 0), 8.0 * c["channels_last"], 1.5 * (c["h"] * c["w"] % pixels == 0), 1.5 * (high * wide % pixels == 0),
    ]  # fmt: skip


def _attention(c: dict[str, Array]) -> list[Array]:
    return [
        _log(c["batch"] * c["heads"]), 1.2 * _log(c["length_q"]), 1.2 * _log(c["length_kv"]),
        1.5 * _log(c["head_dim"]), 1.0 * c["causal"], 1.5 * c["bias"], 0.5 * _log(c["heads"] / c["heads_kv"]),
        0.2 * _alignment(c["length_q"], 64),
    ]  # fmt: skip


def features(family: str, precision: str, numbers: Array) -> Array:
    """One row a task, one column a coordinate."""
    c = columns(family, numbers)
    if family == "gemm":
        found = _gemm(c)
    elif family.startswith("conv-"):
        found = _convolution(family, c, precision)
    elif family.startswith("attention-"):
        found = _attention(c)
    elif "bytes_read" in c:
        density = (c["bytes_read"] + c["bytes_written"]) / c["elements"]
        found = [_log(c["elements"]), 1.5 * np.log2(np.maximum(density, 0.5))]
        found += [np.minimum(_log(c["run"]), 8.0)] if "run" in c else []
        found += [0.7 * _log(c["tensors"])] if "tensors" in c else []
        if "largest" in c:
            found[2] = 0.7 * _log(c["run"])  # how much lies side by side of the smallest input
            found += [1.0 * _log(c["largest"] * c["tensors"] / c["elements"]), 2.0 * c["contiguous"]]
        if family == "dropout":
            found.append(1.0 * _alignment(c["elements"], 4))
    elif "columns" in c:
        found = [_log(c[name]) for name in FAMILIES[family]] + [1.0 * _alignment(c["columns"])]
    elif family == "reduce":
        row = np.where(c["innermost"] > 0, c["reduced"], c["kept"])
        found = [_log(c["kept"]), _log(c["reduced"]), 3.0 * c["innermost"], 0.7 * _alignment(row),
                 2.0 * (c["kept"] == 1)]  # fmt: skip
    else:
        found = [2.0 * c[name] if name == "channels_last" else _log(c[name]) for name in FAMILIES[family]]
    return np.stack([np.asarray(column, dtype=np.float64) for column in found], axis=1)
