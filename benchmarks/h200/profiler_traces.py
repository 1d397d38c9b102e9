"""Records steps of models with torch.profiler as its users do: what `rooflight calibrate --from` is tried on.

usage: profiler_traces.py FOLDER            (needs a GPU, torchvision and transformers; about a minute)
       profiler_traces.py --condense IN OUT (a trace with what is read of it alone: those of tests/data/profiled)

Plain PyTorch, nothing of rooflight: one step of each model with `record_shapes=True`, after warm-up steps.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

_WARM_UP = 5
_READ = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
_ARGUMENTS = (
    "External id", "correlation", "device", "grid", "block", "stream",
    "Concrete Inputs", "Input type", "Input Strides", "Input Dims",
)  # fmt: skip


class Small(nn.Module):
    """A few ops of many families, for a trace that is small enough for a test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.wide = nn.Conv2d(128, 128, (3, 5), padding=(1, 2), groups=4, bias=False)
        self.norm, self.qkv, self.out = nn.LayerNorm(128), nn.Linear(128, 384), nn.Linear(128, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.wide(self.bn(self.conv(x)))), 2)
        x = self.norm(x.flatten(2).transpose(1, 2))
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(nn.functional.gelu(x).mean(1))


def image_step(model: nn.Module, images: torch.Tensor, autocast: torch.dtype | None = None) -> Callable[[], None]:
    model, images = model.cuda(), images.cuda()
    labels = torch.randint(1000, (len(images),), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def run() -> None:
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def language_step(dtype: torch.dtype) -> Callable[[], None]:
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda().to(dtype).train()
    ids = torch.randint(50257, (4, 1024), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return run


def resnet50() -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.resnet50()
    return model


STEPS: dict[str, Callable[[], Callable[[], None]]] = {
    "small-fp32": lambda: image_step(Small(), torch.randn(32, 64, 32, 32)),
    "small-amp": lambda: image_step(Small(), torch.randn(32, 64, 32, 32), torch.float16),
    "resnet50-fp32": lambda: image_step(resnet50(), torch.randn(16, 3, 224, 224)),
    "resnet50-amp": lambda: image_step(resnet50(), torch.randn(16, 3, 224, 224), torch.float16),
    "gpt2-bf16": lambda: language_step(torch.bfloat16),
    "gpt2-fp32": lambda: language_step(torch.float32),
}


def record(step: Callable[[], None], path: Path) -> None:
    for _ in range(_WARM_UP):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))


def condense(trace: dict[str, Any]) -> dict[str, Any]:
    """The events that are read, their times from the first of them on; nothing in them is changed."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") in _READ]
    first = min(event["ts"] for event in events)
    kept = [
        {name: event[name] for name in ("ph", "cat", "name", "pid", "tid")}
        | {"ts": round(event["ts"] - first, 3), "dur": event["dur"]}
        | {"args": {name: event["args"][name] for name in _ARGUMENTS if name in event.get("args", {})}}
        for event in events
    ]
    devices = [
        {name: device[name] for name in ("id", "name", "computeMajor", "computeMinor")}
        for device in trace["deviceProperties"]
    ]
    return {"deviceProperties": devices, "cuda_runtime_version": trace["cuda_runtime_version"], "traceEvents": kept}


def main() -> None:
    if sys.argv[1] == "--condense":
        trace = json.loads(gzip.decompress(Path(sys.argv[2]).read_bytes()))
        content = json.dumps(condense(trace), separators=(",", ":")).encode()
        Path(sys.argv[3]).write_bytes(gzip.compress(content, mtime=0))
        return
    for name, make in STEPS.items():
        record(make(), Path(sys.argv[1]) / f"{name}.json.gz")
        print(name, flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
