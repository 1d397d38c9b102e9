"""What can be measured on this machine, what cannot, why, and what would change it. Data only: `doctor` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import TypeVar

from rooflight._version import __version__
from rooflight.measurement.machine.checks.counters import COUNTERS
from rooflight.measurement.machine.checks.gpu import GPU
from rooflight.measurement.machine.checks.host import PLACE, PROCESSOR, SOFTWARE
from rooflight.measurement.machine.checks.outcome import Check, Status
from rooflight.measurement.machine.checks.subject import Subject

_Answer = TypeVar("_Answer")

# Who else is on the GPU is looked at before we open it ourselves.
CHECKS: tuple[Check, ...] = (*SOFTWARE, *GPU, *COUNTERS, *PROCESSOR, *PLACE)


@dataclass(frozen=True)
class Finding:
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
    findings: tuple[Finding, ...]
    versions: dict[str, str | None]

    def capability(self, id: str) -> Capability:
        return next(found for found in self.capabilities if found.id == id)


def diagnose(subject: Subject | None = None) -> Diagnosis:
    """Look at everything. Takes as long as importing torch, and opening the GPU's counters where there is one."""
    subject = subject or Subject()
    findings = tuple(finding for check in CHECKS if (finding := look(check, subject)) is not None)
    return Diagnosis(capabilities(findings), findings, versions(subject, findings))


def look(check: Check, subject: Subject) -> Finding | None:
    """A check that fails is itself a finding: it must not take the others along."""
    try:
        outcome = check.look(subject)
    except Exception as error:
        line = " ".join(str(error).split())
        return Finding(check.id, check.what, "no", f"could not be looked at: {type(error).__name__}: {line}"[:300])
    if outcome is None:
        return None
    return Finding(check.id, check.what, outcome.status, outcome.detail, outcome.remedy, outcome.command)


# --- what follows from the findings ---


def capabilities(findings: Iterable[Finding]) -> tuple[Capability, ...]:
    found = {finding.id: finding for finding in findings}
    estimate = _judge(found, "estimate", "estimate", ("torch",), "FLOPs, bytes and memory by formula")
    if estimate.status == "limited":  # a torch without CUDA, or for AMD, estimates as well as any
        estimate = Capability("estimate", "estimate", "ok", "FLOPs, bytes and memory by formula")
    gpu = _gpu(found)
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
            _judge(found, "time", "time", ("compute_mode", "other_processes", "clocks"), "on the GPU and on the CPU"),
            _judge(found, "memory", "memory", ("nvml",), "torch's allocator, and what lies outside it"),
            _judge(found, "kernels", "kernels", ("profiler",), "every kernel, under the op that launched it"),
            _by_cupti(found),
            _judge(found, "counters_ncu", "ncu counters", ("ncu", *closed, "holders", "mig"), "kernel by kernel"),
        )
    return (
        estimate, gpu, *rest,
        _judge(found, "cpu_counters", "CPU counters", ("perf_events",), "FLOPs as the processor counts them"),
        _judge(found, "onednn", "CPU primitives", ("torch", "onednn"), "what oneDNN runs for each op"),
    )  # fmt: skip


def _judge(found: dict[str, Finding], id: str, what: str, needs: Iterable[str], good: str) -> Capability:
    """As the weakest of the findings it needs; those that do not apply here do not count."""
    present = [found[name] for name in needs if name in found]
    for status in ("no", "limited"):
        for finding in present:
            if finding.status == status:
                return _because(finding, id, what)
    return Capability(id, what, "ok", good)


def _because(finding: Finding, id: str, what: str) -> Capability:
    reason = finding.detail if finding.what == what else f"{finding.what}: {finding.detail}"
    return Capability(id, what, finding.status, reason, finding.remedy, finding.command)


def _like(other: Capability, id: str, what: str, reason: str) -> Capability:
    return Capability(id, what, other.status, reason or other.reason, other.remedy, other.command)


def _gpu(found: dict[str, Finding]) -> Capability:
    working = found.get("torch_cuda")
    if working is not None and working.status == "ok":
        return Capability("gpu", "NVIDIA GPU", "ok", found["gpu"].detail)
    for name in ("gpu", "torch", "driver", "torch_cuda"):
        if name in found and found[name].status != "ok":
            blamed = _because(found[name], "gpu", "NVIDIA GPU")
            return Capability("gpu", "NVIDIA GPU", "no", blamed.reason, blamed.remedy, blamed.command)
    return Capability("gpu", "NVIDIA GPU", "no", "torch was not tried on it")


def _by_cupti(found: dict[str, Finding]) -> Capability:
    """The probe decides; the other findings say why it failed, or what may still spoil the numbers."""
    id, what = "counters_cupti", "CUPTI counters"
    probe = found.get("counters")
    if probe is not None and probe.status == "ok":
        return _judge(found, id, what, ("holders", "mig"), "every op of a whole step, inside the process")
    causes = [found[name] for name in ("cupti", "permission", "virtual", "holders", "mig") if name in found]
    cause = next((finding for finding in causes if finding.status == "no"), None) or next(
        (finding for finding in causes if finding.status == "limited" and probe is not None), None
    )
    if probe is None:
        return _because(cause, id, what) if cause else Capability(id, what, "no", "the counters were not tried")
    if cause is None or cause.status == "limited":  # it may be the cause: what the probe said is surer
        remedy, command = (cause.remedy, cause.command) if cause and not probe.remedy else (probe.remedy, "")
        return Capability(id, what, "no", probe.detail, remedy, command)
    return _because(cause, id, what)


def versions(subject: Subject, findings: Iterable[Finding]) -> dict[str, str | None]:
    """Of all that matters to a measurement; `None`: not there, or it does not tell."""
    found = {finding.id: finding for finding in findings}
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
        "ncu": _first_word(found.get("ncu")),
        "nsys": _first_word(found.get("nsys")),
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


def _first_word(finding: Finding | None) -> str | None:
    """The version of a tool, with which its finding begins."""
    return finding.detail.split(",")[0] if finding is not None and finding.status == "ok" else None
