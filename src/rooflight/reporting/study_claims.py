"""Claims and their verdicts as tables: what was claimed, whether it holds, and the numbers that say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rooflight import units
from rooflight.reporting.table import Column, Label, Table
from rooflight.reporting.written import cut
from rooflight.study.cell import QUANTITIES, SIDES
from rooflight.study.hypotheses.grid import written
from rooflight.study.hypotheses.verdict import Compared, Judged, Point
from rooflight.units import per_second, quotient, seconds, whole_bytes, whole_count

_REASON_WIDTH = 40
"""Letters of a reason in the line of a claim; a table of its own has it whole."""
_SHORT = 60
"""A claim of more letters may be cut short in a terminal."""
COUNTER_EXAMPLES = 8
"""Of one claim; the worst."""


def counted(judged: Sequence[Judged]) -> str:
    """`7 claims: 3 held, 2 refuted, 2 not measured`."""
    found = Counter(one.verdict for one in judged)
    told = [f"{found[verdict]} {verdict}" for verdict in ("held", "refuted", "not measured") if found[verdict]]
    return f"{len(judged)} claim{'s' if len(judged) != 1 else ''}: {', '.join(told)}"


def claim_table(judged: Sequence[Judged]) -> Table:
    """One line for every claim, in words where it has them, with its worst counter-example or its closest place."""
    columns = [
        Column("#", str), Column("verdict", str, right=False, whole=True),
        Column("claim", str, right=False), Column("held in", str, whole=True),
        Column("numbers", str, right=False, whole=True, optional=1), Column("at", str, right=False, optional=3),
        Column("by", str, right=False, optional=2), Column("said by", str, right=False, optional=4),
    ]  # fmt: skip
    lines = [
        (
            one.number,
            one.verdict,
            Label(_claim(one), one.says or _claim(one)),
            held_in(one),
            *telling(one),
            sides(one),
            one.source,
        )
        for one in judged
    ]
    kept = [i for i in range(len(columns)) if i < 4 or any(line[i] for line in lines)]
    return Table("claims", tuple(columns[i] for i in kept), tuple(tuple(line[i] for i in kept) for line in lines))


def counter_table(judged: Sequence[Judged]) -> Table:
    """What refutes, the worst first."""
    lines = []
    for one in judged:
        found = one.counter_examples
        for point in found[:COUNTER_EXAMPLES]:
            left, right = both(point.telling)
            told = point.telling
            lines.append((one.number, place(point.at), Label(told.left, left), f"not {told.sign}",
                          Label(told.right, right), told.ratio, _by(told)))  # fmt: skip
        if len(found) > COUNTER_EXAMPLES:
            lines.append(
                (
                    one.number,
                    f"and {len(found) - COUNTER_EXAMPLES} more",
                    Label(None, ""),
                    "",
                    Label(None, ""),
                    None,
                    "",
                )
            )
    columns = (
        Column("#", str), Column("refuted at", str, right=False, whole=True), Column("left", str),
        Column("", str, right=False, whole=True, raw="relation"), Column("right", str),
        Column("left / right", quotient), Column("by", str, right=False),
    )  # fmt: skip
    return Table("counter-examples", columns, tuple(lines))


def gap_table(judged: Sequence[Judged]) -> Table:
    """Where claims could not be judged, and why: the same reason once; what nobody asked for once for all claims."""
    lines: dict[tuple[str, str], tuple[str, int | None, str, str]] = {}
    for one in judged:
        number = f"{one.number}"
        if one.reason:
            lines[number, ""] = (number, None, "", one.reason)
        for gaps, asked in ((one.missing, True), (one.not_asked, False)):
            for why, count in Counter(gap.why for gap in gaps).items():
                first = next(gap for gap in gaps if gap.why == why)
                where = place(first.at) + (", ..." if count > 1 else "")
                key = (number if asked else "", why)
                if key in lines:
                    numbers, before, _, told = lines[key]
                    lines[key] = (f"{numbers}, {number}", (before or 0) + count, "...", told)
                else:
                    lines[key] = (number, count, where, why if asked else f"{why} (not asked for)")
    columns = (Column("#", str), Column("places", units.exact), Column("not judged at", str, right=False, optional=1),
               Column("why", str, right=False))  # fmt: skip
    return Table("not judged", columns, tuple(lines.values()))


def held_in(one: Judged) -> str:
    missing = f", {len(one.missing)} missing" if one.missing else ""
    return f"{one.held} of {len(one.points)}{missing}" if one.points else "–"


def telling(one: Judged) -> tuple[Label, str]:
    """The most telling numbers and their place; or why there are none."""
    if one.points and one.verdict != "not measured":
        text = _numbers(one.points[0])
        return Label(text, text), place(one.points[0].at)
    whys = Counter(gap.why for gap in one.missing or one.not_asked)
    why = one.reason or "; ".join(why for why, _ in whys.most_common(3))
    return Label(why, cut(why, _REASON_WIDTH)), ""


def _numbers(point: Point) -> str:
    told = point.telling
    left, right = both(told)
    same = told.sign == "=" and told.held
    ratio = "" if told.ratio is None or same else f" ({quotient(told.ratio)}×)"
    return f"{left} {told.sign if told.held else f'is not {told.sign}'} {right}{ratio}"


def sides(one: Judged) -> str:
    """`measured`, or how often each; measurements first."""
    found = Counter(said for point in one.points for said in {_by(made) for made in point.compared})
    if len(found) == 1:
        return next(iter(found))
    told = sorted(
        found, key=lambda said: (-max((SIDES.index(side) for side in SIDES if side in said), default=0), said)
    )
    return ("; " if any("," in said for said in told) else ", ").join(f"{said} {found[said]}×" for said in told)


def _by(compared: Compared) -> str:
    """`measured`; of one quantity on two sides `measured, estimated`; else `time predicted, flops estimated`."""
    found = compared.sides.items()
    if len(set(compared.sides.values())) == 1:
        return next(iter(compared.sides.values()))
    names = [(name.removesuffix(f".{side}"), side) for name, side in found]
    alone = len({name for name, _ in names}) == 1
    return ", ".join(side if alone else f"{name} {side}" for name, side in names)


def place(at: Mapping[str, str | int | bool | None]) -> str:
    return ", ".join(f"{axis}={written(value)}" for axis, value in at.items())


def both(compared: Compared) -> tuple[str, str]:
    """The two sides, with digits enough to see how they differ."""
    unit = "%" if _of_parts(compared) else compared.unit
    left, right = amount(compared.left, unit), amount(compared.right, unit)
    close = left == right and compared.left != compared.right and compared.sign != "~"
    exactly = compared.sign in ("=", "!=") or close
    if exactly and not isinstance(compared.left, str) and not isinstance(compared.right, str):
        return _exact(compared.left, compared.unit), _exact(compared.right, compared.unit)
    return left, right


def _of_parts(compared: Compared) -> bool:
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


def spelled_out(judged: Sequence[Judged]) -> list[str]:
    """What a line has no room for: claims in full, and who says so."""
    found = []
    for one in judged:
        if one.says or one.source or len(one.claim) > _SHORT:
            said = f"{one.says}: " if one.says else ""
            by = f" ({one.source})" if one.source else ""
            found.append(f"claim {one.number}: {said}{_claim(one)}{by}")
    return found


def _claim(one: Judged) -> str:
    return " ".join(one.claim.split())
