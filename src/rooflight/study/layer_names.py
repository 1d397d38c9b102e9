"""Layers that a study asks for by a name that none of its models has: told before the work, not after it."""

from __future__ import annotations

from rooflight.errors import BadInput, suggest
from rooflight.study.cell import StudyCell
from rooflight.study.plan import StudyPlan


def check_layers(plan: StudyPlan, where: str) -> None:
    """Only of built-in models: what others are, their own code tells, which is run by the workers alone. A layer that
    some of the models have is no slip; the others say that they lack it."""
    cells = list({(cell.model, *cell.settings.items()): cell for cell in plan.cells}.values())
    if not plan.layers or any(":" in cell.model for cell in cells):
        return
    try:
        there = {name: None for cell in cells for name in _modules(cell)}
        if any(layer not in there for layer in plan.layers):  # then it may be a function, which only a trace tells
            there |= {name: None for cell in cells for name in _rows(cell)}
    except Exception:
        return  # what is wrong with a model is said of its cells
    for layer in plan.layers:
        if layer not in there:
            models = ", ".join(dict.fromkeys(cell.model for cell in cells))
            hint = suggest(layer, there, otherwise=f"`rooflight estimate {cells[0].model}` names them")
            raise BadInput("unknown-layer", f"{where}: layers: no layer {layer!r} in {models}: {hint}")


def _modules(cell: StudyCell) -> list[str]:
    from rooflight.models import build  # torch takes its time

    model = build(cell.model, overrides=cell.settings).model
    return [name for name, _ in model.named_modules() if name]


def _rows(cell: StudyCell) -> list[str]:
    from rooflight.estimation.api import estimate
    from rooflight.summary.functions import row_names

    return [name for name in row_names(estimate(cell.alone)) if name]
