"""Fused attention, forward and backward, by the kernel it runs in."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rooflight.calibration.case import DTYPES, Call, Cases, TensorPool, case
from rooflight.calibration.sampling import choice, is_power_of_two, points, whole
from rooflight.ops.kernel_task import Task, attention_task

_BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


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
            yield case(_attention, Task(f"attention-{kernel}-{way}", precision, numbers))


_LONGEST_CACHE = 65536


def cached_cases(kernel: str, precision: str, peak: float, seed: int, longest_s: float, largest: float) -> Cases:
    """Few queries against many keys: the next token and a KV cache, most of all; a text and what it is asked about.
    Heads may share keys and values. `largest`: bytes of these."""
    for u in points(7, seed):
        # The kernel of "efficient" takes as many heads of keys as of queries.
        shared = 1 if kernel == "efficient" else choice(u[2], ((3, 1), (1, 2), (3, 4), (1, 7), (2, 8)))
        batch, heads_kv = whole(u[0], 1, 128), whole(u[1], 1, 32 if shared == 1 else 12)
        masked = u[6] < 0.15 and kernel != "flash"
        length_q = 1 if u[3] < 0.7 else whole((u[3] - 0.7) / 0.3, 2, 4096)
        length_kv = whole(u[4], 16, _LONGEST_CACHE, 16 if masked else 1)  # torch copies the mask of an odd length
        head_dim = choice(u[5], ((1, 32), (5, 64), (1, 80), (1, 96), (5, 128)))
        heads, bias = shared * heads_kv, int(masked and batch * length_q * length_kv < 1e8)
        seconds = 4 * batch * heads * length_q * length_kv * head_dim / peak
        nbytes = 2 * batch * heads_kv * length_kv * head_dim * DTYPES[precision].itemsize
        if seconds > longest_s or nbytes > largest or batch * heads * length_q * head_dim > 1e8:
            continue
        if is_power_of_two(batch) and any(is_power_of_two(length_kv - extra) for extra in (0, 1)):
            batch += 2 if batch == 1 else 1
        numbers = (batch, heads, heads_kv, length_q, length_kv, head_dim, 0, bias)
        yield case(_cached, attention_task(kernel, precision, "forward", numbers), numbers)


def _cached(task: Task, numbers: tuple[int, ...], pool: TensorPool) -> Call:
    """To be run where its kernel is set. Keys and values lie as a cache keeps them: head by head."""
    batch, heads, heads_kv, length_q, length_kv, head_dim, _, bias = numbers
    take = pool.taking(task.precision)
    q = take(batch, length_q, heads, head_dim).transpose(1, 2)
    k, v = (take(batch, heads_kv, length_kv, head_dim) for _ in range(2))
    mask = take(batch, 1, length_q, length_kv) if bias else None
    return partial(
        torch.nn.functional.scaled_dot_product_attention, q, k, v, attn_mask=mask, enable_gqa=heads != heads_kv
    )


def _attention(task: Task, pool: TensorPool) -> Call:
    """To be run where its kernel is set."""
    batch, heads, _, length, _, head_dim, causal, bias = task.numbers
    take = pool.taking(task.precision)
    # As models lay them out: heads are cut from the features of a token.
    taken = [take(batch, length, heads, head_dim).transpose(1, 2) for _ in range(4)]
    mask = take(batch, 1, length, length) if bias else None
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
