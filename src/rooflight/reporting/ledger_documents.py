"""A ledger as a document: an estimate, a measured step, a log from elsewhere, or the regions of a program."""

from __future__ import annotations

from rooflight.ledger import Ledger
from rooflight.measured import Measured, is_measured
from rooflight.reporting import (
    estimate_tables,
    kernel_tables,
    measure_tables,
    measure_text,
    memory_timeline,
    region_tables,
    step_tables,
    text,
)
from rooflight.reporting.document import DEPTH, Document, table_sections
from rooflight.reporting.kernel_groups import By as ByKernel
from rooflight.reporting.ledger_data import ledger_data
from rooflight.reporting.table import Table
from rooflight.summary import By


def ledger_document(
    ledger: Ledger, *, by: By = "module", depth: int | None = None, folded: bool = True, memory: bool = False,
    kernels: int = 10,
) -> Document:  # fmt: skip
    """Of whatever it is. `depth`: levels of the tree; `folded`: equal blocks once; `memory`: with the allocator's view
    of every op; `kernels`: so many of them."""
    if is_log(ledger):
        return log_document(ledger, top=kernels or None, rows_top=None)
    if is_measured(ledger):
        return measure_document(ledger, by=by, depth=depth, folded=folded, memory=memory, kernels=kernels)
    return estimate_document(ledger, by=by, depth=depth, folded=folded)


def is_log(ledger: Ledger) -> bool:
    """Is it of no step that could be taken apart? A step may have no ops on record."""
    return ledger.header.step is None and is_measured(ledger)


def estimate_document(
    ledger: Ledger, *, by: By = "module", depth: int | None = None, folded: bool = True, epochs: int | None = None,
    dataset_size: int | None = None,
) -> Document:  # fmt: skip
    """What the mathematics says; of a whole training run with `epochs` and `dataset_size`."""
    shown = DEPTH if depth is None else depth
    tables = [estimate_tables.main_table(ledger, by, depth=shown, folded=folded)]
    if ledger.header.step == "train":
        tables.append(estimate_tables.phase_table(ledger))
    if by != "type":
        tables.append(estimate_tables.type_table(ledger))
    tables.append(estimate_tables.total_table(ledger, epochs=epochs, dataset_size=dataset_size))
    tables.append(estimate_tables.memory_table(ledger))
    steps = estimate_tables.run_steps(ledger, epochs=epochs, dataset_size=dataset_size)
    return Document(
        title=text.headline(ledger),
        lines=(text.parameters_line(ledger),),
        sections=table_sections(tables),
        notes=(*_notes(ledger), text.coverage(ledger)),
        small_print=(text.CONVENTIONS, text.provenance(ledger)),
        rows=lambda: estimate_tables.main_table(ledger, by, depth=depth, folded=False),
        data=lambda: ledger_data(ledger, run_steps=steps),
    )


def measure_document(
    ledger: Ledger, *, by: By = "module", depth: int | None = None, folded: bool = True, memory: bool = False,
    kernels: int = 10,
) -> Document:  # fmt: skip
    """What the silicon did in a step."""
    measured = Measured(ledger)
    said = [*_notes(ledger), *measure_text.coverage(measured)]
    said += [line] if (line := measure_text.flop_count_line(measured)) else []
    if measured.attributed[0] or measured.attributed[2]:
        said.append(measure_text.attribution(measured))
    said += [f"conditions: {line}"] if (line := measure_text.conditions(ledger)) else []
    said += [text.coverage(ledger)] if ledger.ops else []
    small = [f"from {line}" for line in measure_text.provenance(measured)]
    shown = DEPTH if depth is None else depth
    return Document(
        title=text.headline(ledger),
        lines=(*([text.parameters_line(ledger)] if ledger.modules else []), *measure_text.headlines(measured)),
        sections=table_sections(_tables(measured, by=by, depth=shown, folded=folded, memory=memory, kernels=kernels)),
        notes=tuple(said),
        small_print=(*small, text.provenance(ledger), measure_text.conventions(measured)),
        rows=lambda: measure_tables.main_table(measured, by, depth=depth, folded=False),
        data=lambda: ledger_data(ledger),
    )


def _tables(measured: Measured, *, by: By, depth: int | None, folded: bool, memory: bool, kernels: int) -> list[Table]:
    ledger = measured.ledger
    tables = []
    if ledger.ops:
        tables.append(measure_tables.main_table(measured, by, depth=depth, folded=folded))
        if ledger.header.step == "train":
            tables.append(measure_tables.phase_table(measured))
    tables += [
        step_tables.time_table(measured), step_tables.speed_table(measured), step_tables.check_table(measured),
        step_tables.memory_table(measured),
    ]  # fmt: skip
    if memory:
        tables.append(memory_timeline.timeline_table(measured))
        tables.append(measure_tables.operator_memory_table(measured, by, depth=depth))
    if kernels:
        tables.append(step_tables.kernel_table(measured, limit=kernels))
    return tables


def log_document(ledger: Ledger, *, by: ByKernel = "kernel", top: int | None = None, rows_top: int | None = None,
                 exit_code: int | None = None) -> Document:  # fmt: skip
    """A log from elsewhere: kernels, and no ops to put them under; or the regions of a program, that ended so.

    `top`: so many kernels are shown, `rows_top`: so many are in a file of values; the others are added up.
    """
    if region_tables.regions_of(ledger):
        crowded = measure_text.crowded(ledger)
        return Document(
            title=region_tables.headline(ledger),
            lines=(crowded,) if crowded else (),
            sections=table_sections([region_tables.region_table(ledger)]),
            notes=_notes(ledger),
            small_print=(region_tables.CONVENTIONS,),
            rows=lambda: region_tables.region_table(ledger),
            data=lambda: region_tables.region_data(ledger, exit_code=exit_code),
        )
    counted = kernel_tables.flop_count_line(ledger)
    return Document(
        title=kernel_tables.headline(ledger),
        sections=table_sections([kernel_tables.kernel_table(ledger, by, top=top), kernel_tables.totals_table(ledger)]),
        notes=(*((counted,) if counted else ()), *_notes(ledger)),
        small_print=(*kernel_tables.origins(ledger), *kernel_tables.small_print(ledger)),
        rows=lambda: kernel_tables.kernel_table(ledger, by, top=rows_top),
        data=lambda: kernel_tables.log_data(ledger),
    )


def _notes(ledger: Ledger) -> tuple[str, ...]:
    return tuple(f"note: {note}" for note in ledger.header.notes)
