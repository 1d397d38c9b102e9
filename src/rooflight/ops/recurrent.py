"""Recurrent layers as cuDNN runs them: all layers, directions and time steps in one op.

A cell with G gates (RNN 1, GRU 3, LSTM 4), input size I and hidden size H multiplies x by [G*H, I] and h by [G*H, H]
at each step; a projection of size P makes h smaller and adds H*P. Pointwise work per cell element, a sigmoid being 4
operations (negate, exp, add, divide): LSTM 3 sigmoids, 2 tanh, 3 products, 1 sum; GRU 2 sigmoids, 1 tanh, 3 products,
1 difference, 1 sum; RNN 1; and the G sums of the two products.

How torch's layers become these ops on tensors without data is in `trace/dispatch`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, way_of
from rooflight.ops.registry import Work, formula, never_timed, result_bytes, task, workspace
from rooflight.ops.rounding import round_up
from rooflight.ops.tensor_layout import bytes_of_elements
from rooflight.ops.workspace_phases import Chip, WorkspacePhases, beside_results

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_POINTWISE = {0: 1 + 1, 1: 1 + 1, 2: 3 * 4 + 2 + 3 + 1 + 4, 3: 2 * 4 + 1 + 3 + 1 + 1 + 3}


def _weight_products(op: Op) -> int:
    """Elements of all weight matrices: each is met once per time step and sample."""
    return sum(weight.numel for weight in op.tensors("weight") if len(weight.shape) == 2)


def _samples(op: Op, data: Tensor) -> int:
    """Time steps times batch: the rows of the data, packed or not."""
    return data.numel // data.shape[-1]


def _work(op: Op, *, passes: int) -> Work:
    mode = op.ints("mode")[0]
    hidden, layers = op.ints("hidden_size")[0], op.ints("num_layers")[0]
    directions = 2 if op.args.get("bidirectional") else 1
    where = {
        "P": passes,
        "T": _samples(op, op.tensor("input")),
        "W": _weight_products(op),
        "L": layers,
        "D": directions,
        "H": hidden,
        "c": _POINTWISE[mode],
    }
    scale = "P * " if passes > 1 else ""
    return Work(
        macs=f"{scale}T * W",
        other=f"{scale}c * T * L * D * H",
        where=where,
        note=f"W = elements of all weight matrices ({_GATES[mode]} gates), T = time steps x batch",
    )


@formula("aten::_cudnn_rnn", "aten::miopen_rnn")
def cudnn_rnn(op: Op) -> Work:
    return _work(op, passes=1)


# Like a linear layer: the gradient of the data, which cuDNN always makes, and that of the weights if it is asked for,
# each as much as forward.
@formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward")
def cudnn_rnn_backward(op: Op) -> Work:
    return _work(op, passes=1 + bool(op.ints("output_mask", (1, 1, 1, 1))[3]))


def _layer_work(op: Op, *weights: str, passes: int) -> Work:
    where = {
        "P": passes,
        "T": _samples(op, op.tensor("input")),
        "W": sum(op.tensor(weight).numel for weight in weights),
        "H": op.ints("hidden_size")[0],
        "c": _POINTWISE[op.ints("mode")[0]],
    }
    scale = "P * " if passes > 1 else ""
    return Work(macs=f"{scale}T * W", other=f"{scale}c * T * H", where=where)


# One layer and direction on a CPU: weight0 [G*H, I], weight1 [G*H, H].
@formula("aten::mkldnn_rnn_layer")
def mkldnn_rnn_layer(op: Op) -> Work:
    return _layer_work(op, "weight0", "weight1", passes=1)


# The gates' gradients by the weights give those of x and h, and by x and h those of the weights: each product has as
# many multiply-adds as forward. oneDNN always makes both. The weights are called weight1 and weight2 here.
@formula("aten::mkldnn_rnn_layer_backward")
def mkldnn_rnn_layer_backward(op: Op) -> Work:
    return _layer_work(op, "weight1", "weight2", passes=2)


# The pointwise part of one LSTM step: gates [B, 4H] have been multiplied out before.
@formula("aten::_thnn_fused_lstm_cell")
def fused_lstm_cell(op: Op) -> Work:
    return Work(other="c * n", where={"c": _POINTWISE[2], "n": op.tensor("cx").numel})


# --- kernel tasks

# All layers are one call of a library: it runs layers beside each other, and where it can, all steps in one kernel that
# keeps its weights. So they are timed as one work.

never_timed("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward")


@task(*(f"aten::{library}_rnn{way}" for library in ("_cudnn", "miopen") for way in ("", "_backward")))
def recurrent_tasks(op: Op) -> list[Task]:
    of, gates = _layers(op), _GATES[op.ints("mode")[0]]
    hidden = _as_wide(op, of, gates) if is_projected(op) else of.hidden
    # The gradient of the data alone is as much work as forward.
    both = way_of(op) == "backward" and bool(op.ints("output_mask", (1, 1, 1, 1))[3])
    numbers = (gates, of.steps, of.samples, of.inputs, hidden, of.layers, of.directions)
    return [Task(f"recurrent-{'backward' if both else 'forward'}", op.precision or "fp32", numbers)]


def is_projected(op: Op) -> bool:
    """Is its state narrower than what it computes with? Nobody timed such a layer."""
    return op.ints("proj_size", (0,))[0] > 0


def _as_wide(op: Op, of: _RecurrentLayers, gates: int) -> int:
    """The hidden size of layers without a projection that have no more FLOPs: a h^2 + b h = those of a row."""
    passes = 2 if way_of(op) == "backward" and op.ints("output_mask", (1, 1, 1, 1))[3] else 1
    macs = (op.cost.macs or 0) / (passes * of.steps * of.samples) if op.cost is not None else 0.0
    a = of.directions * gates * (of.layers + (of.layers - 1) * of.directions)
    b = of.directions * gates * of.inputs
    return max(1, int((math.sqrt(b * b + 4 * a * macs) - b) / (2 * a)))


# --- workspaces
#
# What training keeps for backward (the reserve) is exact. The workspace is a fit: a fixed part for each layer, the
# weights once more, and rows for every step and every sample. cuDNN changes its algorithm with batch and length; where
# it does, the fit is off by up to a third (LSTM, GRU), and for plain RNNs in fp32 it can be less than half of what it
# really is.

_EACH_LAYER = 8 * 1024**2
_FIXED = 256


@dataclass(frozen=True, slots=True)
class _RecurrentCell:
    kept: int
    """Rows of the reserve, in hidden sizes, for every layer, step and sample."""
    steps: int
    """Rows of the workspace for every step and sample, beside the input's."""
    samples: int
    """Rows of the workspace for every layer and sample."""


_TANH = _RecurrentCell(1, 4, 5)
_CELLS = {0: _TANH, 1: _TANH, 2: _RecurrentCell(5, 5, 10), 3: _RecurrentCell(6, 4, 5)}
"""By cuDNN's mode: RNN with relu, with tanh, LSTM, GRU."""


@dataclass(frozen=True, slots=True)
class _RecurrentLayers:
    cell: _RecurrentCell
    steps: int
    samples: int
    inputs: int
    hidden: int
    projected: int
    layers: int
    directions: int
    itemsize: int
    drops: bool

    @property
    def hidden_row(self) -> int:
        """Bytes of one hidden state for every sample."""
        return self.samples * self.hidden * self.itemsize


def _layers(op: Op) -> _RecurrentLayers:
    data = op.tensor("input")
    first, second = data.shape[0], data.shape[1] if len(data.shape) > 2 else 1
    lengths = op.ints("batch_sizes")
    if lengths:  # packed sequences: their data is (all steps of all samples, inputs)
        steps, samples = len(lengths), max(lengths)
    else:
        steps, samples = (second, first) if op.args.get("batch_first") is True else (first, second)
    layers = op.ints("num_layers")[0]
    return _RecurrentLayers(
        cell=_CELLS[op.ints("mode")[0]],
        steps=steps,
        samples=samples,
        inputs=data.shape[-1],
        hidden=op.ints("hidden_size")[0],
        projected=op.ints("proj_size", (0,))[0],
        layers=layers,
        directions=2 if op.args.get("bidirectional") is True else 1,
        itemsize=data.itemsize,
        drops=bool(op.args.get("dropout")) and layers > 1,
    )


def _weights(op: Op) -> int:
    return sum(bytes_of_elements(tensor) for tensor in op.tensors("weight") if len(tensor.shape) > 1)


def _workspace(op: Op) -> int:
    of = _layers(op)
    by_step = of.steps * of.samples * (of.inputs + of.cell.steps * of.directions * of.hidden) * of.itemsize
    by_sample = of.layers * of.directions * of.cell.samples * of.hidden_row
    dropped = of.steps * of.directions * of.hidden_row if of.drops else 0
    fixed = of.layers * of.directions * _EACH_LAYER + _FIXED + 8 * of.samples
    return fixed + _weights(op) + by_step + by_sample + dropped


def _reserve(op: Op) -> int:
    of = _layers(op)
    rows = of.cell.kept * of.layers + of.layers - 1
    elements = of.steps * of.samples * of.directions * of.hidden * rows
    if of.projected:  # the cell's state before projection as well
        elements += of.steps * of.samples * of.directions * of.layers * (of.hidden + of.projected)
    bits = of.steps * of.samples * of.directions * of.hidden * (of.layers - 1) if of.drops else 0
    return _FIXED + round_up(elements * of.itemsize, 32) + round_up(bits // 8, 32)


def _turned(op: Op) -> tuple[int, ...]:
    """cuDNN takes time first: a copy of what has the batch first."""
    data = op.tensor("input")
    return (bytes_of_elements(data),) if op.args.get("batch_first") is True else ()


@workspace("aten::_cudnn_rnn")
def cudnn_rnn_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    return beside_results(op, *_turned(op), _workspace(op))


@workspace("aten::_cudnn_rnn_backward")
def cudnn_rnn_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """First the gradients of data and hidden state, then those of the weights; zeros stand in for missing gradients."""
    states = zip((op.tensor("hx"), *op.tensors("cx")), ("grad_hy", "grad_cy"), strict=False)
    zeros = [bytes_of_elements(state) for state, gradient in states if not op.has(gradient)]
    return beside_results(op, *zeros, _workspace(op))


@result_bytes("aten::_cudnn_rnn")
def cudnn_rnn_results(op: Op, chip: Chip) -> dict[int, int]:
    sizes = {3: _reserve(op) if op.args.get("train") is True else 0}
    if not op.has("weight_buf"):  # the weights did not lie side by side: now they do
        sizes[4] = sum(bytes_of_elements(tensor) for tensor in op.tensors("weight"))
    return sizes


@result_bytes("aten::_cudnn_init_dropout_state")
def dropout_state_results(op: Op, chip: Chip) -> dict[int, int]:
    """A random state of 24 bytes for every thread the device runs at once."""
    return {0: chip.sms * chip.threads_per_sm * 24}
