"""Every metric, with its unit and its definition: what `rooflight list metrics` prints."""

from __future__ import annotations

from rooflight.metrics import GROUPS, METRICS
from rooflight_docs.markdown import cell, code, table


def page() -> str:
    return "\n".join(_group(group) for group in GROUPS)


def _group(group: str) -> str:
    rows = [(code(one.name), cell(one.title), one.unit, cell(one.about)) for one in METRICS.values()
            if one.group == group]  # fmt: skip
    return f"## {group[0].upper()}{group[1:]}\n\n{table(('name', 'on the screen', 'unit', 'what it is'), rows)}"
