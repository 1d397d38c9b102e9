"""Measures training steps of networks drawn at random: what the L2 keeps between ops, and how long kernels take in a row.

usage: random_nets.py FOLDER [SECONDS]    (needs a CUDA GPU; writes a ledger a network; none is begun after SECONDS)

Layers, widths and sizes are drawn from a fixed seed and are nobody's model. What the cache model and the account of a
kernel's time know beside single ops was learned on these, never on the models that are explained.
"""

import random
import sys
import time
from pathlib import Path

import torch
from torch import nn

import rooflight

ACTIVATIONS = (nn.ReLU, nn.SiLU, nn.GELU, nn.Hardswish)
NETS = 16


class Residual(nn.Module):
    """`x + inner(x)`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Gate(nn.Module):
    """Channels scaled by what their means say."""

    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, inner, 1), nn.ReLU(),
                                  nn.Conv2d(inner, width, 1), nn.Sigmoid())  # fmt: skip

    def forward(self, x):
        return x * self.gate(x)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.inputs(x).reshape(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.output(mixed.transpose(1, 2).reshape(b, s, d))


def images(draw):
    batch, size, width = draw.choice((8, 24, 48, 96)), draw.choice((64, 112, 160, 224)), draw.choice((16, 24, 40, 64))
    layers = [nn.Conv2d(3, width, draw.choice((3, 5, 7)), stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(draw.randint(3, 6)):
        act = draw.choice(ACTIVATIONS)
        kind = draw.choice(("plain", "residual", "inverted", "norms", "grouped", "pool"))
        if kind == "plain":
            wider = draw.choice((width, 2 * width, width + 16))
            layers += [nn.Conv2d(width, wider, 3, padding=1, bias=draw.random() < 0.5), nn.BatchNorm2d(wider), act()]
            width = wider
        elif kind == "residual":
            layers.append(Residual(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), act(),
                                                 nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))))  # fmt: skip
        elif kind == "inverted":
            inner = draw.choice((3, 4, 6)) * width
            k = draw.choice((3, 5, 7))
            layers.append(Residual(nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), act(),
                                                 nn.Conv2d(inner, inner, k, padding=k // 2, groups=inner, bias=False),
                                                 nn.BatchNorm2d(inner), act(), Gate(inner, 8 * (inner // 32)),
                                                 nn.Conv2d(inner, width, 1), nn.BatchNorm2d(width))))  # fmt: skip
        elif kind == "norms":
            layers.append(Residual(nn.Sequential(nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1), act())))
        elif kind == "grouped":
            layers += [nn.Conv2d(width, width, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(width), act()]
        else:
            layers += [nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), act()]
            width *= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)]
    return nn.Sequential(*layers), torch.randn(batch, 3, size, size)


def sequences(draw):
    batch, length = draw.choice((2, 8, 16, 32)), draw.choice((60, 128, 200, 333, 512))
    heads, head = draw.choice((4, 6, 8, 12)), draw.choice((32, 48, 64, 80))
    width = heads * head
    blocks = []
    for _ in range(draw.randint(2, 4)):
        inner = draw.choice((2, 3, 4)) * width
        blocks += [Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, heads))),
                   Residual(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), draw.choice(ACTIVATIONS)(),
                                          nn.Dropout(draw.choice((0.0, 0.1))), nn.Linear(inner, width)))]  # fmt: skip
    return nn.Sequential(nn.Linear(64, width), *blocks, nn.Linear(width, 500)), torch.randn(batch, length, 64)


def main() -> None:
    folder, most = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    for number in range(NETS):
        for dtype in (torch.float32, torch.bfloat16):
            if time.perf_counter() - begun > most:
                return
            draw = random.Random(number)
            torch.manual_seed(number)
            model, x = (images if number % 3 else sequences)(draw)
            model, x = model.cuda().to(dtype), x.cuda().to(dtype)
            name = f"net-{number:02}-{'bf16' if dtype == torch.bfloat16 else 'fp32'}"
            start = time.perf_counter()
            try:
                ledger = rooflight.measure(model, x, step="train", loss="mse", optimizer="adamw", repeat=5,
                                           levels=("dram", "l2", "l1"))  # fmt: skip
                rooflight.save(ledger, folder / f"{name}.json.gz", force=True)
                print(f"{name} {len(ledger.ops)} ops {time.perf_counter() - start:.1f} s", flush=True)
            except Exception as error:
                print(f"{name} {type(error).__name__}: {str(error)[:200]}", flush=True)
            del model, x
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
