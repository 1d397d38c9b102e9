"""Autocast as CUDA does it, for tensors without data.

torch's autocast hooks into the dispatcher by device, and meta tensors have no such device. This mode does the same
one level up: matrix work in the low precision, delicate functions in fp32, weights cast once a step. The lists are
those of torch's CUDA autocast.
"""

from __future__ import annotations

import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _len_torch_dispatch_stack
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from rooflight.errors import BadInput
from rooflight.models.dtypes import torch_dtype
from rooflight.trace.replacements import replaced

LOWER = frozenset(
    """conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv
    addr matmul __matmul__ __rmatmul__ einsum mm mv linear addbmm baddbmm bmm chain_matmul multi_dot lstm gru rnn_tanh
    rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention vecdot""".split()
)
FLOAT32 = frozenset(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus
    layer_norm group_norm rms_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
    nll_loss_nd hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp interpolate""".split()
)
RESULT_FLOAT32 = frozenset("prod softmax log_softmax cumprod cumsum vector_norm matrix_norm norm sum".split())
"""These read the low precision and are told to give fp32, unless the caller says which type to give."""
WIDEST = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put tensordot scatter_add cat stack".split()
)


@contextmanager
def autocast_as_cuda(precision: str | None, *, on: str = "meta") -> Iterator[None]:
    """Autocast to `bf16` or `fp16`, or not at all, and in either case as the model's own autocast contexts say.

    On a real GPU it is torch's own.
    """
    if precision is not None and precision not in ("bf16", "fp16"):
        raise BadInput("unknown-dtype", f"--autocast takes bf16 or fp16, not {precision!r}")
    dtype = None if precision is None else torch_dtype(precision)
    if on == "cuda":
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            yield
        # Torch does this when the outermost context ends, and there is one around the whole stage: without it the
        # casts of one step's weights would be there, and used, in the next.
        torch.clear_autocast_cache()
        return
    with _as_modes(dtype):
        yield


@contextmanager
def autocast_as_on(target: str, *, tensors_on: str) -> Iterator[None]:
    """Autocast contexts of a program whose tensors without data are not on its target: torch casts those of a context's
    own device alone, and none on meta. What autocasts on a CPU is meant for the GPU that stands for it, what does on a
    GPU is nothing to a CPU; which functions are cast is CUDA's choice for both."""
    if tensors_on == target:
        yield
        return
    with _as_modes(None, ("cuda", "cpu", "meta") if target == "cuda" else ("cpu", "meta")):
        yield


@contextmanager
def autocast_on_cpu(precision: str) -> Iterator[None]:
    """Torch's own on real tensors of a CPU."""
    with torch.autocast("cpu", torch_dtype(precision)):
        yield
    torch.clear_autocast_cache()


def autocast_now() -> torch.dtype | None:
    """What is autocast to at this place of the step."""
    if _open and _open[-1].dtype is not None:
        return _open[-1].dtype
    on = next((device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device)), None)
    return None if on is None else torch.get_autocast_dtype(on)


def autocast_as_now() -> Callable[[], AbstractContextManager[None]]:
    """Opens what is autocast now again: for what a checkpoint runs once more in backward. torch does it for its own."""
    return partial(_as_modes, _open[-1].dtype) if _open else nullcontext


@contextmanager
def _as_modes(dtype: torch.dtype | None, devices: Sequence[str] = ("cuda", "meta")) -> Iterator[None]:
    levels = _AutocastNesting()
    _open.append(levels)
    try:
        with _contexts_of_the_model(levels, devices), levels.at(dtype):
            yield
    finally:
        _open.pop()


class _AutocastNesting:
    """The nesting of autocast contexts. Only inside one is the mode active: it costs the fast path of attention."""

    def __init__(self) -> None:
        self._modes: list[_Autocast | None] = []

    @property
    def dtype(self) -> torch.dtype | None:
        mode = self._modes[-1] if self._modes else None
        return None if mode is None else mode.dtype

    def push(self, dtype: torch.dtype | None) -> None:
        if dtype is None and not any(self._modes):
            self._modes.append(None)
            return
        # A disabled context inside an enabled one is a mode that lets everything pass.
        mode = _Autocast(dtype)
        mode.__enter__()
        self._modes.append(mode)

    def pop(self) -> None:
        mode = self._modes.pop()
        if mode is not None:
            mode.__exit__(None, None, None)

    @contextmanager
    def at(self, dtype: torch.dtype | None) -> Iterator[None]:
        self.push(dtype)
        try:
            yield
        finally:
            self.pop()


_open: list[_AutocastNesting] = []
"""Of this step, innermost last."""


@contextmanager
def _contexts_of_the_model(levels: _AutocastNesting, devices: Sequence[str]) -> Iterator[None]:
    """`torch.autocast("cuda")` in a model's forward, which a torch without CUDA would switch off with a warning.

    A model that asks for its tensors' own device gets "meta", which stands for the target here. `devices`: those whose
    contexts are taken so.
    """
    original = autocast.__init__, autocast.__enter__, autocast.__exit__
    is_enabled_by_torch, dtype_by_torch = torch.is_autocast_enabled, torch.get_autocast_dtype
    tracing = threading.get_ident()

    def is_ours() -> bool:
        """Other threads may have work of their own. Those of autograd, which run checkpoints again, have our modes."""
        return threading.get_ident() == tracing or bool(_len_torch_dispatch_stack())

    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "meta" and is_ours():
            self.device, self._enabled = device_type, enabled
        else:  # the program may keep it
            with warnings.catch_warnings():
                if device_type in devices:
                    warnings.filterwarnings("ignore", message=".*Disabling autocast")
                original[0](self, device_type, dtype, enabled, cache_enabled)
        if device_type not in devices or not is_ours():
            return
        self._level = (dtype or _usual_dtype(device_type)) if enabled else None

    def enter(self: Any) -> Any:
        if not is_ours():
            return original[1](self)
        if not hasattr(self, "_level"):
            if self.device not in devices:
                return original[1](self)
            # Made before the trace, when torch switches it off for want of a GPU. One that was meant to be on mostly
            # names its type, and that is still there.
            off = self.device == "cuda" and not torch.cuda.is_available()
            named = off and self.fast_dtype is not dtype_by_torch("cuda")
            self._level = self.fast_dtype if self._enabled or named else None
        levels.push(self._level)
        return self

    def leave(self: Any, *failure: Any) -> Any:
        if not hasattr(self, "_level") or not is_ours():
            return original[2](self, *failure)
        levels.pop()
        return False

    def is_enabled(*device: str) -> bool:
        if not is_ours() or (device and device[0] not in devices):
            return is_enabled_by_torch(*device)
        return levels.dtype is not None

    def dtype_of(device: str) -> torch.dtype:
        known = levels.dtype if is_ours() and device in devices else None
        return dtype_by_torch("cuda" if device == "meta" else device) if known is None else known

    autocast.__init__, autocast.__enter__, autocast.__exit__ = init, enter, leave  # type: ignore[method-assign]
    try:
        with replaced(torch, "is_autocast_enabled", is_enabled), replaced(torch, "get_autocast_dtype", dtype_of):
            yield
    finally:
        autocast.__init__, autocast.__enter__, autocast.__exit__ = original  # type: ignore[method-assign]


def _usual_dtype(device: str) -> torch.dtype:
    return torch.get_autocast_dtype("cuda" if device == "meta" else device)


class _Autocast(TorchFunctionMode):
    """Casts what goes into torch's functions; with no type, lets everything pass and hides the modes outside."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self._low = dtype or torch.float32
        self._cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the id of the weight, and with the weight, so that the id stays its own."""
        # Some functions (max_pool2d) hand themselves over once more from within: then they just run.
        self._opening: set[Any] = set()

    def __torch_function__(self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "") if self.dtype is not None else ""
        if name == "cross_entropy_loss" and _by_class(args, kwargs):
            # torch fixes the type of this softmax to that of its input, so autocast leaves it alone; only the loss
            # itself runs in fp32.
            return _cross_entropy(*args, **kwargs)
        if name in LOWER:
            args, kwargs = self._cast((args, kwargs), self._low)
        elif name in FLOAT32:
            args, kwargs = self._cast((args, kwargs), torch.float32)
        elif name in RESULT_FLOAT32:
            if kwargs.get("dtype") is None and _is_low(args, kwargs):
                kwargs = {**kwargs, "dtype": torch.float32}
        elif name in WIDEST:
            args, kwargs = self._cast((args, kwargs), self._widest((args, kwargs)))
        elif name and func not in self._opening and (opened := _opened(func)) is not None:
            self._opening.add(func)
            try:
                with self:
                    return opened(*args, **kwargs)
            finally:
                self._opening.discard(func)
        # Contexts outside this one have no say.
        with torch._C.DisableTorchFunction():
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
        weight = tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        if weight and dtype is self._low and tensor.dtype is torch.float32:
            if id(tensor) not in self._cast_weights:
                with torch.enable_grad():
                    self._cast_weights[id(tensor)] = (tensor, tensor.to(dtype))
            return self._cast_weights[id(tensor)][1]
        return tensor.to(dtype)

    def _widest(self, arguments: Any) -> torch.dtype:
        dtypes = {self._low}
        tree_map_only(torch.Tensor, lambda tensor: dtypes.add(tensor.dtype), arguments)
        return torch.float32 if torch.float32 in dtypes else self._low


def _is_low(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Is the first tensor of a low precision, and is no type given among the plain arguments?"""
    first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
    given = any(isinstance(value, torch.dtype) for value in args)
    return first is not None and first.dtype in (torch.bfloat16, torch.float16) and not given


def _by_class(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Is the target a class number, and is nothing smoothed?"""
    target = args[1] if len(args) > 1 else kwargs["target"]
    smoothing = args[5] if len(args) > 5 else kwargs.get("label_smoothing", 0.0)
    return not target.is_floating_point() and not smoothing


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    scores = torch.log_softmax(input, 1 if input.dim() > 1 else 0, dtype=input.dtype)
    weight = None if weight is None else weight.float()
    loss: torch.Tensor = torch._C._nn.nll_loss_nd(scores.float(), target, weight, reduction, ignore_index)  # type: ignore[arg-type]
    return loss


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
