"""One cell of a study: a step and the device it is for; and the row that it becomes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Literal

import msgspec

from rooflight.errors import RooflightError
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find
from rooflight.ledger import Note
from rooflight.metrics import FIT_WORDS, METRICS
from rooflight.spec import StepSpec, fields_for
from rooflight.summary.reliability import UNRELIABLE

Side = Literal["estimated", "predicted", "measured"]
SIDES: tuple[Side, ...] = ("estimated", "predicted", "measured")
Key = tuple[str, Side]
"""What a journal files a side of a cell under."""
HERE = "here"
"""The device of this machine: its GPU, or its processor where there is none."""
PROCESSOR = "cpu"
"""This machine's processor, also where it has a GPU."""


class StudyCell(StepSpec, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, dict=True):
    """A step and a device."""

    batch: int = 1
    """Samples of a step."""
    on: str | None = None
    """A device of the database, or `here`; `None`: only estimated."""

    @cached_property
    def id(self) -> str:
        """Stable over processes and versions: what is as usual is not part of it."""
        # Values are compared: `omit_defaults` leaves a text away only where it is the very same object.
        given = {"model": self.model} | {field.key: value for field, value in self._given_fields("study")}
        given |= {} if self.on is None else {"on": self.on}
        return f"{self.slug}-{hashlib.sha256(msgspec.json.encode(given, order='deterministic')).hexdigest()[:8]}"

    @property
    def slug(self) -> str:
        """For people: `resnet50-b16-train-bf16-h200`."""
        flags = [field.key for field in fields_for("study") if field.kind == "flag" and getattr(self, field.name)]
        parts = [
            self.model,
            f"b{self.batch}",
            f"s{self.seq}" if self.seq else "",
            self.step,
            self.dtype,
            f"autocast-{self.autocast}" if self.autocast else "",
            *flags,
            *self.settings.values(),
            self.on or "",
            f"x{self.gpus * self.nodes}" if self.gpus * self.nodes > 1 else "",
        ]
        return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(part for part in parts if part)).strip("-")[:80]

    @cached_property
    def coordinates(self) -> dict[str, str | int | bool]:
        """All that tells one cell from another, those that are given or have a usual value."""
        coordinates: dict[str, str | int | bool] = {"model": self.model}
        for field in fields_for("study"):
            value = getattr(self, field.name)
            if field.name == "gpus" and self.on is not None:
                coordinates["on"] = self.on
            if field.kind != "settings" and (field.name in _ALWAYS or field.is_given(value)):
                coordinates[field.key] = ",".join(value) if isinstance(value, tuple) else value
        return coordinates | self.settings

    @property
    def impossible(self) -> str:
        """Why no such cell can be, on any machine: `no bf16 on NVIDIA V100 SXM2 16 GB`; empty where it can.

        It is neither estimated nor predicted, measured or submitted, and no claim is about it.
        """
        precision, device = self.autocast or self.dtype, device_of(self.on)
        return "" if device is None or device.peak(precision) is not None else f"no {precision} on {device.title}"

    @property
    def is_on_one_device(self) -> bool:
        """Can it be measured, where that device is?"""
        if self.impossible:
            return False
        return self.on is not None and self.gpus == self.nodes == 1 and not self.pad and not self.unmeasured

    @property
    def is_data_parallel(self) -> bool:
        """Can it be measured where as many of its device are in one machine: a process each, joined by DDP?"""
        several = self.on is not None and self.gpus > 1 and self.nodes == 1 and self.parallel in (None, "ddp")
        return several and self.step == "train" and not (self.impossible or self.pad or self.compile or self.graphs)

    @property
    def unmeasured(self) -> str:
        """Why no machine measures it, where that must be said."""
        if self.on is not None and self.compile and self.graphs:
            return "not measured: a compiled step is not captured as one CUDA graph, which is predicted only"
        return ""

    def key(self, side: Side) -> Key:
        """Of an estimate it is the step's, which all devices share."""
        return (self.alone.id if side == "estimated" else self.id), side

    @cached_property
    def alone(self) -> StudyCell:
        """The cell without its device: what is estimated."""
        only_predicted = {field.name: field.default for field in fields_for("study") if "estimate" not in field.verbs}
        return msgspec.structs.replace(self, on=None, **only_predicted)

    def at(self, batches: Sequence[int]) -> StepSpec:
        """The step at several batches, without the device."""
        given = {name: getattr(self, name) for name in StepSpec.__struct_fields__}
        return StepSpec(**{**given, "batch": tuple(batches), "total_batch": None})


_ALWAYS = ("batch", "step", "dtype", "gpus")
"""Coordinates that are told of every cell."""


def device_of(on: str | None) -> Device | None:
    """As the database or its file describes it; `None`: this machine's, or one that cannot be read here."""
    return None if on is None else _described(on, os.path.isfile(on) and os.stat(on).st_mtime_ns)


@cache
def _described(on: str, written_ns: int) -> Device | None:
    """`written_ns`: when the device's file was, which may be written anew."""
    try:
        return find(on)
    except RooflightError:
        return None


State = Literal["done", "failed", "waiting", "impossible"]


class StudyRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What became of a cell: everything that claims, trends and reports read.

    `values` are named `quantity.side`, in SI units: `flops.estimated`, `time.predicted`, `memory.measured`; those of
    one layer `conv2/flops.estimated`. Unknown ones are absent.
    """

    cell: StudyCell
    """The step and the device."""
    state: State = "waiting"
    """`done`, `failed`, `waiting`, or `impossible`: no machine can have such a cell."""
    values: dict[str, int | float] = {}
    """By `quantity.side`."""
    facts: dict[str, str] = {}
    """In words: `device` (measured on), `bound.measured`, `tier`, ..."""
    failures: dict[Side, str] = {}
    """By side: one line saying what went wrong. A cell has failed when a side it asked for has."""
    notes: tuple[Note, ...] = ()
    """What a reader should know of it."""
    ledgers: dict[Side, str] = {}
    """Names of ledger files, relative to the study's folder."""
    seconds: dict[Side, float] = {}
    """What each side took to find."""


class StudyQuantity(msgspec.Struct, frozen=True):
    """A name that values have, and the metric that it is on each side that knows it."""

    name: str
    sides: dict[Side, str]

    @property
    def unit(self) -> str:
        return METRICS[next(iter(self.sides.values()))].unit


def _on(metric: str, *sides: Side) -> dict[Side, str]:
    return dict.fromkeys(sides, metric)


_METRICS: dict[str, dict[Side, str]] = {
    "flops": {"estimated": "flops", "measured": "matrix_executed_flops"},
    "macs": _on("macs", "estimated"),
    "other_flops": _on("other_flops", "estimated"),
    "executed": _on("executed_flops", "measured"),
    "params": _on("params", "estimated"),
    "bytes": {"estimated": "bytes", "measured": "dram_bytes"},
    "intensity": {"estimated": "intensity", "measured": "dram_intensity"},
    "time": _on("wall_time_s", "predicted", "measured"),
    "time_low": _on("time_low", "predicted"),
    "time_high": _on("time_high", "predicted"),
    "gpu_busy": _on("gpu_busy_s", "predicted", "measured"),
    "gpu_busy_low": _on("gpu_busy_low", "predicted"),
    "gpu_busy_high": _on("gpu_busy_high", "predicted"),
    "host_time": _on("host_time_s", "predicted"),
    "host_low": _on("host_low", "predicted"),
    "host_high": _on("host_high", "predicted"),
    "kernel_time": _on("kernel_time_s", "predicted", "measured"),
    "throughput": _on("throughput", "predicted", "measured"),
    "tokens": _on("tokens_per_s", "predicted", "measured"),
    "memory": _on("peak_allocated_bytes", "predicted", "measured"),
    "reserved": _on("peak_reserved_bytes", "predicted", "measured"),
    "mfu": _on("mfu", "predicted", "measured"),
    "hfu": _on("hfu", "measured"),
    "ppp": _on("ppp", "measured"),
    "percent_of_roof": _on("percent_of_roof", "predicted", "measured"),
    "gain": _on("gain", "predicted", "measured"),
    "kernels": _on("kernels", "predicted", "measured"),
    "flops_per_s": _on("flops_per_s", "predicted", "measured"),
    "executed_per_s": _on("executed_flops_per_s", "measured"),
    "bytes_per_s": {"predicted": "bytes_per_s", "measured": "dram_bytes_per_s"},
    "output": _on("output_bytes", "estimated", "measured"),
    "param_bytes": _on("param_bytes", "estimated"),
    "workspace": _on("workspace_bytes", "predicted", "measured"),
    "growth": _on("growth_bytes", "measured"),
    "footprint": _on("footprint_bytes", "estimated", "predicted", "measured"),
    "unexplained": _on("unexplained", "measured"),
    "share": _on("share", "estimated"),
}
QUANTITIES: dict[str, StudyQuantity] = {name: StudyQuantity(name, sides) for name, sides in _METRICS.items()}


class StudyFact(msgspec.Struct, frozen=True):
    """What cells are said to be in words."""

    keys: dict[Side, str]
    """How a row names it, by side."""
    words: tuple[str, ...] | None = None
    """All that it can be; `None`: anything."""


FACTS: dict[str, StudyFact] = {
    "bound": StudyFact({"measured": "bound.measured", "predicted": "bound.predicted"}, ("compute", "memory", "host")),
    "device": StudyFact({"measured": "device", "predicted": "device.predicted"}),
    "tier": StudyFact({"predicted": "tier"}, ("calibrated", "partial", "published", "transferred", "guessed", "spec")),
    "fits": StudyFact({"predicted": "fits"}, tuple(FIT_WORDS.values())),
    "torch": StudyFact({"measured": "torch"}),
}

_LAYERS_TIME, _STEPS_TIME = "kernel_time", "gpu_busy"
OLD_NAMES = {"gpu_time": (_STEPS_TIME, _LAYERS_TIME)}
"""What rows of earlier versions call a quantity: of a step, and of a layer, where it was the sum of its kernels."""


def notes_now(texts: Iterable[str]) -> list[Note]:
    """Notes of before they had codes. That times are doubted is asked of them still."""
    return [Note(UNRELIABLE if text.startswith("TIMES UNRELIABLE") else "", text) for text in texts]


def values_now(values: Mapping[str, int | float]) -> dict[str, int | float]:
    """Values by the names of this version: `gpu_busy.measured`, `conv2/kernel_time.measured`."""
    return {_named_now(name): value for name, value in values.items()}


def _named_now(value: str) -> str:
    layer, slash, name = value.rpartition("/")
    quantity, dot, side = name.partition(".")
    if quantity not in OLD_NAMES:
        return value
    return f"{layer}{slash}{OLD_NAMES[quantity][bool(slash)]}{dot}{side}"
