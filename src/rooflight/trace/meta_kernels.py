"""What CUDA's kernels make of tensors without data, where torch's own meta kernels differ or are missing.

The recorder calls these instead of the operator. Layouts matter, because they decide which copies follow; undefined
outputs matter, because they take no memory. They call torch, and so are here; all else that is known of these operators
is in their families (`ops/convolution`, `ops/attention`, `ops/fused_layers`, `ops/recurrent`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten


def channels_last(tensor: torch.Tensor) -> bool:
    """Is it channels last, and not contiguous as well?"""
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _convolution(input, weight, *rest):  # type: ignore[no-untyped-def]
    """cuDNN keeps channels last where input or weight have them so."""
    output = aten.convolution.default(input, weight, *rest)
    keeps = input.dtype is not torch.float64 and (channels_last(input) or channels_last(weight))
    return output.contiguous(memory_format=torch.channels_last) if keeps else output


def _convolution_backward(grad_output, input, weight, *options):  # type: ignore[no-untyped-def]
    """Gradients in the layout of input and weight."""
    *_, transposed, _, groups, output_mask = options
    layout = torch.channels_last if channels_last(input) or channels_last(weight) else torch.contiguous_format
    return (
        torch.empty_like(input, memory_format=layout) if output_mask[0] else None,
        torch.empty_like(weight, memory_format=layout) if output_mask[1] else None,
        grad_output.new_empty(weight.shape[1] * groups if transposed else weight.shape[0]) if output_mask[2] else None,
    )


def _cudnn_attention(query, key, value, attn_bias, compute_log_sumexp, *rest, **options):  # type: ignore[no-untyped-def]
    """The row sums are there only when backward will need them."""
    outputs = aten._scaled_dot_product_cudnn_attention.default(
        query, key, value, attn_bias, compute_log_sumexp, *rest, **options
    )
    return outputs if compute_log_sumexp else (outputs[0], None, *outputs[2:])


def _cudnn_rnn_backward(input, weight, weight_stride0, weight_buf, hx, cx, *rest):  # type: ignore[no-untyped-def]
    """cuDNN makes the gradients of data and hidden state whether anybody asked for them or not."""
    *_, output_mask = rest
    empty = torch.empty(0, dtype=input.dtype, device=input.device)
    gradients = [torch.empty_like(w) for w in weight] if output_mask[3] else [empty for _ in weight]
    return torch.empty_like(input), torch.empty_like(hx), empty if cx is None else torch.empty_like(cx), gradients


def _multi_head_attention(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    embed_dim,
    num_head,
    qkv_weight,
    qkv_bias,
    proj_weight,
    proj_bias,
    mask=None,
    need_weights=True,
    average_attn_weights=True,
    mask_type=None,
):
    batch, length = query.shape[:2]
    weights = None
    if need_weights:
        shape = (batch, length, length) if average_attn_weights else (batch, num_head, length, length)
        weights = query.new_empty(shape)
    return query.new_empty(batch, length, proj_weight.shape[0]), weights


def _encoder_layer(src, *rest, **options):  # type: ignore[no-untyped-def]
    return torch.empty_like(src)


def _fused_rms_norm(input, normalized_shape, weight=None, eps=None):  # type: ignore[no-untyped-def]
    """The roots of the rows are kept in fp32 at least."""
    rows = [*input.shape[: input.dim() - len(normalized_shape)], *[1] * len(normalized_shape)]
    dtype = torch.promote_types(input.dtype, torch.float32)
    return torch.empty_like(input, memory_format=torch.contiguous_format), input.new_empty(rows, dtype=dtype)


def _grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):  # type: ignore[no-untyped-def]
    """torch's own takes bf16 alone; the kernels take fp32 and fp16 as well. Rows begin at multiples of 16 bytes."""
    if self.dim() == mat2.dim():
        shape = [self.shape[0] if self.dim() == 3 else offs.shape[0], self.shape[-2], mat2.shape[-1]]
    else:
        shape = [self.shape[-2], mat2.shape[-1]]
    dtype = out_dtype or self.dtype
    row = shape[-1] + -shape[-1] % (16 // dtype.itemsize)
    strides = [shape[-2] * row, row, 1][-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=dtype, device=self.device)


CPU_META_KERNELS: Mapping[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm}
"""Of these the CPU's are alike."""
META_KERNELS: Mapping[Any, Callable[..., Any]] = {
    **CPU_META_KERNELS,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    aten._cudnn_rnn_backward.default: _cudnn_rnn_backward,
    aten._native_multi_head_attention.default: _multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten._fused_rms_norm.default: _fused_rms_norm,
}
