"""What each step of a running script is used for; see the package."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from rooflight.errors import BadInput, CannotMeasure, RooflightError
from rooflight.ledger import Note
from rooflight.measurement.ranks import shared_store
from rooflight.measurement.scripts.program_frame import program_frame
from rooflight.measurement.scripts.settings import OPS, STOP_AFTER, parse_steps
from rooflight.measurement.scripts.status import Doing, Found, ScriptStatus, StatusFile
from rooflight.measurement.scripts.steps import Cycle, StepFinder

if TYPE_CHECKING:
    from rooflight.ledger import Ledger, Value
    from rooflight.measurement.cupti.op_passes import OpCounterPasses
    from rooflight.measurement.live import StepWatch

_ATTEMPTS = 3
"""Steps that are recorded at most, until one is like those that were timed."""
_STOP_KEY = "rooflight/stop after step"
_EAGER = Note(
    "compiled-code-ran-eagerly",
    "compiled code ran eagerly in the recorded step: the ops are those of eager code, the step's time is not",
)
_ENDED = Note("ended-early", "an error ended the program in the step that was recorded: what came before is here")
_PUT_OFFS = 5
"""Steps one after the other that may not be measured, because of what the program does in them."""
_WAITS = 20
"""Steps that optimizers which have not stepped are waited for: a critic may step often before its generator does."""


_runs: list[ScriptRun] = []
"""The one of this process, where there is one."""


def begin(began_s: float) -> None:
    """Called in each process of the program that has imported torch; the clock stood at `began_s` before."""
    folder, asked = os.environ.get("ROOFLIGHT_RUN"), os.environ.get(OPS)
    if folder and asked and os.path.isdir(folder):  # the program may outlive whoever started it
        _runs.append(ScriptRun(Path(folder), asked, stop_after=bool(os.environ.get(STOP_AFTER))))
        _runs[0].open(began_s)


def a_step_is_measured() -> bool:
    """Then nothing else may be: not the program's regions either."""
    return any(run.status.doing in ("timed", "recorded", "counted") for run in _runs)


class ScriptRun:
    """One process of the program."""

    def __init__(self, folder: Path, asked: str, *, stop_after: bool) -> None:
        self._folder = folder
        self._range = parse_steps(asked)
        self._stop_after = stop_after
        self._finder = StepFinder(partial(self._guarded, self._stepped), partial(self._guarded, self._called))
        self.status = ScriptStatus(pid=os.getpid(), steps_asked=asked)
        self._file = StatusFile(folder)
        self._thread: int | None = None
        self._on_gpu = False
        self._profiled = False
        """Is CUPTI attached since?"""
        self._begin_anew("")

    def _begin_anew(self, found: Found) -> None:
        """Another kind of step than was thought: nothing of the others counts."""
        self._cycle = Cycle()
        self._calls = 0
        self._usual_calls: list[int] = []
        self._times: list[float] = []
        self._watch: StepWatch | None = None
        self._passes: OpCounterPasses | None = None
        self._ledger: Ledger | None = None
        self._put_offs = self._waited = 0
        self._begun = perf_counter()
        self._ops_path.unlink(missing_ok=True)
        old = self.status
        self.status = ScriptStatus(pid=old.pid, steps_asked=old.steps_asked, found=found, added_s=old.added_s)

    @property
    def _ops_path(self) -> Path:
        return self._folder / f"ops-{self._file.name}.json"

    def open(self, began_s: float) -> None:
        self.status.added_s = perf_counter() - began_s
        self._file.write(self.status)
        self._finder.open()
        atexit.register(self._guarded, self._at_exit)
        os.register_at_fork(after_in_child=partial(self._guarded, self._forked))

    def close(self) -> None:
        """Let the program go on by itself."""
        self._finder.close()
        self._detach()

    def _detach(self) -> None:
        if not self._profiled:
            return
        self._profiled = False
        with suppress(Exception):  # it is only slower otherwise
            from rooflight.measurement.profiler_trace import a_profiler_is_busy, detach_profiler

            if not a_profiler_is_busy():
                detach_profiler()

    def _forked(self) -> None:
        """What the parent measures is the parent's; a child may be a worker of a data loader, or train itself."""
        self._profiled = False
        if self._watch is not None:  # of another thread, which is not here
            self.close()
        self._file, self._thread = StatusFile(self._folder), None
        self.status = ScriptStatus(pid=os.getpid(), steps_asked=self.status.steps_asked)
        self._begin_anew("")

    def _guarded(self, tell: Callable[..., None], *args: Any) -> None:
        """Nothing that goes wrong here is the program's business."""
        try:
            tell(*args)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        kind = "" if isinstance(error, RooflightError) else f"{type(error).__name__}: "
        self.status.failure = " ".join(f"{kind}{error}".split())
        with suppress(Exception):
            self._abandon()
        self.close()
        with suppress(Exception):
            self._file.write(self.status)

    # What the program does.

    def _called(self, model: nn.Module) -> None:
        self._calls += 1
        if self.status.found == "train" or (torch.is_grad_enabled() and model.training):
            return  # the latter most likely begins a step of training
        if next(model.parameters(), None) is None or not self._is_ours():
            return  # a loss, or what prepares data
        if not self.status.found:
            self._begin_anew("infer")
        self._turn(model)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._is_ours():
            return
        if self.status.found != "train":
            self._abandon()
            self._begin_anew("train")
            self._finder.open_models()
        self._turn(optimizer)

    def _is_ours(self) -> bool:
        if self._thread is None:
            self._thread = threading.get_ident()
        elif self._thread != threading.get_ident():
            self._note(Note("other-threads", "a second thread ran steps too: only those of the first were measured"))
            return False
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            self._note(
                Note(
                    "captured-steps",
                    "steps that were captured into a CUDA graph were not measured, nor are its replays seen",
                )
            )
            return False
        return torch.utils.data.get_worker_info() is None

    def _turn(self, one: object) -> None:
        if self.status.steps and not self._cycle.knows(one) and not self.status.recorded:
            self._another_ends_steps(is_late=self._finder.optimizers.is_late(one))
        if self._cycle.closes(one):
            self._step_ended()

    def _another_ends_steps(self, *, is_late: bool) -> None:
        if is_late:  # in place of those before it: the next fold, another part of the program
            self._cycle = Cycle()
            if self._watch is not None and self._put_offs < _PUT_OFFS:
                self._put_off("another optimizer took over in it")
            return
        # Several take turns: what was taken for a step was a part of one.
        self._abandon()
        self._times, self._usual_calls, self.status.timed, self.status.steps = [], [], [], 0
        self.status.doing = "nothing"

    # Steps.

    def _step_ended(self) -> None:
        status = self.status
        status.steps += 1
        if status.stopped or self._is_another_rank():
            self._end_together()
            return
        if self._on_gpu and status.doing != "nothing":
            torch.cuda.synchronize()
        ended = perf_counter()
        self._finish(ended - self._begun)
        self._calls = 0
        status.doing = self._next()
        finished = perf_counter()
        status.added_s += finished - ended
        self._file.write(status)
        self._begin(status.doing)
        self._begun = perf_counter()
        status.added_s += self._begun - finished

    def _is_another_rank(self) -> bool:
        """Programs say late which of several processes they are."""
        from rooflight.measurement.ranks import ALONE, process_rank

        try:
            here = process_rank()
        except BadInput:
            here = ALONE
        rank, world = here.rank, here.world
        if shared_store() is not None:
            rank, world = dist.get_rank(), dist.get_world_size()
        self.status.rank, self.status.world = rank, world
        return rank > 0

    def _next(self) -> Doing:
        """What the step that begins now is used for."""
        status, steps = self.status, self._range
        coming = status.steps + 1
        if coming < steps.first:
            return "nothing"
        if steps.last is not None and coming > steps.last:
            return "over"
        if len(self._times) < steps.timed:
            return "timed"
        if self._ledger is None:
            return "recorded" if self._is_whole(coming) else "nothing"
        return "counted" if self._passes is not None and not self._passes.complete else "over"

    def _begin(self, doing: Doing) -> None:
        if doing == "timed" and not self._times:
            import rooflight.measurement.live  # noqa: F401  it takes a moment, which is no step's

        self._on_gpu = torch.cuda.is_initialized()
        if doing in ("recorded", "counted"):
            self._begin_to_watch()
        elif doing == "over":
            self._over()
        if self._on_gpu and doing != "nothing":
            torch.cuda.synchronize()

    def _is_whole(self, coming: int) -> bool:
        """Optimizers that have not stepped yet may be a part of the step."""
        waiting = self._finder.optimizers.waiting() if self.status.found == "train" else []
        if not waiting:
            return True
        reason = f"another optimizer ({', '.join(waiting)}) had not stepped yet"
        if self._waited < _WAITS and coming != self._range.last:
            self._waited += 1
            self.status.put_off = reason
            return False
        self._note(
            Note("part-of-a-step", f"{reason} when the step was recorded: where it does, this is a part of a step")
        )
        return True

    def _begin_to_watch(self) -> None:
        from rooflight.measurement.live import StepWatch
        from rooflight.measurement.profiler_trace import a_profiler_is_busy
        from rooflight.measurement.recording_slot import AlreadyRecording

        if a_profiler_is_busy() and self._put_offs < _PUT_OFFS:
            self._put_off("its own profiler ran")
            return
        watch = StepWatch(program_frame(), gives_way=partial(self._guarded, self._put_off))
        if self._passes is not None:
            self._passes.begin()
        try:
            watch.start(self._passes)
        except AlreadyRecording:
            self._put_off("it recorded something itself")
        else:
            self._watch = watch
            self._profiled = self._profiled or (self._on_gpu and self._passes is None)

    def _put_off(self, reason: str) -> None:
        """The program does what does not go with measuring this step: another is taken, and nothing of this one."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.discard()
        if self._passes is not None:
            self._passes.close()
        self.status.doing, self.status.put_off = "nothing", reason
        self._put_offs += 1
        if self._put_offs > _PUT_OFFS:
            self._give_up(
                CannotMeasure(
                    "steps-put-off",
                    f"in {self._put_offs} steps one after the other {reason}: choose others with --steps, or let the "
                    "program do that less often (a data loader with persistent_workers=True forks once)",
                )
            )
        else:
            self._note(Note("other-step-recorded", f"another step was taken than was to be measured: {reason}"))
            self._file.write(self.status)

    def _finish(self, took: float) -> None:
        """The step that was measured is over."""
        status, watch = self.status, self._watch
        if status.doing == "timed":
            self._times.append(took)
            self._usual_calls.append(self._calls)
            status.timed.append(status.steps)
            status.plain_s = median(self._times)
        if watch is None:
            return
        watch.stop()
        self._watch, self._put_offs = None, 0
        status.added_s += max(took - (status.plain_s or took), 0.0)
        if self._passes is None:
            status.recorded.append(status.steps)
            status.recorded_s = took
            self._recorded(watch)
        elif self._ledger is not None:
            status.counted.append(status.steps)
            self._passes.end(watch.ops)
            self._save(self._passes.added_to(self._ledger))

    def _recorded(self, watch: StepWatch) -> None:
        if self._usual_calls and self._calls > max(self._usual_calls) and len(self.status.recorded) < _ATTEMPTS:
            return  # it held more than a step, an evaluation perhaps: the next is recorded instead
        compiled: Any = sys.modules.get("torch._dynamo.utils")
        if compiled is not None and compiled.counters.get("frames"):
            self._note(_EAGER)
        self._ledger = watch.ledger(step=self._step_quantities())
        self._save(self._ledger)
        self._passes = self._counters(self._ledger)

    def _step_quantities(self) -> dict[str, Value]:
        from rooflight.measurement import findings

        if not self._times:
            return {}
        ends = "optimizer's steps" if self.status.found == "train" else "calls of the model"
        origin = f"host clock between {ends}: median of {len(self._times)} steps of the program"
        return {"wall_time_s": findings.median(self._times, origin)}

    def _counters(self, ledger: Ledger) -> OpCounterPasses | None:
        if not self._on_gpu:
            return None
        from rooflight.measurement.cupti.op_passes import OpCounterPasses, check_counters
        from rooflight.measurement.regions import settings

        wanted = settings.read()
        try:
            if wanted.no_counters is not None:
                raise CannotMeasure("no-counters", wanted.no_counters)
            check_counters()
            busy = {index for kernel in ledger.kernels for index in kernel.ops}
            busy = busy or {op.index for op in ledger.ops if op.kind == "compute"}
            return OpCounterPasses(ledger.ops, busy, levels=wanted.levels)
        except CannotMeasure as reason:
            self._note(Note("not-measured", f"counters not measured: {reason}"))
            return None

    def _save(self, ledger: Ledger) -> None:
        from rooflight.files import save

        save(ledger, self._ops_path, force=True)

    def _note(self, note: Note) -> None:
        if note not in self.status.notes:
            self.status.notes.append(note)
            self._file.write(self.status)

    # The end.

    def _abandon(self) -> None:
        """Of what is being measured nothing is kept."""
        watch, passes = self._watch, self._passes
        self._watch = self._passes = None
        if watch is not None:
            watch.discard()
        if passes is not None:
            passes.close()

    def _over(self) -> None:
        """Let the program go on by itself, or end it where that was asked for."""
        if self.status.found == "infer":
            self._finder.close_models()  # a program that begins to train is still of interest
            self._detach()
            if not self._stop_after or self._finder.optimizers.any():
                return
        elif not self._stop_after:
            self.close()
            return
        self.status.stopped = True
        self._file.write(self.status)
        store = shared_store()
        if self.status.world > 1 and store is not None:
            store.set(_STOP_KEY, str(self.status.steps + 1))
        else:
            self._end()

    def _end_together(self) -> None:
        """All processes end after the same step, which the first one names: none waits for another then."""
        store = shared_store()
        if not self._stop_after or store is None:
            self.close()
        elif store.check([_STOP_KEY]) and self.status.steps >= int(store.get(_STOP_KEY)):
            self._end()

    def _end(self) -> None:
        """As `sys.exit` does it: what the program tidies up is tidied up, what follows its loop is not run."""
        self.close()
        raise SystemExit(0)

    def _at_exit(self) -> None:
        watch, passes, status = self._watch, self._passes, self.status
        took = perf_counter() - self._begun
        if watch is not None:
            watch.stop()
        self._abandon()
        if watch is None or passes is not None:
            return
        if hasattr(sys, "last_type"):  # an error that the program did not catch
            self._save(watch.ledger(step=self._step_quantities(), notes=(_ENDED,)))
            status.recorded.append(status.steps + 1)
            status.recorded_s = took
        else:
            status.doing = "nothing"  # what follows the last step is none
        self._file.write(status)
