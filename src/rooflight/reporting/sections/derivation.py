"""A derivation written out, as text or LaTeX."""

from __future__ import annotations

from textwrap import fill

from rooflight import formatting
from rooflight.estimation.derivation import Derivation, MovedTensor, OpDerivation, derive
from rooflight.ledger import PHASES, Cost, Ledger, Note
from rooflight.ops.expressions import evaluate, to_latex, to_text
from rooflight.ops.registry import Work
from rooflight.summary.functions import is_function, row_names
from rooflight.summary.layer_lookup import find_layer

_MOST_TENSORS = 6


def derivation_of(ledger: Ledger, text: str) -> Derivation:
    """Of the layer that somebody means: a path or the end of one, a function, an op."""
    found = find_layer(ledger, text)
    notes = []
    if found.alike:
        count, last = len(found.alike) + 1, found.alike[-1]
        notes.append(
            Note(
                "alike-layers",
                f"{text!r} is {count} layers that cost the same, up to {last}; figures are for one, {found.name}",
            )
        )
    return derive(ledger, found.name, rows=row_names(ledger), notes=notes)


def derivation_text(derivation: Derivation) -> str:
    blocks = ["\n".join((_title(derivation), *(fill(str(note), 100) for note in derivation.notes)))]
    for phase in PHASES:
        blocks.extend(op_text(row) for row in derivation.ops if row.op.phase == phase)
    if memory := _memory_text(derivation):
        blocks.append(memory)
    if _sums_up(derivation):
        blocks.append(_sum_text(derivation))
    return "\n\n".join(blocks) + "\n"


def _title(derivation: Derivation) -> str:
    header, module = derivation.ledger.header, derivation.module
    line = f"{derivation.path or header.model}"
    scope = f"batch {header.batch}" + (f", sequence {header.sequence}" if header.sequence is not None else "")
    if is_function(derivation.path):
        around = derivation.path.rpartition(".")[0] or header.model
        calls = sum(row.times for row in derivation.ops if row.op.phase == "forward")
        called = f", called {calls} times" if calls > 1 else ""
        return (
            f"{line}: a function that {around} calls ({header.model}, {header.step}, {scope}, {header.dtype}{called})"
        )
    if module is None:
        return line
    line += f": {module.type}"
    if module.inputs and module.outputs:
        line += f", {formatting.shape(module.inputs[0])} -> {formatting.shape(module.outputs[0])}"
    called = f", called {module.calls} times" if module.calls > 1 else ""
    step = f"{header.model}, {header.step}, {scope}, {header.dtype}{called}"
    return f"{line}, {derivation.params:,} parameters ({step})"


def op_text(row: OpDerivation) -> str:
    """One op: formula, numbers put in, result; bytes tensor by tensor."""
    op, work, cost = row.op, row.work, row.op.cost
    times = f", {row.times} times (figures are for one)" if row.times > 1 else ""
    place = f" ({row.place})" if row.place else ""
    lines = [f"{op.phase}{place}: {op.name} in {op.precision}{times}{', recomputation' if op.recompute else ''}"]
    if work is None or cost is None:
        return lines[0] + "\n  no formula: this op is not counted"
    if work.note:
        lines.append(f"  {work.note}")
    if row.legend:
        legend = ", ".join(f"{s} = {v:,}" + (f" ({m})" if m else "") for s, m, v in row.legend)
        lines.append(fill(legend, 100, initial_indent="  where   ", subsequent_indent=" " * 10))
    if work.macs != 0:
        lines += _expression("MACs", work.macs, row)
        macs = evaluate(work.macs, work.where)
        bias = "; the bias is part of them" if op.has("bias") or op.packet == "aten::addmm" else ""
        lines.append(f"  FLOPs   = 2 × MACs = {2 * macs:,}  (1 multiply-add = 2 FLOP{bias})")
        if work.causal_macs is not None and cost.flops_causal != cost.flops:
            lines += _expression("causal", work.causal_macs, row)
            lines.append(f"          -> {cost.flops_causal:,} FLOPs with only the pairs a causal mask keeps")
    if work.recompute_macs != 0:
        lines += _expression("again", work.recompute_macs, row)
    if work.other != 0:
        lines += _expression("other", work.other, row)
    lines += _bytes_text(row, cost)
    return "\n".join(lines)


def _expression(name: str, text: str | int, row: OpDerivation) -> list[str]:
    assert row.work is not None
    where = row.work.where
    lines = [f"  {name:7} = {to_text(text)}"]
    substituted = to_text(text, where)
    value = evaluate(text, where)
    if substituted != to_text(text) and substituted != f"{value:,}":
        lines.append(f"          = {substituted}")
    lines.append(f"          = {value:,}")
    return lines if not isinstance(text, int) else [f"  {name:7} = {value:,}"]


def _bytes_text(row: OpDerivation, cost: Cost) -> list[str]:
    assert row.work is not None
    read = cost.bytes_read or 0
    written = cost.bytes_written or 0
    lines = []
    for label, shares, override, value in (
        ("read", row.read, row.work.reads, read),
        ("written", row.written, row.work.writes, written),
    ):
        if override is not None and not isinstance(override, int):
            lines += _expression(label, override, row)
            lines[-1] += " B"
        elif override is None and value and 1 < len(shares) <= _MOST_TENSORS:
            parts = " + ".join(f"{share.name} {_product(share)}" for share in shares if share.tensor.nbytes)
            lines.append(f"  {label:7} = {parts}")
            lines.append(f"          = {value:,} B")
        elif override is None and value and len(shares) == 1:
            lines.append(f"  {label:7} = {shares[0].name} {_product(shares[0])} = {value:,} B")
        else:
            lines.append(f"  {label:7} = {value:,} B")
    flops = (cost.flops or 0) + (cost.recompute_flops or 0) + (cost.other_flops or 0)
    if both := read + written:
        # Of a part of an op only some bytes are known to be its own: an intensity would be of something else.
        rate = "" if row.is_part else f"  -> {formatting.ratio(flops / both)} FLOP/B"
        lines.append(f"  bytes   = {read:,} + {written:,} = {both:,} B{rate}")
    return lines


def _product(share: MovedTensor) -> str:
    tensor = share.tensor
    distinct = "" if tensor.nbytes == tensor.numel * tensor.itemsize else f" ({tensor.nbytes:,} B of them distinct)"
    return f"{formatting.shape(tensor.shape)} × {tensor.itemsize} B{distinct}"


def _memory_text(derivation: Derivation) -> str:
    module = derivation.module
    if module is None:
        return ""
    lines = [f"memory: parameters {derivation.params:,} = {derivation.param_bytes:,} B, whatever the batch"]
    if module.outputs:
        shapes = ", ".join(map(formatting.shape, module.outputs))
        lines.append(f"        output {shapes} = {module.output_bytes:,} B")
        lines.append(f"        output + parameters = {module.output_bytes + derivation.param_bytes:,} B")
    return "\n".join(lines)


def _sums_up(derivation: Derivation) -> bool:
    return len(derivation.ops) > 1 or any(op.times > 1 for op in derivation.ops)


def _sum_text(derivation: Derivation) -> str:
    def add(name: str) -> int:
        return sum((getattr(row.op.cost, name) or 0) * row.times for row in derivation.ops if row.op.cost is not None)

    again = f", {add('recompute_flops'):,} FLOPs again" if add("recompute_flops") else ""
    return (
        f"sum: {add('macs'):,} MACs = {add('flops'):,} FLOPs{again}, {add('other_flops'):,} other, "
        f"{add('bytes_read') + add('bytes_written'):,} B"
    )


def derivation_latex(derivation: Derivation) -> str:
    """The same as an `align*` block per op, to paste into a document that uses amsmath."""
    blocks = [f"% {line}" for line in _title(derivation).splitlines()]
    for row in derivation.ops:
        blocks.append(f"% {row.op.phase}: {row.op.name}" + (f", {row.times} times" if row.times > 1 else ""))
        blocks.extend(f"% {symbol} = {value:,} {meaning}".rstrip() for symbol, meaning, value in row.legend)
        if row.work is None or row.op.cost is None:
            blocks.append("% no formula: not counted")
        else:
            blocks.append("\\begin{align*}\n" + " \\\\\n".join(_latex_lines(row.work, row.op.cost)) + "\n\\end{align*}")
    return "\n".join(blocks) + "\n"


def _latex_lines(work: Work, cost: Cost) -> list[str]:
    lines = []
    expressions = (
        ("MACs", work.macs),
        ("causal MACs", work.causal_macs),
        ("recomputed MACs", work.recompute_macs),
        ("other", work.other),
    )
    for name, text in expressions:
        if text is None or text == 0:
            continue
        value = evaluate(text, work.where)
        lines.append(rf"\text{{{name}}} &= {to_latex(text)} = {to_latex(text, work.where)} = {to_latex(value)}")
        if name == "MACs":
            lines.append(rf"\text{{FLOPs}} &= 2 \cdot \text{{MACs}} = {to_latex(2 * value)}")
    read, written = cost.bytes_read or 0, cost.bytes_written or 0
    lines.append(rf"\text{{bytes}} &= {to_latex(read)} + {to_latex(written)} = {to_latex(read + written)}\,\text{{B}}")
    return lines
