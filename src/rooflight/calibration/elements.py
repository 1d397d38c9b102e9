"""What memory bounds: elementwise arithmetic, copies, reductions, norms, softmax, pooling, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rooflight.calibration.case import DTYPES, Call, Cases, OutOfPool, TensorPool, case
from rooflight.calibration.sampling import KNOWN_SIDES, choice, points, unusual, whole
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
    "clone fp32": ("copy", _F, 1, _F, torch.clone),
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


def half_each(u: float) -> str:
    """The precision: one half of the cases in 32 bits, the other in 16."""
    return "fp32" if u < 0.5 else "bf16"


def elementwise_cases(seed: int, largest: int) -> Cases:
    names = sorted(_ELEMENTWISE)
    for u in points(2, seed):
        family, taken, inputs, given, call = _ELEMENTWISE[names[int(u[1] * len(names))]]
        elements = 8 * unusual(whole(u[0], 8, largest // 8))
        width = given if family == "cast" else taken
        numbers = (elements, inputs * elements * taken.itemsize, elements * given.itemsize)
        yield case(_elementwise, Task(family, "fp32" if width == _F else "bf16", numbers), taken, max(inputs, 1), call)


def _elementwise(task: Task, dtype: torch.dtype, inputs: int, call: Callable[..., Any], pool: TensorPool) -> Call:
    return partial(call, *(pool.take(task.numbers[0], dtype=dtype) for _ in range(inputs)))


def broadcast_cases(seed: int, largest: int) -> Cases:
    """A row added to every row, a factor for every channel, one number for all (the gradient of a mean)."""
    for u in points(4, seed):
        elements = whole(u[0], 256, largest)
        columns = whole(u[1], 4, 8192, 1 if u[1] * 10 % 1 < 0.3 else 8)
        rows = unusual(max(2, elements // columns))
        precision = half_each(u[2])
        size, elements = DTYPES[precision].itemsize, rows * columns
        if u[3] < 0.15:
            yield case(_expanded, Task("broadcast", precision, (elements, size, elements * size)), rows, columns)
        else:
            few = (1, columns) if u[3] < 0.6 else (rows, 1)
            numbers = (elements, (elements + max(few)) * size, elements * size)
            yield case(_broadcast, Task("broadcast", precision, numbers), (rows, columns), few)


def _broadcast(task: Task, shape: tuple[int, int], few: tuple[int, int], pool: TensorPool) -> Call:
    take = pool.taking(task.precision)
    factors = take(*few)
    return partial(torch.mul, take(*shape), factors)


def mixed_cases(seed: int, largest: int) -> Cases:
    """16 bits times 32: the kernel converts as it goes, element by element."""
    for u in points(4, seed):
        columns = whole(u[1], 4, 8192, 8)
        rows = unusual(max(2, whole(u[0], 256, largest) // columns))
        few = (rows, 1) if u[3] < 0.6 else (1, columns) if u[3] < 0.8 else (rows, columns)
        narrow = (rows, columns) if u[2] < 0.7 else few
        wide = few if u[2] < 0.7 else (rows, columns)
        elements = rows * columns
        nbytes = 2 * narrow[0] * narrow[1] + 4 * wide[0] * wide[1]
        yield case(_mixed, Task("mixed", "fp32", (elements, nbytes, 4 * elements)), narrow, wide)


def _mixed(task: Task, narrow: tuple[int, int], wide: tuple[int, int], pool: TensorPool) -> Call:
    return partial(torch.mul, pool.take(*narrow, dtype=_B), pool.take(*wide))


def _expanded(task: Task, rows: int, columns: int, pool: TensorPool) -> Call:
    return partial(torch.div, pool.taking(task.precision)(1, 1).expand(rows, columns), 2.0)


def strided_cases(seed: int, largest: int) -> Cases:
    """Copies that change the order: of heads and tokens (long runs), of channels and pixels (single elements)."""
    for u in points(5, seed):
        run = 1 if u[3] < 0.4 else whole(u[3], 2, 256, 2)
        a, b = whole(u[1], 4, 2048), whole(u[2], 4, 2048)
        outer = max(1, whole(u[0], 256, largest) // (a * b * run))
        precision = half_each(u[4])
        elements = outer * a * b * run
        if elements <= largest:
            nbytes = elements * DTYPES[precision].itemsize
            yield case(_strided, Task("strided", precision, (elements, nbytes, nbytes, run)), (outer, a, b, run))


def _strided(task: Task, shape: tuple[int, int, int, int], pool: TensorPool) -> Call:
    return pool.taking(task.precision)(*shape).transpose(1, 2).contiguous


def dropout_cases(seed: int, largest: int) -> Cases:
    for u in points(2, seed):
        elements = unusual(whole(u[0], 32, largest // 8)) * (8 if u[1] * 10 % 1 < 0.8 else 1)
        precision = half_each(u[1])
        size = DTYPES[precision].itemsize
        yield case(_dropout, Task("dropout", precision, (elements, elements * size, elements * (size + 1))))


def _dropout(task: Task, pool: TensorPool) -> Call:
    return partial(aten.native_dropout, pool.taking(task.precision)(task.numbers[0]), 0.1, True)


def cat_cases(seed: int, largest: int) -> Cases:
    """Channels of several tensors side by side: equal parts, or a large one and what was made since. A single one is
    joined to nothing yet, as the first keys of a cache are."""
    for u in points(6, seed):
        tensors, inner = whole(u[1], 1, 32), whole(u[2], 8, 65536, 8 if u[5] < 0.8 else 1)
        outer = max(1, whole(u[0], 256, largest) // (tensors * inner))
        first = inner * (1 if u[4] < 0.5 else whole(u[4], 2, 16))
        contiguous = int(u[5] * 10 % 1 < 0.65 or outer == 1)
        precision = half_each(u[3])
        sizes = [first] + [inner] * (tensors - 1)
        elements = outer * sum(sizes)
        if elements <= largest:
            nbytes = elements * DTYPES[precision].itemsize
            numbers = (tensors, elements, nbytes, nbytes, outer * first, contiguous, min(sizes))
            yield case(_cat, Task("cat", precision, numbers), outer, sizes)


def _cat(task: Task, outer: int, sizes: list[int], pool: TensorPool) -> Call:
    take, contiguous = pool.taking(task.precision), task.numbers[5]
    if contiguous:
        return partial(torch.cat, [take(outer, size) for size in sizes], 1)
    # Halves of heads that were cut from the features of a token, as a rotary embedding has them: its kernel works out
    # four indices for every element.
    tokens = next(count for count in (8, 4, 2, 1) if outer % count == 0)
    rows = [take(1, tokens, outer // tokens, 2 * size).transpose(1, 2) for size in sizes]
    return partial(torch.cat, [row[..., :size] for row, size in zip(rows, sizes, strict=True)], 3)


def reduce_cases(seed: int, largest: int, family: str = "reduce") -> Cases:
    """Over the innermost axis (means, norms) and over the outer ones (gradients of biases)."""
    for u in points(4, seed):
        aligned = 8 if u[3] * 10 % 1 < 0.7 else 1
        kept, reduced = whole(u[0], 1, 65536, aligned), whole(u[1], 2, 1 << 22, aligned)
        reduced = aligned * unusual(max(11, reduced // aligned))
        if u[2] < 0.06:
            kept, reduced = 1, 8 * unusual(whole(u[1], 8, largest // 8))
        if 64 <= kept * reduced <= largest:
            yield case(_reduce, Task(family, half_each(u[3]), (kept, reduced, int(u[2] < 0.5 or kept == 1))))


def short_reduce_cases(family: str, seed: int, largest: int) -> Cases:
    """Few numbers each, of many: the norms of features, the best of some classes."""
    for u in points(4, seed):
        kept, reduced = unusual(whole(u[0], 16, largest // 8)), whole(u[1], 2, 512, 1 if u[3] * 10 % 1 < 0.4 else 8)
        if kept * reduced <= largest:
            yield case(_reduce, Task(family, half_each(u[3]), (kept, reduced, int(u[2] < 0.6))))


_REDUCED: dict[str, Callable[..., Any]] = {
    "reduce": torch.sum,
    "reduce-norm": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "reduce-index": torch.max,
    "scan": torch.cumsum,
}


def _reduce(task: Task, pool: TensorPool) -> Call:
    kept, reduced, innermost = task.numbers
    shape = (kept, reduced) if innermost else (reduced, kept)
    return partial(_REDUCED[task.family], pool.taking(task.precision)(*shape), innermost)


def nll_cases(seed: int, largest: int) -> Cases:
    """A loss over classes: one number of every row."""
    for u in points(3, seed):
        rows, columns = unusual(whole(u[0], 16, 300_000)), whole(u[1], 2, 60_000)
        if rows * columns <= largest:
            yield case(_nll, Task("nll-forward", half_each(u[2]), (rows, columns)))


def _nll(task: Task, pool: TensorPool) -> Call:
    rows, columns = task.numbers
    target = torch.randint(0, columns, (rows,), device=pool.device)
    return partial(aten.nll_loss_forward, pool.taking(task.precision)(rows, columns), target, None, 1, -100)


def rows_cases(family: str, seed: int, largest: int) -> Cases:
    """Softmax and layer norm: whole rows at a time."""
    for u in points(3, seed):
        aligned = 1 if u[2] * 10 % 1 < 0.2 else 8
        columns = whole(u[1], 16, 70000 if family.startswith("softmax") else 16384, aligned)
        rows = unusual(whole(u[0], 1, 262144))
        decoded = rows == 1 and columns % 64 == 0  # a token is such a row
        if 256 <= rows * columns <= largest and not decoded:
            yield case(_rows, Task(family, half_each(u[2]), (rows, columns)))


def _rows(task: Task, pool: TensorPool) -> Call:
    rows, columns = task.numbers
    take = pool.taking(task.precision)
    x, y = take(rows, columns), take(rows, columns)
    if task.family == "softmax-forward":
        return partial(aten._softmax, x, -1, False)
    if task.family == "softmax-backward":
        return partial(aten._softmax_backward_data, x, y, -1, x.dtype)
    weight, bias = take(columns), take(columns)
    if task.family == "layer-norm-forward":
        return partial(aten.native_layer_norm, x, [columns], weight, bias, 1e-5)
    mean, scale = (torch.ones(rows, 1, device=x.device, dtype=_saved_in(x)) for _ in range(2))
    return partial(aten.native_layer_norm_backward, y, x, [columns], mean, scale, weight, bias, [True, True, True])


def _saved_in(x: torch.Tensor) -> torch.dtype:
    """What means and deviations are kept in for backward: fp32 on a GPU, on a CPU as the weights are."""
    return x.dtype if x.device.type == "cpu" else torch.float32


def group_norm_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(3, seed):
        rows, columns = whole(u[0], 2, 8192), whole(u[1], 64, 262144, 8)
        if rows * columns <= largest:
            yield case(_group_norm, Task(family, half_each(u[2]), (rows, columns)))


def _group_norm(task: Task, pool: TensorPool) -> Call:
    rows, columns = task.numbers
    take = pool.taking(task.precision)
    n, groups = (rows // 2, 2) if rows % 2 == 0 else (rows, 1)
    channels, pixels = groups * 8, columns // 8
    x, grad = take(n, channels, pixels), take(n, channels, pixels)
    weight, bias = take(channels), take(channels)
    if task.family == "group-norm-forward":
        return partial(aten.native_group_norm, x, weight, bias, n, channels, pixels, groups, 1e-5)
    mean, scale = (torch.ones(n, groups, device=x.device, dtype=x.dtype) for _ in range(2))
    sizes, all_three = (n, channels, pixels, groups), [True, True, True]
    return partial(aten.native_group_norm_backward, grad, x, mean, scale, weight, *sizes, all_three)


def _side(u: float, low: int, high: int) -> int:
    """Of a picture, but none inside a network that everybody knows."""
    side = whole(u, low, high)
    while side in KNOWN_SIDES:
        side += 1
    return side


def batch_norm_cases(family: str, seed: int, largest: int, *, cuda: bool) -> Cases:
    """cuDNN's and torch's own: which one runs is torch's choice, by precision, layout and mode."""
    if "cudnn" in family and not cuda:
        return
    for u in points(5, seed):
        n, c, side = whole(u[0], 1, 256), whole(u[1], 8, 2048, 8), _side(u[2], 3, 160)
        if n * c * side * side <= largest:
            task = Task(family, half_each(u[4]), (n, c, side * side, int(u[3] < 0.25)))
            yield case(_batch_norm, task, side)


def _batch_norm(task: Task, side: int, pool: TensorPool) -> Call:
    n, c, _, channels_last = task.numbers
    cudnn, way = "cudnn" in task.family, task.family.rpartition("-")[2]
    dtype = DTYPES[task.precision]
    if cudnn and dtype == _B:
        dtype = torch.float16  # 16 bits are 16 bits, and cuDNN's takes no others (with weights in fp32, as autocast)
    x, grad = (pool.images(n, c, side, side, dtype=dtype, channels_last=bool(channels_last)) for _ in range(2))
    weights_in = torch.float32 if cudnn else dtype
    weight, bias, mean = (pool.take(c, dtype=weights_in) for _ in range(3))
    variance = torch.ones(c, device=x.device, dtype=weights_in)
    forward = aten.cudnn_batch_norm if cudnn else aten.native_batch_norm
    if way != "backward":
        return partial(forward, x, weight, bias, mean, variance, way == "train", 0.1, 1e-5)
    if cudnn:
        _, *saved, reserve = forward(x, weight, bias, mean, variance, True, 0.1, 1e-5)
        return partial(aten.cudnn_batch_norm_backward, x, grad, weight, mean, variance, *saved, 1e-5, reserve)
    saved = [torch.ones(c, device=x.device, dtype=_saved_in(x)) for _ in range(2)]
    backward, all_three = aten.native_batch_norm_backward, [True, True, True]
    return partial(backward, grad, x, weight, mean, variance, *saved, True, 1e-5, all_three)


def pool_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(6, seed):
        n, c, side = whole(u[0], 1, 256), whole(u[1], 8, 1024, 8), _side(u[2], 4, 256)
        kernel = choice(u[3], ((4, 2), (5, 3), (1, 5), (1, 7)))
        stride = kernel if kernel > 3 else 2 if u[3] * 10 % 1 < 0.7 else 1
        if n * c * side * side <= largest and side > kernel:
            out = (side - kernel) // stride + 1
            numbers = (n * c, side, side, kernel, stride, out * out, int(u[5] < 0.2))
            yield case(_pool, Task(family, half_each(u[4]), numbers), n)


def _pool(task: Task, n: int, pool: TensorPool) -> Call:
    planes, h, w, kernel, stride, _, channels_last = task.numbers
    is_max = task.family.startswith("max")
    x = pool.images(n, planes // n, h, w, dtype=DTYPES[task.precision], channels_last=bool(channels_last))
    window = ([kernel] * 2, [stride] * 2, [0, 0])
    forward = aten.max_pool2d_with_indices if is_max else aten.avg_pool2d
    if task.family.endswith("forward"):
        return partial(forward, x, *window)
    if is_max:
        values, indices = forward(x, *window)
        return partial(aten.max_pool2d_with_indices_backward, values, x, *window, [1, 1], False, indices)
    return partial(aten.avg_pool2d_backward, forward(x, *window), x, *window, False, True, None)


def volume_pool_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(5, seed):
        planes, side = whole(u[0], 1, 2048), _side(u[1], 5, 140)
        kernel = choice(u[2], ((4, 2), (5, 3), (1, 5)))
        stride = kernel if u[3] < 0.4 else 2 if u[3] < 0.8 else 1
        if planes * side**3 <= largest and side > kernel:
            out = (side - kernel) // stride + 1
            numbers = (planes, side * side, side, kernel, stride, out**3, 0)
            yield case(_volume_pool, Task(family, half_each(u[4]), numbers))


def _volume_pool(task: Task, pool: TensorPool) -> Call:
    planes, _, side, kernel, stride, _, _ = task.numbers
    x = pool.taking(task.precision)(1, planes, side, side, side)
    window = ([kernel] * 3, [stride] * 3, [0] * 3)
    is_max = task.family.startswith("max")
    forward = aten.max_pool3d_with_indices if is_max else aten.avg_pool3d
    if task.family.endswith("forward"):
        return partial(forward, x, *window)
    if is_max:
        values, indices = forward(x, *window)
        return partial(aten.max_pool3d_with_indices_backward, values, x, *window, [1] * 3, False, indices)
    return partial(aten.avg_pool3d_backward, forward(x, *window), x, *window, False, True, None)


# name: (tensor lists that are read, lists that are written, call)
_FOREACH: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "mul": (1, 1, lambda x: torch._foreach_mul_(x, 1.0)),
    "add": (2, 1, lambda x, y: torch._foreach_add_(x, y, alpha=0.1)),
    "lerp": (2, 1, lambda x, y: torch._foreach_lerp_(x, y, 0.1)),
    "addcmul": (3, 1, lambda x, y, z: torch._foreach_addcmul_(x, y, z, 0.1)),
    "addcmul of one": (2, 1, lambda x, y: torch._foreach_addcmul_(x, y, y, 0.1)),
    "sqrt": (1, 1, torch._foreach_sqrt),
}


def _update(family: str, precision: str, sizes: list[int], reads: int, writes: int) -> Task:
    """Of tensors of these sizes: so many lists of them are read, so many written."""
    nbytes = sum(sizes) * DTYPES[precision].itemsize
    return Task(family, precision, (len(sizes), sum(sizes), reads * nbytes, writes * nbytes))


def foreach_cases(seed: int, largest: int) -> Cases:
    """One step of an optimizer over a model's tensors: a few large ones, many small."""
    names = sorted(_FOREACH)
    for u in points(4, seed):
        lists, written, call = _FOREACH[names[int(u[2] * len(names))]]
        sizes = tensor_sizes(whole(u[0], 2, 512), whole(u[1], 1024, largest // 2))
        yield case(_foreach, _update("foreach", half_each(u[3]), sizes, lists, written), sizes, lists, call)


def tensor_sizes(tensors: int, elements: int) -> list[int]:
    """Half of a model's tensors are vectors that weigh nothing; the matrices differ by a factor of ten."""
    weights = [0.001 if i % 2 else 10 ** (i / tensors) for i in range(tensors)]
    return [max(8, int(elements * weight / sum(weights)) // 8 * 8) for weight in weights]


def _foreach(task: Task, sizes: list[int], lists: int, call: Callable[..., Any], pool: TensorPool) -> Call:
    take = pool.taking(task.precision)
    taken = [[take(size) for size in sizes] for _ in range(lists)]
    for tensor in taken[0]:
        tensor.abs_()
    return partial(call, *taken)


def fused_cases(family: str, seed: int, largest: int) -> Cases:
    """Optimizers that do the whole update in one kernel."""
    for u in points(3, seed):
        sizes = tensor_sizes(whole(u[0], 2, 512), whole(u[1], 1024, largest // 4))
        reads, writes = (3, 2) if family == "fused-sgd" else (4, 3)
        yield case(_fused, _update(family, half_each(u[2]), sizes, reads, writes), sizes)


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
        return partial(aten._fused_sgd_, *lists[:3], **options)
    steps = [torch.ones((), device=pool.device) for _ in sizes]
    options = dict(lr=1e-9, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
    return partial(aten._fused_adamw_, *lists, [], steps, **options)
