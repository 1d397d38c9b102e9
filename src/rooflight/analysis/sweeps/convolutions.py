"""What cuDNN's kernels of a convolution go over: copies in another order, products, a bias, its gradient."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rooflight.analysis.sweeps.local_memory import local_memory
from rooflight.analysis.sweeps.pieces import COPIES, Borrowed, Sweep, whole_sweep
from rooflight.ledger import Kernel, Op, Tensor
from rooflight.ops.kernel_names import KernelRole
from rooflight.ops.matrix_product import Pass


def has_role(name: KernelRole | None, role: str) -> bool:
    return name is not None and name.role == role


def has_layout(names: Sequence[KernelRole | None]) -> bool:
    return any(has_role(name, "layout") for name in names)


class ConvolutionSweeps:
    """cuDNN's kernels: copies into another order, the product, a copy back, a bias."""

    def __init__(self, op: Op, kernels: Sequence[Kernel], names: Sequence[KernelRole | None],
                 multiprocessors: int, workspace: int, cleared: Collection[int]) -> None:  # fmt: skip
        self._op, self._kernels, self._names, self._multiprocessors = op, kernels, names, multiprocessors
        self._workspace, self._cleared = workspace, cleared
        self._copies: dict[int, Borrowed] = {}
        """Of storages, in another order."""
        self._turns: Counter[int] = Counter()
        """How many parts of a storage were copied."""
        self._done: list[Pass] = []
        self._phase = 0

    def sweeps(self) -> Iterator[Sweep]:
        op = self._op
        passes = self._passes()
        turns: Counter[Pass] = Counter()
        padded = self._padded(passes)
        if padded is not None:
            yield from padded
            return
        for place, (kernel, name) in enumerate(zip(self._kernels, self._names, strict=True)):
            yield from (Sweep((), [local]) for local in local_memory(kernel, self._multiprocessors))
            if name is None:
                continue
            does = passes[place]
            if name.role == "layout":
                following = next((one for one in passes[place:] if one is not None), None)
                if following is None or not self._done:
                    following = following or self._done[-1]
                yield from self._layout(kernel, following, passes)
            elif does is not None:
                later = [one for one, other in list(zip(self._kernels, self._names, strict=True))[place + 1 :]
                         if has_role(other, "layout")]  # fmt: skip
                yield self._matrix(does, name.tile, turns[does], passes.count(does), later)
                turns[does] += 1
            elif name.role == "sum of parts" and self._done and (parts := self._parts(place, passes)) is not None:
                yield Sweep((), [parts])
                yield Sweep([parts], ())
            elif name.role == "pointwise" and op.outputs:
                yield Sweep(op.outputs[:1], op.outputs[:1])
            elif name.role == "reduction" and op.packet == "aten::convolution_backward":
                yield Sweep([op.tensor("grad_output")], ())

    def _matrix(
        self, does: Pass, tile: tuple[int, ...] | None, place: int, count: int, later: Sequence[Kernel]
    ) -> Sweep:
        op = self._op
        if does == "forward":
            operands, result = [op.tensor("input"), op.tensor("weight")], op.outputs[0]
        elif does == "input gradient":
            operands, result = [op.tensor("grad_output"), op.tensor("weight")], op.outputs[0]
        else:
            operands = [op.tensor("grad_output"), op.tensor("input")]
            shape = op.tensor("weight").shape  # gradients that nobody asked for have no place among the outputs
            result = next((out for out in op.outputs if out.shape == shape), op.outputs[-1])
        groups = max(op.ints("groups", [1])[0], 1)
        read = [self._copies.get(tensor.storage, tensor) for tensor in operands]
        turned = next((kernel for kernel in later if _shows(kernel, result, 1) or _shows(kernel, result, groups)), None)
        written = [(self._copies.get(result.storage) or self._copy(result, turned)) if turned is not None else result]
        if does not in self._done:
            self._done.append(does)
        weights, channels = op.tensor("weight").shape, max(tile[:2]) if tile is not None else math.inf
        across = {"forward": weights[0], "input gradient": weights[1], "weight gradient": min(weights[:2])}[does]
        return Sweep(read, written, shared=read if across > channels else read[1:], place=place, count=count)

    def _passes(self) -> list[Pass | None]:
        """Of every kernel the product it works on: by its name, else the input's gradient is made first."""
        mask = self._op.args.get("output_mask")
        both = isinstance(mask, list) and bool(mask[0]) and bool(mask[1])
        alone: Pass = "weight gradient" if isinstance(mask, list) and not mask[0] else "input gradient"
        found: list[Pass | None] = []
        for kernel, name in zip(self._kernels, self._names, strict=True):
            if not has_role(name, "matrix"):
                found.append(None)
            elif self._op.packet == "aten::convolution":
                found.append("forward")
            elif re.search(r"wgrad|grad_weight", kernel.name):
                found.append("weight gradient")
            elif re.search(r"dgrad|conv_depthwise\w*_backward", kernel.name):
                found.append("input gradient")
            else:
                second = both and "input gradient" in found
                found.append("weight gradient" if second else "input gradient" if both else alone)
        return found

    def _padded(self, passes: Sequence[Pass | None]) -> list[Sweep] | None:
        """One product whose operands and results are all copied by `tensorTransformGeneric`: nothing but what the op
        borrowed tells how much is filled up."""
        transforms = [kernel for kernel in self._kernels if "tensorTransformGeneric" in kernel.name]
        alone = sum(does is not None for does in passes) == 1
        if not alone or len(transforms) < 2 or not self._workspace or has_layout(self._names):
            return None
        whole = whole_sweep(self._op)
        said = "tensorTransformGeneric copies operands and results into what was borrowed, with channels filled up"
        copies = Borrowed("padded copies", self._workspace, cause=COPIES, evidence=said)
        local = [Sweep((), [piece]) for kernel in transforms for piece in local_memory(kernel, self._multiprocessors)]
        cleared = [Sweep((), [copies])] if any(id(kernel) in self._cleared for kernel in transforms) else []
        return [*cleared, replace(whole, writes=[copies]), *local, Sweep([copies], whole.writes)]

    def _parts(self, place: int, passes: Sequence[Pass | None]) -> Borrowed | None:
        """What a kernel adds up behind a product in parts: as many as its grid is deep, at most what was borrowed."""
        last = max((number for number in range(place) if passes[number] is not None), default=None)
        grid = self._kernels[last].grid if last is not None else None
        if last is None or grid is None or not self._workspace:
            return None
        count = passes.count(passes[last])
        nbytes = self._workspace // count
        if has_layout(self._names):
            nbytes = min(nbytes, 4 * self._op.tensor("weight").numel // count * grid[2])
        said = "parts of a gradient, which a kernel of its own adds up"
        return Borrowed("parts", nbytes, len(self._done) + 1, evidence=said) if grid[2] > 1 or count == 1 else None

    def _layout(self, kernel: Kernel, following: Pass, passes: Sequence[Pass | None]) -> Iterator[Sweep]:
        """A copy in another order: of an operand before the product, of the result behind it; group by group, where
        the grid shows the channels of one."""
        op = self._op
        groups = max(op.ints("groups", [1])[0], 1)
        copied = [(tensor, parts) for tensor in (*op.inputs, *op.outputs) for parts in dict.fromkeys((1, groups))
                  if _shows(kernel, tensor, parts) and self._turns[tensor.storage] < parts]  # fmt: skip
        results = {tensor.storage for tensor in op.outputs}
        made = [(tensor, parts) for tensor, parts in copied if tensor.storage in results]
        made = [(tensor, parts) for tensor, parts in made if tensor.storage in self._copies]
        if made:
            tensor, parts = made[0]
            place = self._turns[tensor.storage]
            self._turns[tensor.storage] += 1
            yield Sweep([self._copies[tensor.storage]], [tensor], place=place, count=parts)
            return
        if self._phase < len(self._done) and following not in self._done:
            self._phase = len(self._done)  # another gradient, for which everything is copied again
            self._copies.clear()
            self._turns.clear()
            yield from self._layout(kernel, following, passes)
            return
        operands = [(tensor, parts) for tensor, parts in copied if tensor.storage not in results]
        if not operands:
            return
        tensor, parts = operands[0]
        place = self._turns[tensor.storage]
        self._turns[tensor.storage] += 1
        copy = self._copies.get(tensor.storage) or self._copy(tensor, kernel)
        if id(kernel) in self._cleared:
            yield Sweep((), [copy], place=place, count=parts)
        yield Sweep([tensor], [copy], place=place, count=parts)

    def _copy(self, tensor: Tensor, kernel: Kernel) -> Borrowed:
        """Channels are filled up to 16 bytes."""
        step = 16 // tensor.itemsize
        channels = -(-tensor.shape[1] // step) * step if len(tensor.shape) > 1 else 1
        nbytes = tensor.nbytes // max(tensor.shape[1], 1) * channels
        said = f"{kernel.name.split('<')[0].split('::')[-1]} and others copy operands and results"
        copy = self._copies[tensor.storage] = Borrowed(f"copy of {tensor.storage}", nbytes, self._phase, COPIES, said)
        return copy


def reorders(kernel: Kernel, tensor: Tensor) -> bool:
    """Does the grid of a layout kernel show the tensor's sizes: 32 by 32 places a block, one layer of them an image?"""
    if kernel.grid is None or len(tensor.shape) != 4:
        return False
    images, channels, *sides = tensor.shape
    return kernel.grid == (-(-math.prod(sides) // 32), -(-channels // 32), images)


def _shows(kernel: Kernel, tensor: Tensor, groups: int) -> bool:
    """The same of lines and volumes, whose places count as those of an image, and of the channels of one group."""
    if len(tensor.shape) < 3 or tensor.shape[1] % groups:
        return False
    shape = (tensor.shape[0], tensor.shape[1] // groups, math.prod(tensor.shape[2:]), 1)
    return reorders(kernel, Tensor(storage=tensor.storage, shape=shape, dtype=tensor.dtype))
