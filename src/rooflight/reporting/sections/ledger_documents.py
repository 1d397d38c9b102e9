"""A ledger as a document, whatever it holds: an estimate, a measurement, a log; and its headline and notes in words."""

from __future__ import annotations

from collections.abc import Collection

from rooflight import formatting, summary
from rooflight.ledger import Header, Ledger, total
from rooflight.reporting.charts import memory_course
from rooflight.reporting.document import DEPTH, Document, table_sections
from rooflight.reporting.sections import (
    collective_tables,
    estimate_tables,
    kernel_tables,
    measure_tables,
    measure_text,
    region_tables,
)
from rooflight.reporting.sections.inferred_text import inferred_line, inferred_notes
from rooflight.reporting.sections.kernel_groups import By as ByKernel
from rooflight.reporting.sections.ledger_data import ledger_data
from rooflight.reporting.table import Table
from rooflight.summary import By
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.region_tree import regions_of
from rooflight.summary.reliability import crowded

CONVENTIONS = (
    "1 multiply-add = 2 FLOP; FLOPs are matrix work (convolution, matmul, attention) = 2 × MACs, a bias is part of it; "
    "other = 1 per arithmetic result, function or comparison elsewhere; bytes are compulsory: every distinct input "
    "read once, every output written once, no reuse between ops; attention counts the full S², causal FLOPs the kept "
    "half; recomputed work stands apart; FLOP/B = (causal FLOPs + other + recomputed) / bytes; share is of FLOPs."
)


KINDS = {"infer": "inference", "train": "training step", "decode": "decoding one token"}


def headline(ledger: Ledger) -> str:
    """`resnet50 · training step · batch 16 · fp32 (TF32 convolutions) · momentum SGD`, without what is not known."""
    header = ledger.header
    batch = None if header.step is None and header.batch is None else str(header.batch or "unknown")
    if header.gpus > 1 and header.world > 1 and batch is not None:
        batch += f" on each of {header.world} ranks ({header.parallel})"
    parts = step_parts(header, batch, _precision(ledger))
    return " · ".join([*parts, *([header.device] if header.device is not None else [])])


def step_parts(header: Header, batch: str | None, precision: str) -> list[str]:
    """The model, and what is done with it."""
    parts = [header.model]
    parts += [KINDS[header.step]] if header.step is not None else []
    parts += [f"batch {batch}"] if batch is not None else []
    if header.accumulate > 1:
        parts[-1] += f" × {header.accumulate} accumulated"
    if header.step == "decode":
        parts.append("one more token" if header.past is None else f"{header.past:,} tokens in the KV cache")
    elif header.sequence is not None:
        parts.append(f"sequence {header.sequence}")
    parts += [precision] if precision else []
    if header.step == "train":
        said = [part for part in (header.loss and f"{header.loss} loss", header.optimizer) if part]
        parts += [", ".join(said)] if said else []
    if header.checkpoint:
        parts.append(f"checkpointed: {', '.join(header.checkpoint)}")
    return parts + _run_as(header)


def _run_as(header: Header) -> list[str]:
    """How a step is run, where that is not plainly."""
    said = {
        "channels_last": header.channels_last,
        "fused optimizer": header.fused,
        "padded products": header.pad,
        "compiled": header.is_compiled,
        "CUDA graph": header.is_graph,
    }
    return [words for words, given in said.items() if given]


def _precision(ledger: Ledger) -> str:
    on_gpu = ledger.header.target.startswith("cuda")
    return in_precision(
        ledger.header, {op.precision for op in ledger.ops if op.cost and op.cost.macs} if on_gpu else ()
    )


def in_precision(header: Header, used: Collection[str]) -> str:
    """`fp32 (TF32 in convolutions, not in matmuls)`; `used`: what matrix work really runs in."""
    text = header.dtype or ""
    if header.dtype == "fp32" and "tf32" in used:
        matmuls = header.math is not None and header.math.tf32_matmul
        rest = "convolutions and matmuls, not in attention" if matmuls else "convolutions, not in matmuls"
        text += f" (TF32 in {'all matrix work' if 'fp32' not in used else rest})"
    return f"{text}, autocast {header.autocast}".lstrip(", ") if header.autocast else text


def provenance(ledger: Ledger) -> str:
    header = ledger.header
    versions = (
        f"torch {header.torch}, rooflight {header.rooflight}" if header.torch else f"rooflight {header.rooflight}"
    )
    if not ledger.ops:
        return f"{len(ledger.kernels):,} kernels, no ops; {versions}"
    if is_measured(ledger):
        return f"{len(ledger.ops):,} ops, views included, recorded as the step ran on {header.traced_on}; {versions}"
    ran_here = header.traced_on in ("cpu", "cuda")
    how = "as it ran there" if ran_here else f"as {header.target} would run it"
    return f"one trace of {len(ledger.ops):,} ops on {header.traced_on} tensors, {how}; {versions}"


def coverage(ledger: Ledger) -> str:
    """Which ops the totals do not cover; said even when there are none."""
    missing = total(ledger.ops).uncounted
    if not missing:
        return "every op has a formula: nothing is left out of the totals"
    names = ", ".join(f"{row.op} ({row.calls}×)" for row in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"NOT COUNTED, no formula: {names}{more} — add one with @rooflight.formula"


def parameters_line(ledger: Ledger) -> str:
    count, trainable = summary.params(ledger), summary.trainable_params(ledger)
    frozen = f", {count - trainable:,} of them frozen" if count != trainable else ""
    return f"{count:,} parameters{frozen} ({formatting.bytes_(summary.param_bytes(ledger))})"


def summary_sizes(ledger: Ledger) -> tuple[str, ...]:
    """The block that torchsummary prints below its table, in a line; and the same counted otherwise, where that gives
    something else."""
    sizes = summary.sizes(ledger)
    beside = sizes.input_bytes + sizes.param_bytes

    def mebibytes(nbytes: int) -> str:
        return f"{nbytes / 2**20:,.2f}"

    def pair(outputs: int) -> str:
        return f"{mebibytes(2 * outputs)} and {mebibytes(beside + 2 * outputs)}"

    both, hooked = sizes.forward_backward_bytes, sizes.hooked_output_bytes
    blocks = ", of blocks beside their layers" if hooked != sizes.leaf_output_bytes else ""
    lines = [
        f"model summary in MiB: input size {mebibytes(sizes.input_bytes)}, forward/backward pass size "
        f"{mebibytes(both)} (outputs of modules{blocks}, twice: as torchsummary, which writes MB), params size "
        f"{mebibytes(sizes.param_bytes)}, estimated total size {mebibytes(beside + both)}"
    ]
    every, with_params = sizes.every_output_bytes, sizes.parameterised_output_bytes
    others = []
    if every != hooked:
        others.append(f"{pair(every)} by outputs of every op, functions included")
    if with_params not in (every, hooked):
        others.append(f"{pair(with_params)} by those of leaf modules with parameters (torchinfo)")
    if others:
        lines.append(f"forward/backward and total, counted otherwise: {'; '.join(others)}")
    return tuple(lines)


def describe(ledger: Ledger) -> str:
    """The `repr` of a ledger: what it is, and its totals."""
    lines = [headline(ledger)]
    if ledger.modules:
        lines.append(parameters_line(ledger))
    if ledger.ops:
        lines += _estimated(ledger)
    if is_measured(ledger):
        lines += measure_text.headlines(Measured(ledger))
    lines.extend(f"note: {note}" for note in ledger.header.notes)
    lines.append(provenance(ledger))
    return "\n".join(lines)


def _estimated(ledger: Ledger) -> list[str]:
    if all(op.cost is None for op in ledger.ops):
        return ["no costs yet: rooflight.estimate fills them"]
    sums = total(ledger.ops)
    again = f" + {formatting.count(sums.recompute_flops)} again" if sums.recompute_flops else ""
    return [
        f"{formatting.count(sums.macs)} MACs, {formatting.count(sums.flops)} FLOPs{again}, "
        f"{formatting.count(sums.other_flops)} other, {formatting.bytes_(sums.bytes)} moved, "
        f"{formatting.ratio(sums.intensity)} FLOP/B",
        coverage(ledger),
    ]


def ledger_document(
    ledger: Ledger,
    *,
    by: By = "module",
    depth: int | None = None,
    folded: bool = True,
    memory: bool = False,
    kernels: int = 10,
) -> Document:
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
    ledger: Ledger,
    *,
    by: By = "module",
    depth: int | None = None,
    folded: bool = True,
    epochs: int | None = None,
    dataset_size: int | None = None,
) -> Document:
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
        title=headline(ledger),
        lines=(parameters_line(ledger),),
        sections=table_sections(tables),
        notes=(*summary_sizes(ledger), *_notes(ledger), coverage(ledger)),
        small_print=(CONVENTIONS, provenance(ledger)),
        rows=lambda: estimate_tables.main_table(ledger, by, depth=depth, folded=False),
        data=lambda: ledger_data(ledger, run_steps=steps),
    )


def measure_document(
    ledger: Ledger,
    *,
    by: By = "module",
    depth: int | None = None,
    folded: bool = True,
    memory: bool = False,
    kernels: int = 10,
) -> Document:
    """What the silicon did in a step."""
    measured = Measured(ledger)
    said = [*_notes(ledger), *measure_text.remarks(measured), *inferred_notes(measured)]
    said += [f"conditions: {line}"] if (line := measure_text.conditions(ledger)) else []
    said += [coverage(ledger)] if ledger.ops else []
    small = [f"from {line}" for line in measure_text.provenance(measured)]
    shown = DEPTH if depth is None else depth
    return Document(
        title=headline(ledger),
        lines=(*([parameters_line(ledger)] if ledger.modules else []), *measure_text.headlines(measured)),
        sections=table_sections(_tables(measured, by=by, depth=shown, folded=folded, memory=memory, kernels=kernels)),
        notes=tuple(said),
        small_print=(*small, provenance(ledger), measure_text.conventions(measured)),
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
        measure_tables.time_table(measured),
        measure_tables.speed_table(measured),
        measure_tables.check_table(measured),
        measure_tables.memory_table(measured),
        measure_tables.rank_table(measured),
    ]
    if regions_of(ledger):
        tables.append(region_tables.region_table(ledger))
    if memory:
        tables.append(memory_course.timeline_table(measured))
        tables.append(measure_tables.operator_memory_table(measured, by, depth=depth))
    if kernels:
        tables.append(measure_tables.kernel_table(measured, limit=kernels))
    return tables


def log_document(
    ledger: Ledger,
    *,
    by: ByKernel = "kernel",
    top: int | None = None,
    rows_top: int | None = None,
    exit_code: int | None = None,
) -> Document:
    """A log from elsewhere: kernels, and no ops to put them under; or the regions of a program, that ended so.

    `top`: so many kernels are shown, `rows_top`: so many are in a file of values; the others are added up.
    """
    if regions_of(ledger):
        said = (crowded(ledger), region_tables.covered_line(ledger))
        return Document(
            title=region_tables.headline(ledger),
            lines=tuple(filter(None, said)),
            sections=table_sections([region_tables.region_table(ledger)]),
            notes=_notes(ledger),
            small_print=(region_tables.CONVENTIONS,),
            rows=lambda: region_tables.region_values(ledger),
            data=lambda: region_tables.region_data(ledger, exit_code=exit_code),
        )
    counted = kernel_tables.flop_count_line(ledger)
    tables = [kernel_tables.kernel_table(ledger, by, top=top), kernel_tables.totals_table(ledger)]
    together = collective_tables.collectives_of(ledger)
    tables = [collective_tables.rank_table(ledger), collective_tables.collective_table(ledger), *tables]
    measured = Measured(ledger)
    inferred = inferred_line(measured)
    return Document(
        title=kernel_tables.headline(ledger),
        lines=(inferred,) if inferred else (),
        sections=table_sections(tables),
        notes=(*((counted,) if counted else ()), *_notes(ledger), *inferred_notes(measured)),
        small_print=(
            *((collective_tables.CONVENTIONS,) if together else ()),
            *kernel_tables.origins(ledger),
            *kernel_tables.small_print(ledger),
        ),
        rows=lambda: kernel_tables.kernel_table(ledger, by, top=rows_top),
        data=lambda: kernel_tables.log_data(ledger),
    )


def _notes(ledger: Ledger) -> tuple[str, ...]:
    return tuple(f"note: {note}" for note in ledger.header.notes)
