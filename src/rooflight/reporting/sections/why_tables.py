"""Why two sides differ, as tables: what was asked for, every cause with its share and evidence, what is unexplained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from rooflight.analysis.cause import Account, Explained
from rooflight.analysis.comparison.sides import Comparison
from rooflight.analysis.comparison.why import Reasons, Term, Why
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Label, Table

Unit = Literal["flop", "byte", "second"]
_WRITTEN: dict[Unit, Callable[[Any], str]] = {"flop": whole_count, "byte": whole_bytes, "second": seconds}
SMALLEST = 0.0005
"""Causes under this part are in the JSON document only."""
CONVENTIONS = (
    "A cause is computed from shapes, kernel names, tiles, grids and other counters, never from the gap it "
    "explains: causes may explain too much, and the unexplained part is then negative. Shares of FLOPs and bytes "
    "are relative to the formula's value (useful FLOPs, compulsory bytes), shares of time and memory to the "
    "measured value. Three parts of the time are measured, not computed: GPU idle time, kernels that run beside a "
    "matrix product (copies, casts), and overlap of kernels."
)


def why_table(one: Why) -> Table:
    """A side that knows nothing of the quantity has no column."""
    sides = [name for name in ("a", "b") if getattr(one.measured, name) is not None]
    write = amount_writer(one.unit)
    shown = [term for term in one.causes if abs(one.part(term) or 0) >= SMALLEST]
    lines = [
        _line(one, one.asked, sides),
        *(_line(one, term, sides) for term in shown),
        _line(one, one.unexplained, sides, evidence=_gross(one)),
        _line(one, one.measured, sides),
    ]
    both = len(sides) == 2
    for at, said in ((0, _coverage(one)), (-1, lines[-1][-1])):  # what is no cause adds nothing
        share = lines[at][-2]
        lines[at] = (*lines[at][:-2], Label(share, "" if share is None else f"{share:.1%}"), said)
    columns = [
        Column(f"why: {one.quantity}", right=False),
        *(Column(name.upper() if both else one.quantity, write) for name in sides),
        *([Column("B − A", write)] if both and one.is_comparable else []),
        column("share", write=_share, optional=1),
        column("evidence", optional=3),
    ]
    return Table("", tuple(columns), tuple(lines), frozenset({0, len(lines) - 1}))


def _line(one: Why, term: Term, sides: list[str], evidence: str | None = None) -> tuple[Any, ...]:
    values = [getattr(term, name) for name in sides]
    said = term.evidence if evidence is None else evidence
    difference = [term.difference] if len(sides) == 2 and one.is_comparable else []
    return (term.name, *values, *difference, one.part(term), said)


def _coverage(one: Why) -> str:
    """What the account leaves out, where it does: ops that nobody counted, or whose kernels belong to several."""
    told = [
        f"{name} {part:.0%}" for name, part in zip("AB", one.covered, strict=True) if part is not None and part < 0.995
    ]
    return f"of the ops that were counted: {', '.join(told)} of the step's" if told else ""


def _gross(one: Why) -> str:
    gross = one.gross[1] if one.gross[1] is not None else one.gross[0]
    whole = one.reference.b if one.reference.b is not None else one.reference.a
    if gross is None or not whole or one.quantity == "memory":
        return ""
    return f"sum of the absolute values, op by op: {gross / whole:.2%}"


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    shown = value if abs(value) >= 0.00005 else 0.0  # no -0.00%
    return f"{shown:+.2%}"


def _share(value: float | Label | None) -> str:
    return str(value) if isinstance(value, Label) else _percent(value)


def amount_writer(unit: Unit) -> Callable[[float | None], str]:
    """The units' own writers know no minus."""
    write = _WRITTEN[unit]

    def signed(value: float | None) -> str:
        if value is None:
            return ""
        rounded = round(value) if abs(value) >= 1 else value
        return f"−{write(-rounded)}" if rounded < 0 else write(rounded)

    return signed


def mainly(found: Account | None) -> str:
    """The cause that makes most of a row's gap."""
    if found is None or not found.causes or not found.asked:
        return ""
    most = found.causes[0]
    share = most.amount / found.asked
    return f"{most.name} {_percent(share)}" if abs(share) >= SMALLEST else ""


def unexplained(found: Account | None) -> float | None:
    return None if found is None or not found.asked else found.unexplained / found.asked


def why_lines(comparison: Comparison) -> list[str]:
    """The result in a line."""
    lines = []
    for one in comparison.whys:
        share = one.part(one.unexplained)
        if share is None:
            continue
        told = (
            f"{abs(share):.2%} of the {one.reference.name} is unexplained"
            if share > -0.00005
            else (f"the causes explain {abs(share):.2%} of the {one.reference.name} too much")
        )
        of = f" of {one.side}" if all(side.is_measured for side in comparison.reasons) else ""
        lines.append(f"{one.quantity}{of}: {told}")
    return lines


def why_data(comparison: Comparison) -> dict[str, Any]:
    """Raw numbers: the step's accounts, and every op's causes of FLOPs, bytes and time."""
    return {
        "step": [_plain(one) for one in comparison.whys],
        "ops": {name: _ops(side) for name, side in zip("ab", comparison.reasons, strict=True) if side.is_measured},
    }


def _plain(one: Why) -> dict[str, Any]:
    def term(line: Term) -> dict[str, Any]:
        return {"name": line.name, "a": line.a, "b": line.b, "share": one.part(line), "evidence": line.evidence}

    return {
        "quantity": one.quantity,
        "unit": one.unit,
        "asked": term(one.asked),
        "measured": term(one.measured),
        "causes": [term(line) for line in one.causes],
        "unexplained": term(one.unexplained),
        "unexplained_gross": dict(zip("ab", one.gross, strict=True)),
        "covered": dict(zip("ab", one.covered, strict=True)),
    }


def _ops(side: Reasons) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for quantity, rows in (("flops", side.flops), ("dram_bytes", side.traffic), ("time_s", side.time)):
        for row in rows:
            entry = found.setdefault(
                row.op.index,
                {
                    "op": row.op.index,
                    "module": row.op.module,
                    "name": row.op.name,
                    "phase": row.op.phase,
                },
            )
            entry[quantity] = _explained(row)
    return [found[index] for index in sorted(found)]


def _explained(row: Explained) -> dict[str, Any]:
    return {
        "asked": row.asked,
        "measured": row.measured,
        "unexplained": row.unexplained,
        "causes": [{"name": one.name, "amount": one.amount, "evidence": one.evidence} for one in row.causes],
    }
