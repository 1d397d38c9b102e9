"""Layers are traced as the operators CUDA runs, with FLOPs derived by hand."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight.ledger import Tensor as LedgerTensor
from rooflight.ledger import total
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import flops, infer, names, only, rows, train

# Convolutions: (layer, input shape, MACs of one pass)

CONVOLUTIONS = {
    # 2 samples * 12 channels * 100 pixels * (8 / 4) channels * 9
    "grouped": (nn.Conv2d(8, 12, 3, groups=4, padding=1), (2, 8, 10, 10), 2 * 12 * 100 * 2 * 9),
    # every channel for itself
    "depthwise": (nn.Conv2d(8, 8, 3, groups=8, padding=1), (2, 8, 10, 10), 2 * 8 * 100 * 1 * 9),
    # a kernel of 3 spread over 5 leaves 9 - 4 = 5 positions
    "dilated": (nn.Conv2d(3, 4, 3, dilation=2), (2, 3, 9, 9), 2 * 4 * 25 * 3 * 9),
    # every input pixel meets Cout * 9 weights
    "transposed": (nn.ConvTranspose2d(6, 4, 3, stride=2), (2, 6, 5, 5), 2 * 6 * 25 * 4 * 9),
    "transposed grouped": (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), (2, 6, 5, 5), 2 * 6 * 25 * 2 * 9),
    # (11 - 4) // 2 + 1 = 4 positions
    "1-d strided": (nn.Conv1d(3, 5, 4, stride=2), (2, 3, 11), 2 * 5 * 4 * 3 * 4),
    # 3 positions in each of three dimensions
    "3-d": (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 3 * 27 * 2 * 8),
    "without bias": (nn.Conv2d(3, 4, 1, bias=False), (2, 3, 5, 5), 2 * 4 * 25 * 3),
    "without batch": (nn.Conv2d(3, 4, 1), (3, 5, 5), 4 * 25 * 3),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_cost_what_their_shapes_say(name: str) -> None:
    layer, shape, macs = CONVOLUTIONS[name]
    ledger = train(layer, torch.randn(shape, requires_grad=True))
    assert flops([only(ledger, "convolution")]) == 2 * macs
    # The gradients of input and weights are each as much work as the forward.
    assert flops([only(ledger, "convolution_backward")]) == 2 * 2 * macs
    assert total(ledger.ops).flops == 3 * 2 * macs
    assert only(ledger, "convolution").precision == "tf32"


def test_the_first_convolution_needs_no_gradient_of_its_input() -> None:
    layer, shape, macs = CONVOLUTIONS["grouped"]
    backward = only(train(layer, torch.randn(shape)), "convolution_backward")
    assert flops([backward]) == 2 * macs
    assert [tensor.shape for tensor in backward.outputs] == [(12, 2, 3, 3), (12,)]


def test_channels_last_is_seen_in_the_strides() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    x = torch.randn(2, 3, 6, 6)
    plain = train(model, x)
    last = train(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    image = last.header.inputs[0][1]
    assert image.channels_last
    assert image.strides == (108, 1, 18, 3)
    for op in rows(last, "convolution"):
        assert op.tensor("input").channels_last
        assert op.outputs[0].channels_last
    # Backward keeps the layout of the forward; what the loss hands to the last layer has its own.
    inner = only(last, "convolution_backward", module="0")
    assert inner.tensor("grad_output").channels_last
    assert inner.outputs[0].channels_last
    assert not any(t.channels_last for op in plain.ops for t in (*op.inputs, *op.outputs))
    assert total(last.ops).flops == total(plain.ops).flops
    assert [op.name for op in rows(last)] == [op.name for op in rows(plain)]


@pytest.mark.parametrize(
    ("strides", "shape", "expected"),
    [(None, (2, 3, 4, 4), False), ((48, 1, 12, 3), (2, 3, 4, 4), True), ((16, 1, 4, 1), (2, 1, 4, 4), False)],
)
def test_channels_last_of_a_tensor(strides: tuple[int, ...] | None, shape: tuple[int, ...], expected: bool) -> None:
    assert LedgerTensor(0, shape, "fp32", strides).channels_last is expected


@pytest.mark.parametrize(
    ("dtype", "training", "name"),
    [
        (torch.float32, True, "cudnn_batch_norm"),
        (torch.float32, False, "cudnn_batch_norm"),
        (torch.bfloat16, True, "native_batch_norm"),
    ],
)
def test_batch_norm_is_cudnns_where_cudnn_takes_it(dtype: torch.dtype, training: bool, name: str) -> None:
    model, x = nn.BatchNorm2d(4).to(dtype), torch.randn(2, 4, 5, 5, dtype=dtype)
    assert name in names((train if training else infer)(model, x), phase="forward")


def test_dropout_is_one_op_with_a_boolean_mask() -> None:
    ledger = train(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(2, 4))
    op = only(ledger, "native_dropout", module="1")
    assert [tensor.dtype for tensor in op.outputs] == ["fp32", "bool"]
    assert only(ledger, "native_dropout_backward").module == "1"
    assert not [op for op in infer(nn.Dropout(0.5), torch.randn(2, 4)).ops if op.kind == "compute"]


# Recurrent layers: 2 sequences of 5 steps, 6 features, hidden size 8


def rnn_macs(gates: int, *, inputs: int = 6, hidden: int = 8, state: int = 8) -> int:
    """Weights of one layer and direction: each is met once per step and sample."""
    return gates * hidden * (inputs + state) + (state * hidden if state != hidden else 0)


RECURRENT = {
    "lstm": (nn.LSTM(6, 8), rnn_macs(4)),
    "lstm batch first": (nn.LSTM(6, 8, batch_first=True), rnn_macs(4)),
    "lstm of two layers": (nn.LSTM(6, 8, 2, dropout=0.1), rnn_macs(4) + rnn_macs(4, inputs=8)),
    # the second layer gets both directions
    "lstm both ways": (nn.LSTM(6, 8, 2, bidirectional=True), 2 * (rnn_macs(4) + rnn_macs(4, inputs=16))),
    "lstm projected": (nn.LSTM(6, 8, proj_size=3), rnn_macs(4, state=3)),
    "lstm projected both ways": (
        nn.LSTM(6, 8, 2, proj_size=3, bidirectional=True, batch_first=True),
        2 * (rnn_macs(4, state=3) + rnn_macs(4, inputs=6, state=3)),
    ),
    "gru": (nn.GRU(6, 8), rnn_macs(3)),
    "gru without bias": (nn.GRU(6, 8, bias=False, batch_first=True), rnn_macs(3)),
    "rnn": (nn.RNN(6, 8), rnn_macs(1)),
    "rnn relu both ways": (nn.RNN(6, 8, nonlinearity="relu", bidirectional=True), 2 * rnn_macs(1)),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_one_cudnn_op_and_its_backward(name: str) -> None:
    layer, macs = RECURRENT[name]
    ledger = train(nn.Sequential(layer), *[torch.randn(2, 5, 6)])
    forward, backward = only(ledger, "_cudnn_rnn"), only(ledger, "_cudnn_rnn_backward")
    assert (forward.module, backward.module) == ("0", "0")
    assert flops([forward]) == 2 * macs * 10
    assert flops([backward]) == 2 * 2 * macs * 10
    assert (forward.precision, backward.precision) == ("tf32", "tf32")
    features = (layer.proj_size or 8) * (2 if layer.bidirectional else 1)
    assert ledger.header.outputs[0].shape == (2, 5, features)
    gradients = {s.name for s in ledger.storages if s.category == "gradient"}
    assert gradients == {f"0.{parameter}" for parameter, _ in layer.named_parameters()}


@pytest.mark.parametrize("name", ["lstm", "lstm both ways", "gru"])
def test_backward_of_recurrent_layers_on_a_cpu_is_twice_forward(name: str) -> None:
    layer, macs = RECURRENT[name]
    x = torch.randn(5, 2, 6, requires_grad=True)
    states = [torch.zeros(2 * layer.num_layers if layer.bidirectional else 1, 2, 8, requires_grad=True)] * 2
    start = tuple(states) if isinstance(layer, nn.LSTM) else states[0]
    ledger = rooflight.estimate(lambda: layer(x, start)[0].sum().backward(), target="cpu")
    assert flops(rows(ledger, phase="forward")) == 2 * macs * 10  # of 5 steps and 2 samples
    assert flops(rows(ledger, phase="backward")) == 2 * 2 * macs * 10
    assert ("mkldnn_rnn_layer_backward" in names(ledger)) == isinstance(layer, nn.LSTM)


def test_a_layer_costs_what_its_steps_cost_one_by_one() -> None:
    cell, x = nn.LSTMCell(6, 8), torch.randn(5, 2, 6, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        state = torch.zeros(2, 8, requires_grad=True), torch.zeros(2, 8)
        for one in x:
            state = cell(one, state)
        state[0].sum().backward()
    # As forward, and both gradients of each product.
    assert counter.get_total_flops() == 3 * 2 * rnn_macs(4) * 10
    layer = nn.LSTM(6, 8)
    ledger = rooflight.estimate(lambda: layer(x)[0].sum().backward(), target="cpu")
    assert flops(ledger.ops) == counter.get_total_flops()


def test_recurrent_layers_do_not_come_in_single_steps() -> None:
    assert names(infer(nn.LSTM(6, 8, 2), torch.randn(7, 2, 6))).count("_cudnn_rnn") == 1
    assert "addmm" not in names(infer(nn.GRU(6, 8), torch.randn(7, 2, 6)))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("lengths", [torch.tensor([5, 3]), [5, 3]], ids=["tensor", "list"])
def test_packed_sequences_cost_their_real_lengths(lengths: Any) -> None:
    ledger = train(Packed(), torch.randn(2, 5, 6), kwargs={"lengths": lengths})
    forward = only(ledger, "_cudnn_rnn")
    assert forward.ints("batch_sizes") == [2, 2, 2, 1, 1]
    # 8 of the 10 steps are there: 8 * 4 * 8 * (6 + 8) MACs.
    assert flops([forward]) == 2 * 8 * 448
    assert flops([only(ledger, "_cudnn_rnn_backward")]) == 2 * 2 * 8 * 448
    assert ledger.header.outputs[0].shape == (2, 5, 8)
    assert all(op.kind == "host" for op in ledger.ops if op.packet == "aten::_local_scalar_dense")


@pytest.mark.parametrize("layer", [nn.GRU(6, 8), nn.LSTM(6, 8), nn.RNN(6, 8)])
def test_a_packed_sequence_may_be_the_input(layer: nn.RNNBase) -> None:
    packed = pack_padded_sequence(torch.randn(2, 5, 6), torch.tensor([3, 5]), batch_first=True, enforce_sorted=False)
    assert isinstance(packed, PackedSequence)
    ledger = infer(layer, packed)
    assert only(ledger, "_cudnn_rnn").tensor("input").shape == (8, 6)
    assert packed.data.device.type == "cpu"


# Multi-head attention: 2 samples, 5 positions, width 16, 4 heads

PROJECTION = 2 * 2 * 5 * 16 * 16
SCORES_AND_VALUES = 2 * 2 * 5 * 5 * 16 * 2
FEED_FORWARD = 2 * 2 * 2 * 5 * 16 * 32


def test_multi_head_attention_takes_its_slow_path_in_training() -> None:
    x = torch.randn(2, 5, 16)
    ledger = train(nn.MultiheadAttention(16, 4, batch_first=True), x, x, x)
    assert "_native_multi_head_attention" not in names(ledger)
    # All three projections in one product, since q, k and v are one tensor; and the one of the output.
    forward = flops(rows(ledger, phase="forward"))
    assert forward == 4 * PROJECTION + SCORES_AND_VALUES
    # Backward has no gradient of the input x.
    assert flops(rows(ledger, phase="backward")) == 2 * forward - 3 * PROJECTION


def test_multi_head_attention_takes_its_fast_path_in_inference() -> None:
    x = torch.randn(2, 5, 16)
    ledger = infer(nn.MultiheadAttention(16, 4, batch_first=True), x, x, x, kwargs={"need_weights": False})
    assert names(ledger) == ["_native_multi_head_attention"]
    assert flops(rows(ledger)) == 4 * PROJECTION + SCORES_AND_VALUES
    assert ledger.header.outputs[0].shape == (2, 5, 16)


def test_cross_attention_has_no_fast_path() -> None:
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    ledger = infer(nn.MultiheadAttention(16, 4, batch_first=True), x, memory, memory)
    assert "_native_multi_head_attention" not in names(ledger)
    # q and out see 5 positions, k and v 7; the scores are 5 x 7.
    assert flops(rows(ledger)) == 2 * PROJECTION + 2 * PROJECTION * 7 // 5 + SCORES_AND_VALUES * 7 // 5


def test_an_encoder_layer_is_one_op_in_inference_and_many_in_training() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    x = torch.randn(2, 5, 16)
    layer = 4 * PROJECTION + SCORES_AND_VALUES + FEED_FORWARD
    ledger = infer(model, x)
    assert [(op.module, op.packet) for op in rows(ledger)] == [
        ("layers.0", "aten::_transformer_encoder_layer_fwd"), ("layers.1", "aten::_transformer_encoder_layer_fwd"),
    ]  # fmt: skip
    assert flops(rows(ledger)) == 2 * layer
    trained = train(model, x)
    assert "_transformer_encoder_layer_fwd" not in names(trained)
    assert flops(rows(trained, phase="forward")) == 2 * layer
    # Every product twice in backward, but for the gradient of x in the first layer's joint projection.
    assert flops(rows(trained, phase="backward")) == 2 * 2 * layer - 3 * PROJECTION


# Products and look-ups


class Product(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, *operands: Tensor) -> Tensor:
        return torch.einsum(self.equation, *operands)


@pytest.mark.parametrize(
    ("equation", "shapes", "macs"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)], 3 * 4 * 5),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 2 * 3 * 4 * 5),
        ("bhid,bhjd->bhij", [(2, 3, 4, 6), (2, 3, 5, 6)], 2 * 3 * 4 * 5 * 6),
        ("bsd,de->bse", [(2, 3, 4), (4, 5)], 2 * 3 * 4 * 5),
    ],
)  # fmt: skip
def test_einsum_is_the_products_it_is_made_of(equation: str, shapes: list[tuple[int, ...]], macs: int) -> None:
    ledger = infer(Product(equation), *[torch.randn(shape) for shape in shapes])
    assert set(names(ledger)) <= {"bmm", "mm", "clone"}
    assert flops(rows(ledger)) == 2 * macs


class Matmul(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


@pytest.mark.parametrize(
    ("a", "b", "macs"),
    [((3, 4), (4, 5), 60), ((2, 3, 4), (4, 5), 120), ((2, 3, 4), (2, 4, 5), 120), ((3, 4), (4,), 12), ((4,), (4,), 4),
     ((2, 1, 3, 4), (5, 4, 6), 720)],
)  # fmt: skip
def test_matmul_of_any_rank(a: tuple[int, ...], b: tuple[int, ...], macs: int) -> None:
    assert flops(rows(infer(Matmul(), torch.randn(a), torch.randn(b)))) == 2 * macs


def test_embeddings_are_looked_up_and_added_up_at_their_module() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4)
            self.bag = nn.EmbeddingBag(10, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.words(tokens).mean(1) + self.bag(tokens)

    ledger = train(Text(), torch.randint(0, 10, (2, 3)), loss="mse")
    assert only(ledger, "embedding").module == "words"
    assert only(ledger, "embedding").outputs[0].shape == (2, 3, 4)
    assert only(ledger, "embedding_dense_backward").module == "words"
    assert only(ledger, "_embedding_bag").module == "bag"
    assert total(ledger.ops).flops == 0


def test_views_are_rows_that_cost_nothing() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x.view(4, 3).t()[1:].unsqueeze(0))

    ledger = infer(Views(), torch.randn(2, 6))
    views = [op for op in ledger.ops if op.kind == "view"]
    assert [op.packet.removeprefix("aten::") for op in views] == ["view", "t", "slice", "unsqueeze"]
    assert {tensor.storage for op in views for tensor in (*op.inputs, *op.outputs)} == {
        ledger.header.inputs[0][1].storage
    }
    for op in views:
        assert op.cost is not None
        assert (op.cost.flops, op.cost.bytes_read, op.cost.bytes_written) == (0, 0, 0)


@pytest.mark.parametrize("outside", [True, False])
def test_inference_mode_shows_the_same_ops(outside: bool) -> None:
    class Net(nn.Module):
        def __init__(self, inside: bool) -> None:
            super().__init__()
            self.inside = inside
            self.conv, self.lstm = nn.Conv2d(3, 4, 3), nn.LSTM(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode() if self.inside else nullcontext():
                h = F.relu_(self.conv(x)).mean((2, 3))
                return self.lstm(h)[0]

    x = torch.randn(2, 3, 8, 8)
    plain = infer(Net(False), x)
    with torch.inference_mode(outside):
        ledger = infer(Net(not outside), x)
    assert [op.key for op in ledger.ops] == [op.key for op in plain.ops]
    assert total(ledger.ops) == total(plain.ops)


def test_a_frozen_lstm_behind_a_trained_layer_has_no_weight_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lstm = nn.Linear(4, 6), nn.LSTM(6, 8)
            self.lstm.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(self.first(x))[0]

    ledger = train(Net(), torch.randn(5, 2, 4))
    forward = 2 * (5 * 2) * 4 * 8 * (6 + 8)
    assert flops(rows(ledger, "_cudnn_rnn")) == forward
    assert flops(rows(ledger, "_cudnn_rnn_backward")) == forward


def test_a_reader_is_told_of_fused_layers_and_of_what_cudnn_keeps() -> None:
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    assert any("fast path" in note for note in note_texts(infer(encoder, torch.randn(2, 3, 16)).header.notes))
    assert not any("fast path" in note for note in note_texts(train(encoder, torch.randn(2, 3, 16)).header.notes))
    assert any("reserve" in note for note in note_texts(train(nn.GRU(4, 4), torch.randn(3, 2, 4)).header.notes))
