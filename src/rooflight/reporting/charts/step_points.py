"""Steps on devices as points under roofs, whatever they come from: a ledger, a cell of a study, a model's name.

A step's numbers are those of a study's row. By formula a point has useful FLOPs and compulsory bytes, as counted
executed FLOPs and bytes of the DRAM; its time is that in which the GPU works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rooflight.formatting import giga, seconds
from rooflight.hardware.device import Device
from rooflight.metrics import Origin, intensity, ratio
from rooflight.reporting.columns import column
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Cells, Column, Table, says_nothing, table_of
from rooflight.study.cell import Side, StudyRow

Number = int | float
PointKind = Literal["predicted", "measured", "recorded", "measured, as counted", "recorded, as counted"]
_OF_KERNELS = ("model", "on")
"""All that an imported log tells of what ran."""


@dataclass(frozen=True)
class ReportedStep:
    """A step on a device, with all that is known of it."""

    row: StudyRow
    device: Device | None
    """`None`: nobody knows its roofs."""
    flops: Number | None = None
    """That must be computed; `None`: as the intensity and the bytes of its row say, which a study keeps."""
    work: Mapping[str, Number] = field(default_factory=dict)
    """Useful FLOPs of its matrix work by the precision they run in."""
    origin: Origin = "measured"
    """Of what its row calls measured."""
    source: str = ""
    """The file or name that it is from, as a command line takes it."""
    is_log: bool = False
    """Nobody knows its batch, kind and precision."""

    @property
    def coordinates(self) -> dict[str, str | int | bool]:
        found = self.row.cell.coordinates
        return {axis: found[axis] for axis in _OF_KERNELS if axis in found} if self.is_log else found

    @property
    def place(self) -> str:
        """The device, in a word."""
        return self.device.name if self.device is not None else self.row.cell.on or "any device"


@dataclass(frozen=True)
class StepPoint:
    """Where a step lies. What is drawn has all of these numbers."""

    step: ReportedStep
    device: Device
    kind: PointKind
    name: str
    """Its model, and what else tells it from the others."""
    short: str
    """The same without the model, where something else tells it."""
    flops: Number
    bytes: Number
    time_s: float
    percent_of_roof: float | None
    bound: str | None

    @property
    def model(self) -> str:
        return self.step.row.cell.model

    @property
    def basis(self) -> str:
        return "as counted" if self.kind.endswith("as counted") else "by formula"

    @property
    def intensity(self) -> float:
        return intensity(self.flops, self.bytes) or 0.0

    @property
    def flops_per_s(self) -> float:
        return ratio(self.flops, self.time_s) or 0.0

    @property
    def bytes_per_s(self) -> float:
        return ratio(self.bytes, self.time_s) or 0.0


def axes_apart(steps: Sequence[ReportedStep], without: Collection[str] = ()) -> tuple[str, ...]:
    """The axes in which steps differ, of those that both of any two have: a log has no batch that differs. Where that
    leaves two steps alike, also what only one of them was given, such as --compile."""
    places = [step.coordinates for step in steps]
    axes = dict.fromkeys(axis for place in places for axis in place)
    apart = [axis for axis in axes if len({place.get(axis) for place in places if axis in place}) > 1]
    known = [step.coordinates for step in steps if not step.is_log]
    for axis in (axis for axis in axes if axis not in apart):
        alike: dict[object, set[object]] = {}
        for place in known:
            alike.setdefault(tuple(place.get(other) for other in ("model", *apart)), set()).add(place.get(axis))
        if any(len(values) > 1 for values in alike.values()):
            apart.append(axis)
    return tuple(axis for axis in apart if axis not in without)


def names_of(steps: Sequence[ReportedStep], *, without: Collection[str] = ("on",)) -> list[str]:
    """`vgg11`, or `vgg11, batch 16` where batches differ; the file, too, where two steps are the same in all else.
    `without`: axes that are not told."""
    axes = axes_apart(steps, ("model", "on"))
    told = tuple(axis for axis in axes if axis not in without)
    same = Counter(_whole(step, axes) for step in steps)
    return [
        _told(step, told) + (f" ({step.source})" if same[_whole(step, axes)] > 1 and step.source else "")
        for step in steps
    ]


def _told(step: ReportedStep, axes: Sequence[str]) -> str:
    return words({axis: step.coordinates[axis] for axis in ("model", *axes) if axis in step.coordinates})


def _whole(step: ReportedStep, axes: Sequence[str]) -> tuple[object, ...]:
    """All that tells a step from others, but for the file that it is from."""
    return _told(step, axes), step.place, tuple(_sides(step))


def _sides(step: ReportedStep) -> Iterator[str]:
    for side in ("predicted", "measured"):
        if f"gpu_busy.{side}" in step.row.values:
            yield step.origin if side == "measured" else side


def points_of(steps: Sequence[ReportedStep]) -> list[StepPoint]:
    """Of each step what was predicted and what was measured, as far as FLOPs, bytes and a time are known."""
    drawn = [step for step in steps if step.device is not None]
    named = zip(drawn, names_of(drawn), _short_names(drawn), strict=True)
    return [point for step, name, short in named for point in _points(step, name, short)]


def _short_names(steps: Sequence[ReportedStep]) -> list[str]:
    """`batch 16`: for the points of one colour."""
    axes = axes_apart(steps, ("on", "model"))
    told = [{axis: step.coordinates[axis] for axis in axes if axis in step.coordinates} for step in steps]
    return [words(place) if place else step.row.cell.model for place, step in zip(told, steps, strict=True)]


def _points(step: ReportedStep, name: str, short: str) -> Iterator[StepPoint]:
    values = step.row.values
    moved = values.get("bytes.estimated")
    useful = step.flops
    if useful is None and moved is not None:
        # The FLOPs that must be computed are those of the intensity: matrix work, recomputation, other arithmetic.
        useful = round(values.get("intensity.estimated", 0) * moved)
    executed, dram = values.get("executed.measured"), values.get("bytes.measured")
    for side in ("predicted", "measured"):
        kind: PointKind = (
            "predicted" if side == "predicted" else "recorded" if step.origin == "recorded" else "measured"
        )
        yield from _point(step, (name, short), kind, side, useful, moved)
    counted: PointKind = "recorded, as counted" if step.origin == "recorded" else "measured, as counted"
    yield from _point(step, (name, short), counted, "measured", executed, dram)


def _point(
    step: ReportedStep, names: tuple[str, str], kind: PointKind, side: Side, flops: Number | None, moved: Number | None
) -> Iterator[StepPoint]:
    values, facts = step.row.values, step.row.facts
    time_s = values.get(f"gpu_busy.{side}") or (values.get(f"kernel_time.{side}") if step.is_log else None)
    if not flops or not moved or not time_s or step.device is None:
        return
    percent, bound = values.get(f"percent_of_roof.{side}"), facts.get(f"bound.{side}")
    yield StepPoint(step, step.device, kind, *names, flops, moved, float(time_s), percent, bound)


def points_table(points: Sequence[StepPoint]) -> Table:
    """For people, a line for each: what tells it from the others, then what its place is made of."""
    columns: Cells[StepPoint] = [
        (Column("step", right=False, wraps=True), lambda point: point.name),
        (replace(column("device"), wraps=True), lambda point: point.device.name),
        (Column("it was", right=False, wraps=True, raw="kind"), lambda point: point.kind),
        *_numbers(),
    ]
    return table_of(columns, points, leave_out=says_nothing)


def points_file(points: Sequence[StepPoint]) -> Table:
    """The same for programs: the model and every axis in a column of its own."""
    axes = axes_apart([point.step for point in points], ("model", "on"))
    columns: Cells[StepPoint] = [
        (Column("model", right=False), lambda point: point.model),
        *((Column(axis, _plain), _coordinate(axis)) for axis in dict.fromkeys(("batch", *axes))),
        (column("device"), lambda point: point.device.name),
        (Column("kind", right=False), lambda point: point.kind),
        *_numbers(),
        (Column("source", right=False), lambda point: point.step.source or None),
    ]
    return table_of(columns, points, leave_out=says_nothing)


def _numbers() -> Cells[StepPoint]:
    """Where a terminal is narrow, the products and quotients of what is left tell the others."""
    flops = column(
        "flops",
        heading="all FLOPs",
        about="by formula: the FLOPs that must be computed; as counted: executed",
        optional=3,
    )
    return [
        (flops, lambda point: point.flops),
        (
            column("bytes", about="by formula: compulsory; as counted: of the DRAM", optional=4),
            lambda point: point.bytes,
        ),
        (column("intensity"), lambda point: point.intensity),
        (column("gpu_busy_s", heading="GPU-busy", write=seconds, optional=1), lambda point: point.time_s),
        (column("flops_per_s", heading="GFLOP/s", write=giga), lambda point: point.flops_per_s),
        (
            column("bytes_per_s", heading="GB/s", write=giga, about="its bytes over its GPU-busy time", optional=2),
            lambda point: point.bytes_per_s,
        ),
        (column("percent_of_roof"), lambda point: point.percent_of_roof),
        (column("bound"), lambda point: point.bound),
    ]


def _coordinate(axis: str) -> Callable[[StepPoint], Any]:
    return lambda point: point.step.coordinates.get(axis)


def _plain(value: object) -> str:
    return "–" if value is None else str(value)
