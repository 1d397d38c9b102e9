"""The conditions of a run: clocks, power, throttling, who else was there. They go into the header of its ledger.

Nothing here raises: what cannot be read is absent. Values are texts with their unit, for people to read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rooflight import formatting
from rooflight.machine import Machine, memory_use, nvml
from rooflight.machine.installed_gpus import cuda_is_running, gpu_of

_Answer = TypeVar("_Answer")


def conditions(device: str, *, machine: Machine | None = None) -> dict[str, str]:
    """The conditions at this moment on `cpu`, `cuda` or `cuda:1`."""
    recorder = Conditions(device, machine=machine)
    recorder.sample()
    return recorder.summary()


class Conditions:
    """Conditions over a run: `before()` it, `after()` it and, if you like, `sample()` in between.

    Between two samples the driver's own counters and notes are used where it keeps them, so that a throttled moment
    is seen even when nobody looked.
    """

    def __init__(self, device: str, *, machine: Machine | None = None, gpu: nvml.Gpu | None = None) -> None:
        self._device = device
        self._machine = machine or Machine()
        self._gpu = gpu or gpu_of(device)
        self._readings: list[_ConditionSample] = []
        self._throttled_before: Mapping[str, int] = {}
        self._last_note_us: dict[str, int] = {}
        self._start_ns: int | None = None
        self._found = attempt(self._as_found) or {}
        self._schedule_before = _SchedulerTimes()

    def _as_found(self) -> dict[str, str | None]:
        """How full and how busy it was before anything of ours was there: make this before the model is placed."""
        free = attempt(lambda: memory_use.ram(self._machine))
        memory = None if free is None or free.free_bytes is None else str(free)
        if self._gpu is None and not self._device.startswith("cuda"):
            return {"memory_before": memory}
        gpu = self._gpu
        use = attempt(lambda: memory_use.GpuUse.of(gpu) if gpu is not None else memory_use.gpu_use_by_torch())
        busy = use.utilisation_percent if use is not None else None
        return {
            "device_memory_before": str(use.memory) if use is not None and use.memory is not None else None,
            "utilisation_before": None if busy is None else f"{busy}%",
            "host_memory_before": memory,
        }

    def before(self) -> None:
        self._readings.clear()
        self._schedule_before = _SchedulerTimes.of(self._machine)
        self._start_ns = time.monotonic_ns()
        self._throttled_before = self._throttled_now()
        notes = attempt(lambda: self._notes({})) or {}
        self._last_note_us = {name: max((when for when, _ in pairs), default=0) for name, pairs in notes.items()}
        self.sample()

    def sample(self) -> None:
        """A handful of questions to the driver: call it between steps, never inside one."""
        gpu, machine = self._gpu, self._machine
        reading = attempt(lambda: _ConditionSample.of(gpu) if gpu else _ConditionSample.of_cpu(machine))
        if reading is not None:
            self._readings.append(reading)

    def after(self) -> dict[str, str]:
        """The summary of all since `before()`."""
        self.sample()
        return self.summary()

    def summary(self) -> dict[str, str]:
        parts: dict[str, str | None] = {}
        gpu = self._gpu
        if gpu is not None:
            company = partial(_company, gpu, self._machine)
            for part in (self._clocks_and_power, self._throttling, partial(_settings, gpu), company):
                parts.update(attempt(part) or {})
        if gpu is not None or self._device.startswith("cuda"):
            parts["profiling_permission"] = attempt(lambda: profiling_permission(self._machine))
            parts.update(attempt(self._host) or {})
        else:
            parts.update(attempt(lambda: _cpu_facts(self._machine)) or {})
            parts["clock"] = _span((reading.clock_mhz for reading in self._readings), "MHz")
        parts.update(self._found)
        now = _SchedulerTimes.of(self._machine)
        parts["waited_for_a_core"] = now.waited_since(self._schedule_before)
        return {name: text for name, text in parts.items() if text is not None}

    # --- the parts of a GPU's summary ---

    def _clocks_and_power(self) -> dict[str, str | None]:
        # An idle GPU lowers its clocks: that says nothing about the run, unless nothing else was seen.
        busy = [reading for reading in self._readings if not reading.idle] or self._readings
        notes = self._notes(self._last_note_us) if self._start_ns is not None else {}
        noted = {name: [value for _, value in pairs] for name, pairs in notes.items()}
        limit = _span((reading.limit_w for reading in busy), "W")
        power = _span([*(reading.power_w for reading in busy), *noted.get("power", ())], "W")
        return {
            "sm_clock": _span([*(reading.clock_mhz for reading in busy), *noted.get("sm", ())], "MHz"),
            "memory_clock": _span([*(reading.memory_mhz for reading in busy), *noted.get("memory", ())], "MHz"),
            "power": f"{power} of {limit}" if power and limit else power,
            "temperature": _span([reading.temperature_c for reading in self._readings], "°C"),
            "utilisation": _span([reading.utilisation for reading in self._readings], "%"),
        }

    def _throttling(self) -> dict[str, str | None]:
        seen = dict.fromkeys(reason for reading in self._readings for reason in reading.reasons or ())
        times = self._throttled_times_ms()
        words = [f"{word} ({times[word]})" if word in times else word for word in {**seen, **dict.fromkeys(times)}]
        is_told = times or any(reading.reasons is not None for reading in self._readings) or self._throttled_before
        return {"throttled": ", ".join(words) or ("no" if is_told else None)}

    def _throttled_times_ms(self) -> dict[str, str]:
        """`12 ms of 340 ms`, for every reason whose counter has moved since `before()`."""
        if self._start_ns is None:
            return {}
        passed_ns = time.monotonic_ns() - self._start_ns
        times = {}
        for word, now_ns in self._throttled_now().items():
            spent_ns = now_ns - self._throttled_before.get(word, now_ns)
            # More than all the time there was: a counter in another unit or one that was reset. The reason stays out.
            if 0 < spent_ns <= 1.1 * passed_ns:
                times[word] = f"{max(spent_ns / 1e6, 0.1):.3g} ms of {passed_ns / 1e6:.4g} ms"
        return times

    def _host(self) -> dict[str, str | None]:
        """Small steps wait for the processor, so it belongs to the conditions of a GPU's run."""
        facts = _cpu_facts(self._machine)
        return {f"host_{name}": facts.get(name) for name in ("cpu", "cores", "governor", "load_average")}

    def _throttled_now(self) -> dict[str, int]:
        return (attempt(self._gpu.violations_ns) or {}) if self._gpu is not None else {}

    def _notes(self, since_us: Mapping[str, int]) -> dict[str, tuple[tuple[int, float], ...]]:
        """What the driver itself noted since then: (when, value) of both clocks and the power."""
        gpu = self._gpu
        if gpu is None:
            return {}
        return {
            "sm": gpu.clock_samples_mhz("sm", after_us=since_us.get("sm", 0)),
            "memory": gpu.clock_samples_mhz("memory", after_us=since_us.get("memory", 0)),
            "power": gpu.power_samples_w(after_us=since_us.get("power", 0)),
        }


def _settings(gpu: nvml.Gpu) -> dict[str, str | None]:
    return {
        "mig": _on_off(gpu.mig()),
        "ecc": _on_off(gpu.ecc()),
        "compute_mode": gpu.compute_mode(),
        "persistence": _on_off(gpu.persistence()),
    }


def _company(gpu: nvml.Gpu, machine: Machine) -> dict[str, str | None]:
    used, total = gpu.memory_used_bytes(), gpu.memory_total_bytes()
    in_use = None if used is None else f"{formatting.bytes_(used)} of {formatting.bytes_(total)} in use"
    others = other_processes(gpu, machine=machine, here=cuda_is_running())
    return {"other_processes": others, "device_memory": in_use}


@dataclass(frozen=True)
class _ConditionSample:
    clock_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    temperature_c: float | None = None
    idle: bool = False
    reasons: tuple[str, ...] | None = None
    utilisation: float | None = None

    @classmethod
    def of(cls, gpu: nvml.Gpu) -> _ConditionSample:
        return cls(
            gpu.clock_mhz("sm"),
            gpu.clock_mhz("memory"),
            gpu.power_w(),
            gpu.power_limit_w(),
            gpu.temperature_c(),
            bool(gpu.idle()),
            gpu.reasons(),
            gpu.utilisation_percent(),
        )

    @classmethod
    def of_cpu(cls, machine: Machine) -> _ConditionSample:
        """The fastest core: the others may sleep."""
        return cls(clock_mhz=max(machine.core_clocks_mhz(), default=None))


def other_processes(gpu: nvml.Gpu, *, machine: Machine, here: bool) -> str | None:
    """Return how many other processes are on the GPU, and their memory: `2, 3.00 GB`.

    `here`: this process runs CUDA. If the list has it under another number, as in a container, one is taken off.
    """
    listed = gpu.processes()
    if listed is None:
        return None
    own_pids = machine.own_pids()
    others = [process for process in listed if process.pid not in own_pids]
    is_hidden = here and len(others) == len(listed) > 0
    count = len(others) - is_hidden
    if not count:
        return "none"
    sizes = [process.used_bytes for process in others]
    used = None if is_hidden or None in sizes else sum(size for size in sizes if size is not None)
    return str(count) + ("" if used is None else f", {formatting.bytes_(used)}")


def profiling_permission(machine: Machine) -> str | None:
    """Who may read the GPU's counters, by the driver's setting."""
    restricted = machine.counters_for_admins_only()
    if restricted is None:
        return None
    if not restricted:
        return "all users"
    return "administrators, and this is one" if machine.counts_as_admin() else "administrators, and this is none"


# --- the processor ---


def _cpu_facts(machine: Machine) -> dict[str, str]:
    torch = sys.modules.get("torch")
    smt = machine.text("/sys/devices/system/cpu/smt/active")
    facts = {
        "cpu": machine.cpu_name(),
        "cores": _cores(machine),
        "smt": {"1": "on", "0": "off"}.get(smt or ""),
        "governor": _governor(machine),
        "load_average": _load(machine),
        "memory_total": _memory(machine),
        "threads": str(torch.get_num_threads()) if torch is not None else None,
    }
    return {name: text for name, text in facts.items() if text}


def _cores(machine: Machine) -> str | None:
    """`8 usable of 64, 1.5 by quota`."""
    usable, online, quota = machine.usable_cores(), machine.online_cores(), machine.core_quota()
    if usable is None and online is None:
        return None
    text = f"{usable if usable is not None else online} usable"
    text += f" of {online}" if online is not None and usable is not None and online != usable else ""
    return text + (f", {quota:g} by quota" if quota is not None else "")


def _governor(machine: Machine) -> str | None:
    names = machine.matches("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    return " and ".join(sorted({text for text in map(machine.text, names) if text})) or None


def _load(machine: Machine) -> str | None:
    parts = (machine.text("/proc/loadavg") or "").split()
    return f"{', '.join(parts[:3])} (1, 5, 15 minutes)" if len(parts) >= 3 else None


def _memory(machine: Machine) -> str | None:
    total, limit = machine.memory_bytes(), machine.memory_limit_bytes()
    if total is None:
        return None
    return formatting.bytes_(total) + (f", {formatting.bytes_(limit)} by limit" if limit is not None else "")


@dataclass(frozen=True)
class _SchedulerTimes:
    """What the kernel says of the threads of this process that are alive."""

    ran_ns: int = 0
    waited_ns: int = 0

    @classmethod
    def of(cls, machine: Machine) -> _SchedulerTimes:
        rows = [(machine.text(path) or "").split() for path in machine.matches("/proc/self/task/[0-9]*/schedstat")]
        readable = [parts for parts in rows if len(parts) == 3 and all(part.isdecimal() for part in parts)]
        return cls(sum(int(ran) for ran, _, _ in readable), sum(int(waited) for _, waited, _ in readable))

    def waited_since(self, before: _SchedulerTimes) -> str | None:
        """How much of the time in which they could have run: the only sure sign that others were in the way."""
        ran, waited = self.ran_ns - before.ran_ns, self.waited_ns - before.waited_ns
        return f"{waited / (ran + waited):.0%} of the time" if ran > 0 and waited >= 0 else None


# --- texts ---


def _span(values: Iterable[float | None], unit: str) -> str | None:
    """`1980 MHz`, or `1755 to 1980 MHz`."""
    rounded = sorted(round(value) for value in values if value is not None)
    if not rounded:
        return None
    unit = unit if unit == "%" else f" {unit}"
    return f"{rounded[0]}{unit}" if rounded[0] == rounded[-1] else f"{rounded[0]} to {rounded[-1]}{unit}"


def _on_off(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def attempt(question: Callable[[], _Answer]) -> _Answer | None:
    """Conditions are a bonus: they must never cost a measurement."""
    try:
        return question()
    except Exception:
        return None
