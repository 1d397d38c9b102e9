"""Scaled dot product attention: the three fused kernels that torch chooses from, and their backward.

q [B, H, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv]. Scores q k^T are B*H*Sq*Sk*D multiply-adds, the weighted sum
of values B*H*Sq*Sk*Dv. With grouped queries the H heads of q share the Hkv heads of k and v: no work is saved.
The full Sq*Sk counts as `flops`; a causal mask keeps, with equal lengths, S*(S+1)/2 of S*S pairs.

Backward makes dP = dO v^T, dV = P^T dO, dQ = dS k, dK = dS^T q: twice the forward. Fused kernels do not keep the
scores and make them again: one more product, filed as recomputation.

Softmax over a row of Sk: scale, maximum, subtract, exp, sum, divide make about 6 per score; its backward 4 (dP*P, row
sum, subtract, scale).

Beside this file: the blocks that the kernels work in (`attention_tiles`), the layers that have attention inside
(`fused_layers`), which kernel torch chooses (`trace/target`), and the plain products that it falls back to
(`trace/plain_attention`).
"""

from __future__ import annotations

import math

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, attention_task, way_of
from rooflight.ops.registry import Work, aten, formula, task, workspace
from rooflight.ops.rounding import ceil_div, round_up
from rooflight.ops.tensor_layout import bytes_of_elements, contiguous_strides
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases, beside_results

_FLASH = "aten::_scaled_dot_product_flash_attention"
_FORWARD = (
    *aten("_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"),
    *aten("_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu"),
    *aten("_scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention"),
)
_BACKWARD = tuple(f"{name}_backward" for name in _FORWARD[:4])


def _symbols(op: Op) -> dict[str, int]:
    batch, heads, length, size = op.tensor("query").shape
    keys, padding = op.tensor("key").shape[-2], size - head_size(op)
    value_size = op.tensor("value").shape[-1] - padding
    return {"B": batch, "H": heads, "Sq": length, "Sk": keys, "D": size - padding, "Dv": value_size}


def head_size(op: Op) -> int:
    """The width of a head, without the zeros that flash attention was given to make it a multiple of 8.

    torch pads the heads before the op, and tells it the scale that goes with their own width, 1 / sqrt(width)."""
    padded = op.tensor("query").shape[-1]
    scale = op.args.get("scale")
    if op.packet.removesuffix("_backward") != _FLASH or padded % 8 or not isinstance(scale, float) or scale <= 0:
        return padded
    width = round(scale**-2)
    return width if padded - 8 < width < padded and math.isclose(scale, width**-0.5, rel_tol=1e-6) else padded


def _pairs(op: Op, where: dict[str, int]) -> str:
    """How many (query, key) pairs a head looks at: all, or those a causal mask keeps."""
    if not op.args.get("is_causal"):
        return "Sq * Sk"
    if where["Sq"] <= where["Sk"]:
        # torch aligns the mask at the upper left: query i sees keys 0..i.
        return "(Sq * (Sq + 1) // 2)"
    return "(Sk * (Sk + 1) // 2 + (Sq - Sk) * Sk)"


@formula(*_FORWARD)
def attention(op: Op) -> Work:
    where = _symbols(op)
    return Work(
        macs="B * H * Sq * Sk * (D + Dv)",
        causal_macs=f"B * H * {_pairs(op, where)} * (D + Dv)",
        other="6 * B * H * Sq * Sk",
        writes=_written(op),
        where=where,
    )


def _written(op: Op) -> int:
    """The output, and the log of the row sums when backward will need it."""
    sums = op.outputs[1:2] if op.args.get("compute_log_sumexp", True) else ()
    return sum(tensor.nbytes for tensor in (op.outputs[0], *sums))


@formula(*_BACKWARD)
def attention_backward(op: Op) -> Work:
    where = _symbols(op)
    return Work(
        macs="2 * B * H * Sq * Sk * (D + Dv)",
        causal_macs=f"2 * B * H * {_pairs(op, where)} * (D + Dv)",
        recompute_macs="B * H * Sq * Sk * D",
        other="10 * B * H * Sq * Sk",
        where=where,
        note="the scores are made again from q and k: recomputation",
    )


# --- kernel tasks


@task(*_FORWARD, *_BACKWARD)
def attention_tasks(op: Op) -> list[Task]:
    kernel = next((kernel for kernel in ("cudnn", "efficient") if kernel in op.packet), "flash")
    q, k = op.tensor("query"), op.tensor("key")
    batch, heads, length, size = q.shape
    bias = int(op.has("attn_bias") or op.has("attn_mask"))
    numbers = (batch, heads, k.shape[1], length, k.shape[-2], size, int(bool(op.args.get("is_causal"))), bias)
    return [attention_task(kernel, q.dtype, way_of(op), numbers)]  # the sums kept of it are always fp32


# --- workspaces


def _queries(op: Op) -> tuple[int, int, int, int]:
    """Batch, heads, length and head size."""
    batch, heads, length, size = op.tensor("query").shape
    return batch, heads, length, size


@workspace("aten::_scaled_dot_product_cudnn_attention")
def cudnn_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    # A counter. For a single query cuDNN may split the keys and keep partial outputs in fp32 (tens to hundreds of kB);
    # when it does is not known.
    return beside_results(op, 256)


@workspace("aten::_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The queries' gradient and the sums of its rows, in fp32."""
    batch, heads, length, size = _queries(op)
    return beside_results(op, batch * heads * length * (size + 1) * 4 + 256 + sum(_of_shared_keys(op)))


def _of_shared_keys(op: Op) -> tuple[int, ...]:
    """Where queries share keys, gradients of keys and values per head of the queries first."""
    (batch, heads, _, size), keys = _queries(op), op.tensor("key")
    return () if keys.shape[1] == heads else 2 * (batch * heads * keys.shape[2] * size * keys.itemsize,)


@workspace("aten::_scaled_dot_product_flash_attention")
def flash_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Few queries: the keys are split, and every part leaves its output and row sums."""
    if op.args.get("dropout_p"):
        return ()
    batch, heads, length, size = _queries(op)
    kv_heads, keys = op.tensor("key").shape[1:3]
    if length == 1 and heads > kv_heads:  # the queries of a group stand in for a sequence
        heads, length = kv_heads, heads // kv_heads
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    parts = _parts(batch * heads * ceil_div(length, 64), ceil_div(keys, block), 2 * chip.sms)
    if parts == 1:
        return ()
    rows = parts * batch * heads * length * 4
    return beside_results(op, rows, rows * _padded_head(size))


def _padded_head(size: int) -> int:
    return round_up(size, 32 if size <= 128 else 64)


def _parts(blocks_of_queries: int, blocks_of_keys: int, slots: int) -> int:
    """Into how many parts flash attention splits the keys: the fewest whose waves fill the device nearly best."""
    if blocks_of_queries >= 0.8 * slots:
        return 1
    most = min(128, slots, blocks_of_keys)
    # More parts that leave as many blocks of keys to the longest one change nothing.
    useful = [n for n in range(1, most + 1) if n == 1 or ceil_div(blocks_of_keys, n) != ceil_div(blocks_of_keys, n - 1)]
    filled = {n: blocks_of_queries * n / slots / ceil_div(blocks_of_queries * n, slots) for n in useful}
    return next((n for n in useful if filled[n] >= 0.85 * max(filled.values())), 1)


@workspace("aten::_scaled_dot_product_flash_attention_backward")
def flash_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The queries' gradient in fp32 and the sums of its rows, over blocks of 128 rows."""
    batch, heads, length, size = _queries(op)
    rows = batch * heads * round_up(length, 128) * 4
    copies = [
        bytes_of_elements(tensor)
        for tensor in (op.tensor("grad_out"), op.tensor("out"))
        if not _heads_split_off(tensor)
    ]
    return beside_results(op, *copies, rows, rows * _padded_head(size), *_of_shared_keys(op))


def _heads_split_off(tensor: Tensor) -> bool:
    """Does it lie in memory as (batch, length, heads, head size)? The kernel wants it so, others it copies."""
    _, heads, length, size = tensor.shape
    strides = tensor.strides or contiguous_strides(tensor.shape)
    wanted = (length * heads * size, size, heads * size, 1)
    return all(n == 1 or have == want for n, have, want in zip(tensor.shape, strides, wanted, strict=True))


@workspace("aten::_scaled_dot_product_efficient_attention")
def efficient_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Heads wider than the kernel's registers hold add up in global memory, unless the output is fp32 itself."""
    value = op.tensor("value")
    if value.shape[-1] <= 128 or value.itemsize >= 4:
        return ()
    batch, heads, length, _ = _queries(op)
    return beside_results(op, batch * heads * length * value.shape[-1] * 4)


@workspace("aten::_scaled_dot_product_efficient_attention_backward")
def efficient_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The row sums of output times its gradient, then the workspace the thread blocks of a head add up in."""
    batch, heads, length, _ = _queries(op)
    sums = batch * heads * length * 4
    results = len(op.outputs)
    worked = WorkspacePhase(results, (sums, batch * heads * _elements_of_a_head(op) * 4))
    if op.tensor("query").itemsize < 4:
        return (worked,)  # the kernel makes the sums itself
    product = op.tensor("out").numel * 4
    turned = (sums,) if heads > 1 and length > 1 else ()
    return WorkspacePhase(results, (product, sums, *turned)), worked


def _elements_of_a_head(op: Op) -> int:
    """Of one head's workspace: tiles of the queries' gradient, each with a lock; where no register has room for the
    gradients of keys and values, those too. Tile sizes are those for GPUs with 100 kB of shared memory and more."""
    length, size = op.tensor("query").shape[2:]
    keys, value_size = op.tensor("value").shape[2:]
    low = op.tensor("query").itemsize < 4
    widest = max(size, value_size)
    tile = 64 if widest <= 64 else 128
    columns = 128 if low and 64 < widest <= 128 else 64
    elements = ceil_div(length, tile) * ceil_div(size, columns) * (tile * columns + 4)
    if low and widest > 128:
        elements += round_up(keys, columns) * (round_up(size, tile) + round_up(value_size, tile))
    return elements
