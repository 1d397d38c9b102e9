"""The Vision Transformer as torchvision has it."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from rooflight.errors import BadInput


class EncoderBlock(nn.Module):
    def __init__(
        self, hidden_dim: int, num_heads: int, *, mlp_dim: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_dim, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(hidden_dim, num_heads, dropout=attention_dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(hidden_dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_dim, mlp_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp_dim, hidden_dim),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = self.dropout(y) + x
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self, blocks: list[EncoderBlock], *, tokens: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, hidden_dim).normal_(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(OrderedDict((f"encoder_layer_{i}", block) for i, block in enumerate(blocks)))
        self.ln = nn.LayerNorm(hidden_dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Square images of side `image_size`, cut into patches of side `patch_size`; the defaults are B/16."""

    def __init__(
        self,
        image_size: int = 224,
        patch_size: int = 16,
        *,
        num_layers: int = 12,
        num_heads: int = 12,
        hidden_dim: int = 768,
        mlp_dim: int = 3072,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        if image_size % patch_size or hidden_dim % num_heads:
            raise ValueError("image_size must be a multiple of patch_size, hidden_dim of num_heads")
        self.image_size, self.patch_size, self.hidden_dim = image_size, patch_size, hidden_dim
        self.sample_shape = (3, image_size, image_size)
        self.conv_proj = nn.Conv2d(3, hidden_dim, kernel_size=patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden_dim))
        blocks = [
            EncoderBlock(hidden_dim, num_heads, mlp_dim=mlp_dim, dropout=dropout, attention_dropout=attention_dropout)
            for _ in range(num_layers)
        ]
        tokens = (image_size // patch_size) ** 2 + 1
        self.encoder = Encoder(blocks, tokens=tokens, hidden_dim=hidden_dim, dropout=dropout)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(hidden_dim, num_classes)))

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        if (height, width) != (self.image_size, self.image_size):
            raise BadInput(
                "shape-mismatch",
                f"this vision transformer wants {self.image_size}x{self.image_size} images, got {height}x{width}; "
                f"change --input or add --set=image_size={height}",
            )
        patches = (height // self.patch_size) * (width // self.patch_size)
        # [B, hidden, h, w] -> [B, h * w, hidden], the class token in front
        x = self.conv_proj(x).reshape(batch, self.hidden_dim, patches).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(batch, -1, -1), x], dim=1)
        x = self.encoder(x)[:, 0]
        return self.heads(x)  # type: ignore[no-any-return]
