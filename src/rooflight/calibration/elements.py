"""Task bound by memory: elementwise arithmetic, copies, reductions, norms, softmax, pooling, embeddings, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rooflight.calibration.case import DTYPES, BenchmarkCase, Call, Cases, OutOfPool, TensorPool
from rooflight.calibration.sampling import KNOWN_SIDES, choice, is_power_of_two, points, unusual, whole
from rooflight.ops.kernel_task import Task

aten = torch.ops.aten
_F, _B = torch.float32, torch.bfloat16

# name: (family, dtype of the inputs, number of inputs, dtype of the output, call)
_ELEMENTWISE: dict[str, tuple[str, torch.dtype, int, torch.dtype, Callable[..., Any]]] = {
    "relu fp32": ("plain", _F, 1, _F, torch.relu),
    "add fp32": ("plain", _F, 2, _F, torch.add),
    "addcmul fp32": ("plain", _F, 3, _F, torch.addcmul),
    "relu bf16": ("plain", _B, 1, _B, torch.relu),
    "add bf16": ("plain", _B, 2, _B, torch.add),
    "threshold bf16": ("plain", _B, 2, _B, lambda x, y: aten.threshold_backward(x, y, 0)),
    "to bf16": ("cast", _F, 1, _B, lambda x: x.to(_B)),
    "to fp32": ("cast", _B, 1, _F, lambda x: x.to(_F)),
    "compare": ("cast", _F, 1, torch.bool, lambda x: x > 0),
    "fill fp32": ("plain", _F, 0, _F, lambda x: torch.empty_like(x).zero_()),
    "clone fp32": ("plain", _F, 1, _F, torch.clone),
    "gelu fp32": ("math", _F, 1, _F, torch.nn.functional.gelu),
    "gelu bf16": ("math", _B, 1, _B, torch.nn.functional.gelu),
    "gelu backward fp32": ("math", _F, 2, _F, aten.gelu_backward),
    "gelu backward bf16": ("math", _B, 2, _B, aten.gelu_backward),
    "silu fp32": ("math", _F, 1, _F, torch.nn.functional.silu),
    "silu bf16": ("math", _B, 1, _B, torch.nn.functional.silu),
    "silu backward bf16": ("math", _B, 2, _B, aten.silu_backward),
    "tanh fp32": ("math", _F, 1, _F, torch.tanh),
    "pow bf16": ("math", _B, 1, _B, lambda x: torch.pow(x, 3.0)),
}


def elementwise_cases(seed: int, largest: int) -> Cases:
    names = sorted(_ELEMENTWISE)
    for u in points(2, seed):
        name = names[int(u[1] * len(names))]
        family, taken, inputs, given, call = _ELEMENTWISE[name]
        elements = 8 * unusual(whole(u[0], 8, largest // 8))
        width = given if family == "cast" else taken
        task = Task(
            family,
            "fp32" if width == _F else "bf16",
            (elements, inputs * elements * taken.itemsize, elements * given.itemsize),
        )
        yield BenchmarkCase(task, partial(_elementwise, elements, taken, max(inputs, 1), call))


def _elementwise(elements: int, dtype: torch.dtype, inputs: int, call: Callable[..., Any], pool: TensorPool) -> Call:
    return partial(call, *(pool.take(elements, dtype=dtype) for _ in range(inputs)))


def broadcast_cases(seed: int, largest: int) -> Cases:
    """A row added to every row, a factor for every channel, one number for all (the gradient of a mean)."""
    for u in points(4, seed):
        elements = whole(u[0], 256, largest)
        columns = whole(u[1], 4, 8192, 1 if u[1] * 10 % 1 < 0.3 else 8)
        rows = unusual(max(2, elements // columns))
        precision = "fp32" if u[2] < 0.5 else "bf16"
        size = DTYPES[precision].itemsize
        if u[3] < 0.15:
            task = Task("broadcast", precision, (rows * columns, size, rows * columns * size))
            yield BenchmarkCase(task, partial(_expanded, rows, columns, DTYPES[precision]))
            continue
        by_row = u[3] < 0.6
        few = columns if by_row else rows
        task = Task("broadcast", precision, (rows * columns, (rows * columns + few) * size, rows * columns * size))
        yield BenchmarkCase(task, partial(_broadcast, rows, columns, by_row, DTYPES[precision]))


def _broadcast(rows: int, columns: int, by_row: bool, dtype: torch.dtype, pool: TensorPool) -> Call:
    few = pool.take(1, columns, dtype=dtype) if by_row else pool.take(rows, 1, dtype=dtype)
    return partial(torch.mul, pool.take(rows, columns, dtype=dtype), few)


def _expanded(rows: int, columns: int, dtype: torch.dtype, pool: TensorPool) -> Call:
    return partial(torch.div, pool.take(1, 1, dtype=dtype).expand(rows, columns), 2.0)


def strided_cases(seed: int, largest: int) -> Cases:
    """Copies that change the order: of heads and tokens (long runs), of channels and pixels (single elements)."""
    for u in points(5, seed):
        run = 1 if u[3] < 0.4 else whole(u[3], 2, 256, 2)
        a, b = whole(u[1], 4, 2048), whole(u[2], 4, 2048)
        outer = max(1, whole(u[0], 256, largest) // (a * b * run))
        precision = "fp32" if u[4] < 0.5 else "bf16"
        elements = outer * a * b * run
        if elements > largest:
            continue
        nbytes = elements * DTYPES[precision].itemsize
        task = Task("strided", precision, (elements, nbytes, nbytes, run))
        yield BenchmarkCase(task, partial(_strided, (outer, a, b, run), DTYPES[precision]))


def _strided(shape: tuple[int, int, int, int], dtype: torch.dtype, pool: TensorPool) -> Call:
    return pool.take(*shape, dtype=dtype).transpose(1, 2).contiguous


def dropout_cases(seed: int, largest: int) -> Cases:
    for u in points(2, seed):
        elements = unusual(whole(u[0], 32, largest // 8)) * (8 if u[1] * 10 % 1 < 0.8 else 1)
        precision = "fp32" if u[1] < 0.5 else "bf16"
        size = DTYPES[precision].itemsize
        task = Task("dropout", precision, (elements, elements * size, elements * (size + 1)))
        yield BenchmarkCase(task, partial(_dropout, elements, DTYPES[precision]))


def _dropout(elements: int, dtype: torch.dtype, pool: TensorPool) -> Call:
    return partial(aten.native_dropout, pool.take(elements, dtype=dtype), 0.1, True)


def cat_cases(seed: int, largest: int) -> Cases:
    """Channels of several tensors side by side: equal parts, or a large one and what was made since. A single one is
    joined to nothing yet, as the first keys of a cache are."""
    for u in points(6, seed):
        tensors, inner = whole(u[1], 1, 32), whole(u[2], 8, 65536, 8 if u[5] < 0.8 else 1)
        outer = max(1, whole(u[0], 256, largest) // (tensors * inner))
        first = inner * (1 if u[4] < 0.5 else whole(u[4], 2, 16))
        contiguous = int(u[5] * 10 % 1 < 0.65 or outer == 1)
        precision = "fp32" if u[3] < 0.5 else "bf16"
        sizes = [first] + [inner] * (tensors - 1)
        elements = outer * sum(sizes)
        if elements > largest:
            continue
        nbytes = elements * DTYPES[precision].itemsize
        task = Task("cat", precision, (tensors, elements, nbytes, nbytes, outer * first, contiguous, min(sizes)))
        yield BenchmarkCase(task, partial(_cat, outer, sizes, contiguous, DTYPES[precision]))


def _cat(outer: int, sizes: list[int], contiguous: int, dtype: torch.dtype, pool: TensorPool) -> Call:
    if contiguous:
        return partial(torch.cat, [pool.take(outer, size, dtype=dtype) for size in sizes], 1)
    # Halves of heads that were cut from the features of a token, as a rotary embedding has them: its kernel works out
    # four indices for every element.
    tokens = next(count for count in (8, 4, 2, 1) if outer % count == 0)
    rows = [pool.take(1, tokens, outer // tokens, 2 * size, dtype=dtype).transpose(1, 2) for size in sizes]
    return partial(torch.cat, [row[..., :size] for row, size in zip(rows, sizes, strict=True)], 3)


def reduce_cases(seed: int, largest: int) -> Cases:
    """Sums over the innermost axis (means, norms) and over the outer ones (gradients of biases)."""
    for u in points(4, seed):
        innermost = u[2] < 0.5
        aligned = 8 if u[3] * 10 % 1 < 0.7 else 1
        kept, reduced = whole(u[0], 1, 65536, aligned), whole(u[1], 2, 1 << 22, aligned)
        reduced = aligned * unusual(max(11, reduced // aligned))
        if u[2] < 0.06:
            kept, reduced = 1, 8 * unusual(whole(u[1], 8, largest // 8))
        innermost = innermost or kept == 1
        if not 64 <= kept * reduced <= largest:
            continue
        precision = "fp32" if u[3] < 0.5 else "bf16"
        task = Task("reduce", precision, (kept, reduced, int(innermost)))
        yield BenchmarkCase(task, partial(_reduce, task))


def _reduce(task: Task, pool: TensorPool) -> Call:
    kept, reduced, innermost = task.numbers
    dtype = DTYPES[task.precision]
    if innermost:
        return partial(torch.sum, pool.take(kept, reduced, dtype=dtype), 1)
    return partial(torch.sum, pool.take(reduced, kept, dtype=dtype), 0)


def rows_cases(family: str, seed: int, largest: int) -> Cases:
    """Softmax and layer norm: whole rows at a time."""
    for u in points(3, seed):
        aligned = 1 if u[2] * 10 % 1 < 0.2 else 8
        columns = whole(u[1], 16, 70000 if family.startswith("softmax") else 16384, aligned)
        rows = unusual(whole(u[0], 1, 262144))
        if not 256 <= rows * columns <= largest or (rows == 1 and columns % 64 == 0):  # a decoded token is such a row
            continue
        task = Task(family, "fp32" if u[2] < 0.5 else "bf16", (rows, columns))
        yield BenchmarkCase(task, partial(_rows, task))


def _rows(task: Task, pool: TensorPool) -> Call:
    rows, columns = task.numbers
    dtype = DTYPES[task.precision]
    x, y = pool.take(rows, columns, dtype=dtype), pool.take(rows, columns, dtype=dtype)
    if task.family == "softmax-forward":
        return partial(aten._softmax, x, -1, False)
    if task.family == "softmax-backward":
        return partial(aten._softmax_backward_data, x, y, -1, dtype)
    weight, bias = pool.take(columns, dtype=dtype), pool.take(columns, dtype=dtype)
    if task.family == "layer-norm-forward":
        return partial(aten.native_layer_norm, x, [columns], weight, bias, 1e-5)
    mean, scale = (torch.ones(rows, 1, device=x.device, dtype=_kept(x)) for _ in range(2))
    return partial(aten.native_layer_norm_backward, y, x, [columns], mean, scale, weight, bias, [True, True, True])


def _kept(x: torch.Tensor) -> torch.dtype:
    """What means and deviations are kept in for backward: fp32 on a GPU, on a CPU as the weights are."""
    return x.dtype if x.device.type == "cpu" else torch.float32


def group_norm_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(3, seed):
        rows, columns = whole(u[0], 2, 8192), whole(u[1], 64, 262144, 8)
        if rows * columns > largest:
            continue
        task = Task(family, "fp32" if u[2] < 0.5 else "bf16", (rows, columns))
        yield BenchmarkCase(task, partial(_group_norm, task))


def _group_norm(task: Task, pool: TensorPool) -> Call:
    rows, columns = task.numbers
    dtype = DTYPES[task.precision]
    n, groups = (rows // 2, 2) if rows % 2 == 0 else (rows, 1)
    shape = (n, groups * 8, columns // 8)
    x, grad = pool.take(*shape, dtype=dtype), pool.take(*shape, dtype=dtype)
    weight, bias = pool.take(shape[1], dtype=dtype), pool.take(shape[1], dtype=dtype)
    if task.family == "group-norm-forward":
        return partial(aten.native_group_norm, x, weight, bias, n, shape[1], shape[2], groups, 1e-5)
    mean, scale = (torch.ones(n, groups, device=x.device, dtype=dtype) for _ in range(2))
    return partial(
        aten.native_group_norm_backward, grad, x, mean, scale, weight, n, shape[1], shape[2], groups, [True, True, True]
    )


def batch_norm_cases(family: str, seed: int, largest: int, *, cuda: bool) -> Cases:
    """cuDNN's and torch's own: which one runs is torch's choice, by precision, layout and mode."""
    for u in points(5, seed):
        n, c, side = whole(u[0], 1, 256), whole(u[1], 8, 2048, 8), whole(u[2], 3, 160)
        while side in KNOWN_SIDES:
            side += 1
        if n * c * side * side > largest:
            continue
        channels_last = int(u[3] < 0.25)
        if "cudnn" in family and not cuda:
            return
        precision = "fp32" if u[4] < 0.5 else "bf16"
        task = Task(family, precision, (n, c, side * side, channels_last))
        yield BenchmarkCase(task, partial(_batch_norm, task, side))


def _batch_norm(task: Task, side: int, pool: TensorPool) -> Call:
    n, c, _, channels_last = task.numbers
    dtype = DTYPES[task.precision]
    if "cudnn" in task.family and dtype == _B:
        dtype = torch.float16  # 16 bits are 16 bits, and cuDNN's takes no others (with weights in fp32, as autocast)

    def images() -> torch.Tensor:
        if channels_last:
            return pool.take(n, side, side, c, dtype=dtype).permute(0, 3, 1, 2)
        return pool.take(n, c, side, side, dtype=dtype)

    x, grad = images(), images()
    own = torch.float32 if "cudnn" in task.family else dtype
    weight, bias, mean = (pool.take(c, dtype=own) for _ in range(3))
    variance = torch.ones(c, device=x.device, dtype=own)
    way = task.family.rpartition("-")[2]
    if "cudnn" in task.family:
        if way != "backward":
            return partial(aten.cudnn_batch_norm, x, weight, bias, mean, variance, way == "train", 0.1, 1e-5)
        _, saved_mean, saved_scale, reserve = aten.cudnn_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
        return partial(
            aten.cudnn_batch_norm_backward, x, grad, weight, mean, variance, saved_mean, saved_scale, 1e-5, reserve
        )
    if way != "backward":
        return partial(aten.native_batch_norm, x, weight, bias, mean, variance, way == "train", 0.1, 1e-5)
    saved, scale = (torch.ones(c, device=x.device, dtype=_kept(x)) for _ in range(2))
    return partial(
        aten.native_batch_norm_backward, grad, x, weight, mean, variance, saved, scale, True, 1e-5, [True, True, True]
    )


def embedding_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(4, seed):
        rows, columns = whole(u[0], 1, 131072), whole(u[1], 16, 8192, 8)
        vocabulary = whole(u[3], 64, 150000)
        if max(rows, vocabulary) * columns > largest or (is_power_of_two(rows) and columns % 64 == 0):
            continue  # too much, or the tokens of a batch that is decoded
        numbers = (rows, columns) if family.endswith("forward") else (rows, columns, vocabulary)
        task = Task(family, "fp32" if u[2] < 0.5 else "bf16", numbers)
        yield BenchmarkCase(task, partial(_embedding, task, vocabulary))


def _embedding(task: Task, vocabulary: int, pool: TensorPool) -> Call:
    rows, columns = task.numbers[:2]
    dtype = DTYPES[task.precision]
    indices = torch.randint(0, vocabulary, (rows,), device=pool.device)
    if task.family.endswith("forward"):
        return partial(aten.embedding, pool.take(vocabulary, columns, dtype=dtype), indices)
    return partial(aten.embedding_dense_backward, pool.take(rows, columns, dtype=dtype), indices, vocabulary, -1, False)


def pool_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(6, seed):
        n, c, side = whole(u[0], 1, 256), whole(u[1], 8, 1024, 8), whole(u[2], 4, 256)
        while side in KNOWN_SIDES:
            side += 1
        kernel = choice(u[3], ((4, 2), (5, 3), (1, 5), (1, 7)))
        stride = kernel if kernel > 3 else 2 if u[3] * 10 % 1 < 0.7 else 1
        if n * c * side * side > largest or side <= kernel:
            continue
        out = (side - kernel) // stride + 1
        precision = "fp32" if u[4] < 0.5 else "bf16"
        task = Task(family, precision, (n * c, side, side, kernel, stride, out * out, int(u[5] < 0.2)))
        yield BenchmarkCase(task, partial(_pool, task, n))


def _pool(task: Task, n: int, pool: TensorPool) -> Call:
    planes, h, w, kernel, stride, _, channels_last = task.numbers
    dtype = DTYPES[task.precision]
    c = planes // n
    x = pool.take(n, h, w, c, dtype=dtype).permute(0, 3, 1, 2) if channels_last else pool.take(n, c, h, w, dtype=dtype)
    size, step, pad = [kernel] * 2, [stride] * 2, [0, 0]
    forward, backward = (
        (aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward)
        if task.family.startswith("max")
        else (aten.avg_pool2d, aten.avg_pool2d_backward)
    )
    if task.family.endswith("forward"):
        return partial(forward, x, size, step, pad)
    if task.family.startswith("max"):
        values, indices = forward(x, size, step, pad)
        return partial(backward, values, x, size, step, pad, [1, 1], False, indices)
    return partial(backward, forward(x, size, step, pad), x, size, step, pad, False, True, None)


# name: (tensor lists that are read, lists that are written, call)
_FOREACH: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "mul": (1, 1, lambda x: torch._foreach_mul_(x, 1.0)),
    "add": (2, 1, lambda x, y: torch._foreach_add_(x, y, alpha=0.1)),
    "lerp": (2, 1, lambda x, y: torch._foreach_lerp_(x, y, 0.1)),
    "addcmul": (3, 1, lambda x, y, z: torch._foreach_addcmul_(x, y, z, 0.1)),
    "addcmul of one": (2, 1, lambda x, y: torch._foreach_addcmul_(x, y, y, 0.1)),
    "sqrt": (1, 1, torch._foreach_sqrt),
}


def foreach_cases(seed: int, largest: int) -> Cases:
    """One step of an optimizer over a model's tensors: a few large ones, many small."""
    names = sorted(_FOREACH)
    for u in points(4, seed):
        lists, written, call = _FOREACH[names[int(u[2] * len(names))]]
        tensors, elements = whole(u[0], 2, 512), whole(u[1], 1024, largest // 2)
        sizes = tensor_sizes(tensors, elements)
        precision = "fp32" if u[3] < 0.5 else "bf16"
        nbytes = sum(sizes) * DTYPES[precision].itemsize
        task = Task("foreach", precision, (tensors, sum(sizes), lists * nbytes, written * nbytes))
        yield BenchmarkCase(task, partial(_foreach, sizes, lists, DTYPES[precision], call))


def tensor_sizes(tensors: int, elements: int) -> list[int]:
    """Half of a model's tensors are vectors that weigh nothing; the matrices differ by a factor of ten."""
    weights = [0.001 if i % 2 else 10 ** (i / tensors) for i in range(tensors)]
    return [max(8, int(elements * weight / sum(weights)) // 8 * 8) for weight in weights]


def _foreach(sizes: list[int], lists: int, dtype: torch.dtype, call: Callable[..., Any], pool: TensorPool) -> Call:
    taken = [[pool.take(size, dtype=dtype) for size in sizes] for _ in range(lists)]
    for tensor in taken[0]:
        tensor.abs_()
    return partial(call, *taken)


def fused_cases(family: str, seed: int, largest: int) -> Cases:
    """Optimizers that do the whole update in one kernel."""
    for u in points(3, seed):
        tensors, elements = whole(u[0], 2, 512), whole(u[1], 1024, largest // 4)
        sizes = tensor_sizes(tensors, elements)
        precision = "fp32" if u[2] < 0.5 else "bf16"
        nbytes = sum(sizes) * DTYPES[precision].itemsize
        reads, writes = (3, 2) if family == "fused-sgd" else (4, 3)
        task = Task(family, precision, (tensors, sum(sizes), reads * nbytes, writes * nbytes))
        yield BenchmarkCase(task, partial(_fused, task, sizes))


def _fused(task: Task, sizes: list[int], pool: TensorPool) -> Call:
    if pool.device.type == "cpu":
        raise OutOfPool
    # Not cut from the pool, which others write: the root of a second moment below zero is no number, which takes
    # up to twice as long to compute with.
    lists = [[pool.own(size, dtype=DTYPES[task.precision]) for size in sizes] for _ in range(4)]
    if task.family == "fused-sgd":
        options: dict[str, Any] = dict(
            weight_decay=0.0, momentum=0.9, lr=1e-9, dampening=0.0, nesterov=False, maximize=False, is_first_step=False
        )
        return partial(aten._fused_sgd_, lists[0], lists[1], lists[2], **options)
    steps = [torch.ones((), device=pool.device) for _ in sizes]
    options = dict(lr=1e-9, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
    return partial(aten._fused_adamw_, lists[0], lists[1], lists[2], lists[3], [], steps, **options)
