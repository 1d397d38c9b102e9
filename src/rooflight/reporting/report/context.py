"""A step with all that a report asks of it: verdicts, causes, the tree, and what it would take elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from rooflight.analysis.comparison.sides import Comparison, with_its_estimate
from rooflight.analysis.comparison.why import Reasons
from rooflight.analysis.verdicts import Judge
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger
from rooflight.prediction.rebuilt import Rebuilt, as_run_on, rebuilt, traces_of
from rooflight.prediction.traces import Traces
from rooflight.reporting.report.predictions import ReportPredictions, predictions_for, usable
from rooflight.reporting.report.tree import Details, Tree, details_of, tree_of
from rooflight.summary.measured import Measured, is_measured


@dataclass(frozen=True)
class ReportContext:
    """A step with all that a report asks of it, each looked for once."""

    given: Ledger
    """As it was loaded."""
    source: str
    """The path or name that it was loaded from, as a command line takes it; empty where it was never a file."""
    devices: tuple[Device, ...]
    """Whose times are predicted: those that can run the step. One that ran on a CPU is judged on the first."""
    left_out: tuple[str, ...] = ()
    """Devices that were named and cannot run it, and why."""

    @cached_property
    def ledger(self) -> Ledger:
        """What is shown of an estimate has the ops that the first device would run."""
        return as_run_on(self.given, self.devices[0], self._traces)[0] if self.devices else self.given

    @property
    def measured(self) -> Measured:
        return self.judge.measured if self.is_measured else self._estimated

    @property
    def measured_or_none(self) -> Measured | None:
        return self.measured if self.is_measured else None

    @cached_property
    def _estimated(self) -> Measured:
        return Measured(self.ledger)

    @property
    def is_measured(self) -> bool:
        return is_measured(self.given)

    @cached_property
    def judge(self) -> Judge:
        """Of a measured step on the device that it ran on, whether that has roofs or not."""
        on = None if self.is_measured or not self.devices else self.devices[0]
        return Judge(self.given, on=on, traces=self._traces)

    @property
    def ran_on_cpu(self) -> bool:
        return self.is_measured and self.ledger.header.target == "cpu"

    @cached_property
    def _traces(self) -> Traces | None:
        return traces_of(self.given)

    @cached_property
    def again(self) -> Rebuilt | str:
        """The same step by name, or why it cannot be had."""
        return rebuilt(self.given, self._traces)

    @cached_property
    def elsewhere(self) -> Ledger:
        """The step as a GPU would run it: of one that ran on a CPU, built again where that can be."""
        if not self.ran_on_cpu:
            return self.ledger
        if isinstance(self.again, Rebuilt):
            return self.again.ledger
        return replace(self.ledger, kernels=(), measurements=(), header=replace(self.ledger.header, target="cuda"))

    @cached_property
    def roofed(self) -> Judge:
        """Under roofs: where it ran; a step that ran on a CPU as predicted on the first device."""
        if not self.ran_on_cpu or not self.ledger.ops or not self.devices:
            return self.judge
        return Judge(self.elsewhere, on=self.devices[0], traces=self._traces)

    @cached_property
    def with_estimate(self) -> Comparison:
        """A measured step against what the mathematics says of its ops."""
        return with_its_estimate(self.ledger, self.source, measured=self.measured_or_none)

    @cached_property
    def reasons(self) -> Reasons:
        has_estimate = any(op.cost is not None for op in self.ledger.ops)
        return self.with_estimate.reasons[1] if self.is_measured and has_estimate else Reasons(self.measured)

    @cached_property
    def tree(self) -> Tree:
        return tree_of(self.judge, self.reasons if self.is_measured else None)

    @cached_property
    def details(self) -> Details:
        return details_of(self.ledger, self.reasons if self.is_measured else None)

    @cached_property
    def predictions(self) -> ReportPredictions:
        return predictions_for(self.given, self.devices, self.again)


def context_of(ledger: Ledger, *, source: str, devices: Sequence[Device]) -> ReportContext:
    """The device that it ran on comes first; those that cannot run it are left out."""
    device = recognise_name(ledger.header.device)
    first = [device] if device is not None and device.kind == "gpu" else []
    named = {device.name: device for device in (*first, *devices)}
    able, left_out = usable(ledger, list(named.values()))
    return ReportContext(ledger, source, tuple(able), left_out)
