"""What this process holds in RAM, as the operating system counts it: pages in use, libraries' own buffers included."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rooflight.machine import entry_of

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class ResidentMemory:
    """Memory of this process in RAM, now and at its highest; `None` where the system does not tell."""

    resident_bytes: int | None
    peak_resident_bytes: int | None


def resident() -> ResidentMemory:
    """On Linux the peak counts from the last `reset_peak`, elsewhere from the start of the process."""
    with suppress(OSError):
        return parse_status(_STATUS.read_text())
    with suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return ResidentMemory(None, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    return ResidentMemory(None, None)


def parse_status(text: str) -> ResidentMemory:
    """`VmRSS` and `VmHWM` of /proc/PID/status, which the kernel calls kB and counts in 1024 bytes."""
    sizes = [(entry_of(text, name) or "").removesuffix(" kB") for name in ("VmRSS", "VmHWM")]
    return ResidentMemory(*(int(size) * 1024 if size.isdecimal() else None for size in sizes))


def reset_peak() -> bool:
    """Let the peak count from now on; False where that is not possible, and it stays that of the whole process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
