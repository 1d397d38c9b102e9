"""Formulas as a page: by family the derivation, and for every operator the expression of a plain call."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rooflight.estimation.formulas as families
from rooflight.estimation.registry import Formula, Work, find, lookup, registered
from rooflight.ledger import Op
from rooflight_docs.markdown import cell, table
from rooflight_docs.matrix_calls import CALLS

_TESTS = Path(__file__).parents[3] / "tests"


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
    parts = [f"{len(registered())} operators have one.\n"]
    for name in sorted(families.__all__):
        module = getattr(families, name)
        parts += [f"## {name.replace('_', ' ').capitalize()}\n", f"{_prose(inspect.getdoc(module) or '')}\n"]
        groups: dict[Counted, list[str]] = {}
        for operator, found in rows.items():
            if lookup(operator).__module__ == module.__name__:
                groups.setdefault(found, []).append(operator.removeprefix("aten::"))
        parts.append(table(("operators (aten)", "MACs", "other", "why"), _rows(groups)))
    return "\n".join(parts)


def counted() -> dict[str, Counted]:
    """For every registered operator."""
    found: dict[str, Counted] = {}
    for name in registered():
        formula, op = lookup(name), _call(name)
        # An operator that this torch does not have is shown with a call of its neighbour.
        if op is None:
            op = next(call for other in registered() if lookup(other) is formula and (call := _call(other)) is not None)
        found[name] = Counted.of(formula(op), _why(formula))
    return found


def _call(name: str) -> Op | None:
    if name in CALLS:
        return CALLS[name]
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    from formula_calls import call

    try:
        made: Op = call(name.removeprefix("aten::").partition(".")[0])
    except AttributeError:
        return None
    return made if find(made) is lookup(name) else None


def _rows(groups: dict[Counted, list[str]]) -> Iterator[tuple[str, str, str, str]]:
    for found, names in groups.items():
        listed = " ".join(f"`{name}`" for name in names)
        yield cell(listed), cell(found.matrix), cell(found.other), cell(found.more)


def _expression(text: str | int | None) -> str:
    return "0" if text in (0, None) else f"`{text}`"


def _why(formula: Formula) -> str:
    """The comment above the formula, which is its derivation."""
    held = inspect.getcomments(formula) or ""
    return " ".join(re.sub(r"^#\s?", "", line) for line in held.splitlines() if "fmt:" not in line)


def _prose(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
