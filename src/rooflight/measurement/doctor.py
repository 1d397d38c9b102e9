"""What can be measured on this machine: each check does the real thing once.

A row shows what its check found, or the line that `measure` shows where it fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rooflight
from rooflight import formatting
from rooflight._version import __version__
from rooflight.errors import CannotMeasure, RooflightError
from rooflight.machine import Machine, nvml
from rooflight.machine.conditions import attempt, conditions
from rooflight.machine.installed_gpus import cuda_is_running, driver_version, gpu_of
from rooflight.machine.memory_use import GpuUse, MemoryUse, gpu_use_by_torch, ram

if TYPE_CHECKING:
    from rooflight.ledger import Ledger

Status = Literal["ok", "limited", "no"]
_OLDEST_TORCH = (2, 8)
_MODEL = "mnist-cnn"
_PROBE_LIMIT_S = 30
_PROBE = """
from rooflight.errors import RooflightError
from rooflight.measurement.cupti.ranges import probe
try:
    print("ok", probe(deep=True))
except RooflightError as error:
    print("no", " ".join(error.text.split()))
"""


class Limited(RooflightError):
    """It works, but numbers will be worse than they could be."""


@dataclass(frozen=True)
class Check:
    """One thing to try. `probe` returns what it found, or raises the error that says why it does not work."""

    id: str
    title: str
    probe: Callable[[], str]
    remedy: str = ""
    """What may change it."""
    needs: str = ""
    """Another check: where that fails, this one is not tried."""


@dataclass(frozen=True)
class CheckResult:
    """What a check found, or why it failed. `remedy`: what may change that; empty if nothing has to change."""

    title: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was looked at."""

    checks: Mapping[str, CheckResult]
    """By id, in their order."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    ram: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()


def diagnose() -> Diagnosis:
    """Try everything on this machine."""
    results = try_all(CHECKS)
    return Diagnosis(results, _versions(), attempt(ram), attempt(_gpu_uses) or ())


def try_all(checks: Sequence[Check]) -> dict[str, CheckResult]:
    """Return the results by id. No error of a check stops the others."""
    results: dict[str, CheckResult] = {}
    for check in checks:
        needed = results.get(check.needs)
        if needed is not None and needed.status == "no":
            results[check.id] = CheckResult(check.title, "no", f"needs {needed.title}")
        else:
            results[check.id] = _result(check)
    return results


def _result(check: Check) -> CheckResult:
    try:
        return CheckResult(check.title, "ok", check.probe())
    except Limited as error:
        return CheckResult(check.title, "limited", error.on_command_line, check.remedy)
    except RooflightError as error:
        return CheckResult(check.title, "no", error.on_command_line, check.remedy)
    except Exception as error:
        return CheckResult(check.title, "no", _first_line(error), check.remedy)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# --- the probes ---


def _torch() -> str:
    import torch

    version = str(torch.__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST_TORCH:
        raise CannotMeasure("old-torch", f"{version}: rooflight needs 2.8 or newer")
    if torch.version.hip:
        raise Limited("amd-gpu", f"{version}, for AMD GPUs: time and memory, no counters")
    return f"{version}, for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs'}"


def _estimate() -> str:
    rooflight.estimate(_MODEL)
    return "FLOPs, bytes and memory by formula"


def _gpu() -> str:
    import torch

    from rooflight.measurement.cupti.cupti import NO_DRIVER
    from rooflight.measurement.cupti.library import has_driver

    if torch.version.cuda is None:
        cpu_only = f"torch {torch.__version__} is for CPUs only: install a CUDA build"
        raise CannotMeasure("no-gpu", cpu_only if has_driver() else NO_DRIVER)
    torch.ones(1, device="cuda").add(1).item()
    devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    names = Counter(f"{device.name}, {formatting.bytes_(device.total_memory)}" for device in devices)
    return "; ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())


def counters() -> str:
    """Open the GPU's counters and close them again.

    In a process of its own: libraries that do not fit together can crash or hang.
    """
    package = str(Path(rooflight.__file__).resolve().parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_LIMIT_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure("counters-unavailable", f"the counters did not answer within {_PROBE_LIMIT_S} s") from None
    verdict, _, rest = (done.stdout.strip().splitlines() or [""])[-1].partition(" ")
    if verdict == "ok":
        return f"every op of a whole step, inside the process ({rest})"
    if verdict == "no":
        raise CannotMeasure("counters-unavailable", rest)
    last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
    raise CannotMeasure("counters-unavailable", f"the probe of the counters crashed: {last}")


def by_ncu(machine: Machine | None = None) -> str:
    """Find ncu and ask the driver: a profile by ncu takes minutes."""
    from rooflight.measurement import ncu
    from rooflight.measurement.cupti.cupti import REMEDIES

    ncu.check_can_count("cuda")
    if (machine or Machine()).may_read_counters() is False:
        raise CannotMeasure("counters-unavailable", REMEDIES[35])  # not enough privileges
    return f"kernel by kernel, {ncu.find_ncu()}"


@cache
def _measured() -> Ledger:
    return rooflight.measure(_MODEL, counters="none", repeat=1)


def _of_step(name: str) -> Any:
    """Return a quantity of the measured step; if it lacks, raise the note that says why."""
    for row in _measured().measurements:
        if row.scope == "step" and name in row.quantities:
            return row.quantities[name].value
    raise _not_measured(name)


def _not_measured(what: str) -> CannotMeasure:
    notes = [note.text for note in _measured().header.notes if note.code == "not-measured"]
    return CannotMeasure("not-measured", "; ".join(notes) or f"{what} not measured")


def _time() -> str:
    return f"{formatting.seconds(_of_step('wall_time_s'))} a step of {_MODEL}, on {_measured().header.device}"


def _memory() -> str:
    return f"{formatting.bytes_(_of_step('peak_allocated_bytes'))} allocated at the peak of that step"


def _kernels() -> str:
    found = len(_measured().kernels)
    if not found:
        raise _not_measured("kernels")
    return f"{found} of that step, under their ops"


def _conditions() -> str:
    absent = nvml.absence()
    if absent is not None:
        raise Limited("no-nvml", f"{absent}: clocks, power and memory outside torch are not seen")
    return undisturbed(conditions("cuda"))


def undisturbed(found: Mapping[str, str]) -> str:
    """Return the conditions in words; raise `Limited` if clocks are held down or other programs run on the GPU."""
    names = ("sm_clock", "power", "temperature", "throttled", "other_processes", "mig", "compute_mode")
    text = ", ".join(f"{name.replace('_', ' ')} {found[name]}" for name in names if name in found)
    if found.get("throttled", "no") != "no" or found.get("other_processes", "none") != "none":
        raise Limited("disturbed", text)
    return text


def _gpu_uses() -> tuple[GpuUse, ...]:
    """Return memory and utilisation of every GPU: by NVML, or by torch if that is not there."""
    if not cuda_is_running():
        return ()
    import torch

    uses = []
    for number in range(torch.cuda.device_count()):
        gpu = gpu_of(f"cuda:{number}")
        uses.append(gpu_use_by_torch(number) if gpu is None else GpuUse.of(gpu))
    return tuple(use for use in uses if use is not None)


def _gpu_memory() -> str:
    return "; ".join(map(str, _gpu_uses()))


def processor(machine: Machine | None = None) -> str:
    """Name the processor and its usable cores; raise `Limited` if a quota takes turns with them."""
    machine = machine or Machine()
    found = conditions("cpu", machine=machine)
    text = ", cores ".join(found[name] for name in ("cpu", "cores") if name in found) or "unknown"
    quota, cores = machine.core_quota(), machine.usable_cores()
    if quota is not None and cores is not None and quota < cores:
        raise Limited("core-quota", f"{text}: times on the CPU will jump")
    return text


def _ram() -> str:
    return str(ram() or "unknown: this system does not tell")


_HOW_TO_COUNT = "docs/how-to/counters-in-containers.md; time, memory and kernels need no counters"
CHECKS = (
    Check("torch", "torch", _torch, "pip install --upgrade --force-reinstall 'torch>=2.8'"),
    Check("estimate", "estimate", _estimate, needs="torch"),
    # Before this process opens the GPU: one in an exclusive compute mode takes no second process.
    Check("counters_cupti", "CUPTI counters", counters, _HOW_TO_COUNT, needs="torch"),
    Check(
        "gpu",
        "NVIDIA GPU",
        _gpu,
        "docker run --gpus all, podman run --device nvidia.com/gpu=all, apptainer exec --nv, nvidia.com/gpu in "
        "Kubernetes; unset CUDA_VISIBLE_DEVICES; a driver and a torch that fit. estimate and predict need no GPU",
        needs="torch",
    ),
    Check("counters_ncu", "ncu counters", by_ncu, "only where CUPTI fails, or to compare with it", needs="gpu"),
    Check("time", "time", _time, needs="torch"),
    Check("memory", "memory", _memory, needs="torch"),
    Check("kernels", "kernels", _kernels, "install a torch from PyPI; stop other profilers", needs="gpu"),
    Check(
        "conditions",
        "conditions",
        _conditions,
        "pip install 'rooflight[nvidia]'; `nvidia-smi` shows clocks and other processes; CUDA_VISIBLE_DEVICES chooses",
        needs="gpu",
    ),
    Check("gpu_memory", "GPU memory", _gpu_memory, needs="gpu"),
    Check("cpu", "processor", processor, "whole cores in place of a quota (docker run --cpuset-cpus=0-3)"),
    Check("ram", "memory (RAM)", _ram),
)


def _versions() -> dict[str, str | None]:
    torch = sys.modules.get("torch")
    return {
        "rooflight": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": None if torch is None else str(torch.__version__),
        "torch_cuda": None if torch is None else torch.version.cuda,
        "driver": driver_version(),
    }
