"""Output sizes typed by hand: that of the pool behind the layer, of its input, without its padding or its stride."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rooflight.analysis.claims import counts
from rooflight.analysis.claims.case import ClaimCase, Trial, only_for
from rooflight.analysis.claims.conventions import is_pool
from rooflight.analysis.claims.counts import whole
from rooflight.analysis.claims.mistakes.formulas import WORK
from rooflight.analysis.finding import Finding
from rooflight.ledger import Op

Size = tuple[int, int]


def _convolution(case: ClaimCase) -> Op | None:
    ops = [op for op in case.scope.ops if op.phase == "forward" and op.packet == "aten::convolution"]
    return ops[0] if len(ops) == 1 else None


def other_sizes(case: ClaimCase) -> list[tuple[Size, str, str]]:
    """Sizes that may stand for the output's, each with a code and a word about where it is from."""
    op = _convolution(case)
    if op is None or len(op.outputs[0].shape) < 3:
        return []
    ledger = case.scope.ledger
    own = _size(op.outputs[0].shape)
    sizes: list[tuple[Size, str, str]] = []
    # The pool at the end of its block: layers in between leave the size as it is.
    for later in ledger.ops[op.index + 1 :]:
        shape = later.outputs[0].shape if later.outputs else ()
        if is_pool(later) and len(shape) >= 3:
            name = later.module or later.packet
            sizes.append((_size(shape), "size-after-the-pool", f"behind the pool ({name})"))
        if later.kind != "view" and (len(shape) < 3 or _size(shape) != own):
            break
    x, weight = op.tensor("input"), op.tensor("weight")
    given = _size(x.shape)
    kernel = _size(weight.shape)
    stride = _pair(op.ints("stride", [1]))
    padding = _pair(op.ints("padding", [0]))
    sizes.append((given, "size-of-the-input", "of its input"))
    if any(padding):
        bare = _valid(given, kernel, stride, (0, 0))
        sizes.append((bare, "padding-forgotten", f"without the padding of {padding[0]}"))
    else:
        half = _pair([side // 2 for side in kernel])
        sizes.append((_valid(given, kernel, stride, half), "padding-added", "with a padding that it has not"))
    if any(side > 1 for side in stride):
        sizes.append((_valid(given, kernel, (1, 1), padding), "stride-forgotten", f"with stride 1, not {stride[0]}"))
    return [row for row in sizes if row[0] != own and min(row[0]) > 0]


def _size(shape: tuple[int, ...]) -> Size:
    return shape[-2], shape[-1]


def _pair(values: list[int]) -> Size:
    return (values[0], values[-1])


def _valid(size: Size, kernel: Size, stride: Size, padding: Size) -> Size:
    height, width = ((size[i] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    return height, width


@only_for(*WORK, "output_bytes", "output_elements")
def _work(case: ClaimCase) -> Iterator[Finding]:
    op = _convolution(case)
    if op is None:
        return
    height, width = _size(op.outputs[0].shape)
    for size, code, text in other_sizes(case):
        taken = f"the output was taken as {size[0]}x{size[1]}, the size {text}, and is {height}x{width}"
        yield Finding(code, taken, whole(case.number * Fraction(size[0] * size[1], height * width)))


@only_for("output_size")
def _sizes(case: ClaimCase) -> Iterator[Finding]:
    for size, code, text in other_sizes(case):
        yield Finding(code, f"{size[1]} is the size {text}", size[1])


@only_for("output_shape", "output_elements")
def _shapes(case: ClaimCase) -> Iterator[Finding]:
    if case.name == "output_shape" and isinstance(case.answer.value, tuple):
        front = case.answer.value[:-2]
        for size, code, text in other_sizes(case):
            yield Finding(code, f"{size[0]}x{size[1]} is the size {text}", (*front, *size))
    module = case.scope.part.module
    if module is not None and module.inputs:
        value = module.inputs[0] if case.name == "output_shape" else counts.input_bytes(case.scope) // 4
        yield Finding("shape-of-the-input", "that is what it gets, not what it gives", value)


LIKELY: tuple[Trial, ...] = (_work, _sizes, _shapes)
