"""Scaled dot product attention: what its three fused kernels, and the plain one's softmax, borrow."""

from __future__ import annotations

from rooflight.ledger import Op, Tensor
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.arithmetic import blocks, contiguous_strides, rounded
from rooflight.memory.temporaries.reductions import buffers
from rooflight.memory.temporaries.registry import borrows
from rooflight.memory.temporaries.staging import Kernel


def _queries(op: Op) -> tuple[int, int, int, int]:
    """Batch, heads, length and head size."""
    batch, heads, length, size = op.tensor("query").shape
    return batch, heads, length, size


# ---- cuDNN


@borrows("_scaled_dot_product_cudnn_attention")
def cudnn(op: Op, chip: Chip) -> Moments:
    # A counter. For a single query cuDNN may split the keys and keep partial outputs in fp32 (tens to hundreds of kB);
    # when it does is not known.
    return (Moment(len(op.outputs), (256,)),)


@borrows("_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(op: Op, chip: Chip) -> Moments:
    """The queries' gradient and the sums of its rows, in fp32."""
    batch, heads, length, size = _queries(op)
    keys = op.tensor("key")
    workspace = batch * heads * length * (size + 1) * 4 + 256
    if keys.shape[1] != heads:  # queries share keys: gradients per head of the queries first
        workspace += 2 * batch * heads * keys.shape[2] * size * keys.itemsize
    return (Moment(len(op.outputs), (workspace,)),)


# ---- flash


@borrows("_scaled_dot_product_flash_attention")
def flash(op: Op, chip: Chip) -> Moments:
    """Few queries: the keys are split, and every part leaves its output and row sums."""
    if op.args.get("dropout_p"):
        return ()
    batch, heads, length, size = _queries(op)
    kv_heads, keys = op.tensor("key").shape[1:3]
    if length == 1 and heads > kv_heads:  # the queries of a group stand in for a sequence
        heads, length = kv_heads, heads // kv_heads
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    parts = _parts(batch * heads * blocks(length, 64), blocks(keys, block), 2 * chip.sms)
    if parts == 1:
        return ()
    rows = parts * batch * heads * length * 4
    return (Moment(len(op.outputs), (rows, rows * _padded_head(size))),)


def _padded_head(size: int) -> int:
    return rounded(size, 32 if size <= 128 else 64)


def _parts(blocks_of_queries: int, blocks_of_keys: int, slots: int) -> int:
    """Into how many parts flash attention splits the keys: the fewest whose waves fill the device nearly best."""
    if blocks_of_queries >= 0.8 * slots:
        return 1
    most = min(128, slots, blocks_of_keys)
    # More parts that leave as many blocks of keys to the longest one change nothing.
    useful = [n for n in range(1, most + 1) if n == 1 or blocks(blocks_of_keys, n) != blocks(blocks_of_keys, n - 1)]
    filled = {n: blocks_of_queries * n / slots / blocks(blocks_of_queries * n, slots) for n in useful}
    return next((n for n in useful if filled[n] >= 0.85 * max(filled.values())), 1)


@borrows("_scaled_dot_product_flash_attention_backward")
def flash_backward(op: Op, chip: Chip) -> Moments:
    """The queries' gradient in fp32 and the sums of its rows, over blocks of 128 rows."""
    batch, heads, length, size = _queries(op)
    rows = batch * heads * rounded(length, 128) * 4
    copies = [_bytes(tensor) for tensor in (op.tensor("grad_out"), op.tensor("out")) if not _heads_split_off(tensor)]
    shared = []
    keys = op.tensor("key")
    if keys.shape[1] != heads:  # queries share keys: gradients per head of the queries first
        shared = [batch * heads * keys.shape[2] * size * keys.itemsize] * 2
    return (Moment(len(op.outputs), (*copies, rows, rows * _padded_head(size), *shared)),)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel * tensor.itemsize


def _heads_split_off(tensor: Tensor) -> bool:
    """Does it lie in memory as (batch, length, heads, head size)? The kernel wants it so, others it copies."""
    _, heads, length, size = tensor.shape
    strides = tensor.strides or contiguous_strides(tensor.shape)
    wanted = (length * heads * size, size, heads * size, 1)
    return all(n == 1 or have == want for n, have, want in zip(tensor.shape, strides, wanted, strict=True))


# ---- memory efficient


@borrows("_scaled_dot_product_efficient_attention")
def efficient(op: Op, chip: Chip) -> Moments:
    """Heads wider than the kernel's registers hold add up in global memory, unless the output is fp32 itself."""
    value = op.tensor("value")
    if value.shape[-1] <= 128 or value.itemsize >= 4:
        return ()
    batch, heads, length, _ = _queries(op)
    return (Moment(len(op.outputs), (batch * heads * length * value.shape[-1] * 4,)),)


@borrows("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(op: Op, chip: Chip) -> Moments:
    """The row sums of output times its gradient, then the workspace the thread blocks of a head add up in."""
    batch, heads, length, _ = _queries(op)
    sums = batch * heads * length * 4
    results = len(op.outputs)
    worked = Moment(results, (sums, batch * heads * _elements_of_a_head(op) * 4))
    if op.tensor("query").itemsize < 4:
        return (worked,)  # the kernel makes the sums itself
    product = op.tensor("out").numel * 4
    turned = (sums,) if heads > 1 and length > 1 else ()
    return Moment(results, (product, sums, *turned)), worked


def _elements_of_a_head(op: Op) -> int:
    """Of one head's workspace: tiles of the queries' gradient, each with a lock; where no register has room for the
    gradients of keys and values, those too. Tile sizes are those for GPUs with 100 kB of shared memory and more."""
    length, size = op.tensor("query").shape[2:]
    keys, value_size = op.tensor("value").shape[2:]
    low = op.tensor("query").itemsize < 4
    widest = max(size, value_size)
    tile = 64 if widest <= 64 else 128
    columns = 128 if low and 64 < widest <= 128 else 64
    elements = blocks(length, tile) * blocks(size, columns) * (tile * columns + 4)
    if low and widest > 128:
        elements += rounded(keys, columns) * (rounded(size, tile) + rounded(value_size, tile))
    return elements


# ---- plain


@borrows("_safe_softmax")
def safe_softmax(op: Op, chip: Chip) -> Moments:
    """Which elements are minus infinity, and for which rows all of them are."""
    masked = Tensor(storage=0, shape=op.tensor("self").shape, dtype="bool")
    dims = op.ints("dim")
    rows = masked.numel // max(masked.shape[dims[0]], 1) if masked.shape else 1
    looked = buffers(masked, dims, Kernel(1), chip, "bool")
    return (Moment(1, (masked.numel, rows, *looked, 4)),)
