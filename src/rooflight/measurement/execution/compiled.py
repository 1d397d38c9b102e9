"""The step as torch.compile runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rooflight.errors import CannotMeasure, RooflightError
from rooflight.ledger import Kernel, Note, Op, Value
from rooflight.measurement import timeline
from rooflight.measurement.execution import provenance
from rooflight.measurement.execution.eager import EagerStep, Launches, attributed_share
from rooflight.measurement.findings import first_line
from rooflight.measurement.profiler_trace import StepTrace
from rooflight.profiles.kineto import Thread, open_ranges
from rooflight.trace.program_stage import ProgramStage
from rooflight.trace.stage import Stage

_GRAPH = "## Call CompiledFxGraph"


class CompiledStep(EagerStep):
    """Forward and backward compiled, the loss and the optimizer as they are.

    Compiled code is made anew, to see what it is made of: a model that was compiled before compiles again when it is
    next called.
    """

    eager = False

    def __init__(self, stage: Stage | ProgramStage, *, mode: str | None = None, as_it_is: bool = False) -> None:
        super().__init__(stage)
        self._mode = mode
        self._as_it_is = as_it_is
        """Parts of the model are compiled already: nothing more is."""
        self._provenance = provenance.Provenance(stage.model)

    def prepare(self) -> None:
        import torch._dynamo  # seconds, so only here

        stage = self.stage
        torch._dynamo.reset()
        if not self._as_it_is:
            assert isinstance(stage, Stage)  # a program compiles what it will itself
            with _compiling():
                stage.call = compiled(stage.model, mode=self._mode)
        with _compiling(), self._provenance as recording:
            for _ in range(3 if self._mode else 2):  # graphs inside the compiled code are captured by a second run
                stage.run()
            recording.begin_step()
            stage.run()

    def memory(self) -> tuple[dict[str, Value], list[Note]]:
        quantities, notes = super().memory()
        notes.append(Note("compiled-graphs", f"torch.compile made {self._provenance.graphs} graph(s) of the model"))
        breaks = self._provenance.graph_breaks
        notes += [
            Note("graph-break", f"graph break, {count}×: {' '.join(reason.split())[:160]}")
            for reason, count in breaks.items()
        ]
        return quantities, notes

    def attributed(
        self, marked: Callable[[], Launches], traces: Sequence[StepTrace], plain: Sequence[Launches], ops: Sequence[Op]
    ) -> Launches:
        """By what Inductor says its kernels were made of."""
        launches = list(plain[0])
        order = sorted(range(len(launches)), key=lambda i: (_called_ns(traces[0], launches[i]), launches[i].start_s))
        contexts = _contexts(traces[0], [launches[i] for i in order])
        for position, its_ops in zip(order, provenance.walk(contexts, self._provenance.calls(), ops), strict=True):
            launches[position] = replace(launches[position], ops=its_ops)
        return launches

    def attribution_notes(self, kernels: Sequence[Kernel]) -> list[Note]:
        notes = [attributed_share(kernels, "by Inductor's provenance")]
        if self._provenance.reason:
            notes.append(Note("kernels-without-op", f"some kernels have no op: {self._provenance.reason}"))
        return notes

    def close(self) -> None:
        """What was compiled here is of no use to anybody; its code and its graphs' memory go."""
        import torch._dynamo

        if isinstance(self.stage, Stage):
            self.stage.call = self.stage.model
        torch._dynamo.reset()


@contextmanager
def _compiling() -> Iterator[None]:
    """What torch.compile cannot do, in one line."""
    try:
        yield
    except RooflightError:
        raise
    except Exception as error:
        raise CannotMeasure(
            "compile-failed",
            f"torch.compile failed: {type(error).__name__}: {first_line(error)}; without --compile the eager step is "
            "measured",
        ) from error


def _called_ns(trace: StepTrace, launch: timeline.KernelLaunch) -> int:
    """When the host asked for it."""
    call = trace.calls.get(launch.correlation)
    return call.start_ns if call is not None else 0


def _contexts(trace: StepTrace, launches: Launches) -> list[provenance.LaunchContext]:
    """Each launch with the ops that were open on the host when it was made."""
    moments: list[tuple[Thread, int, int]] = []
    for position, launch in enumerate(launches):
        call = trace.calls.get(launch.correlation)
        if call is not None:
            moments.append((call.thread, call.start_ns, position))
    contexts = [provenance.LaunchContext(launch.name) for launch in launches]
    for position, stack in open_ranges(trace.spans, moments):
        ops: list[tuple[str, int]] = []
        graph = None
        for number in stack:
            name = trace.spans[number].name
            if name.startswith(_GRAPH):
                graph, ops = name, []  # what is around a compiled graph tells nothing of what is inside
            elif ("::" in name or name.startswith("triton")) and not name.startswith("autograd::"):
                ops.append((name, number))
        contexts[position] = provenance.LaunchContext(launches[position].name, tuple(ops), graph)
    return contexts


def is_compiled(model: Any) -> bool:
    """Does any part of the model run through `torch.compile`?"""
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def compiled(model: Any, *, mode: str | None = None) -> Any:
    """The model as `torch.compile` runs it; one that is compiled already is left as it is."""
    import torch

    return model if is_compiled(model) else torch.compile(model, mode=mode)
