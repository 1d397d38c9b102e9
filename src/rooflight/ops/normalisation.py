"""Batch, layer, group, instance and RMS normalisation, in training and in evaluation, and their gradients.

All follow one derivation. Over n elements with G groups of common statistics:

    mean = sum(x) / (n/G)                        n - G additions, G divisions             n
    d    = x - mean                              computed once, used twice                n
    var  = sum(d * d) / (n/G)                    n squares, n - G additions, G divisions  2n
    rstd = rsqrt(var + eps)                                                               2G
    y    = d * rstd                                                                       n
    y    = y * weight + bias                     each where there is one                  n, n

which is 7n + 2G with weight and bias. G is C for batch norm, the rows R for layer norm, N * groups for group norm.
Instance norm arrives as a batch norm over N * C channels.
"""

from __future__ import annotations

import math

import msgspec

from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task, precision_of, row_sizes, way_of
from rooflight.ops.reduction_buffers import ReductionKernel, accumulator, reduction_buffers
from rooflight.ops.registry import Work, aten, counted, formula, task, workspace
from rooflight.ops.rounding import ceil_div
from rooflight.ops.softmax import row_workspace
from rooflight.ops.tensor_layout import bytes_of_elements, contiguous_copies
from rooflight.ops.workspace_phases import Chip, WorkspacePhases, beside_results

_STATISTICS = 4
"""Operations per element for mean, difference and variance."""


def _affine(op: Op) -> int:
    """Operations per element for the weight and the bias."""
    return op.has("weight") + op.has("bias")


def _channels(op: Op) -> dict[str, int]:
    x = op.tensor("input")
    return {"n": x.numel, "C": x.shape[1]}


# Training also moves the running statistics: 3 operations each per channel, (1 - a) * running + a * new, and one to
# correct the variance for its bias: 7C.
def _training(op: Op) -> Work:
    running = op.has("running_mean")
    # Some schemas do not say that the running statistics are written.
    silent = running and not op.mutates and op.packet in _SILENT
    moved = sum(op.tensor(name).nbytes for name in ("running_mean", "running_var")) if silent else 0
    written = sum(tensor.nbytes for tensor in op.outputs)
    return Work(
        other=f"{_STATISTICS + 1 + _affine(op)} * n + {9 if running else 2} * C",
        writes="y + r" if silent else None,
        where={**_channels(op), **({"y": written, "r": moved} if silent else {})},
        note="training: statistics of the batch" + (", y and r: bytes of outputs, running statistics" * silent),
    )


# The statistics are there: d, d * rstd, weight and bias, and rstd from the variance.
def _evaluation(op: Op) -> Work:
    note = "evaluation: running statistics"
    return Work(other=f"{2 + _affine(op)} * n + 2 * C", where=_channels(op), note=note)


_SILENT = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm")


@formula(
    *_SILENT,
    *aten("_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training"),
    *aten("_batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update"),
)
def batch_norm(op: Op) -> Work:
    trains = op.args.get("training", "_with_update" in op.packet)
    return _training(op) if trains else _evaluation(op)


# Training. xhat = (x - mean) * rstd: 2n. dbias = sum(dy): n - C. dweight = sum(dy * xhat): 2n - C.
# dx = weight * rstd * (dy - dbias/m - xhat * dweight/m): weight * rstd and the two quotients per channel 3C, then
# multiply, subtract, subtract, multiply 4n. Both sums are needed for dx even where weight and bias are frozen.
# Together 9n + C.
#
# Evaluation: the statistics are constants. dx = dy * (weight * rstd): n + C. dbias: n - C. dweight: xhat 2n, 2n - C.
# rstd comes from the variance: 2C.
@formula(*aten("native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward"))
def batch_norm_backward(op: Op) -> Work:
    where = _channels(op)
    training = {"aten::native_batch_norm_backward": "train", "aten::batch_norm_backward": "update"}.get(op.packet)
    dx, dweight, dbias = _mask(op, 3)
    if training is None or op.args.get(training):
        return Work(other="9 * n + C" if dx else "5 * n - 2 * C", where=where, note="training")
    per_element, per_channel = dx + 4 * dweight + dbias, 2 + dx - dweight - dbias
    other = f"{per_element} * n + {per_channel} * C"
    return Work(other=other, where=where, note="evaluation")


def _mask(op: Op, size: int) -> list[bool]:
    return [bool(item) for item in op.ints("output_mask", [1] * size)]


formula("aten::batch_norm_stats")(
    counted(
        f"{_STATISTICS} * n + 2 * C",
        _channels,
        why="Synchronised batch norm does it in parts: statistics, their combination across ranks, then the elements.",
    )
)


@formula("aten::batch_norm_elemt")
def batch_norm_elemt(op: Op) -> Work:
    return Work(other=f"{2 + _affine(op)} * n", where=_channels(op))


# W ranks' means and deviations [W, C] merged pairwise: the variance from rstd 3, the two deltas and their weights 7,
# then the running statistics 7. The input is passed for its type alone.
@formula("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(op: Op) -> Work:
    means = op.tensor("mean")
    where = {"W": means.shape[0], "C": means.shape[-1], "e": means.itemsize}
    return Work(other="10 * W * C + 7 * C", reads="2 * W * C * e + 2 * C * e", where=where)


formula("aten::batch_norm_backward_reduce")(
    counted("4 * n - C", _channels, why="sum(dy): n - C. sum(dy * (x - mean)): 3n - C. dweight takes rstd: C.")
)
formula("aten::batch_norm_backward_elemt")(
    counted("5 * n + 5 * C", _channels, why="(dy - a - (x - mean) * b) * c with a, b, c per channel.")
)


@formula("aten::native_layer_norm")
def layer_norm(op: Op) -> Work:
    return Work(other=f"{_STATISTICS + 1 + _affine(op)} * n + 2 * R", where=_rows(op))


def _rows(op: Op) -> dict[str, int]:
    """n elements as R rows of D."""
    x, width = op.tensor("input"), math.prod(op.ints("normalized_shape"))
    return {"n": x.numel, "R": x.numel // max(width, 1), "D": width}


# xhat = (x - mean) * rstd: 2n. g = dy * weight: n. Per row sum(g): n - R, sum(g * xhat): 2n - R, both divided: 2R.
# dx = rstd * (g - mean(g) - xhat * mean(g * xhat)): 4n. Over rows dweight = sum(dy * xhat): 2n - D, dbias: n - D.
def _layer_norm_backward(op: Op, where: dict[str, int], width: str) -> Work:
    dx, dweight, dbias = _mask(op, 3)
    per_element = (2 if dx or dweight else 0) + (7 if dx else 0) + (dx and op.has("weight")) + 2 * dweight + dbias
    sums = dweight + dbias
    # Adding up n numbers into `width` sums takes n - width additions; with no rows there is nothing to add.
    less = f" - {sums} * {width}" if sums and where["n"] else ""
    return Work(other=f"{per_element} * n{less}", where=where)


@formula("aten::native_layer_norm_backward")
def layer_norm_backward(op: Op) -> Work:
    return _layer_norm_backward(op, _rows(op), "D")


@formula("aten::native_group_norm")
def group_norm(op: Op) -> Work:
    x, (batch,), (groups,) = op.tensor("input"), op.ints("N"), op.ints("group")
    where = {"n": x.numel, "N": batch, "G": groups}
    return Work(other=f"{_STATISTICS + 1 + _affine(op)} * n + 2 * N * G", where=where)


@formula("aten::native_group_norm_backward")
def group_norm_backward(op: Op) -> Work:
    return _layer_norm_backward(op, {"n": op.tensor("input").numel, "C": op.ints("C")[0]}, "C")


# Squares n, sum n - R, divide R; add eps, rsqrt 2R; multiply n, weight n.
@formula("aten::_fused_rms_norm")
def rms_norm(op: Op) -> Work:
    return Work(other=f"{3 + op.has('weight')} * n + 2 * R", where=_rows(op))


# xhat = x * rstd: n. g = dy * weight: n. Per row sum(g * xhat) / D: 2n. dx = rstd * (g - xhat * that): 3n.
# Over rows dweight = sum(dy * xhat): 2n - D.
@formula("aten::_fused_rms_norm_backward")
def rms_norm_backward(op: Op) -> Work:
    dx, dweight = _mask(op, 2)
    per_element = (1 if dx or dweight else 0) + (5 if dx else 0) + (dx and op.has("weight")) + 2 * dweight
    return Work(other=f"{per_element} * n" + (" - D" if dweight else ""), where=_rows(op))


# The norms of the rows of v: 2n. w = v * (g / norm): n + m.
@formula("aten::_weight_norm_interface")
def weight_norm(op: Op) -> Work:
    return Work(other="3 * n + m", where={"n": op.tensor("v").numel, "m": op.tensor("g").numel})


# s = sum(dw * v): 2n - m. dg = s / norm: m. dv = (g / norm) * (dw - v * (s / norm^2)): 3n + 3m.
@formula("aten::_weight_norm_interface_backward")
def weight_norm_backward(op: Op) -> Work:
    return Work(other="5 * n + 3 * m", where={"n": op.tensor("saved_v").numel, "m": op.tensor("saved_g").numel})


# --- kernel tasks


@task(*aten("native_layer_norm _fused_rms_norm rms_norm native_layer_norm_backward _fused_rms_norm_backward"))
def layer_norm_tasks(op: Op) -> list[Task]:
    x = op.tensor("input")
    sizes = row_sizes(x, op.ints("normalized_shape", [x.shape[-1]]))
    return [Task(f"layer-norm-{way_of(op)}", precision_of(x.dtype), sizes)]


@task("aten::native_group_norm", "aten::native_group_norm_backward")
def group_norm_tasks(op: Op) -> list[Task]:
    x = op.tensor("input")
    rows = max(1, x.shape[0] * op.ints("group", [1])[0])
    return [Task(f"group-norm-{way_of(op)}", precision_of(x.dtype), (rows, max(1, x.numel // rows)))]


@task(
    *aten("cudnn_batch_norm native_batch_norm miopen_batch_norm _native_batch_norm_legit"),
    *aten("_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update"),
    *aten("cudnn_batch_norm_backward native_batch_norm_backward batch_norm_backward miopen_batch_norm_backward"),
)
def batch_norm_tasks(op: Op) -> list[Task]:
    trains = op.args.get("training", "no_" not in op.packet)
    way = "backward" if "backward" in op.packet else "train" if trains else "eval"
    x = op.tensor("input")
    n, c = x.shape[0], x.shape[1] if len(x.shape) > 1 else 1
    kind = "cudnn" if "cudnn" in op.packet else "native"
    pixels = max(1, x.numel // max(1, n * c))
    return [Task(f"batch-norm-{kind}-{way}", precision_of(x.dtype), (n, c, pixels, int(x.channels_last)))]


# --- workspaces

workspace("aten::native_layer_norm", "aten::_fused_rms_norm")(row_workspace)

_MANY_ROWS = 64 * 1024
_ROWS_A_BLOCK = 32
_MOST_BLOCKS = 32 * 1024


@workspace("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def layer_norm_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Many short rows: blocks of rows leave partial gradients of weight and bias, which an ordinary sum then adds."""
    width = math.prod(op.ints("normalized_shape"))
    rows = op.tensor("input").numel // max(width, 1)
    wanted = sum(map(bool, op.ints("output_mask", (1, 1, 1))[1:]))
    copied = contiguous_copies(op.tensor("grad_out"), op.tensor("input"))
    weight = op.tensor("weight") if op.has("weight") else None
    if weight is None or not wanted or rows <= _MANY_ROWS or width // 32 >= chip.sms // 2:
        return beside_results(op, *copied)
    parts = min(ceil_div(rows, _ROWS_A_BLOCK), _MOST_BLOCKS // ceil_div(width, 32))
    partial = msgspec.structs.replace(weight, shape=(parts, width), strides=None, offset=0)
    staged = reduction_buffers(partial, [0], ReductionKernel(accumulator(weight.dtype)), chip, weight.dtype)
    held = wanted * (bytes_of_elements(partial),)
    # The sum is a new tensor that takes the place of the one made before.
    return beside_results(op, *copied, *held, width * weight.itemsize, *staged)


@workspace("aten::native_group_norm")
def group_norm_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """One factor and one offset for every channel of every sample, in fp32."""
    if not (op.has("weight") or op.has("bias")) or op.ints("HxW") == [1]:
        return ()
    return beside_results(op, *2 * (_channel_sums(op) * 4,))


@workspace("aten::native_group_norm_backward")
def group_norm_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Two sums for every channel of every sample; for the input's gradient two factors a group, and one a channel."""
    channels = _channel_sums(op) * 4
    temporaries = [channels, channels]
    if op.ints("output_mask", (1,))[0]:
        groups = op.ints("N")[0] * op.ints("group")[0] * 4
        temporaries += [groups, groups]
        if op.has("weight") and op.ints("HxW") != [1]:
            temporaries.append(channels)
    return beside_results(op, *temporaries)


def _channel_sums(op: Op) -> int:
    return op.ints("N")[0] * op.ints("C")[0]
