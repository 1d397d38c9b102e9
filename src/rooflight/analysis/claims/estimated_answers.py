"""What the mathematics answers: work and bytes of the ops, figures of the modules. Each answer with its derivation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from rooflight import formatting, summary
from rooflight.analysis.claims import counts
from rooflight.analysis.claims.counts import said, whole
from rooflight.analysis.claims.ledger_query import ClaimScope
from rooflight.analysis.claims.model_parts import leaves
from rooflight.analysis.claims.result import Answer, CannotTell
from rooflight.ledger import Op
from rooflight.ops.expressions import to_text

# The derivations.


def _scaled(scope: ClaimScope) -> str:
    own = scope.ledger.header.batch
    return "" if scope.scale == 1 else f", × {scope.scale} for batch {scope.batch} instead of {own}"


def _kinds(ops: list[Op]) -> list[str]:
    """`2 convolution`."""
    kinds = Counter(op.packet.removeprefix("aten::") for op in ops)
    return [f"{count} {name}" for name, count in kinds.most_common()]


def _work_text(scope: ClaimScope, times: int) -> str:
    """The formula of the one op that has matrix work, or how many there are."""
    ops = counts.matrix_ops(scope.ops)
    twice = f"{times} × " if times > 1 else ""
    if len(ops) == 1 and (formula := counts.work(ops[0])) is not None:
        text = f"{twice}{to_text(formula.macs)} = {twice}{to_text(formula.macs, formula.where)}"
    else:
        text = f"{twice}the multiply-adds of {' and '.join(_kinds(ops))}" if ops else "no matrix work runs in it"
    missing = dict.fromkeys(op.name for op in scope.ops if op.cost is None)
    return text + _scaled(scope) + (f"; without {', '.join(missing)}, which has no formula" if missing else "")


def _other_text(scope: ClaimScope) -> str:
    ops = [op for op in scope.ops if op.cost is not None and op.cost.other_flops]
    if len(ops) == 1 and (formula := counts.work(ops[0])) is not None:
        return f"{to_text(formula.other)} = {to_text(formula.other, formula.where)}"
    return f"operations of {', '.join(_kinds(ops)) or 'nothing'}"


def _origin(scope: ClaimScope) -> str:
    origins = Counter(op.cost.origin for op in scope.ops if op.cost is not None and op.cost.macs)
    return ", ".join(name for name, _ in origins.most_common(2)) or "formulas over the ops"


# The answers.


def check_known(scope: ClaimScope) -> None:
    """A log from elsewhere has no formulas, and an op without one is no 0."""
    if not scope.ledger.ops:
        raise CannotTell("the ledger has no ops: it is a log of kernels", "a ledger of rooflight estimate")
    if scope.ops and all(op.cost is None for op in scope.ops):
        raise CannotTell(f"no op of {scope.part.name} has a formula")


Answering = Callable[[ClaimScope], Answer]


def _flops(scope: ClaimScope) -> Answer:
    return Answer(counts.flops(scope), _work_text(scope, 2), _origin(scope))


def _macs(scope: ClaimScope) -> Answer:
    return Answer(counts.macs(scope), _work_text(scope, 1), _origin(scope))


def _ops(scope: ClaimScope) -> Answer:
    if counts.matrix_ops(scope.ops):
        return _flops(scope)
    return _anew(_other)(scope)


def _other(scope: ClaimScope) -> Answer:
    return Answer(counts.other_flops(scope), _other_text(scope), "formulas over the ops")


def _share(scope: ClaimScope) -> Answer:
    part, all_ = counts.macs(scope), counts.macs(scope.whole())
    if not all_:
        raise CannotTell("the model has no matrix work to have a share of")
    return Answer(Fraction(part) / Fraction(all_), f"{said(part)} of {said(all_)} multiply-adds", "formulas")


def _bytes(scope: ClaimScope) -> Answer:
    text = "each distinct input read once, each output written once, op by op"
    return Answer(counts.moved(scope, scope.name), text + _scaled(scope), "shapes and types")


def _intensity(scope: ClaimScope) -> Answer:
    nbytes = counts.moved(scope)
    if not nbytes:
        raise CannotTell(f"{scope.part.name} moves no bytes")
    flop = scope.totals.work_flops
    return Answer(Fraction(flop, nbytes), f"{said(flop)} FLOP / {said(nbytes)} compulsory bytes", "formulas")


def _params(scope: ClaimScope) -> Answer:
    module = scope.part.module
    text = f"parameters of {scope.part.name}, whatever the batch"
    if module is not None and module.params:
        text = f"{module.type} {scope.part.name}: weights and biases, whatever the batch"
    return Answer(counts.params(scope), text, "the modules")


def _trainable(scope: ClaimScope) -> Answer:
    return Answer(counts.trainable_params(scope), f"parameters of {scope.part.name} that have gradients", "the modules")


def _param_bytes(scope: ClaimScope) -> Answer:
    text = f"{counts.params(scope):,} parameters in {scope.ledger.header.dtype}, whatever the batch"
    return Answer(counts.param_bytes(scope), text, "the modules")


def _model_bytes(scope: ClaimScope) -> Answer:
    own, buffers = counts.param_bytes(scope), counts.buffer_bytes(scope)
    return Answer(own + buffers, f"parameters {own:,} B + buffers {buffers:,} B", "the modules")


def _shape(scope: ClaimScope) -> tuple[int, ...]:
    """What the layer, or the one op that was named, gives."""
    if scope.part.kind == "op":
        shapes = {op.outputs[0].shape for op in scope.ops if op.outputs}
        if len(shapes) == 1:
            return shapes.pop()
    return counts.module_of(scope).outputs[0]


def _output_shape(scope: ClaimScope) -> Answer:
    first, *rest = _shape(scope) or (1,)
    sizes = (int(first * scope.scale), *rest) if (first * scope.scale).denominator == 1 else (first, *rest)
    return Answer(sizes, "what its first call gives", "the trace")


def _output_size(scope: ClaimScope) -> Answer:
    shape = _shape(scope)
    return Answer(shape[-1] if shape else 1, f"it gives {formatting.shape(shape)}", "the trace")


def _output_elements(scope: ClaimScope) -> Answer:
    return Answer(counts.output_elements(scope), f"it gives {_outputs(scope)}", "the trace")


def _output_bytes(scope: ClaimScope) -> Answer:
    return Answer(counts.output_bytes(scope), f"{_outputs(scope)} × {scope.book.dtype_bytes} B", "the trace")


def _outputs(scope: ClaimScope) -> str:
    return " + ".join(formatting.shape(shape) for shape in counts.module_of(scope).outputs) + _scaled(scope)


def _input_features(scope: ClaimScope) -> Answer:
    shapes = counts.module_of(scope).inputs
    if not shapes:
        raise CannotTell(f"{scope.part.name} gets no tensor")
    return Answer(shapes[0][-1], f"it gets {formatting.shape(shapes[0])}", "the trace")


def _input_bytes(scope: ClaimScope) -> Answer:
    shapes = counts.module_of(scope).inputs
    text = " + ".join(formatting.shape(shape) for shape in shapes[:1])
    return Answer(counts.input_bytes(scope), f"{text} × {scope.book.dtype_bytes} B{_scaled(scope)}", "the trace")


def _weight_output(scope: ClaimScope) -> Answer:
    given, own = counts.output_bytes(scope), counts.param_bytes(scope)
    text = f"output {_outputs(scope)} × {scope.book.dtype_bytes} B = {said(given)} + parameters {own:,}, once"
    return Answer(given + own, text, "the trace and the modules")


def _layers(scope: ClaimScope) -> Answer:
    count = len(scope.part.modules) if scope.part.kind == "type" else len(leaves(scope.ledger))
    return Answer(count, f"modules without children in {scope.part.name}", "the modules")


def _input_size(scope: ClaimScope) -> Answer:
    sizes = summary.sizes(scope.ledger)
    shapes = " + ".join(formatting.shape(tensor.shape) for _, tensor in scope.ledger.header.inputs)
    return Answer(whole(sizes.input_bytes * scope.scale), f"input {shapes}{_scaled(scope)}", "the trace")


def _forward_backward(scope: ClaimScope) -> Answer:
    outputs = counts.every_output(scope)
    return Answer(2 * outputs, f"2 × {said(outputs)} B: what every op gives, functional ones too", "the trace")


def _total_size(scope: ClaimScope) -> Answer:
    inputs = whole(summary.sizes(scope.ledger).input_bytes * scope.scale)
    parts = (inputs, counts.param_bytes(scope.whole()), 2 * counts.every_output(scope))
    text = "input {} + parameters {} + outputs twice {} B".format(*map(said, parts))
    return Answer(sum(parts), text, "the trace")


def _growth(scope: ClaimScope) -> Answer:
    """What stays of a layer is what it gives."""
    if scope.part.module is None:
        raise CannotTell(f"by how much {scope.part.name} grows memory only a measurement tells", "rooflight measure")
    text = f"what stays is the output, {_outputs(scope)} × {scope.book.dtype_bytes} B"
    return Answer(counts.output_bytes(scope), text, "the trace")


def _batch(scope: ClaimScope) -> Answer:
    batch = scope.ledger.header.batch
    if batch is None:
        raise CannotTell("the ledger does not tell its batch")
    return Answer(batch, "the step that was traced", "the ledger's header")


def _anew(answer: Answering) -> Answering:
    """For what is not proportional to the batch."""
    return lambda scope: answer(scope.traced_anew())


ANSWERS: dict[str, Answering] = {
    "flops": _flops,
    "macs": _macs,
    "ops": _ops,
    "other_flops": _anew(_other),
    "share": _share,
    "bytes": _anew(_bytes),
    "bytes_read": _anew(_bytes),
    "bytes_written": _anew(_bytes),
    "intensity": _anew(_intensity),
    "params": _params,
    "trainable_params": _trainable,
    "param_bytes": _param_bytes,
    "model_bytes": _model_bytes,
    "output_shape": _output_shape,
    "output_size": _output_size,
    "output_elements": _output_elements,
    "output_bytes": _output_bytes,
    "input_features": _input_features,
    "input_bytes": _input_bytes,
    "weight_output_bytes": _weight_output,
    "layers": _layers,
    "input_size": _input_size,
    "growth_bytes": _growth,
    "forward_backward_bytes": _anew(_forward_backward),
    "total_size": _anew(_total_size),
    "batch": _batch,
}
