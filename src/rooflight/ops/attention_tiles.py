"""What a fused attention kernel executes: scores in whole blocks, those above the diagonal left out, heads filled up.

CUTLASS's kernels (torch's memory-efficient attention) multiply fp32 as three TF32 products, take the scores in the
blocks of their names, and whatever is summed over in steps of 32. cuDNN's work on blocks of 128 by 128, in
backward of 64 by 128. Found on random lengths (benchmarks/h200/instructions.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rooflight.ledger import Op
from rooflight.ops.attention import head_size
from rooflight.ops.rounding import ceil_div, round_up

_CUTLASS = re.compile(r"fmha_cutlass([FB])_(f32|f16|bf16)_aligned_(\d{1,5})x(\d{1,5})(?:_k(\d{1,5}))?")
_CUDNN = re.compile(r"sdpa_sm\d+_flash_(fprop|bprop)_\w*?_(\d{1,5})x(\d{1,5})x(\d{1,5})_")
_FLASH = re.compile(
    r"Flash_(?:fwd|bwd)_kernel_traits<(?:\(int\))?(\d{1,5}), (?:\(int\))?(\d{1,5}), (?:\(int\))?(\d{1,5}), "
)
"""flash-attention 2: width of a head, rows and columns of a block. By its source: nobody counted it here."""
_STEP = 32
_CUDNN_KEYS = 128


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention: `matrices` heads of all samples, queries by keys, and the width of a head."""

    matrices: int
    queries: int
    keys: int
    width: int
    causal: bool
    backward: bool


@dataclass(frozen=True)
class AttentionBlocks:
    """FLOPs as they add up: `whole` is the mathematics, recomputation with it."""

    whole: int
    skipped: int
    """Less for blocks that a causal mask leaves out."""
    padding: int
    repeated: int
    """More because one product of fp32 is made of several."""
    scores: int
    """Places of scores in all blocks."""
    why: str

    @property
    def executed(self) -> int:
        return self.whole + self.skipped + self.padding + self.repeated


def attention_shape(op: Op) -> AttentionShape | None:
    if op.packet in ("aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"):
        # A whole layer: its heads are still together.
        source = next(op.inputs)
        heads = op.ints("num_head", [0])[0] or op.ints("num_heads", [0])[0]
        if len(source.shape) != 3 or not heads:
            return None
        samples, length, width = source.shape
        return AttentionShape(samples * heads, length, length, width // heads, False, False)
    if "attention" not in op.name or not op.has("query"):
        return None
    query, key = op.tensor("query"), op.tensor("key")
    if len(query.shape) != 4:
        return None
    backward = "backward" in op.name
    samples, length, keys, padded = query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3]
    # Ledgers of before have the zeros that heads are padded with in their FLOPs.
    with_zeros = 4 * samples * length * keys * padded * (2 if backward else 1)
    counts_zeros = op.cost is not None and op.cost.flops == with_zeros
    size = padded if counts_zeros else head_size(op)
    return AttentionShape(samples, length, keys, size, bool(op.args.get("is_causal")), backward)


def executed_blocks(name: str, attention: AttentionShape) -> AttentionBlocks | None:
    """`None` where the name is not known."""
    step: int | None
    if (match := _CUTLASS.search(name)) is not None:
        rows, columns, step, times = int(match[3]), int(match[4]), _STEP, 3 if match[2] == "f32" else 1
        width, deepest, head = round_up(attention.width, 64), round_up(attention.width, _STEP), int(match[5] or columns)
    elif (match := _CUDNN.search(name)) is not None:
        rows, columns, step, times = 128 if match[1] == "fprop" else 64, _CUDNN_KEYS, None, 1
        width = deepest = head = round_up(attention.width, int(match[4]))
    elif (match := _FLASH.search(name)) is not None:
        rows, columns, step, times = int(match[2]), int(match[3]), None, 1
        width = deepest = head = int(match[1])
    else:
        return None
    why = f"blocks of {rows}×{columns}, heads of {head}"
    return _blocks(attention, rows, columns, step=step, width=width, deepest=deepest, times=times, why=why)


def _blocks(
    of: AttentionShape, rows: int, columns: int, *, step: int | None, width: int, deepest: int, times: int, why: str
) -> AttentionBlocks:
    """Products that give scores sum over a head (`deepest`); the others give a head's `width` and sum over keys or
    queries, in steps where the kernel has them."""
    scores = keys_summed = queries_summed = exact = 0
    for i in range(ceil_div(of.queries, rows)):
        first, height = i * rows, min(rows, of.queries - i * rows)
        reach = min(of.keys, first + height) if of.causal else of.keys
        for j in range(ceil_div(reach, columns)):
            taken = min(columns, reach - j * columns)
            scores += rows * columns
            keys_summed += rows * (round_up(taken, step) if step else columns)
            queries_summed += columns * (round_up(height, step) if step else rows)
            exact += height * min(columns, of.keys - j * columns)
    # Forward: scores, and values summed over keys. Backward: scores twice (once again), and three gradients.
    for_scores, over_keys, over_queries = (2, 1, 2) if of.backward else (1, 1, 0)
    count = for_scores + over_keys + over_queries
    full = 2 * of.matrices * of.queries * of.keys * of.width * count
    reached = 2 * of.matrices * exact * of.width * count
    summed = over_keys * keys_summed + over_queries * queries_summed
    filled = 2 * of.matrices * (for_scores * scores * deepest + summed * width)
    return AttentionBlocks(full, reached - full, filled - reached, (times - 1) * filled, of.matrices * scores, why)
