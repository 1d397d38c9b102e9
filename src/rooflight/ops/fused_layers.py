"""Whole layers in one op: the attention branch and the encoder layer of nn.TransformerEncoder's fast path in inference.

Their attention is that of `attention`, their norms those of `normalisation`. What they make of tensors without data is
in `trace/meta_kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, plain_task, precision_of
from rooflight.ops.matmul import product_task
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.registry import Work, formula, products, task, workspace
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases


def _heads(op: Op) -> int:
    return op.ints("num_head", op.ints("num_heads", [1]))[0]


# Self-attention as one op: x [B, S, E] through qkv [3E, E], attention over H heads, and the projection [E, E].
@formula("aten::_native_multi_head_attention")
def multi_head_attention(op: Op) -> Work:
    batch, length, width = op.tensor("query").shape
    heads = _heads(op)
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
    heads = _heads(op)
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


# --- the layers inside


@dataclass(frozen=True)
class FusedPart:
    """What a fused op does of one layer inside it."""

    layer: str
    """Below the module that the op runs in; "": what that does itself."""
    work: Work
    parameters: tuple[str, ...]
    """The arguments of the op that are the layer's parameters."""


_ATTENTION = Work(
    macs="3 * B * S * E * E + 2 * B * S * S * E",
    other="6 * B * H * S * S",
    note="projections of q, k and v: 3 E x E; scores and weighted values: 2 S x S x E; a softmax",
)
_PROJECTION = Work(macs="B * S * E * E", note="B x S rows through E x E")


def fused_parts(op: Op) -> tuple[FusedPart, ...]:
    """The work of an op by the layers that it stands for: they add up to its formula. Empty: of any other op."""
    if op.packet == "aten::_native_multi_head_attention":
        parts = _attention_parts("")
        work = multi_head_attention(op)
    elif op.packet == "aten::_transformer_encoder_layer_fwd":
        norm = Work(other="7 * B * S * E + 2 * B * S", note="a layer norm over B x S rows")
        between = Work(other="2 * B * S * E + a * B * S * F", note="two residual additions and the activation")
        parts = (
            *_attention_parts("self_attn"),
            FusedPart("norm1", norm, ("norm_weight_1", "norm_bias_1")),
            FusedPart("linear1", Work(macs="B * S * E * F", note="B x S rows, E features in, F out"),
                      ("ffn_weight_1", "ffn_bias_1")),
            FusedPart("linear2", Work(macs="B * S * F * E", note="B x S rows, F features in, E out"),
                      ("ffn_weight_2", "ffn_bias_2")),
            FusedPart("norm2", norm, ("norm_weight_2", "norm_bias_2")),
            FusedPart("", between, ()),
        )  # fmt: skip
        work = encoder_layer(op)
    else:
        return ()
    return tuple(replace(part, work=replace(part.work, where=work.where)) for part in parts)


def _attention_parts(layer: str) -> tuple[FusedPart, ...]:
    projection = f"{layer}.out_proj" if layer else "out_proj"
    return (
        FusedPart(layer, _ATTENTION, ("qkv_weight", "qkv_bias")),
        FusedPart(projection, _PROJECTION, ("proj_weight", "proj_bias")),
    )


# --- kernel tasks


def _self_attention(op: Op, x: Tensor) -> list[Task]:
    """q, k and v in one product with its bias, attention on views of it, the projection."""
    batch, length, width = x.shape
    heads = _heads(op)
    kernel = "efficient" if op.precision in ("fp32", "tf32", "fp64") else "flash"
    precision = "fp32" if kernel == "efficient" else op.precision
    rows = batch * length
    return [
        product_task(op.precision, rows, 3 * width, width, b=1, bias=1),
        Task(f"attention-{kernel}-forward", precision, (batch, heads, heads, length, length, width // heads, 0, 0)),
        product_task(op.precision, rows, width, width, b=1, bias=1),
    ]


@task("aten::_native_multi_head_attention")
def multi_head_attention_tasks(op: Op) -> list[Task]:
    return _self_attention(op, op.tensor("query"))


@task("aten::_transformer_encoder_layer_fwd")
def encoder_layer_tasks(op: Op) -> list[Task]:
    x = op.tensor("src")
    batch, length, width = x.shape
    rows, inner = batch * length, op.tensor("ffn_weight_1").shape[0]
    norm = Task("layer-norm-forward", precision_of(x.dtype), (rows, width))
    add = plain_task(x.numel, 2 * x.nbytes, x.nbytes, x.dtype)
    feed_forward = [
        product_task(op.precision, rows, inner, width, b=1, bias=1),
        product_task(op.precision, rows, width, inner, b=1, bias=1),
    ]
    return [*_self_attention(op, x), add, norm, *feed_forward, add, norm]


# --- workspaces: what lies between the parts


def _in_attention(x: Tensor) -> tuple[int, ...]:
    """Queries, keys and values in one block, and what attention makes of them; the projection is the result."""
    return 3 * x.nbytes, x.nbytes


@workspace("aten::_native_multi_head_attention")
def multi_head_attention_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    return (WorkspacePhase(1, _in_attention(op.tensor("query"))),)


@workspace("aten::_transformer_encoder_layer_fwd")
def encoder_layer_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The attention's sum, normalised, stays while the wide activations are there."""
    x, widened = op.tensor("src"), op.tensor("ffn_weight_1")
    wide = x.nbytes // x.shape[-1] * widened.shape[0]
    return WorkspacePhase(0, (x.nbytes, *_in_attention(x))), WorkspacePhase(1, (x.nbytes, wide))


# --- matrix products


@products("aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd")
def layer_products(op: Op) -> Iterator[MatrixProduct]:
    """The linear layers, and attention as the plain products that it is where no fused kernel takes it."""
    source = next(op.inputs)
    batch, length, width = source.shape if len(source.shape) == 3 else (1, *source.shape)
    rows = batch * length
    yield MatrixProduct("product", rows, 3 * width, width)
    heads = _heads(op)
    yield MatrixProduct("product", length, length, width // heads, batch=batch * heads)
    yield MatrixProduct("product", length, width // heads, length, batch=batch * heads)
    yield MatrixProduct("product", rows, width, width)
    if "ffn_weight_1" in op.args:
        inner = op.tensor("ffn_weight_1").shape[0]
        yield MatrixProduct("product", rows, inner, width)
        yield MatrixProduct("product", rows, width, inner)
