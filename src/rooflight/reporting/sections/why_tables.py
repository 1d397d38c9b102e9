"""Why two sides differ, as tables: what was asked for, every cause with its share and evidence, what is unexplained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal

import msgspec

from rooflight.analysis.cause import Account, Explained
from rooflight.analysis.comparison.sides import Comparison
from rooflight.analysis.comparison.why import Reasons, Term, Why
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.reporting.columns import column
from rooflight.reporting.document import Section
from rooflight.reporting.table import Cells, Column, Label, Table, table_of

Unit = Literal["flop", "byte", "second"]
WRITTEN: dict[str, Callable[[Any], str]] = {
    "flop": whole_count,
    "byte": whole_bytes,
    "second": seconds,
    "count": whole_count,
}
SMALLEST = 0.0005
"""Causes under this part are in the JSON document only."""
CONVENTIONS = (
    "A cause is computed from shapes, kernel names, tiles, grids and other counters, never from the gap it "
    "explains. Causes that leave more of an op open than there is without them are refuted, and not told; others may "
    "explain too much, and the unexplained part is then negative. Shares of FLOPs and bytes "
    "are relative to the formula's value (useful FLOPs, compulsory bytes), shares of time and memory to the "
    "measured value. Three parts of the time are measured, not computed: GPU idle time, kernels that run beside a "
    "matrix product (copies, casts), and overlap of kernels."
)


def why_table(why: Why) -> Table:
    """A side that knows nothing of the quantity has no column."""
    sides = [name for name in ("a", "b") if getattr(why.measured, name) is not None]
    both = len(sides) == 2
    write = amount_writer(why.unit)
    causes = [term for term in why.causes if abs(why.part(term) or 0) >= SMALLEST]
    terms = [why.asked, *causes, why.unexplained, why.measured]

    def share(term: Term) -> float | Label | None:
        part = why.part(term)
        if term is why.asked or term is why.measured:  # what is no cause adds nothing
            return Label(part, "" if part is None else f"{part:.1%}")
        return part

    def evidence(term: Term) -> str:
        return _coverage(why) if term is why.asked else _gross(why) if term is why.unexplained else term.evidence

    columns: Cells[Term] = [
        (Column(f"why: {why.quantity}", right=False), lambda term: term.name),
        *((Column(name.upper() if both else why.quantity, write), attrgetter(name)) for name in sides),
    ]
    if both and why.is_comparable:
        columns.append((Column("B − A", write), lambda term: term.difference))
    columns += [(column("share", write=_share, optional=1), share), (column("evidence", optional=3), evidence)]
    return replace(table_of(columns, terms), emphasised=frozenset({0, len(terms) - 1}))


def _coverage(why: Why) -> str:
    """What the account leaves out, where it does: ops that nobody counted, or whose kernels belong to several."""
    parts = [
        f"{name} {part:.0%}" for name, part in zip("AB", why.covered, strict=True) if part is not None and part < 0.995
    ]
    return f"of the ops that were counted: {', '.join(parts)} of the step's" if parts else ""


def _gross(why: Why) -> str:
    gross = why.gross[1] if why.gross[1] is not None else why.gross[0]
    whole = why.reference.b if why.reference.b is not None else why.reference.a
    if gross is None or not whole or why.quantity == "memory":
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
    write = WRITTEN[unit]

    def signed(value: float | None) -> str:
        if value is None:
            return ""
        # Counts are whole, however their parts were computed; seconds are not.
        rounded = round(value) if abs(value) >= 1 and unit != "second" else value
        return f"−{write(-rounded)}" if rounded < 0 else write(rounded)

    return signed


def mainly(account: Account | None) -> str:
    """The cause that makes most of a row's gap."""
    if account is None or not account.causes or not account.asked:
        return ""
    most = account.causes[0]
    share = most.amount / account.asked
    return f"{most.name} {_percent(share)}" if abs(share) >= SMALLEST else ""


def unexplained(account: Account | None) -> float | None:
    return None if account is None or not account.asked else account.unexplained / account.asked


def why_lines(comparison: Comparison) -> list[str]:
    """The result in a line."""
    lines = []
    for why in comparison.whys:
        share, reference = why.part(why.unexplained), why.reference.name
        if share is None:
            continue
        result = f"{abs(share):.2%} of the {reference} is unexplained"
        if abs(share) >= 0.00005 and why.is_over:
            result = f"the causes explain {abs(share):.2%} of the {reference} too much"
        of = f" of {why.side}" if all(side.is_measured for side in comparison.reasons) else ""
        lines.append(f"{why.quantity}{of}: {result}")
    return lines


def why_section(comparison: Comparison, of: str = "") -> Section:
    """Every account with its result; `of` which step, where that is to be said."""
    tables = tuple(why_table(why).titled(f"{why.quantity}{of}") for why in comparison.whys)
    return Section(lines=tuple(why_lines(comparison)), tables=tables, small_print=(CONVENTIONS,))


def why_data(comparison: Comparison) -> dict[str, Any]:
    """Raw numbers: the step's accounts, and every op's causes of FLOPs, bytes and time."""
    return {
        "step": [_plain(why) for why in comparison.whys],
        "ops": {name: _ops(side) for name, side in zip("ab", comparison.reasons, strict=True) if side.is_measured},
    }


def _plain(why: Why) -> dict[str, Any]:
    def term(line: Term) -> dict[str, Any]:
        return {"name": line.name, "a": line.a, "b": line.b, "share": why.part(line), "evidence": line.evidence}

    return {
        "quantity": why.quantity,
        "unit": why.unit,
        "asked": term(why.asked),
        "measured": term(why.measured),
        "causes": [term(line) for line in why.causes],
        "unexplained": term(why.unexplained),
        "unexplained_gross": dict(zip("ab", why.gross, strict=True)),
        "covered": dict(zip("ab", why.covered, strict=True)),
    }


def _ops(side: Reasons) -> list[dict[str, Any]]:
    entries: dict[int, dict[str, Any]] = {}
    for quantity, rows in (("flops", side.flops), ("dram_bytes", side.traffic), ("time_s", side.time)):
        for row in rows:
            op = row.op
            entry = entries.setdefault(
                op.index, {"op": op.index, "module": op.module, "name": op.name, "phase": op.phase}
            )
            entry[quantity] = _explained(row)
    return [entries[index] for index in sorted(entries)]


def _explained(row: Explained) -> dict[str, Any]:
    return {
        "asked": row.asked,
        "measured": row.measured,
        "unexplained": row.unexplained,
        "causes": [msgspec.structs.asdict(cause) for cause in row.causes],
        "refuted": [msgspec.structs.asdict(cause) for cause in row.computed] if row.is_refuted else [],
    }
