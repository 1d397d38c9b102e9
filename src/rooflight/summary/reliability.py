"""Whether the times of a measurement can be trusted, or something else kept the machine busy meanwhile."""

from __future__ import annotations

import re

from rooflight.formatting import seconds
from rooflight.ledger import Ledger
from rooflight.summary.measured import Measured

UNRELIABLE = "times-unreliable"
"""The code of a note that says so."""
_STEADY = 3.0
"""Times that differ by more than this factor between runs of one step tell of the machine, not of the step."""
_CROWDED = 1.3
"""A load for each core beyond which steps on the CPU wait for others. The step's own threads make it up to 1."""
_WAITED = 10
"""Per cent of the time in which threads wanted a core and had none. Alone on a machine it is below 1."""


def crowded(ledger: Ledger) -> str:
    """That other programs took the cores from this one; empty where they did not, or nobody knows."""
    waited = ledger.header.conditions.get("waited_for_a_core", "")
    if _number(waited.partition("%")[0]) < _WAITED:
        return ""
    return f"TIMES UNRELIABLE: others kept the cores busy, its threads waited {waited}: measure again when it is quiet"


def doubt(measured: Measured) -> str:
    """Said on top when the times cannot be trusted; empty when they can."""
    wall, ops = measured.step.get("wall_time_s"), measured.total.get("host_time_s")
    if wall is None:
        return ""
    if said := crowded(measured.ledger):
        return said
    conditions = measured.ledger.header.conditions
    load = conditions.get("load_average") or conditions.get("host_load_average", "")
    first = load.partition(",")[0]
    busy = f" (load {first})" if load else ""
    if wall.low and wall.high and wall.high > _STEADY * wall.low:
        return (
            f"TIMES UNRELIABLE: the plain step took {seconds(wall.low)} to {seconds(wall.high)}; something else kept "
            f"the machine busy{busy}: measure again when it is quiet"
        )
    cores = re.match(r"\d+", conditions.get("cores", ""))
    # The load lags behind by a minute: it is asked only where the kernel does not say who waited.
    told = "waited_for_a_core" in conditions
    if ops is not None and not told and cores and _number(first) > _CROWDED * int(cores[0]):
        return (
            f"TIMES UNRELIABLE: the machine was busy with other things (load {first} on {cores[0]} cores): measure "
            "again when it is quiet"
        )
    ops = None if ops is None else ops / len(measured.ranks)
    if ops is not None and ops > _STEADY / 2 * wall.value:
        return (
            f"TIMES UNRELIABLE: the ops took {seconds(ops)} one by one, and the plain step {seconds(wall.value)}: ops "
            "of a few microseconds take longer to watch than to run, or something else kept the machine "
            f"busy{busy}; measure a larger step, or again when it is quiet"
        )
    return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
