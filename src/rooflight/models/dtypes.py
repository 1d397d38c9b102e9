"""The names of torch's dtypes in ledgers and options."""

from __future__ import annotations

import torch

from rooflight.errors import BadInput
from rooflight.ledger import Dtype

DTYPE_NAMES: dict[torch.dtype, Dtype] = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64",
    torch.bool: "bool", torch.complex32: "complex32", torch.complex64: "complex64", torch.complex128: "complex128",
}  # fmt: skip

FLOATS: tuple[Dtype, ...] = ("bf16", "fp16", "fp32", "fp64", "fp8_e4m3", "fp8_e5m2")


def dtype_name(dtype: torch.dtype) -> Dtype:
    try:
        return DTYPE_NAMES[dtype]
    except KeyError:
        raise BadInput(
            "unknown-dtype", f"tensors of {dtype} are not supported; convert the model to one of {', '.join(FLOATS)}"
        ) from None


def torch_dtype(name: str) -> torch.dtype:
    for dtype, title in DTYPE_NAMES.items():
        if title == name:
            return dtype
    raise BadInput("unknown-dtype", f"unknown dtype {name!r}; known: {', '.join(FLOATS)}")
