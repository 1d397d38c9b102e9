"""The transformers whose steps NeuSight's authors timed, as they ran: eagerly, in transformers 4.38.1.

Attention is written out (two matmuls, scale, mask, softmax, dropout), as `attn_implementation="eager"` does, and not
the one kernel that the built-in models and today's transformers choose. The ops were written after the op graphs that
are published beside the times: matmuls, norms, softmaxes, embeddings and activations of the forward agree with them in
order and size. Use: `rooflight estimate benchmarks/published_models.py:gpt2 --set n_embd=1280 --batch 4 --seq 1024`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INFINITE = torch.finfo(torch.float32).min


# --- GPT-2 and the GPT-3 sizes built from it ---


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs], hence one addmm."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return out.view(*x.shape[:-1], -1)


class GPT2Attention(nn.Module):
    def __init__(self, n_embd: int, n_head: int, n_positions: int) -> None:
        super().__init__()
        self.heads = n_head
        causal = torch.ones(n_positions, n_positions, dtype=torch.bool).tril()
        self.register_buffer("bias", causal.view(1, 1, n_positions, n_positions), persistent=False)
        self.c_attn = Conv1D(3 * n_embd, n_embd)
        self.c_proj = Conv1D(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        B, S, E = x.shape
        # [B, S, 3E] -> three of [B, heads, S, E / heads]
        query, key, value = (
            part.view(B, S, self.heads, E // self.heads).permute(0, 2, 1, 3) for part in self.c_attn(x).split(E, dim=2)
        )
        weights = torch.matmul(query, key.transpose(-1, -2))
        weights = weights / torch.full([], value.size(-1) ** 0.5, dtype=weights.dtype, device=weights.device)
        least = torch.full([], INFINITE, dtype=weights.dtype, device=weights.device)
        weights = torch.where(self.bias[:, :, :S, :S], weights, least)
        weights = self.attn_dropout(F.softmax(weights, dim=-1))
        out = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous().view(B, S, E)
        return self.resid_dropout(self.c_proj(out))


class GPT2Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int, n_positions: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = GPT2Attention(n_embd, n_head, n_positions)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.c_fc = Conv1D(4 * n_embd, n_embd)
        self.c_proj = Conv1D(n_embd, 4 * n_embd)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.ln_1(x)) + x
        h = self.c_fc(self.ln_2(x))
        # GELU's tanh form, eight pointwise kernels
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.dropout(self.c_proj(h))


class GPT2(nn.Module):
    """Token numbers [B, S] -> logits [B, S, vocabulary]; the head's weight is the embedding's."""

    def __init__(self, n_embd: int, n_layer: int, n_head: int, n_positions: int, vocab_size: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(n_positions, n_embd)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(GPT2Block(n_embd, n_head, n_positions) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        x = self.drop(self.wte(input_ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def gpt2(
    batch: int = 4, seq: int = 1024, n_embd: int = 1280, n_layer: int = 36, n_head: int = 20, n_positions: int = 1024,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    model = GPT2(n_embd, n_layer, n_head, n_positions, vocab_size=50257)
    return model, torch.ones(batch, seq, dtype=torch.int64)


# --- BERT ---


class BertLayer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dropout = nn.Dropout(0.1)
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.out_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, S, E = x.shape
        query, key, value = (
            layer(x).view(B, S, self.heads, E // self.heads).permute(0, 2, 1, 3)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(E // self.heads) + mask
        weights = self.dropout(F.softmax(scores, dim=-1))
        out = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous().view(B, S, E)
        x = self.norm(self.dropout(self.dense(out)) + x)
        return self.out_norm(self.dropout(self.down(F.gelu(self.up(x)))) + x)


class Bert(nn.Module):
    """Token numbers [B, S] -> features [B, S, E] and the pooled first one [B, E]."""

    def __init__(self, hidden: int, layers: int, heads: int, vocab_size: int, positions: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden, padding_idx=0)
        self.positions = nn.Embedding(positions, hidden)
        self.types = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.layer = nn.ModuleList(BertLayer(hidden, heads) for _ in range(layers))
        self.pooler = nn.Linear(hidden, hidden)
        self.register_buffer("position_ids", torch.arange(positions).unsqueeze(0), persistent=False)
        self.register_buffer("type_ids", torch.zeros(1, positions, dtype=torch.int64), persistent=False)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        B, S = input_ids.shape
        mask = (1.0 - torch.ones(B, S, device=input_ids.device)[:, None, None, :]) * INFINITE
        x = self.words(input_ids) + self.types(self.type_ids[:, :S].expand(B, S))
        x = self.dropout(self.norm(x + self.positions(self.position_ids[:, :S])))
        for layer in self.layer:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class BertClassifier(nn.Module):
    """BERT as it was timed for inference: with a classifier of two classes."""

    def __init__(self, bert: Bert, hidden: int) -> None:
        super().__init__()
        self.bert = bert
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(hidden, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.bert(input_ids)[1]))


class BertPretraining(nn.Module):
    """BERT as it was timed for training: both heads run, the loss is taken of the words' alone."""

    def __init__(self, bert: Bert, hidden: int, vocab_size: int) -> None:
        super().__init__()
        self.bert = bert
        self.transform = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.decoder = nn.Linear(hidden, vocab_size)
        self.decoder.weight = bert.words.weight
        self.next_sentence = nn.Linear(hidden, 2)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        x, pooled = self.bert(input_ids)
        return self.decoder(self.norm(F.gelu(self.transform(x)))), self.next_sentence(pooled)


def bert(
    batch: int = 8, seq: int = 512, hidden: int = 1024, layers: int = 24, heads: int = 16, pretraining: bool = False
) -> tuple[nn.Module, Tensor]:
    body = Bert(hidden, layers, heads, vocab_size=30522, positions=512)
    model = BertPretraining(body, hidden, vocab_size=30522) if pretraining else BertClassifier(body, hidden)
    return model, torch.ones(batch, seq, dtype=torch.int64)


# --- OPT ---


class OPTLayer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(hidden, hidden) for _ in range(4))
        self.final_norm = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(0.1)

    def _by_head(self, x: Tensor) -> Tensor:
        # [B, S, E] -> [B * heads, S, E / heads], copied
        B, S, E = x.shape
        return x.view(B, S, self.heads, E // self.heads).transpose(1, 2).contiguous().view(B * self.heads, S, -1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, S, E = x.shape
        h = self.norm(x)
        query = self._by_head(self.q_proj(h) * (E // self.heads) ** -0.5)
        key, value = self._by_head(self.k_proj(h)), self._by_head(self.v_proj(h))
        weights = torch.bmm(query, key.transpose(1, 2)).view(B, self.heads, S, S) + mask
        weights = torch.max(weights, torch.full([], INFINITE, dtype=weights.dtype, device=weights.device))
        weights = F.softmax(weights.view(B * self.heads, S, S), dim=-1)
        out = torch.bmm(weights, value).view(B, self.heads, S, -1).transpose(1, 2).reshape(B, S, E)
        x = (x + self.dropout(self.out_proj(out))).reshape(-1, E)
        h = self.fc2(F.relu(self.fc1(self.final_norm(x))))
        return (x + self.dropout(h)).view(B, S, E)


class OPT(nn.Module):
    """Token numbers [B, S] -> logits [B, S, vocabulary]; the head's weight is the embedding's."""

    def __init__(self, hidden: int, layers: int, heads: int, positions: int, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden, padding_idx=1)
        self.embed_positions = nn.Embedding(positions + 2, hidden)
        self.layers = nn.ModuleList(OPTLayer(hidden, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab_size, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        B, S = input_ids.shape
        given = torch.ones(B, S, device=input_ids.device)
        mask = self._mask(given)
        numbers = given.long()
        numbers = (torch.cumsum(numbers, dim=1) * numbers).long() - 1
        x = self.embed_tokens(input_ids) + self.embed_positions(numbers + 2)
        for layer in self.layers:
            x = layer(x, mask)
        return self.lm_head(self.final_norm(x))

    @staticmethod
    def _mask(given: Tensor) -> Tensor:
        """[B, S] -> [B, 1, S, S]: the causal mask, and that of the padding laid over it."""
        B, S = given.shape
        causal = torch.full((S, S), INFINITE, device=given.device)
        order = torch.arange(S, device=given.device)
        causal.masked_fill_(order < (order + 1).view(S, 1), 0)
        padding = 1.0 - given[:, None, None, :].expand(B, 1, S, S)
        padding = padding.masked_fill(padding.to(torch.bool), INFINITE)
        return causal[None, None].expand(B, 1, S, S).masked_fill(padding.bool(), INFINITE)


def opt(
    batch: int = 2, seq: int = 2048, hidden: int = 2048, layers: int = 24, heads: int = 32
) -> tuple[nn.Module, Tensor]:
    model = OPT(hidden, layers, heads, positions=2048, vocab_size=50272)
    return model, torch.ones(batch, seq, dtype=torch.int64)
