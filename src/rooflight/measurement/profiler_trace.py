"""Runs under torch's profiler: how one is made and marked, and what the profiler saw of it.

The profiler's trace is read by `rooflight.profiles.kineto`, as a trace that a user imports is; here it becomes what
attribution needs: device work, the calls that launched it, CPU ops, and our own marks.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooflight.errors import BadFile, CannotMeasure
from rooflight.ledger import HostCall
from rooflight.profiles.host_calls import host_calls
from rooflight.profiles.kineto import DeviceWork, HostRange, Id, KinetoTrace, RuntimeCall
from rooflight.profiles.kineto import decode as decode_kineto

MARK = "rooflight::"
"""Our ranges in a trace are this and the index of an op."""
_DETACH = "TEARDOWN_CUPTI"
_A_MARK = re.compile(rf"{MARK}\d{{1,18}}")
_STARTS = (
    ("torch.autograd.profiler", "_prepare_profiler"),
    ("torch.autograd.profiler", "_enable_profiler"),
    ("torch.autograd.profiler_legacy", "_enable_profiler_legacy"),
)
"""What all profilers of torch begin with, by the modules that call it."""


class RangeMarker:
    """Opens a profiler range around each op, `rooflight::INDEX`; outside a profiler it does nothing (an `Observer`).

    Ranges go around the dispatcher (`_RecordFunctionFast`: 0.7 µs, where `record_function` takes 7 and dispatches ops).
    """

    def __init__(self, prefix: str = MARK) -> None:
        import torch

        profiler: Any = torch._C._profiler
        self._range = getattr(profiler, "_RecordFunctionFast", torch.profiler.record_function)
        self._prefix = prefix
        # By index, not as a stack: backward runs in a thread of its own.
        self._open: dict[int, Any] = {}

    def before(self, index: int) -> None:
        opened = self._range(f"{self._prefix}{index}")
        self._open[index] = opened
        opened.__enter__()

    def after(self, index: int) -> None:
        opened = self._open.pop(index, None)
        if opened is not None:
            opened.__exit__(None, None, None)

    def close(self) -> None:
        """End what was left open by a step that failed."""
        for index in list(self._open):
            self.after(index)


@dataclass(frozen=True)
class StepTrace:
    """One profiled run. Times are nanoseconds of one clock, the profiler's."""

    marks: tuple[HostRange, ...] = ()
    """The ranges of a `RangeMarker`."""
    work: tuple[DeviceWork, ...] = ()
    calls: dict[Id, RuntimeCall] = field(default_factory=dict)
    """By correlation: when and where the work was launched."""
    ranges: dict[Id, HostRange] = field(default_factory=dict)
    """By `External id`."""
    spans: tuple[HostRange, ...] = ()
    """All host ranges but the marks: ops and annotations."""
    graph_launches: int = 0
    """How often a CUDA graph was launched."""
    host_calls: tuple[HostCall, ...] = ()
    """What kept the host from launching."""

    @classmethod
    def of(cls, trace: KinetoTrace) -> StepTrace:
        calls: dict[Id, RuntimeCall] = {}
        for call in trace.calls:
            correlation = call.args.correlation
            if correlation is not None:
                # A runtime call and the driver call inside it share the number: the outer one comes first in time.
                earlier = calls.get(correlation)
                calls[correlation] = call if earlier is None or call.ts < earlier.ts else earlier
        marks: list[HostRange] = []
        spans: list[HostRange] = []
        for host_range in trace.ranges:
            (marks if _A_MARK.fullmatch(host_range.name) else spans).append(host_range)
        return cls(
            marks=tuple(marks),
            work=tuple(trace.work),
            calls=calls,
            ranges={item.args.external: item for item in trace.ranges if item.args.external is not None},
            spans=tuple(spans),
            graph_launches=sum("GraphLaunch" in call.name for call in trace.calls),
            host_calls=host_calls(trace),
        )


def marked_op(mark: HostRange) -> int:
    """The index of the op that a mark is around."""
    return int(mark.name.removeprefix(MARK))


def decode(content: bytes, *, source: str) -> StepTrace:
    """Read a trace of a run of ours; `source` names it in errors."""
    trace = decode_kineto(content, name=source)
    for work in trace.work:
        if not isinstance(work.args.correlation, int) or not isinstance(work.args.stream, int):
            raise BadFile(
                "unknown-format",
                f"{source} has no correlation or no stream for {work.name[:60]!r}: is this torch newer?",
            )
    return StepTrace.of(trace)


def prepare_profiler() -> None:
    """Before torch's profiler is started: a second one would end the first and take what it had seen."""
    import torch

    if torch.autograd._profiler_enabled():
        raise CannotMeasure(
            "profiler-busy", "torch's profiler is running already, and would be ended: measure outside of it"
        )
    # Else torch 2.13's profiler writes a line to the terminal at every start and stop; it reads the level once.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    _let_children_end()


@functools.cache
def _let_children_end() -> None:
    """The profiler leaves a thread behind, which a forked child does not have but waits for when it exits, forever."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_end_without_destructors)


def _end_without_destructors() -> None:
    """What C++ would tear down at `exit` is left, as after `os._exit`; all that Python does at its end is done before,
    and the exit code stays."""
    with suppress(OSError, AttributeError, TypeError):  # a C library without them
        library = ctypes.CDLL(None)
        leave, flush = (ctypes.cast(function, ctypes.c_void_p) for function in (library._exit, library.fflush))
        library.on_exit(leave, None)
        library.__cxa_atexit(flush, None, None)  # the last that is told is called first


def a_profiler_is_busy() -> bool:
    """Does one of torch's run, or wait for its first step? It would be lost, or take the process with it when it
    ends."""
    import torch
    from torch.profiler import ProfilerAction, profile

    if torch.autograd._profiler_enabled():
        return True
    profiles: Any = (one for one in gc.get_objects() if issubclass(type(one), profile))
    return any(getattr(one, "current_action", None) is ProfilerAction.WARMUP for one in profiles)


def profiled(run: Callable[[], None], *, cuda: bool) -> StepTrace:
    """Run once under torch's profiler and read what it saw; with `cuda`, wait for the device before it stops."""
    traces: list[StepTrace] = []
    with running_profile(traces.append, cuda=cuda):
        run()
    if cuda and not traces[0].work:
        raise CannotMeasure(
            "no-gpu-kernels",
            "torch's profiler saw no kernel: stop other profilers on this GPU (nsys, ncu, DCGM); "
            "`rooflight doctor` says who holds it",
        )
    return traces[0]


@contextmanager
def running_profile(done: Callable[[StepTrace], None], *, cuda: bool) -> Iterator[None]:
    """torch's profiler around what runs inside; `done` is given what it saw, unless that failed."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if cuda and not torch.cuda.is_available():
        raise CannotMeasure(
            "no-gpu", "torch sees no CUDA device, so there is no GPU timeline: `rooflight doctor` says why"
        )
    prepare_profiler()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with _without_its_warning():
        profiler = profile(activities=activities)
        profiler.__enter__()
    try:
        yield
        if cuda:
            torch.cuda.synchronize()
    finally:
        with _without_its_warning():
            profiler.__exit__(None, None, None)
    done(_exported(profiler))


def detach_profiler() -> None:
    """Torch leaves CUPTI attached after a profile, which makes every later launch 10 to 20% slower. It takes it away
    where it is told to when a profile ends, which is safe from CUDA 12.6 on: here when one of nothing does."""
    import torch

    version = tuple(int(part) for part in (torch.version.cuda or "0").split(".")[:2])
    if version < (12, 6) or _DETACH in os.environ or torch.autograd._profiler_enabled():
        return
    os.environ[_DETACH] = "1"
    try:
        with running_profile(lambda trace: None, cuda=True):
            torch.zeros(1, device="cuda")
        for _ in range(20):  # it goes at the end of one of the next calls, as soon as a thread of torch's is ready
            torch.cuda.synchronize()
            time.sleep(1e-3)
    finally:
        del os.environ[_DETACH]


@contextmanager
def _without_its_warning() -> Iterator[None]:
    """Some versions tell at every profile that it holds one cycle, which is what is wanted. What runs inside the
    profiler is somebody else's, and warns as it likes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        yield


@contextmanager
def told_of_other_profilers(begins: Callable[[], None]) -> Iterator[None]:
    """`begins` is called before somebody prepares or starts a profiler of torch in this thread: there can be one."""
    here = threading.get_ident()
    with ExitStack() as stack:
        for module, name in _STARTS:
            place = sys.modules.get(module)
            original = getattr(place, name, None)
            if original is None:
                continue
            ours = _telling(original, begins, here)
            setattr(place, name, ours)
            stack.callback(_put_back, place, name, ours, original)
        yield


def _telling(original: Callable[..., Any], begins: Callable[[], None], thread: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            begins()
        return original(*args, **kwargs)

    return start


def _put_back(place: Any, name: str, ours: object, original: object) -> None:
    if getattr(place, name) is ours:  # else somebody else has put his own there
        setattr(place, name, original)


def _exported(profiler: Any) -> StepTrace:
    """The file has everything (the in-memory events have no grid in all versions), and is faster to read than they
    are."""
    with tempfile.TemporaryDirectory(prefix="rooflight-") as folder:
        path = Path(folder) / "trace.json"
        try:
            profiler.export_chrome_trace(str(path))
            content = path.read_bytes()
        except (OSError, RuntimeError) as error:
            raise CannotMeasure(
                "write-failed",
                f"torch's profiler could not write its trace below {tempfile.gettempdir()} ({error}): is the disk "
                "full? TMPDIR names another place",
            ) from error
    return decode(content, source="the trace of torch's profiler")
