"""Small networks of our own, as no known one is built, to time the host on: a mixture of layers is dearer than a chain
of one kind, whose code and data stay in the host's caches.

Every kind of block is repeated in a network of its own, and random ones are made of all. Tensors are so small that the
device is always done before the host.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

_IMAGES, _TOKENS = (2, 24, 10, 10), (2, 18, 48)
_CHANNELS, _WIDTH, _HEADS, _WORDS = 24, 48, 3, 40
_REPEATS = 5
_RANDOM, _BLOCKS = 6, 14
_SEED = 7


class _ConvBlock(nn.Module):
    """Convolution, batch norm and activation, as most networks of images are made of."""

    def __init__(self, kernel: int, groups: int = 1, *, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.conv = nn.Conv2d(_CHANNELS, _CHANNELS, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(_CHANNELS)
        self.act = act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.act(self.norm(self.conv(x)))
        return out


class _BiasBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(x), inplace=True)


class _ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(_CHANNELS, _CHANNELS, side, padding=side // 2) for side in (1, 3))
        self.norm_first, self.norm_second = nn.BatchNorm2d(_CHANNELS), nn.BatchNorm2d(_CHANNELS)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm_first(self.first(x)))
        out = self.norm_second(self.second(out))
        out += x
        summed: torch.Tensor = self.relu(out)
        return summed


class _GateBlock(nn.Module):
    """Channels weighted by what a small network says of their means."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(_CHANNELS, 8, 1), nn.Conv2d(8, _CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(F.silu(self.down(mean))))


class _PoolBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.largest, self.mean = nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mean(self.largest(x))
        return out


class _BranchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv2d(_CHANNELS, _CHANNELS // 2, side, padding=side // 2) for side in (1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)


class _FeedForwardBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.inner, self.outer = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.act, self.drop = nn.GELU(), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.drop(self.outer(self.act(self.inner(self.norm(x)))))
        return out


class _AttentionBlock(nn.Module):
    """Fused attention between products, with the views that cut heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.taken, self.given = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.taken(self.norm(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, _HEADS, width // _HEADS).transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v)
        mixed: torch.Tensor = x + self.given(out.transpose(1, 2).reshape(batch, length, width))
        return mixed


class _ScoresBlock(nn.Module):
    """Attention as plain products."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.given = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (one(x).view(batch, length, _HEADS, -1).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.25, dim=-1)
        out = torch.matmul(scores, v).transpose(1, 2).contiguous().view(batch, length, width)
        given: torch.Tensor = self.given(out)
        return given


class _LayerBlock(nn.Module):
    """torch's own layer of attention, whose Python is longer than others'."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class _TokenBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS + 1, 2 * _WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


class _RootNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class _GatedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = _RootNorm()
        self.gate, self.up, self.down = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.norm(x)
        out: torch.Tensor = x + self.down(F.silu(self.gate(inside)) * self.up(inside))
        return out


class _TurnBlock(nn.Module):
    """Halves that change places, copies and small arithmetic: what Python functions of models do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        out: torch.Tensor = x * 0.5 + turned * 0.25
        return out.transpose(1, 2).contiguous().transpose(1, 2) + 0.1 * torch.tanh(out)


class _PowerBlock(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))
        return out


class _PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Softmax(-1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class _LookedUpBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.register_buffer("places", torch.arange(_TOKENS[1]).expand(_TOKENS[0], -1).contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.words(self.places)
        return out


_IMAGE_BLOCKS: tuple[Callable[[], nn.Module], ...] = (
    lambda: _ConvBlock(3),
    lambda: _ConvBlock(1, act=nn.SiLU),
    lambda: _ConvBlock(5, _CHANNELS, act=nn.Hardswish),
    _BiasBlock,
    _ResidualBlock,
    _GateBlock,
    _PoolBlock,
    _BranchBlock,
)
_TOKEN_BLOCKS: tuple[Callable[[], nn.Module], ...] = (
    _FeedForwardBlock,
    _AttentionBlock,
    _ScoresBlock,
    _LayerBlock,
    _TokenBlock,
    _GatedBlock,
    _TurnBlock,
    _PowerBlock,
    _PlainBlock,
    _LookedUpBlock,
)


def host_nets() -> Iterator[tuple[str, nn.Module, tuple[int, ...]]]:
    """Names, networks and the shape that goes through each."""
    chance = random.Random(_SEED)
    for shape, blocks in ((_IMAGES, _IMAGE_BLOCKS), (_TOKENS, _TOKEN_BLOCKS)):
        for make in blocks:
            block = make()
            name = type(block).__name__.strip("_") + str(blocks.index(make))
            yield name, nn.Sequential(block, *(make() for _ in range(_REPEATS - 1))), shape
        for number in range(_RANDOM):
            some = [chance.choice(blocks)() for _ in range(_BLOCKS)]
            yield f"random{len(shape)}{number}", nn.Sequential(*some), shape
