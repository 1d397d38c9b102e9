"""torch.nn.Transformer, encoder and decoder, reading the same features as source and target."""

from torch import Tensor, nn


class EncoderDecoder(nn.Module):
    """[B, S, d_model] -> [B, S, d_model], without masks."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        *,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if d_model % nhead:
            raise ValueError(f"d_model={d_model} is not a multiple of nhead={nhead}")
        self.sample_shape = (128, d_model)
        self.t = nn.Transformer(
            d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout, batch_first=True
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.t(x, x)  # type: ignore[no-any-return]
