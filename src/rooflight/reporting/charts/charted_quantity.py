"""What can be drawn of the cells of a study: any quantity that its rows have, of the step or of one layer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rooflight.errors import BadInput
from rooflight.formatting import per_second, seconds, whole_bytes, whole_count
from rooflight.metrics import METRICS
from rooflight.study.cell import QUANTITIES, SIDES, Side, StudyRow

_UNITS = {"second": "s", "byte": "B", "flop/second": "FLOP/s", "byte/second": "B/s", "part": "", "percent": "%"}


@dataclass(frozen=True)
class ChartedQuantity:
    """What is charted of the cells of a study."""

    name: str
    """As `--of` has it."""
    title: str
    unit: str
    write: Callable[[Any], str]
    layer: str = ""
    """Of which it is; empty: of the step."""
    key: str = ""
    """What rows call it, where that is something else."""

    def value(self, row: StudyRow, side: Side) -> int | float | None:
        of = f"{self.layer}/" if self.layer else ""
        return row.values.get(f"{of}{self.key or self.name}.{side}")

    def interval(self, row: StudyRow, side: Side) -> tuple[float, float] | None:
        """The 90% interval of a predicted time of a step."""
        if self.layer or self.name != "time" or side != "predicted":
            return None
        low, high = row.values.get("time_low.predicted"), row.values.get("time_high.predicted")
        return None if low is None or high is None else (low, high)


TIME = ChartedQuantity("time", "time of a step", "s", seconds)
MEMORY = ChartedQuantity("memory", "memory at the peak", "B", whole_bytes)
THROUGHPUT = ChartedQuantity("throughput", "samples per second", "", per_second)
FLOPS = ChartedQuantity("flops", "FLOPs of a step", "", whole_count)
OF_A_STEP = (TIME, THROUGHPUT, MEMORY, FLOPS)
"""What a page draws of every model."""
_NAMED = {quantity.name: quantity for quantity in OF_A_STEP}
_OF_A_LAYER = {"flops": ("FLOPs", "flops"), "memory": ("memory", "footprint"), "time": ("kernel time", "kernel_time")}
"""What a page draws of every layer: its title, and what rows call it."""


def of_layers(layers: Sequence[str]) -> list[ChartedQuantity]:
    """What a page draws of them."""
    return [charted(name, layer) for layer in layers for name in _OF_A_LAYER]


def charted(name: str, layer: str = "") -> ChartedQuantity:
    """A quantity by its name, of the step or of a layer; one clear line where there is none."""
    if not layer and name in _NAMED:
        return _NAMED[name]
    title, key = _OF_A_LAYER.get(name, ("", name)) if layer else ("", name)
    if key not in QUANTITIES:
        near = difflib.get_close_matches(name, QUANTITIES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(QUANTITIES)}"
        raise BadInput("unknown-quantity", f"--of {name!r} is no quantity of a study: {hint}")
    metric = METRICS[next(iter(QUANTITIES[key].sides.values()))]
    about = title or metric.title
    return ChartedQuantity(
        name, f"{about} of {layer or 'a step'}", _UNITS.get(metric.unit, ""), metric.text, layer=layer, key=key
    )


def drawable(rows: Sequence[StudyRow], layer: str = "") -> list[str]:
    """The quantities that these rows have values of, as `--of` names them."""
    names = [*_NAMED, *QUANTITIES] if not layer else [*_OF_A_LAYER, *QUANTITIES]
    return [
        name
        for name in dict.fromkeys(names)
        if (of := charted(name, layer)) and any(of.value(row, side) is not None for row in rows for side in SIDES)
    ]
