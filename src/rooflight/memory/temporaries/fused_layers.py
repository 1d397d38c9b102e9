"""Inference's ops that are a whole attention branch, or a whole encoder layer: what lies between their parts."""

from __future__ import annotations

from rooflight.ledger import Op, Tensor
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.registry import borrows


def _in_attention(x: Tensor) -> tuple[int, ...]:
    """Queries, keys and values in one block, and what attention makes of them; the projection is the result."""
    return 3 * x.nbytes, x.nbytes


@borrows("_native_multi_head_attention")
def multi_head_attention(op: Op, chip: Chip) -> Moments:
    return (Moment(1, _in_attention(op.tensor("query"))),)


@borrows("_transformer_encoder_layer_fwd")
def encoder_layer(op: Op, chip: Chip) -> Moments:
    """The attention's sum, normalised, stays while the wide activations are there."""
    x, widened = op.tensor("src"), op.tensor("ffn_weight_1")
    wide = x.nbytes // x.shape[-1] * widened.shape[0]
    return Moment(0, (x.nbytes, *_in_attention(x))), Moment(1, (x.nbytes, wide))
