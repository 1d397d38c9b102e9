"""One cell of a study: a step and the device it is for; and the row that it becomes."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from rooflight.ledger import StepKind

Side = Literal["estimated", "predicted", "measured"]
SIDES: tuple[Side, ...] = ("estimated", "predicted", "measured")
HERE = "here"
"""The device of this machine: its GPU, or its processor where there is none."""


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A step and a device. What is left away is as `rooflight estimate` takes it."""

    model: str
    """As `rooflight estimate` takes it."""
    batch: int = 1
    """Samples of a step."""
    seq: int | None = None
    """Length of the sequence."""
    past: int | None = None
    """Tokens in the cache already, for `decode`."""
    step: StepKind = "infer"
    """`infer`, `train` or `decode`."""
    dtype: str = "fp32"
    """Type the model is converted to."""
    autocast: str | None = None
    """Type of autocast; `None`: without."""
    tf32: bool | None = None
    """May fp32 work run in TF32? `None`: as torch has it."""
    loss: str | None = None
    """Of a training step; `None`: the usual one of the model."""
    optimizer: str | None = None
    """Of a training step; `None`: the usual one of the model."""
    set: dict[str, str] = {}
    """A built-in model's own settings, as `--set` gives them."""
    input: str | None = None
    """The shape of one sample, as `--input 3x224x224`, for a model that brings no inputs."""
    on: str | None = None
    """A device of the database, or `here`; `None`: only estimated."""
    gpus: int = 1
    """So many of the device, each with the cell's batch."""
    parallel: str | None = None
    """How several GPUs work together."""

    @property
    def id(self) -> str:
        """Stable over processes and versions: what is as usual is not part of it."""
        # Values are compared: `omit_defaults` leaves a text away only where it is the very same object.
        usual = Cell(model=self.model)
        given = {name: getattr(self, name) for name in self.__struct_fields__
                 if name == "model" or getattr(self, name) != getattr(usual, name)}  # fmt: skip
        return f"{self.slug}-{hashlib.sha256(msgspec.json.encode(given, order='deterministic')).hexdigest()[:8]}"

    @property
    def slug(self) -> str:
        """For people: `resnet50-b16-train-bf16-h200`."""
        parts = [self.model, f"b{self.batch}", f"s{self.seq}" if self.seq else "", self.step, self.dtype,
                 f"autocast-{self.autocast}" if self.autocast else "", *self.set.values(), self.on or "",
                 f"x{self.gpus}" if self.gpus > 1 else ""]  # fmt: skip
        return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(part for part in parts if part)).strip("-")[:80]

    @property
    def coordinates(self) -> dict[str, str | int | bool]:
        """All that tells one cell from another, those that are given or have a usual value."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "set"}
        return {name: value for name, value in {**given, **self.set}.items() if value is not None}


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
