"""A device as data: what it can do at most, by unit and precision. Read from TOML, strictly; every value has a source.

A peak is dense (no sparsity) and belongs to a clock. Memory is counted as the driver does, in whole 2^30 bytes where
the vendor writes GB; bandwidths and peaks in powers of ten. Links are counted in one direction, of the whole device.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Literal, get_args

import msgspec

from rooflight import files
from rooflight.errors import BadFile, BadInput
from rooflight.hardware import plausible

Kind = Literal["gpu", "cpu"]

_NOT_READ = 'every value is a table { value = ..., source = "...", date = "2026-11-15" }'


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number, where it was read, and the day it was read."""

    value: float
    """In SI units."""
    source: str
    """Where it was read, or how it was computed."""
    date: str
    """The day it was read, as 2026-11-15."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a device can do at most, every figure with its source."""

    name: str
    """What `--on` takes."""
    title: str
    """As the vendor writes it."""
    kind: Kind
    """`gpu` or `cpu`."""
    vendor: str
    """As `NVIDIA`."""
    aliases: tuple[str, ...] = ()
    """Other spellings that `--on` takes."""
    recognised_as: tuple[str, ...] = ()
    """The whole names by which the driver, torch or /proc/cpuinfo call it."""
    capability: int | None = None
    """NVIDIA's compute capability, 90 for 9.0."""
    core_flops_per_s: dict[str, Figure]
    """CUDA cores or vector units, by precision."""
    tensor_flops_per_s: dict[str, Figure] = {}
    """Tensor or matrix cores, by precision; empty where there are none."""
    memory_bytes: Figure
    """Of the device, or of one socket."""
    usable_memory_bytes: Figure | None = None
    """What the driver leaves to processes of it, where that was read."""
    context_bytes: Figure | None = None
    """What the driver takes for a process before it allocates anything, where that was read."""
    bandwidth_bytes_per_s: Figure
    """Of the device's own memory."""
    l2_bytes: Figure | None = None
    """The largest cache that all its cores share; of a CPU the last level."""
    memory_cache_bytes: Figure | None = None
    """A cache between that one and the memory, as AMD's Infinity Cache; most devices have none."""
    sms: Figure
    """Multiprocessors, compute units, or cores of a CPU."""
    gpus_per_node: Figure | None = None
    """How many of it a node holds at most: on one board, behind one switch of its fast link, or in the usual server."""
    clock_hz: Figure
    """The highest."""
    base_clock_hz: Figure | None = None
    """The one that is promised."""
    links_bytes_per_s: dict[str, Figure] = {}
    """By name (`nvlink`, `pcie`), in one direction."""
    tdp_w: Figure | None = None
    """Power limit."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know."""

    def peak(self, precision: str) -> Figure | None:
        """Of matrix work: tensor cores where they have that precision, else the cores. `None`: it has it nowhere.

        TF32 is a way to run fp32; where tensor cores have no TF32, such work is plain fp32.
        """
        figure = self.tensor_flops_per_s.get(precision) or self.core_flops_per_s.get(precision)
        return self.peak("fp32") if figure is None and precision == "tf32" else figure

    @property
    def is_cuda(self) -> bool:
        """Does torch run it as `cuda`? GPUs of NVIDIA and AMD; Apple's have kernels and an allocator of their own."""
        return self.kind == "gpu" and self.vendor.casefold() != "apple"

    def core_peak(self, precision: str) -> Figure | None:
        """Of all other work: CUDA cores or vector units."""
        return self.core_flops_per_s.get(precision)


def read(path: str | Path) -> Device:
    """The device that a file describes; what is wrong with the file is said in one line."""
    try:
        content = files.read_bytes(Path(path), what="device")
    except BadFile as error:
        raise BadInput(error.code, f"{error}, or name a device of `rooflight list devices`") from error
    return parse(content, str(path))


def parse(content: bytes, where: str) -> Device:
    """A device from the text of a TOML file; `where` it was read, for messages."""
    try:
        table = files.toml_table(content)
    except ValueError as error:
        raise _no_device(where, f"is not TOML: {error}") from error
    try:
        device = msgspec.convert(table, Device)
    except msgspec.ValidationError as error:
        raise BadInput("bad-device-file", f"{where}: {_explained(str(error))}") from error
    return checked(device, where)


def _no_device(where: str, why: str) -> BadInput:
    return BadInput("bad-device-file", f"{where} {why}; docs/devices.md shows how a device is described")


def checked(device: Device, where: str) -> Device:
    """The same device, if its numbers can be those of a real one."""
    named = figures(device)
    for key, figure in named:
        if not figure.source.strip():
            raise BadInput(
                "bad-device-file", f"{where}: {key} has no source: say where the value was read, or how it was computed"
            )
        if not plausible.is_date(figure.date):
            raise BadInput(
                "bad-device-file",
                f"{where}: {key} has the date {figure.date!r}: write the day it was read as 2026-11-15",
            )
    problem = plausible.problem(device, named)
    if problem is not None:
        raise BadInput("bad-device-file", f"{where}: {problem}")
    return device


def figures(device: Device) -> list[tuple[str, Figure]]:
    """Every value of a device with the name it has in a file, as `core_flops_per_s.fp32`."""
    named: list[tuple[str, Figure]] = []
    for field in device.__struct_fields__:
        value = getattr(device, field)
        if isinstance(value, Figure):
            named.append((field, value))
        elif isinstance(value, dict):
            named += [(f"{field}.{key}", figure) for key, figure in value.items()]
    return named


def _explained(message: str) -> str:
    """What msgspec says of a document, in the words of the file."""
    text, _, place = message.partition(" - at `$")
    key = place.rstrip("`").lstrip(".").replace("[...]", "")
    in_key = f"{key}: " if key else ""
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", text):
        field = missing.group(1)
        needs = _NOT_READ if field in Figure.__struct_fields__ and key else "no device is known without it"
        return f"{in_key}{field} is missing: {needs}"
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        known = Figure.__struct_fields__ if key else Device.__struct_fields__
        near = difflib.get_close_matches(unknown.group(1), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        return f"{in_key}{unknown.group(1)} is no known key: {hint}"
    if re.fullmatch(r"Expected `object( \| null)?`, got `.+`", text):
        return f"{key} stands alone: {_NOT_READ}"
    if re.fullmatch(r"Expected `float`, got `.+`", text):
        return f"{in_key}write a number in SI units, without quotes and without its unit: 864e9 for 864 GB/s"
    if wrong := re.fullmatch(r"Invalid enum value '(.*)'", text):
        return f"{in_key}{wrong.group(1)!r} is none: write {' or '.join(map(repr, get_args(Kind)))}"
    return f"{in_key}{text[0].lower()}{text[1:]}"
