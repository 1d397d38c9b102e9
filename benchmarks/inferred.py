"""How far executed FLOPs and DRAM bytes that are inferred without counters are from counted ones.

    python benchmarks/inferred.py            prints the tables
    python benchmarks/inferred.py --write    puts them into docs/why.md and the figures into the package
    python benchmarks/inferred.py --each     prints the errors of every ledger too
    python benchmarks/inferred.py FILE ...   judges these ledgers instead of the recorded steps

Counters are taken out of every recorded step (recordings, recorded studies, other models) and of the single ops of
h200/results/instructions; what is inferred from the kernels' names, grids and the shapes that are left is held against
them. Without a GPU, in half a minute.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import fill

import msgspec
from msgspec.structs import replace
from recorded_steps import other_models, recorded_steps

from rooflight.analysis.inferred_counts import InferredOp, infer
from rooflight.analysis.inferred_errors import InferredErrors, InferredSpread
from rooflight.files import load
from rooflight.ledger import Ledger, Value
from rooflight.metrics import COUNTED, DRAM_BYTES, EXECUTED_FLOPS
from rooflight.summary.facts import op_values, useful_flops_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "why.md"
SINGLE = ROOT / "benchmarks" / "h200" / "results" / "instructions"
FIGURES = ROOT / "src" / "rooflight" / "analysis" / "counted" / "inferred_errors.json"
MARKED = re.compile(r"(<!-- inferred: written by benchmarks/inferred.py -->\n).*?(<!-- end -->)", re.DOTALL)
MOST_OPS = 0.999
"""Of the useful FLOPs: only such steps are judged as a whole."""

LEAST_BYTES = 1_000_000
"""Ops that moved less are not judged by their bytes."""


def without_counters(ledger: Ledger) -> Ledger:
    """What the same run would have given without permission to count."""

    def left(quantities: dict[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in quantities.items() if name not in COUNTED and "__" not in name}

    return replace(
        ledger,
        measurements=tuple(replace(row, quantities=left(row.quantities)) for row in ledger.measurements),
        kernels=tuple(replace(kernel, quantities=left(kernel.quantities)) for kernel in ledger.kernels),
    )


@dataclass(frozen=True)
class Judged:
    """One ledger: relative errors of its ops and of their sum, as parts of what was counted."""

    name: str
    flops: float
    """Of the sum that is shown, against all that was counted."""
    dram_bytes: float | None
    """`None` where no sum is shown."""
    op_flops: tuple[float, ...]
    """Of ops with matrix work."""
    op_bytes: tuple[float, ...]
    matrix_ops: int
    untold: int
    """Of the ops with matrix work."""
    covered: float


def judged(name: str, ledger: Ledger) -> Judged | None:
    """`None` where no op was counted."""
    sums, counted = infer(without_counters(ledger)), op_values(ledger)
    if sums is None or not any(name in values for values in counted for name in EXECUTED_FLOPS):
        return None
    flops, moved = (_pairs(sums.rows, counted, names) for names in (EXECUTED_FLOPS, DRAM_BYTES))
    matrix = [row for row in sums.rows if useful_flops_of(row.op)]
    return Judged(
        name,
        sums.executed / _counted(counted, EXECUTED_FLOPS) - 1,
        None if sums.dram_bytes is None else sums.dram_bytes / _counted(counted, DRAM_BYTES) - 1,
        tuple(a / b - 1 for row, a, b in flops if useful_flops_of(row.op) and b),
        tuple(a / b - 1 for _, a, b in moved if b >= LEAST_BYTES),
        len(matrix),
        sum(row.flops is None for row in matrix),
        sums.covered,
    )


def _pairs(
    rows: Sequence[InferredOp], counted: Sequence[dict[str, Value]], names: Sequence[str]
) -> list[tuple[InferredOp, float, float]]:
    """Inferred and counted, of the ops that have both."""
    pairs = []
    for row in rows:
        of_op = [counted[row.op.index][name].value for name in names if name in counted[row.op.index]]
        inferred = row.executed if names is EXECUTED_FLOPS else row.dram_bytes
        if of_op and inferred is not None:
            pairs.append((row, inferred, math.fsum(of_op)))
    return pairs


def _counted(values: Sequence[dict[str, Value]], names: Sequence[str]) -> float:
    """Of all ops together."""
    return math.fsum(of_op[name].value for of_op in values for name in names if name in of_op)


def spread(errors: Sequence[float]) -> InferredSpread:
    """Without signs."""
    sizes = sorted(map(abs, errors))
    return InferredSpread(median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1], sizes[-1])


def steps(files: Sequence[str]) -> tuple[list[Judged], list[Judged]]:
    """Of built-in models, and of others."""
    others = {str(one.place) for one in other_models()}
    places = files or [str(one.place) for one in recorded_steps()]
    found = [(place in others, judged(Path(place).name, load(place))) for place in places]
    built_in, other = ([one for of, one in found if one is not None and of == which] for which in (False, True))
    return built_in, other


def singles() -> list[Judged]:
    found = (judged(path.name, load(path)) for path in sorted(SINGLE.glob("*.json.gz")))
    return [one for one in found if one is not None]


def line(what: str, errors: Sequence[float]) -> str:
    one = spread(errors)
    return f"| {what} | {len(errors):,} | {one.median:.2%} | {one.p90:.2%} | {one.worst:.1%} |"


def text(built_in: Sequence[Judged], others: Sequence[Judged], of_singles: Sequence[Judged]) -> str:
    lines = ["| inferred against counted | of | median | 90% under | worst |", "|---|---:|---:|---:|---:|"]
    for kind, some in (("built-in models", built_in), ("other models", others)):
        told = [one for one in some if one.covered >= MOST_OPS]
        if told:
            lines += [
                line(f"FLOPs of a step, {kind}", [one.flops for one in told]),
                line("its ops with matrix work", [error for one in some for error in one.op_flops]),
                line(f"DRAM bytes of a step, {kind}", [one.dram_bytes for one in some if one.dram_bytes is not None]),
                line("its ops that move a megabyte or more", [error for one in some for error in one.op_bytes]),
            ]
    lines.append(line("FLOPs of a single op of random shape", [error for one in of_singles for error in one.op_flops]))
    untold, matrix = ([sum(getattr(one, name) for one in some) for some in (built_in, others, of_singles)]
                      for name in ("untold", "matrix_ops"))  # fmt: skip
    least = [1 + one.flops for one in others if one.covered < MOST_OPS] or [1.0]
    said = fill(
        f"Over {len(built_in)} measured steps of built-in models and {len(others)} of others, whose counters were taken out, "
        f"and {matrix[2]:,} single ops of random shapes, which the rules were learned on. Of a step it is the sum that is "
        f"shown, held against all that was counted. Nothing is inferred of {untold[0]:,} of {matrix[0]:,} ops with matrix "
        f"work, of {untold[1]:,} of {matrix[1]:,} in other models, and of {untold[2]:,} of the single ones: their kernels' "
        f"names say too little. The sums of the {len(least)} steps of other models with such ops are marked *at least*, and "
        f"are not among the FLOPs above; they have {min(least):.0%} to {max(least):.0%} of what was counted. What the program "
        "says of its own errors is that of the other models. DRAM bytes of an op are rough: when a result leaves the cache is "
        "decided by what other ops do.", 120
    )  # fmt: skip
    return "\n".join(lines) + f"\n\n{said}\n"


def figures(of_steps: Sequence[Judged]) -> InferredErrors:
    """Of steps as a whole, for what the program says of itself."""
    told = [one for one in of_steps if one.covered >= MOST_OPS]
    return InferredErrors(
        "h200",
        len(of_steps),
        len(told),
        spread([round(one.flops, 5) for one in told]),
        round(min(1 + one.flops for one in of_steps), 5),
        spread([round(one.dram_bytes, 5) for one in of_steps if one.dram_bytes is not None]),
    )


def main() -> None:
    files = [word for word in sys.argv[1:] if not word.startswith("--")]
    (built_in, others), of_singles = steps(files), singles()
    if "--each" in sys.argv:
        for one in (*built_in, *others, *of_singles):
            flops = f"{one.flops:+8.2%}"
            moved = "" if one.dram_bytes is None else f"{one.dram_bytes:+8.1%}"
            print(f"{one.name:64} {flops:>8} {moved:>8} {one.untold:4} of {one.matrix_ops}")
    written = text(built_in, others, of_singles)
    print(written)
    if "--write" not in sys.argv:
        return
    FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(figures(others)), indent=2) + b"\n")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda match: f"{match[1]}{written}{match[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
