"""Is a number that somebody gives one of a device's figures? Its roofs, its memory, its links."""

from __future__ import annotations

import math
from typing import Literal

from rooflight import formatting
from rooflight.analysis.finding import Finding
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import attainable, roofs_of

SAME = 0.005
"""Two figures of one thing, rounded differently, are this near to each other."""
_BETWEEN = {"gpu-gpu": "between GPUs", "gpu-cpu": "between GPU and CPU"}


def roof_point(device: Device, precision: str, *, intensity: float, flops_per_s: float) -> Finding | None:
    """Does a point that was drawn as part of a roof lie on it? The memory's line goes through the origin."""
    roofs = roofs_of(device)
    roof, slope = roofs.matrix(precision), roofs.slope()
    right = attainable(intensity, roof, slope)
    if math.isclose(right, flops_per_s, rel_tol=SAME):
        return None
    if not intensity:
        return Finding(
            "origin",
            f"the memory's roof goes through (0, 0), not {formatting.count(flops_per_s)}FLOP/s: it is intensity x "
            f"{formatting.count(slope.bytes_per_s)}B/s; axes with logarithms have no 0",
        )
    slip = power_of_ten(flops_per_s / right)
    said = formatting.count(flops_per_s)
    text = f"the roof is {formatting.count(right)}FLOP/s at {intensity:g} FLOP/byte, not {said}FLOP/s"
    return Finding("roof-off-by-ten" if slip else "off-the-roof", f"{text}: {slip} it" if slip else text)


def link_claim(device: Device, bytes_per_s: float, between: Literal["gpu-gpu", "gpu-cpu"]) -> Finding | None:
    """Does a link of the device with that bandwidth run between what somebody says?"""
    links = [
        (name, ways, "gpu-cpu" if name in ("pcie", "nvlink-c2c") else "gpu-gpu")
        for name, figure in device.links_bytes_per_s.items()
        if (ways := directions(bytes_per_s, figure.value)) is not None
    ]
    if any(joins == between for _, _, joins in links):
        return None
    if not links:
        return Finding("link-unknown", f"{device.title} has no link of {formatting.count(bytes_per_s)}B/s")
    name, ways, joins = links[0]
    host = device.links_bytes_per_s.get("pcie")
    hint = "" if host is None else f"; the host is reached by PCIe, {formatting.count(host.value)}B/s in one direction"
    told = f"{_BETWEEN[joins]}, not {_BETWEEN[between]}{hint}"
    return Finding("link-between", f"{formatting.count(bytes_per_s)}B/s is {link_name(name)} ({ways}), {told}")


def directions(bytes_per_s: float, one_direction: float) -> str | None:
    """Datasheets give links in both directions together, we in one."""
    if same(bytes_per_s, one_direction):
        return "one direction"
    return "both directions together" if same(bytes_per_s, 2 * one_direction) else None


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME)


def power_of_ten(times: float) -> str | None:
    """`10 times`, `a 1,000th of`; `None` when it is no power of ten."""
    power = round(math.log10(times)) if times > 0 else 0
    if not power or not math.isclose(times, 10.0**power, rel_tol=0.1):
        return None
    return f"{10**power:,} times" if power > 0 else f"a {10**-power:,}th of"


def link_name(name: str) -> str:
    return {"nvlink": "NVLink", "pcie": "PCIe"}.get(name, name)
