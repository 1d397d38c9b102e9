"""What was found out about a step so far. Collectors add to it one after the other; whatever stops one of them, what
the others found stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from rooflight.errors import OutOfMemory, RooflightError
from rooflight.ledger import HostCall, Kernel, Measurement, Note, Value
from rooflight.trace.stage import Recording


class Progress(Protocol):
    """Told what is being done: `done` of `total` runs of the step."""

    def __call__(self, doing: str, done: int, total: int) -> None: ...


def silent(doing: str, done: int, total: int) -> None:
    """No progress is shown."""


class MeasurementInterrupted(KeyboardInterrupt):
    """Ctrl-C while something was measured; a note says what."""


@dataclass
class Findings:
    """Quantities by op and of the whole step, kernels, and notes on what could not be measured."""

    ops: dict[int, dict[str, Value]] = field(default_factory=dict)
    step: dict[str, Value] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    host_calls: tuple[HostCall, ...] = ()
    recording: Recording | None = None
    """The ops that the numbers belong to, once they were recorded."""
    notes: list[Note] = field(default_factory=list)
    rates: dict[str, Value] = field(default_factory=dict)
    """Of the processor, for a step on a CPU."""

    def add(self, index: int, quantities: Mapping[str, Value]) -> None:
        self.ops.setdefault(index, {}).update(quantities)

    @contextmanager
    def collecting(self, what: str) -> Iterator[None]:
        """Something that may fail without taking the rest along: the reason becomes a note."""
        try:
            yield
        except KeyboardInterrupt:
            self.notes.append(
                Note(
                    "interrupted",
                    f"interrupted while measuring {what}: of that a part may be there, what follows is missing",
                )
            )
            raise MeasurementInterrupted("interrupted") from None
        except RooflightError as error:
            if isinstance(error, OutOfMemory) and torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # what the allocator holds and nobody uses: the next run shall find it
            self.notes.append(Note("not-measured", f"{what} not measured: {error}"))
        # A full disk; an error of the device, which comes later than its cause.
        except (OSError, RuntimeError) as error:
            self.notes.append(Note("not-measured", f"{what} not measured: {type(error).__name__}: {first_line(error)}"))

    def measurements(self) -> tuple[Measurement, ...]:
        rows = [Measurement(scope="step", quantities=self.step)]
        rows += [Measurement(scope="op", ops=(index,), quantities=self.ops[index]) for index in sorted(self.ops)]
        return tuple(row for row in rows if row.quantities)


def first_line(error: object) -> str:
    """What an error says, without the screens that torch's go on for."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def median(values: Sequence[float], origin: str) -> Value:
    """The median with least and greatest."""
    if len(values) == 1:
        return Value(values[0], origin)
    return Value(statistics.median(values), origin, min(values), max(values))
