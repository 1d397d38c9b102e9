"""Checks of what stands between us and the GPU's counters, and of NVIDIA's own tools."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from rooflight.errors import CannotMeasure
from rooflight.measurement.doctor.host_checks import grant
from rooflight.measurement.doctor.subject import CheckOutcome, DoctorCheck, Subject, limited, no, numbers, ok, refused

_TOOL_LIMIT_S = 5
# Their names as the kernel cuts them, after 15 letters.
_DCGM = ("nv-hostengine", "dcgm-exporter", "dcgmproftester")
_PROFILERS = ("ncu", "nv-nsight-cu-cl", "nsys", "nsys-launcher", "nvprof", "ncu-ui", "nsys-ui")
_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_NOT_ON_PATH = {
    "ncu": ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"),
    "nsys": ("/usr/local/cuda*/bin/nsys", "/opt/nvidia/nsight-systems/*/bin/nsys"),
}


def _permission(subject: Subject) -> CheckOutcome | None:
    machine = subject.machine
    allowed = machine.may_read_counters()
    if allowed is None:
        return None  # the driver does not tell here: the probe will
    if allowed:
        return ok("for administrators, and this is one" if machine.counters_for_admins_only() else "for all users")
    if machine.container():
        remedy, command = grant(machine, "SYS_ADMIN")
        return no("for administrators only (RmProfilingAdminOnly: 1), and this container is none", remedy, command)
    setting = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    return no(
        "for administrators only (RmProfilingAdminOnly: 1)",
        "run as root, or open them to all users: type this, rebuild the initramfs if the driver is in it, and "
        "restart the machine",
        f"echo '{setting}' | sudo tee /etc/modprobe.d/nvidia-profiling.conf",
    )


def _library(subject: Subject) -> CheckOutcome | None:
    built = numbers(subject.torch().cuda or "")
    package = _cupti_package(built)
    path = subject.cupti()
    if path is None:
        return no("not found, neither with torch nor in a CUDA toolkit", "install it", f"pip install {package}")
    major = _major(path)
    if built and major is not None and major != built[0]:
        return no(
            f"{path.name} is for CUDA {major}, and torch for CUDA {built[0]}",
            "install the one that fits",
            f"pip install {package}",
        )
    return ok(f"{path.name} in {_short(path.parent)}")


def _cupti_package(cuda: tuple[int, ...]) -> str:
    name = "nvidia-cuda-cupti" if not cuda or cuda[0] >= 13 else f"nvidia-cuda-cupti-cu{cuda[0]}"
    return f"'{name}=={cuda[0]}.{cuda[1]}.*'" if len(cuda) >= 2 else name


def _major(path: Path) -> int | None:
    """13 of `libcupti.so.13`, or of the links beside it. `libcupti.so.2025.3.1` tells nothing."""
    for name in (path.name, *sorted(beside.name for beside in path.parent.glob("libcupti.so.*"))):
        version = re.match(r"libcupti\.so\.(\d{2})(?!\d)", name)
        if version:
            return int(version.group(1))
    return None


def _short(folder: Path) -> str:
    """A folder as people say it: from site-packages on, if it lies there."""
    parts = folder.parts
    return "/".join(parts[parts.index("site-packages") + 1 :]) if "site-packages" in parts else str(folder)


def _holders(subject: Subject) -> CheckOutcome | None:
    """Only one may program the counters at a time. From inside a container those outside are not seen."""
    machine = subject.machine
    running = {name: pid for pid, name in machine.processes().items()}
    for name, pid in running.items():
        if name.startswith(_DCGM):
            return limited(
                f"{name} (process {pid}) may hold the counters: DCGM's profiling fields use them",
                "pause it; afterwards --resume",
                "dcgmi profile --pause",
            )
    for name, pid in running.items():
        if name in _PROFILERS:
            return limited(
                f"{name} is running (process {pid}) and may hold the counters", "end it, or wait for it", f"kill {pid}"
            )
    around = [name for name in _INJECTED if machine.environ.get(name)]
    if around:
        return limited(
            f"a profiler is attached to this process ({around[0]} is set)", "measure without it", f"unset {around[0]}"
        )
    return ok("nobody seen" + (" in this container" if machine.container() else ""))


def _virtual(subject: Subject) -> CheckOutcome | None:
    machine = subject.machine
    if machine.wsl():
        return limited(
            "Windows (WSL): its driver decides who may read counters",
            "in Windows: NVIDIA Control Panel, Desktop, Enable Developer Settings; then Developer, Manage "
            "GPU Performance Counters, allow all users",
        )
    modes = {gpu.virtualization() for gpu in subject.gpus()}
    if "vGPU" in modes:
        return no(
            "a virtual GPU (vGPU): its counters are closed unless the hypervisor opens them",
            "ask the hypervisor's administrator to set enable_profiling=1 for it, or use a GPU that is passed "
            "through whole",
        )
    if machine.virtual():
        return ok("the GPU is passed through whole" if "passed through" in modes else "yes")
    return None


def _probe(subject: Subject) -> CheckOutcome | None:
    """The only sure answer: open the counters and close them again."""
    if not subject.torch().devices or subject.cupti() is None:
        return None
    try:
        return ok(f"opened and closed again ({subject.probe_counters()})")
    except CannotMeasure as error:
        outcome = refused(str(error))
    # The permission's own check has told what to do, and knows this machine better.
    return no(outcome.detail) if subject.machine.may_read_counters() is False else outcome


def _ncu(subject: Subject) -> CheckOutcome | None:
    outcome = _tool(subject, "ncu")
    if outcome is None and subject.has_gpu():
        return no(
            "not installed",
            "only to compare with, or where CUPTI fails: install Nsight Compute "
            "(developer.nvidia.com/nsight-compute) or the CUDA toolkit",
        )
    return outcome


def _nsys(subject: Subject) -> CheckOutcome | None:
    return _tool(subject, "nsys")  # we only read what it exports: nobody misses it


def _tool(subject: Subject, tool: str) -> CheckOutcome | None:
    path = subject.machine.which(tool)
    if path is not None:
        return ok(f"{_version(path) or 'unknown version'}, {path}")
    for pattern in _NOT_ON_PATH[tool]:
        for place in reversed(subject.machine.matches(pattern)):
            return limited(f"{place} is not on PATH", "put it there", f'export PATH="{Path(place).parent}:$PATH"')
    return None


def _version(path: Path) -> str | None:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"[Vv]ersion\s+(\d[\w.-]*)", done.stdout)
    return version.group(1) if version else None


COUNTERS = (
    DoctorCheck("permission", "counters' permission", _permission, needs_gpu=True),
    DoctorCheck("cupti", "CUPTI library", _library, needs_gpu=True),
    DoctorCheck("holders", "other profilers", _holders, needs_gpu=True),
    DoctorCheck("virtual", "virtual machine", _virtual, needs_gpu=True),
    DoctorCheck("counters", "counters", _probe, needs_gpu=True),
    DoctorCheck("ncu", "ncu", _ncu),
    DoctorCheck("nsys", "nsys", _nsys),
)
