"""Names of dtypes, and the precision that arithmetic really runs in on the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from rooflight.errors import BadInput
from rooflight.ledger import Dtype, MathModes, Tensor
from rooflight.trace.target import Target

DTYPE_NAMES: dict[torch.dtype, Dtype] = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.bool: "bool", torch.complex32: "complex32", torch.complex64: "complex64", torch.complex128: "complex128",
}  # fmt: skip

_FLOATS = {"fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}
_CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward", "aten::cudnn_convolution", "aten::_cudnn_rnn",
                 "aten::_cudnn_rnn_backward"}  # fmt: skip
_ATTENTION = ("aten::_scaled_dot_product_", "aten::_flash_attention_", "aten::_efficient_attention_",
              "aten::_cudnn_attention_")  # fmt: skip
_MATMULS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::linear",
            "aten::_addmm_activation", "aten::_native_multi_head_attention",
            "aten::_transformer_encoder_layer_fwd"}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> Dtype:
    try:
        return DTYPE_NAMES[dtype]
    except KeyError:
        raise BadInput(
            f"tensors of {dtype} are not supported; convert the model to one of {', '.join(sorted(_FLOATS))}"
        ) from None


def torch_dtype(name: str) -> torch.dtype:
    for dtype, known in DTYPE_NAMES.items():
        if known == name:
            return dtype
    raise BadInput(f"unknown dtype {name!r}; known: {', '.join(sorted(_FLOATS))}")


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
    """The widest floating type among the tensors, or TF32 where a switch lets fp32 matrix work run as such.

    Fused attention computes in its inputs' type; the sums of rows that it keeps for backward are always fp32.
    """
    precision = ""
    if packet.startswith(_ATTENTION):
        tensors = tensors[:1]
    for tensor in tensors:
        if tensor.dtype in _FLOATS and (not precision or tensor.itemsize > _SIZES[precision]):
            precision = tensor.dtype
    if precision == "fp32" and (
        (modes.tf32_conv and packet in _CONVOLUTIONS) or (modes.tf32_matmul and packet in _MATMULS)
    ):
        return "tf32"
    return precision or (tensors[0].dtype if tensors else "")


_SIZES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
