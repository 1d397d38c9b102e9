"""Checks of what every machine has: Python, torch, the processor, the container around it."""

from __future__ import annotations

from rooflight import formatting
from rooflight.machine import Machine
from rooflight.machine.memory_use import ram
from rooflight.measurement.doctor.subject import CheckOutcome, DoctorCheck, Subject, limited, no, ok

_OLDEST_PYTHON = (3, 11)
_OLDEST_TORCH = (2, 8)
_ENOUGH_DISK_BYTES = 2 * 10**9


def _python(subject: Subject) -> CheckOutcome:
    version = ".".join(map(str, subject.python))
    if subject.python < _OLDEST_PYTHON:
        return no(f"{version}: rooflight needs 3.11 or newer", "install rooflight into a newer Python")
    return ok(version)


def _torch(subject: Subject) -> CheckOutcome:
    torch = subject.torch()
    if torch.version is None:
        return no("not installed", "install it", "pip install 'torch>=2.8'")
    if torch.error:
        again = "pip install --force-reinstall torch"
        return no(f"{torch.version} cannot be imported: {torch.error}", "install it again", again)
    if torch.release < _OLDEST_TORCH:
        newer = "pip install --upgrade 'torch>=2.8'"
        return no(f"{torch.version}: rooflight needs 2.8 or newer", "install a newer one", newer)
    if torch.hip:
        return limited(
            f"{torch.version}, for AMD GPUs: time and memory, no counters",
            "counters need an NVIDIA GPU and a CUDA build of torch",
        )
    if torch.cuda:
        return ok(f"{torch.version}, for CUDA {torch.cuda}")
    if subject.has_driver():
        return limited(
            f"{torch.version}, for CPUs only, and this machine has an NVIDIA driver",
            "install a CUDA build",
            cuda_torch(subject.driver_cuda()),
        )
    return ok(f"{torch.version}, for CPUs")


def cuda_torch(driver_cuda: tuple[int, int] | None) -> str:
    """The line that installs a torch this driver can serve."""
    wheel = "cu126"  # any driver of CUDA 12 serves it
    for version, name in (((13, 0), "cu130"), ((12, 8), "cu128")):
        if driver_cuda is not None and driver_cuda >= version:
            wheel = name
            break
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}"


def _processor(subject: Subject) -> CheckOutcome:
    machine = subject.machine
    cores, quota = machine.usable_cores() or machine.online_cores(), machine.core_quota()
    parts = [machine.cpu_name() or "unknown"]
    if cores:
        parts.append(f"{cores} core{'s' if cores > 1 else ''}")
    if quota is not None and cores and quota < cores:
        return limited(
            f"{', '.join(parts)}, of which a quota allows {quota:g}: times on the CPU will jump",
            "start the job with whole cores in place of a quota",
            "docker run --cpuset-cpus=0-3 ..." if machine.container() in ("docker", "podman", "container") else "",
        )
    return ok(", ".join(parts))


def _ram(subject: Subject) -> CheckOutcome:
    memory = ram(subject.machine)
    if memory is None:
        return ok("unknown: this system does not tell")
    return ok(str(memory))


def grant(machine: Machine, capability: str) -> tuple[str, str]:
    """How the container we are in is given a capability: words, and the line to type."""
    kind = machine.container()
    if kind == "kubernetes":
        return f"add {capability} to the container's securityContext.capabilities.add in the pod's description", ""
    if kind == "apptainer":
        return "let root grant it, and start with it", f"apptainer exec --add-caps CAP_{capability} ..."
    tool = "podman" if kind == "podman" else "docker"
    return "start the container with that capability", f"{tool} run --cap-add={capability} ..."


def _container(subject: Subject) -> CheckOutcome | None:
    """Matters where something is closed that a capability would open."""
    machine = subject.machine
    kind = machine.container()
    if kind is None:
        return None
    has = [name for name in ("SYS_ADMIN", "PERFMON") if machine.has_capability(name)]
    if has:
        return ok(f"{kind}, with {' and '.join(f'CAP_{name}' for name in has)}")
    if machine.may_read_counters() is False:
        return limited(
            f"{kind}, without CAP_SYS_ADMIN: it cannot read the GPU's counters", *grant(machine, "SYS_ADMIN")
        )
    return ok(f"{kind}, without CAP_SYS_ADMIN and CAP_PERFMON")


def _disk(subject: Subject) -> CheckOutcome:
    free = subject.free_bytes()
    if free < _ENOUGH_DISK_BYTES:
        return limited(
            f"{formatting.bytes_(free)} free for temporary files: ncu's reports and traces may not fit",
            "free some, or choose another place",
            "export TMPDIR=/some/larger/folder",
        )
    return ok(f"{formatting.bytes_(free)} free for temporary files")


SOFTWARE = (DoctorCheck("python", "Python", _python), DoctorCheck("torch", "torch", _torch))
PROCESSOR = (
    DoctorCheck("cpu", "processor", _processor),
    DoctorCheck("ram", "memory (RAM)", _ram),
)
PLACE = (DoctorCheck("container", "container", _container), DoctorCheck("disk", "disk", _disk))
