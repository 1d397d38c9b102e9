"""Checks of the GPU, its driver and torch on it."""

from __future__ import annotations

import re
from collections import Counter

from rooflight import formatting
from rooflight.machine import nvml
from rooflight.machine.conditions import other_processes
from rooflight.machine.installed_gpus import cuda_is_running
from rooflight.measurement.doctor.host_checks import cuda_torch
from rooflight.measurement.doctor.subject import CheckOutcome, DoctorCheck, Subject, limited, no, numbers, ok

_OLDEST_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""By the major version of CUDA; within one, any driver serves any minor version."""
_NVIDIA = "0x10de"
_CONTEXTS_BYTES = 600_000_000
"""More than this in use and nobody listed: somebody is there whom we cannot see."""


def _gpu(subject: Subject) -> CheckOutcome:
    machine = subject.machine
    if subject.has_gpu():
        hidden = machine.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1", "NoDevFiles"):
            return no(f"CUDA_VISIBLE_DEVICES={hidden!r} hides it", "show it", "unset CUDA_VISIBLE_DEVICES")
        if subject.driver_cuda() is None:
            return no(
                "/dev/nvidia* is there, but libcuda.so.1 cannot be loaded: the driver's libraries are missing",
                "install the driver's libraries, or the NVIDIA Container Toolkit on the host",
            )
        return ok(_names(subject))
    if _on_the_bus(subject):
        return no(
            "an NVIDIA GPU is on the bus, but its driver is not loaded",
            "install the driver or load it",
            "sudo modprobe nvidia",
        )
    if machine.container() in ("docker", "podman", "container"):
        given = "podman run --device nvidia.com/gpu=all" if machine.container() == "podman" else "docker run --gpus all"
        return no("none is given to this container", "start the container with one", f"{given} ...")
    if machine.container() == "kubernetes":
        return no("none is given to this pod", "ask for one in the pod's resources.limits: nvidia.com/gpu: 1")
    if machine.container() == "apptainer":
        return no("none is given to this container", "start the container with it", "apptainer exec --nv ...")
    return no("no /dev/nvidia*, no driver", "measure on a machine that has one; estimate needs none")


def _on_the_bus(subject: Subject) -> bool:
    """A display controller of NVIDIA's among the PCI devices."""
    machine = subject.machine
    return any(
        machine.text(f"{folder}/vendor") == _NVIDIA and (machine.text(f"{folder}/class") or "").startswith("0x03")
        for folder in machine.matches("/sys/bus/pci/devices/*")
    )


def _names(subject: Subject) -> str:
    devices = subject.torch().devices
    sizes = [(device.name, device.memory_bytes) for device in devices] or [
        (gpu.name() or "unknown", gpu.memory_total_bytes() or 0) for gpu in subject.gpus()
    ]
    if not sizes:
        return f"{len(subject.machine.matches('/dev/nvidia[0-9]*'))} in /dev"
    return ", ".join(
        f"{f'{count} × ' if count > 1 else ''}{name}" + (f", {formatting.bytes_(size)}" if size else "")
        for (name, size), count in Counter(sizes).items()
    )


def _driver(subject: Subject) -> CheckOutcome | None:
    library, _ = subject.nvml()
    version = (library.driver_version() if library else None) or subject.machine.driver_version()
    serves, built = subject.driver_cuda(), numbers(subject.torch().cuda or "")[:2]
    detail = version or "of unknown version"
    if serves is not None:
        detail += f", for CUDA up to {serves[0]}.{serves[1]}"
    if serves is not None and built and serves[0] < built[0]:
        least = _OLDEST_DRIVERS.get(built[0], "a newer one")
        return no(
            f"{detail}: too old for torch's CUDA {subject.torch().cuda}",
            f"update the driver to {least} or newer, or install a torch for CUDA {serves[0]}",
            cuda_torch(serves) if serves[0] >= 12 else "",
        )
    return ok(detail)


def _torch_cuda(subject: Subject) -> CheckOutcome | None:
    torch = subject.torch()
    if not torch.usable or torch.cuda is None:
        return None
    if not torch.devices:
        return no(torch.cuda_error or "torch finds no GPU", "see what the driver says", "nvidia-smi")
    strangers = [device for device in torch.devices if not _has_kernels(torch.arches, device.capability)]
    if strangers:
        name, (major, minor) = strangers[0].name, strangers[0].capability
        return no(
            f"this torch has no kernels for {name} (sm_{major}{minor}): it has {' '.join(torch.arches)}",
            "install a torch that has",
            cuda_torch(subject.driver_cuda()),
        )
    count = len(torch.devices)
    return ok("works" if count == 1 else f"works, {count} devices")


def _has_kernels(arches: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Machine code serves its own generation from its number upwards; `compute_` code is compiled when it is loaded."""
    if not arches:
        return True  # torch does not say
    for arch in arches:
        target = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch)
        if target:
            major, minor = int(target.group(2)), int(target.group(3))
            if (target.group(1) == "compute" and (major, minor) <= capability) or (
                major == capability[0] and minor <= capability[1]
            ):
                return True
    return False


def _profiler(subject: Subject) -> CheckOutcome | None:
    torch = subject.torch()
    if not torch.devices:
        return None
    if torch.records_kernels:
        return ok("records kernels")
    return no(
        "this torch cannot record what runs on the GPU (built without CUPTI)",
        "install a torch from PyPI",
        cuda_torch(subject.driver_cuda()),
    )


def _nvml(subject: Subject) -> CheckOutcome | None:
    library, why = subject.nvml()
    if library is not None:
        return ok("clocks, power, throttling, memory")
    lost = "clocks, power and memory outside torch are not seen"
    if why == nvml.NOT_INSTALLED:
        return limited(f"{why}: {lost}", "install it", "pip install 'rooflight[nvidia]'")
    return limited(f"{why}: {lost}", "see what the driver says", "nvidia-smi")


def _mig(subject: Subject) -> CheckOutcome | None:
    cut = [gpu for gpu in subject.gpus() if gpu.mig()]
    if not cut:
        return None
    undo = f"sudo nvidia-smi -i {_number(cut[0])} -mig 0"
    return limited(
        "the GPU is cut into slices: counters of what they share, such as DRAM, may be closed",
        "undo the slices while nobody uses them",
        undo,
    )


def _compute_mode(subject: Subject) -> CheckOutcome | None:
    for gpu in subject.gpus():
        mode = gpu.compute_mode()
        if mode not in (None, "default"):
            change = "allow every process on it again", f"sudo nvidia-smi -i {_number(gpu)} -c DEFAULT"
            if mode == "prohibited":
                return no("no process may compute on it", *change)
            return limited(f"{mode}: a second one is refused, ncu and child processes included", *change)
    return None


def _others(subject: Subject) -> CheckOutcome | None:
    """A container does not see the processes outside it, but it sees the memory they hold."""
    here = cuda_is_running()
    for gpu in subject.gpus():
        others, used = other_processes(gpu, machine=subject.machine, here=here), gpu.memory_used_bytes()
        which = f"GPU {_number(gpu)}" if len(subject.gpus()) > 1 else "it"
        remedy = "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES", "nvidia-smi"
        if others is not None and others.count:
            names = subject.machine.processes()
            programs = ", ".join(sorted({names[pid] for pid in others.pids if pid in names}))
            memory = "" if others.used_bytes is None else f", with {formatting.bytes_(others.used_bytes)}"
            more = "other processes are" if others.count > 1 else "other process is"
            return limited(
                f"{others.count} {more} on {which}{memory}" + (f" ({programs})" if programs else ""), *remedy
            )
        if others is not None and not here and used is not None and used > _CONTEXTS_BYTES:
            whose = "its memory" if which == "it" else f"the memory of {which}"
            return limited(f"{formatting.bytes_(used)} of {whose} are in use by somebody who is not listed", *remedy)
    return ok("none") if subject.gpus() else None


def _memory(subject: Subject) -> CheckOutcome | None:
    """Free, total and used memory of every GPU, and how busy it is."""
    uses = subject.gpu_uses()
    if not uses:
        return None
    if len(uses) == 1:
        return ok(str(uses[0]))
    return ok("; ".join(f"GPU {place}: {use}" for place, use in enumerate(uses)))


def _clocks(subject: Subject) -> CheckOutcome | None:
    gpus = subject.gpus()
    for gpu in gpus:
        reasons, clock, top = gpu.reasons(), gpu.clock_mhz("sm"), gpu.max_clock_mhz("sm")
        if reasons:
            speed = f" ({clock} of {top} MHz)" if clock and top else ""
            remedy = "see what the driver says", "nvidia-smi -q -d PERFORMANCE"
            if "clocks set by hand" in reasons:
                remedy = "give them back to the driver", f"sudo nvidia-smi -i {_number(gpu)} -rgc"
            return limited(f"held down: {', '.join(reasons)}{speed}", *remedy)
    if not gpus or gpus[0].reasons() is None:
        return None
    heat, top = gpus[0].temperature_c(), gpus[0].max_clock_mhz("sm")
    limits = [f"up to {top} MHz" if top else "", f"{heat} °C" if heat is not None else ""]
    return ok(", ".join(["free", *filter(None, limits)]))


def _number(gpu: nvml.Gpu) -> int:
    return gpu.index() or 0


GPU = (
    DoctorCheck("gpu", "NVIDIA GPU", _gpu),
    DoctorCheck("driver", "driver", _driver, needs_gpu=True),
    DoctorCheck("torch_cuda", "torch on the GPU", _torch_cuda, needs_gpu=True),
    DoctorCheck("profiler", "torch's profiler", _profiler, needs_gpu=True),
    DoctorCheck("nvml", "NVML", _nvml, needs_gpu=True),
    DoctorCheck("mig", "MIG", _mig),
    DoctorCheck("compute_mode", "compute mode", _compute_mode),
    DoctorCheck("other_processes", "other processes", _others),
    DoctorCheck("gpu_memory", "GPU memory", _memory, needs_gpu=True),
    DoctorCheck("clocks", "clocks", _clocks),
)
