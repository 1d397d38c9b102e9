"""What can be measured on this machine, what cannot, why, and what would change it. Data only: `doctor` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import TypeVar

from rooflight._version import __version__
from rooflight.measurement.doctor.counter_checks import COUNTERS
from rooflight.measurement.doctor.gpu_checks import GPU
from rooflight.measurement.doctor.host_checks import PLACE, PROCESSOR, SOFTWARE
from rooflight.measurement.doctor.subject import DoctorCheck, Status, Subject

_Answer = TypeVar("_Answer")

# Who else is on the GPU is looked at before we open it ourselves.
CHECKS: tuple[DoctorCheck, ...] = (*SOFTWARE, *GPU, *COUNTERS, *PROCESSOR, *PLACE)


@dataclass(frozen=True)
class MachineFinding:
    """One condition. `remedy` says in words what would change it, `command` is the line to type for that."""

    id: str
    what: str
    status: Status
    detail: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class Capability:
    """One thing rooflight can do, and whether it can here."""

    id: str
    what: str
    status: Status
    reason: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class Diagnosis:
    capabilities: tuple[Capability, ...]
    findings: tuple[MachineFinding, ...]
    versions: dict[str, str | None]

    def capability(self, id: str) -> Capability:
        return next(capability for capability in self.capabilities if capability.id == id)


def diagnose(subject: Subject | None = None) -> Diagnosis:
    """Look at everything. Takes as long as importing torch, and opening the GPU's counters where there is one."""
    subject = subject or Subject()
    findings = tuple(finding for check in CHECKS if (finding := look(check, subject)) is not None)
    return Diagnosis(capabilities(findings), findings, versions(subject, findings))


def look(check: DoctorCheck, subject: Subject) -> MachineFinding | None:
    """A check that fails is itself a finding: it must not take the others along."""
    try:
        outcome = check.look(subject)
    except Exception as error:
        line = " ".join(str(error).split())
        return MachineFinding(
            check.id, check.what, "no", f"could not be looked at: {type(error).__name__}: {line}"[:300]
        )
    if outcome is None:
        return None
    return MachineFinding(check.id, check.what, outcome.status, outcome.detail, outcome.remedy, outcome.command)


# --- what follows from the findings ---


def capabilities(findings: Iterable[MachineFinding]) -> tuple[Capability, ...]:
    by_id = {finding.id: finding for finding in findings}
    estimate = _judge(by_id, "estimate", "estimate", ("torch",), "FLOPs, bytes and memory by formula")
    if estimate.status == "limited":  # a torch without CUDA, or for AMD, estimates as well as any
        estimate = Capability("estimate", "estimate", "ok", "FLOPs, bytes and memory by formula")
    gpu = _gpu(by_id)
    rest: tuple[Capability, ...]
    if gpu.status == "no":
        on_the_cpu = "on the CPU" if estimate.status == "ok" else ""
        rest = (
            _like(estimate, "time", "time", on_the_cpu),
            _like(estimate, "memory", "memory", on_the_cpu),
            _like(gpu, "kernels", "kernels", "needs a GPU"),
            _like(gpu, "counters_cupti", "CUPTI counters", "needs a GPU"),
            _like(gpu, "counters_ncu", "ncu counters", "needs a GPU"),
        )
    else:
        closed = ("permission", "virtual")
        rest = (
            _judge(by_id, "time", "time", ("compute_mode", "other_processes", "clocks"), "on the GPU and on the CPU"),
            _judge(by_id, "memory", "memory", ("nvml",), "torch's allocator, and what lies outside it"),
            _judge(by_id, "kernels", "kernels", ("profiler",), "every kernel, under the op that launched it"),
            _by_cupti(by_id),
            _judge(by_id, "counters_ncu", "ncu counters", ("ncu", *closed, "holders", "mig"), "kernel by kernel"),
        )
    return (
        estimate,
        gpu,
        *rest,
        _judge(by_id, "cpu_counters", "CPU counters", ("perf_events",), "FLOPs as the processor counts them"),
        _judge(by_id, "onednn", "CPU primitives", ("torch", "onednn"), "what oneDNN runs for each op"),
    )


def _judge(by_id: dict[str, MachineFinding], id: str, what: str, needs: Iterable[str], good: str) -> Capability:
    """As the weakest of the findings it needs; those that do not apply here do not count."""
    present = [by_id[name] for name in needs if name in by_id]
    for status in ("no", "limited"):
        for finding in present:
            if finding.status == status:
                return _because(finding, id, what)
    return Capability(id, what, "ok", good)


def _because(finding: MachineFinding, id: str, what: str) -> Capability:
    reason = finding.detail if finding.what == what else f"{finding.what}: {finding.detail}"
    return Capability(id, what, finding.status, reason, finding.remedy, finding.command)


def _like(other: Capability, id: str, what: str, reason: str) -> Capability:
    return Capability(id, what, other.status, reason or other.reason, other.remedy, other.command)


def _gpu(by_id: dict[str, MachineFinding]) -> Capability:
    working = by_id.get("torch_cuda")
    if working is not None and working.status == "ok":
        return Capability("gpu", "NVIDIA GPU", "ok", by_id["gpu"].detail)
    for name in ("gpu", "torch", "driver", "torch_cuda"):
        if name in by_id and by_id[name].status != "ok":
            blamed = _because(by_id[name], "gpu", "NVIDIA GPU")
            return Capability("gpu", "NVIDIA GPU", "no", blamed.reason, blamed.remedy, blamed.command)
    return Capability("gpu", "NVIDIA GPU", "no", "torch was not tried on it")


def _by_cupti(by_id: dict[str, MachineFinding]) -> Capability:
    """The probe decides; the other findings say why it failed, or what may still spoil the numbers."""
    id, what = "counters_cupti", "CUPTI counters"
    probe = by_id.get("counters")
    if probe is not None and probe.status == "ok":
        return _judge(by_id, id, what, ("holders", "mig"), "every op of a whole step, inside the process")
    causes = [by_id[name] for name in ("cupti", "permission", "virtual", "holders", "mig") if name in by_id]
    cause = next((finding for finding in causes if finding.status == "no"), None) or next(
        (finding for finding in causes if finding.status == "limited" and probe is not None), None
    )
    if probe is None:
        return _because(cause, id, what) if cause else Capability(id, what, "no", "the counters were not tried")
    if cause is None or cause.status == "limited":  # it may be the cause: what the probe said is surer
        remedy, command = (cause.remedy, cause.command) if cause and not probe.remedy else (probe.remedy, "")
        return Capability(id, what, "no", probe.detail, remedy, command)
    return _because(cause, id, what)


def versions(subject: Subject, findings: Iterable[MachineFinding]) -> dict[str, str | None]:
    """Of all that matters to a measurement; `None`: not there, or it does not tell."""
    by_id = {finding.id: finding for finding in findings}
    answer, torch, serves = _quietly(subject.nvml), _quietly(subject.torch), _quietly(subject.driver_cuda)
    library = answer[0] if answer else None
    return {
        "rooflight": __version__,
        "python": ".".join(map(str, subject.python)),
        "torch": torch.version if torch else None,
        "torch_cuda": torch.cuda if torch else None,
        "driver": (library.driver_version() if library else None) or subject.machine.driver_version(),
        "driver_cuda": f"{serves[0]}.{serves[1]}" if serves else None,
        "nvidia_ml_py": _installed("nvidia-ml-py"),
        "ncu": _first_word(by_id.get("ncu")),
        "nsys": _first_word(by_id.get("nsys")),
    }


def _quietly(question: Callable[[], _Answer]) -> _Answer | None:
    try:
        return question()
    except Exception:  # its own check has told already
        return None


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_word(finding: MachineFinding | None) -> str | None:
    """The version of a tool, with which its finding begins."""
    return finding.detail.split(",")[0] if finding is not None and finding.status == "ok" else None
