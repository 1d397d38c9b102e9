"""One clear line when a forward pass fails because shapes do not fit: which layer, what it got, what it wants.

The traceback of the failure already holds all of it (every module's call is a frame with the module and its inputs),
so nothing is hooked or patched, and a pass that succeeds pays nothing. Works for any nn.Module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.pooling import _AvgPoolNd, _MaxPoolNd

from rooflight.errors import BadInput, one_line

# What torch says when sizes do not fit, as opposed to every other RuntimeError.
_ABOUT_SHAPES = re.compile(
    r"shapes? (cannot|of|must|'\[)|same reduction dim|size mismatch|sizes? of tensors? must match|must match the size"
    r"|is invalid for input of size|expected (input (batch_)?shape|input.* to have|\d+-?d|more than 1 value)"
    r"|expected .*dim|expanded size"
    r"|output size is too small|can't be greater than actual input size|not broadcastable|cannot be broadcast"
    r"|dimension out of range|index out of range in self|out of bounds|must have the same (size|shape|number of dim)"
    r"|incompatible (shapes|dimensions)|wrong (image|input|number of)|(must|should) be equal to"
    r"|(input|image) (height|width|size)|embedding dim|batch size|view size is not compatible"
    r"|not enough values to unpack|too many values to unpack",
    re.IGNORECASE,
)


_CHANGE = "change what it is called with (of a model by name, --input or --batch), or the layers"


@dataclass(frozen=True)
class _FailedCall:
    """The call of a module that was under way when the error rose."""

    path: str
    module: nn.Module
    inputs: tuple[Any, ...]

    @property
    def tensor(self) -> Tensor | None:
        return next((value for value in self.inputs if isinstance(value, Tensor)), None)

    @property
    def title(self) -> str:
        kind = type(self.module).__name__
        return f"{self.path} ({kind})" if self.path else kind


@contextmanager
def explain_shape_errors(model: nn.Module) -> Iterator[None]:
    """Turn an error about shapes, raised while `model` runs, into a BadInput of one line; let others pass."""
    try:
        yield
    except BadInput:
        raise
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:
        line = shape_error(model, error)
        if line is None:
            raise
        raise BadInput("shape-mismatch", line) from error


def shape_error(model: nn.Module, error: BaseException) -> str | None:
    """The line that explains `error`, or None where it is not about shapes."""
    call = _innermost_call(model, error.__traceback__)
    if call is not None:
        wants = _mismatch(call.module, call.tensor)
        if wants is not None:
            assert call.tensor is not None
            return f"{call.title} wants {wants} (input {_shape(call.tensor)}); {_CHANGE}"
    message = one_line(error)
    if not _ABOUT_SHAPES.search(message):
        return None
    if call is None:
        return f"{type(model).__name__}: {message}"
    shapes = ", ".join(_shape(value) for value in call.inputs if isinstance(value, Tensor))
    return f"{call.title} cannot take input {shapes or 'of that kind'}: {message}"


def _innermost_call(model: nn.Module, trace: TracebackType | None) -> _FailedCall | None:
    """The deepest `Module.__call__` in the traceback, with the positional inputs it was given."""
    paths = {id(module): name for name, module in model.named_modules()}
    call = None
    while trace is not None:
        frame = trace.tb_frame
        names = frame.f_locals
        if frame.f_code.co_name in ("_call_impl", "_wrapped_call_impl") and isinstance(names.get("self"), nn.Module):
            module = names["self"]
            given = (*names.get("args", ()), *names.get("kwargs", {}).values())
            call = _FailedCall(paths.get(id(module), ""), module, given)
        trace = trace.tb_next
    return call


def _mismatch(module: nn.Module, x: Tensor | None) -> str | None:
    """What the layer wants and what it got instead, or None if this input suits it (or it is no known layer)."""
    if x is None:
        return None
    for kind, name in _FEATURES.items():
        if isinstance(module, kind):
            return _features(getattr(module, name), x)
    if isinstance(module, (_ConvNd, _BatchNorm)):
        return _channels(module, x)
    if isinstance(module, nn.LayerNorm):
        wanted = tuple(module.normalized_shape)
        if tuple(x.shape[-len(wanted) :]) != wanted:
            return f"{_sizes(wanted)} features last, got {_sizes(x.shape[-len(wanted) :])}"
    if isinstance(module, nn.GroupNorm) and x.dim() > 1 and x.shape[1] != module.num_channels:
        return f"{module.num_channels} channels, got {x.shape[1]}"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and x.dtype.is_floating_point:
        return f"whole token numbers (as --input=int:128 gives), got {str(x.dtype).removeprefix('torch.')}"
    if isinstance(module, (_MaxPoolNd, _AvgPoolNd)):
        return _pooled(module, x)
    return None


_FEATURES: dict[type[nn.Module], str] = {
    nn.Linear: "in_features", nn.Transformer: "d_model", nn.MultiheadAttention: "embed_dim", nn.RNNBase: "input_size",
}  # fmt: skip
"""What the last dimension of the input must be."""


def _features(wanted: int, x: Tensor) -> str | None:
    if x.dim() == 0 or x.shape[-1] != wanted:
        return f"{wanted} input features, got {x.shape[-1] if x.dim() else 'a single number'}"
    return None


def _channels(module: _ConvNd | _BatchNorm, x: Tensor) -> str | None:
    """Convolutions and batch norms: the number of dimensions, then the channels, then the room for the kernel."""
    conv = isinstance(module, _ConvNd)
    wanted = module.in_channels if isinstance(module, _ConvNd) else module.num_features
    spatial = int(type(module).__name__[-2]) if type(module).__name__[-2:-1].isdigit() else x.dim() - 2
    allowed = {spatial + 2, spatial + 1} if conv else {spatial + 2} if spatial > 1 else {2, 3}
    if x.dim() not in allowed:
        return f"batch x {wanted} channels x {spatial} sizes, got {x.dim()} dimensions"
    # An image without its batch is legal; one of the wrong rank then shows as wrong channels.
    axis = 0 if conv and x.dim() == spatial + 1 else 1
    if x.shape[axis] != wanted:
        return f"{wanted} input channels, got {x.shape[axis]}"
    if isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd):
        return _kernel_room(module, x)
    if isinstance(module, _BatchNorm) and module.training and x.numel() == x.shape[1]:
        return "more than one value per channel in training, got one"
    return None


def _kernel_room(module: _ConvNd, x: Tensor) -> str | None:
    if isinstance(module.padding, str):
        return None
    room = [size + 2 * pad for size, pad in zip(x.shape[-len(module.padding) :], module.padding, strict=True)]
    span = [dilation * (kernel - 1) + 1 for kernel, dilation in zip(module.kernel_size, module.dilation, strict=True)]
    if any(have < need for have, need in zip(room, span, strict=True)):
        return f"at least {_sizes(span)} for its kernel, got {_sizes(room)} with padding"
    return None


def _pooled(module: _MaxPoolNd | _AvgPoolNd, x: Tensor) -> str | None:
    spatial = int(type(module).__name__[-2])
    size: Any = module.kernel_size
    kernel = size if isinstance(size, tuple) else (size,) * spatial
    padding: Any = module.padding
    pads = padding if isinstance(padding, tuple) else (padding,) * spatial
    if x.dim() not in (spatial + 1, spatial + 2):
        return f"batch x channels x {spatial} sizes, got {x.dim()} dimensions"
    room = [have + 2 * pad for have, pad in zip(x.shape[-spatial:], pads, strict=True)]
    if any(have < need for have, need in zip(room, kernel, strict=True)):
        return f"at least {_sizes(kernel)} to pool, got {_sizes(room)}"
    return None


def _sizes(dims: Any) -> str:
    return "x".join(str(int(size)) for size in dims)


def _shape(x: Tensor) -> str:
    return _sizes(x.shape) or "of no dimensions"
