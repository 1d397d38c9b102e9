"""Where a task lies among those of its family: the coordinates that efficiency is interpolated over.

Sizes count by their doublings. A property that a task has or has not moves it by a fixed distance: tasks with and
without it still learn from one another, but less than from their own kind. How much each counts stands in `weights`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rooflight.ops.kernel_task import FAMILIES, convolves, itemsize
from rooflight.prediction.calibrated.baseline import columns, convolution_product
from rooflight.step.cache_reuse import Array

# How much each coordinate of a task counts, by group of families; 1 where nothing is said. Chosen by what kernels are
# sensitive to: whether rows begin at multiples of 16 bytes, which way a matrix lies, whether a convolution has groups.
# Weights that predict left-out points of a calibration best were tried, and predicted networks worse: points are spread
# evenly over all sizes, layers are not.
_STREAMED = ("plain", "copy", "cast", "math", "broadcast", "mixed", "dropout", "strided")
WEIGHTS: dict[str, dict[str, float]] = {
    "gemm": {"bias": 0.7, "rows_aligned": 2, "n_aligned": 2, "batched": 2, "vector": 2, "whole": 0.3},
    "conv": {"m": 0.7, "groups": 1.2, "window": 1.0, "stride": 1.5, "side": 1.2, "depthwise": 8, "grouped": 4,
             "colours": 4, "c_aligned": 0.3, "k_aligned": 0.3, "whole": 0.3, "oblong": 0.5, "c_whole": 1.5,
             "k_whole": 1.5, "channels_last": 8, "pixels_whole": 1.5, "out_pixels_whole": 1.5, "one_pixel": 8,
             "width_aligned": 1.5},
    "attention": {"length_q": 1.2, "length_kv": 1.2, "head_dim": 1.5, "bias": 1.5, "shared": 0.5, "aligned": 0.2},
    "batch-norm": {"channels_last": 2},
    **{family: {"channels_last": 2} for family in FAMILIES if "-pool" in family},
    **{
        family: {"innermost": 3, "aligned": 0.7, "to_one": 2}
        for family in ("reduce", "reduce-norm", "reduce-index", "scan")
    },
    **{family: {"density": 1.5} for family in _STREAMED},
    **{family: {"density": 1.5, "tensors": 0.7} for family in ("foreach", "fused-sgd", "fused-adam")},
    "cat": {"density": 1.5, "tensors": 0.7, "run": 0.7, "contiguous": 8},
}  # fmt: skip


def _log(values: Array) -> Array:
    return np.log2(np.maximum(values, 1.0))


def _alignment(values: Array, most: int = 8) -> Array:
    """How often a size halves evenly: kernels load 16 bytes at a time only where rows begin at multiples of 16."""
    halvings = np.zeros(len(values))
    for power in (2, 4, 8, 16, 32, 64, 128, 256):
        if power <= most:
            halvings += (values % power) == 0
    return halvings


def _least(sides: Iterable[Array]) -> Array:
    """Tiles are whole where all sides are."""
    least: Array = np.minimum.reduce(list(sides))
    return least


def _gemm(c: dict[str, Array]) -> dict[str, Array]:
    a_row, b_row = np.where(c["a_transposed"] > 0, c["m"], c["k"]), np.where(c["b_transposed"] > 0, c["k"], c["n"])
    return {
        **{size: _log(c[size]) for size in ("m", "n", "k", "batch")},
        **{name: c[name] for name in ("a_transposed", "b_transposed", "bias")},
        "rows_aligned": np.minimum(_alignment(a_row), _alignment(b_row)),
        "n_aligned": _alignment(c["n"]),
        "batched": c["batch"] > 1,
        "vector": np.minimum(c["m"], c["n"]) == 1,
        "whole": _least(_alignment(c[side], 128) for side in ("m", "n", "k")),
    }


def _convolution(family: str, c: dict[str, Array], precision: str) -> dict[str, Array]:
    m, n, k = convolution_product(family, c)
    pixels = 4 if itemsize(precision) == 4 else 8  # of 16 bytes
    depthwise = (c["groups"] > 1) & (c["groups"] >= c["c"])
    return {
        "m": _log(m),
        "n": _log(n),
        "k": _log(k),
        "groups": _log(c["groups"]),
        "window": _log(c["r"] * c["s"]),
        "stride": _log(c["stride"]),
        "side": _log(c["p"]),
        "depthwise": depthwise,
        "grouped": (c["groups"] > 1) & ~depthwise,
        "colours": c["c"] < 8,
        "c_aligned": _alignment(c["c"], 256),
        "k_aligned": _alignment(c["k"], 256),
        "oblong": c["r"] != c["s"],
        "whole": _least(_alignment(c[side], 256) for side in ("c", "k")),
        "c_whole": c["c"] % pixels == 0,
        "k_whole": c["k"] % pixels == 0,
        "channels_last": c["channels_last"],
        "pixels_whole": c["h"] * c["w"] % pixels == 0,
        "out_pixels_whole": c["p"] * c["q"] % pixels == 0,
        "one_pixel": c["h"] * c["w"] == 1,
        "width_aligned": np.where(c["groups"] > 1, _alignment(c["c"] / c["groups"], 64), 0.0),
    }


def _attention(c: dict[str, Array]) -> dict[str, Array]:
    return {
        "heads": _log(c["batch"] * c["heads"]),
        **{size: _log(c[size]) for size in ("length_q", "length_kv", "head_dim")},
        **{name: c[name] for name in ("causal", "bias")},
        "shared": _log(c["heads"] / c["heads_kv"]),
        "aligned": _alignment(c["length_q"], 64),
    }


def _decode(c: dict[str, Array]) -> dict[str, Array]:
    return {
        "heads": _log(c["batch"] * c["heads_kv"]),
        "length_kv": _log(c["length_kv"]),
        "head_dim": _log(c["head_dim"]),
        "bias": c["bias"],
        "shared": _log(c["heads"] / c["heads_kv"]),
    }


def _elements(family: str, c: dict[str, Array]) -> dict[str, Array]:
    density = (c["bytes_read"] + c["bytes_written"]) / c["elements"]
    named = {"elements": _log(c["elements"]), "density": np.log2(np.maximum(density, 0.5))}
    if "run" in c:
        named["run"] = np.minimum(_log(c["run"]), 8.0 if family == "strided" else 17.0)
    if "tensors" in c:
        named["tensors"] = _log(c["tensors"])
    if "largest" in c:
        named |= {"uneven": _log(c["largest"] * c["tensors"] / c["elements"]), "contiguous": c["contiguous"]}
    if family == "dropout":
        named["aligned"] = _alignment(c["elements"], 4)
    return named


def _others(family: str, c: dict[str, Array]) -> dict[str, Array]:
    if "reduced" in c:
        row = np.where(c["innermost"] > 0, c["reduced"], c["kept"])
        return {
            "kept": _log(c["kept"]),
            "reduced": _log(c["reduced"]),
            "innermost": c["innermost"],
            "aligned": _alignment(row),
            "to_one": c["kept"] == 1,
        }
    named = {name: c[name] if name == "channels_last" else _log(c[name]) for name in FAMILIES[family]}
    if "columns" in c:
        named["aligned"] = _alignment(c["columns"])
    return named


def coordinates(family: str, precision: str, numbers: Array) -> dict[str, Array]:
    """The coordinates of every task by name, none weighted yet."""
    c = columns(family, numbers)
    if family == "gemm":
        return _gemm(c)
    if convolves(family):
        return _convolution(family, c, precision)
    if family.startswith("attention-"):
        return _decode(c) if family.endswith("-decode") else _attention(c)
    return _elements(family, c) if "bytes_read" in c else _others(family, c)


def group(family: str) -> str:
    """Families whose coordinates count alike."""
    if convolves(family):
        return "conv"
    return next((name for name in ("attention", "batch-norm") if family.startswith(f"{name}-")), family)


def features(family: str, precision: str, numbers: Array) -> Array:
    """One row a task, one column a coordinate."""
    weights = WEIGHTS.get(group(family), {})
    named = coordinates(family, precision, numbers).items()
    return np.stack([weights.get(name, 1.0) * np.asarray(column, dtype=np.float64) for name, column in named], axis=1)
