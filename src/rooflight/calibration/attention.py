"""Fused attention, forward and backward, by the kernel it runs in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rooflight.calibration.case import DTYPES, Call, Case, Cases, Pool
from rooflight.calibration.sampling import choice, points, whole
from rooflight.hardware.tasks import Task

_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION}  # fmt: skip


def kernel_set(kernel: str) -> AbstractContextManager[None]:
    """Within it, attention runs in this kernel or not at all."""
    return sdpa_kernel(_BACKENDS[kernel])


def attention_cases(kernel: str, precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    for u in points(6, seed):
        batch, heads = whole(u[0], 1, 128), whole(u[1], 1, 48)
        length = whole(u[2], 16, 4096, 1 if u[4] < 0.3 else 16)
        head_dim = choice(u[3], ((2, 32), (5, 64), (1, 80), (1, 96), (4, 128)))
        causal, bias = int(u[4] < 0.5), int(u[5] < 0.2)
        seconds = 4 * batch * heads * length**2 * head_dim / peak
        if seconds > longest_s or batch * heads * length * head_dim > (2e7 if kernel == "cudnn" else 1e8):
            continue
        if bias and (causal or kernel == "flash" or batch * length**2 > 1e8):
            bias = 0
        if batch in (1, 2, 4, 8, 16, 32, 64) and length in (64, 128, 256, 512, 1024, 2048, 4096):
            batch += 2 if batch == 1 else 1
        numbers = (batch, heads, heads, length, length, head_dim, causal, bias)
        for way in ("forward", "backward"):
            task = Task(f"attention-{kernel}-{way}", precision, numbers)
            yield Case(task, partial(_attention, task))


def _attention(task: Task, pool: Pool) -> Call:
    """To be run where its kernel is set."""
    batch, heads, _, length, _, head_dim, causal, bias = task.numbers
    dtype = DTYPES[task.precision]
    # As models lay them out: heads are cut from the features of a token.
    taken = [pool.take(batch, length, heads, head_dim, dtype=dtype).transpose(1, 2) for _ in range(4)]
    mask = pool.take(batch, 1, length, length, dtype=dtype) if bias else None
    backward = task.family.endswith("backward")
    q, k, v = (tensor.detach().requires_grad_(backward) for tensor in taken[:3])

    def forward() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=bool(causal))

    if not backward:
        return forward
    with torch.enable_grad():
        out = forward()
    grad = taken[3]
    return partial(torch.autograd.grad, out, (q, k, v), grad, retain_graph=True)
