"""The largest batches that really trained on an H200, each with what the model of memory says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predict_rows import DEVICE

from rooflight.hardware.device import Device
from rooflight.hardware.devices import find
from rooflight.memory.allocator import AllocatorFull, CachingAllocator
from rooflight.memory.largest import SizeFit, largest
from rooflight.memory.predict import MemoryPredictor, ScriptChange
from rooflight.memory.replay import AllocatorRun
from rooflight.prediction.api import predict
from rooflight.step.costed_step import Step

WAYS = ("plain", "expandable", "state first")
RESULTS = Path(__file__).parent / "h200" / "results" / "largest_batch.json"


@dataclass(frozen=True)
class Limit:
    """A true limit, and what is predicted for a script that goes the same way."""

    name: str
    way: str
    largest: int
    fails: int | None
    predicted: int


class StateFirst(MemoryPredictor):
    """Plays the optimizer's first update before the first step, as the stage of a measurement does."""

    def fits(self, step: Step, device: Device, *, change: ScriptChange | None = None) -> SizeFit:
        _, _, room = super().fits(step, device, change=change)
        held = self._held(step, device, None)
        assert held is not None
        return held <= room or self._held(step, device, room) is not None, held, room

    def _held(self, step: Step, device: Device, room: int | None) -> int | None:
        run = AllocatorRun(self.script(step, device), CachingAllocator(self.settings, room))
        try:
            run.build()
            run.update_first()
            return max(run.step().reserved for _ in range(3))
        except AllocatorFull:
            return None


def largest_batches(path: Path = RESULTS) -> list[Limit]:
    rows = sorted(json.loads(path.read_text())["rows"], key=lambda row: WAYS.index(row["way"]))
    return [_limit(row) for row in rows]


def _limit(row: dict[str, Any]) -> Limit:
    asked = {"on": DEVICE, "step": "train", "dtype": row["dtype"], "seq": row["seq"], "advice": False}
    said = predict(row["model"], batch=[8, 16, 32], max_batch=True, **asked).limits[0]
    predicted = said.value
    if row["way"] == "expandable":
        predicted = said.with_expandable_segments or said.value
    elif row["way"] == "state first":
        memories, device, step_at = StateFirst(), find(DEVICE), _step_at(row["model"], asked)
        predicted = largest(lambda size: memories.fits(step_at(size), device), start=max(2, said.value)).value
    length = f" s{row['seq']}" if row["seq"] else ""
    return Limit(f"{row['model']}{length} {row['dtype']}", row["way"], row["largest"], row["fails"], predicted)


def _step_at(model: str, asked: dict[str, Any]) -> Any:
    from rooflight.prediction.traces import Traces
    from rooflight.trace import TraceOptions

    which = {"past": None, "overrides": None, "input_shape": None, "download": False, "step": asked["step"],
             "dtype": asked["dtype"], "seq": asked["seq"]}  # fmt: skip
    steps, _ = Traces(model, **which).steps([8], TraceOptions(target="cuda", on="meta"), scaled=True)
    return steps[0].at_batch
