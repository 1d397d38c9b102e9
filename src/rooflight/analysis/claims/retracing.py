"""Built-in models, traced again: for what is neither proportional to the batch nor free of it, and for rows of another
model than the ledger's."""

from __future__ import annotations

from functools import lru_cache

from rooflight.errors import RooflightError
from rooflight.ledger import Ledger, StepKind, Totals, total
from rooflight.models import builtin_names


def at_batch(ledger: Ledger, batch: int) -> Ledger | None:
    """The ledger of the same inference at another batch; `None` where it cannot be had.

    A ledger does not tell all that its model was built with. So the model is built at the ledger's own batch first, and
    used only if that gives the very same step.
    """
    header = ledger.header
    if header.step != "infer" or header.batch is None or header.autocast is not None or header.target != "cuda":
        return None
    if header.past is not None or header.execution != "eager":
        return None
    same = traced(header.model, header.batch, sequence=header.sequence, dtype=header.dtype)
    if same is None or _identity(same) != _identity(ledger):
        return None
    return traced(header.model, batch, sequence=header.sequence, dtype=header.dtype)


@lru_cache(maxsize=32)
def traced(
    model: str, batch: int, *, step: StepKind = "infer", sequence: int | None = None, dtype: str | None = None
) -> Ledger | None:
    """A step of a built-in model; a few hundredths of a second for each inference."""
    if model not in builtin_names():
        return None
    from rooflight.estimation.api import estimate

    try:
        return estimate(model, batch=batch, step=step, seq=sequence, dtype=dtype)
    except RooflightError:
        return None


def _identity(ledger: Ledger) -> tuple[list[tuple[str, str, int]], Totals]:
    return [(module.path, module.type, module.params) for module in ledger.modules], total(ledger.ops)
