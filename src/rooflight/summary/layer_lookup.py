"""From what somebody types to a layer of a step: a path, the end of one, a function that a module calls, or an op."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rooflight import summary
from rooflight.errors import BadInput
from rooflight.ledger import OUTSIDE, Ledger
from rooflight.summary.functions import function_of, row_names

_RUN = re.compile(r"\[(\d+)-\d+\]")
_LISTED = 6
_SEVERAL = "<functional>"
"""The row that stands for all functions of a module where they are many."""


@dataclass(frozen=True)
class FoundLayer:
    """A row of the step, by its name, and the others that the text means as well: they are like it."""

    name: str
    alike: tuple[str, ...] = ()


def find_layer(ledger: Ledger, text: str) -> FoundLayer:
    """The one layer, or the first of those that cost the same; raises `BadInput` where there is none, or where they
    differ."""
    name = _RUN.sub(r"\1", text.strip())
    if name == ledger.header.model:  # as the first row of the table calls it
        return FoundLayer("")
    paths = [module.path for module in ledger.modules]
    if name in paths or name in OUTSIDE:
        return FoundLayer(name)
    functions = list(dict.fromkeys(row for row in row_names(ledger) if row.endswith("()")))
    if name.endswith(_SEVERAL):
        around = name.removesuffix(_SEVERAL)
        meant = [row for row in functions if row.rpartition(".")[0] == around.removesuffix(".")]
        if meant:
            raise BadInput(
                "ambiguous-layer", f"{text!r} stands for {len(meant)} functions: {_some(meant)}; name one of them"
            )
    wanted = _plain(name)
    for candidates in (
        [row for row in functions if _plain(row) == wanted],
        [row for row in (*paths, *functions) if _plain(row).endswith(f".{wanted}")],
        _with_op(ledger, wanted),
    ):
        if wanted and candidates:
            return _first_of(ledger, text, candidates)
    raise BadInput("unknown-layer", _unknown(ledger, text, [*(path for path in paths if path), *functions]))


def _plain(name: str) -> str:
    """`F.relu`, `aten::relu_` and `relu()` are `relu`."""
    name = name.removesuffix("()")
    for prefix in ("aten::", "torch.nn.functional.", "torch.", "F."):
        name = name.removeprefix(prefix)
    around, dot, last = name.rpartition(".")
    return f"{around}{dot}{last.strip('_')}"


def _with_op(ledger: Ledger, wanted: str) -> list[str]:
    """Rows that run such an op: what `--by op` shows can be asked for, too."""
    rows = row_names(ledger)
    meant = (
        rows[op.index]
        for op in ledger.ops
        if op.kind == "compute" and wanted in (_plain(op.packet), _plain(op.name), function_of(op))
    )
    return list(dict.fromkeys(meant))


def _first_of(ledger: Ledger, text: str, names: list[str]) -> FoundLayer:
    rows = {row.name: row for row in summary.rows(ledger)}
    kinds = set()
    for row in (rows[name] for name in names if name in rows):
        # Of layers inside a fused op only their places tell whether they are alike.
        place = "" if row.totals.ops else re.sub(r"\d+", "#", row.name)
        kinds.add((row.type, row.params, row.output, row.totals, place))
    if len(kinds) > 1:
        raise BadInput(
            "ambiguous-layer", f"{text!r} is {len(names)} layers, not all alike: {_some(names)}; name one of them"
        )
    return FoundLayer(names[0], tuple(names[1:]))


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _unknown(ledger: Ledger, text: str, names: Iterable[str]) -> str:
    there = list(names)
    near = difflib.get_close_matches(text, there, n=3) or [name for name in there if text in name][:3] or there[:5]
    return f"no layer {text!r} in {ledger.header.model}: did you mean {', '.join(near)}?"
