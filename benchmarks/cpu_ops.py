"""How much of the time of ops on this CPU is explained: random ops at random sizes, measured as steps are.

    python benchmarks/cpu_ops.py [--count 60] [--seed 0] [--threads 1,2] [--out FILE.json]

Twelve ops that have nothing to do with each other are one model, which `rooflight.measure` runs; causes are what
`rooflight compare` shows. What is unexplained is told as a part of the op's time: negative where the causes explain too
much. Models by name are judged with `--models resnet18,distilbert`, learned from is none of them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

import rooflight
from rooflight.analysis.cause import Explained
from rooflight.analysis.time_causes import explain_time

TOGETHER = 12
SIZES = (1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56)
CHANNELS = (3, 8, 13, 16, 24, 32, 48, 64, 96, 128, 200, 256)


@dataclass(frozen=True)
class OpRow:
    """One op, and how much of its time is explained."""

    kind: str
    what: str
    threads: int
    seconds: float
    unexplained: float
    causes: dict[str, float]


class Layer(nn.Module):
    """A function as a model."""

    def __init__(self, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.call(*tensors)


def convolution(draw: random.Random) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    side, kernel = draw.choice(SIZES[4:]), draw.choice((1, 1, 3, 3, 5, 7))
    groups = draw.choice((1, 1, 1, 2, 4, 0))
    into, out = draw.choice(CHANNELS), draw.choice(CHANNELS[1:])
    if groups == 0:
        groups = out = into
    elif groups > 1:
        into, out = into * groups, out * groups
    layer = nn.Conv2d(into, out, kernel, draw.choice((1, 1, 2)), kernel // 2, groups=groups, bias=draw.random() < 0.5)
    return layer, (torch.randn(draw.choice((1, 2, 4)), into, side, side),)


def product(draw: random.Random) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    sizes = [int(2 ** draw.uniform(2, 10)) for _ in range(3)]
    if draw.random() < 0.3:
        batch = draw.choice((2, 8, 12))
        rows, depth, columns = (max(size // 2, 4) for size in sizes)
        return Layer(torch.bmm), (torch.randn(batch, rows, depth), torch.randn(batch, depth, columns))
    return nn.Linear(sizes[1], sizes[2], bias=draw.random() < 0.7), (torch.randn(sizes[0], sizes[1]),)


def pointwise(draw: random.Random) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    x = torch.rand(int(2 ** draw.uniform(8, 24))) + 0.1
    calls: list[Callable[..., torch.Tensor]] = [
        torch.relu, torch.exp, torch.tanh, torch.sigmoid, nn.functional.gelu, nn.functional.silu, torch.sqrt,
    ]  # fmt: skip
    if draw.random() < 0.4:
        return Layer(draw.choice([torch.add, torch.mul, torch.div])), (x, x.clone())
    return Layer(draw.choice(calls)), (x,)


def norm(draw: random.Random) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    channels, side, batch = draw.choice(CHANNELS[1:]), draw.choice(SIZES[3:]), draw.choice((1, 2, 4))
    image = torch.randn(batch, channels, side, side)
    rows = torch.randn(int(2 ** draw.uniform(2, 11)), channels * 4)
    return draw.choice(
        [
            (nn.BatchNorm2d(channels), (image,)),
            (nn.LayerNorm(channels * 4), (rows,)),
            (nn.Softmax(-1), (rows,)),
            (nn.MaxPool2d(3, 2, 1), (image,)),
            (nn.AvgPool2d(2), (image.expand(batch, channels, side, side),)),
            (nn.AdaptiveAvgPool2d(1), (image,)),
        ]
    )


KINDS = {"convolution": convolution, "product": product, "pointwise": pointwise, "norm, pool": norm}


class Mixture(nn.Module):
    """Layers side by side, each with an input of its own."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *groups: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [layer(*tensors) for layer, tensors in zip(self.layers, groups, strict=True)]


def rows_of(drawn: list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]], threads: int) -> list[OpRow]:
    kinds, layers, inputs = zip(*drawn, strict=True)
    ledger = rooflight.measure(Mixture(list(layers)).eval(), *inputs, repeat=15, counters="none", device="cpu")
    explained = [row for row in explain_time(ledger) if row.op.module]
    return [as_row(kinds[int(row.op.module.split(".")[1])], row, threads) for row in explained]


def rows_of_model(name: str, threads: int) -> list[OpRow]:
    ledger = rooflight.measure(name, step="infer", batch=1, repeat=15, counters="none", device="cpu")
    return [as_row(name, row, threads) for row in explain_time(ledger)]


def as_row(kind: str, explained: Explained, threads: int) -> OpRow:
    op = explained.op
    shapes = "; ".join("x".join(map(str, tensor.shape)) for tensor in op.inputs)
    causes = {"roof": float(explained.asked)}
    for cause in explained.causes:
        causes[cause.name] = causes.get(cause.name, 0.0) + cause.amount
    unexplained = explained.unexplained / explained.measured
    return OpRow(kind, f"{op.packet} {shapes}", threads, explained.measured, unexplained, causes)


def told(rows: list[OpRow]) -> str:
    parts = sorted(abs(row.unexplained) for row in rows)
    over = sum(row.unexplained < -0.02 for row in rows)
    tenth = parts[min(len(parts) - 1, round(0.9 * len(parts)))]
    least = min(row.unexplained for row in rows)
    total = sum(row.seconds for row in rows)
    weighted = sum(row.unexplained * row.seconds for row in rows) / total
    return (
        f"{len(rows):4} ops; unexplained median {statistics.median(parts):6.1%}, p90 {tenth:6.1%}, worst {parts[-1]:6.1%}"
        f"; of all time {weighted:6.1%}; over-explained by more than 2% {over:3} (most {least:.1%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", help="names, instead of random ops")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = given.models.split(",") if given.models else []
    rows: list[OpRow] = []
    for threads in map(int, given.threads.split(",")):
        torch.set_num_threads(threads)
        draw = random.Random(given.seed)
        torch.manual_seed(given.seed)
        kinds = [kind for _ in range(TOGETHER // len(KINDS)) for kind in KINDS]
        for _ in range(0 if names else given.count // TOGETHER):
            rows += rows_of([(kind, *KINDS[kind](draw)) for kind in kinds], threads)
        for name in names:
            rows += rows_of_model(name, threads)
        for kind in names or KINDS:
            print(f"{threads} threads, {kind:12}", told([r for r in rows if (r.kind, r.threads) == (kind, threads)]))
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
