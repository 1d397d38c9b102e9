"""The precision that arithmetic really runs in on the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from rooflight.ledger import DTYPE_BYTES, Dtype, MathModes, Tensor
from rooflight.models.dtypes import FLOATS
from rooflight.trace.target import Target

_CONVOLUTIONS = {
    "aten::convolution",
    "aten::convolution_backward",
    "aten::cudnn_convolution",
    "aten::_cudnn_rnn",
    "aten::_cudnn_rnn_backward",
}
_OF_FIRST = ("aten::_scaled_", "aten::_flash_attention_", "aten::_efficient_attention_", "aten::_cudnn_attention_")
"""Fused attention and scaled products compute in the type of their first input; scales and kept sums are wider."""
_MATMULS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::linear",
            "aten::_addmm_activation", "aten::_grouped_mm", "aten::_native_multi_head_attention",
            "aten::_transformer_encoder_layer_fwd", "aten::_trilinear", "aten::_euclidean_dist"}  # fmt: skip

_OF_COMPLEX = {"complex64": "fp32", "complex128": "fp64"}
"""The units that compute with them."""
_FP8 = ("fp8_e4m3", "fp8_e5m2")


def math_modes(target: Target) -> MathModes:
    """The TF32 switches as they stand, for a target that has TF32 (compute capability 8.0).

    torch's default allows it in convolutions (and cuDNN's recurrent layers), not in matmuls.
    """
    can = target.kind == "cuda" and target.capability >= 80
    return MathModes(
        tf32_conv=can and bool(torch.backends.cudnn.allow_tf32),
        tf32_matmul=can and bool(torch.backends.cuda.matmul.allow_tf32),
    )


@contextmanager
def tf32_switched(on: bool | None) -> Iterator[None]:
    """Allow TF32 to fp32 convolutions and matmuls alike, or forbid it; `None` leaves torch's switches as they are."""
    if on is None:
        yield
        return
    conv, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = conv.allow_tf32, matmul.allow_tf32
    conv.allow_tf32 = matmul.allow_tf32 = on
    try:
        yield
    finally:
        conv.allow_tf32, matmul.allow_tf32 = before


def effective_precision(packet: str, tensors: Sequence[Tensor], modes: MathModes) -> str:
    """Return the widest floating type among the tensors, or TF32 where a switch lets fp32 matrix work run as such.

    Both types of 8 bits are `fp8`: units and peaks do not tell them apart.
    """
    precision: Dtype | None = None
    if packet.startswith(_OF_FIRST):
        tensors = tensors[:1]
    for tensor in tensors:
        if tensor.dtype in FLOATS and (not precision or tensor.itemsize > DTYPE_BYTES[precision]):
            precision = tensor.dtype
    if precision == "fp32" and (
        (modes.tf32_conv and packet in _CONVOLUTIONS) or (modes.tf32_matmul and packet in _MATMULS)
    ):
        return "tf32"
    first = tensors[0].dtype if tensors else ""
    return "fp8" if precision in _FP8 else precision or _OF_COMPLEX.get(first, first)
