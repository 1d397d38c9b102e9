"""Sorting, selecting, searching and counting.

By convention a sort of rows of length L costs ceil(log2(L)) comparisons per element, whatever the algorithm; selecting
(top-k, median, unique) is taken as sorting, searching as ceil(log2(L)) comparisons per value.
"""

from __future__ import annotations

from rooflight.ledger import Op
from rooflight.ops.radix_sort import INDEX_BYTES, radix_sort_bytes, segmented_radix_sort_bytes
from rooflight.ops.registry import Work, aten, counted, formula, never_timed, workspace
from rooflight.ops.rounding import ceil_div
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases, beside_results


def _sorted(n: int, length: int) -> Work:
    note = "by convention: log2 of the length, rounded up, per element"
    return Work(other="n * ceil(log2(L))" if length > 0 else 0, where={"n": n, "L": length}, note=note)


@formula("aten::sort", "aten::topk", "aten::kthvalue", "aten::mode", "aten::median", "aten::nanmedian", "aten::msort")
def sort(op: Op) -> Work:
    x = op.tensor("self")
    over_all = op.name in ("aten::median", "aten::nanmedian")
    default = 0 if op.packet == "aten::msort" else -1
    length = x.numel if over_all else x.shape[op.ints("dim", [default])[0]] if x.shape else 1
    return _sorted(x.numel, length)


# Sorted, then neighbours compared.
@formula("aten::_unique2")
def unique(op: Op) -> Work:
    n = op.tensor("self").numel
    return Work(other="n * ceil(log2(n)) + n - 1" if n > 0 else 0, where={"n": n})


# L slices of D elements; comparing two slices may take D comparisons.
@formula("aten::unique_dim")
def unique_dim(op: Op) -> Work:
    x = op.tensor("self")
    length = x.shape[op.ints("dim")[0]]
    other = "D * (L * ceil(log2(L)) + L - 1)" if length > 0 else 0
    return Work(other=other, where={"L": length, "D": x.numel // max(length, 1)})


@formula("aten::unique_consecutive", "aten::unique_dim_consecutive")
def unique_consecutive(op: Op) -> Work:
    n = op.tensor("self").numel
    return Work(other="n - 1" if n > 0 else 0, where={"n": n})


formula("aten::bincount")(
    counted("n", lambda op: {"n": op.tensor("self").numel}, why="One addition per element, of 1 or of its weight.")
)


# Which bin: (x - min) * bins / (max - min) is 3 operations; then 1 is added. Without bounds they are looked for.
@formula("aten::histc")
def histc(op: Op) -> Work:
    bounds = op.args.get("min", 0) != op.args.get("max", 0)
    return Work(other="4 * n" if bounds else "4 * n + 2 * (n - 1)", where={"n": op.tensor("self").numel})


@formula("aten::searchsorted", "aten::bucketize")
def search(op: Op) -> Work:
    length = op.tensor("boundaries").numel if op.has("boundaries") else op.tensor("sorted_sequence").shape[-1]
    return Work(other="n * ceil(log2(L + 1))", where={"n": op.outputs[0].numel, "L": length})


# The L test elements sorted, then each of the n searched among them.
@formula("aten::isin")
def isin(op: Op) -> Work:
    tests = op.tensors("test_elements")
    length = tests[0].numel if tests else 1
    where = {"n": op.outputs[0].numel, "L": length}
    return Work(other="L * ceil(log2(L)) + n * ceil(log2(L + 1))" if length > 0 else 0, where=where)


# torchvision. The n boxes by their scores, then every pair: 9 for the area that they share (4 bounds, 2 sides, none
# below 0, their product), 6 for their own areas, 2 for that of both together, 2 to compare with a part of it.
@formula("torchvision::nms")
def non_maximum_suppression(op: Op) -> Work:
    where = {"n": op.tensor("dets").shape[0]}
    return Work(other="n * ceil(log2(n)) + 19 * n * (n - 1) / 2" if where["n"] else 0, where=where)


# --- kernel tasks

never_timed("torchvision::nms", *aten("sort msort topk kthvalue median nanmedian mode bincount histc"))
never_timed(*aten("_unique2 unique_consecutive unique_dim unique_dim_consecutive"))

# --- workspaces

_SHORT_ROW = 4096
"""Rows that one thread block sorts in shared memory."""
_FEW_ROWS = 128


@workspace("aten::sort", "aten::argsort", "aten::msort")
def sort_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    return beside_results(op, *_sort_bytes(op.tensor("self").itemsize, *_rows(op)))


def _rows(op: Op) -> tuple[int, int]:
    """How many rows, and their length."""
    tensor = op.tensor("self")
    if not tensor.shape:
        return 1, 1
    length = tensor.shape[op.ints("dim", (-1,))[0]]
    return tensor.numel // max(length, 1), length


def _sort_bytes(key: int, rows: int, length: int) -> tuple[int, ...]:
    indices = (length * INDEX_BYTES,)  # 0, 1, 2 ... of one row
    pairs = rows * length
    if length <= _SHORT_ROW:
        return indices
    if rows == 1:
        return (*indices, radix_sort_bytes(pairs, key, INDEX_BYTES))
    if rows < _FEW_ROWS:  # all rows at once, every element with the number of its row; then by that number
        return 2 * (pairs * INDEX_BYTES,) + (pairs * key, radix_sort_bytes(pairs, key, INDEX_BYTES))
    return pairs * INDEX_BYTES, segmented_radix_sort_bytes(pairs, key, INDEX_BYTES)


_MANY_BLOCKS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""topk gives a row to several blocks where there are up to so many rows of at least so many elements."""
_THREADS = 256
_REGISTERS, _REGISTERS_PER_SM = 40, 65536
"""That a thread of the counting kernel needs, and that there are: on every GPU since Kepler."""


@workspace("aten::topk")
def topk_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """A radix search over blocks: counts of every digit by block and by row."""
    rows, length = _rows(op)
    if length < next((least for most, least in _MANY_BLOCKS if rows <= most), 400):
        return ()
    at_once = chip.sms * (_REGISTERS_PER_SM // (_REGISTERS * _THREADS)) * _THREADS
    each = min(max(ceil_div(rows * length, at_once), 4), 64)
    parts = rows * ceil_div(length, each * _THREADS)
    key = op.tensor("self").itemsize
    counts = (rows * key, rows * 8, rows * 8, parts * 512, rows * 1024, parts * 4, parts * 4, 1279)
    results = len(op.outputs)
    wanted = op.ints("k")[0]
    if wanted <= _SHORT_ROW or op.args.get("sorted") is False:
        return (WorkspacePhase(results, counts),)
    # Too many for the kernel that puts them in order: an ordinary sort, whose results come beside.
    beside = (rows * wanted * INDEX_BYTES, rows * wanted * key)
    return WorkspacePhase(results, counts), WorkspacePhase(results, (*beside, *_sort_bytes(key, rows, wanted)))
