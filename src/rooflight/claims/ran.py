"""What a measurement answers: counters, clocks and the allocator, of the whole step or of a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooflight import summary
from rooflight.claims import placed
from rooflight.claims.book import Book, Scope
from rooflight.claims.claim import Claim
from rooflight.claims.result import Answer, Candidate, CannotTell, Number
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.ledger import Op, Value
from rooflight.measured import Group, Sums
from rooflight.measured.step import busy_s, dram_bytes, executed_flops, rates, wall_s
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS
from rooflight.prediction.roofline import Roofline, roofline

Answering = Callable[[Scope], Answer]
SCOPES = {"wall_time": "the wall time", "gpu_busy": "the GPU-busy time", "kernel_time": "the sum of the kernels"}


def check_run(book: Book, claim: Claim, device: Device | None) -> None:
    """Was it measured, and on the device that the row is of?"""
    header = book.ledger.header
    if not book.is_measured:
        on = f"on {claim.device}" if claim.device else ""
        raise CannotTell(f"the ledger is an estimate: nothing was measured {on}".strip(),
                         f"{on and f'{on}: '}{book.command('measure')}")  # fmt: skip
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
class Part:
    """What was measured of a part of the step."""

    scope: Scope

    @property
    def is_step(self) -> bool:
        return self.scope.place.kind == "total" and self.scope.step in (None, "training", "inference")

    @property
    def sums(self) -> Sums:
        measured = self.scope.book.measured
        if self.is_step:
            return measured.total
        wanted = frozenset(op.index for op in self.scope.ops)
        inside = tuple(fact for fact in measured.facts if fact.ops and wanted.issuperset(fact.ops))
        return measured.sums(Group(tuple(sorted(wanted)), inside))

    def value(self, name: str) -> Value | None:
        """By its name in the ledger: of the range around the step where there is one, else the sum of the ops."""
        step = self.scope.book.measured.step
        if self.is_step and name in step:
            return step[name]
        found = self.sums.get(name)
        return None if found is None else Value(found, "sum over its ops" if not self.is_step else "sum over all ops")

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
    found = getattr(value, side)
    return value.value if found is None else found


def _missing(scope: Scope, what: str, needs: str) -> CannotTell:
    return CannotTell(f"{what} of {scope.place.name} was not measured", needs)


def _counted(names: tuple[str, ...], what: str) -> Answering:
    def answer(scope: Scope) -> Answer:
        found = Part(scope).several(names)
        if found is None:
            raise _missing(scope, what, "rooflight measure on a GPU whose counters are open")
        return found

    return answer


def _executed(scope: Scope) -> Answer:
    part = Part(scope)
    whole = executed_flops(scope.book.measured) if part.is_step else part.sums.executed_flops
    found = part.several((*TENSOR_FLOPS, *CUDA_FLOPS))
    if whole is None or found is None:
        raise _missing(scope, "executed FLOPs", "rooflight measure: counters of the CUDA and of the tensor cores")
    return found


def _dram(scope: Scope) -> Answer:
    part = Part(scope)
    whole = dram_bytes(scope.book.measured) if part.is_step else part.sums.dram_bytes
    found = part.several(DRAM_BYTES)
    if whole is None or found is None:
        raise _missing(scope, "DRAM traffic, read and written,", "rooflight measure on a GPU whose counters are open")
    return found


def _one(name: str, what: str, needs: str = "rooflight measure") -> Answering:
    def answer(scope: Scope) -> Answer:
        found = Part(scope).value(name)
        if found is None:
            raise _missing(scope, what, needs)
        return Answer(found.value, f"{name} {found.value:,}", found.origin, found.low, found.high)

    return answer


def _of_step(name: str, what: str) -> Answering:
    def answer(scope: Scope) -> Answer:
        if not Part(scope).is_step:
            raise CannotTell(f"{what} is of the whole step, not of {scope.place.name}", "a row of the total")
        return _one(name, what)(scope)

    return answer


def _memory_sum(sign: int, text: str) -> Answering:
    """Output and workspace, together or one less the other."""

    def answer(scope: Scope) -> Answer:
        part = Part(scope)
        output, workspace = part.value("output_bytes"), part.value("workspace_bytes")
        if output is None or workspace is None:
            raise _missing(scope, "memory", "rooflight measure")
        how = f"output {output.value:,} {'+' if sign > 0 else '-'} workspace {workspace.value:,} B"
        return Answer(output.value + sign * workspace.value, f"{how}: {text}", output.origin)

    return answer


def _gpu_memory(scope: Scope) -> Answer:
    reserved, outside = (_of_step(name, "memory")(scope) for name in ("peak_reserved_bytes", "outside_bytes"))
    how = f"reserved {reserved.value:,} + outside the allocator {outside.value:,} B"
    return Answer(reserved.value + outside.value, how, reserved.origin)  # type: ignore[operator]


def _kept(name: str, what: str) -> Answering:
    """By the trace of a training step."""

    def answer(scope: Scope) -> Answer:
        if scope.ledger.header.step != "train":
            raise CannotTell(f"an inference keeps no {what}", scope.book.command(step="train"))
        if scope.place.kind != "total":
            raise CannotTell(f"{what} are known of the whole step, not of {scope.place.name}", "a row of the total")
        if scope.scale != 1 and name == "kept_for_backward_bytes":
            raise CannotTell(f"{what} at another batch need a trace of it", scope.book.command(batch=scope.batch))
        found = getattr(summary.sizes(scope.ledger), name)
        return Answer(found, f"{what} by the trace, at their most", "the storages of the trace")

    return answer


def _busy(scope: Scope) -> Answer:
    return _of_step("gpu_busy_s", "GPU-busy time")(scope)


def _rate(pick: str, what: str, unit: str) -> Answering:
    """By the wall, with its spread."""

    def answer(scope: Scope) -> Answer:
        if not Part(scope).is_step:
            raise CannotTell(f"{what} is of the whole step, not of {scope.place.name}", "a row of the total")
        measured = scope.book.measured
        found = getattr(rates(measured), pick)
        clock = measured.step.get("wall_time_s")
        if found is None or clock is None:
            raise _missing(scope, what, "rooflight measure")
        low = found * clock.value / clock.high if clock.high else found
        high = found * clock.value / clock.low if clock.low else found
        return Answer(found, f"{unit} by the wall time of {clock.value:.6g} s", clock.origin, low, high)

    return answer


def picture(book: Book, device: Device | None) -> Roofline:
    """The step under the roofs of its device, or of the one that a row names."""
    found = device or book.device
    if found is None:
        raise CannotTell("no device is known: a bound is one of a device", "a row with a device")
    try:
        return roofline(book.ledger, found)
    except BadInput as error:
        raise CannotTell(error.on_command_line) from None


def bound(scope: Scope, device: Device | None) -> Answer:
    """Of the step, or of a part by where most of its time goes. What was measured has one verdict everywhere, and so
    has what is predicted."""
    if placed.is_own(scope, device) and placed.verdicts_on(scope):
        return placed.bound(scope)
    if device is not None and (predicted := placed.bound_on(scope, device)) is not None:
        return predicted
    drawn = picture(scope.book, device)
    if Part(scope).is_step:
        return Answer(drawn.step.bound, drawn.step.verdict, f"times: {drawn.origin}")
    wanted = frozenset(op.index for op in scope.ops)
    points = [point for point in drawn.ops if wanted.issuperset(point.ops)]
    if not points:
        raise CannotTell(f"nothing in {scope.place.name} has FLOPs to put under a roof")
    slowest = max(points, key=lambda point: point.time_s or point.roof_time_s)
    return Answer(slowest.side, slowest.verdict, f"times: {drawn.origin}")


def counter(scope: Scope) -> Answer:
    """A counter by its own name, or by the quantity that is made of it."""
    found = Part(scope).value(scope.metric)
    if found is None:
        base, _, rest = scope.metric.partition(".")
        known = f"{base}.sum"
        hint = f"; it has {known}" if rest != "sum" and Part(scope).value(known) is not None else ""
        raise CannotTell(
            f"the ledger has no counter {scope.metric}{hint}", scope.book.command("measure", metrics=scope.metric)
        )
    return Answer(found.value, f"{scope.metric} {found.value:,}", found.origin, found.low, found.high)


def scopes_of_time(scope: Scope) -> list[Candidate]:
    """Every time that was measured of the same work, by whose it is."""
    found = []
    for name, text in SCOPES.items():
        try:
            answer = ANSWERS[name](scope.of(name))
        except CannotTell:
            continue
        found.append(Candidate(name.replace("_", "-"), text, answer.value))
    return found


def wall_and_busy(book: Book) -> tuple[Number | None, Number | None]:
    return wall_s(book.measured), busy_s(book.measured)


def has_convolution(ops: tuple[Op, ...]) -> Op | None:
    """The one forward convolution of a part."""
    found = [op for op in ops if op.phase == "forward" and "convolution" in op.packet]
    return found[0] if len(found) == 1 else None


ANSWERS: dict[str, Answering] = {
    "executed_flops": _executed,
    "cuda_flops": _counted(CUDA_FLOPS, "work of the CUDA cores"),
    "tensor_flops": _counted(TENSOR_FLOPS, "work of the tensor cores"),
    "dram_bytes": _dram,
    "dram_bytes_read": _one("dram_bytes_read", "DRAM traffic"),
    "dram_bytes_written": _one("dram_bytes_written", "DRAM traffic"),
    "kernels": _one("kernels", "the number of kernels"),
    "wall_time": _of_step("wall_time_s", "wall time"),
    "gpu_busy": _busy,
    "kernel_time": _one("kernel_time_s", "the time of the kernels"),
    "throughput": _rate("samples_per_s", "throughput", "samples"),
    "tokens_per_s": _rate("tokens_per_s", "throughput", "tokens"),
    "performance": _rate("useful_flops_per_s", "performance", "useful FLOPs"),
    "traffic": _rate("dram_bytes_per_s", "DRAM throughput", "DRAM bytes"),
    "workspace_bytes": _one("workspace_bytes", "workspace"),
    "growth_bytes": _one("growth_bytes", "growth"),
    "op_allocated_bytes": _memory_sum(1, "both are held at once"),
    "self_growth_bytes": _memory_sum(-1, "what an op takes less what it gives back"),
    "peak_allocated_bytes": _of_step("peak_allocated_bytes", "peak of the allocator"),
    "peak_reserved_bytes": _of_step("peak_reserved_bytes", "what the allocator reserved"),
    "outside_bytes": _of_step("outside_bytes", "memory outside the allocator"),
    "gpu_memory_bytes": _gpu_memory,
    "counter": counter,
}
KEPT: dict[str, Answering] = {
    "kept_bytes": _kept("kept_for_backward_bytes", "activations kept for backward"),
    "gradient_bytes": _kept("gradient_bytes", "gradients"),
    "optimizer_bytes": _kept("optimizer_state_bytes", "optimizer state"),
}
