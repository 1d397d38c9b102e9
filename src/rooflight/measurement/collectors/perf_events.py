"""Floating-point operations of a CPU, counted by the hardware through Linux's perf_event_open.

Only vector and scalar units are counted. On Intel neither the matrix unit (AMX: hardware tells only how long it was
busy, EXE.AMX_BUSY) nor half-precision instructions (AVX512-FP16, AVX512-BF16) are in the counts; on AMD bf16 is
counted apart from Zen 4 on. Linux's `perf list` shows the same events.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from rooflight.errors import CannotMeasure
from rooflight.machine import Machine, cpu_list, entry_of


@dataclass(frozen=True)
class PerfEvent:
    """One hardware event; each count of it is worth `weight` of the quantity."""

    quantity: str
    name: str
    config: int
    weight: int = 1


@dataclass(frozen=True)
class PerfSample:
    """What a counter says: its count, and for how long (ns) it was asked for and really ran."""

    count: int = 0
    enabled_ns: int = 0
    running_ns: int = 0


@dataclass(frozen=True)
class CpuModel:
    """The first processor of /proc/cpuinfo."""

    vendor: str
    family: int
    model: int
    flags: frozenset[str]


# FP_ARITH_INST_RETIRED, event 0xC7: every umask bit is one width of one precision; a multiply-add counts twice by
# itself, so the weight is the number of lanes. Source: Linux, tools/perf/pmu-events/arch/x86/{broadwell,
# sapphirerapids,graniterapids,lunarlake}/floating-point.json (from Intel's perfmon tables).
_INTEL = (
    ("cpu_flops_fp32", "SCALAR_SINGLE", 0x02, 1),
    ("cpu_flops_fp32", "128B_PACKED_SINGLE", 0x08, 4),
    ("cpu_flops_fp32", "256B_PACKED_SINGLE", 0x20, 8),
    ("cpu_flops_fp32", "512B_PACKED_SINGLE", 0x80, 16),
    ("cpu_flops_fp64", "SCALAR_DOUBLE", 0x01, 1),
    ("cpu_flops_fp64", "128B_PACKED_DOUBLE", 0x04, 2),
    ("cpu_flops_fp64", "256B_PACKED_DOUBLE", 0x10, 4),
    ("cpu_flops_fp64", "512B_PACKED_DOUBLE", 0x40, 8),
)
# Models that have it: Linux, tools/perf/pmu-events/arch/x86/mapfile.csv. Older ones and all-Atom ones do not.
_INTEL_MODELS = {
    0x3D, 0x47, 0x4F, 0x56,  # Broadwell
    0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6, 0x55,  # Skylake, Cascade Lake, Cooper Lake
    0x7D, 0x7E, 0x6A, 0x6C, 0xA7, 0x8C, 0x8D,  # Ice Lake, Rocket Lake, Tiger Lake
    0x8F, 0xCF, 0xAD, 0xAE,  # Sapphire, Emerald and Granite Rapids
    0x97, 0x9A, 0xB7, 0xBA, 0xBF, 0xAA, 0xAC, 0xB5, 0xBD, 0xC5, 0xC6,  # two kinds of cores: Alder to Arrow Lake
}  # fmt: skip

# Retired SSE/AVX FLOPs, event 0x03: it counts FLOPs, a multiply-add as 2. Zen 1 has a nibble of kinds for each
# precision; Zen 2 to 4 have the kinds only; from Zen 5 on bits 5 to 7 select a type and the low nibble the kinds.
# Source: Linux, tools/perf/pmu-events/arch/x86/amdzen{1,2,3,4,5}/floating-point.json, and for the two parts of the
# umask of Zen 5 LIKWID's perfmon_zen5_events.txt (Linux's file gives the type without the kinds, 0x60 for 0x6F).
# The kernel pairs two counters for each (arch/x86/events/amd/core.c), so three fit at one time.
_AMD: dict[str, tuple[tuple[str, str, int], ...]] = {
    "zen1": (("cpu_flops_fp32", "SP", 0x0F), ("cpu_flops_fp64", "DP", 0xF0)),
    "zen2": (("cpu_flops_any", "ALL", 0x0F),),  # and Zen 3
    "zen4": (("cpu_flops_any", "ALL", 0x0F), ("cpu_flops_bf16", "BFLOAT_MAC", 0x10)),
    "zen5": (
        ("cpu_flops_fp32", "SCALAR_SINGLE", 0x4F),
        ("cpu_flops_fp32", "PACKED_SINGLE", 0x6F),
        ("cpu_flops_fp64", "SCALAR_DOUBLE", 0x8F),
        ("cpu_flops_fp64", "PACKED_DOUBLE", 0xAF),
        ("cpu_flops_bf16", "BFLOAT16", 0x2F),
    ),
}

_PERF_TYPE_RAW = 4
_SYSCALL_X86_64 = 298
_CLOEXEC = 8
_ENABLE, _WHOLE_GROUP = 0x2400, 1
_TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING
_DISABLED, _INHERIT, _USER_SPACE_ONLY = 1, 1 << 1, 1 << 5 | 1 << 6
_PMUS = "/sys/bus/event_source/devices"
_PROBE_FLOPS = 1000
_TURNS_S = 0.1
"""Counters take turns every 4 ms (perf_event_mux_interval_ms), so this is some 25 of them."""


def parse_cpuinfo(text: str) -> CpuModel:
    """The CPU that /proc/cpuinfo tells of; what it does not say is empty or 0."""
    first = text.split("\n\n", 1)[0]
    vendor, family, model, flags = (entry_of(first, key) or "" for key in ("vendor_id", "cpu family", "model", "flags"))
    numbers = [int(number) if number.isdecimal() else 0 for number in (family, model)]
    return CpuModel(vendor, numbers[0], numbers[1], frozenset(flags.split()))


def events_of(cpu: CpuModel) -> tuple[PerfEvent, ...]:
    """The events that count FLOPs on this CPU; none when it is not known to have them."""
    if cpu.vendor == "GenuineIntel" and cpu.family == 6 and cpu.model in _INTEL_MODELS:
        wide = "avx512f" in cpu.flags
        return tuple(
            PerfEvent(quantity, f"FP_ARITH_INST_RETIRED.{name}", 0xC7 | umask << 8, lanes)
            for quantity, name, umask, lanes in _INTEL
            if wide or not name.startswith("512B")
        )
    zen = _zen(cpu)
    return tuple(
        PerfEvent(q, f"RETIRED_SSE_AVX_FLOPS.{name}", 0x03 | umask << 8) for q, name, umask in _AMD.get(zen, ())
    )


def _zen(cpu: CpuModel) -> str:
    """Which row of the table. Models: Linux's mapfile.csv and, to tell Zen 5 from Zen 6, arch/x86/kernel/cpu/amd.c."""
    sixteen = cpu.model >> 4
    if cpu.vendor != "AuthenticAMD":
        return ""
    if cpu.family == 0x17:
        return "zen1" if sixteen < 3 else "zen2"
    if cpu.family == 0x19:
        return "zen2" if sixteen in (0, 2, 4, 5) else "zen4"
    # Linux's file for Zen 6 gives three events the same umask, so Zen 6 has to wait.
    return "zen5" if cpu.family == 0x1A and sixteen in (0, 1, 2, 4, 6, 7) else ""


def growth(before: PerfSample, now: PerfSample) -> int | None:
    """Counts between two samples, scaled up for the time in which others had the counter; `None`: it never ran."""
    enabled, running = now.enabled_ns - before.enabled_ns, now.running_ns - before.running_ns
    if running <= 0:
        return None if enabled > 0 else 0
    count = now.count - before.count
    return count if running >= enabled else (count * enabled + running // 2) // running


def decode(raw: bytes) -> PerfSample:
    """The three 64-bit words that the kernel gives for one counter."""
    return PerfSample(*struct.unpack("=3Q", raw))


class _PerfEventAttributes(ctypes.Structure):
    """struct perf_event_attr, first published version (64 bytes), which every kernel takes."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
    )


class PerfCounters:
    """Counts events in all threads of this process, those started later included, while it is entered.

    The events of one quantity form a group: they always run together. When the CPU has too few counters for all
    groups the kernel lets them take turns; counts are then scaled and `multiplexed` is True. A thread that is born
    while the counters are being opened may be missed: run the step once before.
    """

    def __init__(self, kind: int, events: Sequence[PerfEvent]) -> None:
        self.multiplexed = False
        self.origins = {q: "perf " + " + ".join(e.name for e in events if e.quantity == q) for q in _quantities(events)}
        self._kind = kind
        self._events = tuple(events)
        self._open: list[tuple[int, PerfEvent]] = []
        self._last: dict[int, PerfSample] = {}
        self._totals: dict[str, int] = {}

    def __enter__(self) -> PerfCounters:
        import fcntl  # Linux only, as all of this; the module is imported everywhere

        self.multiplexed = False
        self._last, self._totals = {}, dict.fromkeys(_quantities(self._events), 0)
        try:
            leaders = [fd for thread in _threads() for fd in self._open_for(thread)]
            for fd in leaders:
                fcntl.ioctl(fd, _ENABLE, _WHOLE_GROUP)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _open_for(self, thread: int) -> list[int]:
        """Open every event for a thread; gives the leaders of the groups."""
        leaders: dict[str, int] = {}
        extra: list[int] = []
        for event in self._events:
            leader = leaders.get(event.quantity, -1)
            try:
                try:
                    fd = _perf_event_open(self._kind, event.config, thread, leader)
                except OSError as error:
                    # A group larger than the counters of the machine: let its events take turns.
                    if error.errno != errno.EINVAL or leader < 0:
                        raise
                    fd = _perf_event_open(self._kind, event.config, thread, -1)
                    extra.append(fd)
            except ProcessLookupError:
                break  # the thread has ended
            self._open.append((fd, event))
            leaders.setdefault(event.quantity, fd)
        return [*leaders.values(), *extra]

    def read(self) -> dict[str, int]:
        """Totals since it was entered. A quantity of which a counter never ran is not there."""
        unknown: set[str] = set()
        for fd, event in self._open:
            before, now = self._last.get(fd, PerfSample()), decode(os.read(fd, 24))
            self.multiplexed |= now.running_ns < now.enabled_ns
            counted = growth(before, now)
            if counted is None:
                # Wait for a turn, and scale it then; if it never had one, nothing is known.
                if not now.running_ns:
                    unknown.add(event.quantity)
                continue
            self._last[fd] = now
            self._totals[event.quantity] += counted * event.weight
        return {quantity: total for quantity, total in self._totals.items() if quantity not in unknown}

    def _close(self) -> None:
        while self._open:
            os.close(self._open.pop()[0])


class FlopCounters(PerfCounters):
    """FLOPs of this process by precision; raises `CannotMeasure` with the reason where they cannot be counted.

    Name a single quantity to keep its counters from taking turns with others: four events fit on every CPU.
    """

    def __init__(self, quantities: Iterable[str] | None = None) -> None:
        events = events_of(_this_cpu())
        wanted = _quantities(events) if quantities is None else tuple(quantities)
        super().__init__(_raw_type(), [event for event in events if event.quantity in wanted])

    def __enter__(self) -> FlopCounters:
        reason = _unsupported(_this_cpu())
        if reason is not None:
            raise CannotMeasure("no-cpu-counters", reason)
        try:
            super().__enter__()
        except OSError as error:
            raise CannotMeasure("no-cpu-counters", _explain_here(error.errno or 0)) from error
        return self


def available() -> str | None:
    """Why FLOPs cannot be counted here, with the setting that changes it; `None` when they can."""
    # Python's floats are doubles, and only their counters are opened: where there are four a thread (Intel with
    # hyper-threading, up to Cascade Lake) or six that go in pairs (Zen 5), they would wait for those of fp32.
    wanted = [quantity for quantity in quantities() if quantity in ("cpu_flops_fp64", "cpu_flops_any")]
    try:
        with FlopCounters(wanted) as counters:
            counted = _probed(counters)
    except CannotMeasure as error:
        return str(error)
    if counted is None:
        return (
            "the CPU's FLOP counters open but never get a turn: stop what else holds them (another profiler; the"
            " watchdog: `sudo sysctl kernel.nmi_watchdog=0`)"
        )
    if counted < _PROBE_FLOPS:
        return "the CPU's FLOP counters open but stay at 0: the virtual machine does not pass them on, run on its host"
    return None


def _probed(counters: PerfCounters) -> int | None:
    """FLOPs of multiplications that must show wherever counters count; `None`: the counters never ran.

    As many as it takes: a counter that somebody else has comes only with the kernel's next turn.
    """
    end = monotonic() + _TURNS_S
    while True:
        value = 1.0
        for _ in range(_PROBE_FLOPS):
            value *= 0.999
        counted = next(iter(counters.read().values()), None)
        if (counted is not None and counted >= _PROBE_FLOPS) or monotonic() >= end:
            return counted


def quantities() -> tuple[str, ...]:
    """The quantities that this CPU's events can give, counted or not."""
    return _quantities(events_of(_this_cpu()))


def _quantities(events: Iterable[PerfEvent]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(event.quantity for event in events))


def _unsupported(cpu: CpuModel) -> str | None:
    if sys.platform != "linux":
        return "a CPU's FLOPs are counted through Linux's perf events only: run on Linux"
    machine = platform.machine()
    if machine != "x86_64":
        return f"a CPU's FLOPs are counted on Intel and AMD only, this one is {machine}: no event of it counts them"
    if not events_of(cpu):
        return (
            f"{cpu.vendor or 'this CPU'} family {cpu.family} model {cpu.model} has no FLOP events that rooflight knows:"
            " they exist on Intel since Broadwell (not Atom) and on AMD Zen 1 to 5"
        )
    fast = Machine().text("/sys/devices/cpu_core/cpus")
    if fast and not os.sched_getaffinity(0) <= cpu_list(fast):
        return f"this CPU has two kinds of cores and only the fast ones count FLOPs: run under `taskset -c {fast}`"
    return None


def explain(number: int, *, paranoid: int | None, filtered: bool, virtual: bool, pmu: bool) -> str:
    """One line on why perf_event_open failed, from its error number and what the machine says of itself."""
    if number in (errno.EACCES, errno.EPERM):
        if paranoid is not None and paranoid > 2:
            return (
                f"kernel.perf_event_paranoid is {paranoid}, which keeps the CPU's counters to root:"
                " `sudo sysctl kernel.perf_event_paranoid=2`"
            )
        if filtered:
            return (
                "the container's seccomp filter forbids perf_event_open: start it with `--cap-add PERFMON`,"
                " or with a profile that allows it (`--security-opt seccomp=...`)"
            )
        return "the system forbids perf_event_open (a security module?): run with CAP_PERFMON, or ask its admin"
    if number == errno.ENOSYS:
        return "this kernel or sandbox has no perf_event_open: run on a Linux kernel with CONFIG_PERF_EVENTS"
    if number == errno.EMFILE:
        return "too few open files allowed for a counter in every thread: raise it with `ulimit -n 65536`"
    if number == errno.EBUSY:
        return "another profiler holds the CPU's counters: stop it and try again"
    if not pmu and virtual:
        return (
            "this virtual machine has no CPU counters: turn its virtual PMU on (QEMU: `-cpu host,pmu=on`)"
            " or run on the host"
        )
    return f"the kernel knows no FLOP counters of this CPU ({errno.errorcode.get(number, number)}): use a newer kernel"


def _explain_here(number: int) -> str:
    machine = Machine()
    return explain(
        number,
        paranoid=machine.number("/proc/sys/kernel/perf_event_paranoid"),
        filtered=machine.entry("/proc/self/status", "Seccomp") == "2",
        virtual=machine.virtual(),
        pmu=any(machine.exists(f"{_PMUS}/{name}") for name in ("cpu", "cpu_core")),
    )


def _this_cpu() -> CpuModel:
    return parse_cpuinfo(Machine().text("/proc/cpuinfo") or "")


def _raw_type() -> int:
    """The kind of the events: that of the fast cores where there are two kinds."""
    kind = Machine().number(f"{_PMUS}/cpu_core/type")
    return _PERF_TYPE_RAW if kind is None else kind


def _threads() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc/self/task"))


def _perf_event_open(kind: int, config: int, thread: int, group: int) -> int:
    """A counter of one thread and the threads it will start. A leader waits to be enabled, its group with it."""
    flags = _INHERIT | _USER_SPACE_ONLY | (_DISABLED if group < 0 else 0)
    size = ctypes.sizeof(_PerfEventAttributes)
    attributes = _PerfEventAttributes(type=kind, size=size, config=config, read_format=_TIMES, flags=flags)
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(_SYSCALL_X86_64, ctypes.byref(attributes), thread, -1, group, ctypes.c_ulong(_CLOEXEC))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd
