"""The step of a ledger, built once more by its model's name, for what the ledger alone cannot tell: other batches, many
GPUs, another precision.

A ledger is data: only models that come with rooflight or with a known library are built again, and only where that
gives the very same step. Nobody's own code is ever run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace as in_fields

from rooflight.errors import BadInput, RooflightError, TraceFailed
from rooflight.estimation.gpu_optimizer import with_optimizer_of_gpus
from rooflight.hardware.device import Device
from rooflight.ledger import Header, Ledger, total
from rooflight.models.registry import NAMES
from rooflight.prediction.traces import StepRequest, Traces
from rooflight.spec import StepSpec
from rooflight.step.costed_step import Step, ledger_of, own_step
from rooflight.summary.measured import is_measured
from rooflight.trace import TraceOptions
from rooflight.trace.target import AMPERE, generation, needed_for, parse_target, target_for

_OF_LIBRARIES = re.compile(r"(?:torchvision|timm|hf):([A-Za-z][\w.-]*)")
"""Names of architectures; a folder of that name is none."""


@dataclass(frozen=True)
class Rebuilt:
    """What was traced of it serves all questions."""

    asked: StepRequest
    step: Step
    """As a GPU would run it."""
    scaled: bool
    """Does one trace serve its own batch and all others?"""

    @cached_property
    def ledger(self) -> Ledger:
        """Its estimate."""
        return ledger_of(self.step)

    def traced_for(self, target: str) -> Ledger:
        """The same on another generation of GPUs."""
        options = replace(self.asked.options, target=target)
        (step,), _ = self.asked.traces.steps([self.step.batch or 1], options, scaled=self.scaled)
        return ledger_of(step)


def traces_of(ledger: Ledger) -> Traces | None:
    """What can trace the ledger's step anew; `None` where its model is not built. To be asked before torch is loaded:
    what is traced is kept only then."""
    header = ledger.header
    if header.batch is None or not _is_known(header.model):
        return None
    spec = StepSpec.of(header)
    return Traces(spec.model, **spec.build)


def rebuilt(ledger: Ledger, traces: Traces | None) -> Rebuilt | str:
    """The ledger's step, built again; or why it cannot be."""
    try:
        return _built(ledger, traces)
    except RooflightError as error:
        return error.on_command_line


def _built(ledger: Ledger, traces: Traces | None) -> Rebuilt:
    header = ledger.header
    if traces is None or header.batch is None:
        raise BadInput("not-rebuilt", f"{header.model} is not built again for a report")
    target = header.target if header.target.startswith("cuda") else "cuda"
    options = TraceOptions.of(StepSpec.of(header), target=target)
    (step,), notes = traces.steps([header.batch], options, scaled=_several(header))
    # Attention is recomputed by kernels that not every precision has.
    again = [total(ops).recompute_flops for ops in (step.ops_with_cost, ledger.ops)]
    if again[0] != again[1] or not _is_same(step, ledger):
        raise BadInput(
            "not-rebuilt",
            f"{header.model} as it is built now is not what this ledger was made from (other sizes or options)",
        )
    return Rebuilt(StepRequest(traces, options), step, scaled=_several(header) and not notes)


def as_run_on(ledger: Ledger, device: Device, traces: Traces | None) -> tuple[Ledger, str]:
    """An estimate with the ops that the device would run, as `rooflight predict` has them; and what must be said where
    these cannot be had. What was measured ran as it did."""
    there, note = as_run_by(ledger, target_for(device.kind, device.capability), traces)
    return there, f"{device.name}: {note}" if note else ""


def as_run_by(ledger: Ledger, target: str, traces: Traces | None) -> tuple[Ledger, str]:
    """The same of all devices of a target."""
    header, capability = ledger.header, parse_target(target).capability
    if is_measured(ledger) or not header.target.startswith("cuda") or target == "cpu" or header.batch is None:
        return ledger, ""
    if capability < AMPERE and any(op.precision == "tf32" for op in ledger.ops):
        ops = tuple(in_fields(op, precision="fp32") if op.precision == "tf32" else op for op in ledger.ops)
        ledger = in_fields(ledger, ops=ops)
    attending = [op for op in ledger.ops if op.packet.startswith("aten::_scaled_dot_product")]
    newer = generation(parse_target(header.target).capability) < generation(capability)
    if not newer and all(capability >= needed_for(op.packet, op.precision) for op in attending):
        return ledger, ""
    again = rebuilt(ledger, traces)
    if isinstance(again, str):
        taken = f"attention is taken to run in the kernels of {header.target}, for which it was traced"
        return ledger, f"{taken}: {again}" if attending else ""
    other = again.traced_for(target)
    return in_fields(other, header=in_fields(other.header, command=header.command, notes=header.notes)), ""


def on_other_kind(ledger: Ledger, *, cpu: bool) -> Ledger:
    """The ledger for a CPU, or for GPUs. On these torch's optimizers take all tensors at once."""
    if (ledger.header.target == "cpu") == cpu:
        return ledger
    there = in_fields(ledger, header=in_fields(ledger.header, target="cpu" if cpu else "cuda"))
    return there if cpu else with_optimizer_of_gpus(there)


def step_of(ledger: Ledger, traces: Traces | None) -> Step:
    """The ledger's own step, that can be traced in another precision where its model can be built."""
    step, header = own_step(ledger), ledger.header
    if traces is None or header.batch is None:
        return step
    traced_in = traces.traced_in(header.batch, TraceOptions.of(StepSpec.of(header)), scaled=_several(header))

    def traced(dtype: str, target: str) -> Step | None:
        try:
            other = traced_in(dtype, target)
        except TraceFailed:  # the model does not run in it
            raise
        except RooflightError:  # it cannot be built here: a library is missing, or knows it no longer
            return None
        return other if other is not None and _is_same(other, ledger) else None

    return replace(step, traced_in=traced)


def _several(header: Header) -> bool:
    """The trace that other batches need serves this one, too. A batch of 1 is apart: some models skip a sum over it."""
    return header.batch is not None and header.batch > 1


def _is_known(model: str) -> bool:
    if model in NAMES:
        return True
    of_library = _OF_LIBRARIES.fullmatch(model)
    return of_library is not None and not Path(of_library[1]).exists()


def _is_same(step: Step, ledger: Ledger) -> bool:
    """Whatever its precision: the same modules and the same work."""
    traced, stored = (
        [(module.path, module.type, module.params) for module in modules]
        for modules in (step.ledger.modules, ledger.modules)
    )
    return traced == stored and total(step.ops_with_cost).flops == total(ledger.ops).flops
