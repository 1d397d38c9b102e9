"""Work that is bound by memory, as tasks: elementwise, copies, reductions, norms, pooling, embeddings, optimizers."""

from __future__ import annotations

import math

from rooflight.hardware.tasks import Task
from rooflight.ledger import DTYPE_BYTES, Op, Tensor
from rooflight.prediction.tasks.registry import precision_of, tasks_for

MATH = frozenset({
    "gelu", "gelu_backward", "silu", "silu_", "silu_backward", "tanh", "tanh_", "tanh_backward", "sigmoid", "sigmoid_",
    "sigmoid_backward", "exp", "exp_", "log", "log_", "erf", "pow", "sin", "cos", "softplus", "softplus_backward",
    "mish", "mish_", "mish_backward", "elu", "elu_", "elu_backward", "log_sigmoid_forward", "log_sigmoid_backward",
    "atan", "acos", "asin", "expm1", "log1p", "log2", "exp2", "_to_copy_fp8",
})  # fmt: skip
"""Elementwise ops whose arithmetic takes longer than their bytes."""

NOTHING = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "as_strided_", "resize_", "set_",
    "detach", "lift_fresh", "_unsafe_view", "sym_size", "is_same_size", "_local_scalar_dense",
})  # fmt: skip
"""Ops that launch nothing."""


WRITES_ONLY = frozenset({
    "zero_", "zeros_like", "new_zeros", "fill_", "full_like", "new_full", "ones_like", "new_ones", "uniform_",
    "normal_", "random_", "bernoulli_", "exponential_", "rand_like", "randn_like", "randint_like",
})  # fmt: skip
"""Ops that look at a tensor's shape, not at its elements."""


def plain(elements: int, bytes_read: int, bytes_written: int, dtype: str) -> Task:
    return Task("plain", precision_of(dtype), (max(1, elements), bytes_read, bytes_written))


def broadcast(tensor: Tensor) -> Task:
    """One value for every channel added to a tensor in place."""
    return Task("broadcast", precision_of(tensor.dtype), (max(1, tensor.numel), tensor.nbytes, tensor.nbytes))


def strided(elements: int, dtype: str, run: int) -> Task:
    nbytes = elements * DTYPE_BYTES[dtype]
    return Task("strided", precision_of(dtype), (max(1, elements), nbytes, nbytes, max(1, run)))


def elementwise(op: Op) -> list[Task]:
    """Any op that reads its inputs and writes its outputs once."""
    name = op.packet.partition("::")[2]
    inputs = [tensor for tensor in op.inputs if tensor.numel] if name not in WRITES_ONLY else []
    written = list(op.outputs) or [tensor for name in op.mutates for tensor in op.tensors(name)]
    written = [tensor for tensor in written if tensor.numel]
    if not written and not inputs:
        return []
    main = max(written or inputs, key=lambda tensor: tensor.numel)
    reads = sum(tensor.nbytes for tensor in _distinct(inputs))
    writes = sum(tensor.nbytes for tensor in _distinct(written))
    elements = max(main.numel, max((tensor.numel for tensor in inputs), default=0))
    precision = precision_of(main.dtype)
    if name in MATH:
        return [Task("math", precision, (max(1, elements), reads, writes))]
    large = [tensor for tensor in inputs if tensor.numel == elements]
    if any(tensor.nbytes < tensor.numel * tensor.itemsize for tensor in large):
        return [Task("broadcast", precision, (max(1, elements), reads, writes))]
    if any(_layout(tensor) != _layout(main) or has_gaps(tensor) for tensor in large if tensor.shape == main.shape):
        run = min(contiguous_run(tensor) for tensor in [*large, main])
        return [Task("strided", precision, (max(1, elements), reads, writes, run))]
    if any(1 < tensor.numel < elements for tensor in inputs):
        return [Task("broadcast", precision, (max(1, elements), reads, writes))]
    mixed = any(tensor.itemsize != main.itemsize for tensor in large)
    return [Task("cast" if mixed else "plain", precision, (max(1, elements), reads, writes))]


def _distinct(tensors: list[Tensor]) -> list[Tensor]:
    return list(dict.fromkeys(tensors))


def _layout(tensor: Tensor) -> tuple[int, ...]:
    """The axes with more than one element, innermost last: how it lies in memory."""
    if tensor.strides is None:
        return tuple(axis for axis, size in enumerate(tensor.shape) if size > 1)
    order = sorted(range(len(tensor.shape)), key=lambda axis: -tensor.strides[axis])  # type: ignore[index]
    return tuple(axis for axis in order if tensor.shape[axis] > 1)


def has_gaps(tensor: Tensor) -> bool:
    """Is it a part of something larger, whose other elements lie in between?"""
    if tensor.strides is None:
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return span > tensor.numel


def contiguous_run(tensor: Tensor) -> int:
    """How many elements lie side by side when the tensor is walked in the order of its shape."""
    if tensor.strides is None:
        return max(1, tensor.numel)
    run = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run


@tasks_for("clone", "copy_", "_to_copy", "contiguous", "_conj_physical")
def copy(op: Op) -> list[Task]:
    source = op.tensor("src" if "src" in op.args else "self")
    target = op.outputs[0] if op.outputs else op.tensor("self")
    elements = target.numel
    if source.shape == target.shape and (_layout(source) != _layout(target) or has_gaps(source) or has_gaps(target)):
        run = min(contiguous_run(source), contiguous_run(target))
        task = Task("strided", precision_of(target.dtype), (max(1, elements), source.nbytes, target.nbytes, run))
        return [task]
    family = "plain" if source.dtype == target.dtype else "cast"
    if source.numel != elements or (source.numel > 1 and source.nbytes < source.numel * source.itemsize):
        family = "broadcast"
    return [Task(family, precision_of(target.dtype), (max(1, elements), source.nbytes, target.nbytes))]


@tasks_for("slice_backward", "select_backward", "constant_pad_nd", "index_fill", "slice_scatter", "select_scatter")
def into_zeros(op: Op) -> list[Task]:
    """Zeros, and a part of them written over."""
    out, given = op.outputs[0], op.tensor("grad_output" if "grad_output" in op.args else "self")
    if given.numel == out.numel:
        return [plain(out.numel, given.nbytes, out.nbytes, out.dtype)]
    run = given.shape[-1] if given.shape else 1
    return [
        plain(out.numel, 0, out.nbytes, out.dtype),
        Task("strided", precision_of(out.dtype), (max(1, given.numel), given.nbytes, given.nbytes, max(1, run))),
    ]


@tasks_for("flip", "repeat", "im2col", "col2im")
def reordered(op: Op) -> list[Task]:
    out = op.outputs[0]
    return [strided(out.numel, out.dtype, out.shape[-1] if out.shape else 1)]


@tasks_for("roll")
def roll(op: Op) -> list[Task]:
    """One axis after the other, each element looked up."""
    out = op.outputs[0]
    return [strided(out.numel, out.dtype, 1)] * max(1, len(op.ints("shifts")))


@tasks_for("native_dropout")
def dropout(op: Op) -> list[Task]:
    x = op.tensor("input")
    return [Task("dropout", precision_of(x.dtype), (max(1, x.numel), x.nbytes, x.nbytes + x.numel))]


@tasks_for("cat", "stack")
def cat(op: Op) -> list[Task]:
    inputs, out = [tensor for tensor in op.tensors("tensors") if tensor.numel], op.outputs[0]
    largest = max((tensor.numel for tensor in inputs), default=1)
    axis = op.ints("dim", [0])[0]
    run = max(1, min((math.prod(tensor.shape[axis:]) for tensor in inputs), default=1))
    contiguous = int(all(tensor.strides is None or tensor.channels_last for tensor in inputs))
    numbers = (max(1, len(inputs)), max(1, out.numel), out.nbytes, out.nbytes, max(1, largest), contiguous, run)
    return [Task("cat", precision_of(out.dtype), numbers)]


_REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "var_mean", "std", "norm", "linalg_vector_norm", "logsumexp",
               "prod", "any", "all", "max", "min", "argmax", "argmin", "nansum", "count_nonzero")  # fmt: skip


@tasks_for(*_REDUCTIONS)
def reduction(op: Op) -> list[Task]:
    x = op.tensor("self")
    other = op.args.get("other")
    if isinstance(other, Tensor):
        return elementwise(op)  # max and min of two tensors
    out = op.outputs[0]
    kept = max(1, out.numel)
    axes = [axis % len(x.shape) for axis in op.ints("dim")] if x.shape else []
    innermost = int(not axes or _layout(x)[-1:] == () or _layout(x)[-1] in axes)
    return [Task("reduce", precision_of(x.dtype), (kept, max(1, x.numel // kept), innermost))]


def _softmax(op: Op, x: Tensor, way: str) -> Task:
    axis = op.ints("dim", [-1])[0]
    columns = x.shape[axis] if x.shape else 1
    return Task(f"softmax-{way}", precision_of(x.dtype), (max(1, x.numel // max(1, columns)), max(1, columns)))


@tasks_for("_softmax", "_log_softmax")
def softmax(op: Op) -> list[Task]:
    return [_softmax(op, op.tensor("self"), "forward")]


@tasks_for("_safe_softmax")
def safe_softmax(op: Op) -> list[Task]:
    """Softmax, and rows that are all masked set to zero: compared, looked through, replaced."""
    x = op.tensor("self")
    rows = _softmax(op, x, "forward")
    return [
        rows,
        Task("cast", "bf16", (max(1, x.numel), x.nbytes, x.numel)),
        Task("reduce", "bf16", (rows.numbers[0], rows.numbers[1], 1)),
        Task("broadcast", precision_of(x.dtype), (max(1, x.numel), x.nbytes, x.nbytes)),
    ]


@tasks_for("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(op: Op) -> list[Task]:
    return [_softmax(op, op.tensor("grad_output"), "backward")]


def _rows(x: Tensor, sizes: list[int]) -> tuple[int, int]:
    columns = max(1, math.prod(sizes))
    return max(1, x.numel // columns), columns


@tasks_for("native_layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(op: Op) -> list[Task]:
    x = op.tensor("input")
    return [Task("layer-norm-forward", precision_of(x.dtype), _rows(x, op.ints("normalized_shape", [x.shape[-1]])))]


@tasks_for("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(op: Op) -> list[Task]:
    x = op.tensor("input")
    return [Task("layer-norm-backward", precision_of(x.dtype), _rows(x, op.ints("normalized_shape", [x.shape[-1]])))]


@tasks_for("native_group_norm", "native_group_norm_backward")
def group_norm(op: Op) -> list[Task]:
    way = "backward" if op.packet.endswith("backward") else "forward"
    x = op.tensor("input")
    groups = op.ints("group", [1])[0]
    rows = max(1, x.shape[0] * groups)
    return [Task(f"group-norm-{way}", precision_of(x.dtype), (rows, max(1, x.numel // rows)))]


@tasks_for("cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit", "miopen_batch_norm",
           "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update")  # fmt: skip
def batch_norm(op: Op) -> list[Task]:
    trains = op.args.get("training", "no_" not in op.packet)
    return [_batch_norm(op, "train" if trains else "eval")]


@tasks_for("cudnn_batch_norm_backward", "native_batch_norm_backward", "batch_norm_backward",
           "miopen_batch_norm_backward")  # fmt: skip
def batch_norm_backward(op: Op) -> list[Task]:
    return [_batch_norm(op, "backward")]


def _batch_norm(op: Op, way: str) -> Task:
    x = op.tensor("input")
    n, c = x.shape[0], x.shape[1] if len(x.shape) > 1 else 1
    kind = "cudnn" if "cudnn" in op.packet else "native"
    pixels = max(1, x.numel // max(1, n * c))
    return Task(f"batch-norm-{kind}-{way}", precision_of(x.dtype), (n, c, pixels, int(x.channels_last)))


@tasks_for("embedding", "index_select", "index", "gather", "take")
def embedding(op: Op) -> list[Task]:
    out = op.outputs[0]
    source = op.tensor("weight" if "weight" in op.args else "self")
    gathered = out.shape[-1] if out.shape and source.shape and out.shape[-1] == source.shape[-1] else 1
    return [Task("embedding-forward", precision_of(out.dtype), _rows(out, [gathered]))]


@tasks_for("embedding_dense_backward", "_index_put_impl_", "index_put_", "index_put", "index_add", "index_add_",
           "scatter_add", "scatter_add_", "index_select_backward")  # fmt: skip
def embedding_backward(op: Op) -> list[Task]:
    grad = op.tensor(next(name for name in ("grad_output", "values", "source", "src", "grad") if name in op.args))
    out = op.outputs[0] if op.outputs else op.tensor("self")
    columns = out.shape[-1] if out.shape else 1
    rows, columns = _rows(grad, [columns if grad.shape and grad.shape[-1] == columns else 1])
    return [Task("embedding-backward", precision_of(out.dtype), (rows, columns, max(1, out.numel // columns)))]


@tasks_for("nll_loss_forward", "nll_loss2d_forward")
def picked(op: Op) -> list[Task]:
    """One number of every row is read, and they are added up."""
    x, target = op.tensor("self"), op.tensor("target")
    return [Task("reduce", precision_of(x.dtype), (1, max(1, target.numel), 1))]


@tasks_for("nll_loss_backward", "nll_loss2d_backward")
def picked_backward(op: Op) -> list[Task]:
    """Zeros, and one number of every row written."""
    out, target = op.outputs[0], op.tensor("target")
    return [
        plain(out.numel, 0, out.nbytes, out.dtype),
        plain(target.numel, target.nbytes, target.numel * out.itemsize, out.dtype),
    ]


def _pooled(op: Op, x: Tensor, out: Tensor, family: str) -> Task:
    kernel = max(op.ints("kernel_size", [2]))
    stride = max(op.ints("stride", [kernel]) or [kernel])
    *outer, h, w = x.shape
    planes = math.prod(outer)
    pixels = max(1, out.shape[-1] * out.shape[-2])
    return Task(family, precision_of(x.dtype), (planes, h, w, kernel, stride, pixels, int(x.channels_last)))


@tasks_for("max_pool2d_with_indices")
def max_pool(op: Op) -> list[Task]:
    return [_pooled(op, op.tensor("self"), op.outputs[0], "max-pool-forward")]


@tasks_for("max_pool2d_with_indices_backward")
def max_pool_backward(op: Op) -> list[Task]:
    return [_pooled(op, op.tensor("self"), op.tensor("grad_output"), "max-pool-backward")]


@tasks_for("avg_pool2d")
def avg_pool(op: Op) -> list[Task]:
    return [_pooled(op, op.tensor("self"), op.outputs[0], "avg-pool-forward")]


@tasks_for("avg_pool2d_backward")
def avg_pool_backward(op: Op) -> list[Task]:
    return [_pooled(op, op.tensor("self"), op.tensor("grad_output"), "avg-pool-backward")]


@tasks_for("_adaptive_avg_pool2d", "adaptive_max_pool2d")
def adaptive_pool(op: Op) -> list[Task]:
    x, out = op.tensor("self"), op.outputs[0]
    kept = max(1, out.numel)
    return [Task("reduce", precision_of(x.dtype), (kept, max(1, x.numel // kept), int(not x.channels_last)))]


def foreach(op: Op) -> list[Task]:
    """Lists of tensors, read and written once each. A fused optimizer changes gradients only to unscale them, whatever
    its schema says; the numbers that count its steps weigh nothing."""
    name = op.packet.partition("::")[2]
    kept = {"state_steps"} if name.startswith("_fused_") else set()
    untouched = kept | ({"grads"} if kept and not op.has("grad_scale") else set())
    lists = [op.tensors(one) for one, value in op.args.items()
             if one not in kept and isinstance(value, list) and op.tensors(one)]  # fmt: skip
    if not lists:
        return []
    main = lists[0]
    reads = sum(tensor.nbytes for tensor in _distinct([tensor for tensors in lists for tensor in tensors]))
    changed = [tensor for one in op.mutates if one not in untouched for tensor in op.tensors(one)]
    writes = sum(tensor.nbytes for tensor in [*op.outputs, *changed])
    elements = max(1, sum(tensor.numel for tensor in main))
    family = "fused-sgd" if name.startswith("_fused_sgd") else "fused-adam" if name.startswith("_fused_") else "foreach"
    return [Task(family, precision_of(main[0].dtype), (len(main), elements, reads, writes or reads))]
