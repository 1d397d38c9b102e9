"""Calls of torch's operators as a profiler notes them (name, shapes, strides, types, numbers), made again on tensors
without data.

A trace is a file of anyone, and must never decide what is executed. Only operators whose costs rooflight knows are
called, only on tensors without data, with numbers of plausible size and without texts; `undisturbed` keeps torch's
settings as they were. All others are left out with a reason.

Types of lists of tensors are not noted; the names of the kernels that ran tell them.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import torch
from torch.utils.flop_counter import flop_registry

from rooflight.files import UNDECODABLE
from rooflight.ledger import MathModes, Phase
from rooflight.ops.registry import FORMULAS
from rooflight.profiles.kineto import HostRange
from rooflight.trace.meta_kernels import META_KERNELS
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.recorder import Recorder

NO_SHAPES = "ops without shapes: profile with record_shapes=True"
NOT_MADE_AGAIN = "ops that cannot be made again from what the trace tells"
LONG_LIST = "ops on more tensors at once than the profiler notes, as those of an optimizer"
NO_LIST_TYPE = "ops on lists of tensors whose type neither the trace nor a kernel's name tells"
NO_FORMULA = "ops that rooflight has no formula for"

_MOST_BYTES = 2**44
"""Of one tensor: no machine holds so much."""
_MOST_DIMS = 64
_MOST_TEXT = 1000
"""Letters of a number or a list of them: the profiler notes no more than 30 numbers."""
_MOST_PIECES = 1000
"""That one tensor is split into: each is a row of memory that few bytes of a file ask for."""
_UNCOSTED = frozenset({"aten::to"})
"""A conversion that torch makes of others, and that a CPU's trace has as a row: harmless, and without a cost."""

_DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64, "long": torch.int64, "int": torch.int32, "short": torch.int16, "short int": torch.int16,
    "signed char": torch.int8, "unsigned char": torch.uint8, "bool": torch.bool, "c10::complex<float>": torch.complex64,
    "c10::complex<double>": torch.complex128, "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
}  # fmt: skip
"""By their names in C++."""
_WRAPPED = {"double": 1.0, "long int": 1}
"""A number of Python in the place of a tensor is noted as a tensor of such a type without dimensions."""
_SCALAR_TYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool, None, None, None, torch.bfloat16,
)  # fmt: skip
"""In the order of c10::ScalarType."""
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
_OF_KERNEL = (
    (re.compile(r"BFloat16|bfloat16"), torch.bfloat16),
    (re.compile(r"\bHalf\b|__half"), torch.float16),
    (re.compile(r"\bdouble\b"), torch.float64),
    (re.compile(r"\bfloat\b"), torch.float32),
    (re.compile(r"OpaqueType<\(?(?:unsigned int\))?2u?>"), torch.bfloat16),
    (re.compile(r"OpaqueType<\(?(?:unsigned int\))?4u?>"), torch.float32),
)


class CallNotKnown(Exception):
    """A call that cannot be made again; its text is the reason in words."""


@dataclass(frozen=True)
class NotedCall:
    """One call: what was noted for every argument of the operator's schema, in its order."""

    packet: str
    overload: str
    dims: Sequence[Any]
    strides: Sequence[Any]
    types: Sequence[str]
    concrete: Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.packet}.{self.overload}" if self.overload else self.packet

    @property
    def is_fp32(self) -> bool:
        """Are all floating tensors of fp32?"""
        return "float" in self.types and not {"c10::Half", "c10::BFloat16", "double"} & set(self.types)

    @property
    def is_composed(self) -> bool:
        """Does torch make other ops of it before any device sees it?"""
        return _is_composed(self.name)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep random numbers and the recording of gradients as they are, whatever is called inside."""
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(torch.is_grad_enabled()):
        yield


def recorder(modes: MathModes) -> Recorder:
    return Recorder(ModuleTracker(torch.nn.Identity()), device="meta", modes=modes, meta_kernels=META_KERNELS)


def phase_of(names: Iterable[str]) -> Phase:
    """Return the part of a step that an op belongs to, by the names of the ranges around it."""
    names = list(names)
    if any(name.startswith("Optimizer.step") for name in names):
        return "optimizer"
    return "backward" if any(name.startswith("autograd::engine") for name in names) else "forward"


# --- what was noted ---


def noted(host_range: HostRange) -> NotedCall:
    """Return what a range tells; raise `CallNotKnown` if that is too little."""
    args = host_range.args
    try:
        raw = (args.dims, args.types, args.strides, args.concrete)
        dims, types, strides, concrete = (msgspec.json.decode(each) for each in raw)
    except UNDECODABLE:
        raise CallNotKnown(NO_SHAPES) from None
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        raise CallNotKnown(NO_SHAPES)
    strides = strides if isinstance(strides, list) and len(strides) == len(dims) else [None] * len(dims)
    concrete = concrete if isinstance(concrete, list) and len(concrete) == len(dims) else [""] * len(dims)
    overload = _overload(host_range.name, tuple(map(str, types)))
    if overload is None:
        raise CallNotKnown(NOT_MADE_AGAIN)
    return NotedCall(host_range.name, overload, dims, strides, [*map(str, types)], [*map(str, concrete)])


# --- operators ---


@cache
def schemas(name: str) -> list[Any]:
    """The overloads of an operator; none if there is no operator of that name."""
    namespace, colons, rest = name.partition("::")
    if not colons or not rest.isidentifier() or not namespace.isidentifier():
        return []
    return list(torch._C._jit_get_schemas_for_operator(name))


@cache
def is_composition(packet: str) -> bool:
    """Does torch make other ops of all overloads, but those that write into `out`?"""
    overloads = [str(schema.overload_name) for schema in schemas(packet)]
    names = [f"{packet}.{name}" if name else packet for name in overloads if not name.endswith("out")]
    return bool(names) and all(_is_dispatched(name) and _is_composed(name) for name in names)


@cache
def _is_composed(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def _is_dispatched(name: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel(name))
    except RuntimeError:  # TorchScript has operators that the dispatcher does not know
        return False


@cache
def _overload(packet: str, types: tuple[str, ...]) -> str | None:
    """The overload whose arguments are as many, and can be of these types; never one that writes into `out`, nor one of
    TorchScript alone, as those of Python's lists and texts."""
    for schema in schemas(packet):
        arguments = schema.arguments
        if not _is_dispatched(f"{packet}.{schema.overload_name}" if schema.overload_name else packet):
            continue
        if len(arguments) == len(types) and all(_fits(a, kind) for a, kind in zip(arguments, types, strict=True)):
            return str(schema.overload_name)
    return None


def _fits(argument: Any, kind: str) -> bool:
    declared = str(argument.real_type)
    if argument.kwarg_only and argument.alias_info is not None:  # the `out` that a result is written into
        return False
    if kind == "":  # not given, or a tensor that is not there
        return declared.startswith("Optional") or declared == "Tensor" or argument.has_default_value()
    if kind == "TensorList":
        return declared in ("List[Tensor]", "Optional[List[Tensor]]")
    if kind == "ScalarList":
        return "List[" in declared and "Tensor" not in declared
    if kind == "Scalar":  # the profiler notes texts as if they were not given
        return not any(other in declared for other in ("List[", "Tensor", "str"))
    return declared in ("Tensor", "Optional[Tensor]")


def _is_costed(call: NotedCall) -> bool:
    """Does rooflight know its costs? Then it computes on tensors, and calling it does nothing else."""
    if call.packet in _UNCOSTED or any(str(known) == call.packet.replace("::", ".") for known in flop_registry):
        return True
    for name in (call.name, call.packet):
        with suppress(KeyError):
            if FORMULAS[name] is not None:
                return True
    return False


# --- calls ---


def record(recorder: Recorder, call: NotedCall, kernels: Sequence[str]) -> int:
    """Make the call, and return the index of its op in the recorder; raise `CallNotKnown` if it cannot be made."""
    if not _is_costed(call):
        raise CallNotKnown(NO_FORMULA)
    try:
        with undisturbed():
            _make(recorder, call, kernels)
    except CallNotKnown:
        raise
    except Exception:  # whatever torch, or one of its many checks, raises for what a damaged file asks for
        raise CallNotKnown(NOT_MADE_AGAIN) from None
    if any(tensor.nbytes > _MOST_BYTES for tensor in recorder.ops[-1].outputs):
        recorder.ops.pop()
        raise CallNotKnown(NOT_MADE_AGAIN)
    return len(recorder.ops) - 1


def _make(recorder: Recorder, call: NotedCall, kernels: Sequence[str]) -> None:
    namespace, _, name = call.packet.partition("::")
    function = getattr(getattr(getattr(torch.ops, namespace), name), call.overload or "default")
    arguments = function._schema.arguments
    values = [_value(call, place, argument, kernels) for place, argument in enumerate(arguments)]
    by_name = {argument.name: value for argument, value in zip(arguments, values, strict=True)}
    if not any(map(_is_on_meta, values)):  # else it would take memory
        raise CallNotKnown(NOT_MADE_AGAIN)
    if (
        any(str(result.type) == "List[Tensor]" for result in function._schema.returns)
        and _pieces(by_name) > _MOST_PIECES
    ):
        raise CallNotKnown(NOT_MADE_AGAIN)
    positional = [by_name.pop(argument.name) for argument in arguments if not argument.kwarg_only]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    named = {name: value for name, value in by_name.items() if value is not None and value != defaults.get(name, ...)}
    # Ledgers hold what was given: defaults are left out from the end.
    while positional and arguments[len(positional) - 1].name in defaults:
        if positional[-1] != defaults[arguments[len(positional) - 1].name]:
            break
        positional.pop()
    recorder.record(function, tuple(positional), named)


def _is_on_meta(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(getattr(one, "device", one) == torch.device("meta") for one in values)


def _pieces(values: dict[str, Any]) -> int:
    """How many tensors one is cut into; lists of tensors stay as long as they are."""
    cut, size = values.get("self"), values.get("split_size") or 1
    if not isinstance(cut, torch.Tensor):
        return 0
    return len(size) if isinstance(size, list) else math.ceil(cut.shape[values.get("dim") or 0] / max(size, 1))


def _value(call: NotedCall, place: int, argument: Any, kernels: Sequence[str]) -> Any:
    kind, dims, strides, text = call.types[place], call.dims[place], call.strides[place], call.concrete[place]
    declared = str(argument.real_type)
    if kind == "TensorList":
        if not dims:
            raise CallNotKnown(LONG_LIST)
        dtype = _list_type(kernels)
        return [_tensor(*each, dtype) for each in zip(dims, strides or [None] * len(dims), strict=True)]
    if kind in _DTYPES:
        if not dims and argument.name == "other" and kind in _WRAPPED:
            return _WRAPPED[kind]
        return _tensor(dims, strides, _DTYPES[kind])
    if "Device" in declared:
        return torch.device("meta")
    if not text:
        if kind:  # a list of what is not noted, or an object of torch's own
            raise CallNotKnown(NOT_MADE_AGAIN)
        return None
    number = _number(text)
    if "ScalarType" in declared:
        return _SCALAR_TYPES[number]
    if "MemoryFormat" in declared:
        return _MEMORY_FORMATS[number]
    return None if "Layout" in declared else number


def _tensor(dims: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype) -> torch.Tensor:
    sizes = (*dims, *(strides or ()))
    if len(dims) > _MOST_DIMS or not all(type(size) is int and 0 <= size <= _MOST_BYTES for size in sizes):
        raise CallNotKnown(NOT_MADE_AGAIN)
    if math.prod(dims) * dtype.itemsize > _MOST_BYTES:
        raise CallNotKnown(NOT_MADE_AGAIN)
    if strides is not None and len(strides) == len(dims):
        return torch.empty_strided(dims, strides, dtype=dtype, device="meta")
    return torch.empty(dims, dtype=dtype, device="meta")


def _list_type(kernels: Sequence[str]) -> torch.dtype:
    types = (dtype for name in kernels for pattern, dtype in _OF_KERNEL if pattern.search(name))
    if (first := next(types, None)) is None:
        raise CallNotKnown(NO_LIST_TYPE)
    return first


def _number(text: str) -> Any:
    """A number, or a list of them; nothing else is passed on."""
    if len(text) > _MOST_TEXT:
        raise CallNotKnown(NOT_MADE_AGAIN)
    value = float(text) if text in ("inf", "-inf", "nan") else ast.literal_eval(text)
    for one in value if isinstance(value, list) else [value]:
        if not (isinstance(one, float) or (isinstance(one, int) and -(2**63) <= one < 2**63)):
            raise CallNotKnown(NOT_MADE_AGAIN)
    return value
