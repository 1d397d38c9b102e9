"""What holds for every model: parts sum to wholes, work grows with the batch, every way of tracing agrees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rooflight.ledger import LOSS, OPTIMIZER, QUANTITIES, Ledger, Op, Totals, is_inside, total
from rooflight.summary import params, rows, totals_by_phase
from tests.fixtures.tracing import infer, train

few = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
widths = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def mlp(sizes: Sequence[int], *, bias: bool = True) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers)


def convnet(channels: Sequence[int], *, kernel: int, norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2), nn.ReLU()]
        if norm:
            layers.append(nn.BatchNorm2d(outputs))
    return nn.Sequential(nn.Sequential(*layers), nn.Flatten(), nn.Linear(channels[-1] * 36, 3))


class Attention(nn.Module):
    def __init__(self, heads: int = 2, size: int = 8) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv = nn.Linear(heads * size, 3 * heads * size)
        self.out = nn.Linear(heads * size, heads * size)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


# Parts and wholes


def check_sums(ledger: Ledger) -> None:
    whole = total(ledger.ops)
    assert not whole.uncounted
    parts = [total(op for op in ledger.ops if is_inside(op.module, "")),
             total(op for op in ledger.ops if op.module == LOSS),
             total(op for op in ledger.ops if op.module == OPTIMIZER)]  # fmt: skip
    assert sum(parts, Totals()) == whole
    assert sum(totals_by_phase(ledger).values(), Totals()) == whole
    table = rows(ledger)
    tops = [row.totals for row in table if row.name in ("", LOSS, OPTIMIZER)]
    for quantity in QUANTITIES:
        assert sum(getattr(row, quantity) for row in tops) == getattr(whole, quantity), quantity
        for by in ("type", "op"):
            assert sum(getattr(row.totals, quantity) for row in rows(ledger, by)) == getattr(whole, quantity)
    # A module is what runs in it and what runs in its children.
    for row in table:
        if row.kind == "module":
            inside = total(op for op in ledger.ops if is_inside(op.module, row.name) and op.kind != "view")
            assert row.totals == inside, row.name
    assert table[0].params == params(ledger)


@few
@given(
    sizes=widths, batch=st.integers(1, 5), bias=st.booleans(), optimizer=st.sampled_from(["sgd", "momentum", "adamw"])
)
def test_rows_sum_to_totals_in_a_perceptron(sizes: list[int], batch: int, bias: bool, optimizer: str) -> None:
    model = mlp(sizes, bias=bias)
    ledger = train(model, torch.randn(batch, sizes[0]), optimizer=optimizer)
    check_sums(ledger)
    # By hand: every layer forward, for the weights, and (but for the first) for its input.
    products = [2 * batch * inputs * outputs for inputs, outputs in pairwise(sizes)]
    assert total(ledger.ops).flops == 3 * sum(products) - products[0]
    assert params(ledger) == sum(parameter.numel() for parameter in model.parameters())


@few
@given(channels=st.lists(st.integers(1, 5), min_size=2, max_size=4), kernel=st.sampled_from([1, 3, 5]),
       batch=st.integers(1, 3), norm=st.booleans())  # fmt: skip
def test_rows_sum_to_totals_in_a_convolutional_net(channels: list[int], kernel: int, batch: int, norm: bool) -> None:
    ledger = train(convnet(channels, kernel=kernel, norm=norm), torch.randn(batch, channels[0], 6, 6))
    check_sums(ledger)
    products = [2 * batch * outputs * 36 * inputs * kernel**2 for inputs, outputs in pairwise(channels)]
    assert total(ledger.ops).flops == 3 * (sum(products) + 2 * batch * channels[-1] * 36 * 3) - products[0]


@pytest.mark.parametrize("model", [Attention(), Recurrent()], ids=["attention", "lstm"])
@pytest.mark.parametrize("step", ["infer", "train"])
def test_rows_sum_to_totals_in_sequence_models(model: nn.Module, step: str) -> None:
    x = torch.randn(2, 5, 16 if isinstance(model, Attention) else 6)
    check_sums((infer if step == "infer" else train)(model, x))


# The batch


def kept_bytes(ledger: Ledger) -> int:
    """Kept for backward, but for single numbers: the loss, and the random state of attention kernels."""
    numbers = {tensor.storage for op in ledger.ops for tensor in op.outputs if not tensor.shape}
    kept = [s for s in ledger.storages if s.category in ("activation", "output") and s.id not in numbers]
    return sum(s.nbytes for s in kept)


def check_batches(model: nn.Module, shape: tuple[int, ...], batch: int) -> None:
    one, many = (train(model, torch.randn(n, *shape)) for n in (batch, 3 * batch))
    for phase in ("forward", "backward"):
        assert totals_by_phase(many)[phase].flops == 3 * totals_by_phase(one)[phase].flops
    assert kept_bytes(many) == 3 * kept_bytes(one)
    assert params(many) == params(one)
    assert many.modules[0].params == one.modules[0].params
    for category in ("parameter", "gradient", "optimizer-state", "buffer"):
        assert [s.nbytes for s in many.storages if s.category == category] == [
            s.nbytes for s in one.storages if s.category == category
        ], category
    # The optimizer does not know the batch.
    assert totals_by_phase(many)["optimizer"] == totals_by_phase(one)["optimizer"]
    # The same ops compute; with one sample torch may take other views on the way.
    assert [op.key for op in many.ops if op.kind == "compute"] == [op.key for op in one.ops if op.kind == "compute"]


@few
@given(sizes=widths, batch=st.integers(1, 4))
def test_work_and_kept_activations_grow_with_the_batch(sizes: list[int], batch: int) -> None:
    check_batches(mlp(sizes), (sizes[0],), batch)


@few
@given(channels=st.lists(st.integers(1, 4), min_size=2, max_size=3), batch=st.integers(2, 3))
def test_convolutions_grow_with_the_batch(channels: list[int], batch: int) -> None:
    check_batches(convnet(channels, kernel=3, norm=False), (channels[0], 6, 6), batch)


@pytest.mark.parametrize(("model", "shape"), [(Recurrent(), (5, 6)), (Attention(), (8, 16))], ids=["lstm", "attention"])
def test_sequence_models_grow_with_the_batch(model: nn.Module, shape: tuple[int, ...]) -> None:
    check_batches(model, shape, 2)


@pytest.mark.parametrize(("model", "shape"), [(mlp([4, 8, 3]), (4,)), (Recurrent(), (5, 6))], ids=["mlp", "lstm"])
def test_autocast_keeps_the_same_weights_whatever_the_batch(model: nn.Module, shape: tuple[int, ...]) -> None:
    one, two, three = (kept_bytes(train(model, torch.randn(n, *shape), autocast="bf16")) for n in (1, 2, 3))
    assert three - two == two - one
    # What does not grow: the weights in bf16, two bytes each (biases are not needed for a product's gradient).
    constant = one - (two - one)
    assert 0 < constant <= 2 * sum(parameter.numel() for parameter in model.parameters())


@few
@given(batch=st.integers(1, 3), length=st.integers(2, 6))
def test_attention_grows_with_the_square_of_the_sequence(batch: int, length: int) -> None:
    def attention(n: int) -> int:
        ledger = infer(Attention(), torch.randn(batch, n, 16))
        return total(op for op in ledger.ops if "attention" in op.name).flops

    assert attention(2 * length) == 4 * attention(length)
    assert attention(length) == 2 * batch * 2 * length**2 * 16


@few
@given(sizes=widths, accumulate=st.integers(1, 3))
def test_micro_batches_are_the_same_work_as_one_batch(sizes: list[int], accumulate: int) -> None:
    model = mlp(sizes)
    whole = train(model, torch.randn(2 * accumulate, sizes[0]))
    parts = train(model, torch.randn(2, sizes[0]), accumulate=accumulate)
    assert total(whole.ops).flops == total(parts.ops).flops


# Every kind of tensor gives the same work


NETS = {
    "conv": (convnet([3, 4, 5], kernel=3, norm=True), (2, 3, 6, 6)),
    "mlp": (mlp([4, 8, 3]), (3, 4)),
    "attention": (Attention(), (2, 5, 16)),
    "encoder": (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
    "lstm": (Recurrent(), (2, 5, 6)),
}


def matrix_flops(ledger: Ledger) -> int:
    assert not total(ledger.ops).uncounted
    return total(ledger.ops).flops


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("target", ["cuda", "cuda:80"])
def test_fake_tensors_give_the_ops_of_meta_tensors(name: str, step: str, target: str) -> None:
    model, shape = NETS[name]
    trace = infer if step == "infer" else train
    meta, fake = (trace(model, torch.randn(shape), target=target, on=on) for on in ("meta", "fake"))
    # Fake tensors are a mode, and under a mode torch detaches what it saves and adds up gradients in new tensors.
    of_fake, of_meta = ([op for op in ledger.ops if op.packet != "aten::detach"] for ledger in (fake, meta))
    assert [_out_of_place(op) for op in of_fake] == [_out_of_place(op) for op in of_meta]
    assert [[t.shape for t in op.outputs] for op in of_fake] == [[t.shape for t in op.outputs] for op in of_meta]
    assert matrix_flops(fake) == matrix_flops(meta)


def _out_of_place(op: Op) -> tuple[str, str, int, str]:
    return op.phase, op.module, op.call, op.name.replace("aten::add_.", "aten::add.")


@pytest.mark.parametrize("name", [name for name in NETS if name != "lstm"])
@pytest.mark.parametrize("step", ["infer", "train"])
def test_every_kind_of_tensor_does_the_same_work_for_a_cpu(name: str, step: str) -> None:
    model, shape = NETS[name]
    trace = infer if step == "infer" else train
    meta, fake, real = (trace(model, torch.randn(shape), target="cpu", on=on) for on in ("meta", "fake", "cpu"))
    assert matrix_flops(meta) == matrix_flops(fake) == matrix_flops(real)


@pytest.mark.parametrize("name", NETS)
def test_a_real_inference_on_the_cpu_does_the_same_work(name: str) -> None:
    model, shape = NETS[name]
    x = torch.randn(shape)
    assert matrix_flops(infer(model, x, on="cpu")) == matrix_flops(infer(model, x))
    assert matrix_flops(infer(model, x, on="cpu", target="cpu")) == matrix_flops(infer(model, x, target="cpu"))


@pytest.mark.parametrize("name", [name for name in NETS if name != "lstm"])
def test_a_real_training_step_on_the_cpu_does_the_same_work(name: str) -> None:
    model, shape = NETS[name]
    x = torch.randn(shape)
    assert matrix_flops(train(model, x, on="cpu")) == matrix_flops(train(model, x))


def test_a_recurrent_training_step_on_the_cpu_leaves_out_what_cudnn_computes_for_nothing() -> None:
    """cuDNN gives the gradients of the input and of the first state always, single steps only where asked for."""
    model, x = nn.GRU(6, 8, batch_first=True), torch.randn(2, 5, 6)
    # Of 2 samples: the input's gradient at 5 steps, 3 * 8 * 6 each, and that of the first state once, 3 * 8 * 8.
    unneeded = 2 * 2 * (5 * 3 * 8 * 6 + 3 * 8 * 8)
    assert matrix_flops(train(model, x)) - matrix_flops(train(model, x, on="cpu")) == unneeded
