"""Small modules that together touch what traces get wrong: recurrent layers, masks, grouped and transposed convolution."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class First(nn.Module):
    """A module whose first output is what counts."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def lstm(batch: int = 4):
    return First(nn.LSTM(16, 32, 2, bidirectional=True, batch_first=True, dropout=0.1)), (torch.randn(batch, 5, 16),)


def lstm_projected(batch: int = 4):
    return First(nn.LSTM(16, 32, proj_size=8)), (torch.randn(5, batch, 16),)


def gru(batch: int = 4):
    return First(nn.GRU(16, 32)), (torch.randn(5, batch, 16),)


def rnn(batch: int = 4):
    return First(nn.RNN(16, 32, nonlinearity="relu")), (torch.randn(5, batch, 16),)


class Attention(nn.Module):
    def __init__(self, size: int = 20, masks: str = "none", causal: bool = False, heads_kv: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(64, 4 * size), nn.Linear(64, heads_kv * size), nn.Linear(64, heads_kv * size)
        self.size, self.masks, self.causal, self.gqa = size, masks, causal, heads_kv != 4

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (m(x).view(b, s, -1, self.size).transpose(1, 2) for m in (self.q, self.k, self.v))
        mask = None
        if self.masks == "bool":
            mask = torch.ones(b, 1, s, s, dtype=torch.bool, device=x.device)
        elif self.masks == "float":
            mask = torch.zeros(s, s, dtype=x.dtype, device=x.device)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, enable_gqa=self.gqa)


def _attention(batch, **options):
    return Attention(**options), (torch.randn(batch, 100, 64),)


def attention_odd(batch: int = 2):
    return _attention(batch, size=20)


def attention_bool_mask(batch: int = 2):
    return _attention(batch, size=64, masks="bool")


def attention_float_mask(batch: int = 2):
    return _attention(batch, size=64, masks="float")


def attention_grouped(batch: int = 2):
    return _attention(batch, size=64, heads_kv=2, causal=True)


class Convolutions(nn.Module):
    """Grouped, depthwise, dilated and transposed, with the other norms and poolings, some of it channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.grouped, self.depthwise = nn.Conv2d(16, 32, 3, groups=4), nn.Conv2d(32, 32, 3, groups=32)
        self.dilated, self.transposed = nn.Conv2d(32, 16, 3, dilation=2), nn.ConvTranspose2d(16, 8, 3, stride=2)
        self.group_norm, self.instance_norm = nn.GroupNorm(4, 32), nn.InstanceNorm2d(16)
        self.drop, self.drop2 = nn.Dropout2d(0.1), nn.Dropout(0.1, inplace=True)

    def forward(self, x):
        x = F.silu(self.first(x))
        x = self.group_norm(self.depthwise(self.grouped(x)))
        x = self.drop2(self.instance_norm(self.dilated(self.drop(x))) * 2)
        x = F.interpolate(self.transposed(x), scale_factor=2, mode="bilinear")
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


def convolutions(batch: int = 2):
    return Convolutions(), (torch.randn(batch, 3, 32, 32),)


def convolutions_channels_last(batch: int = 2):
    return Convolutions().to(memory_format=torch.channels_last), (
        torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last),
    )


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return x


def checkpointed(batch: int = 2):
    return Checkpointed(), (torch.randn(batch, 32),)


def multi_head(batch: int = 2):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)

        def forward(self, x):
            return self.encoder(self.attention(x, x, x, need_weights=True)[0])

    return Layer(), (torch.randn(batch, 10, 64),)
