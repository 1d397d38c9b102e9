"""What the checks look at: a machine's files, and what torch, the driver and our own probes answer on it.

The answers are functions, so that a question that fails spoils one check and not all.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Literal

import rooflight
from rooflight.errors import CannotMeasure
from rooflight.machine import Machine
from rooflight.machine import nvml as management
from rooflight.machine.installed_gpus import pci_bus_id_of, uuid_of
from rooflight.machine.memory_use import GpuUse, gpu_use_by_torch
from rooflight.machine.nvml import Gpu, Nvml
from rooflight.measurement.cupti.library import find_library

Status = Literal["ok", "limited", "no"]
_PROBE_LIMIT_S = 30
_PROBE = """
from rooflight.errors import RooflightError
from rooflight.measurement.cupti.ranges import probe
try:
    print("ok", probe(deep=True))
except RooflightError as error:
    print("no", " ".join(str(error).split()))
"""


@dataclass(frozen=True)
class TorchDevice:
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    uuid: str | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True)
class InstalledTorch:
    """The installed torch. `version` is `None` where there is none, `error` says why it cannot be imported."""

    version: str | None
    error: str = ""
    cuda: str | None = None
    """The CUDA it was built with; `None`: a build for CPUs (or, with `hip`, for AMD's GPUs)."""
    hip: str | None = None
    cuda_error: str = ""
    """Why it finds no GPU, in its own words."""
    devices: tuple[TorchDevice, ...] = ()
    arches: tuple[str, ...] = ()
    records_kernels: bool = False
    """Whether its profiler can see what runs on a GPU."""

    @property
    def usable(self) -> bool:
        return self.version is not None and not self.error

    @property
    def release(self) -> tuple[int, ...]:
        return numbers(self.version or "")


def numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13, 0)."""
    digits = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, digits.group().split("."))) if digits else ()


@cache
def torch_here() -> InstalledTorch:
    """Imports torch: a second or two."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return InstalledTorch(None)
    try:
        import torch
    except Exception as error:
        return InstalledTorch(version, error=_said(error))
    devices, reason = _torch_devices()
    return InstalledTorch(
        str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        cuda_error=reason,
        devices=devices,
        arches=tuple(torch.cuda.get_arch_list()) if devices else (),
        records_kernels=torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities(),
    )


def _torch_devices() -> tuple[tuple[TorchDevice, ...], str]:
    """The GPUs it can use, or why there are none: torch says that in a warning or only when asked to start."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return (), ""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if not torch.cuda.is_available():
                if caught:
                    return (), _said(caught[-1].message)
                torch.cuda.init()
            properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    except Exception as error:
        return (), _said(error)
    return tuple(
        TorchDevice(gpu.name, (gpu.major, gpu.minor), gpu.total_memory, uuid_of(gpu), pci_bus_id_of(gpu))
        for gpu in properties
    ), ""


@cache
def driver_cuda_here() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver serves; `None`: its library cannot be loaded."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def nvml_here() -> tuple[Nvml | None, str | None]:
    return management.connect(), management.absence()


def cupti_here() -> Path | None:
    paths = find_library()
    return None if paths is None else paths.cupti


def probe_counters_here() -> str:
    """The chip whose counters were opened and closed again; raises `CannotMeasure` where that fails.

    In a process of its own: libraries that do not fit together can crash or hang, and the doctor must not.
    """
    package = str(Path(rooflight.__file__).resolve().parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_LIMIT_S,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure("counters-unavailable", f"the counters did not answer within {_PROBE_LIMIT_S} s") from None
    verdict, _, rest = (done.stdout.strip().splitlines() or [""])[-1].partition(" ")
    if verdict == "ok":
        return rest
    if verdict == "no":
        raise CannotMeasure("counters-unavailable", rest)
    last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    raise CannotMeasure("counters-unavailable", f"the probe of the counters crashed: {last}")


def free_bytes_here() -> int:
    return shutil.disk_usage(tempfile.gettempdir()).free


@dataclass(frozen=True)
class Subject:
    machine: Machine = field(default_factory=Machine)
    python: tuple[int, ...] = tuple(sys.version_info[:3])
    torch: Callable[[], InstalledTorch] = torch_here
    driver_cuda: Callable[[], tuple[int, int] | None] = driver_cuda_here
    nvml: Callable[[], tuple[Nvml | None, str | None]] = nvml_here
    cupti: Callable[[], Path | None] = cupti_here
    probe_counters: Callable[[], str] = probe_counters_here
    free_bytes: Callable[[], int] = free_bytes_here

    def has_gpu(self) -> bool:
        """Whether a GPU and its driver are there, usable or not."""
        machine = self.machine
        return bool(machine.matches("/dev/nvidia[0-9]*")) or (machine.wsl() and self.driver_cuda() is not None)

    def has_driver(self) -> bool:
        return self.has_gpu() or self.driver_cuda() is not None or self.machine.driver_version() is not None

    def gpus(self) -> tuple[Gpu, ...]:
        """NVML's view of the GPUs that torch would use, or of all where torch cannot say."""
        library, _ = self.nvml()
        if library is None:
            return ()
        devices = self.torch().devices
        gpus = [library.find(uuid=device.uuid, pci_bus_id=device.pci_bus_id) for device in devices]
        return tuple(gpu for gpu in gpus if gpu is not None) or library.gpus()

    def gpu_uses(self) -> tuple[GpuUse, ...]:
        """Memory and utilisation of the GPUs that torch would use; by torch itself where NVML is not there."""
        gpus = self.gpus()
        if gpus:
            return tuple(GpuUse.of(gpu) for gpu in gpus)
        uses = (gpu_use_by_torch(place) for place in range(len(self.torch().devices)))
        return tuple(use for use in uses if use is not None)


def _said(error: object) -> str:
    """The first line of what it says; where it says nothing, what it is."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# --- what a check answers ---


@dataclass(frozen=True)
class CheckOutcome:
    status: Status
    detail: str
    remedy: str = ""
    """What would change it, in words."""
    command: str = ""
    """The line to type, where there is one."""


ok, limited, no = partial(CheckOutcome, "ok"), partial(CheckOutcome, "limited"), partial(CheckOutcome, "no")


def refused(message: str) -> CheckOutcome:
    """From the one line of an error, which says what is wrong and, after a colon, what to do about it."""
    depth = 0
    for place, letter in enumerate(message):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and message.startswith(": ", place):
            return no(message[:place], message[place + 2 :])
    return no(message)


@dataclass(frozen=True)
class DoctorCheck:
    id: str
    what: str
    look: Callable[[Subject], CheckOutcome | None]
    """`None`: does not apply to this machine, and is not shown."""
    needs_gpu: bool = False
