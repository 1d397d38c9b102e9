"""Copies, casts, padding, fills and factories: no arithmetic, only bytes. And what costs nothing at all.

A copy reads its source and writes its result, which is the compulsory rule. A fill writes and reads nothing; an
allocation does neither.
"""

from __future__ import annotations

from math import prod

from rooflight.ledger import Op, tensors_in
from rooflight.ops.kernel_task import Task, copy_task, plain_task, precision_of, strided_task
from rooflight.ops.pointwise import elements, fill_tasks
from rooflight.ops.registry import Work, aten, formula, task, workspace
from rooflight.ops.tensor_layout import bytes_of_elements, contiguous_run, has_gaps, memory_order
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases

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
"""


# Of a sparse matrix its transpose is a copy in COO, and a view where rows or columns are compressed.
@formula(*aten(_COPIES), "sparse::t", "sparse::clone")
def copy(op: Op) -> Work:
    return Work()


_INTO_BUFFERS = ("fsdp::split_with_sizes_copy", "fsdp::chunk_cat", "fsdp::all_gather_copy_in")


# The destination is written, not read; also the buffers that FSDP packs and unpacks around its collectives.
@formula("aten::copy_", "aten::copy", *_INTO_BUFFERS)
def copy_into(op: Op) -> Work:
    given = [op.args["src"]] if "src" in op.args else [op.args[name] for name in op.args if name not in op.mutates]
    source = sum(tensor.nbytes for tensor in tensors_in(given))
    return Work(reads="S", where={"S": source}, note="S: bytes of the source")


@formula("aten::_foreach_copy_", "aten::_foreach_copy")
def foreach_copy(op: Op) -> Work:
    source = sum(tensor.nbytes for tensor in op.tensors("src"))
    return Work(reads="S", where={"S": source}, note="S: bytes of the sources")


_FILLS = """
    fill fill_ zero zero_ _foreach_zero _foreach_zero_
    zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor
    arange range linspace logspace eye tril_indices triu_indices
"""


# Counting up (arange, linspace) is indexing. `fill_.Tensor` reads its one value.
@formula(*aten(_FILLS))
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
"""


# Allocations, views, metadata, and the one number that is handed to the host.
@formula(*aten(_FREE), "sparse::_nnz", "sparse::is_coalesced")
def free(op: Op) -> Work:
    return Work(reads=0, writes=0)


# The part that `src` replaces is not read: what is read is as large as the result.
@formula("aten::select_scatter", "aten::slice_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter")
def scatter_slice(op: Op) -> Work:
    return Work(reads="n * e", where={"n": elements(op), "e": op.outputs[0].itemsize})


# Adds up what the padding copied: one addition for each element of dy beyond one per element of dx. The forward input
# is passed for its shape alone.
@formula(
    *aten("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"),
    *aten("replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward"),
)
def pad_backward(op: Op) -> Work:
    dy, dx = op.tensor("grad_output"), op.outputs[0]
    return Work(other="max(0, dy - dx)", reads="dy * e", where={"dy": dy.numel, "dx": dx.numel, "e": dy.itemsize})


# The windows overlap: every element of every window is added to its place.
@formula("aten::col2im", "aten::unfold_backward")
def fold(op: Op) -> Work:
    windows = op.tensor("self" if op.has("self") else "grad_in")
    return Work(other="n", where={"n": windows.numel})


# --- kernel tasks

_NO_LAUNCH = """
    empty empty_like empty_strided new_empty new_empty_strided as_strided_ resize_ set_ detach lift_fresh _unsafe_view
    sym_size is_same_size _local_scalar_dense
"""


@task(*aten(_NO_LAUNCH))
def no_tasks(op: Op) -> list[Task]:
    return []


task(*aten("zero_ zeros_like new_zeros fill_ full_like new_full ones_like new_ones"))(fill_tasks)


@task("aten::clone", "aten::copy_", "aten::_to_copy", "aten::contiguous", "aten::_conj_physical")
def copy_tasks(op: Op) -> list[Task]:
    source = op.tensor("src" if "src" in op.args else "self")
    target = op.outputs[0] if op.outputs else op.tensor("self")
    numbers = (max(1, target.numel), source.nbytes, target.nbytes)
    reordered = memory_order(source) != memory_order(target) or has_gaps(source) or has_gaps(target)
    if source.shape == target.shape and reordered:
        run = min(contiguous_run(source), contiguous_run(target))
        return [Task("strided", precision_of(target.dtype), (*numbers, run))]
    if source.numel != target.numel or (source.numel > 1 and source.nbytes < bytes_of_elements(source)):
        return [Task("broadcast", precision_of(target.dtype), numbers)]
    if source.dtype == target.dtype:
        return [copy_task(target.nbytes)]
    return [Task("cast", precision_of(target.dtype), numbers)]


@task(*aten("slice_backward select_backward constant_pad_nd slice_scatter select_scatter"))
def into_zeros_tasks(op: Op) -> list[Task]:
    """Zeros, and a part of them written over."""
    out, given = op.outputs[0], op.tensor("grad_output" if "grad_output" in op.args else "self")
    if given.numel == out.numel:
        return [plain_task(out.numel, given.nbytes, out.nbytes, out.dtype)]
    run = given.shape[-1] if given.shape else 1
    return [
        plain_task(out.numel, 0, out.nbytes, out.dtype),
        Task("strided", precision_of(out.dtype), (max(1, given.numel), given.nbytes, given.nbytes, max(1, run))),
    ]


@task("aten::flip", "aten::repeat", "aten::im2col", "aten::col2im")
def reordering_tasks(op: Op) -> list[Task]:
    out = op.outputs[0]
    return [strided_task(out.numel, out.dtype, out.shape[-1] if out.shape else 1)]


@task("aten::roll")
def roll_tasks(op: Op) -> list[Task]:
    """One axis after the other, each element looked up."""
    out = op.outputs[0]
    return [strided_task(out.numel, out.dtype, 1)] * max(1, len(op.ints("shifts")))


@task("aten::cat", "aten::stack")
def cat_tasks(op: Op) -> list[Task]:
    inputs, out = [tensor for tensor in op.tensors("tensors") if tensor.numel], op.outputs[0]
    largest = max((tensor.numel for tensor in inputs), default=1)
    axis = op.ints("dim", [0])[0]
    run = max(1, min((prod(tensor.shape[axis:]) for tensor in inputs), default=1))
    contiguous = int(all(tensor.strides is None or tensor.channels_last for tensor in inputs))
    numbers = (max(1, len(inputs)), max(1, out.numel), out.nbytes, out.nbytes, max(1, largest), contiguous, run)
    return [Task("cat", precision_of(out.dtype), numbers)]


# --- workspaces


@workspace("aten::roll")
def roll_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """One dimension after the other, each into a tensor of its own."""
    before = len(op.ints("dims")) - 1
    return (WorkspacePhase(1, before * (bytes_of_elements(op.tensor("self")),)),) if before > 0 else ()
