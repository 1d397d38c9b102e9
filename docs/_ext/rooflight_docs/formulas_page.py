"""Formulas as a page: by family the derivation, and for every operator the expression of a plain call."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflight.ledger import Op
from rooflight.ops.registry import FORMULAS, Formula, Work, formula_of
from rooflight_docs.markdown import cell, table

_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Counted:
    """What an operator's formula says of one plain call, and why."""

    matrix: str
    other: str
    more: str

    @classmethod
    def of(cls, work: Work, why: str) -> Counted:
        more = [why]
        if work.causal_macs is not None:
            more.append(f"with a causal mask `{work.causal_macs}`")
        if work.recompute_macs:
            more.append(f"computed a second time: `{work.recompute_macs}`")
        more.append(work.note)
        return cls(_expression(work.macs), _expression(work.other), "; ".join(text for text in more if text))


def page() -> str:
    rows = counted()
    parts = [f"{len(rows)} operators have one.\n"]
    for module in sorted({FORMULAS[operator].__module__ for operator in rows}):
        title = module.rpartition(".")[2].replace("_", " ").capitalize()
        parts += [f"## {title}\n", f"{_prose(inspect.getdoc(sys.modules[module]) or '')}\n"]
        groups: dict[Counted, list[str]] = {}
        for operator, counts in rows.items():
            if FORMULAS[operator].__module__ == module:
                groups.setdefault(counts, []).append(operator.removeprefix("aten::"))
        parts.append(table(("operators (aten)", "MACs", "other", "why"), _rows(groups)))
    return "\n".join(parts)


def counted() -> dict[str, Counted]:
    """For every registered operator."""
    found: dict[str, Counted] = {}
    for name in FORMULAS.names():
        formula, op = FORMULAS[name], _call(name)
        # An operator that this torch does not have is shown with a call of its neighbour.
        if op is None:
            alike = [other for other in FORMULAS.names() if FORMULAS[other] is formula]
            op = next(call for other in alike if (call := _call(other)) is not None)
        found[name] = Counted.of(formula(op), _why(formula))
    return found


def _call(name: str) -> Op | None:
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    from tests.fixtures.formula_calls import call

    try:
        made: Op = call(name.removeprefix("aten::").partition(".")[0])
    except AttributeError:
        return None
    return made if formula_of(made) is FORMULAS[name] else None


def _rows(groups: dict[Counted, list[str]]) -> Iterator[tuple[str, str, str, str]]:
    for found, names in groups.items():
        listed = " ".join(f"`{name}`" for name in names)
        yield cell(listed), cell(found.matrix), cell(found.other), cell(found.more)


def _expression(text: str | int | None) -> str:
    return "0" if text in (0, None) else f"`{text}`"


def _why(formula: Formula) -> str:
    """The comment above the formula, which is its derivation; of one that is a line of a table, what the line says."""
    held = inspect.getcomments(formula) or formula.__doc__ or ""
    return " ".join(re.sub(r"^#\s?", "", line) for line in held.splitlines() if "fmt:" not in line)


def _prose(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
