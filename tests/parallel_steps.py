"""Steps made by hand, a device and fabrics, for tests of prediction on many GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rooflight
from rooflight.hardware.device import Device, Figure
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes, Module, Op, Storage
from rooflight.ledger import Tensor as Row
from rooflight.prediction.parallel.fabric import NO_LATENCY, Fabric, Link
from rooflight.prediction.parallel.step import Clocks, TimedStep, steady_s

GB = 1e9


def figure(value: float) -> Figure:
    return Figure(value, "made up", "2026-11-15")


def device(*, capability: int | None = 90, sms: int = 100, **links: float) -> Device:
    """A device with these links, in bytes per second, one direction."""
    return Device(
        name="made-up", title="made up", kind="gpu", vendor="nobody", capability=capability, core_flops_per_s={"fp32": figure(1e13)},
        memory_bytes=figure(8e10), bandwidth_bytes_per_s=figure(1e12), sms=figure(sms), clock_hz=figure(1e9),
        links_bytes_per_s={name.replace("_", "-"): figure(value) for name, value in links.items()},
    )  # fmt: skip


def plain_fabric(inside: float = 100 * GB, between: float = 10 * GB) -> Fabric:
    """Links without latency."""
    return Fabric(Link("nvlink", inside, "made up"), Link("network", between, "made up"), NO_LATENCY)


def chain(layers: int = 4, *, weight_bytes: int = 100 * 2**20, output_bytes: int = 4000, batch: int = 8) -> Ledger:
    """`layers` modules of one weight each: one op forward, one backward that makes the gradient, one update for all."""
    ops: list[Op] = []
    storages: list[Storage] = []
    modules = [Module(path="", type="Chain", calls=1)]
    for n in range(layers):
        modules.append(
            Module(
                path=str(n),
                type="Layer",
                params=weight_bytes // 4,
                param_bytes=weight_bytes,
                calls=1,
                outputs=((batch, output_bytes // 4 // batch),),
                output_dtypes=("fp32",),
            )
        )
        storages.append(Storage(n, weight_bytes, "parameter", name=f"{n}.weight"))
        ops.append(Op(index=n, phase="forward", module=str(n), call=0, name="aten::mm", ordinal=0))
    for n in reversed(range(layers)):
        made = Row(layers + n, (weight_bytes // 4,), "fp32")
        ops.append(
            Op(index=len(ops), phase="backward", module=str(n), call=0, name="aten::mm", ordinal=0, outputs=(made,))
        )
        storages.append(Storage(layers + n, weight_bytes, "gradient", born=len(ops) - 1, name=f"{n}.weight"))
    ops.append(
        Op(index=len(ops), phase="optimizer", module="<optimizer>", call=0, name="aten::_foreach_add_", ordinal=0)
    )
    storages.append(Storage(2 * layers, 2 * layers * weight_bytes, "optimizer-state"))
    header = Header(
        rooflight="0",
        torch=None,
        model="chain",
        step="train",
        target="cuda",
        batch=batch,
        dtype="fp32",
        math=MathModes(True, False),
    )
    return Ledger(
        format_version=FORMAT_VERSION, header=header, modules=tuple(modules), storages=tuple(storages), ops=tuple(ops)
    )


def chain_step(layers: int = 4, *, forward_s: float = 0.01, backward_s: float = 0.02, update_s: float = 0.004,
               host_s: float = 0.0, **shape: int) -> TimedStep:  # fmt: skip
    ledger = chain(layers, **shape)
    seconds = {"forward": forward_s, "backward": backward_s, "optimizer": update_s}
    return TimedStep(ledger, [seconds[op.phase] for op in ledger.ops], [host_s] * len(ledger.ops), "made up")


class Block(nn.Module):
    """A transformer block with attention written out."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.qkv, self.out = nn.LayerNorm(hidden), nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.norm_2, self.up, self.down = (
            nn.LayerNorm(hidden),
            nn.Linear(hidden, 4 * hidden),
            nn.Linear(4 * hidden, hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, S, E = x.shape
        query, key, value = (
            part.reshape(B, S, self.heads, -1).transpose(1, 2).reshape(B * self.heads, S, -1)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=2)
        )
        weights = F.softmax(torch.bmm(query, key.transpose(1, 2)), dim=-1)
        mixed = torch.bmm(weights, value).view(B, self.heads, S, -1).transpose(1, 2).reshape(B, S, E)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class TinyGPT(nn.Module):
    """Four blocks of hidden size 256 with 8 heads."""

    def __init__(self, layers: int = 4, hidden: int = 256, heads: int = 8, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@cache
def tiny_ledger(batch: int = 8, *, step: str = "train", layers: int = 4) -> Ledger:
    with torch.device("meta"):
        model, tokens = TinyGPT(layers), torch.zeros(batch, 128, dtype=torch.int64)
    options = {"loss": "cross-entropy", "optimizer": "adamw"} if step == "train" else {}
    return rooflight.estimate(model, tokens, step=step, **options)


def tiny_step(batch: int = 8, *, step: str = "train", layers: int = 4, host_s: float = 0.0) -> TimedStep:
    """Times by FLOPs at 10 TFLOP/s or bytes at 1 TB/s."""
    ledger = tiny_ledger(batch, step=step, layers=layers)
    return TimedStep(ledger, [op_seconds(op) for op in ledger.ops], [host_s] * len(ledger.ops), "made up")


def op_seconds(op: Op) -> float:
    if op.cost is None or op.kind != "compute":
        return 0.0
    return max((op.cost.flops or 0) / 1e13, ((op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)) / 1e12)


def alone(step: TimedStep) -> float:
    """Seconds that one more step takes on one GPU that talks to nobody."""
    clocks = Clocks(step)
    return steady_s(clocks, lambda: clocks.run(range(len(step.ledger.ops))))


def total(step: TimedStep, phases: Sequence[str] = ("forward", "backward", "optimizer")) -> float:
    return sum(seconds for op, seconds in zip(step.ledger.ops, step.gpu_s, strict=True) if op.phase in phases)
