"""What a measurement answers: counters, clocks and the allocator, of the whole step or of a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooflight import summary
from rooflight.analysis.claims import roofline_answers
from rooflight.analysis.claims.claim import Claim
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.claims.result import Answer, CannotTell
from rooflight.analysis.finding import Finding, Number
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS
from rooflight.prediction.roofline import roofline
from rooflight.summary.measured_step import dram_bytes, executed_flops, rates
from rooflight.summary.sums import OpGroup, Sums

Answering = Callable[[ClaimScope], Answer]
SCOPES = {"wall_time": "the wall time", "gpu_busy": "the GPU-busy time", "kernel_time": "the sum of the kernels"}


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


@dataclass(frozen=True)
class MeasuredPart:
    """What was measured of a part of the step."""

    scope: ClaimScope

    @property
    def is_step(self) -> bool:
        return self.scope.part.kind == "total" and self.scope.step in (None, "training", "inference")

    @property
    def sums(self) -> Sums:
        measured = self.scope.book.measured
        if self.is_step:
            return measured.total
        wanted = frozenset(op.index for op in self.scope.ops)
        inside = tuple(fact for fact in measured.facts if fact.ops and wanted.issuperset(fact.ops))
        return measured.sums(OpGroup(tuple(sorted(wanted)), inside))

    def value(self, name: str) -> Value | None:
        """By its name in the ledger: of the range around the step where there is one, else the sum of the ops."""
        step = self.scope.book.measured.step
        if self.is_step and name in step:
            return step[name]
        value = self.sums.get(name)
        return None if value is None else Value(value, "sum over all ops" if self.is_step else "sum over its ops")

    def several(self, names: tuple[str, ...]) -> Answer | None:
        """Their sum, where at least one is known."""
        known = [(name, value) for name in names if (value := self.value(name)) is not None]
        if not known:
            return None
        low, high = (sum(_end(value, side) for _, value in known) for side in ("low", "high"))
        shown = [(name, value) for name, value in known if value.value] or known[:1]
        how = " + ".join(f"{name} {value.value:,}" for name, value in shown)
        return Answer(sum(value.value for _, value in known), how, shown[0][1].origin, low, high)


def _end(value: Value, side: str) -> Number:
    end = getattr(value, side)
    return value.value if end is None else end


def _missing(scope: ClaimScope, what: str, needs: str = "rooflight measure") -> CannotTell:
    return CannotTell(f"{what} of {scope.part.name} was not measured", needs)


def _check_step(scope: ClaimScope, what: str) -> None:
    if not MeasuredPart(scope).is_step:
        raise CannotTell(f"{what} is of the whole step, not of {scope.part.name}", "a row of the total")


def _summed(names: tuple[str, ...], what: str, needs: str, *, all_of: str = "") -> Answering:
    """Several counters; `all_of`: the sum that is only known where they all are."""

    def answer(scope: ClaimScope) -> Answer:
        part = MeasuredPart(scope)
        summed = part.several(names)
        if summed is None or (all_of and _is_unknown(part, all_of)):
            raise _missing(scope, what, needs)
        return summed

    return answer


def _is_unknown(part: MeasuredPart, name: str) -> bool:
    of_step = {"executed_flops": executed_flops, "dram_bytes": dram_bytes}[name]
    return (of_step(part.scope.book.measured) if part.is_step else getattr(part.sums, name)) is None


def _measured(what: str, *, of_step: bool = False) -> Answering:
    """A metric under its own name, of any part or of the step alone."""

    def answer(scope: ClaimScope) -> Answer:
        if of_step:
            _check_step(scope, what)
        name = QUANTITIES[scope.name].metric
        value = MeasuredPart(scope).value(name)
        if value is None:
            raise _missing(scope, what)
        return Answer(value.value, f"{name} {value.value:,}", value.origin, value.low, value.high)

    return answer


def _memory_sum(sign: int, text: str) -> Answering:
    """Output and workspace, together or one less the other."""

    def answer(scope: ClaimScope) -> Answer:
        part = MeasuredPart(scope)
        output, workspace = part.value("output_bytes"), part.value("workspace_bytes")
        if output is None or workspace is None:
            raise _missing(scope, "memory")
        how = f"output {output.value:,} {'+' if sign > 0 else '-'} workspace {workspace.value:,} B"
        return Answer(output.value + sign * workspace.value, f"{how}: {text}", output.origin)

    return answer


def _gpu_memory(scope: ClaimScope) -> Answer:
    measured = _measured("memory", of_step=True)
    reserved, outside = (measured(scope.of(name)) for name in ("peak_reserved_bytes", "outside_bytes"))
    how = f"reserved {reserved.value:,} + outside the allocator {outside.value:,} B"
    return Answer(reserved.value + outside.value, how, reserved.origin)  # type: ignore[operator]


def _kept(name: str, what: str) -> Answering:
    """By the trace of a training step."""

    def answer(scope: ClaimScope) -> Answer:
        if scope.ledger.header.step != "train":
            raise CannotTell(f"an inference keeps no {what}", scope.book.command(step="train"))
        if scope.part.kind != "total":
            raise CannotTell(f"{what} are known of the whole step, not of {scope.part.name}", "a row of the total")
        if scope.scale != 1 and name == "kept_for_backward_bytes":
            raise CannotTell(f"{what} at another batch need a trace of it", scope.book.command(batch=scope.batch))
        size = getattr(summary.sizes(scope.ledger), name)
        return Answer(size, f"{what} by the trace, at their most", "the storages of the trace")

    return answer


def _rate(pick: str, what: str, unit: str) -> Answering:
    """By the wall, with its spread."""

    def answer(scope: ClaimScope) -> Answer:
        _check_step(scope, what)
        measured = scope.book.measured
        rate, clock = getattr(rates(measured), pick), measured.step.get("wall_time_s")
        if rate is None or clock is None:
            raise _missing(scope, what)
        low = rate * clock.value / clock.high if clock.high else rate
        high = rate * clock.value / clock.low if clock.low else rate
        return Answer(rate, f"{unit} by the wall time of {clock.value:.6g} s", clock.origin, low, high)

    return answer


def bound(scope: ClaimScope, device: Device | None) -> Answer:
    """Of the step, or of a part by where most of its time goes. What was measured has one verdict everywhere, and so
    has what is predicted; else the step is put under the roofs of its device, or of the one that a row names."""
    if roofline_answers.is_own(scope, device) and roofline_answers.verdicts_on(scope):
        return roofline_answers.bound(scope)
    if device is not None and (predicted := roofline_answers.bound_on(scope, device)) is not None:
        return predicted
    roofed = device or scope.book.device
    if roofed is None:
        raise CannotTell("no device is known: a bound is one of a device", "a row with a device")
    try:
        drawn = roofline(scope.ledger, roofed)
    except BadInput as error:
        raise CannotTell(error.on_command_line) from None
    if MeasuredPart(scope).is_step:
        return Answer(drawn.step.bound, drawn.step.verdict, f"times: {drawn.origin}")
    wanted = frozenset(op.index for op in scope.ops)
    points = [point for point in drawn.ops if wanted.issuperset(point.ops)]
    if not points:
        raise CannotTell(f"nothing in {scope.part.name} has FLOPs to put under a roof")
    slowest = max(points, key=lambda point: point.time_s or point.roof_time_s)
    return Answer(slowest.side, slowest.verdict, f"times: {drawn.origin}")


def counter(scope: ClaimScope) -> Answer:
    """A counter by its own name, or by the quantity that is made of it."""
    part = MeasuredPart(scope)
    value = part.value(scope.metric)
    if value is None:
        base, _, rest = scope.metric.partition(".")
        hint = f"; it has {base}.sum" if rest != "sum" and part.value(f"{base}.sum") is not None else ""
        raise CannotTell(
            f"the ledger has no counter {scope.metric}{hint}", scope.book.command("measure", metrics=scope.metric)
        )
    return Answer(value.value, f"{scope.metric} {value.value:,}", value.origin, value.low, value.high)


def scopes_of_time(scope: ClaimScope) -> list[Finding]:
    """Every time that was measured of the same work, by whose it is."""
    times = []
    for name, text in SCOPES.items():
        try:
            times.append(Finding(name.replace("_", "-"), text, ANSWERS[name](scope.of(name)).value))
        except CannotTell:
            continue
    return times


_OPEN = "rooflight measure on a GPU whose counters are open"
ANSWERS: dict[str, Answering] = {
    "executed_flops": _summed(
        (*TENSOR_FLOPS, *CUDA_FLOPS),
        "executed FLOPs",
        "rooflight measure: counters of the CUDA and of the tensor cores",
        all_of="executed_flops",
    ),
    "cuda_flops": _summed(CUDA_FLOPS, "work of the CUDA cores", _OPEN),
    "tensor_flops": _summed(TENSOR_FLOPS, "work of the tensor cores", _OPEN),
    "dram_bytes": _summed(DRAM_BYTES, "DRAM traffic, read and written,", _OPEN, all_of="dram_bytes"),
    "dram_bytes_read": _measured("DRAM traffic"),
    "dram_bytes_written": _measured("DRAM traffic"),
    "kernels": _measured("the number of kernels"),
    "wall_time": _measured("wall time", of_step=True),
    "gpu_busy": _measured("GPU-busy time", of_step=True),
    "kernel_time": _measured("the time of the kernels"),
    "throughput": _rate("samples_per_s", "throughput", "samples"),
    "tokens_per_s": _rate("tokens_per_s", "throughput", "tokens"),
    "performance": _rate("useful_flops_per_s", "performance", "useful FLOPs"),
    "traffic": _rate("dram_bytes_per_s", "DRAM throughput", "DRAM bytes"),
    "workspace_bytes": _measured("workspace"),
    "growth_bytes": _measured("growth"),
    "op_allocated_bytes": _memory_sum(1, "both are held at once"),
    "self_growth_bytes": _memory_sum(-1, "what an op takes less what it gives back"),
    "peak_allocated_bytes": _measured("peak of the allocator", of_step=True),
    "peak_reserved_bytes": _measured("what the allocator reserved", of_step=True),
    "outside_bytes": _measured("memory outside the allocator", of_step=True),
    "gpu_memory_bytes": _gpu_memory,
    "counter": counter,
}
KEPT: dict[str, Answering] = {
    "kept_bytes": _kept("kept_for_backward_bytes", "activations kept for backward"),
    "gradient_bytes": _kept("gradient_bytes", "gradients"),
    "optimizer_bytes": _kept("optimizer_state_bytes", "optimizer state"),
}
