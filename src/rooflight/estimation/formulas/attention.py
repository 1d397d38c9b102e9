"""Attention: the fused kernels, their backward, and the fused layers of nn.MultiheadAttention's fast path.

q [B, H, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv]. Scores q k^T are B*H*Sq*Sk*D multiply-adds, the weighted sum
of values B*H*Sq*Sk*Dv. With grouped queries the H heads of q share the Hkv heads of k and v: no work is saved.
The full Sq*Sk counts as `flops`; a causal mask keeps, with equal lengths, S*(S+1)/2 of S*S pairs.

Backward makes dP = dO v^T, dV = P^T dO, dQ = dS k, dK = dS^T q: twice the forward. Fused kernels do not keep the
scores and make them again: one more product, filed as recomputation.

Softmax over a row of Sk: scale, maximum, subtract, exp, sum, divide make about 6 per score; its backward 4 (dP*P, row
sum, subtract, scale).
"""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op, Tensor

_FORWARD = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::scaled_dot_product_attention",
)
_BACKWARD = (
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)


def _symbols(q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    batch, heads, length, size = q.shape
    return {"B": batch, "H": heads, "Sq": length, "Sk": k.shape[-2], "D": size, "Dv": v.shape[-1]}


def _pairs(op: Op, where: dict[str, int]) -> str:
    """How many (query, key) pairs a head looks at: all, or those a causal mask keeps."""
    if not op.args.get("is_causal"):
        return "Sq * Sk"
    if where["Sq"] == where["Sk"]:
        return "(Sq * (Sq + 1) // 2)"
    if where["Sq"] < where["Sk"]:
        # torch aligns the mask at the upper left: query i sees keys 0..i.
        return "(Sq * (Sq + 1) // 2)"
    return "(Sk * (Sk + 1) // 2 + (Sq - Sk) * Sk)"


@formula(*_FORWARD)
def attention(op: Op) -> Work:
    where = _symbols(op.tensor("query"), op.tensor("key"), op.tensor("value"))
    return Work(
        macs="B * H * Sq * Sk * (D + Dv)",
        causal_macs=f"B * H * {_pairs(op, where)} * (D + Dv)",
        other="6 * B * H * Sq * Sk",
        writes=_written(op),
        where=where,
    )


def _written(op: Op) -> int:
    """The output, and the log of the row sums when backward will need it."""
    kept = op.outputs[1:2] if op.args.get("compute_log_sumexp", True) else ()
    return sum(tensor.nbytes for tensor in (op.outputs[0], *kept))


@formula(*_BACKWARD)
def attention_backward(op: Op) -> Work:
    where = _symbols(op.tensor("query"), op.tensor("key"), op.tensor("value"))
    return Work(
        macs="2 * B * H * Sq * Sk * (D + Dv)",
        causal_macs=f"2 * B * H * {_pairs(op, where)} * (D + Dv)",
        recompute_macs="B * H * Sq * Sk * D",
        other="10 * B * H * Sq * Sk",
        where=where,
        note="the scores are made again from q and k: recomputation",
    )


# Self-attention as one op: x [B, S, E] through qkv [3E, E], attention over H heads, and the projection [E, E].
@formula("aten::_native_multi_head_attention")
def multi_head_attention(op: Op) -> Work:
    batch, length, width = op.tensor("query").shape
    heads = op.ints("num_head", op.ints("num_heads", [1]))[0]
    return Work(
        macs="4 * B * S * E * E + 2 * B * S * S * E",
        other="6 * B * H * S * S",
        where={"B": batch, "S": length, "E": width, "H": heads},
        note="projections of q, k, v and the output: 4 E x E; scores and weighted values: 2 S x S x E",
    )


# The whole encoder layer: attention as above, two linears [F, E] and [E, F], two layer norms over B*S rows (7 per
# element and 2 per row, see normalisation), two residual additions, one activation (relu 1, gelu 5).
@formula("aten::_transformer_encoder_layer_fwd")
def encoder_layer(op: Op) -> Work:
    batch, length, width = op.tensor("src").shape
    feed_forward = op.tensor("ffn_weight_1").shape[0]
    heads = op.ints("num_heads", [1])[0]
    return Work(
        macs="4 * B * S * E * E + 2 * B * S * S * E + 2 * B * S * E * F",
        other="6 * B * H * S * S + 16 * B * S * E + 4 * B * S + a * B * S * F",
        where={
            "B": batch,
            "S": length,
            "E": width,
            "F": feed_forward,
            "H": heads,
            "a": 5 if op.args.get("use_gelu") else 1,
        },
        note="attention as in multi-head attention, then two linear layers of E x F",
    )
