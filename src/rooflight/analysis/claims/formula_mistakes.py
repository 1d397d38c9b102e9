"""Mistakes in a formula: a factor that is missing or there twice, a batch that is another one, one phase for all; and
output sizes typed by hand: of the pool behind the layer, of its input, without its padding or its stride."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod

from rooflight import formatting
from rooflight.analysis.claims.claim import StepName, number_of
from rooflight.analysis.claims.conventions import (
    ClaimCase,
    Trial,
    in_all_conventions,
    is_identity_pool,
    is_pool,
    mixed_operations,
    only_for,
    plain_operations,
    pool_charge,
)
from rooflight.analysis.claims.estimated_answers import ANSWERS
from rooflight.analysis.claims.ledger_query import ANY_BATCH, ClaimScope, whole
from rooflight.analysis.claims.model_parts import leaves, module_part
from rooflight.analysis.finding import Finding, Number
from rooflight.estimation.costs import work_of
from rooflight.ledger import Op

WORK = ("flops", "macs", "ops")
_OF_PARAMETERS = ("params", "trainable_params", "param_bytes", "model_bytes")
_FACTORS = (
    ("cout-missing", ("Cout",), "the output channels ({}) are missing from the formula"),
    ("cin-missing", ("Cin",), "the input channels ({}) are missing from the formula"),
    ("kernel-missing", ("Kh", "Kw"), "the kernel ({}) is missing from the formula"),
    ("kernel-not-squared", ("Kw",), "the kernel's width ({}) is missing: its area counts"),
    ("positions-missing", ("Ho", "Wo"), "the output's positions ({}) are missing from the formula"),
    ("columns-missing", ("N",), "the output features ({}) are missing from the formula"),
    ("rows-missing", ("K",), "the input features ({}) are missing from the formula"),
)


@only_for(*WORK)
def _left_out(case: ClaimCase) -> Iterator[Finding]:
    """A total without one type of its layers."""
    if case.scope.part.kind != "total":
        return
    work: dict[str, Fraction] = {}
    types = {module.path: module.type for module in case.scope.ledger.modules}
    for op in case.scope.matrix_ops:
        name = types.get(op.module, "")
        work[name] = work.get(name, Fraction(0)) + (op.cost.macs or 0 if op.cost is not None else 0)
    for name, macs in work.items() if len(work) > 1 else ():
        left = case.scope.totals.macs - macs
        yield Finding("type-left-out", f"the {name} layers were left out", case.scope.scaled(case.times * left))


@only_for(*WORK)
def _missing_factors(case: ClaimCase) -> Iterator[Finding]:
    for code, symbols, text in _FACTORS:
        if (less := _without(case, symbols)) is not None:
            yield Finding(code, text.format(less[1]), less[0])


def _without(case: ClaimCase, symbols: tuple[str, ...]) -> tuple[Number, str] | None:
    """The work with these factors left out of every op that has them, and their values; `None` where none has."""
    left, seen = Fraction(0), set()
    symbol = f"{symbols[0]} = " if symbols[0].startswith("C") else ""
    for op in case.scope.matrix_ops:
        assert op.cost is not None and op.cost.macs is not None
        formula, of_product = work_of(op), "convolution" not in op.packet
        where = {} if formula is None or of_product != (symbols[0] in ("N", "K")) else formula.where
        values = [int(where[symbol]) for symbol in symbols if symbol in where]
        if len(values) == len(symbols):
            seen.add(" x ".join(map(str, values)))
            left += Fraction(op.cost.macs, prod(values))
        else:
            left += op.cost.macs
    if seen <= {"1", "1 x 1"}:
        return None
    return case.scope.scaled(case.times * left), f"{symbol}{seen.pop()}" if len(seen) == 1 else "of every layer"


@only_for(*WORK)
def _groups(case: ClaimCase) -> Iterator[Finding]:
    more = 0
    for op in case.scope.matrix_ops:
        groups = op.ints("groups", [1])[0] if "convolution" in op.packet else 1
        more += (op.cost.macs or 0) * (groups - 1) if op.cost is not None else 0
    if more:
        text = "groups are ignored: a group sees only its own channels"
        yield Finding("groups-ignored", text, case.scope.scaled(case.times * (case.scope.totals.macs + more)))


# Batches.


def _at(case: ClaimCase, batch: int) -> Number | None:
    """What would be right at another batch."""
    if case.name in ANY_BATCH or case.name not in ANSWERS:
        return None
    return number_of(ANSWERS[case.name](case.scope.at(batch)).value)


def _table_batches(case: ClaimCase) -> tuple[int, ...]:
    """All that the table mentions."""
    return tuple(dict.fromkeys(claim.batch for claim in case.table.claims if claim.batch is not None))


def _batches(case: ClaimCase) -> Iterator[Finding]:
    """The batch left out, or another than the row says."""
    batch = case.scope.batch
    for other in dict.fromkeys((1, *_table_batches(case), case.scope.ledger.header.batch)):
        if batch is None or other is None or other == batch or (value := _at(case, other)) is None:
            continue
        yield _right_at(case, other, value)


def _right_at(case: ClaimCase, batch: int, value: Number) -> Finding:
    meant, is_said = case.scope.batch, case.claim.batch is not None
    said = f"the row says {meant}" if is_said else f"the ledger is of {meant}, and the row says none"
    if batch == 1:
        return Finding("batch-missing", f"the batch is missing: right for one sample (batch 1), {said}", value)
    return Finding("batch-mislabelled", f"right at batch {batch}: {said}", value)


def _twice(case: ClaimCase) -> Iterator[Finding]:
    batch = case.scope.batch
    if batch is not None and batch > 1 and (value := _at(case, batch * batch)) is not None:
        yield Finding("batch-twice", f"the batch ({batch}) is in it twice", value, Fraction(batch))


def _powers(case: ClaimCase) -> Iterator[Finding]:
    if case.scope.batch is None:
        return
    for batch in (2**power for power in range(1, 13)):
        if batch not in (case.scope.batch, *_table_batches(case)) and (value := _at(case, batch)) is not None:
            yield from in_all_conventions(_right_at(case, batch, value), case.of(case.scope.at(batch), value))


@only_for(*_OF_PARAMETERS, "weight_output_bytes")
def _parameters(case: ClaimCase) -> Iterator[Finding]:
    """Parameters are there once, whatever the batch."""
    batch = case.scope.batch
    if batch is None or batch == 1:
        return
    right = ANSWERS[case.name](case.scope.at(1)).number if case.name == "weight_output_bytes" else case.number
    text = f"parameters were multiplied by the batch ({batch}): they are there once, whatever the batch"
    yield Finding("parameters-times-batch", text, whole(batch * right), Fraction(batch))


# Parts and phases.


@only_for("params", "trainable_params", "param_bytes")
def _bias(case: ClaimCase) -> Iterator[Finding]:
    """A bias that a layer has not: one in front of a batch norm."""
    convolutions = [op for op in case.scope.matrix_ops if op.phase == "forward" and op.packet == "aten::convolution"]
    biases = sum(op.tensor("weight").shape[0] for op in convolutions if not op.has("bias"))
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
        alone = Finding("forward-for-training", "the forward alone: a training step has a backward too", forward)
        yield from in_all_conventions(alone, case.of(replace(case.scope, step="forward"), forward))
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
        yield Finding("identity-pool-charged", text, case.scope.scaled(sum(map(pool_charge, pools))))


@only_for("weight_output_bytes", "bytes")
def _outputs(case: ClaimCase) -> Iterator[Finding]:
    """Parts of a sum taken for it."""
    if case.name == "bytes" and case.scope.part.module is None:
        return
    output, params = case.scope.output_bytes, case.scope.of_modules("param_bytes")
    if case.name == "bytes":
        yield Finding("input-left-out", "output and parameters, without the input that is read", output + params)
        yield Finding("output-only", "the output alone", output)
    else:
        yield Finding("output-only", "the output alone, without the parameters", output)
        yield Finding("weights-only", "the parameters alone, without the output", params)
        inputs = case.scope.input_bytes + case.number
        yield Finding("with-input", "with the input, which is not part of it", inputs)


# Sizes.


Size = tuple[int, int]


def _convolution(case: ClaimCase) -> Op | None:
    ops = [op for op in case.scope.ops if op.phase == "forward" and op.packet == "aten::convolution"]
    return ops[0] if len(ops) == 1 else None


def _other_sizes(case: ClaimCase) -> list[tuple[Size, str, str]]:
    """Sizes that may stand for the output's, each with a code and a word about where it is from."""
    op = _convolution(case)
    if op is None or len(op.outputs[0].shape) < 3:
        return []
    right = _size(op.outputs[0].shape)
    sizes: list[tuple[Size, str, str]] = []
    # The pool at the end of its block: layers in between leave the size as it is.
    for later in case.scope.ledger.ops[op.index + 1 :]:
        shape = later.outputs[0].shape if later.outputs else ()
        if is_pool(later) and len(shape) >= 3:
            name = later.module or later.packet
            sizes.append((_size(shape), "size-after-the-pool", f"behind the pool ({name})"))
        if later.kind != "view" and (len(shape) < 3 or _size(shape) != right):
            break
    given, kernel = _size(op.tensor("input").shape), _size(op.tensor("weight").shape)
    stride, padding = _pair(op.ints("stride", [1])), _pair(op.ints("padding", [0]))
    sizes.append((given, "size-of-the-input", "of its input"))
    if any(padding):
        bare = _valid(given, kernel, stride, (0, 0))
        sizes.append((bare, "padding-forgotten", f"without the padding of {padding[0]}"))
    else:
        half = (kernel[0] // 2, kernel[1] // 2)
        sizes.append((_valid(given, kernel, stride, half), "padding-added", "with a padding that it has not"))
    if any(side > 1 for side in stride):
        sizes.append((_valid(given, kernel, (1, 1), padding), "stride-forgotten", f"with stride 1, not {stride[0]}"))
    return [row for row in sizes if row[0] != right and min(row[0]) > 0]


def _size(shape: tuple[int, ...]) -> Size:
    return shape[-2], shape[-1]


def _pair(values: list[int]) -> Size:
    return values[0], values[-1]


def _valid(size: Size, kernel: Size, stride: Size, padding: Size) -> Size:
    height, width = ((size[i] + 2 * padding[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    return height, width


@only_for(*WORK, "output_bytes", "output_elements")
def _worked_out(case: ClaimCase) -> Iterator[Finding]:
    """What is proportional to the output, with a size that it has not."""
    op = _convolution(case)
    if op is None:
        return
    height, width = _size(op.outputs[0].shape)
    for size, code, text in _other_sizes(case):
        taken = f"the output was taken as {size[0]}x{size[1]}, the size {text}, and is {height}x{width}"
        yield Finding(code, taken, whole(case.number * Fraction(size[0] * size[1], height * width)))


@only_for("output_size", "output_shape", "output_elements")
def _sizes(case: ClaimCase) -> Iterator[Finding]:
    right, module = case.answer.value, case.scope.part.module
    if case.name != "output_elements":
        for size, code, text in _other_sizes(case):
            if isinstance(right, tuple):
                yield Finding(code, f"{size[0]}x{size[1]} is the size {text}", (*right[:-2], *size))
            else:
                yield Finding(code, f"{size[1]} is the size {text}", size[1])
    if case.name != "output_size" and module is not None and module.inputs:
        value = module.inputs[0] if case.name == "output_shape" else case.scope.input_bytes // 4
        yield Finding("shape-of-the-input", "that is what it gets, not what it gives", value)


# Other layers of the model.

WAYS: tuple[tuple[str, str, Callable[[ClaimScope], Number]], ...] = (
    ("", "", lambda scope: scope.macs),
    (", by the way of pthflops", "mixed-operations", mixed_operations),
    (", by the way of Caffe's tables", "plain-operations", plain_operations),
)
"""To count work, in words and in multiply-adds or their like."""


def other_layers(case: ClaimCase) -> Iterator[ClaimScope]:
    """The others of the model; first pools, which lists of layers to leave out forget."""
    ledger = case.scope.ledger
    for module in sorted(leaves(ledger), key=lambda module: "pool" not in module.path):
        if module.path != case.scope.part.name and module not in case.scope.part.modules:
            yield replace(case.scope, part=module_part(ledger, module))


LIKELY: tuple[Trial, ...] = (
    _left_out,
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
    _worked_out,
    _sizes,
)
REMOTE: tuple[Trial, ...] = (
    _powers,
    only_for(*_OF_PARAMETERS, "flops", "macs", "bytes", "gradient_bytes", "optimizer_bytes")(_copies(2, 4, 8)),
)
