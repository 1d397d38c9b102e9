"""What the mathematics answers: work and bytes of the ops, figures of the modules. Each answer with its derivation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from rooflight import summary, units
from rooflight.claims.book import Scope
from rooflight.claims.counts import (
    every_output,
    flops,
    input_bytes,
    intensity,
    known,
    macs,
    matrix_ops,
    module_of,
    moved,
    other_flops,
    output_bytes,
    output_elements,
    param_bytes,
    params,
    said,
    whole,
    work,
)
from rooflight.claims.places import leaves
from rooflight.claims.result import Answer, CannotTell
from rooflight.estimation.expressions import to_text

# The derivations.


def _scaled(scope: Scope) -> str:
    own = scope.ledger.header.batch
    return "" if scope.scale == 1 else f", × {scope.scale} for batch {scope.batch} instead of {own}"


def _uncounted(scope: Scope) -> str:
    missing = Counter(op.name for op in scope.ops if op.cost is None)
    return f"; without {', '.join(missing)}, which has no formula" if missing else ""


def _work_text(scope: Scope, times: int) -> str:
    """The formula of the one op that has matrix work, or how many there are."""
    found = matrix_ops(scope.ops)
    twice = f"{times} × " if times > 1 else ""
    if len(found) == 1 and (made := work(found[0])) is not None:
        text = f"{twice}{to_text(made.macs)} = {twice}{to_text(made.macs, made.where)}"
    elif not found:
        text = "no matrix work runs in it"
    else:
        kinds = Counter(op.packet.removeprefix("aten::") for op in found)
        parts = " and ".join(f"{count} {name}" for name, count in kinds.most_common())
        text = f"{twice}the multiply-adds of {parts}"
    return text + _scaled(scope) + _uncounted(scope)


def _other_text(scope: Scope) -> str:
    found = [op for op in scope.ops if known(op, "other_flops")]
    if len(found) == 1 and (made := work(found[0])) is not None:
        return f"{to_text(made.other)} = {to_text(made.other, made.where)}"
    kinds = Counter(op.packet.removeprefix("aten::") for op in found)
    return "operations of " + (", ".join(f"{count} {name}" for name, count in kinds.most_common()) or "nothing")


def _origin(scope: Scope) -> str:
    origins = Counter(op.cost.origin for op in scope.ops if op.cost is not None and op.cost.macs)
    return ", ".join(name for name, _ in origins.most_common(2)) or "formulas over the ops"


# The answers.


def check_known(scope: Scope) -> None:
    """A log from elsewhere has no formulas, and an op without one is no 0."""
    if not scope.ledger.ops:
        raise CannotTell("the ledger has no ops: it is a log of kernels", "a ledger of rooflight estimate")
    if scope.ops and all(op.cost is None for op in scope.ops):
        raise CannotTell(f"no op of {scope.place.name} has a formula")


Answering = Callable[[Scope], Answer]


def _flops(scope: Scope) -> Answer:
    return Answer(flops(scope), _work_text(scope, 2), _origin(scope))


def _macs(scope: Scope) -> Answer:
    return Answer(macs(scope), _work_text(scope, 1), _origin(scope))


def _ops(scope: Scope) -> Answer:
    if matrix_ops(scope.ops):
        return _flops(scope)
    return _anew(_other)(scope)


def _other(scope: Scope) -> Answer:
    return Answer(other_flops(scope), _other_text(scope), "formulas over the ops")


def _share(scope: Scope) -> Answer:
    part, all_ = macs(scope), macs(scope.whole())
    if not all_:
        raise CannotTell("the model has no matrix work to have a share of")
    return Answer(Fraction(part) / Fraction(all_), f"{said(part)} of {said(all_)} multiply-adds", "formulas")


def _bytes(*names: str) -> Answering:
    def answer(scope: Scope) -> Answer:
        text = "each distinct input read once, each output written once, op by op"
        return Answer(moved(scope, names), text + _scaled(scope), "shapes and types")

    return answer


def _intensity(scope: Scope) -> Answer:
    if not moved(scope):
        raise CannotTell(f"{scope.place.name} moves no bytes")
    all_ = flops(scope) + other_flops(scope)
    return Answer(intensity(scope), f"{said(all_)} FLOP / {said(moved(scope))} compulsory bytes", "formulas")


def _params(scope: Scope) -> Answer:
    module = scope.place.module
    text = f"parameters of {scope.place.name}, whatever the batch"
    if module is not None and module.params:
        text = f"{module.type} {scope.place.name}: weights and biases, whatever the batch"
    return Answer(params(scope), text, "the modules")


def _trainable(scope: Scope) -> Answer:
    found = sum(module.trainable_params for module in scope.place.modules)
    return Answer(found, f"parameters of {scope.place.name} that have gradients", "the modules")


def _param_bytes(scope: Scope) -> Answer:
    text = f"{params(scope):,} parameters in {scope.ledger.header.dtype}, whatever the batch"
    return Answer(param_bytes(scope), text, "the modules")


def _model_bytes(scope: Scope) -> Answer:
    buffers = sum(module.buffer_bytes for module in scope.place.modules)
    return Answer(
        param_bytes(scope) + buffers, f"parameters {param_bytes(scope):,} B + buffers {buffers:,} B", "the modules"
    )


def _shape(scope: Scope) -> tuple[int, ...]:
    """What the layer, or the one op that was named, gives."""
    if scope.place.kind == "op":
        shapes = {op.outputs[0].shape for op in scope.ops if op.outputs}
        if len(shapes) == 1:
            return shapes.pop()
    return module_of(scope).outputs[0]


def _output_shape(scope: Scope) -> Answer:
    first, *rest = _shape(scope) or (1,)
    sizes = (int(first * scope.scale), *rest) if (first * scope.scale).denominator == 1 else (first, *rest)
    return Answer(sizes, "what its first call gives", "the trace")


def _output_size(scope: Scope) -> Answer:
    shape = _shape(scope)
    return Answer(shape[-1] if shape else 1, f"it gives {units.shape(shape)}", "the trace")


def _output_elements(scope: Scope) -> Answer:
    return Answer(output_elements(scope), f"it gives {_given(scope)}", "the trace")


def _output_bytes(scope: Scope) -> Answer:
    return Answer(output_bytes(scope), f"{_given(scope)} × {scope.book.dtype_bytes} B", "the trace")


def _given(scope: Scope) -> str:
    return " + ".join(units.shape(shape) for shape in module_of(scope).outputs) + _scaled(scope)


def _input_features(scope: Scope) -> Answer:
    shapes = module_of(scope).inputs
    if not shapes:
        raise CannotTell(f"{scope.place.name} gets no tensor")
    return Answer(shapes[0][-1], f"it gets {units.shape(shapes[0])}", "the trace")


def _input_bytes(scope: Scope) -> Answer:
    shapes = module_of(scope).inputs
    text = " + ".join(units.shape(shape) for shape in shapes[:1])
    return Answer(input_bytes(scope), f"{text} × {scope.book.dtype_bytes} B{_scaled(scope)}", "the trace")


def _weight_output(scope: Scope) -> Answer:
    given, own = output_bytes(scope), param_bytes(scope)
    text = f"output {_given(scope)} × {scope.book.dtype_bytes} B = {said(given)} + parameters {own:,}, once"
    return Answer(given + own, text, "the trace and the modules")


def _layers(scope: Scope) -> Answer:
    count = len(scope.place.modules) if scope.place.kind == "type" else len(leaves(scope.ledger))
    return Answer(count, f"modules without children in {scope.place.name}", "the modules")


def _input_size(scope: Scope) -> Answer:
    sizes = summary.sizes(scope.ledger)
    shapes = " + ".join(units.shape(tensor.shape) for _, tensor in scope.ledger.header.inputs)
    return Answer(whole(sizes.input_bytes * scope.scale), f"input {shapes}{_scaled(scope)}", "the trace")


def _forward_backward(scope: Scope) -> Answer:
    found = every_output(scope)
    return Answer(2 * found, f"2 × {said(found)} B: what every op gives, functional ones too", "the trace")


def _total_size(scope: Scope) -> Answer:
    inputs = whole(summary.sizes(scope.ledger).input_bytes * scope.scale)
    parts = (inputs, param_bytes(scope.whole()), 2 * every_output(scope))
    text = "input {} + parameters {} + outputs twice {} B".format(*map(said, parts))
    return Answer(sum(parts), text, "the trace")


def _growth(scope: Scope) -> Answer:
    """What stays of a layer is what it gives."""
    if scope.place.module is None:
        raise CannotTell(f"by how much {scope.place.name} grows memory only a measurement tells", "rooflight measure")
    return Answer(
        output_bytes(scope), f"what stays is the output, {_given(scope)} × {scope.book.dtype_bytes} B", "the trace"
    )


def _batch(scope: Scope) -> Answer:
    found = scope.ledger.header.batch
    if found is None:
        raise CannotTell("the ledger does not tell its batch")
    return Answer(found, "the step that was traced", "the ledger's header")


def _anew(answer: Answering) -> Answering:
    """For what is not proportional to the batch."""
    return lambda scope: answer(scope.traced_anew())


ANSWERS: dict[str, Answering] = {
    "flops": _flops, "macs": _macs, "ops": _ops, "other_flops": _anew(_other), "share": _share,
    "bytes": _anew(_bytes("bytes_read", "bytes_written")), "bytes_read": _anew(_bytes("bytes_read")),
    "bytes_written": _anew(_bytes("bytes_written")), "intensity": _anew(_intensity), "params": _params,
    "trainable_params": _trainable, "param_bytes": _param_bytes, "model_bytes": _model_bytes,
    "output_shape": _output_shape, "output_size": _output_size, "output_elements": _output_elements,
    "output_bytes": _output_bytes, "input_features": _input_features, "input_bytes": _input_bytes,
    "weight_output_bytes": _weight_output, "layers": _layers, "input_size": _input_size,
    "growth_bytes": _growth, "forward_backward_bytes": _anew(_forward_backward), "total_size": _anew(_total_size),
    "batch": _batch,
}  # fmt: skip
