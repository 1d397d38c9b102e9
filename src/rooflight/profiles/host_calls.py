"""What kept the host from launching kernels, in a trace of PyTorch's profiler: waits, allocator, data loader."""

from __future__ import annotations

from collections.abc import Iterator

from rooflight.ledger import HostCall, HostCallKind
from rooflight.profiles.kineto import HostRange, KinetoTrace, RuntimeCall

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
    """In the order of time, counted from the first kernel's start; none where no kernel ran."""
    if not trace.work:
        return ()
    first_ns = min(work.start_ns for work in trace.work)
    found = [
        HostCall(kind=kind, name=name, start_s=(event.start_ns - first_ns) / 1e9, time_s=event.time_ns / 1e9)
        for event, kind, name in _events(trace)
    ]
    return tuple(sorted(found, key=lambda call: call.start_s))


def _events(trace: KinetoTrace) -> Iterator[tuple[RuntimeCall | HostRange, HostCallKind, str]]:
    for call in trace.calls:
        kind = kind_of(call.name)
        if kind is not None:
            yield call, kind, call.name
    for host_range in trace.ranges:
        if host_range.name.startswith(_LOADER) and host_range.dur >= 0:
            yield host_range, "data", host_range.name


def kind_of(name: str) -> HostCallKind | None:
    """`cudaMalloc_v3020` is `cudaMalloc`; what returns at once (`cudaMemcpyAsync`) keeps nobody."""
    bare = name.partition("_")[0]
    for library in ("cuda", "hip", "cu"):
        if bare.startswith(library):
            return _KINDS.get(bare.removeprefix(library))
    return None
