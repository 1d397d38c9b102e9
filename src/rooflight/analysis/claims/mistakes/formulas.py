"""Mistakes in a formula: a factor that is missing or there twice, a batch that is another one, one phase for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod

from rooflight import formatting
from rooflight.analysis.claims import conventions, counts
from rooflight.analysis.claims.case import ClaimCase, Trial, only_for
from rooflight.analysis.claims.claim import StepName
from rooflight.analysis.claims.conventions import is_identity_pool, pool_charge
from rooflight.analysis.claims.counts import whole
from rooflight.analysis.claims.estimated_answers import ANSWERS
from rooflight.analysis.claims.ledger_query import is_any_batch
from rooflight.analysis.claims.result import number_of
from rooflight.analysis.finding import Finding, Number

WORK = ("flops", "macs", "ops")
_OF_PARAMETERS = ("params", "trainable_params", "param_bytes", "model_bytes")
_FACTORS = (
    ("cout-missing", ("Cout",), "the output channels (Cout = {}) are missing from the formula"),
    ("cin-missing", ("Cin",), "the input channels (Cin = {}) are missing from the formula"),
    ("kernel-missing", ("Kh", "Kw"), "the kernel ({}) is missing from the formula"),
    ("kernel-not-squared", ("Kw",), "the kernel's width ({}) is missing: its area counts"),
    ("positions-missing", ("Ho", "Wo"), "the output's positions ({}) are missing from the formula"),
    ("columns-missing", ("N",), "the output features ({}) are missing from the formula"),
    ("rows-missing", ("K",), "the input features ({}) are missing from the formula"),
)


def without(case: ClaimCase, symbols: tuple[str, ...]) -> tuple[Number, str] | None:
    """The work with these factors left out of every op that has them, and their values; `None` where none has."""
    left, seen = Fraction(0), set()
    for op in counts.matrix_ops(case.scope.ops):
        assert op.cost is not None and op.cost.macs is not None
        formula, of_product = counts.work(op), "convolution" not in op.packet
        where = {} if formula is None or of_product != (symbols[0] in ("N", "K")) else formula.where
        values = [int(where[symbol]) for symbol in symbols if symbol in where]
        if len(values) == len(symbols):
            seen.add(" x ".join(map(str, values)))
            left += Fraction(op.cost.macs, prod(values))
        else:
            left += op.cost.macs
    if seen <= {"1", "1 x 1"}:
        return None
    return whole(case.times * left * case.scope.scale), seen.pop() if len(seen) == 1 else "of every layer"


@only_for(*WORK)
def _missing_factors(case: ClaimCase) -> Iterator[Finding]:
    for code, symbols, text in _FACTORS:
        if (less := without(case, symbols)) is not None:
            yield Finding(code, text.format(less[1]), less[0])


@only_for(*WORK)
def _groups(case: ClaimCase) -> Iterator[Finding]:
    more = 0
    for op in counts.matrix_ops(case.scope.ops):
        groups = op.ints("groups", [1])[0] if "convolution" in op.packet else 1
        more += (op.cost.macs or 0) * (groups - 1) if op.cost is not None else 0
    if more:
        text = "groups are ignored: a group sees only its own channels"
        macs = case.scope.totals.macs + more
        yield Finding("groups-ignored", text, case.times * macs * case.scope.scale)


def at_batch(case: ClaimCase, batch: int) -> Number | None:
    """What would be right at another batch."""
    if is_any_batch(case.name) or case.name not in ANSWERS:
        return None
    return number_of(ANSWERS[case.name](case.scope.at(batch)).value)


def _batches(case: ClaimCase) -> Iterator[Finding]:
    """The batch left out, or another than the row says."""
    own = case.scope.batch
    for batch in dict.fromkeys((1, *case.batches, case.scope.ledger.header.batch)):
        if batch is None or own is None or batch == own:
            continue
        value = at_batch(case, batch)
        if value is not None:
            yield _batch(case, batch, value)


def _batch(case: ClaimCase, batch: int, value: Number) -> Finding:
    own = case.scope.batch
    said = f"the row says {own}" if case.claim.batch is not None else f"the ledger is of {own}, and the row says none"
    if batch == 1:
        return Finding("batch-missing", f"the batch is missing: right for one sample (batch 1), {said}", value)
    return Finding("batch-mislabelled", f"right at batch {batch}: {said}", value)


def _twice(case: ClaimCase) -> Iterator[Finding]:
    own = case.scope.batch
    if own is not None and own > 1 and (value := at_batch(case, own * own)) is not None:
        yield Finding("batch-twice", f"the batch ({own}) is in it twice", value, Fraction(own))


def _powers(case: ClaimCase) -> Iterator[Finding]:
    own = case.scope.batch
    for power in range(1, 13):
        batch = 2**power
        if own is not None and batch not in (own, *case.batches) and (value := at_batch(case, batch)) is not None:
            yield _batch(case, batch, value)
            there = replace(case, scope=case.scope.at(batch), answer=replace(case.answer, value=value))
            for way in conventions.conventions(there):
                yield replace(_batch(case, batch, value).also(way.code, way.text), value=way.value)


@only_for(*_OF_PARAMETERS, "weight_output_bytes")
def _parameters(case: ClaimCase) -> Iterator[Finding]:
    """Parameters are there once, whatever the batch."""
    own = case.scope.batch
    if own is None or own == 1:
        return
    right = ANSWERS[case.name](case.scope.at(1)).number if case.name == "weight_output_bytes" else case.number
    text = f"parameters were multiplied by the batch ({own}): they are there once, whatever the batch"
    yield Finding("parameters-times-batch", text, whole(own * right), Fraction(own))


@only_for("params", "trainable_params", "param_bytes")
def _bias(case: ClaimCase) -> Iterator[Finding]:
    """A bias that a layer has not: one in front of a batch norm."""
    biases = 0
    for op in counts.matrix_ops(case.scope.ops):
        if op.phase == "forward" and op.packet == "aten::convolution" and not op.has("bias"):
            biases += op.tensor("weight").shape[0]
    if biases:
        size = case.scope.book.dtype_bytes if case.name == "param_bytes" else 1
        text = f"biases were counted that {case.scope.part.name} has not ({biases:,})"
        yield Finding("bias-added", text, case.number + biases * size)


def _copies(*gpus: int) -> Trial:
    def copies(case: ClaimCase) -> Iterator[Finding]:
        for count in gpus:
            text = f"replicas counted: {count} GPUs hold {count} copies of one model, which has this once"
            yield Finding("replicas-counted", text, count * case.number)

    return copies


def phases(case: ClaimCase) -> Iterator[Finding]:
    """A forward for a training step, or three of them."""
    if case.name not in ("flops", "macs", "ops", "bytes") or case.scope.ledger.header.step != "train":
        if case.name in WORK:
            text = "three times the forward: that is about a training step, and the ledger is of an inference"
            yield Finding("training-for-forward", text, 3 * case.number)
        return
    forward = _in(case, "forward")
    if case.claim.step in (None, "training"):
        first = Finding("forward-for-training", "the forward alone: a training step has a backward too", forward)
        yield first
        answer = replace(case.answer, value=forward)
        alone = replace(case, scope=replace(case.scope, step="forward"), answer=answer)
        for way in conventions.conventions(alone):
            yield replace(first.also(way.code, way.text), value=way.value)
        if case.name != "bytes":
            text = "twice the forward: the backward was taken as equal to the forward, and has two products for one"
            yield Finding("backward-as-forward", text, 2 * forward)
            text = "three times the forward: the first layer needs no gradient of its input"
            yield Finding("three-forwards", text, 3 * forward)
            text = "the forward and one of the two products of every backward: gradients of inputs and of weights"
            yield Finding("half-a-backward", text, forward + _in(case, "backward") / 2)
    elif case.claim.step == "backward":
        yield Finding("forward-for-backward", "the forward: the backward has two products for each of it", forward)
    else:
        yield Finding("training-for-forward", "the whole training step, not the forward", _in(case, None))


def _in(case: ClaimCase, step: StepName | None) -> Fraction:
    return ANSWERS[case.name](replace(case.scope, step=step)).number


@only_for(*WORK, "other_flops")
def _pools(case: ClaimCase) -> Iterator[Finding]:
    """A pool whose windows are single elements does nothing, and is charged as a global one."""
    pools = [op for op in case.scope.ops if is_identity_pool(op) and op.phase == "forward"]
    if pools and len(case.scope.ops) == len(pools):
        shape = formatting.shape(pools[0].outputs[0].shape)
        text = f"an identity pool was charged: it gives the {shape} it gets, and computes nothing"
        yield Finding("identity-pool-charged", text, sum(map(pool_charge, pools)) * case.scope.scale)


@only_for("weight_output_bytes", "bytes")
def _outputs(case: ClaimCase) -> Iterator[Finding]:
    """Parts of a sum taken for it."""
    if case.name == "bytes" and case.scope.part.module is None:
        return
    output, own = counts.output_bytes(case.scope), counts.param_bytes(case.scope)
    if case.name == "bytes":
        yield Finding("input-left-out", "output and parameters, without the input that is read", output + own)
        yield Finding("output-only", "the output alone", output)
    else:
        yield Finding("output-only", "the output alone, without the parameters", output)
        yield Finding("weights-only", "the parameters alone, without the output", own)
        inputs = counts.input_bytes(case.scope) + case.number
        yield Finding("with-input", "with the input, which is not part of it", inputs)


LIKELY: tuple[Trial, ...] = (
    _missing_factors,
    _groups,
    _batches,
    _twice,
    _parameters,
    _bias,
    only_for(*_OF_PARAMETERS)(_copies(2)),
    phases,
    _pools,
    _outputs,
)
REMOTE: tuple[Trial, ...] = (
    _powers,
    only_for(*_OF_PARAMETERS, "flops", "macs", "bytes", "gradient_bytes", "optimizer_bytes")(_copies(2, 4, 8)),
)
