"""A device from a few numbers, as a command line has them: `memory=12GB,bandwidth=504GB/s,sms=56,clock=2475MHz,...`.

What is given is taken as it is. What is not is computed or assumed, and says so in its source: `assumed: ...`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from rooflight.errors import BadInput
from rooflight.hardware.device import Device, Figure, checked
from rooflight.hardware.plausible import LANES, TENSOR_FLOPS_A_CYCLE
from rooflight.units import UnitError, parse_unit, printed_unit, table_unit

EXAMPLE = "memory=24GB,bandwidth=864GB/s,fp32=91.6T,fp16=183T,sms=142,clock=2.52GHz,cache=96MB,power=300W,capability=89"
"""All that describes a GPU well; the first three are needed."""
GIVEN, ASSUMED = "given: ", "assumed: "
"""How the source of a figure begins."""
_NAME = "described-gpu"
_PEAKS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
_ON_CORES = ("fp64", "fp32")
_HALVED = (75, 86, 89, 120)
"""Generations with boards for games, which do half of the fp16 peak when they add up in fp32."""
_USUAL_LANES, _USUAL_CLOCK_HZ = 128, 1.7e9
_MARK = re.compile(r"\s*[A-Za-z][A-Za-z0-9_ ]*=")
_NUMBER = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(.*)")


def is_description(text: str) -> bool:
    """Does a text (or a part of one) describe a device, rather than name one? A path may have a `=` too."""
    return _MARK.match(text) is not None and not text.strip().endswith(".toml")


def is_described(device: Device) -> bool:
    """Was it made here?"""
    return device.memory_bytes.source.startswith(GIVEN)


_VENDORS = ("NVIDIA", "AMD", "Intel", "Apple")


def _vendor(text: str) -> str:
    for vendor in _VENDORS:
        if vendor.casefold() == text.strip().casefold():
            return vendor
    raise BadInput("unknown-choice", f"vendor={text.strip()} is none that is known: write one of {', '.join(_VENDORS)}")


def parse(text: str) -> Device:
    """The device that the numbers describe, checked as one of a file is; what is wrong is said in one line."""
    given = _given(text)
    peaks = {key: _read(key, given[key]) for key in _PEAKS if key in given}
    numbers = {key: _read(key, given[key]) for key in _READERS if key in given}
    capability = _capability(given.get("capability"))
    core = _Core(numbers.get("sms"), numbers.get("clock"), peaks.get("fp32"), capability)
    lacking = [_LIKE[key] for key in ("memory", "bandwidth") if key not in numbers]
    if not core.is_known:
        lacking.append("fp32=91.6T (or all of sms, clock and capability)")
    if lacking:
        raise BadInput(
            "incomplete-device", f"{text.strip()!r} does not describe a device yet: add {' and '.join(lacking)}"
        )
    vendor, name = _vendor(given.get("vendor", _VENDORS[0])), given.get("name", _NAME)
    cores, tensor = _tables(peaks, core)
    device = Device(
        name=name,
        title=f"{name} (described by numbers)",
        kind="gpu",
        vendor=vendor,
        capability=capability,
        memory_bytes=_given_figure("memory", numbers["memory"], given),
        bandwidth_bytes_per_s=_given_figure("bandwidth", numbers["bandwidth"], given),
        l2_bytes=_given_figure("cache", numbers["cache"], given) if "cache" in numbers else None,
        tdp_w=_given_figure("power", numbers["power"], given) if "power" in numbers else None,
        sms=_given_figure("sms", numbers["sms"], given) if "sms" in numbers else core.assumed_sms,
        clock_hz=_given_figure("clock", numbers["clock"], given) if "clock" in numbers else core.assumed_clock,
        core_flops_per_s=cores,
        tensor_flops_per_s=tensor,
        links_bytes_per_s={key: _given_figure(key, numbers[key], given) for key in _LINKS if key in numbers},
    )
    return _checked(device)


# --- reading ---


def _given(text: str) -> dict[str, str]:
    """Keys and values as they are written."""
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, mark, value = (word.strip() for word in part.partition("="))
        if not mark:
            raise BadInput("missing-value", f"{part!r} in {text.strip()!r} has no value: write key=value, as {EXAMPLE}")
        if key not in _KEYS:
            near = difflib.get_close_matches(key.casefold(), _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_KEYS)}"
            raise BadInput("unknown-key", f"{key}= describes nothing of a device: {hint}")
        if key in given:
            raise BadInput("duplicate-value", f"{key}= is given twice: put ; between the descriptions of two devices")
        if not value:
            raise BadInput("missing-value", f"{key}= has no value: write {_LIKE[key]}")
        if key == "name" and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+ -]*", value):
            raise BadInput(
                "bad-name", f"name={value}: a name has letters, digits, dots and hyphens: write {_LIKE[key]}"
            )
        given[key] = value
    return given


def _read(key: str, value: str) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise BadInput("not-a-number", f"{key}={value} is no number: write {_LIKE[key]}")
    number, unit = Decimal(match[1].replace("_", "")), match[2].strip()
    in_si = not unit and "e" in match[1].lower()  # as messages write it: 4.5e+14
    factor = 1.0 if in_si else _READERS.get(key, _flops)(unit)
    if factor is None:
        what = f"{unit} is no unit of {_WHAT.get(key, 'a peak')}" if unit else "it has no unit"
        raise BadInput("bad-quantity", f"{key}={value}: {what}, write {_LIKE[key]}")
    if key == "sms" and number % 1:
        raise BadInput("not-a-whole-number", f"sms={value} is not a whole number: write {_LIKE[key]}")
    if not 0 < (found := float(number) * factor) < math.inf:
        raise BadInput("out-of-range", f"{key}={value} is not a number that a device can have: write {_LIKE[key]}")
    return found


def _flops(unit: str) -> float | None:
    """`T`, `TFLOP/s`, `TFLOPS`, and of integers `TOPS`."""
    if unit in ("G", "T", "P"):
        return float(parse_unit(unit).factor)
    spelled = unit if "flop" in unit.lower() else re.sub(r"(?i)ops?(/s)?$", "FLOP/s", unit)
    found = table_unit(spelled, "flop/second") if unit else None
    return None if found is None else float(found.factor)


def _bytes(unit: str) -> float | None:
    """As data sheets have it: of memory and caches a GB is 2^30 bytes, as a GiB."""
    found = _strict(unit, "byte")
    return None if found is None else 1024.0 ** found[1]


def _bytes_per_second(unit: str) -> float | None:
    found = _strict(unit, "byte/second")
    return None if found is None else found[0]


def _strict(unit: str, base: str) -> tuple[float, int] | None:
    """The factor of a unit and the power of its prefix; `None`: it is none of that."""
    try:
        found = parse_unit(unit)
    except UnitError:
        return None
    return (float(found.factor), found.power) if found.base == base else None


def _printed(base: str) -> Callable[[str], float | None]:
    def read(unit: str) -> float | None:
        found = printed_unit(unit) if unit else None
        return float(found.factor) if found is not None and found.base == base else None

    return read


def _count(unit: str) -> float | None:
    return None if unit else 1.0


def _capability(value: str | None) -> int | None:
    """`89`, or `8.9` as NVIDIA writes it."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d\d?)\.(\d)|(\d\d\d?)", value)
    if match is None or (found := int(match[3] or f"{match[1]}{match[2]}")) not in LANES:
        known = ", ".join(map(str, LANES))
        raise BadInput(
            "unknown-choice", f"capability={value} is none that rooflight knows: one of {known}, as 89 for 8.9"
        )
    return found


# --- what follows from them ---


@dataclass(frozen=True)
class _Core:
    """Multiprocessors, clock and fp32 peak: any two tell the third, where the generation is known."""

    sms: float | None
    clock_hz: float | None
    fp32: float | None
    capability: int | None

    @property
    def is_known(self) -> bool:
        return self.fp32 is not None or None not in (self.sms, self.clock_hz, self.capability)

    @property
    def lanes(self) -> int:
        return LANES.get(self.capability or 0, _USUAL_LANES)

    @property
    def peak(self) -> float:
        return self.fp32 if self.fp32 is not None else self._cycles * self.lanes * 2

    @property
    def _cycles(self) -> float:
        assert self.sms is not None and self.clock_hz is not None
        return self.sms * self.clock_hz

    @property
    def assumed_sms(self) -> Figure:
        clock = self.clock_hz or _USUAL_CLOCK_HZ
        count = max(1.0, float(round(self.peak / (self.lanes * 2 * clock))))
        return _assumed(count, f"fp32 / ({self.lanes} lanes x 2 x {clock / 1e6:,.0f} MHz)")

    @property
    def assumed_clock(self) -> Figure:
        if self.sms is None:
            return _assumed(_USUAL_CLOCK_HZ, "a usual clock")
        return _assumed(self.peak / (self.sms * self.lanes * 2), f"fp32 / (sms x {self.lanes} lanes x 2)")

    @property
    def tensor(self) -> Figure | None:
        """fp16 on tensor cores with fp32 accumulation, as the generation has it; `None`: nothing tells."""
        rate = TENSOR_FLOPS_A_CYCLE.get(self.capability or 0)
        if rate is None:
            return None
        cycles = self.peak / (self.lanes * 2) if self.sms is None or self.clock_hz is None else self._cycles
        if self.capability in _HALVED:
            how = f"sms x {rate // 2:,} x clock, as boards for games; others have twice that"
            return _assumed(cycles * rate / 2, how)
        return _assumed(cycles * rate, f"sms x {rate:,} x clock")


def _tables(peaks: Mapping[str, float], core: _Core) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Peaks of the cores and of the tensor cores."""
    given = {key: Figure(value, f"{GIVEN}{key}", _today()) for key, value in peaks.items()}
    has_tensor_cores = core.capability is None or core.capability in TENSOR_FLOPS_A_CYCLE
    cores = {key: figure for key, figure in given.items() if key in _ON_CORES or not has_tensor_cores}
    cores.setdefault("fp32", _assumed(core.peak, f"sms x {core.lanes} lanes x 2 x clock"))
    if not has_tensor_cores:
        return cores, {}
    tensor = {key: figure for key, figure in given.items() if key not in _ON_CORES}
    half = tensor.get("fp16") or tensor.get("bf16") or core.tensor
    if half is not None:
        tensor.setdefault("fp16", half if half.source.startswith(ASSUMED) else _assumed(half.value, "as bf16"))
        if core.capability is None or core.capability >= 80:
            tensor.setdefault("bf16", _assumed(half.value, "as fp16"))
            tensor.setdefault("tf32", _assumed(half.value / 2, "half of fp16"))
    return cores, tensor


def _assumed(value: float, how: str) -> Figure:
    return Figure(value, f"{ASSUMED}{how}", _today())


def _given_figure(key: str, value: float, given: Mapping[str, str]) -> Figure:
    return Figure(value, f"{GIVEN}{key}={given[key]}", _today())


def _today() -> str:
    return date.today().isoformat()


def _checked(device: Device) -> Device:
    """In the words in which the device was described."""
    try:
        return checked(device, device.name)
    except BadInput as error:
        line = error.text
        for field, key in _FIELDS.items():
            line = line.replace(field, key)
        raise error.reworded(line) from None


_READERS: dict[str, Callable[[str], float | None]] = {
    "memory": _bytes,
    "bandwidth": _bytes_per_second,
    "cache": _bytes,
    "sms": _count,
    "clock": _printed("hz"),
    "power": _printed("watt"),
    "nvlink": _bytes_per_second,
    "pcie": _bytes_per_second,
}
_LINKS = ("nvlink", "pcie")
_KEYS = ("name", "vendor", "capability", *_READERS, *_PEAKS)
_LIKE = {
    **{key: f"the dense peak, as {key}=91.6T" for key in _PEAKS},
    "memory": "memory=24GB",
    "bandwidth": "bandwidth=864GB/s",
    "cache": "cache=96MB",
    "sms": "sms=142",
    "clock": "clock=2520MHz",
    "power": "power=300W",
    "nvlink": "nvlink=450GB/s, in one direction",
    "pcie": "pcie=31.5GB/s, in one direction",
    "capability": "capability=89",
    "name": "name=mygpu",
    "vendor": "vendor=NVIDIA",
}
_WHAT = {
    "memory": "memory", "bandwidth": "a bandwidth", "cache": "a cache", "sms": "a count", "clock": "a clock",
    "power": "power", "nvlink": "a bandwidth", "pcie": "a bandwidth",
}  # fmt: skip
_FIELDS = {
    "bandwidth_bytes_per_s": "bandwidth", "memory_bytes": "memory", "l2_bytes": "cache", "clock_hz": "clock",
    "tdp_w": "power", "core_flops_per_s.": "", "tensor_flops_per_s.": "",
}  # fmt: skip
"""What a file calls a figure, and what it is called here."""
