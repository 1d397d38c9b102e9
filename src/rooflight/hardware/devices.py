"""The devices that come with rooflight, by any name that people type; and those that a user describes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rooflight.errors import BadInput
from rooflight.hardware import described
from rooflight.hardware.device import Device, read

_FOLDER = Path(__file__).parent / "specs"
_ENDING = ".toml"
_MAKERS = {
    **dict.fromkeys("nvidia geforce tesla quadro rtx gtx".split(), "nvidia"),
    **dict.fromkeys(("amd", "instinct"), "amd"),
    "intel": "intel",
    "apple": "apple",
}
"""Words that tell whose a device is, but none from another of that maker."""
_NOISE = frozenset("gpu graphics processor r tm".split())
"""Words that tell no device from another."""
_SIZE = re.compile(r"\b(\d{1,4})\s*gi?b\b", re.IGNORECASE)
"""`24GB` or `24 GB`."""


USUAL = ("h200", "a100", "v100")
"""Where a report predicts a step when nobody says where."""


def names() -> tuple[str, ...]:
    """Of all devices: NVIDIA's GPUs from old to new, then other GPUs, then CPUs."""
    return tuple(device.name for device in known())


@cache
def known() -> tuple[Device, ...]:
    """Every device of the database, in the order of `names()`."""
    return tuple(sorted((_shipped(path.stem) for path in _FOLDER.glob(f"*{_ENDING}")), key=_order))


def several(text: str) -> list[str]:
    """The devices that a text names, each as `find` takes it: `,` or `;` lies between them. Parts with `=` that follow
    one another are one description; `;` ends it.

    >>> several("a100,h200")
    ['a100', 'h200']
    >>> several("a100,memory=24GB,bandwidth=864GB/s;memory=8GB,bandwidth=288GB/s,h200")
    ['a100', 'memory=24GB,bandwidth=864GB/s', 'memory=8GB,bandwidth=288GB/s', 'h200']
    """
    found: list[str] = []
    groups = text.split(";")
    for group in filter(str.strip, groups) if len(groups) > 1 else groups:
        open_description = False
        for part in group.split(","):
            belongs = described.is_description(part)
            if belongs and open_description:
                found[-1] += f",{part}"
            else:
                found.append(part)
            open_description = belongs
    return found


def find(text: str) -> Device:
    """The device that `--on` means: a name of the database however it is spelled, a path to a .toml file, or a few
    numbers (`memory=24GB,bandwidth=864GB/s,fp32=91.6T`)."""
    if described.is_description(text):
        device = described.parse(text)
        if device.name in names():
            raise BadInput(
                "device-name-taken",
                f"name={device.name} is a device that rooflight knows: give its name alone, or the "
                "numbers another name",
            )
        return device
    if text.endswith(_ENDING) or "/" in text or "\\" in text:
        return read(text)
    called = _called(text)
    if called is not None:
        return called
    spelled = {"-".join(_words(spelling)): name for spelling, name in _every_spelling()}
    near = [spelled[word] for word in difflib.get_close_matches("-".join(_words(text)), spelled, n=6, cutoff=0.55)]
    near = [name for name in dict.fromkeys(near) if _may_mean(text, _shipped(name))][:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    several = re.fullmatch(r"(?:(\d+) ?[x*] ?)?(.+?)(?: ?[x*] ?(\d+))?", text)
    if several is not None and (count := several[1] or several[3]) and _called(several[2]) is not None:
        hint = f"{count} of them are --on {several[2]} --gpus {count}; "
    raise BadInput(
        "unknown-device",
        f"there is no device {text!r}: {hint}`rooflight list devices` shows all, and a .toml file describes another, "
        f"or a few numbers: {described.EXAMPLE}",
    )


def card_taken(text: str) -> str:
    """What must be said of a name that several cards have: which one is meant by it, and which others there are. Empty:
    it names one card.

    >>> card_taken("a100-sxm-40")
    ''
    >>> card_taken("v100")
    'v100 is taken as v100-sxm2-16 (16 GB, 900 GB/s); also v100-pcie-16, v100-pcie-32, v100-sxm2-32: name one'
    """
    device, words = None if described.is_description(text) else _called(text), set(_key(text))
    if device is None or words == set(_key(device.name)):
        return ""
    others = [card.name for card in known() if words < set(_key(card.name)) and card.name != device.name]
    if not others:
        return ""
    memory, bandwidth = device.memory_bytes.value / 2**30, device.bandwidth_bytes_per_s.value / 1e9
    return (
        f"{text.strip()} is taken as {device.name} ({memory:g} GB, {bandwidth:,.0f} GB/s); also "
        f"{', '.join(others)}: name one"
    )


def cards_taken(on: str | Device | Sequence[str | Device]) -> tuple[str, ...]:
    """The same of all that `--on` names."""
    given = several(on) if isinstance(on, str) else [on] if isinstance(on, Device) else on
    said = (card_taken(name) for name in given if isinstance(name, str))
    return tuple(dict.fromkeys(line for line in said if line))


def recognise_name(reported: str | None) -> Device | None:
    """The device that the driver, torch or /proc/cpuinfo calls so; `None`: it is not in the database.

    The name must be the whole name: an "NVIDIA H200 NVL" is another board than an "NVIDIA H200".
    """
    name = _reported().get(" ".join((reported or "").split()))
    return None if name is None else _shipped(name)


def _called(text: str) -> Device | None:
    """The device of a name as people type it, also with the size of its memory: `RTX 4090 24GB`."""
    name, size = _spellings().get(_key(text)), _SIZE.search(text)
    if name is None and size is not None:
        name = _spellings().get(_key(text[: size.start()] + text[size.end() :]))
        if name is not None and _shipped(name).memory_bytes.value != int(size[1]) * 2**30:
            return None
    return _shipped(name) if name is not None and _may_mean(text, _shipped(name)) else None


def _may_mean(text: str, device: Device) -> bool:
    """No other maker is named: there is a Tesla M4, and Apple's."""
    maker = device.vendor.casefold()
    return all(_MAKERS.get(word, maker) == maker for word in _split(text))


@cache
def _shipped(name: str) -> Device:
    return read(_FOLDER / f"{name}{_ENDING}")


def _every_spelling() -> list[tuple[str, str]]:
    """What devices are called, and the name it stands for. Names come first: an alias never hides one."""
    named = [(device.name, device.name) for device in known()]
    return named + [(text, device.name) for device in known() for text in (*device.aliases, *device.recognised_as)]


@cache
def _spellings() -> dict[tuple[str, ...], str]:
    spelled: dict[tuple[str, ...], str] = {}
    for text, name in _every_spelling():
        spelled.setdefault(_key(text), name)
    return spelled


@cache
def _reported() -> dict[str, str]:
    return {reported: device.name for device in known() for reported in device.recognised_as}


def _split(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9+]+", text.casefold()) if word]


def _words(text: str) -> list[str]:
    """`NVIDIA A100_SXM 80GB` as `a100`, `sxm`, `80`.

    Beside a number RTX and GTX tell nothing; without one they tell a TITAN RTX from a GTX TITAN.
    """
    words = [word for word in _split(_SIZE.sub(r"\1gb", text)) if word not in _NOISE]
    numbered = any(re.search(r"\d", word) for word in words)
    words = [word for word in words if word not in _MAKERS or (word in ("rtx", "gtx") and not numbered)]
    told = [re.sub(r"^(\d+)(?:g|gb|gib)$", r"\1", word) for word in words]
    return [re.sub(r"^[rg]tx(?=a?\d)", "", word) for word in told]


def _key(text: str) -> tuple[str, ...]:
    """The same for every spelling of a name: letters and digits apart, in any order.

    >>> _key("RTX 2080 Ti") == _key("2080ti") and _key("A100 80GB PCIe") == _key("a100-pcie-80")
    True
    >>> _key("rtx4070tisuper")
    ('4070', 'super', 'ti')
    """
    return tuple(sorted(re.findall(r"ti(?=super)|[a-z]+|\d+|\+", " ".join(_words(text)))))


def _order(device: Device) -> tuple[bool, bool, str, int, float, str]:
    is_cpu, nvidia, age = device.kind == "cpu", device.vendor == "NVIDIA", device.capability or 0
    vendor = "" if nvidia or is_cpu else device.vendor
    return is_cpu, not nvidia, vendor, age, device.bandwidth_bytes_per_s.value, device.name
