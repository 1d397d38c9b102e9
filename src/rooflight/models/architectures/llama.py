"""Llama with its language-model head, as Hugging Face's LlamaForCausalLM runs it (attention through sdpa)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooflight.models.architectures.causal import (
    Cache,
    attend,
    every_position,
    extended,
    heads_of,
    look_for_packed_sequences,
    positions,
)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32 whatever the dtype."""

    def __init__(self, hidden_size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class RotaryEmbedding(nn.Module):
    """The cosines and sines of every position, [1, S, head size] each, computed anew in every step."""

    def __init__(self, head_dim: int, *, theta: float) -> None:
        super().__init__()
        frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
        self.register_buffer("inv_freq", frequencies, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.inv_freq, Tensor)
        angles = numbers[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        both = torch.cat((angles, angles), dim=-1)
        # The factor is 1 for plain rotary embeddings; Hugging Face multiplies all the same.
        cos, sin = both.cos() * 1.0, both.sin() * 1.0
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def _rotated(query: Tensor, key: Tensor, *, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (query * cos) + (_rotate_half(query) * sin), (key * cos) + (_rotate_half(key) * sin)


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size: int, heads: int, *, key_value_heads: int, layer: int) -> None:
        super().__init__()
        self.head_dim, self.layer = hidden_size // heads, layer
        self.q_proj = nn.Linear(hidden_size, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden_size, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (heads_of(project(x), self.head_dim) for project in projections)
        query, key = _rotated(query, key, cos=rotary[0], sin=rotary[1])
        key, value = extended(cache, self.layer, key=key, value=value)
        out = attend(query, key, value, scale=self.head_dim**-0.5)
        return self.o_proj(out.reshape(*x.shape[:-1], -1).contiguous())  # type: ignore[no-any-return]


class LlamaMLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside the identity."""

    def __init__(self, attention: LlamaAttention, mlp: nn.Module, *, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = mlp
        self.input_layernorm = RMSNorm(hidden_size, eps=eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps=eps)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, cache)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, decoder layers and the last norm; `make_mlp` makes the feed-forward network of one layer."""

    def __init__(
        self,
        make_mlp: Callable[[], nn.Module],
        *,
        vocab_size: int,
        hidden_size: int,
        layers: int,
        heads: int,
        key_value_heads: int,
        theta: float,
        eps: float,
    ) -> None:
        super().__init__()
        if hidden_size % heads or heads % key_value_heads:
            raise ValueError(
                f"hidden_size={hidden_size} must be a multiple of num_attention_heads={heads}, "
                f"and that of num_key_value_heads={key_value_heads}"
            )
        self.cache_shape = (layers, key_value_heads, hidden_size // heads)
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(
                LlamaAttention(hidden_size, heads, key_value_heads=key_value_heads, layer=layer),
                make_mlp(),
                hidden_size=hidden_size,
                eps=eps,
            )
            for layer in range(layers)
        )
        self.norm = RMSNorm(hidden_size, eps=eps)
        self.rotary_emb = RotaryEmbedding(hidden_size // heads, theta=theta)

    def forward(self, input_ids: Tensor, cache: Cache | None) -> Tensor:
        x = self.embed_tokens(input_ids)
        numbers = positions(x, cache)
        if cache is None:
            look_for_packed_sequences(numbers, x.shape[0])
        rotary = self.rotary_emb(x, numbers)
        for layer in self.layers:
            x = layer(x, rotary, cache)
        return self.norm(x)  # type: ignore[no-any-return]


class DecoderWithHead(nn.Module):
    """A decoder and its language-model head: token numbers [B, S] -> logits [B, S, vocabulary]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.cache_shape = decoder.cache_shape
        self.model = decoder
        words = decoder.embed_tokens
        self.lm_head = nn.Linear(words.embedding_dim, words.num_embeddings, bias=False)

    def forward(self, input_ids: Tensor, cache: Cache | None = None) -> Tensor:
        return self.lm_head(every_position(self.model(input_ids, cache)))  # type: ignore[no-any-return]


class LlamaForCausalLM(DecoderWithHead):
    """Token numbers [B, S] -> logits [B, S, vocabulary]; the defaults are Llama 3 8B."""

    def __init__(
        self,
        vocab_size: int = 128256,
        hidden_size: int = 4096,
        *,
        intermediate_size: int = 14336,
        num_hidden_layers: int = 32,
        num_attention_heads: int = 32,
        num_key_value_heads: int = 8,
        max_position_embeddings: int = 8192,
        rope_theta: float = 500000.0,
        rms_norm_eps: float = 1e-5,
    ) -> None:
        """`max_position_embeddings`: what it was trained for; no table depends on it."""
        decoder = Decoder(
            lambda: LlamaMLP(hidden_size, intermediate_size),
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            layers=num_hidden_layers,
            heads=num_attention_heads,
            key_value_heads=num_key_value_heads,
            theta=rope_theta,
            eps=rms_norm_eps,
        )
        super().__init__(decoder)
