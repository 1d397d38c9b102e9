"""Normalisations and softmax, forward and backward."""

from __future__ import annotations

import math

import msgspec

from rooflight.ledger import Op
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.arithmetic import blocks, packed
from rooflight.memory.temporaries.reductions import accumulator, buffers
from rooflight.memory.temporaries.registry import borrows
from rooflight.memory.temporaries.staging import Kernel


@borrows("_softmax_backward_data")
def softmax_backward(op: Op, chip: Chip) -> Moments:
    """The output times its gradient; one kernel does the rest."""
    product = op.tensor("grad_output")
    return (Moment(1, (product.numel * product.itemsize,)),)


_MANY_ROWS = 64 * 1024
_ROWS_A_BLOCK = 32
_MOST_BLOCKS = 32 * 1024


@borrows("native_layer_norm", "_fused_rms_norm", "_softmax", "_log_softmax")
def of_rows(op: Op, chip: Chip) -> Moments:
    """The kernels want rows one after the other."""
    copied = packed(op.tensor("input" if op.has("input") else "self"))
    return (Moment(len(op.outputs), copied),) if copied else ()


@borrows("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(op: Op, chip: Chip) -> Moments:
    """Many short rows: blocks of rows leave partial gradients of weight and bias, which an ordinary sum then adds."""
    width = math.prod(op.ints("normalized_shape"))
    rows = op.tensor("input").numel // max(width, 1)
    wanted = sum(map(bool, op.ints("output_mask", (1, 1, 1))[1:]))
    copied = packed(op.tensor("grad_out"), op.tensor("input"))
    results = len(op.outputs)
    weight = op.tensor("weight") if op.has("weight") else None
    if weight is None or not wanted or rows <= _MANY_ROWS or width // 32 >= chip.sms // 2:
        return (Moment(results, copied),) if copied else ()
    parts = min(blocks(rows, _ROWS_A_BLOCK), _MOST_BLOCKS // blocks(width, 32))
    partial = msgspec.structs.replace(weight, shape=(parts, width), strides=None, offset=0)
    staged = buffers(partial, [0], Kernel(accumulator(weight.dtype)), chip, weight.dtype)
    held = wanted * (partial.numel * partial.itemsize,)
    # The sum is a new tensor that takes the place of the one made before.
    return (Moment(results, (*copied, *held, width * weight.itemsize, *staged)),)


@borrows("native_group_norm")
def group_norm(op: Op, chip: Chip) -> Moments:
    """One factor and one offset for every channel of every sample, in fp32."""
    if not (op.has("weight") or op.has("bias")) or op.ints("HxW") == [1]:
        return ()
    return (Moment(len(op.outputs), 2 * (_channels(op) * 4,)),)


@borrows("native_group_norm_backward")
def group_norm_backward(op: Op, chip: Chip) -> Moments:
    """Two sums for every channel of every sample; for the input's gradient two factors a group, and one a channel."""
    channels = _channels(op) * 4
    found = [channels, channels]
    if op.ints("output_mask", (1,))[0]:
        groups = op.ints("N")[0] * op.ints("group")[0] * 4
        found += [groups, groups]
        if op.has("weight") and op.ints("HxW") != [1]:
            found.append(channels)
    return (Moment(len(op.outputs), tuple(found)),)


def _channels(op: Op) -> int:
    return op.ints("N")[0] * op.ints("C")[0]
