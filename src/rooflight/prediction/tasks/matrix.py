"""Matrix products, convolutions and fused attention as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from rooflight.hardware.tasks import Task, side_of
from rooflight.ledger import Op, Tensor
from rooflight.prediction.tasks.elements import broadcast, plain
from rooflight.prediction.tasks.registry import precision_of, tasks_for


def _transposed(matrix: Tensor) -> int:
    """Do the elements of a column lie side by side, not those of a row?"""
    return int(matrix.strides is not None and matrix.strides[-2] == 1 and matrix.shape[-1] > 1)


def product(precision: str, m: int, n: int, k: int, *, batch: int = 1, a: int = 0, b: int = 0, bias: int = 0) -> Task:
    return Task("gemm", precision, (batch, m, n, k, a, b, bias))


@tasks_for("mm", "addmm", "bmm", "baddbmm", "_addmm_activation")
def matmul(op: Op) -> list[Task]:
    names = ("mat1", "mat2") if "mat1" in op.args else ("batch1", "batch2") if "batch1" in op.args else ("self", "mat2")
    a, b = op.tensor(names[0]), op.tensor(names[1])
    batch = a.shape[0] if len(a.shape) == 3 else 1
    (m, k), n = a.shape[-2:], b.shape[-1]
    bias = int("addmm" in op.packet)
    return [product(op.precision, m, n, k, batch=batch, a=_transposed(a), b=_transposed(b), bias=bias)]


def unknown(op: Op) -> list[Task]:
    """Matrix work that is counted, but described nowhere here: a product with that output and as many FLOPs."""
    macs = (op.cost.macs or 0) if op.cost is not None else 0
    out = max(op.outputs, key=lambda tensor: tensor.numel, default=None)
    if not macs or out is None or not out.numel:
        return []
    n = out.shape[-1] if out.shape else 1
    return [product(op.precision or precision_of(out.dtype), out.numel // n, n, max(1, macs // out.numel), b=1)]


@tasks_for("mv", "addmv")
def matrix_vector(op: Op) -> list[Task]:
    m, k = op.tensor("self" if op.packet == "aten::mv" else "mat").shape
    return [product(op.precision, m, 1, k)]


@tasks_for("dot", "vdot")
def dot(op: Op) -> list[Task]:
    return [Task("reduce", precision_of(op.tensor("self").dtype), (1, max(1, op.tensor("self").numel), 1))]


def _planes(tensor: Tensor) -> tuple[int, int, int, int]:
    """Batch, channels, height and width; a sequence is an image of one row, a volume one of stacked slices."""
    n, c, *sides = tensor.shape
    if len(sides) == 1:
        return n, c, 1, sides[0]
    return n, c, sides[0] * (sides[1] if len(sides) == 3 else 1), sides[-1]


def _convolution(op: Op, x: Tensor, out: Tensor, family: str) -> Task:
    weight = op.tensor("weight")
    n, c, h, w = _planes(x)
    _, k, p, q = _planes(out)
    *outer, s = kernel = weight.shape[2:]
    # Where sides differ, that with the largest kernel speaks for all, and the output's own sides are told beside it.
    side = max(range(len(kernel)), key=lambda place: (kernel[place], place))
    stride, pad, dilation = (_of_side(op.ints(name, [default]), side) for name, default in
                             (("stride", 1), ("padding", 0), ("dilation", 1)))  # fmt: skip
    groups = op.ints("groups", [1])[0]
    layout = int(x.channels_last or weight.channels_last)
    r = prod(outer)
    numbers = (n, c, h, w, k, r, s, stride, pad, dilation, groups, layout)
    follows = all(out == side_of(side, size, stride, pad, dilation) for out, side, size in ((p, h, r), (q, w, s)))
    return Task(family, op.precision, numbers if follows else (*numbers, p, q))


def _of_side(values: Sequence[int], side: int) -> int:
    """One value may stand for all sides."""
    return values[side] if side < len(values) else values[-1]


_SWAPPED = {"conv-forward": "conv-dgrad", "conv-dgrad": "conv-forward", "conv-wgrad": "conv-wgrad"}


@tasks_for("convolution", "_convolution", "cudnn_convolution")
def convolution(op: Op) -> list[Task]:
    x, out = op.tensor("input" if "input" in op.args else "self"), op.outputs[0]
    # A transposed convolution is the gradient of one that goes the other way.
    main = _convolution(op, out, x, "conv-dgrad") if op.args.get("transposed") else _convolution(
        op, x, out, "conv-forward")  # fmt: skip
    return [main, broadcast(out)] if op.has("bias") else [main]


@tasks_for("convolution_backward")
def convolution_backward(op: Op) -> list[Task]:
    grad, x = op.tensor("grad_output"), op.tensor("input")
    mask = op.args.get("output_mask")
    wanted = [bool(item) for item in mask] if isinstance(mask, list) else [True, True, False]
    found = []
    for family, want in zip(("conv-dgrad", "conv-wgrad"), wanted[:2], strict=True):
        if not want:
            continue
        if op.args.get("transposed"):
            found.append(_convolution(op, grad, x, _SWAPPED[family]))
        else:
            found.append(_convolution(op, x, grad, family))
    if wanted[2]:
        channels = grad.shape[1]
        numbers = (channels, max(1, grad.numel // channels), int(not grad.channels_last))
        found.append(Task("reduce", precision_of(grad.dtype), numbers))
    return found


def _attention(op: Op, kernel: str, way: str) -> Task:
    q, k = op.tensor("query"), op.tensor("key")
    batch, heads, length, size = q.shape
    bias = int(op.has("attn_bias") or op.has("attn_mask"))
    numbers = (batch, heads, k.shape[1], length, k.shape[-2], size, int(bool(op.args.get("is_causal"))), bias)
    return Task(f"attention-{kernel}-{way}", q.dtype, numbers)  # the sums that are kept of it are always fp32


@tasks_for("_scaled_dot_product_cudnn_attention")
def cudnn(op: Op) -> list[Task]:
    return [_attention(op, "cudnn", "forward")]


@tasks_for("_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(op: Op) -> list[Task]:
    return [_attention(op, "cudnn", "backward")]


@tasks_for("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
           "scaled_dot_product_attention", "_scaled_dot_product_fused_attention_overrideable")  # fmt: skip
def flash(op: Op) -> list[Task]:
    return [_attention(op, "flash", "forward")]


@tasks_for("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_backward(op: Op) -> list[Task]:
    return [_attention(op, "flash", "backward")]


@tasks_for("_scaled_dot_product_efficient_attention")
def efficient(op: Op) -> list[Task]:
    return [_attention(op, "efficient", "forward")]


@tasks_for("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(op: Op) -> list[Task]:
    return [_attention(op, "efficient", "backward")]


def _self_attention(op: Op, x: Tensor, heads: int) -> list[Task]:
    """q, k and v in one product with its bias, attention on views of it, the projection."""
    batch, length, width = x.shape
    kernel = "efficient" if op.precision in ("fp32", "tf32", "fp64") else "flash"
    precision = "fp32" if kernel == "efficient" else op.precision
    rows = batch * length
    return [
        product(op.precision, rows, 3 * width, width, b=1, bias=1),
        Task(f"attention-{kernel}-forward", precision, (batch, heads, heads, length, length, width // heads, 0, 0)),
        product(op.precision, rows, width, width, b=1, bias=1),
    ]


@tasks_for("_native_multi_head_attention")
def multi_head_attention(op: Op) -> list[Task]:
    return _self_attention(op, op.tensor("query"), op.ints("num_head", op.ints("num_heads", [1]))[0])


@tasks_for("_transformer_encoder_layer_fwd")
def encoder_layer(op: Op) -> list[Task]:
    x = op.tensor("src")
    batch, length, width = x.shape
    rows, inner = batch * length, op.tensor("ffn_weight_1").shape[0]
    norm = Task("layer-norm-forward", precision_of(x.dtype), (rows, width))
    add = plain(x.numel, 2 * x.nbytes, x.nbytes, x.dtype)
    feed = [product(op.precision, rows, inner, width, b=1, bias=1), product(op.precision, rows, width, inner, b=1,
                                                                             bias=1)]  # fmt: skip
    return [*_self_attention(op, x, op.ints("num_heads", [1])[0]), add, norm, *feed, add, norm]
