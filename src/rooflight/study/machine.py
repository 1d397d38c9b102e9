"""Which devices of a plan are in this machine, and which of its GPUs they are."""

from __future__ import annotations

import itertools
import os
from functools import cache

from rooflight.hardware.devices import find, recognise_name
from rooflight.machine import nvml
from rooflight.machine.recognise import Recognised, this_device
from rooflight.study.cell import PROCESSOR, StudyCell, device_of
from rooflight.study.plan import is_of_this_machine


def gpu() -> Recognised | None:
    """This machine's GPU, as the driver tells it; torch is not needed for that. `None` where it is hidden from us."""
    names = gpu_names()
    return _named(names[0]) if names else None


@cache
def _first_gpu() -> Recognised | None:
    return this_device(kind="gpu")


@cache
def processor() -> Recognised | None:
    return this_device(kind="cpu")


def is_here(on: str | None) -> bool:
    """Can a cell on this device be measured here?"""
    if on is None:
        return False
    if is_of_this_machine(on):
        return True
    wanted = device_of(on)
    if wanted is None:
        return False
    if wanted.kind == "gpu":
        return bool(gpus_of(on))
    ours = processor()
    return ours is not None and ours.device is not None and ours.device.name == wanted.name


def can_measure(cell: StudyCell) -> bool:
    """Is the cell's device here, and as many of it as it wants? Of processes on a CPU there may be any number."""
    if not is_here(cell.on):
        return False
    return cell.gpus == 1 or place_of(cell.on) == "cpu" or len(gpus_of(cell.on or "")) >= cell.gpus


def place_of(on: str | None) -> str:
    """Where torch finds it: `cuda`, `cuda:1` where that is not the first GPU, or `cpu`."""
    if on is None or on.casefold() == PROCESSOR or not gpu_names():
        return "cpu"
    if not is_of_this_machine(on) and find(on).kind == "cpu":
        return "cpu"
    number = gpu_names().index(next(iter(gpus_of(on)), gpu_names()[0]))
    return f"cuda:{number}" if number else "cuda"


def gpus_of(on: str) -> list[str]:
    """The visible GPUs that are this device, as `gpu_names` names them; of `here`, all that are like the first."""
    there = {name: _named(name) for name in gpu_names()}
    if is_of_this_machine(on):
        first = gpu()
        return [name for name, recognised in there.items() if first is not None and recognised == first]
    wanted = find(on).name
    return [
        name
        for name, recognised in there.items()
        if recognised is not None and recognised.device is not None and recognised.device.name == wanted
    ]


def gpu_names() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(_by_number()))]
    names = [name.strip() for name in visible.split(",")]
    # As CUDA reads it: what follows a name that is none is not looked at.
    return list(itertools.takewhile(lambda name: name and name != "-1", names))


def environment_of(name: str) -> dict[str, str]:
    """What lets a process see this GPU alone. Our own numbers are the driver's, and CUDA must count as it does."""
    order = {} if "CUDA_VISIBLE_DEVICES" in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**order, "CUDA_VISIBLE_DEVICES": name}


def _named(name: str) -> Recognised | None:
    """One visible GPU. Where the driver cannot tell, it is taken to be like the first: a measurement says what it is.

    CUDA may number unlike GPUs in another order than the driver does: that, too, comes out when one is measured.
    """
    if name.isdigit():
        there = _by_number()
        return there[int(name)] if int(name) < len(there) else _first_gpu()
    library = nvml.connect()
    handle = library.find(uuid=name) if library is not None else None
    return _first_gpu() if handle is None else _recognised(handle)


def _by_number() -> tuple[Recognised, ...]:
    """All GPUs, in the driver's order."""
    gpus = _told()
    recognised = tuple(gpu for gpu in gpus if gpu is not None)
    first = None if recognised and len(recognised) == len(gpus) else _first_gpu()
    return recognised if first is None else (first,) * max(1, len(gpus))


@cache
def _told() -> tuple[Recognised | None, ...]:
    library = nvml.connect()
    return tuple(_recognised(handle) for handle in library.gpus()) if library is not None else ()


def _recognised(handle: nvml.Gpu) -> Recognised | None:
    name = handle.name()
    if not name:
        return None
    # A slice is no whole board, and a board that is cut up is of no use as one.
    return Recognised(name, "gpu", "NVML", None if handle.mig() else recognise_name(name))
