"""Makes the table of counted kernels that `rooflight compare` explains CUDA-core work with.

usage: instructions.py    (reads benchmarks/h200/results/instructions, writes src/rooflight/analysis/counted)
"""

import gzip
from pathlib import Path

import msgspec

import rooflight
from rooflight.analysis.counted_kernels import table_of
from rooflight.analysis.instruction_counts import FOLDER

LEDGERS = Path(__file__).parent / "h200" / "results" / "instructions"


def main() -> None:
    table = table_of("h200", (rooflight.load(path) for path in sorted(LEDGERS.glob("*.json.gz"))))
    path = FOLDER / "h200.json.gz"
    path.write_bytes(gzip.compress(msgspec.json.encode(table), 9, mtime=0))
    points = sum(len(kernel.points) for kernel in table.kernels)
    print(f"wrote {path.name}: {len(table.kernels)} kernels, {points} points, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
