"""The models of the published runs on many GPUs, as they were run.

Megatron-LM's GPT before flash attention: attention is written out, its scale in the product, mask and softmax in one
kernel (here one softmax), and bias, dropout and residual as few kernels. FireCaffe's Network in Network is PALEO's
`nets/nin.json`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        B, S, _ = x.shape
        # [B, S, 3E] -> three of [B x heads, S, E / heads]
        query, key, value = (
            part.view(B, S, self.heads, self.size).transpose(1, 2).reshape(B * self.heads, S, self.size)
            for part in self.query_key_value(x).chunk(3, dim=2)
        )
        scores = torch.bmm(query, key.transpose(1, 2))
        weights = F.dropout(F.softmax(scores, dim=-1), 0.1, training=True)
        out = torch.bmm(weights, value).view(B, self.heads, S, self.size).transpose(1, 2).reshape(B, S, -1)
        return self.dense(out)


class MLP(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(hidden, 4 * hidden)
        self.dense_4h_to_h = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.input_norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, heads)
        self.output_norm, self.mlp = nn.LayerNorm(hidden), MLP(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attention(self.input_norm(x)), 0.1, training=True)
        return x + F.dropout(self.mlp(self.output_norm(x)), 0.1, training=True)


class MegatronGPT(nn.Module):
    """The head shares the embedding's weight."""

    def __init__(self, *, layers: int, hidden: int, heads: int, vocabulary: int, sequence: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = nn.Embedding(sequence, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.word_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.word_embeddings(tokens) + self.position_embeddings(places), 0.1, training=True)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(x))


def network_in_network() -> nn.Sequential:
    """Convolutions and poolings of PALEO's nets/nin.json (input 3 x 224 x 224, 1,000 classes)."""
    layers: list[nn.Module] = []
    channels = 3
    for kernel, width, out, stride, padding in ((11, 96, 96, 4, 0), (5, 256, 256, 1, 2), (3, 384, 384, 1, 1)):
        layers += [nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU()]
        layers += [nn.Conv2d(width, out, 1), nn.ReLU(), nn.Conv2d(out, out, 1), nn.ReLU(), nn.MaxPool2d(3, 2)]
        channels = out
    layers += [nn.Dropout(0.5), nn.Conv2d(384, 1024, 3, 1, 1), nn.ReLU(), nn.Conv2d(1024, 1024, 1), nn.ReLU()]
    layers += [nn.Conv2d(1024, 1000, 1), nn.ReLU(), nn.AvgPool2d(5), nn.Flatten()]
    return nn.Sequential(*layers)
