"""The device in this machine: a GPU by the name that torch or the driver gives it, a processor by what Linux tells.

A GPU that is not in the database has a name and nothing else. A processor that is not, or of which a virtual machine
has only a part, is made from /proc/cpuinfo: cores, clock and the width of its vector units give the peaks. How fast its
memory is, no file tells: that is measured, and only then there is a `Device`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date
from typing import Literal

from rooflight.hardware.described import EXAMPLE
from rooflight.hardware.device import Device, Figure
from rooflight.hardware.devices import recognise_name
from rooflight.machine import Machine, entry_of, nvml

UNKNOWN_BANDWIDTH = "no file tells how fast its memory is: rooflight calibrate measures it"

_CPUINFO = "/proc/cpuinfo"
_CPUFREQ = "/sys/devices/system/cpu/cpu0/cpufreq"
_NEOVERSE_BITS = {"0xd4f": 512, "0xd40": 512, "0xd49": 256}
"""Bits that Arm's Neoverse V2, V1 and N2 multiply and add at once; other cores with NEON: two units of 128."""


@dataclass(frozen=True)
class CpuOutline:
    """All that can be known of a processor without running anything on it."""

    name: str
    title: str
    vendor: str
    core_flops_per_s: dict[str, Figure]
    tensor_flops_per_s: dict[str, Figure]
    memory_bytes: Figure
    l2_bytes: Figure | None
    """The last level of its cache."""
    sms: Figure
    """Its cores."""
    clock_hz: Figure
    notes: tuple[str, ...] = ()

    def with_bandwidth(self, bandwidth_bytes_per_s: Figure) -> Device:
        """The device, once somebody has measured how fast its memory is."""
        return Device(kind="cpu", bandwidth_bytes_per_s=bandwidth_bytes_per_s, **vars(self))


@dataclass(frozen=True)
class Recognised:
    """The device of this machine: one of the database, or only what could be found out about it."""

    reported: str
    """The name it has for the driver or for Linux."""
    kind: Literal["gpu", "cpu"]
    origin: str
    """Who says so: torch, NVML, the driver's files, or /proc/cpuinfo."""
    device: Device | None = None
    outline: CpuOutline | None = None
    """Of a processor that is not in the database, or that is there in part."""

    @property
    def lacks(self) -> str | None:
        """What stands between this and a `Device`, in words; `None`: nothing does."""
        if self.device is not None:
            return None
        if self.outline is not None:
            return UNKNOWN_BANDWIDTH
        if self.kind == "cpu":
            return f"{_CPUINFO} tells too little of it: give a device of `rooflight list devices` or a .toml file"
        return (
            "it is not in the database: give a device of `rooflight list devices`, a .toml file, or a few numbers of "
            f"it: {EXAMPLE}"
        )


def this_device(
    reported: str | None = None, *, kind: Literal["gpu", "cpu"] | None = None, machine: Machine | None = None
) -> Recognised | None:
    """The GPU of this machine, or its processor where there is none; `kind` asks for one of them.

    `reported` is what `torch.cuda.get_device_name` says, where the caller has torch. `None`: there is no such device.
    """
    machine = machine or Machine()
    if kind != "cpu":
        gpu = _gpu(reported, machine)
        if gpu is not None or kind == "gpu":
            return gpu
    return _cpu(machine)


def _gpu(reported: str | None, machine: Machine) -> Recognised | None:
    if reported:
        return Recognised(reported, "gpu", "torch", recognise_name(reported))
    library = nvml.connect()
    for gpu in library.gpus() if library is not None else ():
        name = gpu.name()
        if name:
            # A slice is no whole board, and a board that is cut up is of no use as one.
            return Recognised(name, "gpu", "NVML", None if gpu.mig() else recognise_name(name))
    for folder in machine.matches("/proc/driver/nvidia/gpus/*"):
        name = machine.entry(f"{folder}/information", "Model")
        if name:
            return Recognised(name, "gpu", "the driver's files", recognise_name(name))
    return None


# --- the processor ---


def _cpu(machine: Machine) -> Recognised | None:
    name = machine.cpu_name()
    if name is None:
        return None
    processor = recognise_name(name)
    if processor is not None and processor.sms.value == _cores(machine):
        return Recognised(name, "cpu", _CPUINFO, processor)
    part_of = (f"runs on a part of an {processor.title}",) if processor is not None else ()
    return Recognised(name, "cpu", _CPUINFO, outline=_outline(name, machine, part_of))


def _outline(name: str, machine: Machine, notes: tuple[str, ...]) -> CpuOutline | None:
    cores, clock, memory = _cores(machine), _clock(name, machine), machine.memory_bytes()
    if not cores or clock is None or memory is None:
        return None
    words = _words(machine)
    bits, units = _vector_bits(machine, words)
    today = date.today().isoformat()

    def peak(flops_a_cycle: float, how: str) -> Figure:
        work = f"{cores:g} cores x {flops_a_cycle:g} FLOP a cycle ({how}) x {clock[0] / 1e6:g} MHz"
        return Figure(cores * flops_a_cycle * clock[0], f"computed from {_CPUINFO}: {work}", today)

    fp32 = bits / 32 * 2
    core = {"fp64": peak(fp32 / 2, units), "fp32": peak(fp32, units)}
    if words & {"avx512_fp16", "fphp", "asimdhp"}:
        core["fp16"] = peak(fp32 * 2, units)
    tensor = {}
    for flag, precision, flops in (("amx_bf16", "bf16", 1024), ("amx_fp16", "fp16", 1024), ("amx_int8", "int8", 2048)):
        if flag in words:
            tensor[precision] = peak(flops, "AMX")
    limit = machine.memory_limit_bytes()
    cache = _cache_bytes(machine)
    return CpuOutline(
        name="cpu-" + re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)|@.*", "", name.casefold())).strip("-"),
        title=f"{name}, {cores:g} cores",
        vendor=machine.entry(_CPUINFO, "vendor_id") or "unknown",
        core_flops_per_s=core,
        tensor_flops_per_s=tensor,
        memory_bytes=Figure(limit or memory, "the control group's limit" if limit else "/proc/meminfo", today),
        l2_bytes=None if cache is None else Figure(cache, "/sys/devices/system/cpu/cpu0/cache, last level", today),
        sms=Figure(cores, f"cores that this process may use: {_CPUINFO}, its affinity and its control group", today),
        clock_hz=Figure(clock[0], clock[1], today),
        notes=(*notes, "peaks at the clock that Linux names: with all cores at work it may be lower"),
    )


def _cores(machine: Machine) -> float:
    """Cores, not their threads, that this process may use; a control group may allow a fraction."""
    places: set[tuple[str | None, str | None] | int] = set()
    for number, block in enumerate(re.split(r"\n\s*\n", machine.text(_CPUINFO) or "")):
        if not re.search(r"^processor\s*:", block, flags=re.MULTILINE):
            continue
        package, core = (entry_of(block, key) for key in ("physical id", "core id"))
        places.add(number if core is None else (package, core))
    counts = [len(places), machine.usable_cores() or math.inf, machine.core_quota() or math.inf]
    return float(min(counts))


def _clock(name: str, machine: Machine) -> tuple[float, str] | None:
    highest = machine.number(f"{_CPUFREQ}/cpuinfo_max_freq")
    if highest:
        return highest * 1e3, f"{_CPUFREQ}/cpuinfo_max_freq"
    # Arm counts no MHz there; on other processors it is the clock of this moment, in a virtual machine the nominal one.
    written = re.search(r"@ ([\d.]+) ?GHz", name)
    speeds = [clock * 1e6 for clock in machine.core_clocks_mhz()] + ([float(written.group(1)) * 1e9] if written else [])
    return (max(speeds), f"{_CPUINFO}, the highest of its clocks") if speeds else None


def _words(machine: Machine) -> frozenset[str]:
    return frozenset((machine.entry(_CPUINFO, "flags") or machine.entry(_CPUINFO, "Features") or "").split())


def _vector_bits(machine: Machine, words: frozenset[str]) -> tuple[int, str]:
    """How many bits a core can multiply and add in one cycle, and by which units."""
    amd = machine.entry(_CPUINFO, "vendor_id") == "AuthenticAMD"
    family = machine.entry(_CPUINFO, "cpu family") or "0"
    if "avx512f" in words and amd:
        # Zen 4 (family 25) does AVX-512 on units of 256 bit, Zen 5 (26) on units of 512.
        wide = family.isdecimal() and int(family) >= 26
        return (1024, "two AVX-512 FMA units") if wide else (512, "AVX-512 on two 256-bit FMA units")
    if "avx512f" in words:
        xeon = "Xeon" in (machine.cpu_name() or "")
        return (1024, "two AVX-512 FMA units") if xeon else (512, "one AVX-512 FMA unit")
    if {"avx2", "fma"} <= words:
        return 512, "two AVX2 FMA units"
    if "avx" in words:
        return 256, "AVX, a multiplication and an addition"
    if "asimd" in words:
        part = (machine.entry(_CPUINFO, "CPU part") or "").lower()
        return _NEOVERSE_BITS.get(part, 256), "NEON or SVE FMA units"
    return 128, "SSE, a multiplication and an addition"


def _cache_bytes(machine: Machine) -> int | None:
    sizes = []
    for folder in machine.matches("/sys/devices/system/cpu/cpu0/cache/index[0-9]*"):
        size = re.fullmatch(r"(\d+)([KM])", machine.text(f"{folder}/size") or "")
        if size:
            sizes.append(int(size.group(1)) * (2**10 if size.group(2) == "K" else 2**20))
    return max(sizes, default=None)
