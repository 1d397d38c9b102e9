"""Claims and their verdicts as tables: what was claimed, whether it holds, and the numbers that say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds, whole_bytes, whole_count
from rooflight.reporting.table import Cells, Column, Label, Table, cut, table_of
from rooflight.study.cell import QUANTITIES, SIDES
from rooflight.study.hypotheses.grid import written
from rooflight.study.hypotheses.verdict import ComparedValues, JudgedHypothesis, JudgedPoint, Outcome, Verdict

_REASON_WIDTH = 40
"""Letters of a reason in the line of a claim; a table of its own has it whole."""
_SHORT = 60
"""A claim of more letters may be cut short in a terminal."""
COUNTER_EXAMPLES = 8
"""Of one claim; the worst."""


def counted(judged: Sequence[JudgedHypothesis]) -> str:
    """`7 claims: 3 held, 2 refuted, 1 undecided, 1 not measured`."""
    verdicts = Counter(claim.verdict for claim in judged)
    order: tuple[Verdict, ...] = ("held", "refuted", "undecided", "not measured")
    counts = [f"{verdicts[verdict]} {verdict}" for verdict in order if verdicts[verdict]]
    return f"{len(judged)} claim{'s' if len(judged) != 1 else ''}: {', '.join(counts)}"


def claim_table(judged: Sequence[JudgedHypothesis]) -> Table:
    """One line for every claim, in words where it has them, with its worst counter-example or its closest place."""
    columns: Cells[JudgedHypothesis] = [
        (Column("#"), lambda claim: claim.number),
        (Column("verdict", right=False, whole=True), lambda claim: claim.verdict),
        (Column("claim", right=False), lambda claim: Label(_claim(claim), claim.says or _claim(claim))),
        (Column("held in", whole=True), held_in),
        (Column("numbers", right=False, whole=True, optional=1), lambda claim: telling(claim)[0]),
        (Column("at", right=False, optional=3), lambda claim: telling(claim)[1]),
        (Column("by", right=False, optional=2), sides),
        (Column("said by", right=False, optional=4), lambda claim: claim.said_by),
        (Column("why", right=False, optional=5), lambda claim: claim.why),
    ]
    return table_of(
        columns, judged, title="claims", leave_out=lambda column, cells: bool(column.optional) and not any(cells)
    )


def counter_table(judged: Sequence[JudgedHypothesis]) -> Table:
    """What refutes, the worst first."""
    return _places_table(judged, "refuted", "counter-examples", [
        (Column("left / right", quotient), lambda line: getattr(line[2], "ratio", None)),
    ])  # fmt: skip


def open_table(judged: Sequence[JudgedHypothesis]) -> Table:
    """What predictions leave open, and from where to where the ratio may be."""
    return _places_table(judged, "undecided", "undecided", [
        (Column("left / right", quotient), lambda line: getattr(line[2], "ratio", None)),
        (Column("90% from", quotient), lambda line: getattr(line[2], "ratio_low", None)),
        (Column("to", quotient), lambda line: getattr(line[2], "ratio_high", None)),
    ])  # fmt: skip


_Line = tuple[int, str, ComparedValues | None]


def _places_table(judged: Sequence[JudgedHypothesis], outcome: Outcome, title: str, ratios: Cells[_Line]) -> Table:
    """The first places with an outcome, of every claim."""
    lines: list[_Line] = []
    for claim in judged:
        points = [point for point in claim.points if point.outcome == outcome]
        lines += [(claim.number, place(point.at), point.telling) for point in points[:COUNTER_EXAMPLES]]
        if len(points) > COUNTER_EXAMPLES:
            lines.append((claim.number, f"and {len(points) - COUNTER_EXAMPLES} more", None))

    def side(name: str, number: int) -> Callable[[_Line], Label]:
        return lambda line: Label(getattr(line[2], name, None), "" if line[2] is None else both(line[2])[number])

    columns: Cells[_Line] = [
        (Column("#"), lambda line: line[0]),
        (Column(f"{outcome} at", right=False, whole=True), lambda line: line[1]),
        (Column("left"), side("left", 0)),
        (
            Column("", right=False, whole=True, raw="relation"),
            lambda line: "" if line[2] is None else _relation(line[2]).removeprefix("is "),
        ),
        (Column("right"), side("right", 1)),
        *ratios,
        (Column("by", right=False), lambda line: "" if line[2] is None else _by(line[2])),
    ]
    return table_of(columns, lines, title=title)


def gap_table(judged: Sequence[JudgedHypothesis]) -> Table:
    """Where claims could not be judged, and why: the same reason once; what nobody asked for once for all claims."""
    lines: dict[tuple[str, str], tuple[str, int | None, str, str]] = {}
    for claim in judged:
        number = f"{claim.number}"
        if claim.reason:
            lines[number, ""] = (number, None, "", claim.reason)
        for gaps, asked, added in (
            (claim.missing, True, ""),
            (claim.not_asked, False, " (not planned)"),
            (claim.left_out, False, " (left out)"),
        ):
            for why, count in Counter(gap.why for gap in gaps).items():
                first = next(gap for gap in gaps if gap.why == why)
                where = place(first.at) + (", ..." if count > 1 else "")
                key = (number if asked else "", why)
                if key in lines:
                    numbers, before, _, reason = lines[key]
                    lines[key] = (f"{numbers}, {number}", (before or 0) + count, "...", reason)
                else:
                    lines[key] = (number, count, where, f"{why}{added}")
    columns: Cells[tuple[str, int | None, str, str]] = [
        (Column("#"), lambda line: line[0]),
        (Column("places", formatting.exact), lambda line: line[1]),
        (Column("not judged at", right=False, optional=1), lambda line: line[2]),
        (Column("why", right=False), lambda line: line[3]),
    ]
    return table_of(columns, list(lines.values()), title="not judged")


def held_in(claim: JudgedHypothesis) -> str:
    undecided = f", {claim.undecided} undecided" if claim.undecided else ""
    missing = f", {len(claim.missing)} missing" if claim.missing else ""
    return f"{claim.held} of {len(claim.points)}{undecided}{missing}" if claim.points else "–"


def telling(claim: JudgedHypothesis) -> tuple[Label, str]:
    """The most telling numbers and their place; or why there are none."""
    if claim.points and claim.verdict != "not measured":
        text = _numbers(claim.points[0])
        return Label(text, text), place(claim.points[0].at)
    whys = Counter(gap.why for gap in claim.missing or claim.not_asked or claim.left_out)
    why = claim.reason or "; ".join(why for why, _ in whys.most_common(3))
    return Label(why, cut(why, _REASON_WIDTH)), ""


def _numbers(point: JudgedPoint) -> str:
    values = point.telling
    left, right = both(values)
    same = values.sign == "=" and values.held
    ratio = "" if values.ratio is None or same else f" ({quotient(values.ratio)}×{_span(values)})"
    return f"{left} {_relation(values)} {right}{ratio}"


def _relation(values: ComparedValues) -> str:
    """`<`, `is not <`; of what is undecided `may not be <`, `may be <`."""
    if values.undecided:
        return f"may {'not ' if values.held else ''}be {values.sign}"
    return values.sign if values.held else f"is not {values.sign}"


def _span(values: ComparedValues) -> str:
    """From where to where the ratio may be."""
    if values.ratio_low is None or values.ratio_high is None:
        return ""
    return f", 90%: {quotient(values.ratio_low)}× to {quotient(values.ratio_high)}×"


def sides(claim: JudgedHypothesis) -> str:
    """`measured`, or how often each; measurements first."""
    counts = Counter(said for point in claim.points for said in {_by(values) for values in point.compared})
    if len(counts) == 1:
        return next(iter(counts))
    ordered = sorted(
        counts, key=lambda said: (-max((SIDES.index(side) for side in SIDES if side in said), default=0), said)
    )
    return ("; " if any("," in said for said in ordered) else ", ").join(f"{said} {counts[said]}×" for said in ordered)


def _by(compared: ComparedValues) -> str:
    """`measured`; of one quantity on two sides `measured, estimated`; else `time predicted, flops estimated`."""
    named = compared.sides.items()
    if len(set(compared.sides.values())) == 1:
        return next(iter(compared.sides.values()))
    names = [(name.removesuffix(f".{side}"), side) for name, side in named]
    alone = len({name for name, _ in names}) == 1
    return ", ".join(side if alone else f"{name} {side}" for name, side in names)


def place(at: Mapping[str, str | int | bool | None]) -> str:
    return ", ".join(f"{axis}={written(value)}" for axis, value in at.items())


def both(compared: ComparedValues) -> tuple[str, str]:
    """The two sides, with digits enough to see how they differ."""
    unit = "%" if _of_parts(compared) else compared.unit
    left, right = amount(compared.left, unit), amount(compared.right, unit)
    close = left == right and compared.left != compared.right and compared.sign != "~"
    exactly = compared.sign in ("=", "!=") or close
    if exactly and not isinstance(compared.left, str) and not isinstance(compared.right, str):
        return _exact(compared.left, compared.unit), _exact(compared.right, compared.unit)
    return left, right


def _of_parts(compared: ComparedValues) -> bool:
    """Shares, utilisations: read in percent."""
    names = [name.partition(".")[0] for name in compared.sides]
    return bool(names) and all(name in QUANTITIES and QUANTITIES[name].unit == "part" for name in names)


def amount(value: int | float | str, unit: str) -> str:
    """A number with its unit, as people read it."""
    if isinstance(value, str):
        return value
    match unit:
        case "s":
            return seconds(value)
        case "B":
            return whole_bytes(value)
        case "1/s":
            return f"{per_second(value)}/s"
        case "%":
            return f"{100 * value:,.4g}%"
        case "":
            return f"{value:,.4g}" if abs(value) < 10_000 else whole_count(value)
        case _:
            text = whole_count(value)
            return f"{text}{unit}" if text[-1:].isalpha() else f"{text} {unit}"


def _exact(value: int | float, unit: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.9g}"
    return f"{text} {unit}".rstrip()


def spelled_out(judged: Sequence[JudgedHypothesis]) -> list[str]:
    """What a line has no room for: claims in full, where they are said, and why."""
    lines = []
    for claim in judged:
        if claim.says or claim.said_by or len(claim.claim) > _SHORT:
            said = f"{claim.says}: " if claim.says else ""
            about = ": ".join(text for text in (claim.said_by, claim.why) if text)
            by = f" ({about})" if about else ""
            lines.append(f"claim {claim.number}: {said}{_claim(claim)}{by}")
    return lines


def _claim(claim: JudgedHypothesis) -> str:
    return " ".join(claim.claim.split())
