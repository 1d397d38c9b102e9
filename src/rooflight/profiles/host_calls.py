"""What kept the host from launching kernels, in a trace of PyTorch's profiler: waits, allocator, data loader."""

from __future__ import annotations

from collections.abc import Iterator

from rooflight.ledger import HostCall, HostCallKind
from rooflight.profiles.kineto import HostRange, KinetoTrace, RuntimeCall, Thread

_KINDS: dict[str, HostCallKind] = {
    **dict.fromkeys(
        ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "CtxSynchronize", "Memcpy", "MemcpyWithStream"),
        "synchronisation",
    ),
    **dict.fromkeys(
        ("Malloc", "Free", "MallocHost", "FreeHost", "HostAlloc", "HostMalloc", "HostFree", "MemCreate", "MemMap",
         "MemUnmap", "MemRelease", "MemSetAccess", "MemAlloc", "MemFree"),
        "allocator",
    ),
}  # fmt: skip
"""By the name of a call without its library's `cuda`, `cu` or `hip`."""
_LOADER = "enumerate(DataLoader)"


def host_calls(trace: KinetoTrace) -> tuple[HostCall, ...]:
    """Of the threads that launch, in the order of time, counted from the first kernel's start; none where none ran."""
    if not trace.work:
        return ()
    first_ns = min(work.start_ns for work in trace.work)
    calls = [
        HostCall(kind=kind, name=name, start_s=(event.start_ns - first_ns) / 1e9, time_s=event.time_ns / 1e9)
        for event, kind, name in _events(trace)
    ]
    return tuple(sorted(calls, key=lambda call: call.start_s))


def _events(trace: KinetoTrace) -> Iterator[tuple[RuntimeCall | HostRange, HostCallKind, str]]:
    threads = _launching(trace)
    for call in trace.calls:
        kind = kind_of(call.name)
        if kind is not None and call.thread in threads:
            yield call, kind, call.name
    for host_range in trace.ranges:
        of_main = host_range.thread in threads or host_range.tid == host_range.pid  # as Linux numbers the main thread
        if of_main and host_range.name.startswith(_LOADER) and host_range.dur >= 0:
            yield host_range, "data", host_range.name


def _launching(trace: KinetoTrace) -> set[Thread]:
    """Those that launch kernels: Python's, and autograd's own for backward. What another thread waits for, as one that
    pins memory for the loader, keeps no kernel from its launch."""
    ran = {work.args.correlation for work in trace.work if work.kind == "kernel"} - {None}
    return {call.thread for call in trace.calls if call.args.correlation in ran}


def kind_of(name: str) -> HostCallKind | None:
    """`cudaMalloc_v3020` is `cudaMalloc`; what returns at once (`cudaMemcpyAsync`) keeps nobody."""
    bare = name.partition("_")[0]
    for library in ("cuda", "hip", "cu"):
        if bare.startswith(library):
            return _KINDS.get(bare.removeprefix(library))
    return None
