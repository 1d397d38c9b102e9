"""Mistakes about what was measured: one kind of memory for another, the size of an element, profilers' units; whose
time it is, which units were counted, how much an instruction is worth."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rooflight import formatting
from rooflight.analysis.claims import estimated_answers, measured_answers
from rooflight.analysis.claims.case import ClaimCase, Trial, only_for
from rooflight.analysis.claims.measured_answers import SCOPES, MeasuredPart
from rooflight.analysis.claims.result import CannotTell, number_of
from rooflight.analysis.finding import Finding, Number
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS

_KINDS = {
    "output_bytes": "the op's output",
    "workspace_bytes": "its workspace, which is given back",
    "op_allocated_bytes": "output and workspace together, most of which is given back",
    "growth_bytes": "the net growth",
    "self_growth_bytes": "the output less the workspace",
    "peak_allocated_bytes": "the allocated peak",
    "peak_reserved_bytes": "the reserved peak",
    "gpu_memory_bytes": "all that the process holds of the device",
    "outside_bytes": "what lies outside the allocator",
    "param_bytes": "the parameters",
    "kept_bytes": "the activations kept for backward",
    "gradient_bytes": "the gradients",
    "optimizer_bytes": "the optimizer's state",
}
_FMA = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_OF_ELEMENTS = (
    "output_bytes",
    "param_bytes",
    "weight_output_bytes",
    "input_bytes",
    "bytes",
    "input_size",
    "model_bytes",
    "kept_bytes",
)
_ELEMENTS = {1: "elements, not bytes", 2: "2 bytes an element, as of 16 bits", 8: "8 bytes an element, as of fp64"}


@only_for(*_KINDS)
def _kinds(case: ClaimCase) -> Iterator[Finding]:
    """Another kind of memory of the same part."""
    for name, text in _KINDS.items():
        if name != case.name and (value := _memory(case, name)) is not None and value != case.answer.value:
            yield Finding("memory-kinds-confused", f"that is {text}, not {_KINDS[case.name]}", value)


def _memory(case: ClaimCase, name: str) -> Number | None:
    answering = estimated_answers.ANSWERS.get(name) or measured_answers.KEPT.get(name)
    if answering is None and case.scope.book.is_measured:
        answering = measured_answers.ANSWERS[name]
    try:
        value = None if answering is None else number_of(answering(case.scope.of(name)).value)
    except CannotTell:
        value = None
    return _by_the_table(case, name) if value is None else value


def _by_the_table(case: ClaimCase, name: str) -> Number | None:
    """What the other rows say of it, with the ledger's output where they leave that out."""
    row = case.table.find((name,), case.claim)
    if row is not None:
        return row.value
    workspace = case.table.find(("workspace_bytes",), case.claim)
    if workspace is None or name not in ("op_allocated_bytes", "self_growth_bytes"):
        return None
    output = _memory(case, "output_bytes")
    if output is None:
        return None
    return output + (workspace.value if name == "op_allocated_bytes" else -workspace.value)


@only_for(*_OF_ELEMENTS)
def _element_sizes(case: ClaimCase) -> Iterator[Finding]:
    own = case.scope.book.dtype_bytes
    for size, text in _ELEMENTS.items():
        if size != own:
            yield Finding("element-size", f"{text}; here they have {own}", case.number * Fraction(size, own))


def _printed(value: Number) -> tuple[float, str]:
    """As Nsight Compute prints bytes: 9,216 as 9.22 Kbyte."""
    for size, unit in ((1e9, "Gbyte"), (1e6, "Mbyte"), (1e3, "Kbyte")):
        if value >= size:
            return round(float(value) / size, 2), unit
    return float(value), "byte"


def _profiler_units(case: ClaimCase) -> Iterator[Finding]:
    """Numbers of a log added up as they are printed, whatever the unit behind them."""
    metric = case.scope.metric
    names = DRAM_BYTES if case.name == "dram_bytes" else (case.name,) if case.name in DRAM_BYTES else ()
    if not names and "bytes" in metric:
        names = (metric,)
    wanted = frozenset(op.index for op in case.scope.ops)
    printed = [
        _printed(kernel.quantities[name].value)
        for kernel in case.scope.ledger.kernels
        if case.scope.part.kind == "total" or wanted.issuperset(kernel.ops)
        for name in names
        if name in kernel.quantities
    ]
    if not printed:
        return
    units = {unit for _, unit in printed}
    yield Finding(
        "units-of-the-log",
        f"numbers in {' and '.join(sorted(units))} added up as if they had one unit",
        sum(number for number, _ in printed),
    )
    for unit, size in (("Kbyte", 1e3), ("Mbyte", 1e6)):
        if unit in units and len(units) > 1:
            these = sum(number for number, other in printed if other == unit)
            others = ", ".join(sorted(units - {unit}))
            text = f"only the kernels whose bytes are printed in {unit}: those in {others} are left out"
            yield Finding("units-of-the-log", text, these * size)
            yield Finding("units-of-the-log", f"{text}, and {unit} read as byte", these)
    for unit, size in (("Kbyte", 1e3), ("Mbyte", 1e6)):
        text = f"all numbers read as {unit}, whatever the unit behind them"
        yield Finding("units-of-the-log", text, size * sum(number for number, _ in printed))


@only_for("dram_bytes", *DRAM_BYTES)
def _read_and_written(case: ClaimCase) -> Iterator[Finding]:
    for name, text in (
        ("dram_bytes_read", "what was read alone"),
        ("dram_bytes_written", "what was written alone"),
        ("dram_bytes", "read and written together"),
    ):
        if name != case.name:
            value = measured_answers.ANSWERS[name](case.scope.of(name)).value
            assert isinstance(value, (int, float))
            yield Finding("read-or-written", f"that is {text}, {formatting.exact(value)} B", value)


# Runs.


@only_for(*SCOPES)
def _scopes(case: ClaimCase) -> Iterator[Finding]:
    for time in measured_answers.scopes_of_time(case.scope):
        if time.code != case.name.replace("_", "-"):
            yield Finding("time-scopes-mixed", f"that is {time.text}, not {SCOPES[case.name]}", time.value)


@only_for(*SCOPES, "throughput")
def _per_sample(case: ClaimCase) -> Iterator[Finding]:
    own = case.scope.ledger.header.batch
    if own is not None and own > 1:
        of_step = f"of one sample, and the row is of a step of {own}"
        text = f"steps a second, not samples: a step has {own}" if case.name == "throughput" else of_step
        yield Finding("batch-missing", text, case.number / own)


@only_for("executed_flops")
def _counted_units(case: ClaimCase) -> Iterator[Finding]:
    """Counters of one kind of unit for all."""
    part = MeasuredPart(case.scope)
    cuda, tensor = part.several(CUDA_FLOPS), part.several(TENSOR_FLOPS)
    if cuda is not None and tensor is not None and tensor.value:
        text = (
            f"only fadd + fmul + 2 x ffma: the tensor cores executed {tensor.value:,} more, which these "
            f"counters do not see; it is {100 * float(cuda.number / case.number):.3g}% of the work"
        )
        yield Finding("tensor-work-not-counted", text, cuda.value)
        yield Finding("cuda-work-not-counted", "the tensor cores alone", tensor.value)
    instructions = [part.value(_FMA.format(name)) for name in ("fadd", "fmul", "ffma")]
    counts = [counted.value for counted in instructions if counted is not None]
    if len(counts) == len(instructions):
        yield Finding("fma-counted-once", "fadd + fmul + ffma: a fused multiply-add counted as 1", sum(counts))


LIKELY: tuple[Trial, ...] = (
    _kinds,
    _element_sizes,
    _profiler_units,
    _read_and_written,
    _scopes,
    _per_sample,
    _counted_units,
)
