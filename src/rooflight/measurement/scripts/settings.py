"""What `rooflight run --ops` tells the program's processes, by their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import BadInput

OPS = "ROOFLIGHT_OPS"
"""Which steps are for us: `3:`."""
STOP_AFTER = "ROOFLIGHT_STOP_AFTER"
"""Not empty: the program ends when everything is measured."""
BOOTSTRAP = Path(__file__).parent / "bootstrap"
TIMED = 4
"""Steps that are timed, where there are as many."""
_FORM = "--steps {}: write `--steps 10:30`, the first and the last step that rooflight may use, or `10:`"


@dataclass(frozen=True)
class StepRange:
    """The steps that are for us, counted from 1; the first of the program has no beginning that could be seen."""

    first: int = 3
    last: int | None = None

    @property
    def timed(self) -> int:
        """How many are timed before one is recorded: fewer where the range is short."""
        return TIMED if self.last is None else min(TIMED, self.last - self.first)

    @property
    def recorded(self) -> int:
        """The step that is recorded."""
        return self.first + self.timed

    def __str__(self) -> str:
        return f"{self.first}:{self.last or ''}"


def parse_steps(text: str) -> StepRange:
    first, colon, last = text.partition(":")
    numbers = (first or "3", last or "0")
    if not colon or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise BadInput("bad-setting", _FORM.format(text))
    steps = StepRange(int(numbers[0]), int(last) if last else None)
    if steps.first < 2:
        raise BadInput(
            "bad-setting",
            f"--steps {text}: a step begins where the one before ends, so 2 is the first that can be seen",
        )
    if steps.last is not None and steps.last < steps.first:
        raise BadInput("bad-setting", f"--steps {text}: the last step comes before the first")
    return steps


def environment_for(steps: StepRange, *, stop_after: bool, base: Mapping[str, str]) -> dict[str, str]:
    """What the program is started with, beside `base`."""
    path = [str(BOOTSTRAP), base.get("PYTHONPATH")]
    return {
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        OPS: str(steps),
        STOP_AFTER: "1" if stop_after else "",
    }
