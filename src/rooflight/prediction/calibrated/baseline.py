"""What a task would take by tiles, waves and bandwidth alone, in seconds: the shape that measured efficiencies bend.

Everything is vectorised: `numbers` holds one task a row, in the order that `hardware.tasks.FAMILIES` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.ops.kernel_task import FAMILIES, OUTPUT, convolves, itemsize, with_output
from rooflight.step.cache_reuse import Array

LAUNCH_S = 1.5e-6
"""The shortest kernels take about this long on every GPU of the last ten years."""

# Rows and columns of the output that one block of threads makes, and how well such a block keeps its unit busy.
_TILES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.9),
    (128, 64, 0.75),
    (64, 128, 0.75),
    (64, 64, 0.6),
    (32, 32, 0.3),
)
_SPLITS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Speed:
    """What the baseline must know of a device."""

    units: float
    """SMs, compute units or cores."""
    bandwidth: float
    """Bytes a second of the large memory."""
    cache_bandwidth: float
    cache_bytes: float
    peaks: dict[str, float]
    """Matrix FLOP/s by precision."""
    clock_hz: float

    def peak(self, precision: str) -> float:
        return self.peaks.get(precision) or self.peaks["fp32"]


def columns(family: str, numbers: Array) -> dict[str, Array]:
    names = FAMILIES[family]
    if convolves(family):
        names, numbers = (*names, *OUTPUT), with_output(numbers)
    return {name: numbers[:, place] for place, name in enumerate(names)}


def product_seconds(m: Array, n: Array, k: Array, batch: Array, peak: float, units: float) -> Array:
    """The fastest of several tilings: whole waves of tiles over all units, the depth split where tiles are few."""
    best = np.full(len(m), np.inf)
    for rows, cols, busy in _TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / cols) * batch
        for split in _SPLITS:
            waves = np.ceil(tiles * split / units)
            depth = np.ceil(k / split / 32) * 32
            seconds = waves * 2 * rows * cols * depth * units / (peak * busy)
            if split > 1:
                seconds = seconds + LAUNCH_S
            best = np.minimum(best, seconds)
    # Real kernels are not as sensitive to whole tiles as this: they choose among more tilings, and share tiles.
    even = 2 * m * n * k * batch / peak
    return best**_QUANTISED * even ** (1 - _QUANTISED)


_QUANTISED = 0.3


def memory_seconds(nbytes: Array, speed: Speed) -> Array:
    """Bytes that fit the cache move at its speed, others at that of the memory."""
    share = np.clip(speed.cache_bytes / np.maximum(nbytes, 1.0), 0.0, 1.0) ** 2
    return nbytes * (share / speed.cache_bandwidth + (1 - share) / speed.bandwidth)


def _gemm(c: dict[str, Array], precision: str, speed: Speed) -> Array:
    compute = product_seconds(c["m"], c["n"], c["k"], c["batch"], speed.peak(precision), speed.units)
    return np.maximum(compute, memory_seconds(_product_bytes(c, precision), speed))


def _product_bytes(c: dict[str, Array], precision: str) -> Array:
    return c["batch"] * (c["m"] * c["k"] + c["k"] * c["n"] + c["m"] * c["n"]) * itemsize(precision)


def convolution_product(family: str, c: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Rows, columns and depth of the matrix product that a convolution is, for one group."""
    pixels, inputs = c["n"] * c["p"] * c["q"], c["c"] / c["groups"]
    outputs, window = c["k"] / c["groups"], c["r"] * c["s"]
    if family.endswith("-forward"):
        return pixels, outputs, inputs * window
    if family.endswith("-dgrad"):
        # Of the taps, an input meets on the average as many as there are outputs for each input.
        met = np.maximum(1.0, window * c["p"] * c["q"] / (c["h"] * c["w"]))
        return c["n"] * c["h"] * c["w"], inputs, outputs * met
    return outputs, inputs * window, pixels


def convolution_bytes(c: dict[str, Array], precision: str) -> Array:
    size = itemsize(precision)
    x, y = c["n"] * c["c"] * c["h"] * c["w"] * size, c["n"] * c["k"] * c["p"] * c["q"] * size
    weight = c["k"] * c["c"] / c["groups"] * c["r"] * c["s"] * size
    return x + y + weight


def relaid_bytes(c: dict[str, Array], precision: str) -> Array:
    """What is moved to lay images out as tensor cores want them, and back."""
    stays = (c["channels_last"] > 0) | (precision == "fp32") | is_thin(c)
    return np.where(stays, 0.0, 2 * convolution_bytes(c, precision))


def is_thin(c: dict[str, Array]) -> npt.NDArray[np.bool_]:
    """Groups of a few channels, as of depthwise convolutions."""
    thin: npt.NDArray[np.bool_] = c["groups"] >= c["c"] / 4
    return thin


def _convolution(family: str) -> Callable[[dict[str, Array], str, Speed], Array]:
    def seconds(c: dict[str, Array], precision: str, speed: Speed) -> Array:
        m, n, k = convolution_product(family, c)
        compute = product_seconds(m, n, k, c["groups"], speed.peak(precision), speed.units)
        # Thin groups do not run as products: each output is summed on its own, bound by the other units.
        thin = 2 * m * n * k * c["groups"] / (speed.peak("fp32") * 0.2)
        compute = np.where(is_thin(c), thin, compute)
        nbytes, relaid = convolution_bytes(c, precision), relaid_bytes(c, precision)
        return np.maximum(compute, memory_seconds(nbytes, speed)) + memory_seconds(relaid, speed)

    return seconds


def is_matrix_work(family: str) -> bool:
    return family in _MATRIX


def matrix_flops(family: str, c: dict[str, Array]) -> Array | None:
    """Useful FLOPs of matrix work; `None` for other tasks."""
    if family == "gemm":
        return 2 * c["batch"] * c["m"] * c["n"] * c["k"]
    if convolves(family):
        m, n, k = convolution_product("conv-forward", c)  # its gradients take as many
        return 2 * m * n * k * c["groups"]
    if family.startswith("recurrent-"):
        return (2 if family.endswith("backward") else 1) * 2 * c["steps"] * c["samples"] * _recurrent_weights(c)
    if family.startswith("attention-"):
        # Backward is twice the forward; what it recomputes is not counted. Of a causal matrix half is.
        if family.endswith("decode"):
            return 4 * c["batch"] * c["heads"] * c["length_kv"] * c["head_dim"]
        pairs = c["length_q"] * c["length_kv"] * np.where(c["causal"] > 0, 0.5, 1.0)
        return (8 if family.endswith("backward") else 4) * c["batch"] * c["heads"] * pairs * c["head_dim"]
    return None


def least_seconds(family: str, precision: str, numbers: Array, speed: Speed) -> Array:
    """What matrix work takes at the peak: no efficiency is above 1."""
    flops = matrix_flops(family, columns(family, numbers))
    return np.zeros(len(numbers)) if flops is None else flops / speed.peak(precision)


def _attention(factor: float) -> Callable[[dict[str, Array], str, Speed], Array]:
    def seconds(c: dict[str, Array], precision: str, speed: Speed) -> Array:
        pairs = c["length_q"] * c["length_kv"] * np.where(c["causal"] > 0, 0.5, 1.0)
        flops = factor * 4 * c["batch"] * c["heads"] * pairs * c["head_dim"]
        blocks = np.ceil(c["length_q"] / 128) * c["batch"] * c["heads"]
        filled = blocks / (np.ceil(blocks / speed.units) * speed.units)
        nbytes = factor * _attention_bytes(c, precision)
        return np.maximum(flops / (0.7 * speed.peak(precision) * filled), memory_seconds(nbytes, speed))

    return seconds


def _attention_bytes(c: dict[str, Array], precision: str) -> Array:
    """Queries and results, keys and values: against a cache of keys the latter are nearly all there is."""
    rows = c["heads"] * c.get("length_q", 1.0) + c["heads_kv"] * c["length_kv"]
    return 2 * c["batch"] * rows * c["head_dim"] * itemsize(precision)


def moved_bytes(family: str, precision: str, numbers: Array) -> Array:
    """All that a task reads and writes, what it lays out anew among it."""
    c = columns(family, numbers)
    if family == "gemm":
        return _product_bytes(c, precision)
    if convolves(family):
        return convolution_bytes(c, precision) + relaid_bytes(c, precision)
    if family.startswith("attention-"):
        return (_BACKWARD_BYTES if family.endswith("backward") else 1.0) * _attention_bytes(c, precision)
    return task_bytes(family, c, precision)


_SERIAL = 0.28
"""Of the clock: numbers of a key that one block of threads of fp32 attention gets through in a second."""


def _decode(c: dict[str, Array], precision: str, speed: Speed) -> Array:
    """Keys and values over the bandwidth of the memory: each is read once a step, and no cache keeps them until then.
    Several blocks of threads share a head's where heads are few; else a last wave that is not full costs some of a
    whole one. In fp32 nobody shares, and a block goes through all keys of a head of the queries."""
    blocks, moved = c["batch"] * c["heads_kv"], _attention_bytes(c, precision) / speed.bandwidth
    if itemsize(precision) == 2:
        filled = blocks / (np.ceil(blocks / speed.units) * speed.units)
        return moved / np.where(blocks >= speed.units / 2, filled, 1.0) ** _QUANTISED
    waves = np.maximum(1.0, c["batch"] * c["heads"] / (2 * speed.units))
    return np.maximum(moved, waves * c["length_kv"] * c["head_dim"] / (_SERIAL * speed.clock_hz))


def task_bytes(family: str, c: dict[str, Array], precision: str) -> Array:
    """Bytes that a memory-bound task reads and writes."""
    size = itemsize(precision)
    if "bytes_read" in c:
        return c["bytes_read"] + c["bytes_written"]
    if "reduced" in c:
        return (2 if family == "scan" else 1) * c["kept"] * c["reduced"] * size
    if family.startswith("recurrent-"):
        states = c["steps"] * c["samples"] * (c["inputs"] + c["layers"] * c["directions"] * c["hidden"])
        return (states + _recurrent_weights(c)) * size
    if family.startswith("batch-norm"):
        passes = {"train": 3, "eval": 2, "backward": 5}[family.rpartition("-")[2]]
        return passes * c["n"] * c["c"] * c["pixels"] * size
    if "pool" in family:
        inside, outside = c["planes"] * c["h"] * c["w"] * size, c["planes"] * c["out_pixels"] * size
        indices = c["planes"] * c["out_pixels"] * 8 if family.startswith("max") else 0.0
        return inside + outside + indices
    if family == "nll-forward":
        return _SECTOR * c["rows"]
    if family == "gather":
        return (2 * size + _INDEX) * c["rows"] * c["columns"]
    if family == "embedding-backward":
        return (2 * c["rows"] + c["vocabulary"]) * c["columns"] * size
    if "vocabulary" in c:
        # Of the table, only the rows that are added to are read and written.
        places = _INDEX * c["rows"] * c["columns"] if family == "scatter-add" else 0.0
        touched: Array = np.minimum(c["rows"], c["vocabulary"])
        return (c["rows"] + 2 * touched) * c["columns"] * size + places
    passes = {"softmax-backward": 3, "layer-norm-backward": 4, "group-norm-backward": 5}.get(family, 2)
    return passes * c["rows"] * c["columns"] * size


_INDEX = 8
"""Bytes of a place."""
_SECTOR = 40
"""Bytes read for one number of a row: as many as lie together in memory, and the place of that number."""


def usual_kernels(family: str, numbers: Array) -> Array:
    """Where nobody counted them: one, but of a recurrent layer a product and a pointwise one for every step."""
    c = columns(family, numbers)
    if not family.startswith("recurrent-"):
        return np.ones(len(numbers))
    launched: Array = 2 * c["steps"] * c["layers"] * c["directions"]
    return launched


def _recurrent_weights(c: dict[str, Array]) -> Array:
    """Numbers in the weights of all layers: of the inputs, and of the hidden state."""
    below = c["inputs"] + (c["layers"] - 1) * c["hidden"] * c["directions"]
    return c["directions"] * c["gates"] * c["hidden"] * (below + c["layers"] * c["hidden"])


_STEP_S = 2e-6
"""About what one step of one layer takes at least: it waits for the one before it."""


def _recurrent(factor: float) -> Callable[[dict[str, Array], str, Speed], Array]:
    def seconds(c: dict[str, Array], precision: str, speed: Speed) -> Array:
        computed = factor * 2 * c["steps"] * c["samples"] * _recurrent_weights(c) / speed.peak(precision)
        # Weights are read again at every step, mostly from the cache.
        moved = c["steps"] * memory_seconds(_recurrent_weights(c) * itemsize(precision), speed)
        return _STEP_S * c["steps"] * c["layers"] * c["directions"] + factor * moved + 2 * computed

    return seconds


_BACKWARD_BYTES = 2.5
"""Of attention's gradient, in those of attention; its FLOPs too."""

_MATRIX: dict[str, Callable[[dict[str, Array], str, Speed], Array]] = {
    "gemm": _gemm,
    **{family: _convolution(family) for family in FAMILIES if convolves(family)},
    **{
        f"attention-{kernel}-{way}": _attention(factor)
        for kernel in ("cudnn", "flash", "efficient")
        for way, factor in (("forward", 1.0), ("backward", _BACKWARD_BYTES))
    },
    **{f"attention-{kernel}-decode": _decode for kernel in ("cudnn", "flash", "efficient")},
    **{f"recurrent-{way}": _recurrent(factor) for way, factor in (("forward", 1.0), ("backward", 2.0))},
}


def baseline_seconds(family: str, precision: str, numbers: Array, speed: Speed) -> Array:
    c = columns(family, numbers)
    if family in _MATRIX:
        return LAUNCH_S + _MATRIX[family](c, precision, speed)
    seconds = memory_seconds(task_bytes(family, c, precision), speed)
    if family == "batch-norm-native-backward":
        # A block of threads does a whole channel, however few there are.
        of_channel = task_bytes(family, c, precision) / c["c"] / (_OF_UNIT * speed.bandwidth / speed.units)
        seconds = np.maximum(seconds, np.where(c["channels_last"] > 0, 0.0, np.ceil(c["c"] / speed.units) * of_channel))
    if family == "cat":
        seconds = np.maximum(seconds, np.where(c["contiguous"] > 0, 0.0, _looked_up_seconds(c["elements"], speed)))
    if family == "nll-forward":
        seconds = np.maximum(seconds, c["rows"] / (_ROWS_A_CYCLE * speed.clock_hz))
    if family in _ROW_ELEMENTS:
        # A row is one block's: few long rows take as long as one of them, whatever the memory could do.
        seconds = np.maximum(seconds, c["columns"] / (_ROW_ELEMENTS[family] * speed.clock_hz))
    return LAUNCH_S + seconds


_ROWS_A_CYCLE = 0.5
"""Of a likelihood, which one block of threads adds up: the median of the H200's points of more than 4,096 rows."""
_ROW_ELEMENTS = {
    "softmax-forward": 1.9, "softmax-backward": 1.5, "layer-norm-forward": 0.38, "layer-norm-backward": 0.43,
    "group-norm-forward": 0.9, "group-norm-backward": 2.0,
}  # fmt: skip
"""Elements of one row in a cycle: medians of the H200's points of fewer rows than multiprocessors."""


_OF_UNIT = 2.0
"""How many times its share of the bandwidth one unit alone reads."""


def _looked_up_seconds(elements: Array, speed: Speed) -> Array:
    """Where the place of every element is worked out on its own, a unit moves about one a cycle."""
    return elements / (speed.units * speed.clock_hz)
