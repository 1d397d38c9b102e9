"""What an op's own work takes on a CPU, one limit after the other: all cores at their peak first, then with fewer
threads, at the speed that lasts, with blocks that are not full, narrower vectors, from a slower level of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from rooflight.analysis.cpu_locality import LOOK_UPS, TouchedTensor
from rooflight.hardware.roofs import Demand
from rooflight.ledger import Kernel, Op
from rooflight.machine.rates import BATCHED, CLOCK, CONVOLUTION, ELEMENT, PRODUCT, SPEED, CpuRates, name_of
from rooflight.ops.primitive_names import UNVECTORED, Primitive, primitive_of

ROOF = "least time by the roofs"
THREADS = "fewer threads than cores"
SUSTAINED = "sustained below the peak"
PADDED = "channels of blocks that are not full"
NARROW = "narrow vectors"
ALONE = "one thread"
FAR = "from a slower level of memory"
ELEMENTS = "instructions of the op"
PACKED = "operands packed"
BATCH = "products in a batch"
UNFOLDED = "input unfolded for a product"

GRAIN = 32_768
"""Elements below which torch leaves an op to one thread (`at::internal::GRAIN_SIZE`)."""
_BATCHES = ("aten::bmm", "aten::baddbmm")


class CpuStage(NamedTuple):
    """The time with one limit more than before."""

    name: str
    seconds: float
    evidence: str = ""


@dataclass(frozen=True)
class _CpuLimits:
    """How the work runs, by the limits that were looked at so far."""

    flops: float
    flops_per_s: float
    memory_s: float
    element_s: float = 0.0
    more_s: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.flops / self.flops_per_s, self.memory_s, self.element_s) + self.more_s


class CpuWork:
    """An op's work on a processor."""

    def __init__(self, op: Op, demand: Demand, primitives: Sequence[Kernel], rates: CpuRates) -> None:
        self._op, self._demand, self._rates = op, demand, rates
        read = [primitive_of(kernel.name, kernel.label) for kernel in primitives]
        self._primitives = [primitive for primitive in read if primitive is not None and primitive.kind != "reorder"]
        self._is_one = rates.threads == 1 or (not demand.matrix_flops and self._elements <= GRAIN)
        self._limits = _CpuLimits(0.0, 1.0, 0.0)
        self._stages: list[CpuStage] = []

    def stages(self, touched: Sequence[TouchedTensor], workspace: float = 0.0) -> list[CpuStage]:
        """The first is the least time; empty where the processor's speed in that precision was not timed."""
        demand, rates = self._demand, self._rates
        bandwidth, roof = self._bandwidth(demand.bytes, one=False), rates.roof(demand.precision)
        if bandwidth is None or (demand.matrix_flops and roof is None):
            return []
        self._limits = _CpuLimits(demand.matrix_flops, roof or 1.0, demand.bytes / bandwidth)
        self._stages = [CpuStage(ROOF, self._limits.seconds)]
        if demand.matrix_flops:
            self._limit_threads()
            self._limit_speed()
            for primitive in self._primitives:
                self._limit_primitive(primitive)
            evidence = "a product copies its larger operand into the order of its inner loop"
            self._limit(PACKED, evidence, more_s=self._packing_s)
            self._limit_workspace(workspace)
        self._limit_memory(touched)
        if not demand.matrix_flops:
            self._limit_elements()
        return self._stages

    def _limit(self, name: str, evidence: str, **limits: float) -> None:
        self._limits = replace(self._limits, **limits)
        self._stages.append(CpuStage(name, self._limits.seconds, evidence))

    # --- matrix work ---

    def _limit_threads(self) -> None:
        threads, cores = self._rates.threads, self._rates.cores
        if threads < cores:
            speed = self._limits.flops_per_s * threads / cores
            self._limit(THREADS, f"{threads} on {cores:g} cores", flops_per_s=speed)

    def _limit_speed(self) -> None:
        rates, precision = self._rates, self._demand.precision
        lasting = self._lasting(CONVOLUTION if self._convolves else PRODUCT)
        if lasting is not None and lasting < self._limits.flops_per_s:
            clock = rates.of(CLOCK)
            told = "" if clock is None else f"; the peak is told for {clock / 1e6:,.0f} MHz"
            what = "convolution" if self._convolves else "product"
            evidence = f"the best {what} reaches {lasting / 1e9:,.0f} GFLOP/s{told}"
            self._limit(SUSTAINED, evidence, flops_per_s=lasting)
        batched = rates.product(precision, kind=BATCHED)
        if batched is not None and batched < self._limits.flops_per_s and self._op.packet in _BATCHES:
            evidence = f"several products in one call reach {batched / 1e9:,.0f} GFLOP/s"
            self._limit(BATCH, evidence, flops_per_s=batched)

    @property
    def _convolves(self) -> bool:
        """Does oneDNN compute a convolution?"""
        return any(primitive.kind == "convolution" for primitive in self._primitives)

    def _lasting(self, kind: str) -> float | None:
        """FLOP/s in a precision, where they were timed; a convolution's are no less than a product's."""
        rates = (self._rates.product(self._demand.precision, kind=kind) for kind in {kind, PRODUCT})
        return max(filter(None, rates), default=None)

    def _limit_primitive(self, primitive: Primitive) -> None:
        padded, useful = primitive.padded, primitive.useful_flops
        if padded > 1 and useful is not None:
            evidence = f"{primitive.channels} in {primitive.formats}: {padded:.3g} times the work"
            self._limit(PADDED, evidence, flops=self._limits.flops + useful * (padded - 1))
        kind = primitive.instructions
        speed = None if kind is None else self._rates.of(f"{SPEED}.{kind}")
        if speed is not None and speed < 1:
            what = "no vectors" if kind == UNVECTORED else f"{kind} instructions"
            evidence = f"{primitive.implementation}: {what}, {speed:.3g} of the peak"
            self._limit(NARROW, evidence, flops_per_s=self._limits.flops_per_s * speed)

    @property
    def _packing_s(self) -> float:
        """oneDNN says what it reorders; other libraries do it inside, when there is more than one row to gain by it."""
        if self._primitives or not self._is_product:
            return 0.0
        operands = sorted(self._op.inputs, key=lambda tensor: tensor.numel)[-2:]
        rows = min((size for tensor in operands for size in tensor.shape[-2:]), default=1)
        largest = operands[-1].nbytes
        bandwidth = self._rates.bandwidth(2 * largest)
        return 2 * largest / bandwidth if rows > 1 and bandwidth else 0.0

    def _limit_workspace(self, workspace: float) -> None:
        """torch's own convolution writes every window of the input side by side, and multiplies that."""
        bandwidth = self._rates.bandwidth(workspace, one=self._is_one)
        if self._op.packet == "aten::convolution" and not self._primitives and workspace and bandwidth:
            evidence = f"a workspace of {workspace:,.0f} bytes, written and read: no primitive of oneDNN ran"
            self._limit(UNFOLDED, evidence, more_s=self._limits.more_s + 2 * workspace / bandwidth)

    @property
    def _is_product(self) -> bool:
        return self._op.packet in ("aten::mm", "aten::addmm", *_BATCHES)

    # --- elements ---

    @cached_property
    def _elements(self) -> int:
        tensors = self._op.outputs if self._op.packet in LOOK_UPS else (*self._op.inputs, *self._op.outputs)
        windows = self._windowed
        return windows if windows is not None else max((tensor.numel for tensor in tensors), default=0)

    @property
    def _windowed(self) -> int | None:
        """Elements that the windows of a pooling layer hold in all, those beyond the border left out."""
        op = self._op
        if "pool2d" not in op.packet or "backward" in op.packet or not op.has("kernel_size") or not op.outputs:
            return None
        kernel = op.ints("kernel_size")
        stride, padding = op.ints("stride") or kernel, op.ints("padding", (0,))
        counts: list[int] = [
            sum(min(at * s - p + k, size) - max(at * s - p, 0) for at in range(places))
            for k, s, p, size, places in zip(
                *(given * 2 if len(given) == 1 else given for given in (kernel, stride, padding)),
                op.tensor("self").shape[-2:],
                op.outputs[0].shape[-2:],
                strict=True,
            )
        ]
        images = math.prod(op.outputs[0].shape[:-2])
        return images * counts[0] * counts[1]

    def _limit_elements(self) -> None:
        each = self._rates.of(f"{ELEMENT}.{name_of(self._op)}", one=True)
        if each is None:
            return
        threads = 1 if self._is_one else self._rates.threads
        evidence = f"{self._elements:,} elements of {each * 1e9:.2g} ns, as {self._op.packet} takes in the cache"
        evidence += f", by {threads} threads" if threads > 1 else ""
        self._limit(ELEMENTS, evidence, element_s=self._elements * each / threads)

    # --- memory ---

    def _bandwidth(self, touched: float, *, one: bool = True) -> float | None:
        return self._rates.bandwidth(touched, one=one and self._is_one, in_place=bool(self._op.mutates))

    def _limit_memory(self, touched: Sequence[TouchedTensor]) -> None:
        demand = self._demand
        if self._is_one and self._rates.threads > 1:
            alone = self._bandwidth(demand.bytes)
            evidence = f"{self._elements:,} elements, no more than {GRAIN:,}: torch does not split them"
            self._limit(ALONE, evidence, memory_s=demand.bytes / alone if alone else self._limits.memory_s)
        if not touched:
            return
        rates = [self._bandwidth(max(tensor.since, demand.bytes)) for tensor in touched]
        # In place, a tensor is read and written.
        part = demand.bytes / max(sum(tensor.nbytes for tensor in touched), 1)
        seconds = part * math.fsum(tensor.nbytes / rate for tensor, rate in zip(touched, rates, strict=True) if rate)
        farthest = max(touched, key=lambda tensor: tensor.since)
        evidence = f"{farthest.nbytes:,} bytes that were last touched {farthest.since:,} bytes ago"
        self._limit(FAR, evidence, memory_s=max(seconds, self._limits.memory_s))
