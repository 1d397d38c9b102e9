"""A ledger in words: what was traced, under which conventions, and what is not covered."""

from __future__ import annotations

from collections.abc import Collection

from rooflight import summary, units
from rooflight.ledger import Header, Ledger, total
from rooflight.measured import Measured, is_measured
from rooflight.reporting import measure_text

CONVENTIONS = (
    "1 multiply-add = 2 FLOP; FLOPs are matrix work (convolution, matmul, attention) = 2 × MACs, a bias is part of it; "
    "other = 1 per arithmetic result, function or comparison elsewhere; bytes are compulsory: every distinct input "
    "read once, every output written once, no reuse between ops; attention counts the full S², causal FLOPs the kept "
    "half; recomputed work stands apart; FLOP/B = (causal FLOPs + other + recomputed) / bytes; share is of FLOPs."
)


KINDS = {"infer": "inference", "train": "training step", "decode": "decoding one token"}


def headline(ledger: Ledger) -> str:
    """`resnet50 · training step · batch 16 · fp32 (TF32 convolutions) · momentum SGD`, without what is not known."""
    header = ledger.header
    batch = None if header.step is None and header.batch is None else str(header.batch or "unknown")
    parts = step_parts(header, batch, _precision(ledger))
    return " · ".join([*parts, *([header.device] if header.device is not None else [])])


def step_parts(header: Header, batch: str | None, precision: str) -> list[str]:
    """The model, and what is done with it."""
    parts = [header.model]
    parts += [KINDS[header.step]] if header.step is not None else []
    parts += [f"batch {batch}"] if batch is not None else []
    if header.accumulate > 1:
        parts[-1] += f" × {header.accumulate} accumulated"
    if header.step == "decode":
        parts.append("one more token" if header.past is None else f"{header.past:,} tokens in the cache")
    elif header.sequence is not None:
        parts.append(f"sequence {header.sequence}")
    parts += [precision] if precision else []
    if header.step == "train":
        parts.append(f"{header.loss} loss, {header.optimizer}")
    if header.checkpoint:
        parts.append(f"checkpointed: {', '.join(header.checkpoint)}")
    return parts + _run_as(header)


def _run_as(header: Header) -> list[str]:
    """How a step is run, where that is not plainly."""
    said = {"channels_last": header.channels_last, "fused optimizer": header.fused, "padded products": header.pad,
            "compiled": header.is_compiled, "CUDA graph": header.is_graph}  # fmt: skip
    return [words for words, given in said.items() if given]


def _precision(ledger: Ledger) -> str:
    on_gpu = ledger.header.target.startswith("cuda")
    return in_precision(
        ledger.header, {op.precision for op in ledger.ops if op.cost and op.cost.macs} if on_gpu else ()
    )


def in_precision(header: Header, used: Collection[str]) -> str:
    """`fp32 (TF32 in convolutions, not in matmuls)`; `used`: what matrix work really runs in."""
    text = header.dtype or ""
    if header.dtype == "fp32" and "tf32" in used:
        matmuls = header.math is not None and header.math.tf32_matmul
        rest = "convolutions and matmuls, not in attention" if matmuls else "convolutions, not in matmuls"
        text += f" (TF32 in {'all matrix work' if 'fp32' not in used else rest})"
    return f"{text}, autocast {header.autocast}".lstrip(", ") if header.autocast else text


def provenance(ledger: Ledger) -> str:
    header = ledger.header
    versions = (
        f"torch {header.torch}, rooflight {header.rooflight}" if header.torch else f"rooflight {header.rooflight}"
    )
    if not ledger.ops:
        return f"{len(ledger.kernels):,} kernels, no ops; {versions}"
    if is_measured(ledger):
        return f"{len(ledger.ops):,} ops, views included, recorded as the step ran on {header.traced_on}; {versions}"
    return (
        f"one trace of {len(ledger.ops):,} ops on {header.traced_on} tensors, as {header.target} would run it; "
        f"{versions}"
    )


def coverage(ledger: Ledger) -> str:
    """Which ops the totals do not cover; said even when there are none."""
    missing = total(ledger.ops).uncounted
    if not missing:
        return "every op has a formula: nothing is left out of the totals"
    names = ", ".join(f"{row.op} ({row.calls}×)" for row in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"NOT COUNTED, no formula: {names}{more} — add one with @rooflight.formula"


def parameters_line(ledger: Ledger) -> str:
    count, trainable = summary.params(ledger), summary.trainable_params(ledger)
    frozen = f", {count - trainable:,} of them frozen" if count != trainable else ""
    return f"{count:,} parameters{frozen} ({units.bytes_(summary.param_bytes(ledger))})"


def describe(ledger: Ledger) -> str:
    """The `repr` of a ledger: what it is, and its totals."""
    lines = [headline(ledger)]
    if ledger.modules:
        lines.append(parameters_line(ledger))
    if ledger.ops:
        lines += _estimated(ledger)
    if is_measured(ledger):
        lines += measure_text.headlines(Measured(ledger))
    lines.extend(f"note: {note}" for note in ledger.header.notes)
    lines.append(provenance(ledger))
    return "\n".join(lines)


def _estimated(ledger: Ledger) -> list[str]:
    if all(op.cost is None for op in ledger.ops):
        return ["no costs yet: rooflight.estimate fills them"]
    sums = total(ledger.ops)
    again = f" + {units.count(sums.recompute_flops)} again" if sums.recompute_flops else ""
    return [
        f"{units.count(sums.macs)} MACs, {units.count(sums.flops)} FLOPs{again}, "
        f"{units.count(sums.other_flops)} other, {units.bytes_(sums.bytes)} moved, "
        f"{units.ratio(sums.intensity)} FLOP/B",
        coverage(ledger),
    ]
