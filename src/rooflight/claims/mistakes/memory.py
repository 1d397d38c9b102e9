"""Mistakes of bytes: one kind of memory for another, the wrong size of an element, profilers' units."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rooflight import units
from rooflight.claims import estimated, ran
from rooflight.claims.case import Case, Trial
from rooflight.claims.result import Candidate, CannotTell, Number

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
_ELEMENTS = {1: "elements, not bytes", 2: "2 bytes an element, as of 16 bits", 8: "8 bytes an element, as of fp64"}


def kinds(case: Case) -> Iterator[Candidate]:
    """Another kind of memory of the same place."""
    if case.name not in _KINDS:
        return
    for name, text in _KINDS.items():
        if name == case.name or (value := _memory(case, name)) is None or value == case.answer.value:
            continue
        yield Candidate("memory-kinds-confused", f"that is {text}, not {_KINDS[case.name]}", value)


def _memory(case: Case, name: str) -> Number | None:
    answering = estimated.ANSWERS.get(name) or ran.KEPT.get(name)
    if answering is None:
        answering = ran.ANSWERS[name] if case.scope.book.is_measured else None
    try:
        value = None if answering is None else answering(case.scope.of(name)).value
    except CannotTell:
        value = None
    return _by_the_table(case, name) if value is None or isinstance(value, (str, tuple)) else value


def _by_the_table(case: Case, name: str) -> Number | None:
    """What the other rows say of it, with the ledger's output where they leave that out."""
    found = case.table.find((name,), case.claim)
    if found is not None:
        return found.value
    workspace = case.table.find(("workspace_bytes",), case.claim)
    if workspace is None or name not in ("op_allocated_bytes", "self_growth_bytes"):
        return None
    output = _memory(case, "output_bytes")
    if output is None:
        return None
    return output + (workspace.value if name == "op_allocated_bytes" else -workspace.value)


def _element_sizes(case: Case) -> Iterator[Candidate]:
    own = case.scope.book.dtype_bytes
    if case.name not in ("output_bytes", "param_bytes", "weight_output_bytes", "input_bytes", "bytes", "input_size",
                         "model_bytes", "kept_bytes"):  # fmt: skip
        return
    value = case.answer.value
    assert not isinstance(value, (str, tuple))
    for size, text in _ELEMENTS.items():
        if size != own:
            yield Candidate("element-size", f"{text}; here they have {own}", Fraction(value) * Fraction(size, own))


def _printed(value: Number) -> tuple[float, str]:
    """As Nsight Compute prints bytes: 9,216 as 9.22 Kbyte."""
    for size, unit in ((1e9, "Gbyte"), (1e6, "Mbyte"), (1e3, "Kbyte")):
        if value >= size:
            return round(float(value) / size, 2), unit
    return float(value), "byte"


def _profiler_units(case: Case) -> Iterator[Candidate]:
    """Numbers of a log added up as they are printed, whatever the unit behind them."""
    names = {
        "dram_bytes": ("dram_bytes_read", "dram_bytes_written"),
        "dram_bytes_read": ("dram_bytes_read",),
        "dram_bytes_written": ("dram_bytes_written",),
    }.get(case.name)
    metric = case.scope.metric
    if names is None and "bytes" in metric:
        names = (metric,)
    if names is None:
        return
    wanted = frozenset(op.index for op in case.scope.ops)
    printed = [
        _printed(kernel.quantities[name].value)
        for kernel in case.scope.ledger.kernels
        if case.scope.place.kind == "total" or wanted.issuperset(kernel.ops)
        for name in names
        if name in kernel.quantities
    ]
    if not printed:
        return
    found = {unit for _, unit in printed}
    yield Candidate("units-of-the-log", f"numbers in {' and '.join(sorted(found))} added up as if they had one unit",
                    sum(number for number, _ in printed))  # fmt: skip
    for unit, size in (("Kbyte", 1e3), ("Mbyte", 1e6)):
        if unit in found and len(found) > 1:
            some = sum(number for number, one in printed if one == unit)
            others = ", ".join(sorted(found - {unit}))
            text = f"only the kernels whose bytes are printed in {unit}: those in {others} are left out"
            yield Candidate("units-of-the-log", text, some * size)
            yield Candidate("units-of-the-log", f"{text}, and {unit} read as byte", some)
    for unit, size in (("Kbyte", 1e3), ("Mbyte", 1e6)):
        text = f"all numbers read as {unit}, whatever the unit behind them"
        yield Candidate("units-of-the-log", text, size * sum(number for number, _ in printed))


def _read_and_written(case: Case) -> Iterator[Candidate]:
    if case.name not in ("dram_bytes", "dram_bytes_read", "dram_bytes_written"):
        return
    for name, text in (("dram_bytes_read", "what was read alone"), ("dram_bytes_written", "what was written alone"),
                       ("dram_bytes", "read and written together")):  # fmt: skip
        if name != case.name:
            value = ran.ANSWERS[name](case.scope.of(name)).value
            assert not isinstance(value, (str, tuple))
            yield Candidate("read-or-written", f"that is {text}, {units.exact(value)} B", value)  # type: ignore[arg-type]


LIKELY: tuple[Trial, ...] = (kinds, _element_sizes, _profiler_units, _read_and_written)
