"""What the causal language models share: positions, the cache of a decoding step, and attention over it."""

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

# Keys and values of each layer, [batch, key-value heads, past, head size] each.
Cache: TypeAlias = tuple[tuple[Tensor, Tensor], ...]


def positions(embeddings: Tensor, cache: Cache | None) -> Tensor:
    """The position numbers [1, S] of this step's tokens [batch, S, ...], counted on from the cache."""
    past = 0 if cache is None else cache[0][0].shape[-2]
    numbers = torch.arange(embeddings.shape[1], device=embeddings.device) + past
    return numbers.unsqueeze(0)


def look_for_packed_sequences(numbers: Tensor, batch: int) -> None:
    """Do what Hugging Face's causal mask does without a cache: see whether several sequences share a row.

    They never do here. The few small kernels and the wait of the host for their answer are part of a real step, and
    show where a step is bound by the host; without data (meta) there is nothing to wait for. It is left out
    where nobody can wait: in compiled code, and while a CUDA graph is captured.
    """
    if torch.compiler.is_compiling() or (numbers.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    if numbers.shape[0] != batch:
        numbers = numbers.expand(batch, -1)
    before = numbers[:, :1] - 1
    sequence = (torch.diff(numbers, prepend=before, dim=-1) != 1).cumsum(-1)
    alone = (sequence[:, -1] == 0).all()
    if not alone.is_meta:
        bool(alone)


def heads_of(x: Tensor, head_dim: int) -> Tensor:
    """[batch, S, heads * head size] -> [batch, heads, S, head size]"""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float = 0.0) -> Tensor:
    """Causal attention over [batch, heads, S, head size]; one new token alone sees all of the cache.

    Returns [batch, S, heads, head size]. Fewer key-value heads than query heads are shared by groups of queries.
    """
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=dropout,
        is_causal=query.shape[2] > 1,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2).contiguous()


def extended(cache: Cache | None, layer: int, *, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The keys and values that attention reads: the cached ones, followed by the new."""
    if cache is None:
        return key, value
    past_key, past_value = cache[layer]
    return torch.cat([past_key, key], dim=-2), torch.cat([past_value, value], dim=-2)


def every_position(hidden: Tensor) -> Tensor:
    """A view of all positions, as Hugging Face takes before the head (where generation would keep only the last)."""
    return hidden[:, slice(0, None), :]
