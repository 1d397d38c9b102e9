"""A step that cannot be taken back, measured over the program's next steps: each is used for one thing.

First plain ones for the time, then some that are recorded op by op, then one for each pass of the counters. Steps need
not be alike: ops are joined by their keys, and what differs from step to step shows as a spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import torch
from msgspec.structs import replace

from rooflight.errors import CannotMeasure
from rooflight.ledger import Key, Ledger, Measurement, Note, Value
from rooflight.measurement.collectors import gpu_memory
from rooflight.measurement.collectors.cpu import processor
from rooflight.measurement.collectors.plain_step import CollectorContext, wall_time
from rooflight.measurement.cupti.op_passes import OpCounterPasses, check_counters
from rooflight.measurement.execution.eager import EagerStep
from rooflight.measurement.findings import Findings, Progress, median
from rooflight.measurement.live import StepWatch
from rooflight.measurement.options import MeasureOptions
from rooflight.trace.program_stage import ProgramStage
from rooflight.trace.recorder import Observer
from rooflight.trace.snapshot import Snapshot

_MOST_PASSES = 200


def measure_next_steps(stage: ProgramStage, options: MeasureOptions, progress: Progress) -> Ledger:
    """The ledger of the first recorded step, with what the others tell of it."""
    findings = Findings()
    on_gpu = stage.options.on == "cuda"
    stage.run()  # what a first step sets up is no part of the others
    with findings.collecting("time"):
        wall_time(CollectorContext(stage, options, EagerStep(stage), findings, progress))
    if on_gpu:
        with findings.collecting("memory of the step"):
            memory, about = gpu_memory.step_memory(stage)
            findings.step.update(memory)
            findings.notes += about
    watches = []
    for number in range(options.profiled_runs):
        progress("ops", number, options.profiled_runs)
        watches.append(_watched(stage))
    ledger = _with_spread(watches[0].ledger(step=findings.step), watches)
    if on_gpu and options.counters in ("auto", "cupti"):
        with findings.collecting("counters"):
            ledger = _counted(stage, ledger, options, progress)
    if not on_gpu:
        findings.rates = processor()
    notes = (*stage.steps_taken, *ledger.header.notes, *findings.notes)
    return replace(ledger, header=replace(ledger.header, rates=findings.rates, notes=notes))


def _watched(stage: ProgramStage, observer: Observer | None = None) -> StepWatch:
    reached = Snapshot.of_call(stage.step, *stage.arguments, saves=False)
    watch = StepWatch(reached, name=stage.name, command=stage.options.command)
    watch.start(observer)
    output = None
    try:
        output = stage.run()
    finally:
        watch.stop(output)
    return watch


def _with_spread(ledger: Ledger, watches: Sequence[StepWatch]) -> Ledger:
    """Each op with the median of all recorded steps that had it."""
    by_key: dict[Key, list[dict[str, Value]]] = {}
    for watch in watches:
        for op in watch.ops:
            by_key.setdefault(op.key, []).append(watch.quantities.get(op.index, {}))
    rows: list[Measurement] = []
    for row in ledger.measurements:
        if row.scope == "op" and len(row.ops) == 1:
            rows.append(replace(row, quantities=_medians(by_key[ledger.ops[row.ops[0]].key], len(watches))))
        else:
            rows.append(row)
    different = sum(len(found) < len(watches) for found in by_key.values())
    note = Note(
        "steps-differ",
        f"{different:,} of {len(by_key):,} ops are not in all of the {len(watches)} recorded steps: the steps differ",
    )
    header = replace(ledger.header, notes=(*ledger.header.notes, note)) if different else ledger.header
    return replace(ledger, header=header, measurements=tuple(rows))


def _medians(runs: Sequence[dict[str, Value]], steps: int) -> dict[str, Value]:
    first = runs[0]
    return {
        name: median([run[name].value for run in runs if name in run], f"{value.origin}; median of {steps} steps")
        for name, value in first.items()
    }


def _counted(stage: ProgramStage, ledger: Ledger, options: MeasureOptions, progress: Progress) -> Ledger:
    """With counters, one pass a step."""
    check_counters()
    busy = {row.ops[0] for row in ledger.measurements if row.scope == "op" and "kernels" in row.quantities}
    with closing(OpCounterPasses(ledger.ops, busy, levels=options.levels)) as passes:
        while not passes.complete:
            if passes.passes > _MOST_PASSES:
                raise CannotMeasure("passes-missing", f"{passes.passes} steps did not bring all counters")
            progress("counters", passes.passes, passes.passes + 1)
            passes.begin()
            try:
                watch = _watched(stage, passes)
                torch.cuda.synchronize()
            except BaseException:
                passes.abort()
                raise
            passes.end(watch.ops)
        return passes.added_to(ledger)
