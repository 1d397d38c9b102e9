"""What the operating system tells about a machine, read from files: a folder can stand for any machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_CAPABILITY_BITS = {"SYS_ADMIN": 21, "PERFMON": 38}
_PERFMON_DRIVER = 565
"""From this driver on CAP_PERFMON opens the GPU's counters too, not only CAP_SYS_ADMIN."""
_READ_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class Machine:
    """A root folder with /proc, /sys and /dev in it, and an environment. Whatever cannot be read is absent."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    # --- files ---

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def text(self, name: str) -> str | None:
        try:
            with self.path(name).open("rb") as file:
                return file.read(_READ_LIMIT_BYTES).decode(errors="replace").strip("\n\0 ")
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        text = self.text(name)
        return int(text) if text and re.fullmatch(r"-?\d+", text) else None

    def entry(self, name: str, key: str) -> str | None:
        """The value of the first line `key: value` of a file."""
        return entry_of(self.text(name) or "", key)

    def matches(self, pattern: str) -> list[str]:
        """Names under the root, such as `/dev/nvidia0`, in order."""
        try:
            paths = sorted(self.root.glob(pattern.lstrip("/")))
        except OSError:
            return []
        return ["/" + str(path.relative_to(self.root)) for path in paths]

    # --- who we are ---

    def has_capability(self, name: str) -> bool:
        bits = self.entry("/proc/self/status", "CapEff") or ""
        return bool(re.fullmatch(r"[0-9a-f]+", bits) and int(bits, 16) >> _CAPABILITY_BITS[name] & 1)

    def own_pids(self) -> frozenset[int]:
        """The number of this process, in every namespace that can be seen from here."""
        inner = (self.entry("/proc/self/status", "NSpid") or "").split()
        return frozenset({os.getpid(), *(int(number) for number in inner if number.isdecimal())})

    # --- NVIDIA's driver ---

    def driver_version(self) -> str | None:
        """`580.95.05`, as the loaded kernel module says."""
        line = self.text("/proc/driver/nvidia/version") or ""
        version = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", line + " ")
        return version.group(1) if version else self.text("/sys/module/nvidia/version")

    def counters_for_admins_only(self) -> bool | None:
        value = self.entry("/proc/driver/nvidia/params", "RmProfilingAdminOnly")
        return None if value not in ("0", "1") else value == "1"

    def may_read_counters(self) -> bool | None:
        """Whether the driver lets this process count; `None`: it does not tell."""
        restricted = self.counters_for_admins_only()
        if restricted is None:
            return None
        return not restricted or self.counts_as_admin()

    def counts_as_admin(self) -> bool:
        """In the driver's eyes. Root of a container is no administrator unless it was given the capability."""
        if self.has_capability("SYS_ADMIN"):
            return True
        major = (self.driver_version() or "0").split(".")[0]
        return self.has_capability("PERFMON") and major.isdecimal() and int(major) >= _PERFMON_DRIVER

    # --- the processor ---

    def cpu_name(self) -> str | None:
        for key in ("model name", "Model", "cpu model"):
            if name := self.entry("/proc/cpuinfo", key):
                return " ".join(name.split())
        return self.text("/proc/device-tree/model")

    def core_clocks_mhz(self) -> list[float]:
        """At this moment; Arm tells none."""
        clocks = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", self.text("/proc/cpuinfo") or "", flags=re.MULTILINE)
        return [float(clock) for clock in clocks]

    def usable_cores(self) -> int | None:
        """Those this process may be scheduled on (taskset, cpusets)."""
        allowed = self.entry("/proc/self/status", "Cpus_allowed_list")
        return len(cpu_list(allowed)) or None if allowed else None

    def online_cores(self) -> int | None:
        online = self.text("/sys/devices/system/cpu/online")
        if online:
            return len(cpu_list(online)) or None
        return len(re.findall(r"^processor\s*:", self.text("/proc/cpuinfo") or "", flags=re.MULTILINE)) or None

    def core_quota(self) -> float | None:
        """Cores' worth of time that the control group allows; `None`: no limit."""
        quotas = []
        for folder in self._control_groups():
            quota, _, period = (self.text(f"{folder}/cpu.max") or "").partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period):
                quotas.append(int(quota) / int(period))
        for folder in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"):
            limit, span = self.number(f"{folder}/cpu.cfs_quota_us"), self.number(f"{folder}/cpu.cfs_period_us")
            if limit and span and limit > 0:
                quotas.append(limit / span)
        return min(quotas, default=None)

    def memory_bytes(self, which: Literal["MemTotal", "MemAvailable"] = "MemTotal") -> int | None:
        """Of the machine."""
        words = (self.entry("/proc/meminfo", which) or "").split()
        return int(words[0]) * 1024 if words and words[0].isdecimal() else None

    def memory_limit_bytes(self) -> int | None:
        """What the control group allows, where that is less than there is."""
        least, total = min(self._memory_limits().values(), default=None), self.memory_bytes()
        return least if least is not None and (total is None or least < total) else None

    def limiting_groups(self) -> list[str]:
        """The folders of control groups that limit memory, the tightest first."""
        limits = self._memory_limits()
        return sorted(limits, key=lambda folder: limits[folder])

    def _memory_limits(self) -> dict[str, int]:
        """By the folder of the control group."""
        files = {folder: f"{folder}/memory.max" for folder in self._control_groups()}
        files["/sys/fs/cgroup/memory"] = "/sys/fs/cgroup/memory/memory.limit_in_bytes"
        limits = {folder: self.number(name) for folder, name in files.items()}
        return {folder: limit for folder, limit in limits.items() if limit and limit > 0}

    def _control_groups(self) -> list[str]:
        """Folders of the process's own group and all those above it: the tightest limit counts."""
        group = re.search(r"^0::(/.*)$", self.text("/proc/self/cgroup") or "", flags=re.MULTILINE)
        parts = [part for part in group.group(1).split("/") if part and part != ".."] if group else []
        return ["/".join(["/sys/fs/cgroup", *parts[:depth]]) for depth in range(len(parts) + 1)]


def entry_of(text: str, key: str) -> str | None:
    """The value of the first line `key: value`."""
    line = re.search(rf"^{re.escape(key)}[ \t]*:[ \t]*(.*)$", text, flags=re.MULTILINE)
    return line.group(1).strip() if line else None


def cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it: `0-3,8`; none where it is something else."""
    cpus: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if not ends:
            return frozenset()
        cpus.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return frozenset(cpus)
