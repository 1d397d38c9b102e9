"""Copies, casts, padding, fills and factories: no arithmetic, only bytes. And what costs nothing at all.

A copy reads its source and writes its result, which is the compulsory rule. A fill writes and reads nothing; an
allocation does neither.
"""

from rooflight.estimation.formulas.pointwise import elements
from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op

_COPIES = """
    _to_copy clone contiguous lift_fresh_copy cat stack _stack _chunk_cat block_diag complex
    repeat repeat_interleave roll flip rot90 tril tril_ triu triu_ diag_embed
    pixel_shuffle pixel_unshuffle channel_shuffle
    constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d im2col
    select_backward slice_backward diagonal_backward
    alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy
    split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy
    view_copy view_as_complex_copy view_as_real_copy _reshape_copy _conj_copy _neg_view_copy
    _conj_physical conj_physical conj_physical_ _foreach_clone
""".split()


@formula(*(f"aten::{name}" for name in _COPIES))
def copy(op: Op) -> Work:
    return Work()


# The destination is written, not read.
@formula("aten::copy_", "aten::copy")
def copy_into(op: Op) -> Work:
    return Work(reads="S", where={"S": op.tensor("src").nbytes}, note="S: bytes of the source")


@formula("aten::_foreach_copy_", "aten::_foreach_copy")
def foreach_copy(op: Op) -> Work:
    source = sum(tensor.nbytes for tensor in op.tensors("src"))
    return Work(reads="S", where={"S": source}, note="S: bytes of the sources")


_FILLS = """
    fill fill_ zero zero_ _foreach_zero _foreach_zero_
    zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor
    arange range linspace logspace eye tril_indices triu_indices
""".split()


# Counting up (arange, linspace) is indexing. `fill_.Tensor` reads its one value.
@formula(*(f"aten::{name}" for name in _FILLS))
def fill(op: Op) -> Work:
    value = sum(tensor.nbytes for tensor in op.tensors("value"))
    return Work(reads="v" if value else 0, where={"v": value} if value else {})


_FREE = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided _efficientzerotensor
    resize_ resize_as_ set_ record_stream lift lift_fresh detach_ t_ transpose_ squeeze_ unsqueeze_ as_strided_
    _local_scalar_dense _assert_async _functional_assert_async _assert_scalar _assert_tensor_metadata
    is_same_size
    alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t transpose unbind
    unfold unsqueeze view view_as_complex view_as_real _conj _neg_view _unsafe_view
    unsafe_split unsafe_split_with_sizes
""".split()


# Allocations, views, metadata, and the one number that is handed to the host.
@formula(*(f"aten::{name}" for name in _FREE))
def free(op: Op) -> Work:
    return Work(reads=0, writes=0)


# The part that `src` replaces is not read: what is read is as large as the result.
@formula("aten::select_scatter", "aten::slice_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter")
def scatter_slice(op: Op) -> Work:
    return Work(reads="n * e", where={"n": elements(op), "e": op.outputs[0].itemsize})


# Adds up what the padding copied: one addition for each element of dy beyond one per element of dx. The forward input
# is passed for its shape alone.
@formula(
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
)
def pad_backward(op: Op) -> Work:
    dy, dx = op.tensor("grad_output"), op.outputs[0]
    return Work(other="max(0, dy - dx)", reads="dy * e", where={"dy": dy.numel, "dx": dx.numel, "e": dy.itemsize})


# The windows overlap: every element of every window is added to its place.
@formula("aten::col2im", "aten::unfold_backward")
def fold(op: Op) -> Work:
    windows = op.tensor("self" if op.has("self") else "grad_in")
    return Work(other="n", where={"n": windows.numel})
