"""Records steps of models with torch.profiler as its users do: what `rooflight calibrate --from` is tried on.

usage: profiler_traces.py FOLDER     (needs a GPU, torchvision and transformers; about a minute)

Plain PyTorch, nothing of rooflight: one step of each model with `record_shapes=True`, after warm-up steps.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

_WARM_UP = 5


def image_step(name: str, batch: int, *, train: bool, autocast: torch.dtype | None = None) -> Callable[[], None]:
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=1000).cuda().train(train)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return _step(model, images, labels, optimizer if train else None, autocast)


def language_step(batch: int, tokens: int, dtype: torch.dtype) -> Callable[[], None]:
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda().to(dtype).train()
    ids = torch.randint(50257, (batch, tokens), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return run


class Small(nn.Module):
    """A few ops of many families, for a trace that is small enough for a test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.wide = nn.Conv2d(128, 128, (3, 5), padding=(1, 2), groups=4, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm, self.heads = nn.LayerNorm(128), 4
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.wide(self.bn(self.conv(x)))))
        x = self.norm(x.flatten(2).transpose(1, 2))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(nn.functional.gelu(x).mean(1))


def small_step(autocast: torch.dtype | None) -> Callable[[], None]:
    model = Small().cuda()
    images, labels = torch.randn(32, 64, 32, 32, device="cuda"), torch.randint(1000, (32,), device="cuda")
    return _step(model, images, labels, torch.optim.SGD(model.parameters(), lr=1e-3), autocast)


def _step(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    optimizer: torch.optim.Optimizer | None,
    autocast: torch.dtype | None,
) -> Callable[[], None]:
    def run() -> None:
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            if optimizer is None:
                with torch.no_grad():
                    model(inputs)
                return
            loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


STEPS: dict[str, Callable[[], Callable[[], None]]] = {
    "small-train-fp32": lambda: small_step(None),
    "small-train-amp": lambda: small_step(torch.float16),
    "resnet50-train-fp32": lambda: image_step("resnet50", 16, train=True),
    "resnet50-train-amp": lambda: image_step("resnet50", 16, train=True, autocast=torch.float16),
    "resnet50-infer-fp32": lambda: image_step("resnet50", 16, train=False),
    "gpt2-train-bf16": lambda: language_step(4, 1024, torch.bfloat16),
    "gpt2-train-fp32": lambda: language_step(4, 1024, torch.float32),
}


def record(step: Callable[[], None], path: Path) -> None:
    for _ in range(_WARM_UP):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        step()
        torch.cuda.synchronize()
    plain = path.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()


def main() -> None:
    folder = Path(sys.argv[1])
    for name, make in STEPS.items():
        record(make(), folder / f"{name}.json.gz")
        print(name, (folder / f"{name}.json.gz").stat().st_size, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
