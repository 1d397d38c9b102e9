"""What two sides of a row say together: rates, of the work by formula or as counted over a time, and the memory of a
layer with what it will borrow. Rows of earlier versions have them too, as far as they hold what they are made of."""

from __future__ import annotations

from collections.abc import Mapping

from rooflight.metrics import ratio
from rooflight.study.cell import StudyCell

Number = int | float

_RATES = {
    "flops_per_s.predicted": ("flops.estimated", "predicted"),
    "bytes_per_s.predicted": ("bytes.estimated", "predicted"),
    "flops_per_s.measured": ("flops.estimated", "measured"),
    "executed_per_s.measured": ("executed.measured", "measured"),
    "bytes_per_s.measured": ("bytes.measured", "measured"),
}
"""What is done, and the side whose time it is done in: of a step the wall time, of a layer that of its kernels."""


def with_rates(cell: StudyCell, values: Mapping[str, Number]) -> dict[str, Number]:
    """The values and what follows from them; of several GPUs nothing does, since FLOPs and bytes are a replica's."""
    completed = dict(values)
    if cell.gpus * cell.nodes > 1:
        return completed
    for prefix in dict.fromkeys(name.rpartition("/")[0] for name in values):
        of = f"{prefix}/" if prefix else ""
        time = f"{of}kernel_time" if prefix else "time"
        found = {
            rate: ratio(values.get(f"{of}{work}"), values.get(f"{time}.{side}"))
            for rate, (work, side) in _RATES.items()
        }
        found["footprint.predicted"] = _sum(
            values.get(f"{of}footprint.estimated"), values.get(f"{of}workspace.predicted")
        )
        completed |= {f"{of}{name}": value for name, value in found.items() if value is not None}
    return completed


def _sum(*parts: Number | None) -> Number | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
