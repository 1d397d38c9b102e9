"""Which devices of a plan are in this machine."""

from __future__ import annotations

import itertools
import os
from functools import cache

from rooflight.errors import RooflightError
from rooflight.hardware.devices import find
from rooflight.hardware.recognise import Recognised, this_device
from rooflight.measurement.machine import nvml
from rooflight.study.plan import PROCESSOR, is_of_this_machine


def gpu() -> Recognised | None:
    """This machine's GPU, as the driver tells it; torch is not needed for that. `None` where it is hidden from us."""
    return _first_gpu() if gpu_names() else None


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
    try:
        wanted = find(on).name
    except RooflightError:
        return False
    return wanted in {one.device.name for one in (gpu(), processor()) if one is not None and one.device is not None}


def place_of(on: str | None) -> str:
    """Where torch finds it: `cuda` or `cpu`."""
    there = gpu()
    if there is None or on == PROCESSOR:
        return "cpu"
    if on is not None and not is_of_this_machine(on) and find(on).kind == "cpu":
        return "cpu"
    return "cuda"


def gpu_names() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(_gpu_count())]
    names = [name.strip() for name in visible.split(",")]
    # As CUDA reads it: what follows a name that is none is not looked at.
    return list(itertools.takewhile(lambda name: name and name != "-1", names))


@cache
def _gpu_count() -> int:
    library = nvml.connect()
    count = len(list(library.gpus())) if library is not None else 0
    return count or int(_first_gpu() is not None)
