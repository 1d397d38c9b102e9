"""Mistakes beside the formula, and all that the linter knows.

About what was measured: one kind of memory for another, the size of an element, profilers' units, whose time it is,
which units were counted, how much an instruction is worth. Slips of the pen: a prefix, a power of ten, bits for bytes,
a digit, the neighbour's row, another model's number.

Each is a function from a row to the values that the mistake would give it; the stated value tells which of them was
made. `LIKELY` is tried first, `REMOTE` where none of those gives the value, and `COSTLY` where none of these does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from rooflight import formatting
from rooflight.analysis.claims import estimated_answers, formula_mistakes, measured_answers, rate_mistakes
from rooflight.analysis.claims.claim import Amount, CannotTell, number_of
from rooflight.analysis.claims.conventions import (
    ClaimCase,
    Trial,
    conventions,
    only_for,
)
from rooflight.analysis.claims.ledger_query import LedgerBook
from rooflight.analysis.claims.measured_answers import SCOPES, several
from rooflight.analysis.claims.model_parts import part_of
from rooflight.analysis.claims.retracing import traced
from rooflight.analysis.claims.row_inference import WORKSPACE_SIGN
from rooflight.analysis.finding import Finding, Number
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS
from rooflight.models import builtin_names
from rooflight.summary.measured_step import rates

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
    "activation_gradient_bytes": "the activation gradients",
    "gradient_bytes": "the gradients",
    "optimizer_bytes": "the optimizer's state",
}
_FMA = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_OF_ELEMENTS = ("output_bytes", "param_bytes", "weight_output_bytes", "input_bytes", "bytes", "input_size",
                "model_bytes", "kept_bytes")  # fmt: skip
_DIGITS = 5
"""A number must have so many before one that differs is a slip and not another number."""
_ELEMENTS = {1: "elements, not bytes", 2: "2 bytes an element, as of 16 bits", 8: "8 bytes an element, as of fp64"}


@only_for(*_KINDS)
def _kinds(case: ClaimCase) -> Iterator[Finding]:
    """Another kind of memory of the same part."""
    for name, text in _KINDS.items():
        if name != case.name and (value := _memory(case, name)) is not None and value != case.answer.value:
            yield Finding("memory-kinds-confused", f"that is {text}, not {_KINDS[case.name]}", value)


def _memory(case: ClaimCase, name: str) -> Number | None:
    """Of the ledger, or what the other rows say of it, with the ledger's output where they leave that out."""
    answering = estimated_answers.ANSWERS.get(name)
    if answering is None and case.scope.book.is_measured:
        answering = measured_answers.ANSWERS[name]
    try:
        value = None if answering is None else number_of(answering(case.scope.of(name)).value)
    except CannotTell:
        value = None
    if value is not None:
        return value
    if (row := case.table.find((name,), case.claim)) is not None:
        return row.value
    workspace = case.table.find(("workspace_bytes",), case.claim)
    if workspace is None or name not in WORKSPACE_SIGN or (output := _memory(case, "output_bytes")) is None:
        return None
    return output + WORKSPACE_SIGN[name] * workspace.value


@only_for(*_OF_ELEMENTS)
def _element_sizes(case: ClaimCase) -> Iterator[Finding]:
    right = case.scope.book.dtype_bytes
    for size, text in _ELEMENTS.items():
        if size != right:
            yield Finding("element-size", f"{text}; here they have {right}", case.number * Fraction(size, right))


_MISREAD = {"Kbyte": 1e3, "Mbyte": 1e6}


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
    added = sum(number for number, _ in printed)
    text = f"numbers in {' and '.join(sorted(units))} added up as if they had one unit"
    yield Finding("units-of-the-log", text, added)
    for unit, size in _MISREAD.items():
        if unit in units and len(units) > 1:
            these = sum(number for number, other in printed if other == unit)
            others = ", ".join(sorted(units - {unit}))
            text = f"only the kernels whose bytes are printed in {unit}: those in {others} are left out"
            yield Finding("units-of-the-log", text, these * size)
            yield Finding("units-of-the-log", f"{text}, and {unit} read as byte", these)
    for unit, size in _MISREAD.items():
        text = f"all numbers read as {unit}, whatever the unit behind them"
        yield Finding("units-of-the-log", text, size * added)


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


@only_for("dram_bytes", "optimizer_bytes")
def _other_bytes(case: ClaimCase) -> Iterator[Finding]:
    if case.name == "dram_bytes":
        value = number_of(estimated_answers.ANSWERS["bytes"](case.scope.of("bytes")).value)
        yield Finding("compulsory-for-dram", "these are the compulsory bytes, by formula, not what was counted", value)
    else:
        params = case.scope.of_modules("param_bytes")
        text = (
            f"two states for every parameter, as Adam has them: this step keeps {formatting.exact(int(case.number))} B"
        )
        yield Finding("states-of-adam", text, 2 * params)


# Runs.


@only_for(*SCOPES)
def _scopes(case: ClaimCase) -> Iterator[Finding]:
    for time in measured_answers.scopes_of_time(case.scope):
        if time.code != case.name.replace("_", "-"):
            yield Finding("time-scopes-mixed", f"that is {time.text}, not {SCOPES[case.name]}", time.value)


@only_for("throughput")
def _while_busy(case: ClaimCase) -> Iterator[Finding]:
    """Samples come by the wall: between the kernels nobody gets any faster."""
    if (rate := rates(case.scope.book.measured, while_busy=True).samples_per_s) is not None:
        yield Finding("time-scopes-mixed", "samples by the GPU-busy time, not by the wall", rate)


@only_for(*SCOPES, "throughput")
def _per_sample(case: ClaimCase) -> Iterator[Finding]:
    batch = case.scope.ledger.header.batch
    if batch is not None and batch > 1:
        of_step = f"of one sample, and the row is of a step of {batch}"
        text = f"steps a second, not samples: a step has {batch}" if case.name == "throughput" else of_step
        yield Finding("batch-missing", text, case.number / batch)


@only_for("executed_flops")
def _counted_units(case: ClaimCase) -> Iterator[Finding]:
    """Counters of one kind of unit for all."""
    cuda, tensor = several(case.scope, CUDA_FLOPS), several(case.scope, TENSOR_FLOPS)
    if cuda is not None and tensor is not None and tensor.value:
        text = (
            f"only fadd + fmul + 2 x ffma: the tensor cores executed {tensor.value:,} more, which these "
            f"counters do not see; it is {100 * float(cuda.number / case.number):.3g}% of the work"
        )
        yield Finding("tensor-work-not-counted", text, cuda.value)
        yield Finding("cuda-work-not-counted", "the tensor cores alone", tensor.value)
    instructions = [case.scope.measured(_FMA.format(name)) for name in ("fadd", "fmul", "ffma")]
    counts = [counted.value for counted in instructions if counted is not None]
    if len(counts) == len(instructions):
        yield Finding("fma-counted-once", "fadd + fmul + ffma: a fused multiply-add counted as 1", sum(counts))


# Slips of the pen.


def _prefixes(case: ClaimCase) -> Iterator[Finding]:
    value = case.number
    for power in (1, 2, 3, 4):
        for factor, text in ((1000**power, "too large"), (Fraction(1, 1000**power), "too small")):
            yield Finding("prefix", f"a prefix is wrong: {1000**power:,} times {text}", value * factor)
    if case.claim.named is not None and case.claim.named.quantity.unit in ("byte", "byte/second"):
        for power in (1, 2, 3):
            text = f"divided by 1,024{'' if power == 1 else f'^{power}'} and not named so"
            yield Finding("prefix", text, value / 1024**power)
        yield Finding("bits-for-bytes", "bits, not bytes", value * 8)
        yield Finding("bytes-for-bits", "divided by 8, as if the value had been in bits", value / 8)


def _tens(case: ClaimCase) -> Iterator[Finding]:
    value = case.number
    for power in (1, 2, -1, -2):
        text = f"{10 ** abs(power)} times too {'large' if power > 0 else 'small'}: a slip of the decimal point"
        yield Finding("off-by-ten", text, value * Fraction(10) ** power)


def _digits(case: ClaimCase) -> Iterator[Finding]:
    """One digit another, or two neighbours swapped, of a number that was given in full."""
    stated, value = case.claim.stated, case.number
    if not isinstance(stated, Amount) or value.denominator != 1 or stated.value.denominator != 1:
        return
    said, right = str(int(stated.value)), str(int(value))
    if len(said) != len(right) or len(right) < _DIGITS:
        return
    places = [place for place, (digit, meant) in enumerate(zip(said, right, strict=True)) if digit != meant]
    swapped = len(places) == 2 and places[1] == places[0] + 1 and said[places[0]] == right[places[1]]
    if len(places) == 1 or (swapped and said[places[1]] == right[places[0]]):
        text = f"a digit is wrong: {int(stated.value):,} for {int(value):,}"
        yield Finding("digit-slip", text, stated.value)


def _neighbours(case: ClaimCase) -> Iterator[Finding]:
    """The value of another layer: rows that were swapped or shifted."""
    answering = estimated_answers.ANSWERS.get(case.name)
    if case.scope.part.kind != "module" or answering is None:
        return
    layers: dict[Fraction, list[str]] = {}
    for scope in formula_mistakes.other_layers(case):
        try:
            value = number_of(answering(scope).value)
        except CannotTell:
            continue
        if value and value != case.answer.value:
            layers.setdefault(value, []).append(scope.part.name)
    for value, names in layers.items():
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding("another-layer", f"that is the value of {names[0]}{more}", value)


@only_for("flops", "ops", "macs")
def _included(case: ClaimCase) -> Iterator[Finding]:
    """One layer too many in a sum, by any way to count it."""
    if case.scope.part.kind != "type":
        return
    for scope in formula_mistakes.other_layers(case):
        for text, code, count in formula_mistakes.WAYS:
            times = 1 if code else case.times
            if more := Fraction(count(scope)):
                said = f"{scope.part.name} is in the sum, and is no {case.scope.part.name}{text}"
                yield Finding("another-layer-included", said, times * (Fraction(count(case.scope)) + more))


def _family(model: str) -> str:
    """`resnet` of `resnet50`."""
    return re.split(r"[\d:_-]", model.lower())[0]


def _models(case: ClaimCase) -> Iterator[Finding]:
    """The numbers of a built-in model whose name begins alike: of an estimate in inference, traced the same way, which
    takes a few hundredths of a second."""
    header, part = case.scope.ledger.header, case.scope.part
    answering = estimated_answers.ANSWERS.get(case.name)
    if header.step != "infer" or header.batch is None or answering is None or part.kind not in ("total", "type"):
        return
    for name in builtin_names():
        if name == header.model or _family(name) != _family(header.model):
            continue
        if (other := traced(name, header.batch)) is None:
            continue
        scope = replace(case.scope, book=LedgerBook(other), part=part_of(other, case.claim.layer))
        value, text = answering(scope).value, f"that is the value of {name}, not of {header.model}"
        yield Finding("another-model", text, value)
        other_case = case.of(scope, value)
        for way in conventions(other_case):
            yield Finding(f"another-model+{way.code}", f"{text}, in another convention: {way.text}", way.value)
        for slip in rate_mistakes.share_with_others(other_case):
            yield Finding(f"another-model+{slip.code}", f"{text}; and {slip.text}", slip.value)


_COUNTS: tuple[Trial, ...] = (
    *formula_mistakes.LIKELY,
    _kinds,
    _element_sizes,
    _profiler_units,
    _read_and_written,
    _other_bytes,
    _scopes,
    _while_busy,
    _per_sample,
    _counted_units,
)
LIKELY: tuple[Trial, ...] = (*_COUNTS, *rate_mistakes.rate_mistakes(_COUNTS))
REMOTE: tuple[Trial, ...] = (
    *formula_mistakes.REMOTE,
    _digits,
    _tens,
    _prefixes,
    _neighbours,
    _included,
    rate_mistakes.share_with_others,
)
COSTLY: tuple[Trial, ...] = (_models,)
