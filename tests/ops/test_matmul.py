"""Matrix products by group: the experts of a mixture, in any precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rooflight.ops.op_tasks import tasks_of
from tests.fixtures.tracing import infer, rows, train

# 12 rows of 16 values, 4 experts that make 24 of each: 12 * 16 * 24 = 4,608 MACs.
ROWS, WIDTH, EXPERTS, MADE = 12, 16, 4, 24
MACS = ROWS * WIDTH * MADE


class Experts(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32, made: int = MADE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, made, dtype=dtype))
        self.first = nn.Parameter(torch.ones(WIDTH, dtype=dtype))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x * self.first, self.weight, offs=ends)


def inputs(dtype: torch.dtype, count: int = ROWS) -> tuple[Tensor, Tensor]:
    return torch.randn(count, WIDTH, dtype=dtype), torch.tensor([3, 6, 9, count], dtype=torch.int32)


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_experts_in_any_precision_and_their_backward(dtype: torch.dtype, target: str) -> None:
    ledger = train(Experts(dtype), *inputs(dtype), loss="sum", target=target)
    products = rows(ledger, "_grouped_mm")
    # The gradients of rows and of weights are as much work each.
    assert [(op.phase, op.cost.macs if op.cost else None) for op in products] == [
        ("forward", MACS), ("backward", MACS), ("backward", MACS),
    ]  # fmt: skip
    assert {op.outputs[0].shape for op in products} == {(ROWS, MADE), (ROWS, WIDTH), (EXPERTS, WIDTH, MADE)}


def test_the_shapes_and_strides_are_those_of_the_real_op() -> None:
    """10 values a row: rows begin at multiples of 16 bytes."""
    x, ends = inputs(torch.float32)
    weight = torch.randn(EXPERTS, WIDTH, 12)[..., :10]
    real = torch._grouped_mm(x, weight, offs=ends)

    class Cut(Experts):
        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            return torch._grouped_mm(x, self.weight[..., :10], offs=ends)

    (op,) = rows(infer(Cut(made=12), x, ends, target="cpu"), "_grouped_mm")
    assert op.outputs[0].shape == tuple(real.shape) == (ROWS, 10)
    assert op.outputs[0].strides == tuple(real.stride()) == (12, 1)


def test_experts_that_get_no_row_are_not_read() -> None:
    (op,) = rows(infer(Experts(), *inputs(torch.float32, 2)), "_grouped_mm")
    assert op.cost is not None
    assert op.cost.bytes_read == 4 * (2 * WIDTH + 2 * WIDTH * MADE + EXPERTS)


class Routed(nn.Module):
    """Eight of 128 experts a token, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weight = nn.Linear(8, 128, bias=False), nn.Parameter(torch.randn(128, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.topk(self.router(x), 8).indices.view(-1)
        ends = torch.cumsum(torch.histc(chosen.int(), bins=128, min=0, max=127), dim=0, dtype=torch.int32)
        return torch._grouped_mm(x[chosen.argsort() // 8], self.weight, offs=ends)


@pytest.mark.parametrize(("tokens", "reached"), [(1, 8), (8, 52), (16, 82), (32, 112), (1000, 128)])
def test_as_many_experts_are_read_as_tokens_reach_by_chance(tokens: int, reached: int) -> None:
    """128 x (1 - (1 - 8/128)^16) = 82.4, not the 128 that 16 tokens could reach at most."""
    (op,) = rows(infer(Routed(), torch.randn(tokens, 8)), "_grouped_mm")
    assert op.cost is not None
    assert op.cost.bytes_read == 4 * (8 * tokens * 8 + reached * 8 * 8 + 128)
    assert sum(task.numbers[0] for task in tasks_of(op)) == reached


@pytest.mark.parametrize(("dtype", "kernels"), [(torch.bfloat16, 1), (torch.float32, EXPERTS)])
def test_one_kernel_for_all_experts_or_one_for_each(dtype: torch.dtype, kernels: int) -> None:
    ledger = train(Experts(dtype), *inputs(dtype), loss="sum")
    for op in rows(ledger, "_grouped_mm"):
        tasks = tasks_of(op)
        assert len(tasks) == kernels
        batch, m, n, k, *_ = tasks[0].numbers
        assert len(tasks) * batch * m * n * k == MACS
