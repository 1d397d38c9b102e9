"""The step of a ledger once more: built again by name, or with the ops that another device would run.

A ledger is data: only models that come with rooflight or with a known library are built again, and only when that gives
the very same step. Nobody's own code is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_option
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rooflight.errors import BadInput, RooflightError
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger, Module, Op, total
from rooflight.measured import is_measured
from rooflight.prediction.generations import capability_of, target_of
from rooflight.prediction.prepared import Step, ledger_of
from rooflight.prediction.steps import Traces
from rooflight.prediction.what_fits import Asked
from rooflight.spec import StepSpec
from rooflight.trace import TraceOptions
from rooflight.trace.target import AMPERE, generation, needed_for, parse_target

_OF_LIBRARIES = re.compile(r"(?:torchvision|timm|hf):([A-Za-z][\w.-]*)")
"""Names of architectures; a folder of that name is none."""


@dataclass(frozen=True)
class Again:
    """The step of a ledger, asked for once more by name. What was traced of it serves all questions."""

    asked: Asked
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
        options = replace_option(self.asked.options, target=target)
        (step,), _ = self.asked.traces.steps([self.step.batch or 1], options, scaled=self.scaled)
        return ledger_of(step)


def again(ledger: Ledger) -> Again | str:
    """The ledger's step, built again; or why it cannot be."""
    try:
        return _built_again(ledger)
    except RooflightError as error:
        return error.on_command_line


def as_run_on(ledger: Ledger, device: Device) -> tuple[Ledger, str]:
    """An estimate with the ops that the device would run, as `rooflight predict` has them; and what must be said where
    these cannot be had. What was measured ran as it did."""
    header = ledger.header
    if is_measured(ledger) or not header.target.startswith("cuda") or device.kind != "gpu" or header.batch is None:
        return ledger, ""
    capability = capability_of(device)
    if capability < AMPERE and any(op.precision == "tf32" for op in ledger.ops):
        ops = tuple(replace(op, precision="fp32") if op.precision == "tf32" else op for op in ledger.ops)
        ledger = replace(ledger, ops=ops)
    attending = [op for op in ledger.ops if op.packet.startswith("aten::_scaled_dot_product")]
    newer = generation(parse_target(header.target).capability) < generation(capability)
    if not newer and all(capability >= needed_for(op.packet, op.precision) for op in attending):
        return ledger, ""
    found = again(ledger)
    if isinstance(found, str):
        said = f"{device.name}: attention is taken to run in the kernels of {header.target}, for which it was traced"
        return ledger, f"{said}: {found}" if attending else ""
    other = found.traced_for(target_of(device))
    return replace(other, header=replace(other.header, command=header.command, notes=header.notes)), ""


def _built_again(ledger: Ledger) -> Again:
    header = ledger.header
    if header.batch is None or not _is_known(header.model):
        raise BadInput(f"{header.model} is not built again for a report")
    spec = StepSpec.of(header)
    target = header.target if header.target.startswith("cuda") else "cuda"
    traces, options = Traces(spec.model, **spec.build), TraceOptions.of(spec, target=target)
    # The trace that other batches need serves this one, too. A batch of 1 is apart: some models skip a sum over it.
    several = header.batch > 1
    (step,), notes = traces.steps([header.batch], options, scaled=several)
    if _identity(step.ledger.modules, step.ops_with_cost) != _identity(ledger.modules, ledger.ops):
        raise BadInput(f"{header.model} as it is built now is not what this ledger was made from (other sizes or "
                       "options)")  # fmt: skip
    return Again(Asked(traces, options), step, scaled=several and not notes)


def _is_known(model: str) -> bool:
    from rooflight.models import builtin_names

    if model in builtin_names():
        return True
    found = _OF_LIBRARIES.fullmatch(model)
    return found is not None and not Path(found[1]).exists()


def _identity(modules: Sequence[Module], ops: Sequence[Op]) -> tuple[Any, ...]:
    sums = total(ops)
    return [(module.path, module.type, module.params) for module in modules], sums.flops, sums.recompute_flops
