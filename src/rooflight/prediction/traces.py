"""The steps to be predicted: one trace where one is enough, whatever the number of batches and of questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import Ledger, Note
from rooflight.prediction.kept_traces import KeptTrace, switches_of_torch
from rooflight.spec import is_program, program_name
from rooflight.step.costed_step import PreparedTrace, Step, TracedIn
from rooflight.step.other_batches import DoesNotScale, check_scales, prime_for
from rooflight.trace import TraceOptions

if TYPE_CHECKING:
    from rooflight.models.workload import Workload

_FEW = 2
"""Up to so many batches are traced each for itself."""


class Traces:
    """Of a model and a kind of step. Each batch and each way to run it is traced once, however often it is asked for;
    a live module has the batch of its inputs, and is traced each time: it is the caller's, who may change it."""

    def __init__(
        self,
        model: Any,
        inputs: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        labels: Any = None,
        **which: Any,
    ) -> None:
        self.model = model
        self.which: Mapping[str, Any] = which
        """What else names the step: `step`, `seq`, `dtype`, ..."""
        self._inputs, self._kwargs, self._labels = inputs, kwargs, labels
        self._switches = switches_of_torch()
        """Where torch was not loaded before: its traces can be kept."""
        self._single: dict[tuple[TraceOptions, int], Step] = {}
        self._scaled: dict[tuple[TraceOptions, int], PreparedTrace | DoesNotScale] = {}
        self._in: dict[str, Traces] = {}

    @property
    def by_name(self) -> bool:
        """Can the step be traced with another batch, or changed otherwise?"""
        return isinstance(self.model, str)

    def changed(self, **changes: Any) -> Traces:
        """Those of the step with some of what names it changed."""
        if not changes:
            return self
        traces = Traces(self.model, self._inputs, self._kwargs, labels=self._labels, **{**self.which, **changes})
        traces._switches = self._switches
        return traces

    def traced_in(self, batch: int, options: TraceOptions, *, scaled: bool) -> TracedIn:
        """What traces the step in another precision, the way it was traced in its own."""

        def traced(dtype: str, target: str) -> Step:
            if dtype not in self._in:
                self._in[dtype] = self.changed(dtype=dtype)
            return self._in[dtype].steps([batch], replace(options, target=target), scaled=scaled)[0][0]

        return traced

    def steps(
        self, batches: Sequence[int], options: TraceOptions, *, scaled: bool = False
    ) -> tuple[list[Step], tuple[Note, ...]]:
        """The step at every batch, and what must be said about how they were found. `scaled`: more batches will be
        asked for, so one trace for all is worth it."""
        if not isinstance(self.model, str):
            return [PreparedTrace(self._traced(options, batches[0] if batches else None), None).at(None)], ()
        if scaled or len(set(batches)) > _FEW:
            prepared = self.for_all_batches(options, prime_for(batches))
            if isinstance(prepared, DoesNotScale):
                note = Note("traced-every-batch", f"every batch was traced for itself: {prepared}")
                return [self._at(options, batch) for batch in batches], (note,)
            note = Note("batch-of-one", "batch 1 is taken as any other: some models skip a sum over the batch there")
            return [prepared.at(batch) for batch in batches], (note,) if 1 in batches else ()
        return [self._at(options, batch) for batch in batches], ()

    def _at(self, options: TraceOptions, batch: int) -> Step:
        key = options, batch
        if key not in self._single:
            step = PreparedTrace(self._traced(options, batch), None).at(None)
            self._single[key] = replace(
                step,
                at_batch=lambda other: self._at(options, other),
                traced_in=self.traced_in(batch, options, scaled=False),
            )
        return self._single[key]

    def for_all_batches(self, options: TraceOptions, prime: int) -> PreparedTrace | DoesNotScale:
        key = options, prime
        if key not in self._scaled:
            try:
                self._scaled[key] = self._from_one(options, prime)
            except DoesNotScale as reason:
                self._scaled[key] = reason
        return self._scaled[key]

    def _from_one(self, options: TraceOptions, prime: int) -> PreparedTrace:
        def check(ledger: Ledger, workload: Workload) -> None:
            parameters = workload.model.parameters()
            check_scales(ledger, prime, {size for tensor in parameters for size in (*tensor.shape, tensor.numel())})

        try:
            ledger = self._traced(options, prime, check)
        except (BadInput, TraceFailed):
            # As a model that takes its batch in pairs. What is wrong with any batch will be said of the one that was
            # asked.
            raise DoesNotScale(f"the model does not take a batch of {prime}") from None
        return PreparedTrace(ledger, prime, lambda batch: self.traced_in(batch or prime, options, scaled=True))

    def _traced(
        self, options: TraceOptions, batch: int | None, check: Callable[[Ledger, Workload], None] | None = None
    ) -> Ledger:
        """The trace of a batch, or the one that was kept. `check`: what must hold of it."""
        kept = KeptTrace.of(self.model, self.which, options, batch, self._switches, scales=check is not None)
        if kept is not None and (ledger := kept.read()) is not None:
            return ledger
        if is_program(self.model):
            from rooflight.trace.program_stage import trace_program

            return trace_program(self.model, self._inputs, self._kwargs or {}, program_name(self.model), options)
        from rooflight.models.resolve import given_workload
        from rooflight.trace import trace

        device = options.on if options.runs else "meta"
        workload = given_workload(self.model, self._inputs, self._kwargs, batch=batch, device=device, **self.which)
        workload = replace(workload, labels=self._labels)
        ledger = trace(workload, options)
        if check is not None:
            check(ledger, workload)
        if kept is not None:
            kept.write(ledger)
        return ledger


@dataclass(frozen=True)
class StepRequest:
    """The step that was asked for, to be asked for again with a change."""

    traces: Traces
    options: TraceOptions
    allocator: str = ""
    """Settings of torch's allocator."""

    @property
    def which(self) -> Mapping[str, Any]:
        return self.traces.which

    @property
    def expandable(self) -> str:
        """The same settings, and segments that grow."""
        return f"{self.allocator},expandable_segments:True" if self.allocator else "expandable_segments:True"

    def at(self, batch: int, *, scaled: bool = False, options: TraceOptions | None = None, **changed: Any) -> Step:
        batches = [batch] if self.by_name else []
        steps, _ = self.traces.changed(**changed).steps(batches, options or self.options, scaled=scaled)
        return steps[0]

    @property
    def by_name(self) -> bool:
        return self.traces.by_name
