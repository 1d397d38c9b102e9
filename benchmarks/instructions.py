"""Makes the table of counted ops that `rooflight compare` explains CUDA-core work with.

usage: instructions.py    (reads benchmarks/h200/results/instructions, writes src/rooflight/analysis/counted)
"""

import gzip
from pathlib import Path

import msgspec

import rooflight
from rooflight.analysis.instruction_counts import FOLDER, InstructionTable, point_of
from rooflight.metrics import CUDA_FLOPS
from rooflight.summary.facts import op_values

LEDGERS = Path(__file__).parent / "h200" / "results" / "instructions"
USED = ("others-fp32", "others-bf16", "attentions-fp32", "attentions-bf16")


def main() -> None:
    points, torch = {}, ""
    for name in USED:
        ledger = rooflight.load(LEDGERS / f"{name}.json.gz")
        torch = ledger.header.torch or torch
        for op, values in zip(ledger.ops, op_values(ledger), strict=True):
            counted = [values[unit].value for unit in CUDA_FLOPS if unit in values]
            point = point_of(op, sum(counted)) if counted else None
            if point is not None:
                points[point.name, point.dtype, point.flags, point.layout, point.sizes] = msgspec.structs.replace(
                    point, per_element=round(point.per_element, 4)
                )
    table = InstructionTable("h200", torch, tuple(points.values()))
    path = FOLDER / "h200.json.gz"
    path.write_bytes(gzip.compress(msgspec.json.encode(table), 9, mtime=0))
    print(f"wrote {path.name}: {len(table.points)} points, {path.stat().st_size:,} bytes")


main()
