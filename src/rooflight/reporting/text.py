"""An estimate in words: what was traced, under which conventions, and what is not covered."""

from __future__ import annotations

from rooflight import summary, units
from rooflight.ledger import Ledger, total

CONVENTIONS = (
    "1 multiply-add = 2 FLOP; FLOPs are matrix work (convolution, matmul, attention) = 2 × MACs, a bias is part of it; "
    "other = 1 per arithmetic result, function or comparison elsewhere; bytes are compulsory: every distinct input "
    "read once, every output written once, no reuse between ops; attention counts the full S², causal FLOPs the kept "
    "half; recomputed work stands apart; FLOP/B = (FLOPs + other + recomputed) / bytes; share is of FLOPs."
)


def headline(ledger: Ledger) -> str:
    """`resnet50 · training step · batch 16 · fp32 (TF32 convolutions) · momentum SGD`."""
    header = ledger.header
    kind = {"infer": "inference", "train": "training step", "decode": "decoding one token"}[header.step]
    parts = [header.model, kind, f"batch {'unknown' if header.batch is None else header.batch}"]
    if header.accumulate > 1:
        parts[-1] += f" × {header.accumulate} accumulated"
    if header.step == "decode":
        parts.append("one more token" if header.past is None else f"{header.past:,} tokens in the cache")
    elif header.sequence is not None:
        parts.append(f"sequence {header.sequence}")
    parts.append(_precision(ledger))
    if header.step == "train":
        parts.append(f"{header.loss} loss, {header.optimizer}")
    return " · ".join(parts)


def _precision(ledger: Ledger) -> str:
    header = ledger.header
    text = header.dtype
    if header.dtype == "fp32" and header.target.startswith("cuda"):
        used = {op.precision for op in ledger.ops if op.cost and op.cost.macs}
        if "tf32" in used:
            text += " (TF32 in all matrix work)" if "fp32" not in used else " (TF32 in convolutions, not in matmuls)"
    return f"{text}, autocast {header.autocast}" if header.autocast else text


def provenance(ledger: Ledger) -> str:
    header = ledger.header
    return (
        f"one trace of {len(ledger.ops):,} ops on {header.traced_on} tensors, as {header.target} would run it; "
        f"torch {header.torch}, rooflight {header.rooflight}"
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
    sums = total(ledger.ops)
    lines = [headline(ledger), parameters_line(ledger)]
    if any(op.cost is not None for op in ledger.ops):
        again = f" + {units.count(sums.recompute_flops)} again" if sums.recompute_flops else ""
        lines.append(
            f"{units.count(sums.macs)} MACs, {units.count(sums.flops)} FLOPs{again}, "
            f"{units.count(sums.other_flops)} other, {units.bytes_(sums.bytes)} moved, "
            f"{units.ratio(sums.intensity)} FLOP/B"
        )
        lines.append(coverage(ledger))
    else:
        lines.append("no costs yet: rooflight.estimate fills them")
    lines.extend(f"note: {note}" for note in ledger.header.notes)
    lines.append(provenance(ledger))
    return "\n".join(lines)
