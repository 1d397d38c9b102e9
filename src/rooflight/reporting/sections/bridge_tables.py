"""From A to B: tables of the causes that lead from one to the other, sentences that sum them up, the same as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rooflight.analysis.comparison.bridge import Bridge
from rooflight.analysis.comparison.sides import Comparison
from rooflight.formatting import quotient, seconds, whole_bytes, whole_count
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document
from rooflight.reporting.table import Cells, Column, Label, Table, table_of
from rooflight.study.regressions import RegressionVerdict
from rooflight.summary.reliability import doubt

WRITE: dict[str, Callable[[Any], str]] = {"flop": whole_count, "byte": whole_bytes, "second": seconds}
SMALLEST = 0.002
"""Causes under this part of the larger end are shown together."""
_NAMED = 3
_NOUGHT = 1e-7
"""Of the larger end: less is no amount, but rounding."""
_NO_DIFFERENCE = 0.01
"""Of the larger end: of less, parts say nothing."""
CONVENTIONS = (
    "From A to B: A, the causes and what is unexplained add up to B. A cause is computed from shapes, types, kernel "
    "names, tiles and data sheets where these tell it, and else observed: what the counts or times of ops differ by "
    "that run in other kernels, are fused, or are only on one side. Where several things change at once each has its "
    "mean effect over all orders. Unexplained: the same kernels on the same sizes, and what belongs to no op."
)


@dataclass(frozen=True)
class BridgeLine:
    """A line of the table, a bar of the chart."""

    name: str
    kind: Literal["end", "cause", "unexplained"]
    amount: float
    """Of an end the whole, else what B has more."""
    how: str = ""
    evidence: str = ""


def bridge_lines(bridge: Bridge, *, smallest: float = SMALLEST, most: int | None = None) -> list[BridgeLine]:
    """A, its causes, what is unexplained, and B; small causes together, so that lines add up."""
    least = smallest * max(abs(bridge.a), abs(bridge.b))
    shown = [cause for cause in bridge.causes if abs(cause.amount) >= least][:most]
    rest = [cause for cause in bridge.causes if cause not in shown]
    if len(rest) == 1:
        shown, rest = [*shown, *rest], []
    lines = [BridgeLine(f"A: {bridge.what}", "end", bridge.a)]
    lines += [BridgeLine(cause.name, "cause", cause.amount, cause.how, cause.evidence) for cause in shown]
    if rest:
        together = math.fsum(cause.amount for cause in rest)
        names = ", ".join(cause.name for cause in rest)
        lines.append(BridgeLine(f"{len(rest)} smaller causes", "cause", together, "", names))
    lines.append(BridgeLine("unexplained", "unexplained", bridge.unexplained))
    return [*lines, BridgeLine(f"B: {bridge.what}", "end", bridge.b)]


def signed(bridge: Bridge, amount: float) -> str:
    """With its sign: `+3.40 ms`; what rounding leaves of sums is 0."""
    write = WRITE[bridge.unit]
    rounded = round(amount) if bridge.unit != "second" else amount
    if abs(amount) < _NOUGHT * max(abs(bridge.a), abs(bridge.b)):
        rounded = 0
    return f"−{write(-rounded)}" if rounded < 0 else f"+{write(rounded)}" if rounded > 0 else write(0)


def bridge_table(bridge: Bridge) -> Table:
    lines = bridge_lines(bridge)

    def amount(line: BridgeLine) -> Label:
        return Label(
            line.amount, WRITE[bridge.unit](line.amount) if line.kind == "end" else signed(bridge, line.amount)
        )

    def of_a(line: BridgeLine) -> float | None:
        return None if line.kind == "end" or not bridge.a else line.amount / bridge.a

    def of_difference(line: BridgeLine) -> float | None:
        small = abs(bridge.difference) < _NO_DIFFERENCE * max(abs(bridge.a), abs(bridge.b))
        return None if line.kind == "end" or small else bridge.share(line.amount)

    columns: Cells[BridgeLine] = [
        (Column(f"from A to B: {bridge.quantity}", right=False), lambda line: line.name),
        (Column("amount", raw=bridge.quantity), amount),
        (Column("of A", _percent, optional=1), of_a),
        (Column("of B − A", _whole_percent, optional=2), of_difference),
        (Column("how", right=False, optional=4), lambda line: line.how),
        (column("evidence", optional=3), lambda line: line.evidence),
    ]
    return replace(table_of(columns, lines), emphasised=frozenset({0, len(lines) - 1}))


def bridge_tables(comparison: Comparison) -> list[Table]:
    return [bridge_table(bridge) for bridge in comparison.bridges]


def bridge_line(bridge: Bridge) -> str:
    """A quantity in a sentence: its ends, and its largest causes."""
    write = WRITE[bridge.unit]
    ends = f"{bridge.quantity} {write(bridge.a)} → {write(bridge.b)}"
    if not bridge.difference:
        return f"{ends}: the same"
    times = f" (×{quotient(bridge.b / bridge.a)})" if bridge.a else ""
    parts = [f"{cause.name} {signed(bridge, cause.amount)}" for cause in bridge.causes[:_NAMED]]
    left = f"unexplained {signed(bridge, bridge.unexplained)}"
    noise = "; the difference is within the spread of the runs" if bridge.is_within_noise else ""
    return f"{ends}{times}: {', '.join((*parts, left))}{noise}"


def bridge_sentences(comparison: Comparison) -> list[str]:
    """Of every quantity; the times with what their sides say of them."""
    doubted = [name for name, side in (("A", comparison.a), ("B", comparison.b)) if doubt(side)]
    warning = f"; TIMES UNRELIABLE in {' and '.join(doubted)}: causes of times there say little" if doubted else ""
    return [bridge_line(one) + (warning if one.quantity == "time" else "") for one in comparison.bridges]


def with_gate(document: Document, verdicts: Sequence[RegressionVerdict]) -> Document:
    """The document of a comparison with what came of its conditions: above everything, and in the data."""
    if not verdicts:
        return document
    lines = tuple(f"--fail-if {verdict.sentence}" for verdict in verdicts)

    def data() -> dict[str, Any]:
        assert document.data is not None
        return {**document.data(), "fail_if": [_gate(verdict) for verdict in verdicts]}

    return replace(document, lines=(*lines, *document.lines), data=data)


def _gate(verdict: RegressionVerdict) -> dict[str, Any]:
    causes = {ratio.name: None if ratio.bridge is None else ratio.bridge.largest for ratio in verdict.ratios}
    return {
        "condition": verdict.condition,
        "outcome": verdict.outcome,
        "sentence": verdict.sentence,
        "ratios": {
            ratio.name: {
                "a": ratio.a.value,
                "b": ratio.b.value,
                "ratio": ratio.ratio.value,
                "low": ratio.ratio.low,
                "high": ratio.ratio.high if math.isfinite(ratio.ratio.high) else None,
                "largest_cause": None if (cause := causes[ratio.name]) is None else asdict(cause),
            }
            for ratio in verdict.ratios
        },
    }


def bridge_data(bridges: Sequence[Bridge]) -> list[dict[str, Any]]:
    """Raw numbers; all causes, small ones too."""
    return [
        {
            **asdict(bridge),
            "causes": [{**asdict(cause), "share": bridge.share(cause.amount)} for cause in bridge.causes],
            "difference": bridge.difference,
            "unexplained_share": bridge.share(bridge.unexplained),
        }
        for bridge in bridges
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}".replace("-", "−")


def _whole_percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}".replace("-", "−")
