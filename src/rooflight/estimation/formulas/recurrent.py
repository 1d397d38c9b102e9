"""Recurrent layers as cuDNN runs them: all layers, directions and time steps in one op.

A cell with G gates (RNN 1, GRU 3, LSTM 4), input size I and hidden size H multiplies x by [G*H, I] and h by [G*H, H]
at each step; a projection of size P makes h smaller and adds H*P. Pointwise work per cell element, a sigmoid being 4
operations (negate, exp, add, divide): LSTM 3 sigmoids, 2 tanh, 3 products, 1 sum; GRU 2 sigmoids, 1 tanh, 3 products,
1 difference, 1 sum; RNN 1; and the G sums of the two products.
"""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op, Tensor

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
        "P": passes, "T": _samples(op, op.tensor("input")), "W": _weight_products(op),
        "L": layers, "D": directions, "H": hidden, "c": _POINTWISE[mode],
    }  # fmt: skip
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
    mask = op.args.get("output_mask")
    return _work(op, passes=1 + (not isinstance(mask, list) or bool(mask[3])))


# One layer and direction on a CPU: weight0 [G*H, I], weight1 [G*H, H].
@formula("aten::mkldnn_rnn_layer")
def mkldnn_rnn_layer(op: Op) -> Work:
    data = op.tensor("input")
    products = op.tensor("weight0").numel + op.tensor("weight1").numel
    hidden = op.ints("hidden_size")[0]
    return Work(
        macs="T * W",
        other="c * T * H",
        where={"T": _samples(op, data), "W": products, "H": hidden, "c": _POINTWISE[op.ints("mode")[0]]},
    )


# The pointwise part of one LSTM step: gates [B, 4H] have been multiplied out before.
@formula("aten::_thnn_fused_lstm_cell")
def fused_lstm_cell(op: Op) -> Work:
    return Work(other="c * n", where={"c": _POINTWISE[2], "n": op.tensor("cx").numel})
