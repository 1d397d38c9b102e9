"""Whose turn it is: what each execution of a region is used for, so that measuring one never disturbs another.

The rules are those of the package. Nothing here lets an error of measuring out into the program: counters that fail are
given up, with their reason; a clock or an allocator that fails costs that one execution.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

from rooflight.errors import RooflightError
from rooflight.machine.installed_gpus import cuda_is_running
from rooflight.measurement.regions import plain, settings
from rooflight.measurement.regions.counters import CounterPlan
from rooflight.measurement.regions.execution_times import PartTimes
from rooflight.measurement.regions.ledger import keep_until_exit, save_in_between
from rooflight.measurement.regions.store import PLAIN_EXECUTIONS, PlainExecution, Purpose, Region

_CAPTURED = (
    "an execution during the capture of a CUDA graph was not measured: put the region around the replay of the graph"
)
_PROFILED = "executions under torch's profiler were not measured"
_MOST_SPANS = 4096
"""So many executions of inner regions are timed in one of an outer region on a GPU: each keeps two events."""


class RegionProcess:
    """What all regions of a process share. `lock` guards it and the pieces of every region; it is never held long."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may come here while its own thread holds it
        self.settings = settings.read()
        self.failure: str | None = None
        """What went wrong with the counters where they were wanted; they are not tried again."""
        self.measuring: RegionExecution | None = None
        self.firsts: list[RegionExecution] = []
        """First executions that are running."""
        self.open: dict[int, list[RegionExecution]] = {}
        """By thread: the executions that are running, outermost first."""
        self.program = ProgramTime()
        self._regions: dict[str, Region] = {}

    def all_regions(self) -> tuple[Region, ...]:
        with self.lock:
            return tuple(self._regions.values())

    def region(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            with self.lock:
                if not self._regions:
                    # Read as late as can be: programs set their rank themselves too.
                    self.settings = settings.read()
                    keep_until_exit(self)
                region = self._regions.setdefault(name, Region(name))
        return region

    @property
    def no_counters(self) -> str | None:
        return self.settings.no_counters or self.failure


class ProgramTime:
    """From the first region of a program to the end of its last, in the thread of the first: others run beside it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._began_ns: int | None = None
        self._ended_ns = 0
        self._inside_s: dict[str, float] = {}

    def begin(self) -> None:
        if self._began_ns is None:
            self.thread, self._began_ns = threading.get_ident(), plain.clock_ns()

    def end(self, name: str, time_s: float) -> None:
        """A region ended that was in no other."""
        self._ended_ns = plain.clock_ns()
        self._inside_s[name] = self._inside_s.get(name, 0.0) + time_s

    @property
    def parts(self) -> PartTimes:
        parts = PartTimes()
        if self._inside_s and self._began_ns is not None:
            parts.add((self._ended_ns - self._began_ns) / 1e9, self._inside_s)
        return parts


_process = RegionProcess()


def process() -> RegionProcess:
    return _process


def _forget() -> None:
    """A forked child begins anew: what its parent measured is the parent's to tell."""
    global _process
    _process = RegionProcess()


if hasattr(os, "register_at_fork"):  # Windows forks no processes
    os.register_at_fork(after_in_child=_forget)


class RegionExecution:
    """One execution of a region, and what it is used for; `purpose` None: it is only counted."""

    def __init__(self, region: Region, *, home: RegionProcess, around: RegionExecution | None, on_gpu: bool) -> None:
        self.region = region
        self.home = home
        self.around = around
        """The execution of another region that it is directly inside."""
        self.on_gpu = on_gpu
        self.thread = threading.get_ident()
        self.purpose: Purpose | None = None
        self.disturbed = False
        self.inside_s: dict[str, float] | None = {}
        """What was spent in regions inside, by name; `None`: not all of it is known."""
        self.spans: list[tuple[RegionExecution, plain.SpanTimer]] = []
        """Executions inside this one, to be read when the GPU has been waited for; those that ended first, first."""
        self._timer: plain.PlainTimer | None = None
        self._span: plain.SpanTimer | None = None

    def start(self) -> None:
        pieces = self.region.pieces
        if self.purpose == "counters":
            self._begin_pass()
        elif self.purpose == "span":
            self._span = plain.SpanTimer()
            self._span.start()
        elif self.purpose is not None or not self.on_gpu:
            close = self.purpose is not None and len(pieces.plain) < PLAIN_EXECUTIONS
            peak = self.purpose == "plain" and not pieces.plain
            timer = plain.PlainTimer(on_gpu=self.on_gpu, peak=peak, memory=close)
            timer.start()
            self._timer = timer

    def elapsed_s(self) -> float | None:
        """What the program spent in it up to now, whatever it is used for; `None` on a GPU, where a clock of the host
        does not tell that."""
        return self._timer.elapsed_s() if self._timer is not None and not self.on_gpu else None

    def _begin_pass(self) -> None:
        torch: Any = sys.modules["torch"]
        pieces, index = self.region.pieces, torch.cuda.current_device()
        if pieces.plan is None:
            pieces.plan = CounterPlan(index, levels=self.home.settings.levels)
        if pieces.plan.device != index:
            self.purpose = None
            pieces.remarks[f"counters are those of cuda:{pieces.plan.device} alone: it also ran on another GPU"] = None
            return
        torch.cuda.synchronize()
        pieces.plan.begin(autocast=plain.autocast())

    def finish(self) -> PlainExecution | None:
        """Ends the measurement of an execution that went well."""
        if self._span is not None:
            self._span.stop()
            self._outer().spans.append((self, self._span))
        elif self._timer is not None and self.purpose is not None:
            result = self._timer.finish()
            self._read_spans()
            return result
        plan = self.region.pieces.plan
        if self.purpose == "counters" and plan is not None:
            torch: Any = sys.modules["torch"]
            torch.cuda.synchronize()
            plan.end()
        return None

    def _outer(self) -> RegionExecution:
        """The measured execution that a span is in."""
        outer = self
        while outer.around is not None and outer.purpose == "span":
            outer = outer.around
        return outer

    def _read_spans(self) -> None:
        """The GPU has been waited for. Each knows all that was inside it when it is added to what is around it."""
        try:
            for execution, span in self.spans:
                execution.keep_parts(span.span_s(), execution.region.pieces.parts)
                execution.tell_around(span.span_s())
        except RuntimeError:  # begun on one GPU and ended on another
            self.inside_s = None

    def keep_parts(self, time_s: float | None, parts: PartTimes) -> None:
        if self.inside_s is not None and time_s is not None:
            parts.add(time_s, self.inside_s)

    def tell_around(self, time_s: float) -> None:
        """So much of the execution around it was spent in this one."""
        name = self.region.name
        if self.around is None:
            if self.thread == self.home.program.thread:
                self.home.program.end(name, time_s)
        elif self.around.inside_s is not None:
            self.around.inside_s[name] = self.around.inside_s.get(name, 0.0) + time_s

    def abandon(self) -> None:
        """Ends the measurement of an execution of which nothing is kept. What goes wrong here is not told as well."""
        if self.purpose == "span" and self.around is not None:
            self.around.inside_s = None
        plan = self.region.pieces.plan
        if self.purpose == "counters" and plan is not None:
            with suppress(Exception):
                torch: Any = sys.modules["torch"]
                torch.cuda.synchronize()
            with suppress(Exception):
                plan.abort()


def begin(region: Region) -> RegionExecution | None:
    """`None`: it runs inside an execution of the same region, and is part of that."""
    home, thread = _process, threading.get_ident()
    with home.lock:
        running = home.open.setdefault(thread, [])
        if any(outer.region is region for outer in running):
            return None
        on_gpu = region.pieces.done or cuda_is_running()  # on a CPU it is never done
        execution = RegionExecution(region, home=home, around=running[-1] if running else None, on_gpu=on_gpu)
        execution.purpose = _purpose(execution)
        if on_gpu and execution.purpose in ("plain", "counters"):
            home.measuring = execution
            for other in home.firsts:
                other.disturbed = True
        elif execution.purpose == "first":
            home.firsts.append(execution)
        running.append(execution)
        home.program.begin()
    try:
        execution.start()
        if execution.purpose is None:
            _leave(execution)
    except Exception as error:
        _fail(execution, error)
    except BaseException:  # Ctrl-C while it was being prepared: nobody will call `end`
        execution.abandon()
        _leave(execution)
        _close(execution)
        raise
    return execution


def end(execution: RegionExecution, *, failed: bool) -> None:
    """`failed`: an exception is on its way through; nothing of this execution is kept, and nothing is added to it."""
    if execution.home is not _process:
        return  # forked inside the region: the parent will end it
    spent_s = execution.elapsed_s()
    result: PlainExecution | None = None
    over = False
    try:
        if failed:
            execution.abandon()
        else:
            result = execution.finish()
        over = True
    except Exception as error:
        _fail(execution, error)
        over = True
    finally:
        if not over:  # Ctrl-C while it was being read out
            execution.abandon()
        _leave(execution)
        with execution.home.lock:
            _close(execution)
            if spent_s is not None:
                execution.tell_around(spent_s)
            _note(execution, result, failed=failed or not over)
    if execution.purpose in (None, "span") or failed or execution.home.measuring is not None:
        return
    if save_in_between():
        for other in tuple(execution.home.firsts):
            other.disturbed |= other.on_gpu


def _purpose(execution: RegionExecution) -> Purpose | None:
    region, home = execution.region, execution.home
    pieces = region.pieces
    if home.measuring is not None and execution.on_gpu:
        if not region.complete:
            home.measuring.region.pieces.waiting.add(region)
        return _inside(execution, home.measuring)
    if pieces.done:
        return None
    if execution.on_gpu and plain.capturing():
        pieces.remarks[_CAPTURED] = None
        return None
    if _a_step_is_measured():
        return None
    if plain.profiling():
        pieces.remarks[_PROFILED] = None
        return None
    if not pieces.executions or (execution.on_gpu and not pieces.warm_on_gpu):
        return "first"
    if not execution.on_gpu:
        return "plain"  # reading a clock disturbs nobody
    return _turn(region, home)


def _inside(execution: RegionExecution, measured: RegionExecution) -> Purpose | None:
    """Two events, if it is in an execution that is timed; else nothing, since that would disturb what is measured."""
    around = execution.around
    if around is None or (around is not measured and around.purpose != "span") or measured.purpose != "plain":
        return None
    if len(measured.spans) < _MOST_SPANS and not plain.capturing() and not plain.profiling():
        return "span"
    around.inside_s = None
    return None


def _turn(region: Region, home: RegionProcess) -> Purpose | None:
    """What a region on a GPU needs next, one thing an execution."""
    pieces = region.pieces
    if not pieces.plain:
        return "plain"
    if pieces.no_counters is None:
        pieces.no_counters = home.no_counters
        if pieces.no_counters is None and (pieces.plan is None or not pieces.plan.complete):
            return "counters"
    if any(not other.complete for other in pieces.waiting):
        return None  # it has all it needs: theirs is the turn
    return "plain"


def _a_step_is_measured() -> bool:
    """By `rooflight run --ops`, which has its turn first."""
    schedule: Any = sys.modules.get("rooflight.measurement.scripts.schedule")
    return schedule is not None and bool(schedule.a_step_is_measured())


def _fail(execution: RegionExecution, error: Exception) -> None:
    """Measuring went wrong: the program goes on without."""
    pieces = execution.region.pieces
    text = " ".join(str(error).split())
    if not isinstance(error, RooflightError):
        text = f"measuring failed ({type(error).__name__}: {text})"
    with execution.home.lock:
        if execution.purpose == "counters":
            pieces.no_counters = execution.home.failure = text
        else:
            pieces.remarks[f"time and memory of one execution: {text}"] = None
    execution.abandon()
    if execution.purpose == "counters" and pieces.plan is not None:
        with suppress(Exception):
            pieces.plan.close()
    _leave(execution)
    execution.purpose = None


def _leave(execution: RegionExecution) -> None:
    """Make room for the next one to be measured."""
    home = execution.home
    with home.lock:
        if home.measuring is execution:
            home.measuring = None
        if execution in home.firsts:
            home.firsts.remove(execution)


def _close(execution: RegionExecution) -> None:
    """It is not running any more. A generator may be closed after what was entered later."""
    home = execution.home
    with home.lock:
        running = home.open.get(execution.thread, [])
        if execution in running:
            running.remove(execution)
        if not running:
            home.open.pop(execution.thread, None)


def _note(execution: RegionExecution, result: PlainExecution | None, *, failed: bool) -> None:
    """Keep what the execution told."""
    region, pieces = execution.region, execution.region.pieces
    if failed:
        pieces.failures += 1
        return
    pieces.executions += 1
    if not pieces.done and not pieces.warm_on_gpu and cuda_is_running():
        # What was measured before the GPU was in use is another thing.
        pieces.forget_times()
        pieces.warm_on_gpu = True
        result = result if execution.on_gpu else None
    if result is None:
        return
    if execution.purpose == "first":
        pieces.first = None if execution.disturbed else result
        if not execution.on_gpu:
            execution.keep_parts(result.wall_time_s, pieces.first_parts)
    elif execution.purpose == "plain":
        pieces.times.add(result.wall_time_s)
        execution.keep_parts(result.gpu_span_s if execution.on_gpu else result.wall_time_s, pieces.parts)
        if len(pieces.plain) < PLAIN_EXECUTIONS:
            pieces.plain.append(result)
        pieces.done = execution.on_gpu and region.complete and len(pieces.plain) >= PLAIN_EXECUTIONS
