"""Mixtral: Llama's decoder with a sparse mixture of experts in every layer.

Which tokens an expert gets depends on the data, of which an estimate has none. The router runs as it does in Hugging
Face's implementation; then the tokens are dealt out evenly, whatever it chose, so that shapes are known beforehand:
to as many experts as tokens that choose at random reach in the mean.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooflight.ledger import Note
from rooflight.metrics import distinct_experts
from rooflight.models.architectures.llama import Decoder, DecoderWithHead


class TopKRouter(nn.Module):
    """Hidden states [tokens, hidden] -> the weights and numbers of the chosen experts, [tokens, top_k] each."""

    def __init__(self, hidden_size: int, experts: int, *, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.empty(experts, hidden_size).normal_(std=0.02))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = F.softmax(F.linear(x, self.weight).float(), dim=-1)
        weights, chosen = torch.topk(probabilities, self.top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        return weights, chosen


class Experts(nn.Module):
    """All experts of a layer in two tensors; those that are chosen take even shares of the (token, choice) pairs."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * intermediate_size, hidden_size).normal_(std=0.02))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden_size, intermediate_size).normal_(std=0.02))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        choices = weights.shape[-1]
        chosen = distinct_experts(x.shape[0], choices=choices, experts=self.experts)
        pairs = torch.arange(x.shape[0] * choices, device=x.device)
        start = 0
        for expert, count in enumerate(even_shares(x.shape[0] * choices, chosen)):
            share = pairs[start : start + count]
            token, choice = share // choices, share % choices
            gate, up = F.linear(x[token], self.gate_up_proj[expert]).chunk(2, dim=-1)
            y = F.linear(F.silu(gate) * up, self.down_proj[expert])
            y = y * weights[token, choice, None]
            out.index_add_(0, token, y.to(out.dtype))
            start += count
        return out


def even_shares(pairs: int, experts: int) -> list[int]:
    """How many of `pairs` each expert gets: ceil(pairs / experts) or one less, together all of them.

    >>> even_shares(10, 4)
    [3, 3, 2, 2]
    """
    share, rest = divmod(pairs, experts)
    return [share + (expert < rest) for expert in range(experts)]


class SparseMoeBlock(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, *, experts: int, top_k: int) -> None:
        super().__init__()
        self.gate = TopKRouter(hidden_size, experts, top_k=top_k)
        self.experts = Experts(hidden_size, intermediate_size, experts=experts)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        weights, _ = self.gate(flat)
        return self.experts(flat, weights).reshape(x.shape)  # type: ignore[no-any-return]


class MixtralForCausalLM(DecoderWithHead):
    """Token numbers [B, S] -> logits [B, S, vocabulary]; the defaults are Mixtral 8x7B."""

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 4096,
        *,
        intermediate_size: int = 14336,
        num_hidden_layers: int = 32,
        num_attention_heads: int = 32,
        num_key_value_heads: int = 8,
        num_local_experts: int = 8,
        num_experts_per_tok: int = 2,
        max_position_embeddings: int = 32768,
        rope_theta: float = 1000000.0,
        rms_norm_eps: float = 1e-5,
    ) -> None:
        """`max_position_embeddings`: what it was trained for; no table depends on it."""
        if num_experts_per_tok > num_local_experts:
            raise ValueError(f"num_experts_per_tok={num_experts_per_tok} of num_local_experts={num_local_experts}")
        decoder = Decoder(
            lambda: SparseMoeBlock(
                hidden_size, intermediate_size, experts=num_local_experts, top_k=num_experts_per_tok
            ),
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            layers=num_hidden_layers,
            heads=num_attention_heads,
            key_value_heads=num_key_value_heads,
            theta=rope_theta,
            eps=rms_norm_eps,
        )
        super().__init__(decoder)
        self.notes = (
            Note(
                "balanced-routing",
                "routing depends on the data; "
                f"estimated as balanced top-{num_experts_per_tok} of {num_local_experts} experts",
            ),
        )
