"""What a measurement answers: counters, clocks and the allocator, of the whole step or of a part of it; and where a
part of a step lies under the roofs of a device.

Under the roofs there are the verdicts that `rooflight compare` shows, and no others. What was measured lies under those
of its own device. Of what was only estimated, or is asked of another device, only the bound is told, with predicted
times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rooflight.analysis.claims.claim import Answer, CannotTell, Claim
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.claims.row_inference import WORKSPACE_SIGN
from rooflight.analysis.finding import Finding
from rooflight.analysis.verdict_text import place as place_text
from rooflight.analysis.verdicts import Judge, StepVerdict, Verdict
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, ESTIMATED, METRICS, TENSOR_FLOPS, percent_text
from rooflight.prediction.roofline import roofline
from rooflight.summary.measured_rows import phases
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
    if claim.step == "inference" and header.step == "train":
        raise CannotTell(
            "the ledger is of a training step, the row of an inference", book.command("measure", step="infer")
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


_OPEN = "rooflight measure on a GPU whose counters are open"
_COUNTERS = {
    "executed_flops": ((*TENSOR_FLOPS, *CUDA_FLOPS), "executed FLOPs",
                       "rooflight measure: counters of the CUDA and of the tensor cores"),
    "cuda_flops": (CUDA_FLOPS, "work of the CUDA cores", _OPEN),
    "tensor_flops": (TENSOR_FLOPS, "work of the tensor cores", _OPEN),
    "dram_bytes": (DRAM_BYTES, "DRAM traffic, read and written,", _OPEN),
}  # fmt: skip
"""Quantities that are sums of counters, what they are called, and what counts them."""
_COMPLETE = {"executed_flops": executed_flops, "dram_bytes": dram_bytes}
"""Those that are only known where every unit, and both directions, were counted."""


def _counted(scope: ClaimScope) -> Answer:
    names, what, needs = _COUNTERS[scope.name]
    summed = several(scope, names)
    if summed is not None and scope.name in _COMPLETE:
        complete = _COMPLETE[scope.name](scope.book.measured) if scope.is_step else getattr(scope.sums, scope.name)
        summed = None if complete is None else summed
    if summed is None:
        raise _missing(scope, what, needs)
    return summed


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
ANSWERS: dict[str, Answering] = {
    **{name: _measured for name, quantity in QUANTITIES.items() if quantity.metric not in _ELSEWHERE},
    **dict.fromkeys(RATES, _rate),
    **dict.fromkeys(_COUNTERS, _counted),
    **dict.fromkeys(WORKSPACE_SIGN, _with_workspace),
    "gpu_memory_bytes": _gpu_memory,
    "counter": _counter,
}


# Under the roofs.

_FAR_WORDS = {"short kernels": "host", "neither roof": "host", "L2 cache": "cache"}
"""What people call it: latency and launches are the words of `host`."""


def is_own(scope: ClaimScope, device: Device | None) -> bool:
    """Was it measured, on the device and at the batch that the row is of?"""
    return scope.book.is_measured and device in (None, scope.book.device) and scope.scale == 1


def verdicts_on(scope: ClaimScope, judge: Judge | None = None) -> list[Verdict]:
    """What `compare` says of the part, the first before the others: of a step, as a whole and as the sum of its ops.
    Empty for what it has no row of."""
    judge, part = judge or scope.book.roofs, scope.part
    if scope.step in ("forward", "backward", "optimizer"):
        if part.kind == "total":
            return [row for row in judge.of(phases(judge.measured)) if row.name == scope.step]
        if scope.ledger.header.step == "train":
            return []
    if part.kind == "total":
        step = judge.step().whole
        return [step, *(row for row in judge.verdicts() if not row.name and not step.reason and not row.reason)]
    return [row for row in judge.verdicts(part.kind) if row.name == part.name]


def _placed(scope: ClaimScope) -> list[Verdict]:
    """The same, where it lies under the roofs; raises `CannotTell` with the reason where it does not."""
    verdicts = verdicts_on(scope)
    if not verdicts:
        raise CannotTell(f"no verdict is made on {scope.part.name} in that phase", "a row of the whole layer or step")
    if verdicts[0].reason:
        raise CannotTell(f"{scope.part.name}: {verdicts[0].reason}")
    return verdicts


def _origin(scope: ClaimScope) -> str:
    return f"the {scope.book.roofs.times} step, as `rooflight compare` shows it"


def shares(scope: ClaimScope) -> list[Answer]:
    """Percent of the roof."""
    return [
        Answer(row.percent_of_roof / 100, place_text(row), _origin(scope))
        for row in _placed(scope)
        if row.percent_of_roof is not None
    ]


def bound(scope: ClaimScope, device: Device | None) -> Answer:
    """Of the step, or of a part by where most of its time goes. What was measured has one verdict everywhere, and so
    has what is predicted; else the step is put under the roofs of its device, or of the one that a row names."""
    if is_own(scope, device) and verdicts_on(scope):
        return _bound(_placed(scope)[0], scope.book.roofs.step())
    if device is not None and (predicted := _bound_on(scope, device)) is not None:
        return predicted
    roofed = device or scope.book.device
    if roofed is None:
        raise CannotTell("no device is known: a bound is one of a device", "a row with a device")
    try:
        drawn = roofline(scope.ledger, roofed)
    except BadInput as error:
        raise CannotTell(error.on_command_line) from None
    if scope.is_step:
        return Answer(drawn.step.bound, drawn.step.verdict, f"times: {drawn.origin}")
    wanted = frozenset(op.index for op in scope.ops)
    points = [point for point in drawn.ops if wanted.issuperset(point.ops)]
    if not points:
        raise CannotTell(f"nothing in {scope.part.name} has FLOPs to put under a roof")
    slowest = max(points, key=lambda point: point.time_s or point.roof_time_s)
    return Answer(slowest.side, slowest.verdict, f"times: {drawn.origin}")


def _bound_on(scope: ClaimScope, device: Device) -> Answer | None:
    """As `rooflight predict` says of a step that was not measured there; `None` where it says nothing."""
    judge = scope.book.on(device)
    verdicts = [] if judge.step().reason or scope.scale != 1 else verdicts_on(scope, judge)
    return None if not verdicts or verdicts[0].reason else _bound(verdicts[0], judge.step())


def _bound(row: Verdict, step: StepVerdict) -> Answer:
    """Of a step compute, memory or host; of a part the roof that it lies under, compute or memory."""
    if row is step.whole:
        if step.bound is None:
            raise CannotTell(step.reason or "nothing tells what bounds the step")
        return Answer(step.bound, step.sentence, f"times: {step.times}")
    assert row.bound is not None
    return Answer(row.bound, f"{place_text(row)}; {row.evidence}", f"times: {step.times}")


def also_bound(scope: ClaimScope, step: Answer, *, by_name: bool) -> dict[str, str]:
    """What else is true of it, with the reason: why a part is far from its roof, and what `compare` shows in the row of
    the model's name of the kernels of a step, whatever it waits for."""
    first, *others = _placed(scope)
    also = {}
    if first.far:
        also[_FAR_WORDS[first.far]] = f"far from its roof ({first.far}), which is that of {first.bound}"
    for row in others:
        if by_name and row.bound is not None:
            also[row.bound] = f"of its kernels: as a whole it is bound by {step.value}"
    return also


def distance(scope: ClaimScope) -> str:
    """How far a part is from the roof that it lies under, where that is far."""
    verdicts = verdicts_on(scope)
    if not verdicts or not verdicts[0].far or verdicts[0] is scope.book.roofs.step().whole:
        return ""
    return f"but at {percent_text(verdicts[0].percent_of_roof)} of that roof: {verdicts[0].far}"


def side(scope: ClaimScope) -> tuple[Answer, tuple[str, ...]]:
    """Of the ridge, and, of a step, those that its kernels lie on."""
    row, *others = _placed(scope)
    assert row.side is not None
    return Answer(row.side, place_text(row), _origin(scope)), tuple(row.side for row in others if row.side is not None)


def intensities(scope: ClaimScope) -> Iterator[Answer]:
    """As the counters saw it, of a step also as the sum of its ops."""
    for row in verdicts_on(scope):
        if row.intensity is not None and row.flops is not None and row.bytes is not None:
            how = f"{row.flops:,.0f} {row.flops_basis} FLOP / {row.bytes:,.0f} {row.bytes_basis} bytes"
            yield Answer(row.intensity, how, "counters" if row.bytes_basis == "DRAM" else "counters and formulas")
