"""Other ways to count, each with the value it gives: a number that one of them makes is right, and is called by name.

A multiply-add as 1, a bias counted apart, activations as 2, outputs of hooked modules only, MiB written as MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from rooflight import summary
from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim, Stated
from rooflight.analysis.claims.ledger_query import ClaimScope, whole
from rooflight.analysis.claims.measured_answers import RATES
from rooflight.analysis.claims.row_inference import ClaimTable
from rooflight.analysis.finding import Finding, FoundValue, Number
from rooflight.ledger import Op
from rooflight.metrics import ratio
from rooflight.summary.measured_step import rates


@dataclass(frozen=True)
class ClaimCase:
    """A row as conventions and mistakes see it: what it says, what it is about, and what is right."""

    claim: Claim
    scope: ClaimScope
    answer: Answer
    table: ClaimTable
    """The other rows."""

    @property
    def name(self) -> str:
        return self.scope.name

    @property
    def times(self) -> int:
        """FLOPs of a multiply-add, in this quantity."""
        return 1 if self.name == "macs" else 2

    @property
    def number(self) -> Fraction:
        """What is right; raises `CannotTell` for a shape or a word."""
        return self.answer.number

    def of(self, scope: ClaimScope, value: FoundValue) -> ClaimCase:
        """The same row, had it been of this."""
        return replace(self, scope=scope, answer=replace(self.answer, value=value))


Trial = Callable[[ClaimCase], Iterator[Finding]]
"""From a row to the values that a convention or a mistake would give it."""


def only_for(*names: str) -> Callable[[Trial], Trial]:
    """A trial of these quantities; of others it gives nothing."""

    def limited(trial: Trial) -> Trial:
        return lambda case: trial(case) if case.name in names else iter(())

    return limited


def tried(trials: tuple[Trial, ...], case: ClaimCase) -> Iterator[Finding]:
    """What conventions or mistakes give; one that the ledger cannot compute gives nothing."""
    for trial in trials:
        try:
            yield from trial(case)
        except (CannotTell, ZeroDivisionError):
            continue


ACTIVATIONS = ("relu", "relu_", "threshold", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_")
_TWICE = (*ACTIVATIONS, "add", "add_", "cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training")


def bias_adds(scope: ClaimScope) -> Number:
    """One for every output of a convolution or matrix product that has a bias."""
    ops = (op for op in scope.matrix_ops if op.phase == "forward" and (op.has("bias") or op.packet == "aten::addmm"))
    return scope.scaled(sum(op.outputs[0].numel for op in ops))


def _short(op: Op) -> str:
    return op.packet.removeprefix("aten::")


def is_pool(op: Op) -> bool:
    return "pool" in op.packet or (op.packet == "aten::mean" and len(next(op.inputs).shape) == 4)


def is_identity_pool(op: Op) -> bool:
    """A pool whose windows are one element each gives what it gets."""
    return is_pool(op) and next(op.inputs).shape == op.outputs[0].shape


def pool_charge(op: Op) -> int:
    """What a tool that takes every adaptive pool for a global one charges: the whole picture for each output."""
    height, width = next(op.inputs).shape[-2:]
    return op.outputs[0].numel * height * width


def mixed_operations(scope: ClaimScope) -> Number:
    """Multiply-adds once and a bias apart (a linear layer's once a step), 2 for every element of activations, batch
    norms and sums, k x k - 1 for every output of a max-pool, a whole picture for one of an adaptive pool."""
    operations = Fraction(0)
    for op in scope.ops:
        if op.phase != "forward" or not op.outputs or op.outputs[0].dtype.startswith("int"):
            continue  # steps that a batch norm counts are no work
        if op.cost is not None and op.cost.macs:
            operations += op.cost.macs * scope.scale
            if op.packet == "aten::addmm":
                operations += op.tensor("self").numel
            elif op.has("bias"):
                operations += op.outputs[0].numel * scope.scale
        elif _short(op) in _TWICE:
            operations += 2 * op.outputs[0].numel * scope.scale
        elif "max_pool" in op.packet and op.cost is not None:
            operations += (op.cost.other_flops or 0) * scope.scale
        elif is_pool(op):
            operations += pool_charge(op) * scope.scale
    return whole(operations)


def plain_operations(scope: ClaimScope) -> Number:
    """Multiply-adds once, a bias apart, 1 for every element of an activation, k x k for every output of a max-pool."""
    operations = Fraction(scope.macs) + Fraction(bias_adds(scope))
    for op in scope.ops:
        if op.phase == "forward" and _short(op) in ACTIVATIONS:
            operations += op.outputs[0].numel * scope.scale
        elif op.phase == "forward" and "max_pool" in op.packet and op.cost is not None:
            operations += ((op.cost.other_flops or 0) + op.outputs[0].numel) * scope.scale
    return whole(operations)


_ONCE = "a multiply-add counted once, where peaks count it as 2"


def _work(case: ClaimCase) -> Iterator[Finding]:
    scope = case.scope
    macs, bias = scope.macs, bias_adds(scope)
    if macs and case.name == "macs":
        yield Finding("flops-for-macs", "FLOPs: a multiply-add counted as 2", 2 * macs)
    elif macs:
        yield Finding("macs-for-flops", f"multiply-adds, and not FLOPs: {_ONCE}", macs)
    if macs and bias:
        yield Finding("macs-and-bias", f"multiply-adds and bias adds: {_ONCE}, the bias apart", macs + bias)
        yield Finding("bias-apart", "the bias added apart, which is part of the 2 K already", 2 * macs + bias)
    if any(op.phase != "forward" for op in scope.ops) or (any(map(is_identity_pool, scope.ops)) and not macs):
        return  # what follows is of the forward alone; a pool that does nothing is charged by mistake
    mixed = mixed_operations(scope)
    if mixed:
        text = "2 for every element of activations, norms and sums" + (f", {_ONCE}, and bias" if macs else "")
        yield Finding("mixed-operations", f"{text}: the way of pthflops", mixed)
    if macs:
        text = f"{_ONCE}, with bias, 1 an activation and k x k a pooled output"
        yield Finding("plain-operations", f"{text}: the way of Caffe's tables", plain_operations(scope))


def _all_work(case: ClaimCase) -> Iterator[Finding]:
    if other := case.scope.traced_anew().totals.other_flops:
        text = "with the arithmetic outside matrix work"
        yield Finding("all-arithmetic", text, case.times * case.scope.macs + other)


def _causal(case: ClaimCase) -> Iterator[Finding]:
    if (causal := case.scope.totals.flops_causal) != case.scope.totals.flops:
        text = "only the half of attention that a causal mask keeps"
        yield Finding("causal", text, causal * case.scope.scale)


def _share(case: ClaimCase) -> Iterator[Finding]:
    if of_model := mixed_operations(case.scope.whole()):
        text = "the share of pthflops' operations, activations and pools included"
        yield Finding("mixed-operations", text, Fraction(mixed_operations(case.scope)) / Fraction(of_model))


def _params(case: ClaimCase) -> Iterator[Finding]:
    params, trainable = case.scope.of_modules("params"), case.scope.of_modules("trainable_params")
    if bias := _bias_elements(case.scope):
        yield Finding("weights-only", "weights without their biases", params - bias)
    if trainable != params:
        yield Finding("trainable-only", "only the parameters that are trained", trainable)


def _bias_elements(scope: ClaimScope) -> int:
    """Parameters that are added: one for each output of a matrix product or convolution."""
    biases = (
        (op, "bias" if op.has("bias") else "self" if op.packet == "aten::addmm" else "") for op in scope.matrix_ops
    )
    return sum(op.tensor(name).numel for op, name in biases if name)


def _param_bytes(case: ClaimCase) -> Iterator[Finding]:
    if buffers := case.scope.of_modules("buffer_bytes"):
        nbytes = case.scope.of_modules("param_bytes") + buffers
        yield Finding("with-buffers", "with the buffers of batch norms", nbytes)


def _summary(case: ClaimCase) -> Iterator[Finding]:
    """Tools that hook modules see neither functional ops nor what is between."""
    sizes, scope = summary.sizes(case.scope.ledger), case.scope
    inner = {module.path.rpartition(".")[0] for module in scope.ledger.modules if module.path}
    unseen = [_short(op) for op in scope.whole().ops if op.phase == "forward" and op.module in inner]
    text = f"; {len(unseen)} functional ops are unseen ({', '.join(dict.fromkeys(unseen))})" if unseen else ""
    rest: Number = 0
    if case.name == "total_size":
        rest = scope.scaled(sizes.input_bytes) + sizes.param_bytes
    kinds = (sizes.leaf_output_bytes, sizes.parameterised_output_bytes, sizes.hooked_output_bytes)
    leaf, with_params, hooked = (scope.scaled(2 * size) for size in kinds)
    yield Finding("hooked-modules", f"outputs of all leaf modules, twice{text}", rest + leaf)
    said = f"outputs of modules, of blocks beside their layers, twice: the way of torchsummary{text}"
    yield Finding("hooked-modules", said, rest + hooked)
    if with_params != leaf:
        said = f"outputs of the modules with parameters alone, twice{text}"
        yield Finding("hooked-parameters", said, rest + with_params)


def _intensity(case: ClaimCase) -> Iterator[Finding]:
    totals, flops = case.scope.traced_anew().totals, case.scope.flops
    moved = Fraction(totals.bytes)
    yield Finding("matrix-work-only", "matrix FLOPs alone by compulsory bytes", flops / moved)
    text = "attention in full, whatever a causal mask leaves out, and nothing that is done again"
    yield Finding("full-attention", text, (totals.flops + totals.other_flops) / moved)
    if case.scope.book.is_measured:
        sums = case.scope.sums
        if (counted := ratio(sums.executed_flops, sums.dram_bytes)) is not None:
            yield Finding("counted", "executed FLOPs by DRAM bytes, as counted", counted)
        if (useful := ratio(int(flops), sums.dram_bytes)) is not None:
            yield Finding("dram-bytes", "useful FLOPs by DRAM bytes", useful)


def _rates(case: ClaimCase) -> Iterator[Finding]:
    measured = case.scope.book.measured
    busy, wall = rates(measured, while_busy=True), rates(measured)
    if (rate := getattr(busy, RATES[case.name][0])) is not None:
        yield Finding("while-busy", "by the GPU-busy time, not by the wall", rate)
    if case.name == "performance":
        for by, text in ((wall, "by the wall"), (busy, "by the GPU-busy time")):
            if by.executed_flops_per_s is not None:
                yield Finding("executed-flops", f"executed FLOPs {text}", by.executed_flops_per_s)


def _executed(case: ClaimCase) -> Iterator[Finding]:
    if (executed := case.scope.sums.matrix_executed) is not None:
        text = "executed by the ops that have matrix work alone, as `rooflight compare` shows them"
        yield Finding("matrix-ops-only", text, executed)


_BY_NAME: dict[str, tuple[Trial, ...]] = {
    "flops": (_work, _all_work, _causal),
    "ops": (_work, _all_work),
    "macs": (_work,),
    "share": (_share,),
    "executed_flops": (_executed,),
    "params": (_params,),
    "param_bytes": (_param_bytes,),
    "forward_backward_bytes": (_summary,),
    "total_size": (_summary,),
    "intensity": (_intensity,),
    "performance": (_rates,),
    "traffic": (_rates,),
}


def conventions(case: ClaimCase) -> Iterator[Finding]:
    """Every other way to count this quantity. One that changes nothing, or gives what a simpler one gave, is none."""
    seen: set[FoundValue | None] = {case.answer.value}
    for finding in tried(_BY_NAME.get(case.name, ()), case):
        if finding.value not in seen:
            seen.add(finding.value)
            yield finding


def in_all_conventions(finding: Finding, case: ClaimCase) -> Iterator[Finding]:
    """A mistake, and the same with each convention on top; `case` is the row, had it been right."""
    yield finding
    for way in conventions(case):
        yield replace(finding.also(way.code, way.text), value=way.value)


def prefixes(stated: Stated | None, *, with_binary: bool = False) -> Iterator[tuple[Amount, str]]:
    """The same digits with another kind of prefix: what one MB is, where MiB was meant. Who writes MiB says which it
    is: with MB for it, a number is wrong (`with_binary`)."""
    if not isinstance(stated, Amount) or stated.unit.base not in ("byte", "byte/second") or stated.unit.power <= 0:
        return
    unit = stated.unit
    letter = unit.text[:1].upper()
    other = Fraction(1000 if unit.binary else 1024) ** unit.power
    text = f"the number is right in {letter}{'B' if unit.binary else 'iB'}, and was written in {unit.text}"
    if not unit.binary or with_binary:
        yield stated.times(other / unit.factor), text
    for binary in range(1, 1 if unit.binary else unit.power):
        mixed = Fraction(1024) ** binary * Fraction(1000) ** (unit.power - binary)
        name = f"{'KMGT'[binary - 1]}iB"
        text = f"{name} were taken for powers of 1,000 on the way to {unit.text}"
        yield stated.times(mixed / unit.factor), text
