"""Memory of a step on the CPU: what torch allocates in every op.

Every block that torch's CPU allocator hands out, as many bytes as were asked for (it rounds nothing), from torch's own
profiler. Blocks that libraries take past torch, such as MKL's work buffers, are seen only in the resident memory of
the process (`rooflight.machine.resident_memory`).
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rooflight.ledger import Value
from rooflight.measurement.profiler_trace import RangeMarker, prepare_profiler

if TYPE_CHECKING:
    import torch

_ALLOCATIONS = "torch's profiler: CPU allocations"
_OP, _FREED = "rooflight op ", "rooflight freed "


@dataclass(slots=True)
class OpAllocations:
    """What one op did to torch's CPU memory."""

    growth_bytes: int = 0
    """Allocated minus freed inside it."""
    allocations: int = 0
    peak_growth_bytes: int = 0
    """Most that was allocated inside it at one time beyond what there was before."""
    allocated_bytes: int = 0
    """In tensors of the process when it was over."""


@dataclass(frozen=True)
class CpuAllocationEvent:
    """An op's begin or end, or a block's allocation (`nbytes` > 0) or release (< 0)."""

    time_ns: int
    what: str
    """`begin`, `end`, `block`, or `forget`: a block from before the step was released."""
    op: int | None = None
    address: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class CpuMemoryHistory:
    """What the moments of a step add up to."""

    before_bytes: int
    """In CPU tensors of the process when the step began."""
    peak_bytes: int
    """Most bytes in CPU tensors at one time during the step."""
    ops: dict[int, OpAllocations]
    """By index."""


def step_quantities(history: CpuMemoryHistory) -> dict[str, Value]:
    """Of the whole step."""
    return {
        "allocated_before_bytes": Value(history.before_bytes, f"{_ALLOCATIONS}, before"),
        "peak_allocated_bytes": Value(history.peak_bytes, f"{_ALLOCATIONS}, most at one time"),
    }


def op_quantities(history: CpuMemoryHistory) -> dict[int, dict[str, Value]]:
    """Of every op, by its index."""
    return {
        index: {
            "growth_bytes": Value(memory.growth_bytes, f"{_ALLOCATIONS}, after minus before"),
            "allocations": Value(memory.allocations, f"{_ALLOCATIONS}, calls"),
            "workspace_bytes": Value(
                memory.peak_growth_bytes - max(memory.growth_bytes, 0),
                f"{_ALLOCATIONS}, most inside the op minus what stays",
            ),
            "allocated_bytes": Value(memory.allocated_bytes, f"{_ALLOCATIONS}, after"),
        }
        for index, memory in history.ops.items()
    }


def add_up(moments: list[CpuAllocationEvent], before: dict[int, int]) -> CpuMemoryHistory:
    """Follow every block from address to address. `before`: blocks that were there, bytes by address.

    A block is known by its address, so one that was released unseen is found out when its address is used again.
    """
    live = before | _never_made(moments, before)
    old = set(before)
    start = total = peak = sum(live.values())
    running: dict[int | None, OpAllocations] = {}
    ops: dict[int, OpAllocations] = {}
    for moment in moments:
        op = running.get(moment.op)
        if moment.what == "begin":
            running[moment.op] = OpAllocations()
        elif moment.what == "end":
            if op is not None and moment.op is not None:
                op.allocated_bytes = total
                ops[moment.op] = op
        elif moment.what == "block" or moment.address in old:
            was = live.pop(moment.address, 0)
            old.discard(moment.address)
            total += moment.nbytes - was if moment.nbytes > 0 else -was
            peak = max(peak, total)
            if moment.nbytes > 0:
                live[moment.address] = moment.nbytes
            if op is not None:
                op.growth_bytes += moment.nbytes if moment.nbytes > 0 else -was
                op.allocations += moment.nbytes > 0
                op.peak_growth_bytes = max(op.peak_growth_bytes, op.growth_bytes)
    return CpuMemoryHistory(start, peak, ops)


def _never_made(moments: list[CpuAllocationEvent], before: dict[int, int]) -> dict[int, int]:
    """Blocks released in the step that nobody saw being made: they were there before without our knowing."""
    unseen: dict[int, int] = {}
    seen = set(before)
    for moment in moments:
        if moment.what == "block":
            if moment.nbytes < 0 and moment.address not in seen:
                unseen[moment.address] = -moment.nbytes
            seen.add(moment.address)
    return unseen


class CpuAllocations:
    """Records torch's CPU allocations while it is entered; whoever runs the ops calls `before` and `after`.

    Ops may run in any thread that torch's profiler follows: the one that entered it and those of autograd.
    """

    def __init__(self) -> None:
        self._history: CpuMemoryHistory | None = None
        self._marker = RangeMarker(_OP)
        self._watched: list[weakref.ref[torch.UntypedStorage]] = []
        self._before: dict[int, int] = {}
        self._exits = ExitStack()
        self._profiler: Any = None

    def __enter__(self) -> CpuAllocations:
        from torch.autograd.profiler import profile

        prepare_profiler()
        self._profiler = profile(use_kineto=True, use_cpu=True, profile_memory=True)
        self._history = None
        with ExitStack() as undo:
            undo.enter_context(_quiet_allocator())
            undo.callback(self._watched.clear)
            self._before = self._watch()
            self._profiler.__enter__()
            self._exits = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._exits:
            self._marker.close()
            self._profiler.__exit__(kind, error, at)
            moments = _moments(self._profiler.kineto_results.experimental_event_tree())
            self._history = add_up(moments, self._before)
            self._profiler = None

    def before(self, index: int) -> None:
        """Op `index` (its own number in the step) begins in this thread."""
        self._marker.before(index)

    def after(self, index: int) -> None:
        self._marker.after(index)

    @property
    def history(self) -> CpuMemoryHistory:
        """Of the step, once it is over."""
        if self._history is None:
            raise RuntimeError("CpuAllocations has nothing to tell before it was entered and left")
        return self._history

    def _watch(self) -> dict[int, int]:
        """Blocks of the tensors that exist. The profiler will not tell when they are freed: it never saw them made."""
        blocks: dict[int, int] = {}
        for storage in _cpu_storages():
            try:
                address = storage.data_ptr()
            except RuntimeError:  # of a tensor that only wraps others, which have theirs
                continue
            if address and address not in blocks:
                blocks[address] = storage.nbytes()
                self._watched.append(weakref.ref(storage, partial(_note_release, address)))
        return blocks


def _note_release(address: int, _: object) -> None:
    """Tells the profiler that a block it does not know was freed."""
    from torch._C._profiler import _RecordFunctionFast

    with _RecordFunctionFast(f"{_FREED}{address}"):
        pass


def _cpu_storages() -> Iterator[torch.UntypedStorage]:
    """Storages of every tensor that Python knows, and of their gradients."""
    import torch
    from torch.nn.parameter import is_lazy

    from rooflight.trace.sparse_tensors import parts_of

    for item in gc.get_objects():
        # `isinstance` would run the code of proxies that pretend to be something else.
        if not issubclass(type(item), torch.Tensor):
            continue
        if is_lazy(item):
            continue  # no memory yet, and questions about it raise
        for tensor in (item, item.grad if item.is_leaf and item.requires_grad else None):
            if tensor is None or tensor.device.type != "cpu":
                continue
            # Fake and wrapped tensors say "cpu" and have no memory of their own; nested ones do not say where it is.
            with suppress(RuntimeError, NotImplementedError):
                for storage in [part.untyped_storage() for part in parts_of(tensor)]:
                    if storage.device.type == "cpu":
                        yield storage


def _moments(events: list[Any]) -> list[CpuAllocationEvent]:
    """The profiler's tree in the order of time."""
    from torch._C._profiler import _EventType

    moments: list[CpuAllocationEvent] = []
    pending: list[tuple[Any, int | None, bool]] = [(event, None, False) for event in reversed(events)]
    while pending:
        event, op, leaving = pending.pop()
        if leaving:
            moments.append(CpuAllocationEvent(event.end_time_ns, "end", op))
            continue
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            if fields.device.type == "cpu":
                moments.append(CpuAllocationEvent(event.start_time_ns, "block", op, fields.ptr, fields.alloc_size))
        elif event.name.startswith(_OP):
            op = int(event.name.removeprefix(_OP))
            moments.append(CpuAllocationEvent(event.start_time_ns, "begin", op))
            pending.append((event, op, True))
        elif event.name.startswith(_FREED):
            moments.append(CpuAllocationEvent(event.start_time_ns, "forget", op, int(event.name.removeprefix(_FREED))))
        pending.extend((child, op, False) for child in reversed(event.children))
    # Within a thread the tree has the right order already; the sort is stable and only weaves threads together.
    moments.sort(key=lambda moment: moment.time_ns)
    return moments


@contextmanager
def _quiet_allocator() -> Iterator[None]:
    """Keep torch's allocator from warning of blocks made before the profiler: they are counted here in another way."""
    import torch

    level = None
    with suppress(OSError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        for name in ("FLAGS_caffe2_log_level", "_ZN3c1022FLAGS_caffe2_log_levelE"):
            with suppress(ValueError):
                level = ctypes.c_int.in_dll(library, name)
    if level is None:
        yield
        return
    old = level.value
    level.value = max(old, 2)  # errors only
    try:
        yield
    finally:
        level.value = old
