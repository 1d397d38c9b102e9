"""The precision arithmetic really runs in: torch's TF32 switches, half precision, autocast."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooflight.errors import TraceFailed
from rooflight.ledger import LOSS
from rooflight.trace.options import TensorKind
from tests.fixtures.tracing import flops, infer, names, only, rows, train


@pytest.fixture
def switches() -> Iterator[None]:
    """Gives the TF32 switches back as they were."""
    conv, matmul = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = conv, matmul


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm, self.fc = nn.Conv2d(3, 4, 3), nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(F.relu(self.conv(x)).mean((2, 3)))[0])


OPS = ("convolution", "convolution_backward", "_cudnn_rnn", "_cudnn_rnn_backward", "addmm", "relu")


@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize("matmul", [True, False])
def test_tf32_follows_the_switches(switches: None, conv: bool, matmul: bool) -> None:
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = conv, matmul
    ledger = train(Net(), torch.randn(2, 3, 8, 8))
    convolutions, matmuls = "tf32" if conv else "fp32", "tf32" if matmul else "fp32"
    found = [only(ledger, name).precision for name in OPS]
    assert found == [convolutions] * 4 + [matmuls, "fp32"]
    assert {op.precision for op in rows(ledger, "mm")} == {matmuls}
    assert (ledger.header.math.tf32_conv, ledger.header.math.tf32_matmul) == (conv, matmul)


def test_torchs_defaults_are_tf32_for_convolutions_only() -> None:
    ledger = infer(Net(), torch.randn(2, 3, 8, 8))
    assert (only(ledger, "convolution").precision, only(ledger, "addmm").precision) == ("tf32", "fp32")


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float64, "fp64")]
)
def test_a_converted_model_runs_in_its_own_precision(dtype: torch.dtype, name: str) -> None:
    ledger = train(Net().to(dtype), torch.randn(2, 3, 8, 8, dtype=dtype))
    assert [only(ledger, op).precision for op in OPS] == [name] * 6
    assert ledger.header.dtype == name
    assert {s.nbytes for s in ledger.storages if s.name == "fc.weight"} == {8 * dtype.itemsize}


# Autocast


class Mixed(nn.Module):
    """Weights used twice, matrix work, delicate functions and neutral ones."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.norm, self.conv = nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.twice(self.twice(x)))
        x = self.norm(self.conv(x))
        return torch.softmax(x, -1) @ x.transpose(1, 2)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bf16"), ("fp16", "fp16")])
def test_autocast_lowers_products_and_keeps_delicate_functions(precision: str, dtype: str) -> None:
    ledger = train(Mixed(), torch.randn(2, 3, 4), autocast=precision, loss="cross-entropy")
    for name in ("addmm", "convolution", "bmm", "mm", "convolution_backward", "relu"):
        assert {op.precision for op in rows(ledger, name)} == {dtype}, name
    for name in ("native_layer_norm", "_softmax", "nll_loss_forward", "native_layer_norm_backward"):
        assert {op.precision for op in rows(ledger, name)} == {"fp32"}, name
    assert {op.outputs[0].dtype for op in rows(ledger, "native_layer_norm")} == {"fp32"}
    assert ledger.header.autocast == precision
    # Parameters, their gradients and the optimizer stay as they are.
    assert ledger.header.dtype == "fp32"
    assert {s.nbytes for s in ledger.storages if s.name == "twice.weight"} == {64}
    assert {t.dtype for op in rows(ledger, phase="optimizer") for t in op.inputs} == {"fp32"}


def test_autocast_does_the_same_work() -> None:
    x = torch.randn(2, 3, 4)
    plain, cast = train(Mixed(), x), train(Mixed(), x, autocast="bf16")
    assert flops(rows(cast)) == flops(rows(plain))


@pytest.mark.parametrize("step", ["infer", "train"])
def test_a_weight_is_cast_once_however_often_it_is_used(step: str) -> None:
    ledger = (infer if step == "infer" else train)(Mixed(), torch.randn(2, 3, 4), autocast="bf16")
    weight = next(s.id for s in ledger.storages if s.name == "twice.weight" and s.category == "parameter")
    casts = [op for op in rows(ledger, "_to_copy") if op.tensor("self").storage == weight]
    assert [(op.phase, op.module, op.call) for op in casts] == [("forward", "twice", 0)]
    assert casts[0].outputs[0].dtype == "bf16"
    assert len(rows(ledger, "addmm", module="twice")) == 2


def test_the_next_step_casts_the_weights_again() -> None:
    ledger = train(nn.Linear(4, 4, bias=False), torch.randn(2, 4), autocast="bf16", accumulate=2)
    weight = next(s.id for s in ledger.storages if s.category == "parameter")
    casts = [op.call for op in rows(ledger, "_to_copy") if op.tensor("self").storage == weight]
    assert casts == [0, 1]


def test_the_loss_is_under_autocast_too() -> None:
    ledger = train(nn.Linear(4, 4), torch.randn(2, 4), autocast="bf16", loss="cross-entropy")
    # As recorded on an H200: cross_entropy fixes the type of its softmax, so only the loss itself is cast to fp32.
    assert names(ledger, phase="forward", module=LOSS) == ["_log_softmax", "_to_copy", "nll_loss_forward"]
    assert [op.outputs[0].dtype for op in rows(ledger, "_log_softmax")] == ["bf16"]
    assert only(ledger, "addmm").outputs[0].dtype == "bf16"


@pytest.mark.parametrize("step", ["infer", "train"])
def test_multi_head_attention_under_autocast_leaves_its_fast_path(step: str) -> None:
    x = torch.randn(2, 5, 16)
    trace = infer if step == "infer" else train
    ledger = trace(nn.MultiheadAttention(16, 4, batch_first=True), x, x, x, autocast="bf16")
    assert "_native_multi_head_attention" not in names(ledger)
    assert {op.precision for op in rows(ledger) if flops([op])} == {"bf16"}
    assert {op.precision for op in rows(ledger, "_softmax")} == {"fp32"}
    # Four projections of 10 x 16 x 16 and attention over 5 positions.
    assert flops(rows(ledger, phase="forward")) == 4 * 2 * 10 * 16 * 16 + 2 * 2 * 2 * 5 * 5 * 16


def test_attention_under_autocast_takes_the_kernel_of_half_precision() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v)

    x = torch.randn(2, 5, 16)
    assert only(train(Attention(), x), "_scaled_dot_product_efficient_attention").precision == "fp32"
    assert only(train(Attention(), x, autocast="bf16"), "_scaled_dot_product_cudnn_attention").precision == "bf16"


def test_autocast_leaves_batch_norm_in_fp32() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    ledger = train(model, torch.randn(2, 3, 8, 8), autocast="bf16")
    assert only(ledger, "convolution").precision == "bf16"
    norm = next(op for op in rows(ledger, phase="forward", module="1") if "batch_norm" in op.name)
    # Images in half precision, statistics and weights in fp32.
    assert norm.tensor("input").dtype == "bf16"
    assert norm.tensor("weight").dtype == "fp32"
    assert norm.outputs[0].dtype == "bf16"


@pytest.mark.parametrize("on", ["meta", "fake"])
def test_autocast_is_the_same_on_meta_and_fake_tensors(on: TensorKind) -> None:
    ledger = train(Mixed(), torch.randn(2, 3, 4), autocast="bf16", on=on)
    assert [op.precision for op in rows(ledger, "addmm")] == ["bf16", "bf16"]


class OwnContexts(nn.Module):
    """A model that switches autocast on and off by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high, self.plain = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = self.low(x)
            with torch.autocast(x.device.type, enabled=False):
                z = self.high(y.float())
        return self.plain(z)


@pytest.mark.parametrize(("outside", "plain"), [(None, "fp32"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_autocast_contexts_of_the_model_hold(outside: str | None, plain: str) -> None:
    before = torch.autocast.__enter__
    ledger = infer(OwnContexts(), torch.randn(2, 4), autocast=outside)
    assert [(op.module, op.precision) for op in rows(ledger, "addmm")] == [
        ("low", "bf16"),
        ("high", "fp32"),
        ("plain", plain),
    ]
    assert torch.autocast.__enter__ is before


def test_an_autocast_context_that_raises_is_closed() -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                raise RuntimeError("on purpose")

    with pytest.raises(TraceFailed, match="on purpose"):
        infer(Raising(), torch.randn(2, 4))
    ledger = infer(nn.Linear(4, 4), torch.randn(2, 4))
    assert [op.precision for op in rows(ledger, "addmm")] == ["fp32"]


@pytest.mark.parametrize(
    ("target", "precision"),
    [("cuda", "tf32"), ("cuda:80", "tf32"), ("cuda:75", "fp32"), ("cuda:70", "fp32"), ("cpu", "fp32")],
)
def test_tf32_only_where_there_is_tf32(target: str, precision: str) -> None:
    ledger = infer(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8), target=target)
    assert only(ledger, "convolution").precision == precision
    assert ledger.header.math.tf32_conv == (precision == "tf32")


@torch.autocast("cuda", dtype=torch.bfloat16)
def _decorated(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


def test_a_context_made_before_the_trace_holds_if_it_names_its_type() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(_decorated(self.a, x).float())

    ledger = infer(Net(), torch.randn(2, 4))
    assert [(op.module, op.precision) for op in rows(ledger, "addmm")] == [("a", "bf16"), ("b", "fp32")]


def test_sums_under_autocast_read_the_low_precision_and_give_fp32() -> None:
    """As an H200 runs them: no cast before `sum`, `cumsum` or a norm."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y.sum() + torch.cumsum(y, 1).sum() + torch.linalg.vector_norm(y)

    ledger = infer(Net(), torch.randn(2, 4), autocast="bf16")
    assert [op.outputs[0].dtype for op in rows(ledger, "sum")] == ["fp32", "fp32"]
    assert [op.tensor("self").dtype for op in rows(ledger, "cumsum")] == ["bf16"]
    assert [op.tensor("self").dtype for op in rows(ledger, "linalg_vector_norm")] == ["bf16"]
    # Only the two operands and the bias of the product are cast.
    assert len(rows(ledger, "_to_copy")) == 3
