"""How fast a convolution's kernels do their work: what single ops of random shapes took, by the name of the kernel.

A kernel's blocks each go through a loop of steps. How many, how much they compute and load follows from tile, grid and
shapes; what a step, a round of blocks and the start of the kernel take was learned from single ops
(`benchmarks/kernel_rates.py`), a row for every name without its sizes. What the explained step took is never used.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from rooflight.files import read_bytes
from rooflight.hardware.device import Device
from rooflight.ledger import Kernel, Op, Tensor
from rooflight.ops.kernel_names import KernelRole, short_name
from rooflight.ops.kernel_products import product_of_each
from rooflight.ops.tile_padding import ExecutedTiles, executed_tiles

FOLDER = Path(__file__).parent / "timed"
_PERSISTENT = ("xmma sm90", "nvjet")
"""Families whose blocks stay and take one tile after the other."""
_SHARED_BYTES, _THREADS, _REGISTERS = 227e3, 2048, 65536
"""What a multiprocessor has for the blocks that it runs at once."""
_STAGES = 3
_SIDE_BY_SIDE = 4
"""How limits that are near each other add up: the root of this power of the sum of their powers."""
_WINOGRAD_PIXELS = 4
"""Sides of the tiles that cuDNN's transformed convolutions take apart."""


class KernelRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What single ops took whose kernels have one name."""

    kind: str
    make: str
    """The name without sizes."""
    start_s: float
    """Of a kernel, before and after its loop."""
    busy: float
    """The part of a multiprocessor's peak that its blocks reach with tiles of 128 × 128."""
    l2_bytes_per_s: float
    step_s: float
    """Latency of one step of the loop, however little there is to do in it."""
    dram_bytes_per_s: float
    round_s: float
    """Between two rounds of blocks."""
    larger: float
    """How the busy part grows with the tile: its power."""
    points: int
    """From so many kernels."""


class KernelRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was timed on one device, with which torch."""

    device: str
    torch: str
    rates: tuple[KernelRate, ...]


@dataclass(frozen=True)
class KernelWork:
    """What one kernel has to do, by its name, its grid and the shapes of its op."""

    kind: str
    make: str
    compute_s: float
    """Of the busiest multiprocessor, at the peak of its units."""
    l2_bytes: float
    """That its blocks load, each for itself."""
    steps: float
    """Of the loop, one after the other, over all rounds of blocks."""
    dram_bytes: float
    rounds: int
    tile: float = 16384.0
    """Results of a block."""

    def limits_s(self, rate: KernelRate) -> tuple[float, float, float, float]:
        """Compute, L2, latency, DRAM: what each alone would take."""
        busy = rate.busy * (self.tile / 16384) ** rate.larger
        return (
            self.compute_s / busy,
            self.l2_bytes / rate.l2_bytes_per_s,
            self.steps * rate.step_s,
            self.dram_bytes / rate.dram_bytes_per_s,
        )

    def seconds(self, rate: KernelRate) -> float:
        limits = self.limits_s(rate)
        most = max(limits)
        together: float = most * math.fsum((one / most) ** _SIDE_BY_SIDE for one in limits) ** (1 / _SIDE_BY_SIDE)
        return rate.start_s + together + self.rounds * rate.round_s


@lru_cache(maxsize=8)
def rates_of(device: str) -> dict[tuple[str, str], KernelRate]:
    """By kind and make; empty for a device of which no single ops were timed."""
    path = FOLDER / f"{device}.json.gz"
    if not path.is_file():
        return {}
    table = msgspec.json.decode(read_bytes(path, what="table of timed kernels"), type=KernelRates)
    return {(rate.kind, rate.make): rate for rate in table.rates}


@lru_cache(maxsize=4096)
def make_of(name: str) -> str:
    """`sm80_xmma_fprop_implicit_gemm_tf32f32_..._tilesize128x64x32_...` without its numbers."""
    text = short_name(name)
    if "xmma" in text:
        text = re.sub(r"_?tilesize.*?(?=_g1|_execute|$)", "", text)
    return re.sub(r"\d+", "#", text)[:120]


def is_convolution(op: Op) -> bool:
    return op.packet in ("aten::convolution", "aten::convolution_backward", "aten::cudnn_convolution")


def convolution_works(
    op: Op, kernels: Sequence[Kernel], names: Sequence[KernelRole | None], device: Device
) -> list[KernelWork | None]:
    """Of each kernel of a convolution; `None` where grid or shapes do not tell."""
    if not is_convolution(op):
        return [None] * len(kernels)
    pass_ = _OnePass.of(op, kernels)
    products = product_of_each(op, names)
    works = []
    for kernel, name, product in zip(kernels, names, products, strict=True):
        tiles = executed_tiles(name, kernel.grid, product) if name is not None and product is not None else None
        works.append(pass_.work(kernel, name, tiles, device) if kernel.grid is not None else None)
    return works


@dataclass(frozen=True)
class _OnePass:
    """Forward, or one of the two gradients of a convolution."""

    op: Op
    flops: float
    nbytes: int
    groups: int
    launched: Counter[str]
    """How often each kernel runs: the work is divided among them."""
    winograd: str
    """Names of its transforms, one after the other."""

    @classmethod
    def of(cls, op: Op, kernels: Sequence[Kernel]) -> _OnePass:
        mask = op.args.get("output_mask")
        passes = max(1, sum(map(bool, mask[:2]))) if isinstance(mask, list | tuple) else 1
        tensors = [value for key, value in op.args.items() if key != "bias" and isinstance(value, Tensor)]
        if op.packet != "aten::convolution_backward":
            tensors += op.outputs
        groups = op.args.get("groups", 1)
        cost = op.cost
        return cls(
            op,
            ((cost.flops or 0) if cost is not None else 0) / passes,
            sum(tensor.nbytes for tensor in tensors),
            groups if isinstance(groups, int) else 1,
            Counter(kernel.name for kernel in kernels),
            " ".join(kernel.name for kernel in kernels if "winograd" in kernel.name),
        )

    def work(
        self, kernel: Kernel, name: KernelRole | None, tiles: ExecutedTiles | None, device: Device
    ) -> KernelWork | None:
        if name is not None and name.role == "matrix" and name.tile is not None:
            peak = device.peak(self.op.precision if name.unit == "tensor" else "fp32")
            if peak is None:
                return None
            steps = None if tiles is None or not tiles.blocks else self._tiled(kernel, name, tiles)
            kind = f"{name.family}, {self._grouped}"
            if steps is None and self.winograd and kernel.grid is not None and kernel.grid[2] >= 16:
                steps, kind = self._transformed(kernel, name), f"{name.family}, Winograd"
            if steps is not None:
                return self._of_tiles(kernel, name, steps, kind, peak.value, device)
        return self._plain(kernel, name, device)

    @property
    def _grouped(self) -> str:
        return "groups" if self.groups > 1 else "whole"

    def _tiled(self, kernel: Kernel, name: KernelRole, tiles: ExecutedTiles) -> tuple[float, float, int]:
        """Blocks, steps of each, and how many run at once."""
        assert kernel.grid is not None and name.tile is not None
        same, grid = self.launched[kernel.name], math.prod(kernel.grid)
        blocks, at_once = float(tiles.blocks), 10**9
        if name.family in _PERSISTENT and not name.segmented:
            blocks, at_once = max(1.0, tiles.blocks / same), grid
        elif self.groups > 1 or same > 1 or name.segmented:
            blocks = float(grid)
        return blocks, max(1.0, tiles.flops / same / blocks / (2 * math.prod(name.tile))), at_once

    def _transformed(self, kernel: Kernel, name: KernelRole) -> tuple[float, float, int]:
        """Products of Winograd's transformed tiles: deep where the weight's gradient adds up over all of them."""
        assert kernel.grid is not None and name.tile is not None
        weight = self.op.tensor("weight").shape
        depth = weight[1]
        if "Wgrad" in self.winograd:
            images, _, *sides = self.op.tensor("grad_output").shape
            depth = images * math.prod(math.ceil(side / _WINOGRAD_PIXELS) for side in sides)
        return float(math.prod(kernel.grid)), max(1.0, depth / name.tile[2]), 10**9

    def _of_tiles(
        self, kernel: Kernel, name: KernelRole, steps: tuple[float, float, int], kind: str, peak: float, device: Device
    ) -> KernelWork:
        assert name.tile is not None
        blocks, each, at_once = steps
        rows, columns, depth = name.tile
        size = 2 if self.op.precision in ("bf16", "fp16") else 4
        sms = int(device.sms.value)
        of_one = math.ceil(blocks / min(sms, at_once))
        together = 1 if name.family in _PERSISTENT else _at_once(kernel, name.tile, size)
        rounds = math.ceil(of_one / together)
        return KernelWork(
            f"{kind}, {name.unit} {self.op.precision if name.unit == 'tensor' else 'fp32'}",
            make_of(kernel.name),
            of_one * each * 2 * rows * columns * depth * sms / peak,
            blocks * each * (rows + columns) * depth * size,
            rounds * each,
            _from_dram(self.nbytes),
            rounds,
            float(rows * columns),
        )

    def _plain(self, kernel: Kernel, name: KernelRole | None, device: Device) -> KernelWork:
        """A kernel whose name tells no tile: every thread is taken to do as much as every other."""
        assert kernel.grid is not None
        same, grid = self.launched[kernel.name], math.prod(kernel.grid)
        threads = math.prod(kernel.block) if kernel.block is not None else 256
        sms = int(device.sms.value)
        rounds = math.ceil(grid / (sms * max(1, min(32, _THREADS // threads))))
        flops, nbytes = self.flops / same, self.nbytes / same
        unit = name.unit if name is not None else "cuda"
        peak = device.peak(self.op.precision if unit == "tensor" else "fp32")
        width = 16 if self.op.precision in ("bf16", "fp16") else 32
        role = name.role if name is not None else "unnamed"
        late = math.ceil(grid / sms) * sms / grid
        return KernelWork(
            f"{role}, {self._grouped}, {width} bits",
            make_of(kernel.name),
            flops * late / (peak.value if peak is not None else math.inf),
            nbytes,
            rounds * max(1.0, flops / 2 / (grid * threads)),
            _from_dram(nbytes),
            rounds,
        )


def _at_once(kernel: Kernel, tile: tuple[int, int, int], size: int) -> int:
    """Blocks that a multiprocessor runs side by side, by what they are taken to need."""
    threads = math.prod(kernel.block) if kernel.block is not None else 256
    rows, columns, depth = tile
    shared = (rows + columns) * depth * size * _STAGES + 1024
    registers = threads * max(64, rows * columns // threads + 40)
    return max(1, min(_THREADS // threads, int(_SHARED_BYTES // shared), _REGISTERS // registers))


def _from_dram(nbytes: float) -> float:
    """What is small was just written, and is read from the L2."""
    return nbytes * (0.3 + 0.7 * min(1.0, max(0.0, (nbytes - 1e7) / 3e7)))
