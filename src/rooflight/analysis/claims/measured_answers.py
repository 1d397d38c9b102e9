"""What a measurement answers: counters, clocks and the allocator, of the whole step or of a part of it."""

from __future__ import annotations

from collections.abc import Callable

from rooflight.analysis.claims.claim import Claim
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.claims.result import Answer, CannotTell
from rooflight.analysis.claims.row_inference import WORKSPACE_SIGN
from rooflight.analysis.finding import Finding
from rooflight.hardware.device import Device
from rooflight.ledger import Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, ESTIMATED, METRICS, TENSOR_FLOPS
from rooflight.summary.measured_step import dram_bytes, executed_flops, rates

Answering = Callable[[ClaimScope], Answer]
SCOPES = {"wall_time": "the wall time", "gpu_busy": "the GPU-busy time", "kernel_time": "the sum of the kernels"}
RATES = {
    "throughput": ("samples_per_s", "throughput", "samples"),
    "tokens_per_s": ("tokens_per_s", "throughput", "tokens"),
    "performance": ("useful_flops_per_s", "performance", "useful FLOPs"),
    "traffic": ("dram_bytes_per_s", "DRAM throughput", "DRAM bytes"),
}
"""A field of `Rates`, what it is called, and what is done in a second."""
_WORDS = {
    "dram_bytes_read": "DRAM traffic", "dram_bytes_written": "DRAM traffic", "kernels": "the number of kernels",
    "wall_time": "wall time", "gpu_busy": "GPU-busy time", "kernel_time": "the time of the kernels",
    "workspace_bytes": "workspace", "growth_bytes": "growth", "peak_allocated_bytes": "peak of the allocator",
    "peak_reserved_bytes": "what the allocator reserved", "outside_bytes": "memory outside the allocator",
}  # fmt: skip
"""What was not measured, where it is not called by its title."""
_OF_THE_STEP = ("wall_time", "gpu_busy", "peak_allocated_bytes", "peak_reserved_bytes", "outside_bytes")


def check_run(book: LedgerBook, claim: Claim, device: Device | None) -> None:
    """Was it measured, and on the device that the row is of?"""
    header = book.ledger.header
    if not book.is_measured:
        on = f"on {claim.device}" if claim.device else ""
        raise CannotTell(
            f"the ledger is an estimate: nothing was measured {on}".strip(),
            f"{on and f'{on}: '}{book.command('measure')}",
        )
    if device is not None and book.device is not device:
        raise CannotTell(
            f"the ledger was measured on {header.device or 'no known device'}, the row is of {claim.device}",
            f"a ledger measured on {claim.device}",
        )
    if claim.batch is not None and header.batch is not None and claim.batch != header.batch:
        raise CannotTell(
            f"the ledger was measured at batch {header.batch}, the row is of {claim.batch}, and measured values do not "
            "scale",
            book.command("measure", batch=claim.batch),
        )


def _missing(scope: ClaimScope, what: str, needs: str = "rooflight measure") -> CannotTell:
    return CannotTell(f"{what} of {scope.part.name} was not measured", needs)


def _check_step(scope: ClaimScope, what: str) -> None:
    if not scope.is_step:
        raise CannotTell(f"{what} is of the whole step, not of {scope.part.name}", "a row of the total")


def _named(name: str, value: Value) -> Answer:
    return Answer(value.value, f"{name} {value.value:,}", value.origin, value.low, value.high)


def _measured(scope: ClaimScope) -> Answer:
    """A metric under its own name, of any part or of the step alone."""
    metric = QUANTITIES[scope.name].metric
    what = _WORDS.get(scope.name, METRICS[metric].title)
    if scope.name in _OF_THE_STEP:
        _check_step(scope, what)
    if (value := scope.measured(metric)) is None:
        raise _missing(scope, what)
    return _named(metric, value)


def several(scope: ClaimScope, names: tuple[str, ...]) -> Answer | None:
    """The sum of several counters, where at least one is known."""
    counted = [(name, value) for name in names if (value := scope.measured(name)) is not None]
    if not counted:
        return None
    low, high = (
        sum(value.value if (end := getattr(value, side)) is None else end for _, value in counted)
        for side in ("low", "high")
    )
    shown = [(name, value) for name, value in counted if value.value] or counted[:1]
    how = " + ".join(f"{name} {value.value:,}" for name, value in shown)
    return Answer(sum(value.value for _, value in counted), how, shown[0][1].origin, low, high)


_COMPLETE = {"executed_flops": executed_flops, "dram_bytes": dram_bytes}


def _is_unknown(scope: ClaimScope) -> bool:
    value = _COMPLETE[scope.name](scope.book.measured) if scope.is_step else getattr(scope.sums, scope.name)
    return value is None


def _summed(names: tuple[str, ...], what: str, needs: str) -> Answering:
    """Several counters; what all units execute, and all the traffic, is only known where every one of them is."""

    def answer(scope: ClaimScope) -> Answer:
        summed = several(scope, names)
        if summed is None or (scope.name in _COMPLETE and _is_unknown(scope)):
            raise _missing(scope, what, needs)
        return summed

    return answer


def _with_workspace(scope: ClaimScope) -> Answer:
    sign = WORKSPACE_SIGN[scope.name]
    output, workspace = scope.measured("output_bytes"), scope.measured("workspace_bytes")
    if output is None or workspace is None:
        raise _missing(scope, "memory")
    how = f"output {output.value:,} {'+' if sign > 0 else '-'} workspace {workspace.value:,} B"
    text = "both are held at once" if sign > 0 else "what an op takes less what it gives back"
    return Answer(output.value + sign * workspace.value, f"{how}: {text}", output.origin)


def _gpu_memory(scope: ClaimScope) -> Answer:
    _check_step(scope, "memory")
    reserved, outside = scope.measured("peak_reserved_bytes"), scope.measured("outside_bytes")
    if reserved is None or outside is None:
        raise _missing(scope, "memory")
    how = f"reserved {reserved.value:,} + outside the allocator {outside.value:,} B"
    return Answer(reserved.value + outside.value, how, reserved.origin)


def _rate(scope: ClaimScope) -> Answer:
    """By the wall, with its spread."""
    field, what, unit = RATES[scope.name]
    _check_step(scope, what)
    measured = scope.book.measured
    rate, clock = getattr(rates(measured), field), measured.step.get("wall_time_s")
    if rate is None or clock is None:
        raise _missing(scope, what)
    low = rate * clock.value / clock.high if clock.high else rate
    high = rate * clock.value / clock.low if clock.low else rate
    return Answer(rate, f"{unit} by the wall time of {clock.value:.6g} s", clock.origin, low, high)


def _counter(scope: ClaimScope) -> Answer:
    """A counter by its own name."""
    value = scope.measured(scope.metric)
    if value is None:
        base, _, rest = scope.metric.partition(".")
        hint = f"; it has {base}.sum" if rest != "sum" and scope.measured(f"{base}.sum") is not None else ""
        raise CannotTell(
            f"the ledger has no counter {scope.metric}{hint}", scope.book.command("measure", metrics=scope.metric)
        )
    return _named(scope.metric, value)


def scopes_of_time(scope: ClaimScope) -> list[Finding]:
    """Every time that was measured of the same work, by whose it is."""
    times = []
    for name, text in SCOPES.items():
        try:
            times.append(Finding(name.replace("_", "-"), text, ANSWERS[name](scope.of(name)).value))
        except CannotTell:
            continue
    return times


_ELSEWHERE = ("", *ESTIMATED, "ridge", "percent_of_roof")
"""No metrics, or such as are answered by formulas, by a device's figures, or under its roofs."""
_OPEN = "rooflight measure on a GPU whose counters are open"
_ALL_UNITS = "rooflight measure: counters of the CUDA and of the tensor cores"
ANSWERS: dict[str, Answering] = {
    **{name: _measured for name, quantity in QUANTITIES.items() if quantity.metric not in _ELSEWHERE},
    **dict.fromkeys(RATES, _rate),
    **dict.fromkeys(WORKSPACE_SIGN, _with_workspace),
    "executed_flops": _summed((*TENSOR_FLOPS, *CUDA_FLOPS), "executed FLOPs", _ALL_UNITS),
    "cuda_flops": _summed(CUDA_FLOPS, "work of the CUDA cores", _OPEN),
    "tensor_flops": _summed(TENSOR_FLOPS, "work of the tensor cores", _OPEN),
    "dram_bytes": _summed(DRAM_BYTES, "DRAM traffic, read and written,", _OPEN),
    "gpu_memory_bytes": _gpu_memory,
    "counter": _counter,
}
