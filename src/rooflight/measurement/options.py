"""What to measure of a step, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rooflight.errors import BadInput
from rooflight.hardware.counter_tables import Level
from rooflight.ledger import Execution
from rooflight.spec import Field

CounterBackend = Literal["auto", "cupti", "ncu", "none"]
_REPEAT = Field("Steps to time, without profiler and counters.", key="repeat", kind="number")
COUNTER_BACKENDS: tuple[CounterBackend, ...] = ("auto", "cupti", "ncu", "none")
LEVELS: tuple[Level, ...] = ("dram", "l2", "l1")


@dataclass(frozen=True)
class MeasureOptions:
    """`repeat` plain steps are timed, a few of them are profiled, and counters take as many as they have passes."""

    counters: CounterBackend = "auto"
    levels: tuple[Level, ...] = ("dram",)
    metrics: tuple[str, ...] = ()
    """Other hardware counters, by NVIDIA's names."""
    per_kernel: bool = False
    """Counters for every kernel, beside those for every op."""
    spread: bool = False
    """Count the whole step three times, to see how much the counts vary."""
    repeat: int = 20
    execution: Execution = "eager"
    compile_mode: str | None = None
    together: bool = False
    """Do all ranks of the process group take the time of the same steps? Then they begin each at once."""

    def __post_init__(self) -> None:
        _REPEAT.read(self.repeat)
        if self.counters not in COUNTER_BACKENDS:
            raise BadInput(
                "unknown-choice", f"unknown counters {self.counters!r}; known: {', '.join(COUNTER_BACKENDS)}"
            )
        if wrong := [level for level in self.levels if level not in LEVELS]:
            raise BadInput("unknown-choice", f"unknown level {wrong[0]!r}; known: {', '.join(LEVELS)}")
        if self.counters == "none" and (self.metrics or self.per_kernel or self.spread):
            raise BadInput(
                "option-conflict", "--metrics, --per-kernel and --spread need counters: leave --counters=none out"
            )

    @property
    def profiled_runs(self) -> int:
        return min(self.repeat, 5)
