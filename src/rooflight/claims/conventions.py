"""Other ways to count, each with the value it gives: a number that one of them makes is right, and is called by name.

A multiply-add as 1, a bias counted apart, activations as 2, outputs of hooked modules only, MiB written as MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rooflight import summary
from rooflight.claims import counts
from rooflight.claims.amounts import Amount
from rooflight.claims.book import Scope
from rooflight.claims.case import Case, Trial
from rooflight.claims.counts import whole
from rooflight.claims.result import Candidate, CannotTell, Number
from rooflight.ledger import Op
from rooflight.measured.step import rates
from rooflight.metrics import ratio

ACTIVATIONS = ("relu", "relu_", "threshold", "hardtanh", "hardtanh_", "leaky_relu", "leaky_relu_")
_TWICE = (*ACTIVATIONS, "add", "add_", "cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training")


def bias_adds(scope: Scope) -> Number:
    """One for every output of a convolution or matrix product that has a bias."""
    return whole(sum(op.outputs[0].numel for op in _biased(scope)) * scope.scale)


def _biased(scope: Scope) -> list[Op]:
    found = counts.matrix_ops(scope.ops)
    return [op for op in found if op.phase == "forward" and (op.has("bias") or op.packet == "aten::addmm")]


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


def mixed_operations(scope: Scope) -> Number:
    """Multiply-adds once and a bias apart (a linear layer's once a step), 2 for every element of activations, batch
    norms and sums, k x k - 1 for every output of a max-pool, a whole picture for one of an adaptive pool."""
    found = Fraction(0)
    for op in scope.ops:
        if op.phase != "forward" or not op.outputs or op.outputs[0].dtype.startswith("int"):
            continue  # steps that a batch norm counts are no work
        if op.cost is not None and op.cost.macs:
            found += op.cost.macs * scope.scale
            if op.packet == "aten::addmm":
                found += op.tensor("self").numel
            elif op.has("bias"):
                found += op.outputs[0].numel * scope.scale
        elif _short(op) in _TWICE:
            found += 2 * op.outputs[0].numel * scope.scale
        elif "max_pool" in op.packet and op.cost is not None:
            found += (op.cost.other_flops or 0) * scope.scale
        elif is_pool(op):
            found += pool_charge(op) * scope.scale
    return whole(found)


def plain_operations(scope: Scope) -> Number:
    """Multiply-adds once, a bias apart, 1 for every element of an activation, k x k for every output of a max-pool."""
    found = Fraction(counts.macs(scope)) + Fraction(bias_adds(scope))
    for op in scope.ops:
        if op.phase == "forward" and _short(op) in ACTIVATIONS:
            found += op.outputs[0].numel * scope.scale
        elif op.phase == "forward" and "max_pool" in op.packet and op.cost is not None:
            found += ((op.cost.other_flops or 0) + op.outputs[0].numel) * scope.scale
    return whole(found)


_ONCE = "a multiply-add counted once, where peaks count it as 2"


def _work(case: Case) -> Iterator[Candidate]:
    scope = case.scope
    macs, bias = counts.macs(scope), bias_adds(scope)
    if macs and case.name == "macs":
        yield Candidate("flops-for-macs", "FLOPs: a multiply-add counted as 2", 2 * macs)
    elif macs:
        yield Candidate("macs-for-flops", f"multiply-adds, and not FLOPs: {_ONCE}", macs)
    if macs and bias:
        yield Candidate("macs-and-bias", f"multiply-adds and bias adds: {_ONCE}, the bias apart", macs + bias)
        yield Candidate("bias-apart", "the bias added apart, which is part of the 2 K already", 2 * macs + bias)
    if any(op.phase != "forward" for op in scope.ops) or (any(map(is_identity_pool, scope.ops)) and not macs):
        return  # what follows is of the forward alone; a pool that does nothing is charged by mistake
    mixed = mixed_operations(scope)
    if mixed:
        text = "2 for every element of activations, norms and sums" + (f", {_ONCE}, and bias" if macs else "")
        yield Candidate("mixed-operations", f"{text}: the way of pthflops", mixed)
    if macs:
        text = f"{_ONCE}, with bias, 1 an activation and k x k a pooled output"
        yield Candidate("plain-operations", f"{text}: the way of Caffe's tables", plain_operations(scope))


def _all_work(case: Case) -> Iterator[Candidate]:
    other = counts.other_flops(case.scope.traced_anew())
    if other:
        yield Candidate(
            "all-arithmetic", "with the arithmetic outside matrix work", case.times * counts.macs(case.scope) + other
        )


def _causal(case: Case) -> Iterator[Candidate]:
    costs = [op.cost for op in case.scope.ops if op.cost is not None]
    if all(cost.flops_causal in (None, 2 * (cost.macs or 0)) for cost in costs):
        return  # no attention, or none that a mask halves
    found = sum(2 * (cost.macs or 0) if cost.flops_causal is None else cost.flops_causal for cost in costs)
    yield Candidate("causal", "only the half of attention that a causal mask keeps", found * case.scope.scale)


def _share(case: Case) -> Iterator[Candidate]:
    scope = case.scope
    all_ = mixed_operations(scope.whole())
    if all_:
        text = "the share of pthflops' operations, activations and pools included"
        yield Candidate("mixed-operations", text, Fraction(mixed_operations(scope)) / Fraction(all_))


def _params(case: Case) -> Iterator[Candidate]:
    params, bias = counts.params(case.scope), counts.bias_elements(case.scope.of("params"))
    if bias and case.name == "params":
        yield Candidate("weights-only", "weights without their biases", params - bias)
    trainable = sum(module.trainable_params for module in case.scope.place.modules)
    if case.name == "params" and trainable != params:
        yield Candidate("trainable-only", "only the parameters that are trained", trainable)
    buffers = sum(module.buffer_bytes for module in case.scope.place.modules)
    if case.name == "param_bytes" and buffers:
        yield Candidate("with-buffers", "with the buffers of batch norms", counts.param_bytes(case.scope) + buffers)


def functional_ops(scope: Scope) -> list[str]:
    """Ops that run between modules, where no hook sees them."""
    inner = {module.path.rpartition(".")[0] for module in scope.ledger.modules if module.path}
    return [
        op.packet.removeprefix("aten::") for op in scope.whole().ops if op.phase == "forward" and op.module in inner
    ]


def _summary(case: Case) -> Iterator[Candidate]:
    """Tools that hook modules see neither functional ops nor what is between."""
    sizes, scope = summary.sizes(case.scope.ledger), case.scope
    unseen = functional_ops(scope)
    text = f"; {len(unseen)} functional ops are unseen ({', '.join(dict.fromkeys(unseen))})" if unseen else ""
    rest: Number = 0
    if case.name == "total_size":
        rest = whole(sizes.input_bytes * scope.scale) + sizes.param_bytes
    leaf, own = (value * scope.scale for value in (sizes.leaf_output_bytes, sizes.parameterised_output_bytes))
    yield Candidate("hooked-modules", f"outputs of all leaf modules, twice{text}", whole(rest + 2 * leaf))
    if own != leaf:
        yield Candidate(
            "hooked-parameters", f"outputs of the modules with parameters alone, twice{text}", whole(rest + 2 * own)
        )


def _intensity(case: Case) -> Iterator[Candidate]:
    moved = Fraction(counts.moved(case.scope.traced_anew()))
    yield Candidate("matrix-work-only", "matrix FLOPs alone by compulsory bytes", counts.flops(case.scope) / moved)
    yield Candidate("macs-for-flops", f"multiply-adds by bytes: {_ONCE}", counts.macs(case.scope) / moved)
    if case.scope.book.is_measured:
        from rooflight.claims.ran import Part

        sums = Part(case.scope).sums
        counted = ratio(sums.executed_flops, sums.dram_bytes)
        useful = ratio(int(counts.flops(case.scope)), sums.dram_bytes)
        if counted is not None:
            yield Candidate("counted", "executed FLOPs by DRAM bytes, as counted", counted)
        if useful is not None:
            yield Candidate("dram-bytes", "useful FLOPs by DRAM bytes", useful)


def _rates(case: Case) -> Iterator[Candidate]:
    pick = {"performance": "useful_flops_per_s", "throughput": "samples_per_s", "traffic": "dram_bytes_per_s"}
    measured = case.scope.book.measured
    busy, wall = rates(measured, while_busy=True), rates(measured)
    if case.name in pick and (found := getattr(busy, pick[case.name])) is not None:
        yield Candidate("while-busy", "by the GPU-busy time, not by the wall", found)
    if case.name == "performance":
        for made, text in ((wall, "by the wall"), (busy, "by the GPU-busy time")):
            if made.executed_flops_per_s is not None:
                yield Candidate("executed-flops", f"executed FLOPs {text}", made.executed_flops_per_s)


def _guarded(trial: Trial) -> Trial:
    """What a ledger cannot tell is no convention."""

    def made(case: Case) -> Iterator[Candidate]:
        try:
            yield from trial(case)
        except CannotTell:
            return

    return made


_BY_NAME: dict[str, tuple[Trial, ...]] = {
    "flops": (_work, _all_work, _causal),
    "ops": (_work, _all_work),
    "macs": (_work,),
    "share": (_share,),
    "params": (_params,),
    "param_bytes": (_params,),
    "forward_backward_bytes": (_summary,),
    "total_size": (_summary,),
    "intensity": (_intensity,),
    "performance": (_rates,),
    "throughput": (_rates,),
    "traffic": (_rates,),
}


def conventions(case: Case) -> Iterator[Candidate]:
    """Every other way to count this quantity. One that changes nothing, or gives what a simpler one gave, is none."""
    seen = {case.answer.value}
    for trial in _BY_NAME.get(case.name, ()):
        for found in _guarded(trial)(case):
            if found.value not in seen:
                seen.add(found.value)
                yield found


def prefixes(stated: Amount) -> Iterator[tuple[Fraction, str]]:
    """The same digits with another kind of prefix: what one MB is, where MiB was meant, or 1,000 KiB."""
    unit = stated.unit
    if unit.dimension not in ("byte", "byte/s", "counter") or unit.power <= 0:
        return
    letter = unit.text[:1].upper()
    other = Fraction(1000 if unit.binary else 1024) ** unit.power
    yield (
        other / unit.factor,
        f"the number is right in {letter}{'B' if unit.binary else 'iB'}, and was written in {unit.text}",
    )
    if unit.power > 1 and not unit.binary:
        for binary in range(1, unit.power):
            mixed = Fraction(1024) ** binary * Fraction(1000) ** (unit.power - binary)
            name = f"{'KMGT'[binary - 1]}iB"
            yield mixed / unit.factor, f"{name} were taken for powers of 1,000 on the way to {unit.text}"
