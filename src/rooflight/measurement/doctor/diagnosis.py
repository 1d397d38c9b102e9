"""What can be measured on this machine, what cannot, why, and what would change it. Data only: `doctor` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata

from rooflight._version import __version__
from rooflight.machine.conditions import attempt
from rooflight.machine.memory_use import GpuUse, MemoryUse, ram
from rooflight.measurement.doctor.counter_checks import COUNTERS
from rooflight.measurement.doctor.gpu_checks import GPU
from rooflight.measurement.doctor.host_checks import PLACE, PROCESSOR, SOFTWARE
from rooflight.measurement.doctor.subject import DoctorCheck, Status, Subject, no

# Who else is on the GPU is looked at before we open it ourselves.
CHECKS: tuple[DoctorCheck, ...] = (*SOFTWARE, *GPU, *COUNTERS, *PROCESSOR, *PLACE)


@dataclass(frozen=True)
class DoctorVerdict:
    """One condition of this machine, or one thing rooflight can do and whether it can here.

    `remedy` says in words what would change it, `command` is the line to type for that.
    """

    id: str
    what: str
    status: Status
    detail: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class Diagnosis:
    capabilities: tuple[DoctorVerdict, ...]
    findings: tuple[DoctorVerdict, ...]
    versions: dict[str, str | None]
    ram: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()

    def capability(self, id: str) -> DoctorVerdict:
        return next(capability for capability in self.capabilities if capability.id == id)


def diagnose(subject: Subject | None = None) -> Diagnosis:
    """Look at everything. Takes as long as importing torch, and opening the GPU's counters where there is one."""
    subject = subject or Subject()
    findings = {check.id: finding for check in CHECKS if (finding := look(check, subject)) is not None}
    return Diagnosis(
        capabilities(findings),
        tuple(findings.values()),
        versions(subject, findings),
        attempt(lambda: ram(subject.machine)),
        attempt(subject.gpu_uses) or (),
    )


def look(check: DoctorCheck, subject: Subject) -> DoctorVerdict | None:
    """A check that fails is itself a finding: it must not take the others along."""
    try:
        outcome = check.look(subject) if not check.needs_gpu or subject.has_gpu() else None
    except Exception as error:
        line = " ".join(str(error).split())
        outcome = no(f"could not be looked at: {type(error).__name__}: {line}"[:300])
    return None if outcome is None else DoctorVerdict(check.id, check.what, **vars(outcome))


# --- what follows from the findings ---

_TITLES = {
    "estimate": "estimate",
    "gpu": "NVIDIA GPU",
    "time": "time",
    "memory": "memory",
    "kernels": "kernels",
    "counters_cupti": "CUPTI counters",
    "counters_ncu": "ncu counters",
}
FindingsById = Mapping[str, DoctorVerdict]
"""By id; those that do not apply here are not there."""


def capabilities(findings: FindingsById) -> tuple[DoctorVerdict, ...]:
    by_formula = "FLOPs, bytes and memory by formula"
    estimate = _judge(findings, "estimate", ("torch",), by_formula)
    if estimate.status == "limited":  # a torch without CUDA, or for AMD, estimates as well as any
        estimate = _able("estimate", by_formula)
    gpu = _gpu(findings)
    if gpu.status == "no":
        on_the_cpu = "on the CPU" if estimate.status == "ok" else estimate.detail
        rest = [
            *(_like(estimate, id, on_the_cpu) for id in ("time", "memory")),
            *(_like(gpu, id, "needs a GPU") for id in ("kernels", "counters_cupti", "counters_ncu")),
        ]
    else:
        closed = ("ncu", "permission", "virtual", "holders", "mig")
        rest = [
            _judge(findings, "time", ("compute_mode", "other_processes", "clocks"), "on the GPU and on the CPU"),
            _judge(findings, "memory", ("nvml",), "torch's allocator, and what lies outside it"),
            _judge(findings, "kernels", ("profiler",), "every kernel, under the op that launched it"),
            _by_cupti(findings),
            _judge(findings, "counters_ncu", closed, "kernel by kernel"),
        ]
    return (
        estimate,
        gpu,
        *rest,
    )


def _able(id: str, how: str) -> DoctorVerdict:
    return DoctorVerdict(id, _TITLES[id], "ok", how)


def _judge(findings: FindingsById, id: str, needs: Iterable[str], good: str) -> DoctorVerdict:
    """As the weakest of the findings it needs; those that do not apply here do not count."""
    present = [findings[name] for name in needs if name in findings]
    for status in ("no", "limited"):
        for finding in present:
            if finding.status == status:
                return _because(finding, id)
    return _able(id, good)


def _because(finding: DoctorVerdict, id: str) -> DoctorVerdict:
    return _like(finding, id, finding.detail if finding.what == _TITLES[id] else f"{finding.what}: {finding.detail}")


def _like(other: DoctorVerdict, id: str, detail: str) -> DoctorVerdict:
    return replace(other, id=id, what=_TITLES[id], detail=detail)


def _gpu(findings: FindingsById) -> DoctorVerdict:
    working = findings.get("torch_cuda")
    if working is not None and working.status == "ok":
        return _able("gpu", findings["gpu"].detail)
    for name in ("gpu", "torch", "driver", "torch_cuda"):
        if name in findings and findings[name].status != "ok":
            return replace(_because(findings[name], "gpu"), status="no")
    return DoctorVerdict("gpu", _TITLES["gpu"], "no", "torch was not tried on it")


def _by_cupti(findings: FindingsById) -> DoctorVerdict:
    """The probe decides; the other findings say why it failed, or what may still spoil the numbers."""
    id = "counters_cupti"
    probe = findings.get("counters")
    if probe is not None and probe.status == "ok":
        return _judge(findings, id, ("holders", "mig"), "every op of a whole step, inside the process")
    causes = [findings[name] for name in ("cupti", "permission", "virtual", "holders", "mig") if name in findings]
    cause = next((finding for finding in causes if finding.status == "no"), None)
    if cause is not None:
        return _because(cause, id)
    if probe is None:
        return DoctorVerdict(id, _TITLES[id], "no", "the counters were not tried")
    maybe = next((finding for finding in causes if finding.status == "limited"), None)
    # It may be the cause: what the probe said is surer.
    remedy, command = (maybe.remedy, maybe.command) if maybe and not probe.remedy else (probe.remedy, "")
    return DoctorVerdict(id, _TITLES[id], "no", probe.detail, remedy, command)


def versions(subject: Subject, findings: FindingsById) -> dict[str, str | None]:
    """Of all that matters to a measurement; `None`: not there, or it does not tell."""
    # Where a question fails, its own check has told already.
    answer, torch, serves = attempt(subject.nvml), attempt(subject.torch), attempt(subject.driver_cuda)
    library = answer[0] if answer else None
    return {
        "rooflight": __version__,
        "python": ".".join(map(str, subject.python)),
        "torch": torch.version if torch else None,
        "torch_cuda": torch.cuda if torch else None,
        "driver": (library.driver_version() if library else None) or subject.machine.driver_version(),
        "driver_cuda": f"{serves[0]}.{serves[1]}" if serves else None,
        "nvidia_ml_py": _installed("nvidia-ml-py"),
        "ncu": _first_word(findings.get("ncu")),
        "nsys": _first_word(findings.get("nsys")),
    }


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_word(finding: DoctorVerdict | None) -> str | None:
    """The version of a tool, with which its finding begins."""
    return finding.detail.split(",")[0] if finding is not None and finding.status == "ok" else None
