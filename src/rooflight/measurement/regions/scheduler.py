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
from rooflight.measurement.regions.ledger import keep_until_exit, save_in_between
from rooflight.measurement.regions.store import PLAIN_EXECUTIONS, PlainExecution, Purpose, Region

_CAPTURED = (
    "an execution during the capture of a CUDA graph was not measured: put the region around the replay of the graph"
)
_PROFILED = "executions under torch's profiler were not measured"


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

    def __init__(self, region: Region, *, home: RegionProcess, on_gpu: bool) -> None:
        self.region = region
        self.home = home
        self.on_gpu = on_gpu
        self.thread = threading.get_ident()
        self.purpose: Purpose | None = None
        self.disturbed = False
        self._plain: plain.PlainTimer | None = None

    def start(self) -> None:
        pieces = self.region.pieces
        if self.purpose == "counters":
            self._begin_pass()
        elif self.purpose is not None:
            peak = self.purpose == "plain" and not pieces.plain
            self._plain = plain.PlainTimer(on_gpu=self.on_gpu, peak=peak)
            self._plain.start()

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
        if self._plain is not None:
            return self._plain.finish()
        plan = self.region.pieces.plan
        if self.purpose == "counters" and plan is not None:
            torch: Any = sys.modules["torch"]
            torch.cuda.synchronize()
            plan.end()
        return None

    def abandon(self) -> None:
        """Ends the measurement of an execution of which nothing is kept. What goes wrong here is not told as well."""
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
        if thread in region.pieces.running:
            return None
        execution = RegionExecution(region, home=home, on_gpu=not region.pieces.done and cuda_is_running())
        execution.purpose = _purpose(region, home, on_gpu=execution.on_gpu)
        if execution.purpose in ("plain", "counters"):
            home.measuring = execution
            for other in home.firsts:
                other.disturbed = True
        elif execution.purpose == "first":
            home.firsts.append(execution)
        region.pieces.running.add(thread)
    if execution.purpose is not None:
        try:
            execution.start()
            if execution.purpose is None:
                _leave(execution)
        except Exception as error:
            _fail(execution, error)
        except BaseException:  # Ctrl-C while it was being prepared: nobody will call `end`
            execution.abandon()
            _leave(execution)
            with home.lock:
                region.pieces.running.discard(thread)
            raise
    return execution


def end(execution: RegionExecution, *, failed: bool) -> None:
    """`failed`: an exception is on its way through; nothing of this execution is kept, and nothing is added to it."""
    if execution.home is not _process:
        return  # forked inside the region: the parent will end it
    if execution.purpose is None:
        with execution.home.lock:
            execution.region.pieces.running.discard(execution.thread)
            _note(execution, None, failed=failed)
        return
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
            execution.region.pieces.running.discard(execution.thread)
            _note(execution, result, failed=failed or not over)
    if not failed and execution.home.measuring is None and save_in_between():
        for other in tuple(execution.home.firsts):
            other.disturbed = True


def _purpose(region: Region, home: RegionProcess, *, on_gpu: bool) -> Purpose | None:
    pieces = region.pieces
    if pieces.done:
        return None
    if home.measuring is not None:
        if not region.complete:
            home.measuring.region.pieces.waiting.add(region)
        return None
    if on_gpu and plain.capturing():
        pieces.remarks[_CAPTURED] = None
        return None
    if plain.profiling():
        pieces.remarks[_PROFILED] = None
        return None
    if not pieces.executions or (on_gpu and not pieces.warm_on_gpu):
        return "first"
    if not pieces.plain:
        return "plain"
    if on_gpu and pieces.no_counters is None:
        pieces.no_counters = home.no_counters
        if pieces.no_counters is None and (pieces.plan is None or not pieces.plan.complete):
            return "counters"
    if any(not other.complete for other in pieces.waiting):
        return None  # it has all it needs: theirs is the turn
    return "plain"


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


def _note(execution: RegionExecution, result: PlainExecution | None, *, failed: bool) -> None:
    """Keep what the execution told."""
    region, pieces = execution.region, execution.region.pieces
    if failed:
        pieces.failures += 1
        return
    pieces.executions += 1
    if not pieces.done and not pieces.warm_on_gpu and cuda_is_running():
        # What was measured before the GPU was in use is another thing.
        pieces.warm_on_gpu, pieces.first, pieces.plain = True, None, []
        result = result if execution.on_gpu else None
    if result is None:
        return
    if execution.purpose == "first":
        pieces.first = None if execution.disturbed else result
    elif execution.purpose == "plain":
        pieces.plain.append(result)
        pieces.done = region.complete and len(pieces.plain) >= PLAIN_EXECUTIONS
