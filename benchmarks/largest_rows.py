"""The largest batches that really trained on an H200, each with what the model of memory says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predict_rows import DEVICE

from rooflight.hardware.device import Device
from rooflight.hardware.devices import find
from rooflight.memory.allocator import CachingAllocator, OutOfMemory
from rooflight.memory.answer import Change, Memories
from rooflight.memory.limits import Fit, largest
from rooflight.memory.replay import Run
from rooflight.prediction.api import predict
from rooflight.prediction.prepared import Step

RESULTS = Path(__file__).parent / "h200" / "results" / "largest_batch.json"


@dataclass(frozen=True)
class Limit:
    """A true limit and two predictions."""

    name: str
    way: str
    largest: int
    fails: int | None
    in_that_way: int
    max_batch: int


class StateFirst(Memories):
    """Plays the optimizer's first update before the first step, as the stage of a measurement does."""

    def fits(self, step: Step, device: Device, *, change: Change | None = None) -> Fit:
        _, _, room = super().fits(step, device, change=change)
        held = self._held(step, device, None)
        assert held is not None
        return held <= room or self._held(step, device, room) is not None, held, room

    def _held(self, step: Step, device: Device, room: int | None) -> int | None:
        run = Run(self.script(step, device), CachingAllocator(self.settings, room))
        try:
            run.build()
            run.update_first()
            return max(run.step().reserved for _ in range(3))
        except OutOfMemory:
            return None


def largest_batches(path: Path = RESULTS) -> list[Limit]:
    return [_limit(row) for row in json.loads(path.read_text())["rows"]]


def _limit(row: dict[str, Any]) -> Limit:
    asked = {"on": DEVICE, "step": "train", "dtype": row["dtype"], "seq": row["seq"], "advice": False}
    found = predict(row["model"], batch=[8, 16, 32], max_batch=True, **asked)
    plain = found.limits[0].value
    if row["way"] == "plain":
        same = plain
    else:
        memories, device, step_at = StateFirst(), find(DEVICE), _step_at(row["model"], asked)
        same = largest(lambda size: memories.fits(step_at(size), device), start=max(2, plain)).value
    length = f" s{row['seq']}" if row["seq"] else ""
    way = {"state first": "first"}.get(row["way"], row["way"])
    return Limit(f"{row['model']}{length} {row['dtype']}", way, row["largest"], row["fails"], same, plain)


def _step_at(model: str, asked: dict[str, Any]) -> Any:
    from rooflight.prediction.steps import steps_of
    from rooflight.trace import TraceOptions

    which = {"past": None, "overrides": None, "input_shape": None, "download": False, "step": asked["step"],
             "dtype": asked["dtype"], "seq": asked["seq"]}  # fmt: skip
    steps, _ = steps_of(model, (), None, [8], TraceOptions(target="cuda", on="meta"), scaled=True, **which)
    return steps[0].larger
