"""Mistakes in a formula: a factor that is missing or there twice, a batch that is another one, one phase for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod

from rooflight import units
from rooflight.claims import conventions, counts, estimated
from rooflight.claims.book import is_any_batch
from rooflight.claims.case import Case, Trial
from rooflight.claims.conventions import is_identity_pool, pool_charge
from rooflight.claims.counts import whole
from rooflight.claims.result import Answer, Candidate, Number

WORK = ("flops", "macs", "ops")
_FACTORS = (
    ("cout-missing", ("Cout",), "the output channels (Cout = {}) are missing from the formula"),
    ("cin-missing", ("Cin",), "the input channels (Cin = {}) are missing from the formula"),
    ("kernel-missing", ("Kh", "Kw"), "the kernel ({}) is missing from the formula"),
    ("kernel-not-squared", ("Kw",), "the kernel's width ({}) is missing: its area counts"),
    ("positions-missing", ("Ho", "Wo"), "the output's positions ({}) are missing from the formula"),
    ("columns-missing", ("N",), "the output features ({}) are missing from the formula"),
    ("rows-missing", ("K",), "the input features ({}) are missing from the formula"),
)


def without(case: Case, symbols: tuple[str, ...]) -> tuple[Number, str] | None:
    """The work with these factors left out of every op that has them, and their values; `None` where none has."""
    found, seen = Fraction(0), set()
    for op in counts.matrix_ops(case.scope.ops):
        made, left = counts.work(op), op.cost.macs if op.cost is not None else 0
        assert left is not None
        is_product = "convolution" not in op.packet
        if made is not None and is_product == (symbols[0] in ("N", "K")) and all(s in made.where for s in symbols):
            values = [int(made.where[symbol]) for symbol in symbols]
            seen.add(" x ".join(map(str, values)))
            found += Fraction(left, prod(values))
        else:
            found += left
    if seen <= {"1", "1 x 1"}:
        return None
    return whole(case.times * found * case.scope.scale), seen.pop() if len(seen) == 1 else "of every layer"


def _missing_factors(case: Case) -> Iterator[Candidate]:
    if case.name in WORK:
        for code, symbols, text in _FACTORS:
            if (found := without(case, symbols)) is not None:
                yield Candidate(code, text.format(found[1]), found[0])


def _groups(case: Case) -> Iterator[Candidate]:
    if case.name not in WORK:
        return
    found, grouped = Fraction(0), False
    for op in counts.matrix_ops(case.scope.ops):
        groups = op.ints("groups", [1])[0] if "convolution" in op.packet else 1
        grouped |= groups > 1
        found += (op.cost.macs or 0) * groups if op.cost is not None else 0
    if grouped:
        yield Candidate("groups-ignored", "groups are ignored: a group sees only its own channels",
                        case.times * found * case.scope.scale)  # fmt: skip


def at_batch(case: Case, batch: int) -> Number | None:
    """What would be right at another batch."""
    scope = case.scope.at(batch)
    if is_any_batch(case.name) or case.name not in estimated.ANSWERS:
        return None
    value = estimated.ANSWERS[case.name](scope).value
    return None if isinstance(value, (str, tuple)) else value


def _batches(case: Case) -> Iterator[Candidate]:
    """The batch left out, or another than the row says."""
    own = case.scope.batch
    for batch in dict.fromkeys((1, *case.batches, case.scope.ledger.header.batch)):
        if batch is None or own is None or batch == own:
            continue
        value = at_batch(case, batch)
        if value is not None:
            yield _batch(case, batch, value)


def _batch(case: Case, batch: int, value: Number) -> Candidate:
    own = case.scope.batch
    said = f"the row says {own}" if case.claim.batch is not None else f"the ledger is of {own}, and the row says none"
    if batch == 1:
        return Candidate("batch-missing", f"the batch is missing: right for one sample (batch 1), {said}", value)
    return Candidate("batch-mislabelled", f"right at batch {batch}: {said}", value)


def _twice(case: Case) -> Iterator[Candidate]:
    own = case.scope.batch
    if own is not None and own > 1 and (value := at_batch(case, own * own)) is not None:
        yield Candidate("batch-twice", f"the batch ({own}) is in it twice", value, Fraction(own))


def _powers(case: Case) -> Iterator[Candidate]:
    own = case.scope.batch
    for power in range(1, 13):
        batch = 2**power
        if own is not None and batch not in (own, *case.batches) and (value := at_batch(case, batch)) is not None:
            yield _batch(case, batch, value)
            there = replace(case, scope=case.scope.at(batch), answer=replace(case.answer, value=value))
            for found in conventions.conventions(there):
                other = _batch(case, batch, value)
                text = f"{other.text}; and {found.text}"
                yield Candidate(f"{other.code}+{found.code}", text, found.value)


def _parameters(case: Case) -> Iterator[Candidate]:
    """Parameters are there once, whatever the batch."""
    own = case.scope.batch
    if own is None or own == 1 or case.name not in ("params", "trainable_params", "param_bytes", "weight_output_bytes",
                                                    "model_bytes"):  # fmt: skip
        return
    if case.name == "weight_output_bytes":
        value = own * Fraction(_number(estimated.ANSWERS[case.name](case.scope.at(1))))
    else:
        value = own * Fraction(_number(case.answer))
    text = f"parameters were multiplied by the batch ({own}): they are there once, whatever the batch"
    yield Candidate("parameters-times-batch", text, whole(value), Fraction(own))


def _bias(case: Case) -> Iterator[Candidate]:
    """A bias that a layer has not: one in front of a batch norm."""
    if case.name not in ("params", "trainable_params", "param_bytes"):
        return
    found = 0
    for op in counts.matrix_ops(case.scope.ops):
        if op.phase == "forward" and op.packet == "aten::convolution" and not op.has("bias"):
            found += op.tensor("weight").shape[0]
    if found:
        size = case.scope.book.dtype_bytes if case.name == "param_bytes" else 1
        text = f"biases were counted that {case.scope.place.name} has not ({found:,})"
        yield Candidate("bias-added", text, Fraction(_number(case.answer)) + found * size)


def _number(answer: Answer) -> Number:
    assert not isinstance(answer.value, (str, tuple))
    return answer.value


_REPLICATED = ("params", "trainable_params", "param_bytes", "model_bytes", "flops", "macs", "bytes", "gradient_bytes",
               "optimizer_bytes")  # fmt: skip


def _replicas(case: Case) -> Iterator[Candidate]:
    if case.name in ("params", "trainable_params", "param_bytes", "model_bytes"):
        yield from _copies(case, (2,))


def _more_replicas(case: Case) -> Iterator[Candidate]:
    if case.name in _REPLICATED:
        yield from _copies(case, (2, 4, 8))


def _copies(case: Case, counts: tuple[int, ...]) -> Iterator[Candidate]:
    for count in counts:
        text = f"replicas counted: {count} GPUs hold {count} copies of one model, which has this once"
        yield Candidate("replicas-counted", text, count * Fraction(_number(case.answer)))


def phases(case: Case) -> Iterator[Candidate]:
    """A forward for a training step, or three of them."""
    if case.name not in ("flops", "macs", "ops", "bytes") or case.scope.ledger.header.step != "train":
        if case.name in WORK:
            text = "three times the forward: that is about a training step, and the ledger is of an inference"
            yield Candidate("training-for-forward", text, 3 * Fraction(_number(case.answer)))
        return
    forward = _in(case, "forward")
    if case.claim.step in (None, "training"):
        text = "the forward alone: a training step has a backward too"
        yield Candidate("forward-for-training", text, forward)
        answer = replace(case.answer, value=forward)
        alone = replace(case, scope=replace(case.scope, step="forward"), answer=answer)
        for found in conventions.conventions(alone):
            yield Candidate(f"forward-for-training+{found.code}", f"{text}; and {found.text}", found.value)
        if case.name != "bytes":
            text = "twice the forward: the backward was taken as equal to the forward, and has two products for one"
            yield Candidate("backward-as-forward", text, 2 * Fraction(forward))
            text = "three times the forward: the first layer needs no gradient of its input"
            yield Candidate("three-forwards", text, 3 * Fraction(forward))
            text = "the forward and one of the two products of every backward: gradients of inputs and of weights"
            yield Candidate("half-a-backward", text, Fraction(forward) + Fraction(_in(case, "backward")) / 2)
    elif case.claim.step == "backward":
        yield Candidate("forward-for-backward", "the forward: the backward has two products for each of it", forward)
    else:
        yield Candidate("training-for-forward", "the whole training step, not the forward", _in(case, None))


def _in(case: Case, step: object) -> Number:
    return _number(estimated.ANSWERS[case.name](replace(case.scope, step=step)))  # type: ignore[arg-type]


def _pools(case: Case) -> Iterator[Candidate]:
    """A pool whose windows are single elements does nothing, and is charged as a global one."""
    if case.name in ("flops", "ops", "other_flops", "macs"):
        found = [op for op in case.scope.ops if is_identity_pool(op) and op.phase == "forward"]
        if found and len(case.scope.ops) == len(found):
            shape = units.shape(found[0].outputs[0].shape)
            text = f"an identity pool was charged: it gives the {shape} it gets, and computes nothing"
            yield Candidate("identity-pool-charged", text, sum(map(pool_charge, found)) * case.scope.scale)


def _outputs(case: Case) -> Iterator[Candidate]:
    """Parts of a sum taken for it."""
    if case.name == "weight_output_bytes":
        yield Candidate("output-only", "the output alone, without the parameters", counts.output_bytes(case.scope))
        yield Candidate("weights-only", "the parameters alone, without the output", counts.param_bytes(case.scope))
        inputs = counts.input_bytes(case.scope) + Fraction(_number(case.answer))
        yield Candidate("with-input", "with the input, which is not part of it", inputs)
    if case.name == "bytes" and case.scope.place.module is not None:
        both = counts.output_bytes(case.scope) + counts.param_bytes(case.scope)
        yield Candidate("input-left-out", "output and parameters, without the input that is read", both)
        yield Candidate("output-only", "the output alone", counts.output_bytes(case.scope))


LIKELY: tuple[Trial, ...] = (_missing_factors, _groups, _batches, _twice, _parameters, _bias, _replicas, phases,
                             _pools, _outputs)  # fmt: skip
REMOTE: tuple[Trial, ...] = (_powers, _more_replicas)
