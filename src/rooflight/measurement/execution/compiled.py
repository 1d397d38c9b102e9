"""The step as torch.compile runs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rooflight.errors import CannotMeasure, RooflightError
from rooflight.ledger import Kernel, Op, Value
from rooflight.measurement import timeline
from rooflight.measurement.execution import provenance
from rooflight.measurement.execution.eager import EagerStep, Launches, attributed_share
from rooflight.measurement.profiler_trace import Span, Thread, Trace
from rooflight.trace.stage import Stage

_GRAPH = "## Call CompiledFxGraph"


class CompiledStep(EagerStep):
    """Forward and backward compiled, the loss and the optimizer as they are.

    Compiled code is made anew, to see what it is made of: a model that was compiled before compiles again when it is
    next called.
    """

    eager = False

    def __init__(self, stage: Stage, *, mode: str | None = None, as_it_is: bool = False) -> None:
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
            with _compiling():
                stage.call = provenance.compiled(stage.model, mode=self._mode)
        with _compiling(), self._provenance as found:
            for _ in range(3 if self._mode else 2):  # graphs inside the compiled code are captured by a second run
                stage.run()
            found.begin_step()
            stage.run()

    def memory(self) -> tuple[dict[str, Value], list[str]]:
        found, notes = super().memory()
        notes.append(f"torch.compile made {self._provenance.graphs} graph(s) of the model")
        breaks = self._provenance.graph_breaks
        notes += [f"graph break, {count}×: {' '.join(reason.split())[:160]}" for reason, count in breaks.items()]
        return found, notes

    def attributed(self, marked: Callable[[], Launches], traces: Sequence[Trace], plain: Sequence[Launches],
                   ops: Sequence[Op]) -> Launches:  # fmt: skip
        """By what Inductor says its kernels were made of."""
        launches = list(plain[0])
        order = sorted(range(len(launches)), key=lambda i: (_called(traces[0], launches[i]), launches[i].start_s))
        stacks = _Stacks(traces[0].spans)
        seen = [stacks.launch(traces[0], launches[i]) for i in order]
        for position, found in zip(order, provenance.walk(seen, self._provenance, ops), strict=True):
            launches[position] = replace(launches[position], op=None, ops=found)
        return launches

    def attribution_notes(self, kernels: Sequence[Kernel]) -> list[str]:
        notes = [attributed_share(kernels, "by Inductor's provenance")]
        if self._provenance.reason:
            notes.append(f"some kernels have no op: {self._provenance.reason}")
        return notes

    def close(self) -> None:
        """What was compiled here is of no use to anybody; its code and its graphs' memory go."""
        import torch._dynamo

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
        line = (str(error).strip().splitlines() or [""])[0]
        raise CannotMeasure(
            f"torch.compile failed: {type(error).__name__}: {line}; without --compile the eager step is measured"
        ) from error


def _called(trace: Trace, launch: timeline.Launch) -> int:
    """When the host asked for it."""
    point = trace.calls.get(launch.correlation)
    return point.time_ns if point is not None else 0


class _Stacks:
    """Which host ranges were open when something was launched. To be asked in the order of time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._coming: dict[Thread, list[tuple[int, Span]]] = defaultdict(list)
        for number, span in enumerate(spans):
            self._coming[span.thread].append((number, span))
        for rows in self._coming.values():  # the next one last
            rows.sort(key=lambda row: (row[1].start_ns, -row[1].end_ns), reverse=True)
        self._open: dict[Thread, list[tuple[int, Span]]] = defaultdict(list)

    def _at(self, thread: Thread, time_ns: int) -> list[tuple[int, Span]]:
        coming, around = self._coming[thread], self._open[thread]
        while coming and coming[-1][1].start_ns <= time_ns:
            around.append(coming.pop())
        around[:] = [row for row in around if row[1].end_ns >= time_ns]
        return around

    def launch(self, trace: Trace, launch: timeline.Launch) -> provenance.Launch:
        point = trace.calls.get(launch.correlation)
        stack: list[tuple[str, int]] = []
        graph = None
        if point is not None:
            for number, span in self._at(point.thread, point.time_ns):
                if span.name.startswith(_GRAPH):
                    graph, stack = span.name, []  # what is around a compiled graph tells nothing of what is inside
                elif ("::" in span.name or span.name.startswith("triton")) and not span.name.startswith("autograd::"):
                    stack.append((span.name, number))
        return provenance.Launch(launch.name, tuple(stack), graph)
