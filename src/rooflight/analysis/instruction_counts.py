"""How many FLOPs the CUDA cores execute in kernels without matrix work: as counted for the same kernel of a single op.

An exponential is a dozen instructions, a layer norm thirty for every value: no formula of the mathematics says so, and
compilers decide it. So the kernels of single ops were counted on a GPU (benchmarks/h200/instructions.py;
`benchmarks/instructions.py` makes the table of it). A kernel of the same name executes so much for each value that it
goes over and so much for each of its threads: between two counts of one name, by the threads for each value, everything
else lies on a line. Where no count is near, the lowest of the kernel's family is taken, or nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec

from rooflight.files import read_bytes
from rooflight.ledger import Kernel, Op, Tensor
from rooflight.metrics import CUDA_FLOPS
from rooflight.ops.attention_tiles import attention_shape, executed_blocks
from rooflight.ops.direct_convolutions import is_direct, taps_of_pool
from rooflight.ops.kernel_names import short_name

FOLDER = Path(__file__).parent / "counted"
_FLAGS = ("exponent", "approximate", "count_include_pad")
"""Arguments that change what a kernel of the same name does."""
_NEAR = 1.1
"""Work for each value that differs by less is the same."""
_A_THREAD = 512
"""FLOPs of a thread beside those for its values: hardly any counted kernel has more."""


class CountedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Counts of one kernel."""

    name: str
    flags: str
    unit: str
    """As `cuda_flops_fp32`. Steps in fp32 are measured without the 16-bit counters, which compilers' copies of
    constants move too: both are kept apart."""
    points: tuple[tuple[float, float], ...]
    """Work for each value (threads, or taps of a pool), and FLOPs for each value, by the former."""


class InstructionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was counted on one device, with what."""

    device: str
    torch: str
    kernels: tuple[CountedKernel, ...]


_INTO_ZEROS = frozenset({"aten::slice_backward", "aten::select_backward"})
"""Fill their result, which is larger than what they copy into it."""


@dataclass(frozen=True)
class Told:
    flops: float
    like: str
    """What was counted, in words."""


class Instructions:
    """Counted kernels of one device, ready to be asked."""

    def __init__(self, table: InstructionTable) -> None:
        self.device = table.device
        self._known = {(kernel.name, kernel.flags, kernel.unit): kernel.points for kernel in table.kernels}
        self._families: dict[tuple[str, str, str], float] = defaultdict(lambda: math.inf)
        self._slopes: dict[tuple[str, str, str], float] = {}
        for kernel in table.kernels:
            key = _family(kernel.name), kernel.flags, kernel.unit
            for known in (key, (kernel.name, "", kernel.unit)):  # with these flags, and the same kernel with any
                self._families[known] = min(self._families[known], *(count for _, count in kernel.points))
            if len(kernel.points) > 1:
                self._slopes[key] = max(self._slopes.get(key, 0.0), _slope(kernel.points))

    def of(self, op: Op, kernel: Kernel, units: Iterable[str] = CUDA_FLOPS, count: float | None = None) -> Told | None:
        """`units`: those that were counted. `count`: values it goes over, if not those of the op. `None` where no such
        kernel was counted near it."""
        values = values_of(op, kernel) if count is None else count
        if not values:
            return None
        name, flags = signature(op, kernel)
        known = {unit: points for unit in units if (points := self._known.get((name, flags, unit)))}
        if known:
            place = work(op, kernel) / values
            sure = math.fsum(_between(points, place, self._slope(name, flags, unit)) for unit, points in known.items())
            return Told(
                sure * values, f"{sure:.3g} for each of {values:,.0f}, as counted on {self.device}: {name[:60]}"
            )
        lowest = [self._families[key] for unit in units if (key := (name, "", unit)) in self._families] or [
            self._families[key] for unit in units if (key := (_family(name), flags, unit)) in self._families
        ]
        if not lowest or "elementwise" not in name:
            return None
        least = math.fsum(lowest)
        return Told(
            least * values, f"at least {least:.3g} for each of {values:,.0f}, as in such kernels on {self.device}"
        )

    def _slope(self, name: str, flags: str, unit: str) -> float:
        """FLOPs of a thread more, at most. A thread of an elementwise kernel goes over few values: fewer threads than
        were counted for a value are of a kernel that has fewer values."""
        return math.inf if "elementwise" in name else self._slopes.get((_family(name), flags, unit), _A_THREAD)


def _between(points: Sequence[tuple[float, float]], place: float, steepest: float) -> float:
    """On the line between two counts, or at the lowest of those next to it, where they differ for other reasons.
    Outside of all what it is at least: more work is more FLOPs, and less than none for a value there is not."""
    (first, least), (last, most) = points[0], points[-1]
    if place >= last:
        return most
    if place < first:
        slopes = [(count - least) / (x - first) for x, count in (*points[1:2], *points[1:][-1:])]
        slope = max(0.0, *slopes) if slopes and math.isfinite(steepest) else steepest
        return max(least - slope * (first - place), least * place / first)
    after = bisect_left(points, (place, 0.0), lo=1)
    (x0, y0), (x1, y1) = points[after - 1 : after + 1]
    near = [count for x, count in points if place / _NEAR <= x <= place * _NEAR]
    return min(max(y0 + (y1 - y0) * (place - x0) / (x1 - x0), 0.0), *near, math.inf)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The steepest from one count to the next."""
    return max(((b - a) / (y - x) for (x, a), (y, b) in pairwise(points)), default=0.0)


def signature(op: Op, kernel: Kernel) -> tuple[str, str]:
    """The kernel's name, and what else decides how much it executes for each value."""
    name = re.sub(r"\b(?:Half|__half)\b", "BFloat16", short_name(kernel.name))
    if op.packet.startswith("aten::convolution"):
        flags = [f"{op.tensor('weight').shape[0] // op.ints('groups', [1])[0]} times"] if is_direct(kernel) else []
    elif op.has("query"):
        causal, dropout = bool(op.args.get("is_causal")), bool(op.args.get("dropout_p"))
        wide = f"{op.tensor('query').shape[-1]} wide{' causal' * causal}{' dropout' * dropout}"
        flags = [wide] if executes_blocks(op, kernel) else []
    else:
        flags = [f"{flag}={op.args[flag]}" for flag in _FLAGS if op.args.get(flag) is not None]
        if op.packet == "aten::avg_pool2d_backward":
            flags.append(f"{op.ints('kernel_size', [])} {op.ints('stride', [])}")
    if "reduce_kernel" in name:
        flags += [str(kernel.block), _reduced(op, _blocks(kernel))]
        flags += ["in parts"] if kernel.grid is not None and kernel.grid[1] > 1 else []
    elif "elementwise_kernel<" in name and "vectorized" not in name:
        flags.append(f"{_dimensions(op)}d")
    return name, " ".join(flags)


def _dimensions(op: Op) -> int:
    """Over which an elementwise op has to index: those that lie one after the other in all operands are one."""
    shape = op.outputs[0].shape if op.outputs else ()
    if op.packet.startswith("aten::convolution"):  # a bias for every channel
        images, channels, *sides = shape
        rest = (images * math.prod(sides),) if op.outputs[0].channels_last else (images, math.prod(sides))
        return sum(size > 1 for size in (channels, *rest))
    held = [tensor for tensor in (*op.inputs, *op.outputs[:1]) if tensor.numel > 1 and len(tensor.shape) <= len(shape)]
    steps = [_steps(tensor, shape) for tensor in held]
    kept: list[tuple[int, tuple[int, ...]]] = []
    for size, *along in sorted(zip(shape, *steps, strict=True), key=lambda one: [-step for step in one[:0:-1]]):
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1][1], along, strict=True)):
            kept.pop()
        kept.append((size, tuple(along)))
    return len(kept)


def _steps(tensor: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Values from one place to the next in every dimension of a shape, 0 where it is broadcast."""
    strides = tensor.strides
    if strides is None:
        strides = tuple(math.prod(tensor.shape[place + 1 :]) for place in range(len(tensor.shape)))
    own = [0 if size == 1 else step for size, step in zip(tensor.shape, strides, strict=True)]
    return (0,) * (len(shape) - len(own)) + tuple(own)


def _reduced(op: Op, blocks: int) -> str:
    """Which way a reduction goes over memory, and whether every result has blocks of its own."""
    if op.packet == "aten::convolution_backward":  # the bias's gradient
        source, dims, results = op.tensor("grad_output"), [0, 2, 3, 4], op.tensor("grad_output").shape[1]
        dims = dims[: len(source.shape) - 1]
    else:
        source, dims, results = next(op.inputs), list(op.ints("dim", [])), op.outputs[0].numel
    order = len(source.shape)
    gone = {dim % order for dim in dims} if dims and order else set(range(order))
    places = [dim for dim in range(order) if source.shape[dim] > 1]
    order, kept = len(places), [place for place, dim in enumerate(places) if dim not in gone]
    if source.strides is not None:
        way = "strided"
    elif not kept:
        way = "all"
    elif kept == list(range(len(kept))):
        way = "along"
    else:
        way = "across" if kept == list(range(order - len(kept), order)) else "both"
    return way + (" apart" if blocks >= results else " together")


def _family(name: str) -> str:
    """In vectors of two or of eight, in blocks of one size or another: the arithmetic is much the same."""
    return re.sub(r"\d+", "", name)


def _blocks(kernel: Kernel) -> int:
    return math.prod(kernel.grid or (1,))


def threads(kernel: Kernel) -> int:
    return _blocks(kernel) * math.prod(kernel.block or (1,))


def work(op: Op, kernel: Kernel) -> int:
    """What FLOPs grow with beside the values: taps of a pool that lie inside the image, queries of an attention, else
    threads."""
    shape = attention_shape(op)
    if shape is not None and executes_blocks(op, kernel):
        return shape.matrices * shape.queries
    return taps_of_pool(op) if _is_pool(op) and "pool" in kernel.name else threads(kernel)


def executes_blocks(op: Op, kernel: Kernel) -> bool:
    """Is it the kernel of an attention?"""
    shape = attention_shape(op)
    return shape is not None and executed_blocks(kernel.name, shape) is not None


def _is_pool(op: Op) -> bool:
    return "avg_pool2d" in op.packet


def values_of(op: Op, kernel: Kernel) -> int:
    """Values that a kernel goes over: of the largest tensor; of all that a list holds; of an attention the scores of
    its blocks, full or not; of a pool its results; of what is copied into zeros only that."""
    shape = attention_shape(op)
    if shape is not None:
        blocks = executed_blocks(kernel.name, shape)
        return blocks.scores if blocks is not None else op.tensor("query").numel if op.has("query") else 0
    if op.packet.startswith("aten::_foreach"):
        return sum(tensor.numel for tensor in op.tensors("self"))
    if _is_pool(op):
        return op.outputs[0].numel
    if op.packet in _INTO_ZEROS and "FillFunctor" not in kernel.name:
        return next(op.inputs).numel
    return max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)


@lru_cache(maxsize=4)
def instructions(device: str | None) -> Instructions | None:
    """Of this device; `None` where nobody counted."""
    path = FOLDER / f"{device}.json.gz"
    if device is None or not path.is_file():
        return None
    return Instructions(msgspec.json.decode(read_bytes(path, what="table of counted kernels"), type=InstructionTable))
