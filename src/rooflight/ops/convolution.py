"""Convolutions of one, two and three dimensions: dense, grouped, depthwise, dilated, transposed; and their gradients.

Every output element is a dot product over (Cin / G) * kernel. Dilation and stride change only the output's size.
A transposed convolution scatters instead: every *input* element meets (Cout / G) * kernel weights.

Beside this file: what Winograd's and FFT's way execute instead (`fast_convolutions`), the workspaces that cuDNN was
seen to borrow (`memory/cudnn_workspaces`), and layouts of results on tensors without data (`trace/meta_kernels`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, broadcast_task, reduce_task, side_of
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.registry import Work, formula, products, task

_AXES = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}


def _symbols(x: Tensor, weight: Tensor, y: Tensor, *, groups: int, transposed: bool) -> tuple[str, dict[str, int]]:
    """MACs of one pass as text, with its symbols. x [N, Cin, ...], y [N, Cout, ...].

    weight is [Cout, Cin/G, ...], or [Cin, Cout/G, ...] when transposed.
    """
    axes = _AXES[len(weight.shape) - 2]
    # An input without a batch dimension is one sample.
    batch = x.shape[0] if len(x.shape) == len(weight.shape) else 1
    channels_in, channels_out = (x.shape[-len(axes) - 1], y.shape[-len(axes) - 1])
    where = {"N": batch, "Cin": channels_in, "Cout": channels_out}
    pixels = x.shape[-len(axes) :] if transposed else y.shape[-len(axes) :]
    suffix = "i" if transposed else "o"
    where |= {f"{axis}{suffix}": size for axis, size in zip(axes, pixels, strict=True)}
    where |= {f"K{axis.lower()}": size for axis, size in zip(axes, weight.shape[2:], strict=True)}
    spatial = " * ".join(f"{axis}{suffix}" for axis in axes)
    kernel = " * ".join(f"K{axis.lower()}" for axis in axes)
    contracted, produced = ("Cout", "Cin") if transposed else ("Cin", "Cout")
    if groups > 1:
        where["G"] = groups
        contracted = f"({contracted} // G)"
    return f"N * {produced} * {spatial} * {contracted} * {kernel}", where


@formula("aten::convolution", "aten::cudnn_convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(op: Op) -> Work:
    x, weight, y = _input(op), op.tensor("weight"), op.outputs[0]
    groups, transposed = op.ints("groups", [1])[0], bool(op.args.get("transposed"))
    macs, where = _symbols(x, weight, y, groups=groups, transposed=transposed)
    return Work(macs=macs, where=where)


# dgrad: dx = dy * w^T, as many MACs as forward. wgrad: dw = x^T * dy, as many again. The bias gradient adds dy up.
@formula("aten::convolution_backward")
def convolution_backward(op: Op) -> Work:
    dy, x, weight = op.tensor("grad_output"), op.tensor("input"), op.tensor("weight")
    groups, transposed = op.ints("groups", [1])[0], bool(op.args.get("transposed"))
    dgrad, wgrad, bgrad = gradients_of(op)
    macs, where = _symbols(x, weight, dy, groups=groups, transposed=transposed)
    passes = dgrad + wgrad
    names = [name for name, on in (("dgrad", dgrad), ("wgrad", wgrad), ("bias gradient", bgrad)) if on]
    note = f"computes {', '.join(names)}" if names else "computes nothing"
    return Work(
        macs=f"P * {macs}" if passes else 0,
        other="dy - Cout" if bgrad else 0,
        # dgrad reads dy and w, wgrad reads dy and x.
        reads=dy.nbytes + (weight.nbytes if dgrad else 0) + (x.nbytes if wgrad else 0),
        where={"P": passes, **where, "dy": dy.numel},
        note=note,
    )


def _input(op: Op) -> Tensor:
    return op.tensor("input" if op.has("input") else "self")


def gradients_of(op: Op) -> tuple[bool, bool, bool]:
    """Does a backward make the gradient of the input, of the weight, of the bias?"""
    dx, dw, db = map(bool, op.ints("output_mask", (1, 1, 0)))
    return dx, dw, db


# --- kernel tasks


def _planes(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Batch, channels, height and width; a sequence is an image of one row, a volume one of stacked slices."""
    n, c, *sides = shape
    if len(sides) == 1:
        return n, c, 1, sides[0]
    return n, c, sides[0] * (sides[1] if len(sides) == 3 else 1), sides[-1]


@dataclass(frozen=True)
class Geometry:
    """Of a convolution over one, two or three sides."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int = 1


def convolution_numbers(
    x: Sequence[int], kernel: Sequence[int], out: Sequence[int], geometry: Geometry, *, channels_last: bool
) -> tuple[int, ...]:
    """Of a task, from the shapes of input and output and the sides of the kernel."""
    n, c, h, w = _planes(x)
    _, k, p, q = _planes(out)
    *outer, s = kernel
    # Where sides differ, that with the largest kernel speaks for all, and the output's own sides are told beside it.
    side = max(range(len(kernel)), key=lambda place: (kernel[place], place))
    stride, pad, dilation = (
        _of_side(values, side) for values in (geometry.stride, geometry.padding, geometry.dilation)
    )
    r = prod(outer)
    numbers = (n, c, h, w, k, r, s, stride, pad, dilation, geometry.groups, int(channels_last))
    follows = all(out == side_of(side, size, stride, pad, dilation) for out, side, size in ((p, h, r), (q, w, s)))
    return numbers if follows else (*numbers, p, q)


def _task(op: Op, x: Tensor, out: Tensor, way: str) -> Task:
    weight = op.tensor("weight")
    geometry = Geometry(
        op.ints("stride", [1]), op.ints("padding", [0]), op.ints("dilation", [1]), op.ints("groups", [1])[0]
    )
    last = x.channels_last or weight.channels_last
    numbers = convolution_numbers(x.shape, weight.shape[2:], out.shape, geometry, channels_last=last)
    return Task(f"{'conv3d' if len(weight.shape) == 5 else 'conv'}-{way}", op.precision, numbers)


def _of_side(values: Sequence[int], side: int) -> int:
    """One value may stand for all sides."""
    return values[side] if side < len(values) else values[-1]


@task("aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
def convolution_tasks(op: Op) -> list[Task]:
    x, out = _input(op), op.outputs[0]
    # A transposed convolution is the gradient of one that goes the other way.
    main = _task(op, out, x, "dgrad") if op.args.get("transposed") else _task(op, x, out, "forward")
    return [main, broadcast_task(out)] if op.has("bias") else [main]


_SWAPPED = {"forward": "dgrad", "dgrad": "forward", "wgrad": "wgrad"}


@task("aten::convolution_backward")
def convolution_backward_tasks(op: Op) -> list[Task]:
    grad, x = op.tensor("grad_output"), op.tensor("input")
    *wanted, bias = gradients_of(op)
    ways = [way for way, want in zip(("dgrad", "wgrad"), wanted, strict=True) if want]
    if op.args.get("transposed"):
        tasks = [_task(op, grad, x, _SWAPPED[way]) for way in ways]
    else:
        tasks = [_task(op, x, grad, way) for way in ways]
    if bias:
        channels = grad.shape[1]
        innermost = not grad.channels_last
        tasks.append(reduce_task(grad.dtype, kept=channels, reduced=grad.numel // channels, innermost=innermost))
    return tasks


# --- matrix products


@products("aten::convolution", "aten::cudnn_convolution")
def convolution_products(op: Op) -> Iterator[MatrixProduct]:
    if op.args.get("transposed"):
        yield _input_gradient(op, op.outputs[0])
    else:
        yield _forward(op, op.outputs[0])


@products("aten::convolution_backward")
def convolution_backward_products(op: Op) -> Iterator[MatrixProduct]:
    x, grad = op.tensor("input"), op.tensor("grad_output")
    transposed = bool(op.args.get("transposed"))
    dgrad, wgrad, _ = gradients_of(op)
    if dgrad:
        yield _forward(op, x) if transposed else _input_gradient(op, x)
    if wgrad:
        yield _weight_gradient(op, x if transposed else grad)


# A transposed convolution is the input's gradient of one that goes the other way: its result is that one's input.


def _forward(op: Op, out: Tensor) -> MatrixProduct:
    weight, groups = op.tensor("weight"), op.ints("groups", [1])[0]
    pixels, taps = out.shape[0] * prod(out.shape[2:]), prod(weight.shape[2:])
    return MatrixProduct("forward", pixels, weight.shape[0] // groups, weight.shape[1], batch=groups, taps=taps)


def _input_gradient(op: Op, x: Tensor) -> MatrixProduct:
    weight, groups = op.tensor("weight"), op.ints("groups", [1])[0]
    return MatrixProduct(
        "input gradient",
        x.shape[0] * prod(x.shape[2:]),
        weight.shape[1],
        weight.shape[0] // groups,
        batch=groups,
        taps=prod(weight.shape[2:]),
        remainders=tuple(_remainders(op, x)),
    )


def _weight_gradient(op: Op, grad: Tensor) -> MatrixProduct:
    weight, groups = op.tensor("weight"), op.ints("groups", [1])[0]
    taps = prod(weight.shape[2:])
    return MatrixProduct(
        "weight gradient",
        weight.shape[0] // groups,
        weight.shape[1] * taps,
        grad.shape[0] * prod(grad.shape[2:]),
        batch=groups,
        tapped_columns=taps,
        loaded=16 // weight.itemsize,
    )


def _remainders(op: Op, x: Tensor) -> Iterator[tuple[int, int]]:
    """A position of the input meets only the taps that fall on a stride: for every remainder, how many of each."""
    weight = op.tensor("weight")
    sides = len(weight.shape) - 2
    strides = (op.ints("stride", [1]) * sides)[:sides]
    pads = (op.ints("padding", [0]) * sides)[:sides]
    dilations = (op.ints("dilation", [1]) * sides)[:sides]
    if all(stride == 1 for stride in strides):
        return
    per_side = []
    for size, width, stride, pad, dilation in zip(x.shape[2:], weight.shape[2:], strides, pads, dilations, strict=True):
        met = [0] * stride
        for tap in range(width):
            met[(tap * dilation) % stride] += 1
        per_side.append(
            [(sum((place + pad) % stride == rest for place in range(size)), met[rest]) for rest in range(stride)]
        )
    combined = [(x.shape[0], 1)]
    for side in per_side:
        combined = [(rows * more, taps * met) for rows, taps in combined for more, met in side]
    yield from ((rows, taps) for rows, taps in combined if rows)
