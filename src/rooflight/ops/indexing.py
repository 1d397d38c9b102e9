"""Gather, scatter, embeddings and masks: they touch the elements their index names, and the index.

How often an index repeats is not known from shapes: a gather reads as many elements as it gives, but never more than
the source has. Scattering with a sum adds once for every scattered element.
"""

from __future__ import annotations

from math import prod

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, copy_task, precision_of
from rooflight.ops.pointwise import constant_is_one, elements
from rooflight.ops.radix_sort import bits_of, radix_sort_bytes
from rooflight.ops.registry import FORMULAS, Work, aten, formula, task, workspace
from rooflight.ops.tensor_layout import contiguous_copies
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases, beside_results


# weight [V, D], indices [...] of n numbers: n rows of D.
@formula("aten::embedding")
def embedding(op: Op) -> Work:
    weight, indices = op.tensor("weight"), op.tensor("indices")
    rows, width = weight.shape
    where = {"n": indices.numel, "V": rows, "D": width, "e": weight.itemsize, "i": indices.itemsize}
    return Work(reads="min(n, V) * D * e + n * i", where=where)


# Every row of dy is added to the row its index names; the gradient is as large as the whole weight.
@formula("aten::embedding_dense_backward")
def embedding_dense_backward(op: Op) -> Work:
    dy, indices, dw = op.tensor("grad_output"), op.tensor("indices"), op.outputs[0]
    where = {"n": indices.numel, "V": dw.shape[0], "D": dw.shape[1], "e": dy.itemsize, "i": indices.itemsize}
    return Work(other="n * D", reads="n * D * e + n * i", writes="V * D * w", where={**where, "w": dw.itemsize})


# n rows of D summed into B bags (mode 0), averaged (1), or their maximum taken (2).
@formula("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(op: Op) -> Work:
    weight, indices, offsets = op.tensor("weight"), op.tensor("indices"), op.tensor("offsets")
    other = "n * D - B * D"
    if op.args.get("mode") == 1:
        other += " + B * D"
    if op.has("per_sample_weights"):
        other += " + n * D"
    where = {"n": indices.numel, "V": weight.shape[0], "D": weight.shape[1], "B": op.outputs[0].shape[0]}
    where |= {"e": weight.itemsize, "i": indices.itemsize, "o": offsets.nbytes}
    return Work(other=other, reads="min(n, V) * D * e + n * i + o", where=where)


@formula("aten::_embedding_bag_dense_backward", "aten::_embedding_bag_backward")
def embedding_bag_dense_backward(op: Op) -> Work:
    dy, indices, dw = op.tensor("grad"), op.tensor("indices"), op.outputs[0]
    scale = op.args.get("mode") == 1 or op.has("per_sample_weights")
    where = {"n": indices.numel, "D": dw.shape[1]}
    where |= {"dy": dy.nbytes, "i": indices.itemsize, "V": dw.shape[0], "w": dw.itemsize}
    return Work(other="2 * n * D" if scale else "n * D", reads="dy + 2 * n * i", writes="V * D * w", where=where)


# The norm of every named row (2D), its comparison, and the row scaled (D).
@formula("aten::embedding_renorm_")
def embedding_renorm(op: Op) -> Work:
    weight, indices = op.tensor("self"), op.tensor("indices")
    where = {"n": indices.numel, "V": weight.shape[0], "D": weight.shape[1]}
    where |= {"e": weight.itemsize, "i": indices.itemsize}
    rows = "min(n, V) * D * e"
    return Work(other="n * (3 * D + 1)", reads=f"{rows} + n * i", writes=rows, where=where)


@formula("aten::gather", "aten::index_select", "aten::take", "aten::index", "aten::_unsafe_index")
def gather(op: Op) -> Work:
    source = op.tensor("self")
    index = op.tensors("indices") if op.packet.endswith("index") else [op.tensor("index")]
    where = {"n": elements(op), "s": source.numel, "e": source.itemsize, "I": sum(each.nbytes for each in index)}
    return Work(reads="min(n, s) * e + I", where=where, note="I: bytes of the index")


_WHOLE_ROWS = aten(
    "index_add index_add_ index_reduce index_reduce_ index_copy index_copy_ index_fill index_fill_"
    " index_put index_put_ _index_put_impl_ _unsafe_index_put"
)
_ELEMENTS = aten("scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ put put_")


# A scatter: `n` elements written, each from a source or from one value; `count` operations for each where it combines
# them with what is there. Out of place everything else is copied, which the compulsory rule says.
def _scattered(op: Op, n: int, *, count: int, source: Tensor | None, indices: list[Tensor]) -> Work:
    destination = op.tensor("self")
    other = "n" if count == 1 else f"{count} * n" if count else 0
    where = {"n": n, "d": destination.numel, "e": destination.itemsize}
    if not op.packet.endswith("_"):
        return Work(other=other, where=where)
    reads = ["I", *["S"] * (source is not None), *["min(n, d) * e"] * bool(count)]
    where |= {"I": sum(each.nbytes for each in indices), "S": source.nbytes if source is not None else 0}
    note = "I, S: bytes of the index and of the source" if source is not None else "I: bytes of the index"
    return Work(other=other, reads=" + ".join(reads), writes="min(n, d) * e", where=where, note=note)


@formula("aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_")
def scatter(op: Op) -> Work:
    position = op.tensor("index")
    combines = "scatter_add" in op.packet or op.has("reduce")
    source = op.tensor("src") if op.has("src") else None
    return _scattered(op, position.numel, count=int(combines), source=source, indices=[position])


# mean also divides what it added up.
@formula("aten::scatter_reduce", "aten::scatter_reduce_")
def scatter_reduce(op: Op) -> Work:
    position, count = op.tensor("index"), 2 if op.args.get("reduce") == "mean" else 1
    return _scattered(op, position.numel, count=count, source=op.tensor("src"), indices=[position])


@formula(*aten("index_add index_add_ index_reduce index_reduce_ index_copy index_copy_ put put_"))
def from_source(op: Op) -> Work:
    source, name = op.tensor("source"), op.packet.removeprefix("aten::").rstrip("_")
    count = {
        "index_add": 1 if constant_is_one(op, "alpha") else 2,
        "index_reduce": 2 if op.args.get("reduce") == "mean" else 1,
        "index_copy": 0,
        "put": int(bool(op.args.get("accumulate"))),
    }[name]
    return _scattered(op, source.numel, count=count, source=source, indices=[op.tensor("index")])


@formula("aten::index_fill", "aten::index_fill_")
def index_fill(op: Op) -> Work:
    destination, position, dim = op.tensor("self"), op.tensor("index"), op.ints("dim")[0]
    n = destination.numel // max(destination.shape[dim], 1) * position.numel if destination.shape else 1
    return _scattered(op, n, count=0, source=None, indices=[position])


@formula("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put")
def index_put(op: Op) -> Work:
    destination, values, indices = op.tensor("self"), op.tensor("values"), op.tensors("indices")
    count = int(bool(op.args.get("accumulate")))
    return _scattered(op, _indexed(op, destination), count=count, source=values, indices=indices)


def _indexed(op: Op, destination: Tensor) -> int:
    """How many elements `destination[indices]` has. A boolean mask may name as many as it has."""
    dims, used = 0, 1
    shapes: list[tuple[int, ...]] = []
    for each in _indices(op):
        width = _width(each)
        if isinstance(each, Tensor):
            used *= prod(destination.shape[dims : dims + width])
            shapes.append((each.numel,) if each.dtype in ("bool", "uint8") else each.shape)
        dims += width
    return destination.numel // max(used, 1) * prod(_broadcast(shapes))


def _indices(op: Op) -> list[object]:
    value = op.args.get("indices")
    return list(value) if isinstance(value, list) else []


def _broadcast(shapes: list[tuple[int, ...]]) -> list[int]:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return [0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)]


# How many elements a mask names is not known: all are taken to be read and written.
@formula("aten::masked_fill", "aten::masked_fill_", "aten::masked_scatter", "aten::masked_scatter_")
def masked_fill(op: Op) -> Work:
    return Work()


# The result's size is that of the mask's true elements where it really ran.
@formula("aten::masked_select", "aten::nonzero", "aten::nonzero_static", "aten::masked_scatter_backward")
def masked_select(op: Op) -> Work:
    return Work()


# --- kernel tasks

_GATHERED = {"aten::index": "index", "aten::gather": "gather", "aten::take": "gather"}


@task("aten::embedding", "aten::index_select", *_GATHERED)
def gather_tasks(op: Op) -> list[Task]:
    out = op.outputs[0]
    source = op.tensor("weight" if "weight" in op.args else "self")
    family = _GATHERED.get(op.packet, "embedding-forward")
    return [Task(family, precision_of(out.dtype), _rows(out.numel, _slice(op, source)))]


@task("aten::embedding_dense_backward", "aten::index_select_backward")
def embedding_backward_tasks(op: Op) -> list[Task]:
    """Sorted first, so that a thread adds up a row by itself; all other rows are zeros."""
    out = op.outputs[0]
    columns = _slice(op, out)
    rows = _rows(op.tensor("grad_output" if op.has("grad_output") else "grad").numel, columns)
    return [Task("embedding-backward", precision_of(out.dtype), (*rows, max(1, out.numel // columns)))]


@task(*_WHOLE_ROWS, *_ELEMENTS)
def scatter_tasks(op: Op) -> list[Task]:
    """The elements that the formula counts, after a copy of the destination where the op is not in place: those that
    are only written take as long as reading them so, those that are combined have families of their own."""
    into, work = op.tensor("self"), FORMULAS[op.packet](op)
    columns, precision = _slice(op, into), precision_of(into.dtype)
    rows = _rows(int(work.where["n"]), columns)
    copied = [] if op.packet.endswith("_") else [copy_task(op.outputs[0].nbytes)]
    if not work.other:
        return [*copied, Task("index" if op.packet in _WHOLE_ROWS else "gather", precision, rows)]
    family = "scatter-add" if op.packet in _ELEMENTS else "index-put" if "put" in op.packet else "index-add"
    return [*copied, Task(family, precision, (*rows, max(1, into.numel // columns)))]


@task("aten::embedding_renorm_")
def renorm_tasks(op: Op) -> list[Task]:
    weight = op.tensor("self")
    return [Task("index", precision_of(weight.dtype), (max(1, op.tensor("indices").numel), weight.shape[-1]))]


def _rows(count: int, columns: int) -> tuple[int, int]:
    """So many elements as rows of that length."""
    return max(1, count // columns), columns


def _slice(op: Op, table: Tensor) -> int:
    """Elements that lie side by side and go by one place."""
    if "embedding" in op.packet:
        after = table.shape[-1:]
    elif op.packet in ("aten::take", "aten::put", "aten::put_"):
        after = ()
    elif "dim" in op.args:
        after = table.shape[op.ints("dim")[0] % max(len(table.shape), 1) + 1 :]
    else:
        given = _indices(op)
        while given and given[-1] is None:
            given.pop()
        after = table.shape[sum(_width(each) for each in given) :]
    return max(1, prod(after))


def _width(index: object) -> int:
    """Dimensions that an index stands for: a mask for as many as it has, any other and `None` for one."""
    return len(index.shape) if isinstance(index, Tensor) and index.dtype in ("bool", "uint8") else 1


# --- workspaces

_FEW_INDICES = 3072
_ROWS_A_PART = 10
_SHARED_BY = 32
"""From so many indices a row of the table on, partial sums are added where they belong at once."""
_SCAN = 1279
"""Bytes of CUB's scan over a few thousand elements; a little more for many."""


@workspace("aten::embedding_dense_backward")
def embedding_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Sorts the indices, cuts them into runs of the same index and those into parts, and adds part by part.

    How many runs there are depends on the data; torch sizes its buffers for the most there can be, and so does this.
    """
    gradient, indices = op.tensor("grad_output"), op.tensor("indices")
    width = op.outputs[0].shape[-1]
    n = indices.numel
    counted = op.args.get("scale_grad_by_freq") is True
    copied = contiguous_copies(gradient)
    if n <= _FEW_INDICES and not counted:
        return beside_results(op, *copied)
    index = n * indices.itemsize
    held = (*copied, index, index)  # sorted, and where they came from
    sorting = WorkspacePhase(0, (*held, index, radix_sort_bytes(n, indices.itemsize, 8)))
    if counted:
        held = (*held, index)
    runs = min(n, op.ints("num_weights")[0])
    parts = n // _ROWS_A_PART + runs
    offsets = WorkspacePhase(1, (*held, index, 8, index, _SCAN))
    if n > _SHARED_BY * runs:
        rows = (parts * 8,) if gradient.itemsize >= 4 else (parts * 8, runs * width * 4)
    else:
        rows = (parts * width * max(gradient.itemsize, 4),)
    return sorting, offsets, WorkspacePhase(1, (*held, index, 8, runs * 8, runs * 8, 8, parts * 8, *rows))


@workspace("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
def index_put_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Adding: every place as one number, sorted with where it came from. How many a mask picks is not known here."""
    places = [item for item in _indices(op) if isinstance(item, Tensor)]
    if op.args.get("accumulate") is not True or not places or any(place.dtype == "bool" for place in places):
        return ()
    n = prod(_broadcast([place.shape for place in places]))
    target = op.tensor("self")
    after = prod(target.shape[len(_indices(op)) :])  # whole slices are added: they are numbered, not their elements
    workspace = radix_sort_bytes(n, 8, 8, bits_of(target.numel // max(after, 1) - 1))
    results = 0 if op.packet.endswith("_") else len(op.outputs)
    return (WorkspacePhase(results, (*4 * (n * 8,), *contiguous_copies(op.tensor("values")), workspace)),)


@workspace("aten::masked_scatter", "aten::masked_scatter_")
def masked_scatter_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The running count of the mask, as int64."""
    results = 0 if op.packet.endswith("_") else 1
    return (WorkspacePhase(results, (op.outputs[0].numel * 8,)),)
