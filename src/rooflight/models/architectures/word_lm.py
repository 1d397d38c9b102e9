"""The transformer of PyTorch's word-language-model example: a causal encoder over embedded words, sequence first."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    def __init__(self, features: int, *, dropout: float, max_len: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        # Even features are sines, odd ones cosines, of wavelengths from 2 pi to 10000 * 2 pi.
        angles = torch.arange(max_len).float().unsqueeze(1) * torch.exp(
            torch.arange(0, features, 2).float() * (-math.log(10000.0) / features)
        )
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("pe", table.unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.pe, Tensor)
        return self.dropout(x + self.pe[: x.size(0), :])  # type: ignore[no-any-return]


class TransformerModel(nn.Module):
    """Word numbers [S, B] -> log-probabilities [S, B, ntoken].

    As in the example, `dropout` is that of the positions; the encoder's own layers keep torch's 0.1.
    """

    def __init__(
        self,
        ntoken: int = 33278,
        emsize: int = 200,
        *,
        nhead: int = 2,
        nhid: int = 200,
        nlayers: int = 2,
        dropout: float = 0.2,
        max_len: int = 5000,
    ) -> None:
        super().__init__()
        if emsize % nhead or emsize % 2:
            raise ValueError(f"emsize={emsize} must be even and a multiple of nhead={nhead}")
        self.emsize = emsize
        self.src_mask: Tensor | None = None
        layer = nn.TransformerEncoderLayer(emsize, nhead, nhid)
        self.encoder = nn.TransformerEncoder(layer, nlayers, nn.LayerNorm(emsize), enable_nested_tensor=False)
        self.pos_encoder = PositionalEncoding(emsize, dropout=dropout, max_len=max_len)
        self.input_emb = nn.Embedding(ntoken, emsize)
        self.decoder = nn.Linear(emsize, ntoken)

    def forward(self, words: Tensor) -> Tensor:
        mask = self._mask(words)
        x = self.pos_encoder(self.input_emb(words) * math.sqrt(self.emsize))
        if mask.is_meta:
            # The encoder compares the mask with a causal one and reads the answer, which has no value here.
            (mask == nn.Transformer.generate_square_subsequent_mask(len(words), mask.device, mask.dtype)).all()
        x = self.encoder(x, mask=mask, is_causal=True if mask.is_meta else None)
        return F.log_softmax(self.decoder(x), dim=-1)

    def _mask(self, words: Tensor) -> Tensor:
        """The causal mask of this length, made at the first step and kept, as the example does."""
        if self.src_mask is None or self.src_mask.size(0) != len(words):
            dtype = self.decoder.weight.dtype
            self.src_mask = nn.Transformer.generate_square_subsequent_mask(len(words), words.device, dtype)
        return self.src_mask
