"""Autocast as CUDA does it, for tensors without data.

torch's autocast hooks into the dispatcher by device, and meta tensors have no such device. This mode does the same
one level up: matrix work in the low precision, delicate functions in fp32, weights cast once a step. The lists are
those of torch's CUDA autocast.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from rooflight.errors import BadInput
from rooflight.trace.precision import torch_dtype

LOWER = frozenset(
    """conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv
    addr matmul __matmul__ __rmatmul__ einsum mm mv linear addbmm baddbmm bmm chain_matmul multi_dot lstm gru rnn_tanh
    rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention vecdot""".split()
)
FLOAT32 = frozenset(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus
    layer_norm group_norm rms_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
    nll_loss_nd cross_entropy_loss cross_entropy hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax log_softmax cumprod cumsum
    vector_norm matrix_norm norm sum interpolate""".split()
)
WIDEST = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put tensordot scatter_add cat stack".split()
)


@contextmanager
def autocast_as_cuda(precision: str | None, *, on: str = "meta") -> Iterator[None]:
    """Autocast to `bf16` or `fp16`, or nothing when `precision` is None. On a real GPU it is torch's own."""
    if precision is None:
        yield
        return
    if precision not in ("bf16", "fp16"):
        raise BadInput(f"--autocast takes bf16 or fp16, not {precision!r}")
    dtype = torch_dtype(precision)
    with torch.autocast("cuda", dtype) if on == "cuda" else _Autocast(dtype):
        yield


class _Autocast(TorchFunctionMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._cast_weights: dict[int, torch.Tensor] = {}
        # Some functions (max_pool2d) hand themselves over once more from within: then they just run.
        self._opening: set[Any] = set()

    def __torch_function__(self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in LOWER:
            args, kwargs = self._cast((args, kwargs), self._dtype)
        elif name in FLOAT32:
            args, kwargs = self._cast((args, kwargs), torch.float32)
        elif name in WIDEST:
            args, kwargs = self._cast((args, kwargs), self._widest((args, kwargs)))
        elif func not in self._opening and (opened := _opened(func)) is not None:
            self._opening.add(func)
            try:
                with self:
                    return opened(*args, **kwargs)
            finally:
                self._opening.discard(func)
        return func(*args, **kwargs)

    def _cast(self, arguments: Any, dtype: torch.dtype) -> Any:
        """Cast the last argument first: C++ evaluates arguments in that order, and the rows should be CUDA's."""
        leaves, structure = tree_flatten(arguments)
        for index in reversed(range(len(leaves))):
            if isinstance(leaves[index], torch.Tensor):
                leaves[index] = self._cast_one(leaves[index], dtype)
        return tree_unflatten(leaves, structure)

    def _cast_one(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64):
            return tensor
        # Like torch, remember casts of fp32 weights: each is cast once a step however often it is used.
        if dtype is self._dtype and tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf:
            if id(tensor) not in self._cast_weights:
                with torch.enable_grad():
                    self._cast_weights[id(tensor)] = tensor.to(dtype)
            return self._cast_weights[id(tensor)]
        return tensor.to(dtype)

    def _widest(self, arguments: Any) -> torch.dtype:
        found = {self._dtype}
        tree_map_only(torch.Tensor, lambda tensor: found.add(tensor.dtype), arguments)
        return torch.float32 if torch.float32 in found else self._dtype


def _opened(func: Any) -> Any:
    """A function of torch.nn.functional that does not hand itself to modes, so that the mode sees what it calls."""
    if not isinstance(func, types.FunctionType) or func.__module__ not in ("torch.nn.functional", "torch.functional"):
        return None
    quiet = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _never)
    opened = types.FunctionType(
        func.__code__, {**func.__globals__, **quiet}, func.__name__, func.__defaults__, func.__closure__
    )
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened


def _never(*tensors: Any) -> bool:
    return False
