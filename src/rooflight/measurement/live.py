"""`rooflight.record`: the ops of any code while it runs, once, as it comes.

    with rooflight.record() as recording:
        loss = model(x).sum()
        loss.backward()
    recording.ledger

The code is not run again and nothing is put back, so what one execution can tell is what there is: every op with its
cost, on a GPU its kernels with their times and the memory it takes, on a CPU its time and memory. The step's own time
is unknown: watching takes longer than the step.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from msgspec.structs import replace

from rooflight.errors import BadInput, CannotMeasure
from rooflight.estimation.costs import fill_costs
from rooflight.ledger import FORMAT_VERSION, Ledger, Note, Op, Value
from rooflight.machine.conditions import Conditions
from rooflight.machine.installed_gpus import cuda_version, device_name, driver_version
from rooflight.measurement import timeline
from rooflight.measurement.collectors import cpu_memory, gpu_memory
from rooflight.measurement.collectors.op_meters import OpDifferences
from rooflight.measurement.findings import Findings
from rooflight.measurement.profiler_trace import (
    RangeMarker,
    StepTrace,
    a_profiler_is_busy,
    running_profile,
    told_of_other_profilers,
)
from rooflight.measurement.ranks import process_rank
from rooflight.measurement.recording_slot import SLOT
from rooflight.trace.dynamo import eagerly
from rooflight.trace.inputs import tensor_leaves
from rooflight.trace.interception import (
    as_a_mode,
    below_autograd,
    below_autograd_for_now,
    interception_for,
    nothing_handed_over,
)
from rooflight.trace.options import TensorKind, TraceOptions
from rooflight.trace.precision import math_modes
from rooflight.trace.program import ProgramRecorder
from rooflight.trace.program_modules import ProgramTracker
from rooflight.trace.program_stage import ProgramRecording, program_header, program_recording
from rooflight.trace.recorder import Observer
from rooflight.trace.snapshot import Snapshot
from rooflight.trace.target import parse_target

_BUSY = "torch's profiler is running already"
_ONCE = "host clock around the op, in the one recorded step"


@dataclass
class _Observers:
    """Several around each op, the first outermost."""

    all: tuple[Observer, ...]

    def before(self, index: int) -> None:
        for one in self.all:
            one.before(index)

    def after(self, index: int) -> None:
        for one in reversed(self.all):
            one.after(index)


class StepWatch:
    """Records what this thread runs, and autograd for it, between `start` and `stop`."""

    def __init__(
        self,
        of: FrameType | Snapshot | None = None,
        *,
        name: str = "",
        command: str = "rooflight.record()",
        gives_way: Callable[[str], None] | None = None,
    ) -> None:
        """`of`: the code whose names modules are called by, or what it reaches. `gives_way` is told why this should be
        ended (`discard`) where the program does something that does not go with it; without it as much is recorded as
        can be. Nor does the program fail then with what cannot be recorded: `stop` does."""
        self._reach = of if isinstance(of, Snapshot) else Snapshot(saves=False) if of is None else Snapshot.of_frame(of)
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._on: TensorKind = "cuda" if on_gpu else "cpu"
        target = "cuda:{}{}".format(*torch.cuda.get_device_capability()) if on_gpu else "cpu"
        self._target = parse_target(target)
        self._name = name
        self._gives_way = gives_way
        self._options = TraceOptions(target=target, on=self._on, rank=process_rank().rank, command=command)
        self._conditions = Conditions(self._on)
        self._findings = Findings()
        self._open: ExitStack | None = None
        self._profile = ExitStack()
        self._has_profile = False
        self._trace: list[StepTrace] = []
        self._allocations: cpu_memory.CpuAllocations | None = None
        self._recording: ProgramRecording | None = None
        self.notes: list[Note] = []

    def start(self, observer: Observer | None = None) -> None:
        """With `observer` it alone is told of the ops: nothing else is measured."""
        SLOT.take(self)
        try:
            self._start(observer)
        except BaseException:
            SLOT.leave(self)
            raise

    def _start(self, observer: Observer | None) -> None:
        self._measures = observer is None
        self._conditions.before()
        self._tracker = ProgramTracker(self._reach.modules)
        state = [one for model in self._reach.modules.values() for one in (*model.parameters(), *model.buffers())]
        way = below_autograd_for_now if interception_for(state) is below_autograd else as_a_mode
        with ExitStack() as stack:
            stack.enter_context(self._profile)
            self._observers = _Observers((observer,) if observer is not None else self._own_observers())
            self._recorder = ProgramRecorder(
                self._tracker,
                device=self._on,
                modes=math_modes(self._target),
                rank=self._options.rank,
                observer=self._observers,
                interception=way,
                outlived=self._gives_way is not None,
            )
            with nothing_handed_over():  # to the program's own modes
                self._recorder.register(self._reach.modules, self._reach.optimizers)
            stack.enter_context(told_of_other_profilers(self._another_profiler))
            stack.enter_context(eagerly())
            stack.enter_context(self._recorder.watching())
            self._open = stack.pop_all()

    def _own_observers(self) -> tuple[Observer, ...]:
        """What one execution can tell. A profiler of the program's own stays what it is."""
        is_busy = a_profiler_is_busy()
        if self._on == "cuda":
            self._memory = gpu_memory.OpMemoryObserver()
            try:
                if is_busy:
                    raise CannotMeasure("profiler-busy", _BUSY)
                self._profile.enter_context(running_profile(self._trace.append, cuda=True))
            except CannotMeasure as reason:
                self.notes.append(Note("not-measured", f"kernels not measured: {reason}"))
                return (self._memory,)
            self._has_profile = True
            return self._memory, RangeMarker()
        self._timer = OpDifferences(time.perf_counter)
        if is_busy:
            self.notes.append(Note("not-measured", f"memory of every op not measured: {_BUSY}"))
            return (self._timer,)
        self._allocations = self._profile.enter_context(cpu_memory.CpuAllocations())
        self._has_profile = True
        return self._allocations, self._timer

    # What the program does meanwhile.

    def another_begins(self) -> None:
        if self._gives_way is not None:
            self._gives_way("it recorded something itself")

    def _another_profiler(self) -> None:
        if self._gives_way is not None:
            self._gives_way("its own profiler ran")
        else:
            self._end_profile("the program's own profiler began")

    def forks(self) -> None:
        if self._gives_way is not None:
            self._gives_way("it forked")
        elif self._on == "cpu":  # a child would go on and write down its allocations, and never be rid of them
            self._end_profile("the process was forked")

    def is_forked(self) -> None:
        """What the parent records is the parent's. A profiler that runs cannot be ended here: it is told of nothing."""
        SLOT.keep(self._profile.pop_all())
        if self._has_profile:
            torch.autograd._enable_record_function(False)
        self.discard()

    def _end_profile(self, reason: str) -> None:
        """Before the step is over: then it tells of a part of the ops, which is nothing of the step."""
        if not self._has_profile:
            return
        self._has_profile = False
        with suppress(CannotMeasure):
            self._profile.close()
        self._trace.clear()
        self._allocations = None
        on_gpu = self._on == "cuda"
        self._observers.all = (self._memory if on_gpu else self._timer,)  # marks would be in the program's profile
        self.notes.append(
            Note("not-measured", f"{'kernels' if on_gpu else 'memory of every op'} not measured: {reason}")
        )

    # The end.

    def discard(self) -> None:
        """End it and keep nothing."""
        held, self._open = self._open, None
        if held is not None:
            try:
                held.close()
            finally:
                SLOT.leave(self)

    def stop(self, results: Any = None) -> None:
        """`results`: what the step gave."""
        if self._open is None:
            return
        if self._on == "cuda":
            torch.cuda.synchronize()
        self.discard()
        if self._recorder.failure is not None:
            raise self._recorder.failure
        self._recording = program_recording(self._recorder, self._tracker, tensor_leaves(results), self._name)
        if self._measures:
            (self._of_a_gpu if self._on == "cuda" else self._of_a_cpu)()

    def _of_a_gpu(self) -> None:
        findings, ops = self._findings, self.ops
        for index, quantities in self._memory.quantities.items():
            if ops[index].kind != "host":
                findings.add(index, quantities)
        for trace in self._trace:
            marked = timeline.launches(trace)
            findings.kernels, times = timeline.merge(marked, [])
            findings.host_calls = trace.host_calls
            findings.step.update(times.quantities())
            for index, value in timeline.per_op_time(findings.kernels).items():
                findings.add(index, {"kernel_time_s": value})
            for index, count in Counter(one.ops[0] for one in findings.kernels if len(one.ops) == 1).items():
                findings.add(index, {"kernels": Value(count, "kineto: launches")})

    def _of_a_cpu(self) -> None:
        for index, seconds in self._timer.by_op.items():
            self._findings.add(index, {"host_time_s": Value(seconds, _ONCE)})
        if self._allocations is not None:
            self._findings.step |= cpu_memory.step_quantities(self._allocations.history)
            for index, quantities in cpu_memory.op_quantities(self._allocations.history).items():
                self._findings.add(index, quantities)

    @property
    def quantities(self) -> dict[int, dict[str, Value]]:
        """What was measured of every op, by its index."""
        return self._findings.ops

    @property
    def ops(self) -> tuple[Op, ...]:
        """Those of the step that was recorded."""
        assert self._recording is not None
        return self._recording.ops

    def ledger(self, *, step: Mapping[str, Value] | None = None, notes: Sequence[Note] = ()) -> Ledger:
        """What was recorded; `step`: what else is known of the whole step."""
        recording = self._recording
        if recording is None:
            raise BadInput(
                "nothing-recorded",
                "nothing is recorded yet: the ledger is there when `with rooflight.record()` is left",
            )
        said = [*self.notes, *self._findings.notes, *notes]
        header = program_header(recording, self._options, self._target, math_modes(self._target), said)
        header = replace(
            header,
            device=device_name(self._on),
            cuda=cuda_version() if self._on == "cuda" else None,
            driver=driver_version() if self._on == "cuda" else None,
            conditions=self._conditions.after(),
            world=process_rank().world,
        )
        # An op that raises is measured, and no row.
        of_ops = {index: row for index, row in self._findings.ops.items() if index < len(recording.ops)}
        findings = Findings(ops=of_ops, step={**self._findings.step, **(step or {})})
        return fill_costs(
            Ledger(
                format_version=FORMAT_VERSION,
                header=header,
                modules=recording.modules,
                storages=recording.storages,
                ops=recording.ops,
                kernels=self._findings.kernels,
                host_calls=self._findings.host_calls,
                measurements=findings.measurements(),
            )
        )


class LiveRecording:
    """What `with rooflight.record()` gives; `ledger` is there when it is left."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._watch: StepWatch | None = None
        self._ledger: Ledger | None = None

    def __enter__(self) -> Self:
        watch = StepWatch(sys._getframe(1), name=self._name)
        watch.start()
        self._watch, self._ledger = watch, None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._watch is not None
        if kind is not None:
            self._watch.notes.append(Note("ended-early", f"{kind.__name__} ended it early: what came before is here"))
        self._watch.stop()

    @property
    def ledger(self) -> Ledger:
        """One row for every op that ran inside; an error where it is still running."""
        if self._watch is None:
            raise BadInput(
                "nothing-recorded",
                "nothing is recorded yet: put `with rooflight.record() as recording:` around the code",
            )
        if self._ledger is None:
            self._ledger = self._watch.ledger()
        return self._ledger


def record(name: str = "") -> LiveRecording:
    """Record every op of the code inside, on any device, while it runs as it would without.

    Modules, optimizers, loss and backward are found by what the code calls. `name` is what the ledger calls the step.

        >>> with rooflight.record() as recording:
        ...     train_one_batch(model, optimizer, batch)
        >>> recording.ledger.to_pandas()
    """
    return LiveRecording(name)
