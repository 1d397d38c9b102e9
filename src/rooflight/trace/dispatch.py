"""Makes tensors without data take the kernels that a device would take.

On meta tensors composite operators decompose in their own way: attention into full matrices, dropout into float masks,
an LSTM into single steps. Here those operators are redirected, in the dispatcher and above autograd, to the aten
operators CUDA runs; torch's own formulas then give their backward. Everything is undone on leaving.

A TorchFunctionMode could do the same for calls from Python, but would switch the fast path of
`nn.MultiheadAttention` off and miss calls from C++.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.utils.backend_registration as backends
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from rooflight.ledger import Note
from rooflight.models.dtypes import dtype_name
from rooflight.trace.meta_kernels import channels_last
from rooflight.trace.plain_attention import calls_followed, plain_attention
from rooflight.trace.target import AttentionCall, Target, attention_kernel
from rooflight.trace.torch_version import TORCH

aten = torch.ops.aten
_Tensor = torch.Tensor
_lock = threading.RLock()
_AUTOGRAD = torch._C._parse_dispatch_key("AutogradMeta")
_OVER_ANOTHER = {"allow_override": True} if "allow_override" in signature(torch.library.Library.impl).parameters else {}
"""An estimate inside a step that is estimated: what was registered last holds. Newer torch allows it anyway."""
_PLAIN_ATTENTION = Note(
    "causal-attention-in-full",
    "causal attention that no fused kernel takes (such as grouped queries in fp32) runs as plain matrix products: "
    "its causal FLOPs are counted in full",
)


@contextmanager
def dispatch_as(target: Target, *, device: str = "meta") -> Iterator[list[Note]]:
    """Run tensors without data as `target` would run them; `device` is what they say they are on (fake ones: cpu or
    cuda).

    Gives a list that fills with what a reader of the trace should know.
    """
    notes: list[Note] = []
    with _lock, calls_followed():
        library = torch.library.Library("aten", "IMPL")
        device_name = backends._privateuse1_backend_name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _register(library, target, f"Autograd{device.upper() if device != 'meta' else 'Meta'}", notes)
            # nn.MultiheadAttention takes its fast path on cpu, cuda and on a private backend of this name.
            backends._privateuse1_backend_name = "meta"
            yield notes
        finally:
            backends._privateuse1_backend_name = device_name
            library._destroy()


def _register(library: torch.library.Library, target: Target, key: str, notes: list[Note]) -> None:
    tracing = threading.get_ident()

    def redirect(name: str, function: Any) -> None:
        packet, _, overload = name.partition(".")
        original = getattr(getattr(aten, packet), overload or "default")

        def run(*args: Any, **kwargs: Any) -> Any:
            # Other threads may have real tensors on such a device: for them nothing changes. Those of autograd that
            # work for this one have its modes, and run checkpointed parts again.
            ours = threading.get_ident() == tracing or _len_torch_dispatch_stack()
            return (function if ours else original.decompose)(*args, **kwargs)

        library.impl(name, function if key == "AutogradMeta" else run, key, **_OVER_ANOTHER)

    redirect("scaled_dot_product_attention", lambda *args, **kwargs: _attention(target, notes, *args, **kwargs))
    redirect("linear", _linear)
    redirect("_pad_packed_sequence", _pad_packed_sequence)
    if target.kind == "cpu":
        return
    redirect("dropout", _dropout)
    redirect("batch_norm", _batch_norm)
    if TORCH >= (2, 11):
        redirect("rms_norm", _rms_norm)
    for name, function in _RECURRENT.items():
        redirect(name, function)


def _attention(
    target: Target,
    notes: list[Note],
    query: _Tensor,
    key: _Tensor,
    value: _Tensor,
    mask: _Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Tensor:
    if query.dim() == key.dim() == value.dim() == 3 and TORCH >= (2, 14):
        query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
        if mask is not None:
            mask = mask.unsqueeze(0).unsqueeze(0) if mask.dim() == 2 else mask.unsqueeze(0)
        batch = _attention(target, notes, query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)
        return batch.squeeze(0)
    tensors = (query, key, value)
    kernel = "math"
    if query.dim() == key.dim() == value.dim() == 4:
        kernel = attention_kernel(
            AttentionCall(
                dtype_name(query.dtype),
                query.shape[1],
                key.shape[1],
                query.shape[2],
                key.shape[2],
                query.shape[3],
                value.shape[3],
                mask is not None,
                dropout,
                causal,
                mask is not None and mask.requires_grad,
            ),
            target,
        )
    if kernel == "cpu-flash" and query.shape[1] != key.shape[1] and TORCH < (2, 11):
        kernel = "math"  # its fused kernel takes no grouped heads yet
    wanting = (*tensors, mask) if mask is not None else tensors
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in wanting)
    bias = _float_mask(mask, query.dtype) if mask is not None and kernel != "flash" else None
    result: _Tensor
    if kernel == "cudnn":
        result = aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, grad, dropout, causal, False, scale=scale
        )[0]
    elif kernel == "cpu-flash":
        result = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout, causal, attn_mask=bias, scale=scale
        )[0]
    elif kernel == "flash":
        result = _flash(query, key, value, dropout, causal, scale)
    elif kernel == "efficient":
        result = aten._scaled_dot_product_efficient_attention(
            query, key, value, _aligned(bias, query, key), grad, dropout, causal, scale=scale
        )[0]
    else:
        if causal and _PLAIN_ATTENTION not in notes:
            notes.append(_PLAIN_ATTENTION)
        with plain_attention():
            result = aten._scaled_dot_product_attention_math(
                query, key, value, bias, dropout, causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
    return result


def _flash(query: _Tensor, key: _Tensor, value: _Tensor, dropout: float, causal: bool, scale: float | None) -> _Tensor:
    """Heads are padded to a multiple of 8, and the padding cut off again."""
    size = query.shape[-1]
    padding = -size % 8
    if padding:
        scale = 1 / math.sqrt(size) if scale is None else scale
        query, key, value = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value))
    result: _Tensor = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[
        0
    ]
    return result[..., :size] if padding else result


def _float_mask(mask: _Tensor, dtype: torch.dtype) -> _Tensor:
    """A boolean mask becomes 0 where it keeps and -inf where it hides, as torch converts it."""
    if mask.dtype is not torch.bool:
        return mask
    keep, hide = (aten.scalar_tensor(value, dtype=dtype, device=mask.device) for value in (0.0, -math.inf))
    converted: _Tensor = aten.where.self(mask, keep, hide)
    return converted


def _aligned(bias: _Tensor | None, query: _Tensor, key: _Tensor) -> _Tensor | None:
    """The efficient kernel wants the bias for every head, its rows padded to a multiple of 8 and sliced back."""
    if bias is None:
        return None
    size = bias.shape[-1]
    if padding := -size % 8:
        bias = torch.nn.functional.pad(bias, (0, padding))[..., :size]
    return bias.expand(*query.shape[:3], key.shape[2])


def _linear(input: _Tensor, weight: _Tensor, bias: _Tensor | None = None) -> _Tensor:
    """The bias of an input that is not contiguous is added in place, which torch avoids on tensors without data."""
    result: _Tensor
    if bias is None or input.dim() == 2 or input.is_contiguous():
        result = aten.linear.default.decompose(input, weight, bias)
    else:
        result = torch.matmul(input, weight.t()).add_(bias)
    return result


def _pad_packed_sequence(
    data: _Tensor, batch_sizes: _Tensor, batch_first: bool, padding_value: float, total_length: int = -1
) -> tuple[_Tensor, _Tensor]:
    """As torch does it, but for the lengths: it writes them where there is no memory."""
    sizes: list[int] = batch_sizes.tolist()
    output = torch.full(
        (max(len(sizes), total_length), sizes[0], *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device
    )
    begin, offset = 0, 0
    for end, (size, next_size) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True), start=1):
        if size != next_size:
            part = data[offset : offset + (end - begin) * size].view(end - begin, size, *data.shape[1:])
            output[begin:end, :size].copy_(part)
            begin, offset = end, offset + (end - begin) * size
    lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
    return (output.transpose(0, 1) if batch_first else output), lengths


def _dropout(input: _Tensor, p: float, train: bool) -> _Tensor:
    if p == 0 or not train or input.numel() == 0:
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    result: _Tensor = aten.native_dropout(input, p, train)[0]
    return result


def _batch_norm(
    input: _Tensor,
    weight: _Tensor | None,
    bias: _Tensor | None,
    running_mean: _Tensor | None,
    running_var: _Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> _Tensor:
    """cuDNN's batch norm for fp32 (and fp16 with fp32 statistics) images, torch's own for all else."""
    result: _Tensor
    if (
        cudnn_enabled
        and input.dim() >= 3
        and weight is not None
        and bias is not None
        and eps >= 1e-5
        and input.dtype is not torch.bfloat16
        and weight.dtype is not torch.bfloat16
        and (input.dtype is not torch.float16 or weight.dtype is torch.float32)
        and ((running_mean is None) == (running_var is None))
        and (running_mean is not None or training)
        and input.shape[0] <= (880801 if training else 65535)
        and input.numel() < 2**31
    ):
        layout = torch.channels_last if channels_last(input) else torch.contiguous_format
        result = aten.cudnn_batch_norm(
            input.contiguous(memory_format=layout), weight, bias, running_mean, running_var, training, momentum, eps
        )[0]
    else:
        result = aten._batch_norm_impl_index(
            input, weight, bias, running_mean, running_var, training, momentum, eps, False
        )[0]
    return result


def _rms_norm(
    input: _Tensor, normalized_shape: Sequence[int], weight: _Tensor | None = None, eps: float | None = None
) -> _Tensor:
    """One kernel, but for a weight of another type, images in channels_last and complex numbers."""
    if (weight is not None and weight.dtype is not input.dtype) or channels_last(input) or input.is_complex():
        taken_apart: _Tensor = aten.rms_norm.default.decompose(input, normalized_shape, weight, eps)
        return taken_apart
    result: _Tensor = _FusedRmsNorm.apply(input, list(normalized_shape), weight, eps)[0]
    return result


class _FusedRmsNorm(torch.autograd.Function):
    """CUDA's RMSNorm with its gradient: on tensors without data torch would take it apart above autograd."""

    @staticmethod
    def forward(input, normalized_shape, weight, eps):  # type: ignore[no-untyped-def]
        assert _AUTOGRAD is not None
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOGRAD)):
            return aten._fused_rms_norm(input, normalized_shape, weight, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        input, ctx.normalized_shape, weight, _ = inputs
        ctx.save_for_backward(input, output[1], weight)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        input, rstd, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_input, of_weight = aten._fused_rms_norm_backward(gradient, input, ctx.normalized_shape, rstd, weight, wanted)
        return of_input, None, of_weight, None


# cuDNN's numbers for its recurrent cells.
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def _cudnn_rnn(
    mode: str,
    data: _Tensor,
    hidden: Sequence[_Tensor],
    params: Sequence[_Tensor],
    options: tuple[Any, ...],
    batch_sizes: Sequence[int] = (),
) -> tuple[_Tensor, ...]:
    _, layers, dropout, train, bidirectional, batch_first = options
    hx, cx = hidden[0], hidden[1] if mode == "lstm" else None
    size = cx.shape[-1] if cx is not None else hx.shape[-1]
    projected = hx.shape[-1] if hx.shape[-1] != size else 0
    buffer = torch.empty(0, dtype=data.dtype, device=data.device)
    output, hy, cy = aten._cudnn_rnn(
        data,
        params,
        len(params) // (layers * (2 if bidirectional else 1)),
        buffer,
        hx,
        cx,
        _MODES[mode],
        size,
        projected,
        layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        list(batch_sizes),
        None,
    )[:3]
    return (output, hy, cy) if mode == "lstm" else (output, hy)


def _recurrent(mode: str) -> dict[str, Any]:
    """By overload. Options: has biases, layers, dropout, train, bidirectional, and of the first batch first."""

    def states(hx):  # type: ignore[no-untyped-def]
        return hx if mode == "lstm" else [hx]

    def on_input(data, hx, params, *options):  # type: ignore[no-untyped-def]
        return _cudnn_rnn(mode, data, states(hx), params, options)

    def on_data(data, batch_sizes, hx, params, *options):  # type: ignore[no-untyped-def]
        return _cudnn_rnn(mode, data, states(hx), params, (*options, False), batch_sizes.tolist())

    return {f"{mode}.input": on_input, f"{mode}.data": on_data}


_RECURRENT = {name: function for mode in _MODES for name, function in _recurrent(mode).items()}
