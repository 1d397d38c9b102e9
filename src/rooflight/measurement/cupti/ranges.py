"""Counting inside ranges: CUPTI's range profiler around our own pieces of a step, or around every kernel.

    with RangeProfiler(["dram__bytes_read.sum"], max_ranges=2) as profiler:
        done = False
        while not done:                  # one pass for each group of counters the hardware can count together
            profiler.start()
            profiler.push("conv1"); ...; profiler.pop()
            profiler.push("conv2"); ...; profiler.pop()
            done = profiler.stop()
        for counted in profiler.results(): ...

Ranges of the same name are added up by CUPTI: give each its own name. Passes need not follow each other: a profiler
may rest after any pass while others count on the same GPU, and go on later.
"""

from __future__ import annotations

import ctypes as C
import functools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from rooflight.errors import CannotMeasure
from rooflight.hardware.counter_tables import byte_counters
from rooflight.measurement.cupti import cupti, gpu, structs

_AUTO_RANGE, _USER_RANGE = 1, 2
_APPLICATION_REPLAY, _USER_REPLAY = 1, 3
_MIN_LEVEL = 1


@dataclass(frozen=True)
class CountedRange:
    """What was counted in one range. A metric that could not be evaluated is left out."""

    name: str
    values: dict[str, float]


class _RangeSession:
    """The range profiler of one context. CUPTI has one for a context, so those who count on it take turns."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.users = 0
        self.handle: int | None = None
        self.owner: RangeProfiler | None = None
        self._configured = False

    def join(self) -> int:
        handle = self._enabled()
        self.users += 1
        return handle

    def for_a_configuration(self) -> int:
        """A profiler that was never configured: a second configuration of the same one loses passes (run, CUDA 13)."""
        if self._configured:
            self._disable()
        self._configured = True
        return self._enabled()

    def leave(self) -> None:
        self.users -= 1
        if not self.users and self.handle is not None:
            self.owner, self._configured = None, False
            self._disable()

    def _enabled(self) -> int:
        if self.handle is None:
            self.handle = cupti.load().call(structs.Enable, ctx=self.context).pRangeProfilerObject
        assert self.handle is not None
        return self.handle

    def _disable(self) -> None:
        held, self.handle = self.handle, None
        cupti.load().call(structs.Disable, pRangeProfilerObject=held)


@functools.cache
def _session(context: int) -> _RangeSession:
    return _RangeSession(context)


class RangeProfiler:
    """Counts the given metrics in up to `max_ranges` ranges. A context manager; nothing happens before `with`.

    `per_kernel`: CUPTI opens a range around every kernel by itself and numbers them in the order of launch; `push` and
    `pop` are not used. In both modes the caller repeats the work, once for each pass.
    `interleaved`: every pass is configured and read out by itself (application replay), for profilers that alternate.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        max_ranges: int,
        per_kernel: bool = False,
        device: int = 0,
        interleaved: bool = False,
    ) -> None:
        self.metrics = tuple(dict.fromkeys(metrics))
        self.max_ranges = max_ranges
        self.passes = 0
        """How many passes the metrics take; known inside `with`."""
        self._per_kernel = per_kernel
        self._interleaved = interleaved
        self._index = device
        self._names = cupti.strings(self.metrics)
        self._library: cupti.Cupti
        self._host: cupti.Host | None = None
        self._session: _RangeSession | None = None
        self._running = False
        self._reset()

    def _reset(self) -> None:
        self._open = 0
        self._next_pass = 0
        self._next_level = _MIN_LEVEL
        self._complete = False
        self._decoded = True
        self._dropped = 0

    # Opening and closing.

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        on = gpu.device(self._index)
        self._library = cupti.load()
        self._context = on.context
        self._host = cupti.Host(on.chip, availability=on.availability)
        self._config = self._host.config_image(self.metrics)
        self.passes = self._host.passes_of(self._config)
        session = _session(on.context)
        self._handle = session.join()
        self._session = session
        size = self._call(
            structs.GetCounterDataSize,
            pMetricNames=self._names,
            numMetrics=len(self.metrics),
            maxNumOfRanges=self.max_ranges,
            maxNumRangeTreeNodes=self.max_ranges,
        ).counterDataSize
        self._image = (C.c_uint8 * size)()
        self._empty_image()
        # Thousands of ranges are opened in a step: their structs are made once.
        self._push = self._library.new(structs.PushRange, pRangeProfilerObject=self._handle)
        self._pop = self._library.new(structs.PopRange, pRangeProfilerObject=self._handle)
        self._push_pointer, self._pop_pointer = C.byref(self._push), C.byref(self._pop)
        self._push_call = self._library.function(structs.PushRange.call)
        self._pop_call = self._library.function(structs.PopRange.call)

    def _call(self, kind: type[structs.Params], **fields: Any) -> structs.Params:
        return self._library.call(kind, pRangeProfilerObject=self._handle, **fields)

    def _empty_image(self) -> None:
        self._call(
            structs.CounterDataImageInitialize,
            counterDataSize=len(self._image),
            pCounterData=C.cast(self._image, C.c_void_p),
        )

    def close(self) -> None:
        """Give everything back; whatever fails, the rest is still released."""
        try:
            if self._running:
                self._halt()
        finally:
            try:
                if self._session is not None:
                    left, self._session = self._session, None
                    if left.owner is self:
                        left.owner = None
                    left.leave()
            finally:
                if self._host is not None:
                    self._host.close()

    # One pass.

    def start(self) -> None:
        """Begin a pass; goes on after the last one, also when others have counted since."""
        session = self._session
        assert session is not None, "a RangeProfiler counts inside `with`"
        if self._complete:
            raise RuntimeError("all passes are done: a new RangeProfiler counts anew")
        if session.owner is not None and session.owner._running:
            raise CannotMeasure(
                "two-profilers", "ranges of two profilers cannot be open at the same time: close the first one before"
            )
        if session.owner is not self or self._interleaved:
            if session.owner is not None:
                session.owner._decode()
            self._configure()
            session.owner = self
        if self._interleaved:
            self._image_before = bytes(self._image)
        self._call(structs.Start)
        self._running = True

    def _configure(self) -> None:
        # A first pass is number 0 on the lowest level. To go on after another configuration, CUPTI wants the pass and
        # the level that `Stop` named last, with the same counter image, into which the passes so far were decoded.
        assert self._session is not None
        self._handle = self._session.for_a_configuration()
        self._push.pRangeProfilerObject = self._pop.pRangeProfilerObject = self._handle
        self._call(
            structs.SetConfig,
            configSize=len(self._config),
            pConfig=C.cast(self._config, C.c_void_p),
            counterDataImageSize=len(self._image),
            pCounterDataImage=C.cast(self._image, C.c_void_p),
            range=_AUTO_RANGE if self._per_kernel else _USER_RANGE,
            replayMode=_APPLICATION_REPLAY if self._interleaved else _USER_REPLAY,
            maxRangesPerPass=self.max_ranges,
            numNestingLevels=1,
            minNestingLevel=_MIN_LEVEL,
            passIndex=self._next_pass,
            targetNestingLevel=self._next_level,
        )

    def push(self, name: str) -> None:
        """Open a range."""
        self._push.pRangeName = name.encode()
        code = self._push_call(self._push_pointer)
        if code:
            self._library.check(structs.PushRange.call, code)
        self._open += 1

    def pop(self) -> None:
        """Close the range opened last."""
        code = self._pop_call(self._pop_pointer)
        if code:
            self._library.check(structs.PopRange.call, code)
        self._open -= 1

    def stop(self) -> bool:
        """End the pass, when the GPU is done with it; true when it was the last one."""
        gpu.synchronize(self._context)
        stopped = self._call(structs.Stop)
        self._running = False
        self._next_pass, self._next_level = stopped.passIndex, stopped.targetNestingLevel
        self._complete = bool(stopped.isAllPassSubmitted)
        self._decoded = False
        if self._interleaved:
            self._decode()
        return self._complete

    def abort(self) -> None:
        """Leave a pass in which something went wrong: `start` does it again. Passes before it are lost too, unless
        the profiler is `interleaved`.
        """
        self._halt()
        session = self._session
        if session is not None and session.owner is self:
            session.owner = None
            # Drains the GPU's buffer, so that nothing of this is found by the next pass of anyone.
            self._try(structs.DecodeData)
        if self._interleaved:
            C.memmove(self._image, self._image_before, len(self._image))
            self._decoded = True
        else:
            self._reset()
            with suppress(CannotMeasure):  # what led here is the error to report
                self._empty_image()

    def _halt(self) -> None:
        """Close what is open and stop, whatever the state: the error that led here is the one to report."""
        while self._open:
            self._open -= 1
            self._pop_call(self._pop_pointer)
        if self._running:
            self._running = False
            self._try(structs.Stop)

    def _try(self, kind: type[structs.Params]) -> None:
        params = self._library.new(kind, pRangeProfilerObject=self._handle)
        self._library.function(kind.call)(C.byref(params))

    # Reading.

    def _decode(self) -> None:
        if not self._decoded:
            decoded = self._call(structs.DecodeData)
            self._dropped += decoded.numOfRangeDropped
            self._decoded = True

    def results(self) -> list[CountedRange]:
        """What all passes together counted, one entry a range, in CUPTI's order."""
        if not self._complete:
            raise CannotMeasure(
                "passes-missing", f"only {self._next_pass} of {self.passes} passes were run: the work must be repeated"
            )
        self._decode()
        if self._dropped:
            raise CannotMeasure(
                "ranges-dropped",
                f"{self._dropped} ranges did not fit into the counters' memory, which has room for {self.max_ranges}: "
                "the step ran more ops or kernels than when they were counted",
            )
        assert self._host is not None
        place = {"pCounterDataImage": C.cast(self._image, C.c_void_p), "counterDataImageSize": len(self._image)}
        count = self._library.call(structs.GetCounterDataInfo, **place).numTotalRanges
        counted = []
        for index in range(count):
            info = self._library.call(structs.GetRangeInfo, **place, rangeIndex=index, rangeDelimiter=b"/")
            values = self._host.evaluate(self._image, index, names=self._names)
            evaluated = {name: value for name, value in zip(self.metrics, values, strict=True) if not math.isnan(value)}
            counted.append(CountedRange(name=info.rangeName.decode(), values=evaluated))
        return counted


def probe(index: int = 0, *, deep: bool = False) -> str:
    """Can counters be read here? Gives the chip's name, or raises `CannotMeasure` with the reason and the remedy.

    `deep` also opens and ends a session with nothing in it: permission, and other profilers, show only there.
    """
    chip = gpu.device(index).chip
    if deep:
        # DRAM is what a measurement asks first; chips that do not count it have L2. The CUDA cores' counters would not
        # do: those are counted by instrumented code.
        counter = byte_counters(("dram", "l2"), chip=chip)[0]
        with RangeProfiler([counter.metric], max_ranges=1, device=index) as profiler:
            profiler.start()
            profiler.push("nothing")
            profiler.pop()
            profiler.stop()
    return chip
