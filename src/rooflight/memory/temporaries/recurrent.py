"""cuDNN's recurrent layers: their workspace, and the results whose size only cuDNN knows.

What training keeps for backward (the reserve) is exact. The workspace is a fit: a fixed part for each layer, the
weights once more, and rows for every step and every sample. cuDNN changes its algorithm with batch and length; where it
does, the fit is off by up to a third (LSTM, GRU), and for plain RNNs in fp32 it can be less than half of the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.ledger import Op, Tensor
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.arithmetic import rounded
from rooflight.memory.temporaries.registry import borrows, makes

_EACH_LAYER = 8 * 1024**2
_FIXED = 256


@dataclass(frozen=True, slots=True)
class _Cell:
    kept: int
    """Rows of the reserve, in hidden sizes, for every layer, step and sample."""
    steps: int
    """Rows of the workspace for every step and sample, beside the input's."""
    samples: int
    """Rows of the workspace for every layer and sample."""


_TANH = _Cell(1, 4, 5)
_CELLS = {0: _TANH, 1: _TANH, 2: _Cell(5, 5, 10), 3: _Cell(6, 4, 5)}
"""By cuDNN's mode: RNN with relu, with tanh, LSTM, GRU."""


@dataclass(frozen=True, slots=True)
class _Layers:
    cell: _Cell
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


def _layers(op: Op) -> _Layers:
    data = op.tensor("input")
    first, second = data.shape[0], data.shape[1] if len(data.shape) > 2 else 1
    lengths = op.ints("batch_sizes")
    if lengths:  # packed sequences: their data is (all steps of all samples, inputs)
        steps, samples = len(lengths), max(lengths)
    else:
        steps, samples = (second, first) if op.args.get("batch_first") is True else (first, second)
    layers = op.ints("num_layers")[0]
    return _Layers(
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
    return sum(tensor.numel * tensor.itemsize for tensor in op.tensors("weight") if len(tensor.shape) > 1)


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
    return _FIXED + rounded(elements * of.itemsize, 32) + rounded(bits // 8, 32)


def _turned(op: Op) -> tuple[int, ...]:
    """cuDNN takes time first: a copy of what has the batch first."""
    data = op.tensor("input")
    return (data.numel * data.itemsize,) if op.args.get("batch_first") is True else ()


@borrows("_cudnn_rnn")
def recurrent(op: Op, chip: Chip) -> Moments:
    return (Moment(len(op.outputs), (*_turned(op), _workspace(op))),)


@borrows("_cudnn_rnn_backward")
def recurrent_backward(op: Op, chip: Chip) -> Moments:
    """First the gradients of data and hidden state, then those of the weights; zeros stand in for missing gradients."""
    states: list[Tensor] = [op.tensor("hx")]
    if op.has("cx"):
        states.append(op.tensor("cx"))
    zeros = [
        state.numel * state.itemsize
        for state, name in zip(states, ("grad_hy", "grad_cy"), strict=False)
        if not op.has(name)
    ]
    held = (*zeros, _workspace(op))
    return (Moment(len(op.outputs), held),)


@makes("_cudnn_rnn")
def recurrent_results(op: Op, chip: Chip) -> dict[int, int]:
    found = {3: _reserve(op) if op.args.get("train") is True else 0}
    if not op.has("weight_buf"):  # the weights did not lie side by side: now they do
        found[4] = sum(tensor.numel * tensor.itemsize for tensor in op.tensors("weight"))
    return found


@makes("_cudnn_init_dropout_state")
def dropout_state(op: Op, chip: Chip) -> dict[int, int]:
    """A random state of 24 bytes for every thread the device runs at once."""
    return {0: chip.sms * chip.threads_per_sm * 24}
