"""NVIDIA's management library (NVML) through `nvidia-ml-py`, which is optional: what it cannot tell is `None`.

Every question goes through `ask`, so an old driver, a missing permission or a GPU without that sensor leaves a gap
and never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, Literal

ClockDomain = Literal["sm", "memory"]

NOT_INSTALLED = "the package nvidia-ml-py is not installed"
_CLOCKS: dict[ClockDomain, int] = {"sm": 1, "memory": 2}
_CLOCK_SAMPLES: dict[ClockDomain, int] = {"sm": 5, "memory": 6}
_POWER_SAMPLES = 0
_DOUBLE = 0
_IDLE = 0x1
# What holds the clocks down, by bit. Idle (0x1) is no reason to worry; the plain hardware slowdown (0x8) comes with
# the bit that says why.
_REASONS = (
    (0x2, "clocks set by hand"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "clocks tied to other GPUs"),
    (0x20, "heat"),
    (0x40, "heat"),
    (0x80, "power brake"),
    (0x100, "display"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
# Counters of the nanoseconds spent so: fields of NVML, and the policies that say the same on older drivers.
_VIOLATION_FIELDS = {
    74: "power cap",
    75: "heat",
    76: "clocks tied to other GPUs",
    77: "board limit",
    79: "reliability",
    269: "heat",
    270: "heat",
    271: "power brake",
}
_VIOLATION_POLICIES = {0: "power cap", 1: "heat", 2: "clocks tied to other GPUs", 3: "board limit", 5: "reliability"}
_COMPUTE_MODES = {0: "default", 1: "one thread only", 2: "prohibited", 3: "one process only"}


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    used_bytes: int | None


class Nvml:
    """A connection to the driver. `library` is the module `pynvml`, already initialised."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def ask(self, function: str, *arguments: Any) -> Any | None:
        """What the driver answers, or `None`."""
        try:
            return getattr(self._library, function)(*arguments)
        except Exception:  # NVMLError, or a function this version does not have
            return None

    def driver_version(self) -> str | None:
        version = self.ask("nvmlSystemGetDriverVersion")
        return None if version is None else str(version)

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU of the machine (or container), whatever CUDA_VISIBLE_DEVICES says."""
        count = self.ask("nvmlDeviceGetCount") or 0
        handles = (self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count))
        return tuple(Gpu(self, handle) for handle in handles if handle is not None)

    def find(self, *, uuid: str | None = None, pci_bus_id: str | None = None) -> Gpu | None:
        """One GPU, or one MIG slice, by what CUDA calls it. Its number would not do: CUDA counts in its own order."""
        bare = (uuid or "").removeprefix("GPU-").removeprefix("MIG-")
        names = [("UUID", f"GPU-{bare}"), ("UUID", f"MIG-{bare}")] if bare else []
        names += [("PciBusId", pci_bus_id)] if pci_bus_id else []
        handles = (self.ask(f"nvmlDeviceGetHandleBy{kind}", name) for kind, name in names)
        return next((Gpu(self, handle) for handle in handles if handle is not None), None)


class Gpu:
    """One GPU, or a MIG slice of it: then clocks, power and processes are those of the board it lies on."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.is_slice = bool(nvml.ask("nvmlDeviceIsMigDeviceHandle", handle))
        board = nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if self.is_slice else None
        self._board = handle if board is None else board

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        return self._nvml.ask(function, self._board, *arguments)

    def _number(self, function: str, *arguments: Any) -> int | None:
        value = self._ask(function, *arguments)
        return None if value is None else int(value)

    def _watts(self, function: str) -> float | None:
        value = self._ask(function)
        return None if value is None else float(value / 1000)

    def name(self) -> str | None:
        name = self._ask("nvmlDeviceGetName")
        return None if name is None else str(name)

    def index(self) -> int | None:
        return self._number("nvmlDeviceGetIndex")

    def clock_mhz(self, clock: ClockDomain) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", _CLOCKS[clock])

    def power_w(self) -> float | None:
        return self._watts("nvmlDeviceGetPowerUsage")

    def power_limit_w(self) -> float | None:
        return self._watts("nvmlDeviceGetEnforcedPowerLimit")

    def temperature_c(self) -> int | None:
        return self._number("nvmlDeviceGetTemperature", 0)

    def idle(self) -> bool | None:
        bits = self._reason_bits()
        return None if bits is None else bool(bits & _IDLE)

    def reasons(self) -> tuple[str, ...] | None:
        """What holds the clocks down at this moment, in words; empty: nothing does."""
        bits = self._reason_bits()
        if bits is None:
            return None
        return tuple(dict.fromkeys(word for bit, word in _REASONS if bits & bit))

    def _reason_bits(self) -> int | None:
        bits = self._number("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name before driver 535
            bits = self._number("nvmlDeviceGetCurrentClocksThrottleReasons")
        return bits

    def violations_ns(self) -> dict[str, int]:
        """Nanoseconds that the clocks were held down since the driver was loaded, by reason."""
        times: dict[str, int] = {}
        for value in self._ask("nvmlDeviceGetFieldValues", list(_VIOLATION_FIELDS)) or ():
            if value.nvmlReturn == 0:
                word = _VIOLATION_FIELDS[value.fieldId]
                times[word] = max(times.get(word, 0), int(value.value.ullVal))
        if times:
            return times
        for policy, word in _VIOLATION_POLICIES.items():
            status = self._ask("nvmlDeviceGetViolationStatus", policy)
            if status is not None:
                times[word] = int(status.violationTime)
        return times

    def clock_samples_mhz(self, clock: ClockDomain, *, after_us: int) -> tuple[tuple[int, int], ...]:
        """(when, MHz) that the driver noted by itself after that moment of its own clock; empty where it keeps none."""
        return self._samples(_CLOCK_SAMPLES[clock], after_us)

    def power_samples_w(self, *, after_us: int) -> tuple[tuple[int, float], ...]:
        return tuple((when, value / 1000) for when, value in self._samples(_POWER_SAMPLES, after_us))

    def _samples(self, kind: int, after_us: int) -> tuple[tuple[int, int], ...]:
        answer = self._ask("nvmlDeviceGetSamples", kind, after_us)
        if not answer:
            return ()
        kind, samples = answer
        value = "dVal" if kind == _DOUBLE else "uiVal"
        pairs = ((int(sample.timeStamp), round(getattr(sample.sampleValue, value))) for sample in samples)
        return tuple((when, number) for when, number in pairs if when > after_us and number > 0)

    def mig(self) -> bool | None:
        """Whether the board is cut into slices. GPUs that cannot be, say nothing."""
        return True if self.is_slice else _first_is_on(self._ask("nvmlDeviceGetMigMode"))

    def ecc(self) -> bool | None:
        return _first_is_on(self._ask("nvmlDeviceGetEccMode"))

    def persistence(self) -> bool | None:
        value = self._ask("nvmlDeviceGetPersistenceMode")
        return None if value is None else bool(value)

    def compute_mode(self) -> str | None:
        value = self._ask("nvmlDeviceGetComputeMode")
        return None if value is None else _COMPUTE_MODES.get(value, f"mode {value}")

    def memory_used_bytes(self) -> int | None:
        """What all processes hold; what the driver keeps for itself is not in it, where it can be told apart."""
        return self._memory("used")

    def memory_total_bytes(self) -> int | None:
        return self._memory("total")

    def memory_free_bytes(self) -> int | None:
        return self._memory("free")

    def utilisation_percent(self) -> int | None:
        """The share of the last moments (up to a second) in which a kernel ran; slices do not tell."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None or self.is_slice else int(rates.gpu)

    def _memory(self, field: str) -> int | None:
        version = getattr(self._nvml._library, "nvmlMemory_v2", None)
        info = None if version is None else self._nvml.ask("nvmlDeviceGetMemoryInfo", self._handle, version)
        if info is None:
            info = self._nvml.ask("nvmlDeviceGetMemoryInfo", self._handle)
        return None if info is None else int(getattr(info, field))

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Everything with a context on it, for computing or for drawing."""
        by_pid: dict[int, GpuProcess] = {}
        lists = [
            self._nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", self._handle) for kind in ("Compute", "Graphics")
        ]
        if lists == [None, None]:
            return None
        for process in chain.from_iterable(filter(None, lists)):
            used = process.usedGpuMemory
            by_pid.setdefault(int(process.pid), GpuProcess(int(process.pid), None if used is None else int(used)))
        return tuple(by_pid.values())


def connect() -> Nvml | None:
    """The connection, made once a process; `None` where there is none, and `absence()` says why."""
    return _here()[0]


def absence() -> str | None:
    """Why NVML cannot be asked, in a few words; `None`: it can."""
    return _here()[1]


def start(library: Any) -> tuple[Nvml | None, str | None]:
    """A connection through this `pynvml`, or why there is none."""
    try:
        library.nvmlInit()
    except Exception as error:
        return None, f"NVML does not start: {' '.join(str(error).split()) or type(error).__name__}"
    return Nvml(library), None


@cache
def _here() -> tuple[Nvml | None, str | None]:
    try:
        library = import_module("pynvml")
    except Exception:
        return None, NOT_INSTALLED
    return start(library)


def _first_is_on(pair: Any | None) -> bool | None:
    """NVML answers (now, after the next restart)."""
    return None if pair is None else bool(pair[0])
