"""How the plain step is run: eagerly, through torch.compile, or as a captured CUDA graph.

The ops of the ledger are always those of the eager step: they are what estimate and measurement are joined by. What is
timed, profiled and counted is the step as it was asked for.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from rooflight.errors import CannotMeasure, OutOfMemory, RooflightError
from rooflight.ledger import Kernel, Note, Op, Value
from rooflight.measurement import timeline
from rooflight.measurement.collectors import gpu_memory
from rooflight.measurement.findings import first_line
from rooflight.measurement.profiler_trace import StepTrace, profiled
from rooflight.trace.stage import StagedStep

Launches = list[timeline.KernelLaunch]
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph")


class EagerStep:
    """The eager step; the others change what differs."""

    eager = True

    def __init__(self, stage: StagedStep) -> None:
        self.stage = stage
        self.uses_graphs = False
        """CUDA graphs are launched, inside which some counters do not count."""
        self.runs_compiled_code = False
        """Something in the step is compiled, although the model as a whole is not: a decorated function."""

    def prepare(self) -> None:
        """Run the step once: handles, workspaces and caches of libraries are made by the first.

        Who has compiled code has loaded Dynamo. Then the run is profiled, to see whether the step calls any.
        """
        if "torch._dynamo" not in sys.modules or torch.autograd._profiler_enabled():
            self.stage.run()
            return
        try:
            trace = profiled(lambda: self.stage.run(), cuda=False)
        except OutOfMemory:
            raise
        except CannotMeasure:  # no disk to write to: collectors that need the profiler will say so themselves
            self.stage.run()
            return
        self.runs_compiled_code = any(span.name.startswith(_COMPILED) for span in trace.spans)

    def memory(self) -> tuple[dict[str, Value], list[Note]]:
        return gpu_memory.step_memory(self.stage)

    def profiled(self) -> StepTrace:
        self.stage.put_choices_back()
        arguments = self.stage.fresh_arguments()
        torch.cuda.synchronize()
        return profiled(lambda: self.stage.run(arguments), cuda=True)

    def attributed(
        self, marked: Callable[[], Launches], traces: Sequence[StepTrace], plain: Sequence[Launches], ops: Sequence[Op]
    ) -> Launches:
        """The launches of the plain step, each with its op: here those of a run with a mark around every op."""
        return marked()

    def attribution_notes(self, kernels: Sequence[Kernel]) -> list[Note]:
        return []

    @contextmanager
    def eagerly(self) -> Iterator[bool]:
        """Run the same kernels one by one instead of as a graph, if that can be done."""
        yield False

    def close(self) -> None:
        """Give back what `prepare` made."""


class CapturedStep(EagerStep):
    """The step as one CUDA graph, replayed."""

    eager = False

    def __init__(self, stage: StagedStep) -> None:
        super().__init__(stage)
        self.uses_graphs = True
        self._same_kernels = False

    def prepare(self) -> None:
        """Warm up on the stream of the capture, as torch asks for, and capture."""
        stage = self.stage
        stage.writes_unseen = True
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                stage.run()
        torch.cuda.current_stream().wait_stream(aside)
        stage.put_back()
        torch.cuda.synchronize()
        self._capture(aside)
        stage.run()

    def _capture(self, stream: torch.cuda.Stream) -> None:
        stage = self.stage
        graph = torch.cuda.CUDAGraph()
        arguments = stage.fresh_arguments()
        torch.cuda.reset_peak_memory_stats()
        failure: list[Exception] = []
        try:
            with torch.cuda.graph(graph, stream=stream):
                try:
                    output = stage.run(arguments)
                except Exception as error:  # the end of the capture will fail too, and say less
                    failure.append(error)
                    raise
        except (RuntimeError, RooflightError) as error:
            raise CannotMeasure(
                "capture-failed",
                "the step cannot be captured as a CUDA graph: it may not wait for the device or change shapes "
                f"({first_line(failure[0] if failure else error)})",
            ) from error
        self._peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

        # The graph reads these where they lie: they must outlive it.
        held = (arguments, output)

        def replay(_: Any) -> Any:
            graph.replay()
            return held[1]

        stage.play = replay

    def memory(self) -> tuple[dict[str, Value], list[Note]]:
        allocated, reserved = self._peaks
        quantities, notes = gpu_memory.step_memory(self.stage)
        quantities["peak_allocated_bytes"] = Value(
            allocated, "torch's CUDA allocator: most in tensors during the capture"
        )
        quantities["peak_reserved_bytes"] = Value(
            max(reserved, int(quantities["peak_reserved_bytes"].value)),
            "torch's CUDA allocator: most held, graph included",
        )
        return quantities, notes

    def attributed(
        self, marked: Callable[[], Launches], traces: Sequence[StepTrace], plain: Sequence[Launches], ops: Sequence[Op]
    ) -> Launches:
        """The graph replays what the eager step launches: same names in the same order, but for what capture drops."""
        theirs = marked()
        self._same_kernels = _names(theirs) == _names(plain[0])
        return in_the_order_of(theirs, plain[0])

    def attribution_notes(self, kernels: Sequence[Kernel]) -> list[Note]:
        return [attributed_share(kernels, "by the order of the eager step's kernels")]

    @contextmanager
    def eagerly(self) -> Iterator[bool]:
        play, self.stage.play = self.stage.play, None
        try:
            yield self._same_kernels
        finally:
            self.stage.play = play

    def close(self) -> None:
        self.stage.play = None
        self.stage.writes_unseen = False


def _names(launches: Launches) -> list[str]:
    return [launch.name for launch in launches if launch.kind == "kernel"]


def in_the_order_of(marked: Launches, run: Launches) -> Launches:
    """The launches of `run` with the ops of those in `marked` that have the same name at the same place."""
    launches = [replace(launch, ops=()) for launch in run]
    names = [launch.name for launch in marked], [launch.name for launch in run]
    if names[0] == names[1]:
        blocks = [(0, 0, len(run))]
    else:
        matcher = difflib.SequenceMatcher(None, *names, autojunk=False)
        blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    for theirs, ours, size in blocks:
        for offset in range(size):
            launches[ours + offset] = replace(launches[ours + offset], ops=marked[theirs + offset].ops)
    return launches


def attributed_share(kernels: Sequence[Kernel], how: str) -> Note:
    total = sum(kernel.time_s or 0.0 for kernel in kernels)
    attributed = sum(kernel.time_s or 0.0 for kernel in kernels if kernel.ops)
    share = attributed / total if total else 0.0
    return Note("attributed-kernels", f"kernels are attributed to ops {how}: {share:.1%} of their time")
