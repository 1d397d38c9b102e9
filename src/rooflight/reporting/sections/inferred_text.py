"""What is inferred of a step without counters, in words and for programs: marked as that wherever it stands."""

from __future__ import annotations

from typing import Any

from rooflight import formatting
from rooflight.analysis.inferred_counts import InferredSum, inferred_hfu, inferred_step
from rooflight.analysis.inferred_errors import INFERRED_ERRORS
from rooflight.formatting import whole_bytes, whole_count
from rooflight.summary.measured import Measured

_UNITS = {"tensor": "tensor cores", "cuda": "CUDA cores"}


def inferred_line(measured: Measured) -> str:
    """`inferred, not counted: executed 625 G tf32 on tensor cores; DRAM 8.1 GB; HFU 26.8%`; empty with counters."""
    sums = inferred_step(measured)
    if sums is None:
        return ""
    parts = []
    for name, flops in sums.flops.items():
        unit, _, precision = name.partition("_flops_")
        shown = precision if unit == "tensor" else ""  # the precisions of CUDA cores are not told apart
        parts.append(" ".join(filter(None, (whole_count(flops), shown, "on", _UNITS[unit]))))
    said = [f"executed {_least(sums)}{' + '.join(parts)}, {whole_count(sums.padding)} of it tile padding"]
    if sums.dram_bytes is not None:
        said.append(f"DRAM {whole_bytes(sums.dram_bytes)}")
    if (hfu := inferred_hfu(measured, sums)) is not None:
        said.append(f"HFU {formatting.percent(hfu)}")
    return f"inferred, not counted: {'; '.join(said)}"


def _least(sums: InferredSum) -> str:
    return "at least " if sums.untold or sums.strays else ""


def inferred_notes(measured: Measured) -> list[str]:
    """What they are from, what they leave out, and how far off they were where counters could be asked."""
    sums = inferred_step(measured)
    if sums is None:
        return []
    notes = [f"inferred figures are from kernel names, grids and shapes; {INFERRED_ERRORS.text}"]
    if sums.like is not None:
        notes.append(
            f"arithmetic outside matrix work is inferred from single ops counted on {sums.like}; "
            "on this device nothing that is inferred was ever held against counters"
        )
    if sums.strays:
        notes.append(
            f"inferred FLOPs leave out {sums.strays:,} kernels of no op, which take {sums.stray_time:.1%} of the "
            "kernels' time"
        )
    if sums.untold:
        part = "" if sums.covered == 1 else f", which have {1 - sums.covered:.1%} of the useful FLOPs"
        notes.append(
            f"inferred FLOPs leave out {len(sums.untold):,} of {len(sums.rows):,} ops{part}: "
            "nothing tells what their kernels execute"
        )
    if sums.dram_bytes is None and sums.bytes_covered:
        notes.append(
            f"DRAM bytes are not inferred: ops with {1 - sums.bytes_covered:.0%} of the compulsory bytes share their "
            "kernels, or have some that are not known"
        )
    return notes


def inferred_data(measured: Measured) -> dict[str, Any] | None:
    """The whole step, for programs."""
    sums = inferred_step(measured)
    if sums is None:
        return None
    return {
        "origin": "inferred",
        "flops": dict(sums.flops),
        "executed_flops": sums.executed,
        "padding_flops": sums.padding,
        "dram_bytes": sums.dram_bytes,
        "hfu": inferred_hfu(measured, sums),
        "ops": len(sums.rows),
        "ops_without": len(sums.untold),
        "kernels_without_op": sums.strays,
        "covered_useful_flops": sums.covered,
        "covered_compulsory_bytes": sums.bytes_covered,
        "arithmetic_counted_on": sums.like,
        "errors": INFERRED_ERRORS.as_dict(),
    }
