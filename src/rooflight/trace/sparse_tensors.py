"""Sparse matrices (COO, and rows, columns or blocks compressed) as the dense tensors that hold them.

A ledger shows a sparse tensor as the list of its parts, indices first and values last, so the number of nonzeros is the
size of the values. Tensors without data keep that number: it is that of the real tensor they stand for. What an op
gives of them is worked out here for products with one sparse matrix; anything else needs data, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rooflight.errors import TraceFailed
from rooflight.trace.python_line import python_line

aten = torch.ops.aten
_BY_ROWS, _BY_COLUMNS = (torch.sparse_csr, torch.sparse_bsr), (torch.sparse_csc, torch.sparse_bsc)
_LAYOUTS = {torch.sparse_coo, *_BY_ROWS, *_BY_COLUMNS}


def is_sparse(value: object) -> bool:
    """Is it a tensor in COO, or with compressed rows, columns or blocks?"""
    return isinstance(value, torch.Tensor) and value.layout in _LAYOUTS


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that a sparse one consists of, its values last; a dense one alone."""
    if not is_sparse(tensor):
        return [tensor]
    with torch.no_grad():
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout in _BY_ROWS:
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def without_data(tensor: torch.Tensor, form: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return a sparse tensor on meta with as many nonzeros; `form` gives the meta tensor of each part."""
    parts = [form(part) for part in parts_of(tensor)]
    if tensor.layout is torch.sparse_coo:
        indices, values = parts
        return _coo(indices, values, tensor.shape, tensor.is_coalesced())
    compressed: Any = torch.sparse_compressed_tensor  # torch's own types know one of its forms
    made: torch.Tensor = compressed(*parts, tensor.shape, layout=tensor.layout, device="meta", check_invariants=False)
    return made


def result_without_data(func: Any, args: tuple[Any, ...]) -> Any:
    """Return what the operator gives of its sparse argument, if that does not depend on its values."""
    packet = func.overloadpacket
    if packet in _ASKED:
        return func(*args)
    if packet not in _KERNELS or sum(map(is_sparse, args)) > 1 or func._overloadname == "out":
        raise _refusal(func)
    return _KERNELS[packet](*args)


def refuse_unless_made_of_parts(func: Any) -> None:
    """Raise for an operator that makes a sparse tensor of dense ones, unless these are its parts."""
    if func.overloadpacket not in _MADE_OF_PARTS:
        raise _refusal(func)


def _refusal(func: Any) -> TraceFailed:
    return TraceFailed(
        "unsupported-tensor",
        f"{python_line()}: {func.name()} takes or makes a sparse tensor, which cannot be followed without data: run "
        "the step once on its own data with --real-data, or use dense tensors",
    )


def _coo(indices: torch.Tensor, values: torch.Tensor, shape: Any, coalesced: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False, is_coalesced=coalesced)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    dense = right if is_sparse(left) else left
    return dense.new_empty(left.shape[0], *right.shape[1:])


def _transposed(matrix: torch.Tensor) -> torch.Tensor:
    """COO is copied with its indices exchanged; of compressed rows the same memory is taken for columns."""
    if matrix.layout is not torch.sparse_coo:
        return matrix.t()
    indices, values = parts_of(matrix)
    return _coo(torch.empty_like(indices), torch.empty_like(values), matrix.shape[::-1], coalesced=False)


_KERNELS: dict[Any, Callable[..., Any]] = {
    aten.mm: _product,
    aten.mv: _product,
    aten.addmm: lambda addend, left, right: _product(left, right),
    aten._sparse_addmm: lambda addend, left, right: _product(left, right),
    aten.t: _transposed,
}
_ASKED = {aten.detach, aten._nnz, aten._indices, aten.indices, aten._values, aten.values, aten.is_coalesced,
          aten.crow_indices, aten.col_indices, aten.ccol_indices, aten.row_indices}  # fmt: skip
"""Torch answers these of a tensor without data too."""
_MADE_OF_PARTS = {aten._sparse_coo_tensor_with_dims_and_tensors, aten.sparse_compressed_tensor}
