"""A ledger far larger than those that come along: a recorded step of GPT-2 over and over, as one.

    python benchmarks/large_ledger.py OUT.json.gz [TIMES]

22 times, unless told otherwise: 36,168 ops with 19,272 kernels. What was measured of the step as a whole stays that of
one. `report.py` and `command_speed.py` make a page of it.
"""

from __future__ import annotations

import sys

from msgspec.structs import replace

import rooflight
from rooflight.ledger import Ledger

RECORDING = "recorded:h200/gpt2-train-bf16"
TIMES = 22
APART_S = 0.1
"""From the first kernel of one to the first of the next."""


def repeated(one: Ledger, times: int) -> Ledger:
    def moved(ops: tuple[int, ...], turn: int) -> tuple[int, ...]:
        return tuple(index + turn * len(one.ops) for index in ops)

    turns, calls = range(times), 1 + max(op.call for op in one.ops)
    alone = [row for row in one.measurements if len(row.ops) == 1]
    others = [row for row in one.measurements if len(row.ops) != 1]
    return replace(
        one,
        ops=tuple(
            replace(op, index=op.index + turn * len(one.ops), call=op.call + turn * calls)
            for turn in turns
            for op in one.ops
        ),
        kernels=tuple(
            replace(
                kernel,
                ops=moved(kernel.ops, turn),
                start_s=None if kernel.start_s is None else kernel.start_s + turn * APART_S,
            )
            for turn in turns
            for kernel in one.kernels
        ),
        measurements=(*(replace(row, ops=moved(row.ops, turn)) for turn in turns for row in alone), *others),
    )


if __name__ == "__main__":
    times = int(sys.argv[2]) if len(sys.argv) > 2 else TIMES
    rooflight.save(repeated(rooflight.load(RECORDING), times), sys.argv[1])
