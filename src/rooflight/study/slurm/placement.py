"""Which cells of a study are asked of Slurm with which options: a device's cells go where its nodes are.

    [slurm]                        # for all cells
    account = "physics"

    [slurm.device.v100]            # besides, for cells on this device
    partition = "old"
    gres = "gpu:v100:1"

A job holds cells of one such device only; those of all others share one. Cells that are measured on several GPUs are
a job of their own, which asks for as many: `gpu:v100:2` where `gpu:v100:1` was written. What the command line says
counts more than [slurm], and less than a device's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rooflight.errors import BadInput, RooflightError
from rooflight.hardware import devices
from rooflight.study.cell import StudyCell
from rooflight.study.slurm.options import NAMED, UNSAID, SlurmOptions, asked, meant, with_gpus

DEVICES = "device"


class CellGroup(NamedTuple):
    """Cells that may share a job."""

    device: str
    """That has options of its own; empty: all others."""
    gpus: int = 1
    """That each of its cells is measured on."""


@dataclass(frozen=True)
class SlurmPlacement:
    """`by_device` has those that the plan tells apart, by the names of the database."""

    general: SlurmOptions
    by_device: Mapping[str, SlurmOptions]
    measures: bool = True
    """What is only computed needs no more GPUs than one."""

    def group_of(self, cell: StudyCell) -> CellGroup:
        name = "" if cell.on is None else _device(cell.on)
        gpus = cell.gpus if self.measures and cell.is_data_parallel else 1
        return CellGroup(name if name in self.by_device else "", gpus)

    def options_of(self, group: CellGroup) -> SlurmOptions:
        return with_gpus(self.by_device.get(group.device, self.general), group.gpus)

    def groups(self, cells: Iterable[StudyCell]) -> dict[CellGroup, list[StudyCell]]:
        groups: dict[CellGroup, list[StudyCell]] = {}
        for cell in cells:
            groups.setdefault(self.group_of(cell), []).append(cell)
        return groups


def placement(table: Mapping[str, Any], given: Mapping[str, Any] = UNSAID, *, measures: bool = True) -> SlurmPlacement:
    """What a plan's [slurm] asks for, with the options of the command line."""
    general = {name: value for name, value in table.items() if name != DEVICES}
    of_all = _merged(_options("[slurm]", general), {**UNSAID, **given})
    own = table.get(DEVICES, {})
    if not isinstance(own, dict) or not all(isinstance(options, dict) for options in own.values()):
        raise BadInput("bad-setting", '[slurm.device.NAME] is a table of options, such as partition = "gpu"')
    by_device = {}
    for name, options in own.items():
        where = f"[slurm.device.{name}]"
        by_device[_device(name)] = _checked(where, _merged(of_all, _options(where, options)))
    return SlurmPlacement(_checked("[slurm]", of_all), by_device, measures)


def check_placement(table: Mapping[str, Any], on: Collection[str], where: str) -> None:
    """What can be wrong with a plan's [slurm], said before any work begins; `on`: the study's devices."""
    try:
        placed = placement(table)
    except RooflightError as error:
        raise error.reworded(f"{where}: {error}") from None
    there = {_device(name) for name in on}
    for name in table.get(DEVICES, {}):
        if _device(name) not in there:
            known = f"its devices are {', '.join(on)}" if on else "it names no device (on = ...)"
            raise BadInput("unknown-cell", f"{where}: [slurm.device.{name}]: no cell of this study is on it: {known}")
    if len(placed.by_device) < len(table.get(DEVICES, {})):
        raise BadInput(
            "duplicate-device", f"{where}: [slurm.device]: two of {', '.join(table[DEVICES])} are the same device"
        )


def _device(name: str) -> str:
    """By the name of the database, however it is spelled; `here` and `cpu` stay what they are."""
    try:
        return devices.find(name).name
    except RooflightError:
        return name.casefold()


def _options(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of a plan in the words of the command line."""
    options = dict(UNSAID)
    more: list[str] = []
    for key, value in table.items():
        name = key.replace("-", "_")
        if isinstance(value, (dict, float)) or (isinstance(value, list) and name != "setup"):
            raise BadInput("bad-setting", f'{where} {key}: one value, such as {key} = "...", got {value!r}')
        if name in NAMED or name == "python":
            options[name] = str(value)
        elif name == "max_parallel":
            if not isinstance(value, int) or isinstance(value, bool):
                raise BadInput("not-a-whole-number", f"{where} max_parallel is a whole number, got {value!r}")
            options[name] = value
        elif name == "setup":
            options[name] = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
        elif (near := meant(key.replace("_", "-"))) is not None:
            raise BadInput("unknown-key", f"{where} unknown key {key!r}: did you mean {near.replace('-', '_')}?")
        elif value is not False:
            more.append(key if value is True else f"{key}={value}")
    options["slurm"] = tuple(more)
    return options


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The second's where it has one; what may be given several times is added up."""
    merged = {name: first[name] if second[name] is None else second[name] for name in UNSAID}
    return {**merged, "slurm": (*first["slurm"], *second["slurm"]), "setup": (*first["setup"], *second["setup"])}


def _checked(where: str, options: Mapping[str, Any]) -> SlurmOptions:
    try:
        return asked(options)
    except BadInput as error:
        raise error.reworded(f"{where}: {error.text}") from None
