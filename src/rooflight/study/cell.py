"""One cell of a study: a step and the device it is for; and the row that it becomes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from rooflight.spec import StepSpec, fields_for

Side = Literal["estimated", "predicted", "measured"]
SIDES: tuple[Side, ...] = ("estimated", "predicted", "measured")
HERE = "here"
"""The device of this machine: its GPU, or its processor where there is none."""


class Cell(StepSpec, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A step and a device."""

    batch: int = 1
    """Samples of a step."""
    on: str | None = None
    """A device of the database, or `here`; `None`: only estimated."""

    @property
    def id(self) -> str:
        """Stable over processes and versions: what is as usual is not part of it."""
        # Values are compared: `omit_defaults` leaves a text away only where it is the very same object.
        given = {"model": self.model} | {field.key: getattr(self, field.name) for field in fields_for("study")
                                         if field.is_given(getattr(self, field.name))}  # fmt: skip
        given |= {} if self.on is None else {"on": self.on}
        return f"{self.slug}-{hashlib.sha256(msgspec.json.encode(given, order='deterministic')).hexdigest()[:8]}"

    @property
    def slug(self) -> str:
        """For people: `resnet50-b16-train-bf16-h200`."""
        flags = [field.key for field in fields_for("study") if field.kind == "flag" and getattr(self, field.name)]
        parts = [self.model, f"b{self.batch}", f"s{self.seq}" if self.seq else "", self.step, self.dtype,
                 f"autocast-{self.autocast}" if self.autocast else "", *flags, *self.settings.values(), self.on or "",
                 f"x{self.gpus * self.nodes}" if self.gpus * self.nodes > 1 else ""]  # fmt: skip
        return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(part for part in parts if part)).strip("-")[:80]

    @property
    def coordinates(self) -> dict[str, str | int | bool]:
        """All that tells one cell from another, those that are given or have a usual value."""
        found: dict[str, str | int | bool] = {"model": self.model}
        for field in fields_for("study"):
            value = getattr(self, field.name)
            if field.name == "gpus" and self.on is not None:
                found["on"] = self.on
            if field.kind != "settings" and (field.name in _ALWAYS or field.is_given(value)):
                found[field.key] = ",".join(value) if isinstance(value, tuple) else value
        return found | self.settings

    @property
    def is_on_one_device(self) -> bool:
        """Can it be measured, where that device is?"""
        return self.on is not None and self.gpus == self.nodes == 1 and not self.pad

    @property
    def alone(self) -> Cell:
        """The cell without its device: what is estimated."""
        only_predicted = {field.name: field.default for field in fields_for("study") if "estimate" not in field.verbs}
        return msgspec.structs.replace(self, on=None, **only_predicted)

    def at(self, batches: Sequence[int]) -> StepSpec:
        """The step at several batches, without the device."""
        given = {name: getattr(self, name) for name in StepSpec.__struct_fields__}
        return StepSpec(**{**given, "batch": tuple(batches)})


_ALWAYS = ("batch", "step", "dtype", "gpus")
"""Coordinates that are told of every cell."""


State = Literal["done", "failed", "waiting"]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What became of a cell: everything that claims, trends and reports read.

    `values` are named `quantity.side`, in SI units: `flops.estimated`, `time.predicted`, `memory.measured`; those of
    one layer `conv2/flops.estimated`. Unknown ones are absent.
    """

    cell: Cell
    """The step and the device."""
    state: State = "waiting"
    """`done`, `failed` or `waiting`."""
    values: dict[str, int | float] = {}
    """By `quantity.side`."""
    facts: dict[str, str] = {}
    """In words: `device` (measured on), `bound.measured`, `tier`, ..."""
    failures: dict[Side, str] = {}
    """By side: one line saying what went wrong. A cell has failed when a side it asked for has."""
    notes: tuple[str, ...] = ()
    """What a reader should know of it."""
    ledgers: dict[Side, str] = {}
    """Names of ledger files, relative to the study's folder."""
    seconds: dict[Side, float] = {}
    """What each side took to find."""


class Quantity(msgspec.Struct, frozen=True):
    """A name that values have, its unit, what it is on each side that knows it."""

    name: str
    unit: Literal["flop", "byte", "second", "count", "1/second", "ratio", "flop/byte"]
    sides: dict[Side, str]


QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for quantity in (
        Quantity("flops", "flop", {
            "estimated": "useful matrix FLOPs of the step", "measured": "executed by the ops that have matrix work"}),
        Quantity("macs", "count", {"estimated": "half of the useful FLOPs"}),
        Quantity("other_flops", "flop", {"estimated": "arithmetic outside matrix work"}),
        Quantity("executed", "flop", {"measured": "all FLOPs of all units"}),
        Quantity("params", "count", {"estimated": "parameters"}),
        Quantity("bytes", "byte", {
            "estimated": "compulsory, no reuse between ops", "measured": "DRAM, read + written"}),
        Quantity("intensity", "flop/byte", {
            "estimated": "useful FLOPs for every compulsory byte", "measured": "executed FLOPs for every DRAM byte"}),
        Quantity("time", "second", {"predicted": "wall time of a step", "measured": "wall time of a step, median"}),
        Quantity("time_low", "second", {"predicted": "nine times in ten a step takes longer than this, ..."}),
        Quantity("time_high", "second", {"predicted": "... and less than this"}),
        Quantity("gpu_time", "second", {"predicted": "GPU busy in a step", "measured": "GPU busy in a step"}),
        Quantity("throughput", "1/second", {"predicted": "samples a second", "measured": "samples a second"}),
        Quantity("tokens", "1/second", {"predicted": "tokens a second", "measured": "tokens a second"}),
        Quantity("memory", "byte", {"predicted": "allocated at the peak", "measured": "allocated at the peak"}),
        Quantity("reserved", "byte", {"predicted": "reserved at the peak", "measured": "reserved at the peak"}),
        Quantity("mfu", "ratio", {
            "predicted": "useful FLOPs by time and peak", "measured": "useful FLOPs by time and peak"}),
        Quantity("kernels", "count", {"measured": "kernel launches"}),
        Quantity("unexplained", "ratio", {
            "measured": "executed FLOPs no cause explains, op by op without signs, as part of the useful"}),
        Quantity("share", "ratio", {"estimated": "share.TYPE: of a layer type in the useful FLOPs, as share.Conv2d"}),
    )
}  # fmt: skip
