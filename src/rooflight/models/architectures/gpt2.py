"""GPT-2 with its language-model head, as Hugging Face's GPT2LMHeadModel runs it (attention through sdpa)."""

import math

import torch
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


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs], hence one addmm."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.nf)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(shape)


class NewGELU(nn.Module):
    """GELU's tanh form, written out: eight pointwise kernels, not one."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class GPT2Attention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, *, attn_pdrop: float, resid_pdrop: float, layer: int) -> None:
        super().__init__()
        self.n_embd, self.head_dim, self.layer = n_embd, n_embd // n_head, layer
        self.c_attn = Conv1D(3 * n_embd, n_embd)
        self.c_proj = Conv1D(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def forward(self, x: Tensor, cache: Cache | None) -> Tensor:
        # [B, S, 3E] -> three of [B, heads, S, E / heads]
        query, *others = self.c_attn(x).split(self.n_embd, dim=2)
        key, value, query = (heads_of(part, self.head_dim) for part in (*others, query))
        key, value = extended(cache, self.layer, key=key, value=value)
        dropout = self.attn_dropout.p if self.training else 0.0
        out = attend(query, key, value, scale=self.head_dim**-0.5, dropout=dropout)
        out = out.reshape(*out.shape[:-2], -1).contiguous()
        return self.resid_dropout(self.c_proj(out))  # type: ignore[no-any-return]


class GPT2MLP(nn.Module):
    def __init__(self, n_embd: int, n_inner: int, *, resid_pdrop: float) -> None:
        super().__init__()
        self.c_fc = Conv1D(n_inner, n_embd)
        self.c_proj = Conv1D(n_embd, n_inner)
        self.act = NewGELU()
        self.dropout = nn.Dropout(resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))  # type: ignore[no-any-return]


class GPT2Block(nn.Module):
    def __init__(self, attention: GPT2Attention, mlp: GPT2MLP, *, n_embd: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, eps=1e-5)
        self.attn = attention
        self.ln_2 = nn.LayerNorm(n_embd, eps=1e-5)
        self.mlp = mlp

    def forward(self, x: Tensor, cache: Cache | None) -> Tensor:
        x = self.attn(self.ln_1(x), cache) + x
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class GPT2Model(nn.Module):
    def __init__(
        self, blocks: list[GPT2Block], *, vocab_size: int, n_positions: int, n_embd: int, pdrop: float
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(n_positions, n_embd)
        self.drop = nn.Dropout(pdrop)
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(n_embd, eps=1e-5)

    def forward(self, input_ids: Tensor, cache: Cache | None) -> Tensor:
        input_ids = input_ids.view(-1, input_ids.shape[-1])
        embeddings = self.wte(input_ids)
        numbers = positions(embeddings, cache)
        x = embeddings + self.wpe(numbers)
        if cache is None:
            look_for_packed_sequences(numbers, x.shape[0])
        x = self.drop(x)
        shape = (-1, *input_ids.shape[1:], x.size(-1))
        for block in self.h:
            x = block(x, cache)
        return self.ln_f(x).view(shape)  # type: ignore[no-any-return]


class GPT2LMHeadModel(nn.Module):
    """Token numbers [B, S] -> logits [B, S, vocabulary]; `n_inner` None is four times `n_embd`."""

    def __init__(
        self,
        vocab_size: int = 50257,
        n_positions: int = 1024,
        *,
        n_embd: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        n_inner: int | None = None,
        resid_pdrop: float = 0.1,
        embd_pdrop: float = 0.1,
        attn_pdrop: float = 0.1,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_embd={n_embd} is not a multiple of n_head={n_head}")
        self.n_layer, self.n_head, self.head_dim = n_layer, n_head, n_embd // n_head
        blocks = [
            GPT2Block(
                GPT2Attention(n_embd, n_head, attn_pdrop=attn_pdrop, resid_pdrop=resid_pdrop, layer=layer),
                GPT2MLP(n_embd, n_inner or 4 * n_embd, resid_pdrop=resid_pdrop),
                n_embd=n_embd,
            )
            for layer in range(n_layer)
        ]
        self.transformer = GPT2Model(
            blocks, vocab_size=vocab_size, n_positions=n_positions, n_embd=n_embd, pdrop=embd_pdrop
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Layers, key-value heads, head size."""
        return self.n_layer, self.n_head, self.head_dim

    def forward(self, input_ids: Tensor, cache: Cache | None = None) -> Tensor:
        return self.lm_head(every_position(self.transformer(input_ids, cache)))  # type: ignore[no-any-return]
