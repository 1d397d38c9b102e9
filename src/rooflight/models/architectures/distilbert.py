"""DistilBERT, without and with its masked-language-model head, as Hugging Face runs it (attention through sdpa)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooflight.models.architectures.causal import heads_of


class Embeddings(nn.Module):
    def __init__(self, vocab_size: int, dim: int, *, max_position_embeddings: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.position_embeddings = nn.Embedding(max_position_embeddings, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("position_ids", torch.arange(max_position_embeddings).expand((1, -1)), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        assert isinstance(self.position_ids, Tensor)
        words = self.word_embeddings(input_ids)
        places = self.position_embeddings(self.position_ids[:, : words.size(1)])
        return self.dropout(self.LayerNorm(words + places))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    def __init__(self, dim: int, n_heads: int, *, dropout: float) -> None:
        super().__init__()
        self.head_dim = dim // n_heads
        self.q_lin = nn.Linear(dim, dim)
        self.k_lin = nn.Linear(dim, dim)
        self.v_lin = nn.Linear(dim, dim)
        self.out_lin = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        projections = (self.q_lin, self.k_lin, self.v_lin)
        query, key, value = (heads_of(project(x), self.head_dim) for project in projections)
        dropout = self.dropout.p if self.training else 0.0
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=self.head_dim**-0.5)
        out = out.transpose(1, 2).contiguous()
        return self.out_lin(out.reshape(*x.shape[:-1], -1).contiguous())  # type: ignore[no-any-return]


class FFN(nn.Module):
    def __init__(self, dim: int, hidden_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lin1 = nn.Linear(dim, hidden_dim)
        self.lin2 = nn.Linear(hidden_dim, dim)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.lin2(self.activation(self.lin1(x))))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    def __init__(self, attention: SelfAttention, ffn: FFN, *, dim: int) -> None:
        super().__init__()
        self.attention = attention
        self.sa_layer_norm = nn.LayerNorm(dim, eps=1e-12)
        self.ffn = ffn
        self.output_layer_norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.sa_layer_norm(self.attention(x) + x)
        return self.output_layer_norm(self.ffn(x) + x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self, blocks: list[TransformerBlock]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layer:
            x = block(x)
        return x


class DistilBertModel(nn.Module):
    """Token numbers [B, S] -> hidden states [B, S, dim]."""

    def __init__(
        self,
        vocab_size: int = 30522,
        max_position_embeddings: int = 512,
        *,
        n_layers: int = 6,
        n_heads: int = 12,
        dim: int = 768,
        hidden_dim: int = 3072,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if dim % n_heads:
            raise ValueError(f"dim={dim} is not a multiple of n_heads={n_heads}")
        self.embeddings = Embeddings(vocab_size, dim, max_position_embeddings=max_position_embeddings, dropout=dropout)
        blocks = [
            TransformerBlock(
                SelfAttention(dim, n_heads, dropout=attention_dropout), FFN(dim, hidden_dim, dropout=dropout), dim=dim
            )
            for _ in range(n_layers)
        ]
        self.transformer = Transformer(blocks)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.transformer(self.embeddings(input_ids))  # type: ignore[no-any-return]


class DistilBertForMaskedLM(nn.Module):
    """Token numbers [B, S] -> logits [B, S, vocabulary]; the projector shares the word embeddings' weight."""

    def __init__(
        self,
        vocab_size: int = 30522,
        max_position_embeddings: int = 512,
        *,
        n_layers: int = 6,
        n_heads: int = 12,
        dim: int = 768,
        hidden_dim: int = 3072,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.activation = nn.GELU()
        self.distilbert = DistilBertModel(
            vocab_size,
            max_position_embeddings,
            n_layers=n_layers,
            n_heads=n_heads,
            dim=dim,
            hidden_dim=hidden_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
        )
        self.vocab_transform = nn.Linear(dim, dim)
        self.vocab_layer_norm = nn.LayerNorm(dim, eps=1e-12)
        self.vocab_projector = nn.Linear(dim, vocab_size)
        self.vocab_projector.weight = self.distilbert.embeddings.word_embeddings.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.activation(self.vocab_transform(self.distilbert(input_ids)))
        return self.vocab_projector(self.vocab_layer_norm(x))  # type: ignore[no-any-return]
