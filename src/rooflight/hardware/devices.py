"""The devices that come with rooflight, by name, alias or what the driver calls them; and those of a user's file."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

from rooflight.errors import BadInput
from rooflight.hardware.device import Device, read

_FOLDER = Path(__file__).parent / "specs"
_ENDING = ".toml"
_VENDORS = ("nvidia-", "amd-", "intel-", "geforce-", "tesla-", "instinct-")


USUAL = ("h200", "a100", "v100")
"""Where a report predicts a step when nobody says where."""


def names() -> tuple[str, ...]:
    """Of all devices: NVIDIA's GPUs from old to new, then other GPUs, then CPUs."""
    return tuple(device.name for device in known())


@cache
def known() -> tuple[Device, ...]:
    """Every device of the database, in the order of `names()`."""
    return tuple(sorted((_shipped(path.stem) for path in _FOLDER.glob(f"*{_ENDING}")), key=_order))


def find(text: str) -> Device:
    """The device that `--on` means: a name or an alias of the database, or a path to a .toml file."""
    if text.endswith(_ENDING) or "/" in text or "\\" in text:
        return read(text)
    wanted = _plain(text)
    if (_FOLDER / f"{wanted}{_ENDING}").is_file():
        return _shipped(wanted)
    name = _spellings().get(wanted)
    if name is not None:
        return _shipped(name)
    near = [_spellings()[word] for word in difflib.get_close_matches(wanted, _spellings(), n=6, cutoff=0.5)]
    near = list(dict.fromkeys(near))[:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise BadInput(
        f"there is no device {text!r}: {hint}`rooflight list devices` shows all, and a .toml file describes another"
    )


def recognise_name(reported: str | None) -> Device | None:
    """The device that the driver, torch or /proc/cpuinfo calls so; `None`: it is not in the database.

    The name must be the whole name: an "NVIDIA H200 NVL" is another board than an "NVIDIA H200".
    """
    name = _reported().get(" ".join((reported or "").split()))
    return None if name is None else _shipped(name)


@cache
def _shipped(name: str) -> Device:
    return read(_FOLDER / f"{name}{_ENDING}")


@cache
def _spellings() -> dict[str, str]:
    """What `find` takes, and the name it stands for. Names come first: an alias never hides one."""
    spelled: dict[str, str] = {}
    for device in known():
        spelled[device.name] = device.name
    for device in known():
        for text in (*device.aliases, *device.recognised_as):
            spelled.setdefault(_plain(text), device.name)
    return spelled


@cache
def _reported() -> dict[str, str]:
    return {reported: device.name for device in known() for reported in device.recognised_as}


def _plain(text: str) -> str:
    """`NVIDIA A100_SXM 80` as `a100-sxm-80`."""
    plain = "-".join(text.casefold().replace("_", " ").replace("-", " ").split())
    for vendor in _VENDORS:
        plain = plain.removeprefix(vendor)
    return plain


def _order(device: Device) -> tuple[bool, bool, int, float, str]:
    age = device.capability or 0
    return device.kind == "cpu", device.vendor != "NVIDIA", age, device.bandwidth_bytes_per_s.value, device.name
