"""What the mathematics answers: work and bytes of the ops, figures of the modules. Each answer with its derivation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from operator import attrgetter

from rooflight import formatting, summary
from rooflight.analysis.claims.claim import Answer, CannotTell
from rooflight.analysis.claims.ledger_query import ClaimScope
from rooflight.analysis.claims.model_parts import leaves
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.finding import Number
from rooflight.estimation.costs import work_of
from rooflight.ledger import Op
from rooflight.metrics import ESTIMATED
from rooflight.ops.expressions import to_text

Answering = Callable[[ClaimScope], Answer]

# The derivations.


def _text(value: Number) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.6g}"


def _scaled(scope: ClaimScope) -> str:
    traced = scope.ledger.header.batch
    return "" if scope.scale == 1 else f", × {scope.scale} for batch {scope.batch} instead of {traced}"


def _kinds(ops: list[Op]) -> list[str]:
    """`2 convolution`."""
    kinds = Counter(op.packet.removeprefix("aten::") for op in ops)
    return [f"{count} {name}" for name, count in kinds.most_common()]


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    return " + ".join(map(formatting.shape, shapes))


def _work(scope: ClaimScope, times: int) -> Answer:
    """By the formula of the one op that has matrix work; of several, how many there are."""
    ops = scope.matrix_ops
    twice = f"{times} × " if times > 1 else ""
    if len(ops) == 1 and (formula := work_of(ops[0])) is not None:
        text = f"{twice}{to_text(formula.macs)} = {twice}{to_text(formula.macs, formula.where)}"
    else:
        text = f"{twice}the multiply-adds of {' and '.join(_kinds(ops))}" if ops else "no matrix work runs in it"
    missing = dict.fromkeys(op.name for op in scope.ops if op.cost is None)
    text += _scaled(scope) + (f"; without {', '.join(missing)}, which has no formula" if missing else "")
    origins = Counter(op.cost.origin for op in ops if op.cost is not None)
    origin = ", ".join(name for name, _ in origins.most_common(2)) or "formulas over the ops"
    return Answer(times * scope.macs, text, origin)


def _other(scope: ClaimScope) -> Answer:
    ops = [op for op in scope.ops if op.cost is not None and op.cost.other_flops]
    text = f"operations of {', '.join(_kinds(ops)) or 'nothing'}"
    if len(ops) == 1 and (formula := work_of(ops[0])) is not None:
        text = f"{to_text(formula.other)} = {to_text(formula.other, formula.where)}"
    return Answer(scope.totals.other_flops, text, "formulas over the ops")


_KEPT = {
    "kept_bytes": ("kept_for_backward_bytes", "activations kept for backward"),
    "activation_gradient_bytes": ("activation_gradient_bytes", "gradients of all activations"),
    "gradient_bytes": ("gradient_bytes", "gradients"),
    "optimizer_bytes": ("optimizer_state_bytes", "optimizer state"),
}
"""What a training step keeps: a field of `summary.Sizes`, and a word for it."""


def check_known(scope: ClaimScope) -> None:
    """A log from elsewhere has no formulas, and an op without one is no 0."""
    if scope.name in _KEPT:
        return
    if not scope.ledger.ops:
        raise CannotTell("the ledger has no ops: it is a log of kernels", "a ledger of rooflight estimate")
    if scope.ops and all(op.cost is None for op in scope.ops):
        raise CannotTell(f"no op of {scope.part.name} has a formula")


# The answers.


def _anew(answer: Answering) -> Answering:
    """For what is not proportional to the batch."""
    return lambda scope: answer(scope.traced_anew())


def _sum(metric: str) -> Answering:
    """A metric by formula that has nothing of its own to say: the sum over the ops."""
    how, origin = ESTIMATED[metric].about, "formulas over the ops"
    if ESTIMATED[metric].unit == "byte":
        how, origin = "each distinct input read once, each output written once, op by op", "shapes and types"
    of = ESTIMATED[metric].of or attrgetter(metric)

    def answer(scope: ClaimScope) -> Answer:
        value = of(scope.totals)
        if value is None:
            raise CannotTell(f"{scope.part.name} has nothing to compute it from")
        return Answer(value, how, origin)

    return _anew(answer)


def _share(scope: ClaimScope) -> Answer:
    part, model = scope.macs, scope.whole().macs
    if not model:
        raise CannotTell("the model has no matrix work to have a share of")
    return Answer(Fraction(part) / Fraction(model), f"{_text(part)} of {_text(model)} multiply-adds", "formulas")


def _intensity(scope: ClaimScope) -> Answer:
    flops, nbytes = scope.totals.work_flops, scope.totals.bytes
    if not nbytes:
        raise CannotTell(f"{scope.part.name} moves no bytes")
    # Exact, unlike that of the totals: a convention that changes nothing is known by the very same value.
    return Answer(Fraction(flops, nbytes), f"{_text(flops)} FLOP / {_text(nbytes)} compulsory bytes", "formulas")


def _params(scope: ClaimScope) -> Answer:
    module = scope.part.module
    text = f"parameters of {scope.part.name}, whatever the batch"
    if module is not None and module.params:
        text = f"{module.type} {scope.part.name}: weights and biases, whatever the batch"
    return Answer(scope.of_modules("params"), text, "the modules")


def _model_bytes(scope: ClaimScope) -> Answer:
    params, buffers = scope.of_modules("param_bytes"), scope.of_modules("buffer_bytes")
    return Answer(params + buffers, f"parameters {params:,} B + buffers {buffers:,} B", "the modules")


def _shape(scope: ClaimScope) -> tuple[int, ...]:
    """What the layer, or the one op that was named, gives."""
    if scope.part.kind == "op":
        shapes = {op.outputs[0].shape for op in scope.ops if op.outputs}
        if len(shapes) == 1:
            return shapes.pop()
    return scope.module.outputs[0]


def _output_shape(scope: ClaimScope) -> Answer:
    first, *rest = _shape(scope) or (1,)
    sizes = (int(first * scope.scale), *rest) if (first * scope.scale).denominator == 1 else (first, *rest)
    return Answer(sizes, "what its first call gives", "the trace")


def _output_size(scope: ClaimScope) -> Answer:
    shape = _shape(scope)
    return Answer(shape[-1] if shape else 1, f"it gives {formatting.shape(shape)}", "the trace")


def _output_elements(scope: ClaimScope) -> Answer:
    shapes = scope.module.outputs
    return Answer(scope.scaled(sum(map(math.prod, shapes))), f"it gives {_shapes(shapes)}{_scaled(scope)}", "the trace")


def _outputs(scope: ClaimScope) -> str:
    return f"{_shapes(scope.module.outputs)}{_scaled(scope)} × {scope.book.dtype_bytes} B"


def _growth(scope: ClaimScope) -> Answer:
    """What stays of a layer is what it gives."""
    if scope.part.module is None:
        raise CannotTell(f"by how much {scope.part.name} grows memory only a measurement tells", "rooflight measure")
    return Answer(scope.output_bytes, f"what stays is the output, {_outputs(scope)}", "the trace")


def _input_features(scope: ClaimScope) -> Answer:
    shapes = scope.module.inputs
    if not shapes:
        raise CannotTell(f"{scope.part.name} gets no tensor")
    return Answer(shapes[0][-1], f"it gets {formatting.shape(shapes[0])}", "the trace")


def _input_bytes(scope: ClaimScope) -> Answer:
    text = f"{_shapes(scope.module.inputs[:1])} × {scope.book.dtype_bytes} B{_scaled(scope)}"
    return Answer(scope.input_bytes, text, "the trace")


def _weight_output(scope: ClaimScope) -> Answer:
    output, params = scope.output_bytes, scope.of_modules("param_bytes")
    text = f"output {_outputs(scope)} = {_text(output)} + parameters {params:,}, once"
    return Answer(output + params, text, "the trace and the modules")


def _layers(scope: ClaimScope) -> Answer:
    count = len(scope.part.modules) if scope.part.kind == "type" else len(leaves(scope.ledger))
    return Answer(count, f"modules without children in {scope.part.name}", "the modules")


def _input_size(scope: ClaimScope) -> Answer:
    text = f"input {_shapes(tensor.shape for _, tensor in scope.ledger.header.inputs)}{_scaled(scope)}"
    return Answer(scope.scaled(summary.sizes(scope.ledger).input_bytes), text, "the trace")


def _forward_backward(scope: ClaimScope) -> Answer:
    outputs = scope.every_output
    return Answer(2 * outputs, f"2 × {_text(outputs)} B: what every op gives, functional ones too", "the trace")


def _total_size(scope: ClaimScope) -> Answer:
    sizes = summary.sizes(scope.ledger)
    parts = (sizes.input_bytes, sizes.param_bytes, 2 * scope.every_output)
    text = "input {} + parameters {} + outputs twice {} B".format(*map(_text, parts))
    return Answer(sum(parts), text, "the trace")


def _kept(scope: ClaimScope) -> Answer:
    field, what = _KEPT[scope.name]
    if scope.ledger.header.step != "train":
        raise CannotTell(f"an inference keeps no {what}", scope.book.command(step="train"))
    if scope.part.kind != "total":
        raise CannotTell(f"{what} are known of the whole step, not of {scope.part.name}", "a row of the total")
    if scope.scale != 1 and scope.name == "kept_bytes":
        raise CannotTell(f"{what} at another batch need a trace of it", scope.book.command(batch=scope.batch))
    size = getattr(summary.sizes(scope.ledger), field)
    return Answer(size, f"{what} by the trace, at their most", "the storages of the trace")


def _batch(scope: ClaimScope) -> Answer:
    batch = scope.ledger.header.batch
    if batch is None:
        raise CannotTell("the ledger does not tell its batch")
    return Answer(batch, "the step that was traced", "the ledger's header")


ANSWERS: dict[str, Answering] = {
    **{name: _sum(quantity.metric) for name, quantity in QUANTITIES.items() if quantity.metric in ESTIMATED},
    "flops": lambda scope: _work(scope, 2),
    "macs": lambda scope: _work(scope, 1),
    "ops": lambda scope: _work(scope, 2) if scope.matrix_ops else _other(scope.traced_anew()),
    "other_flops": _anew(_other),
    "share": _share,
    "intensity": _anew(_intensity),
    "params": _params,
    "trainable_params": lambda scope: Answer(
        scope.of_modules("trainable_params"), f"parameters of {scope.part.name} that have gradients", "the modules"
    ),
    "param_bytes": lambda scope: Answer(
        scope.of_modules("param_bytes"),
        f"{scope.of_modules('params'):,} parameters in {scope.ledger.header.dtype}, whatever the batch",
        "the modules",
    ),
    "model_bytes": _model_bytes,
    "output_shape": _output_shape,
    "output_size": _output_size,
    "output_elements": _output_elements,
    "output_bytes": lambda scope: Answer(scope.output_bytes, _outputs(scope), "the trace"),
    "input_features": _input_features,
    "input_bytes": _input_bytes,
    "weight_output_bytes": _weight_output,
    "layers": _layers,
    "input_size": _input_size,
    "growth_bytes": _growth,
    "forward_backward_bytes": _anew(_forward_backward),
    "total_size": _anew(_total_size),
    "batch": _batch,
    **dict.fromkeys(_KEPT, _kept),
}
