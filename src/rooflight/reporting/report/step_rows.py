"""Ledgers and studies as steps with values: what charts and tables of several steps are made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rooflight.analysis.verdicts import Judge
from rooflight.errors import RooflightError
from rooflight.files import load
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, total
from rooflight.metrics import CUDA_FLOPS, TENSOR_FLOPS
from rooflight.prediction.resolve_devices import device_of
from rooflight.reporting.charts.step_points import ReportedStep
from rooflight.reporting.report.context import context_of
from rooflight.reporting.report.predictions import runs_from, why_nothing
from rooflight.reporting.sections.kernel_verdicts import all_of, kernel_verdict, timed_groups
from rooflight.reporting.sections.ledger_documents import is_log
from rooflight.spec import StepSpec
from rooflight.study import values
from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.rates import with_rates
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_step import flops_by_precision


def steps_of_ledger(ledger: Ledger, source: str, devices: Sequence[Device]) -> tuple[list[ReportedStep], list[str]]:
    """What was measured stands where it ran; an estimate, and what ran on a CPU, is predicted on the devices that can
    run it. And what must be said of those that cannot."""
    ran_on = recognise_name(ledger.header.device)
    if is_measured(ledger) and ledger.header.target != "cpu" and (ran_on is None or ran_on.kind == "gpu"):
        return [_measured(ledger, source, ran_on)], []
    context = context_of(ledger, source=source, devices=devices)
    if why := why_nothing(ledger, context.devices):
        return [], [f"{_named(source, ledger)}: {'; '.join([*context.left_out, why])}"]
    # Each device runs an estimate in its own way: what the first would make of it is nothing to the others.
    plain = context.elsewhere if context.ran_on_cpu else ledger
    steps, notes = [], [f"{_named(source, ledger)}: {why}" for why in context.left_out]
    for run, device in zip(runs_from(plain, context.devices), context.devices, strict=True):
        numbers, facts = values.predicted(run.prediction)
        row = _row(_cell(ledger, device.name), values.estimated(run.ledger) | numbers, facts)
        steps.append(
            ReportedStep(row, device, total(run.ledger.ops).work_flops, flops_by_precision(run.ledger), source=source)
        )
        notes += [note.text for note in run.notes if note.text not in notes]
    return steps, notes


def _measured(ledger: Ledger, source: str, device: Device | None) -> ReportedStep:
    numbers, facts = values.measured(ledger)
    estimated = values.estimated(ledger) if any(op.cost is not None for op in ledger.ops) else {}
    if is_log(ledger):
        logged = _of_kernels(ledger, device)
        numbers, facts = numbers | logged[0], facts | logged[1]
    name = device.name if device is not None else ledger.header.device
    row = _row(_cell(ledger, name), estimated | numbers, facts)
    origin = Measured(ledger).origin
    flops = total(ledger.ops).work_flops if estimated else None
    by_precision = _executed_by_precision(ledger) if is_log(ledger) else flops_by_precision(ledger)
    return ReportedStep(row, device, flops, by_precision, origin=origin, source=source, is_log=is_log(ledger))


def _row(cell: StudyCell, known: values.Values, facts: dict[str, str]) -> StudyRow:
    return StudyRow(cell=cell, state="done", values=with_rates(cell, known), facts=facts)


def _of_kernels(ledger: Ledger, device: Device | None) -> tuple[values.Values, dict[str, str]]:
    """Of somebody's log: the kernels of which FLOPs, bytes and time are all known, together."""
    whole = all_of(timed_groups(ledger))
    flops, moved, time_s = whole.flops, whole.dram_bytes, whole.time_s
    if device is None or flops is None or moved is None or time_s is None:
        return {}, {}
    verdict = kernel_verdict(Judge(ledger), whole)
    numbers: values.Values = {"executed.measured": flops, "bytes.measured": moved, "kernel_time.measured": time_s}
    if verdict.percent_of_roof is not None:
        numbers["percent_of_roof.measured"] = verdict.percent_of_roof
    return numbers, {"bound.measured": verdict.bound} if verdict.bound else {}


def _executed_by_precision(ledger: Ledger) -> dict[str, int | float]:
    """Of a log, which has no ops: what its kernels did, by the precision of the unit that counted it."""
    work: dict[str, int | float] = defaultdict(int)
    for kernel in ledger.kernels:
        for name in (*TENSOR_FLOPS, *CUDA_FLOPS):
            if name in kernel.quantities and kernel.quantities[name].value:
                work[name.rpartition("_")[2]] += kernel.quantities[name].value
    return work


def _cell(ledger: Ledger, on: str | None) -> StudyCell:
    header = ledger.header
    if header.step is None:  # a log: nobody knows more
        return StudyCell(model=header.model, on=on)
    spec = StepSpec.of(header)
    given = {name: getattr(spec, name) for name in StepSpec.__struct_fields__}
    return StudyCell(**{**given, "batch": header.batch or 1, "on": on})


def _named(source: str, ledger: Ledger) -> str:
    return source or ledger.header.model


def steps_of_study(rows: Sequence[StudyRow], folder: Path) -> list[ReportedStep]:
    """Every cell. `folder`: where the study's ledgers are, which tell precisions."""
    found = cache(_device)
    works: dict[object, dict[str, int | float]] = {}
    steps = []
    for row in rows:
        device = found(row.cell.on, row.facts.get("device", ""))
        # The precisions of a step are the same at every batch: one ledger tells them.
        alike = (row.cell.model, row.cell.step, row.cell.dtype, row.cell.autocast, row.cell.tf32)
        if alike not in works and (file := row.ledgers.get("estimated")):
            works[alike] = _work(folder / file)
        work = works.get(alike) or _usual_work(row.cell)
        steps.append(ReportedStep(row, device, work=work))
    return steps


def _device(on: str | None, ran_on: str) -> Device | None:
    """Of a study that was made elsewhere, `here` is the device that it ran on."""
    known = recognise_name(ran_on) if ran_on else None
    if known is not None or on is None:
        return known
    try:
        return device_of(on)
    except RooflightError:  # as the device of another machine
        return None


def _usual_work(cell: StudyCell) -> dict[str, int | float]:
    """Where no ledger tells: both precisions that fp32 work may run in, as torch has it."""
    if cell.autocast or cell.dtype != "fp32":
        return {cell.autocast or cell.dtype: 1}
    return {"fp32": 1} if cell.tf32 is False else {"tf32": 1} if cell.tf32 else {"tf32": 1, "fp32": 1}


def _work(path: Path) -> dict[str, int | float]:
    try:
        return dict(flops_by_precision(load(path)))
    except RooflightError:  # the study says so itself
        return {}
